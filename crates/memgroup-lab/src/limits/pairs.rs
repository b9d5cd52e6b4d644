//! The pair, one charge and its end: against headroom, by size, and without the stock at several depths.

use super::cases::{Case, Kept, Load, Refusals, Tally, columns, measure};
use super::ledger::{Kind, Ledger, Shape};
use super::{LEVELS, MIB, PAGE};
use crate::harness::prelude::*;

/// A pair of 1 MiB over one of 4 KiB: the same work.
const LARGE_MOST: f64 = 1.1;
/// The exact path over the CAS tree, on one thread and on several.
const EXACT_MOST: [f64; 2] = [1.4, 1.1];

/// Pairs of one size in leaf 0.
#[derive(Clone)]
pub(super) struct Pair(pub(super) u64);

impl Load for Pair {
    fn run<L: Ledger>(&self, ledger: &L, _: &mut Kept<L::Held>, count: u64, tally: &mut Tally) -> u64 {
        for _ in 0..count {
            match ledger.charge(0, self.0) {
                Some(held) => ledger.free(held),
                None => tally.refused += 1,
            }
        }
        tally.asked += count;
        count
    }
}

/// Seven small pairs and a large one in turn.
#[derive(Clone)]
struct Mixed;

impl Load for Mixed {
    fn run<L: Ledger>(&self, ledger: &L, kept: &mut Kept<L::Held>, count: u64, tally: &mut Tally) -> u64 {
        let turns = count.div_ceil(8);
        for _ in 0..turns {
            Pair(PAGE).run(ledger, kept, 7, tally);
            Pair(MIB).run(ledger, kept, 1, tally);
        }
        8 * turns
    }
}

/// "4 KiB", "64 B", "8 MiB".
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= MIB => format!("{} MiB", bytes / MIB),
        bytes if bytes >= 1024 => format!("{} KiB", bytes / 1024),
        bytes => format!("{bytes} B"),
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    headroom(lab)?;
    sizes(lab)?;
    exact(lab)
}

fn headroom(lab: &mut Lab<'_>) -> Result<()> {
    const HELD: u64 = 64 * MIB;
    let mut cases = Vec::new();
    for room in [0, PAGE, 16 << 10, 64 << 10, MIB, 64 * MIB] {
        for threads in lab.one_and_all() {
            let shape = Shape { leaf_max: HELD + room, held: HELD, ..Shape::leaves(1) };
            let mut case = Case::new(size(room), threads, shape, Pair(PAGE));
            case.refusals = match room {
                0 => Refusals::All,
                room if room < threads as u64 * PAGE => Refusals::Some,
                _ => Refusals::None,
            };
            cases.push(case);
        }
    }
    let mut table = Table::new(
        "pairs of 4 KiB against headroom: a group with a limit holds 64 MiB less than it; ns",
        columns("headroom; threads, same group"),
    );
    measure(lab, &mut table, "pair by headroom", lab.effort.windows, &cases)?;
    table.note("headroom 0: every charge is refused. Where it is smaller than a page for each thread, some are; nowhere else is one");
    lab.print(&table)
}

fn sizes(lab: &mut Lab<'_>) -> Result<()> {
    let mut cases = Vec::new();
    for bytes in [64, PAGE, 64 << 10, 128 << 10, 256 << 10, MIB, 8 * MIB] {
        for threads in lab.one_and_all() {
            cases.push(Case::new(size(bytes), threads, Shape::leaves(1), Pair(bytes)));
        }
    }
    let title = "pairs by size, far below every limit; ns";
    let mut table = Table::new(title, columns("size; threads, same group"));
    let found = measure(lab, &mut table, "pair by size", lab.effort.windows, &cases)?;
    for (case, large) in cases.iter().zip(&found).filter(|(case, _)| case.load.0 == MIB) {
        let page =
            cases.iter().zip(&found).find(|(one, _)| one.load.0 == PAGE && one.threads == case.threads);
        let over = ratio(large.of(Kind::Engine), page.and_then(|(_, page)| page.of(Kind::Engine)));
        let name = format!("a pair of 1 MiB over one of 4 KiB, {}", counted(case.threads as u64, "thread"));
        lab.at_most(name, over, LARGE_MOST, "x");
    }
    let name = "seven of 4 KiB, one of 1 MiB, in turn";
    let mixed: Vec<_> = lab
        .one_and_all()
        .into_iter()
        .map(|threads| Case::new(name, threads, Shape::leaves(1), Mixed))
        .collect();
    measure(lab, &mut table, "mixed pair", lab.effort.windows, &mixed)?;
    lab.print(&table)
}

fn exact(lab: &mut Lab<'_>) -> Result<()> {
    let mut cases = Vec::new();
    for levels in [2, LEVELS, 8] {
        for threads in lab.one_and_all() {
            let shape = Shape { levels, ..Shape::leaves(1) };
            let name = counted(levels as u64, "level");
            cases.push(Case::new(name, threads, shape, Pair(PAGE)));
        }
    }
    let title = "the exact path: pairs of 4 KiB with the stock off, by levels; ns";
    let mut table = Table::new(title, columns("levels; threads, same group"));
    let found = measure(lab, &mut table, "pair by levels", lab.effort.windows, &cases)?;
    for (case, of) in cases.iter().zip(&found).filter(|(case, _)| case.shape.levels == LEVELS) {
        let most = EXACT_MOST[usize::from(case.threads > 1)];
        let threads = counted(case.threads as u64, "thread");
        lab.at_most(
            format!("the exact path over the CAS tree, {threads}"),
            of.over(Kind::NoStock, Kind::Cas),
            most,
            "x",
        );
    }
    lab.print(&table)
}
