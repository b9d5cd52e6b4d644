//! Seed 000's table 2.4: mapping and unmapping one page, with and without a write, and an idle loop.
//!
//! The seed counted cycles a *system call*, half a pair of mmap and munmap, on an isolated CPU. Here a pinned thread is
//! measured in the same way. Accounting charges one page for the time it is mapped; the idle loop charges one for each sleep.

use std::time::Duration;

use memgroup::Group;

use super::{Accounting, PAGE_BYTES, REFUSED, SEED};
use crate::harness::prelude::*;

const WRITE: &str = "mmap + write + munmap";
const IDLE: &str = "usleep(10)";
const LOOPS: [&str; 3] = ["mmap + munmap, no write", WRITE, IDLE];

fn turn(kind: &str, group: Option<&Group>) -> Result<()> {
    let charge = group.map(|group| group.try_charge(PAGE_BYTES)).transpose().or_wrong(REFUSED)?;
    if kind == IDLE {
        sleep_short(Duration::from_micros(10));
    } else {
        let page = Mapping::new(page_bytes())?;
        if kind == WRITE {
            page.touch(0);
        }
    }
    drop(charge);
    Ok(())
}

/// Measures the three loops with accounting off, without stock and with it.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let depth = lab.args.depth();
    let mut built = Vec::new();
    for kind in LOOPS {
        built.extend(Accounting::all(lab, "accounting off")?.map(|accounting| (kind, accounting)));
    }
    let turns = built.iter().map(|(kind, accounting)| (*kind, accounting.group()));
    let works: Vec<_> = turns.map(|(kind, group)| each(move || turn(kind, group.as_ref()))).collect();
    let variants: Vec<Variant<'_>> = works.iter().map(|work| Variant::of(work, 1)).collect();
    let Plan { rounds, window_us } = lab.effort.windows;
    let measured = lab.interleave_by(Plan { rounds, window_us: window_us * 3 }, &variants)?;

    let title = "seed 000, table 2.4: system calls of one pinned thread, accounting on and off, depth";
    let columns = ["ns a call: median (min..p90)", "accounting", "ns", "TSC cycles", "before", "after"];
    let mut table = Table::new(format!("{title} {depth}"), columns);
    for ((kind, accounting), measured) in built.iter().zip(&measured) {
        accounting.check()?;
        // System calls of one turn, as the seed divides.
        let calls = if *kind == IDLE { 1.0 } else { 2.0 };
        let ns = measured.ns.map(|ns| ns.scaled(1.0 / calls));
        let cycles = figure_or_dash(ns.and_then(|ns| lab.clock.cycles(ns.median)));
        let [before, after] = SEED.cells(&format!("table 2.4 of seed 000: {kind}"));
        let (name, params) = (accounting.name, json!({"loop": kind, "depth": depth}));
        let time = lab.record(name, params).time("system call", ns);
        table.row(*kind, [name.to_owned(), time, cycles, before, after]);
    }
    note_windows(&mut table, &measured);
    table.note("before and after: the seed's cycles a system call as the seed counts them: half an mmap + munmap pair. It gives no figure for the idle loop.");
    lab.print(&table)
}
