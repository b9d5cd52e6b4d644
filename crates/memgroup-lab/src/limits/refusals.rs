//! Refusals: by a group's own limit, and by a full parent with many groups below it that hold nothing.

use super::cases::{Case, Refusals, columns, measure};
use super::ledger::{Kind, Shape};
use super::pairs::Pair;
use super::{MIB, PAGE, longer};
use crate::harness::prelude::*;

/// Microseconds of a refusal by a parent, by groups below it.
const MOST_US: [(usize, f64); 3] = [(1, 0.25), (1_000, 0.4), (10_000, 0.4)];

/// With so many groups below, a refusal may take a large part of a window.
const LONG_GROUPS: usize = 1_000;

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let held = 64 * MIB;
    let full = |name: String, threads, shape| {
        let case = Case::new(name, threads, Shape { held, ..shape }, Pair(PAGE));
        Case { refusals: Refusals::All, ..case }
    };
    let at_parent = |groups: usize, threads| {
        let name = format!("a parent, {} below", counted(groups as u64, "group"));
        full(name, threads, Shape { parent_max: held, ..Shape::leaves(groups) })
    };
    let numbers = if lab.args.tiny { [1, 10, 20, 30] } else { [1, 100, 1_000, 10_000] };
    let mut cases = Vec::new();
    for threads in lab.one_and_all() {
        let shape = Shape { leaf_max: held, ..Shape::leaves(1) };
        cases.push(full("its own limit".to_owned(), threads, shape));
        cases.extend(numbers.map(|groups| at_parent(groups, threads)));
    }
    // Threads that end a window with a long refusal end it too far apart, if the window is not longer.
    let is_long = |case: &Case<Pair>| case.threads > 1 && case.shape.leaves >= LONG_GROUPS;
    let (long, short): (Vec<_>, Vec<_>) = cases.into_iter().partition(is_long);
    let mut table = Table::new(
        "a refused charge of 4 KiB; of the groups below the parent one holds 64 MiB, the others nothing; ns",
        columns("refused by; threads"),
    );
    let plan = lab.effort.windows;
    let mut found = measure(lab, &mut table, "refusal", plan, &short)?;
    if !long.is_empty() {
        found.extend(measure(lab, &mut table, "refusal", longer(plan, 5), &long)?);
    }
    for (case, of) in short.iter().chain(&long).zip(&found) {
        expect(format_args!("prepaid bytes beside a refusal by {}", case.name), of.prepaid_bytes, 0)?;
        let most = MOST_US.into_iter().find(|&(groups, _)| groups == case.shape.leaves);
        if let Some((_, most)) = most.filter(|_| case.threads == 1 && case.shape.parent_max == held) {
            let us = of.of(Kind::Engine).map(|ns| ns / 1e3);
            lab.at_most(format!("a refusal by {}", case.name), us, most, "us");
        }
    }
    table.note("on several threads all are refused at once. At the end no byte is prepaid below the parent");
    lab.print(&table)
}
