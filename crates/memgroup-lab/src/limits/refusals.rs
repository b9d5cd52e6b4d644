//! Refusals: by a group's own limit, and by a full parent with many groups below it that hold nothing.

use super::cases::{Case, Refusals, columns, measure};
use super::ledger::{Kind, Shape};
use super::pairs::Pair;
use super::{MIB, PAGE, longer};
use crate::harness::prelude::*;

/// Microseconds of a refusal by a parent, by groups below it.
const MOST_US: [(usize, f64); 3] = [(1, 0.25), (1_000, 0.4), (10_000, 0.4)];

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
    let (few, many) = lab.pick(([1, 10], [20, 30]), ([1, 100], [1_000, 10_000]), ([1, 100], [1_000, 10_000]));
    let threads = lab.one_and_all();
    let own = threads.iter().map(|&threads| {
        full("its own limit".to_owned(), threads, Shape { leaf_max: held, ..Shape::leaves(1) })
    });
    let with = |groups: [usize; 2]| {
        groups.into_iter().flat_map(|groups| threads.iter().map(move |&threads| (groups, threads)))
    };
    let small: Vec<_> = own.chain(with(few).map(|(groups, threads)| at_parent(groups, threads))).collect();
    let large: Vec<_> = with(many).map(|(groups, threads)| at_parent(groups, threads)).collect();
    let mut table = Table::new(
        "a refused charge of 4 KiB; of the groups below the parent one holds 64 MiB, the others nothing; ns",
        columns("refused by; threads"),
    );
    let plan = lab.effort.windows;
    let mut found = measure(lab, &mut table, "refusal", plan, &small)?;
    found.extend(measure(lab, &mut table, "refusal", longer(plan, 20), &large)?);
    for (case, of) in small.iter().chain(&large).zip(&found) {
        expect(format_args!("prepaid bytes beside a refusal by {}", case.name), of.prepaid_bytes, 0)?;
        let most = MOST_US.into_iter().find(|&(groups, _)| groups == case.shape.leaves);
        if let Some((_, most)) = most.filter(|_| case.threads == 1 && case.shape.parent_max == held) {
            let us = of.of(Kind::Engine).map(|ns| ns / 1e3);
            lab.at_most(format!("a refusal by {} that hold nothing", case.name), us, most, "us");
        }
    }
    table.note("on several threads all are refused at once. At the end no byte is prepaid below the parent");
    lab.print(&table)
}
