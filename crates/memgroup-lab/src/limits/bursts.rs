//! Bursts around `high`: N pages are charged, then all are freed.

use super::cases::{Case, Kept, Load, Tally, columns, measure};
use super::ledger::{Kind, Ledger, Shape};
use super::{MIB, PAGE};
use crate::harness::prelude::*;

/// A burst of 256 pages above `high`, over one below.
const ABOVE_MOST: f64 = 1.3;
/// The burst with that goal.
const GOAL_PAGES: u64 = 256;

/// So many pages charged in leaf 0, then freed.
#[derive(Clone)]
struct Burst(u64);

impl Load for Burst {
    fn run<L: Ledger>(&self, ledger: &L, kept: &mut Kept<L::Held>, count: u64, tally: &mut Tally) -> u64 {
        let mut done = 0;
        while done < count {
            kept.queue.extend((0..self.0).map_while(|_| ledger.charge(0, PAGE)));
            tally.refused += self.0 - kept.queue.len() as u64;
            kept.queue.drain(..).for_each(|page| ledger.free(page));
            done += self.0;
        }
        tally.asked += done;
        done
    }
}

/// Where `high` lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum High {
    Unset,
    Below,
    Across,
    Above,
    /// The parent's, with many more groups below it.
    AcrossParents,
}

impl High {
    const ALL: [High; 5] = [High::Unset, High::Below, High::Across, High::Above, High::AcrossParents];

    fn name(self) -> &'static str {
        ["no high", "below high", "across high", "above high", "across the parent's"][self as usize]
    }

    fn shape(self, pages: u64, siblings: usize) -> Shape {
        let (base, half) = (Shape::leaves(1), pages / 2 * PAGE);
        match self {
            High::Unset => base,
            High::Below => Shape { leaf_high: Some(1 << 40), ..base },
            High::Across => Shape { leaf_high: Some(half), ..base },
            // All that the burst charges is above.
            High::Above => Shape { held: 64 * MIB, leaf_high: Some(64 * MIB), ..base },
            High::AcrossParents => Shape { leaves: 1 + siblings, parent_high: Some(half), ..base },
        }
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let siblings = lab.pick(10, 1_000, 1_000);
    let mut kinds = Vec::new();
    for pages in [16, GOAL_PAGES, 1_000] {
        for high in High::ALL {
            kinds.extend(lab.one_and_all().into_iter().map(|threads| (pages, high, threads)));
        }
    }
    let case = |&(pages, high, threads): &(u64, High, usize)| {
        let name = format!("{}, {}", count(pages), high.name());
        Case::new(name, threads, high.shape(pages, siblings), Burst(pages))
    };
    let cases: Vec<_> = kinds.iter().map(case).collect();
    let mut table = Table::new(
        "bursts of N pages of 4 KiB, charged and then freed: ns for each page",
        columns("N, usage; threads, same group"),
    );
    let found = measure(lab, &mut table, "page of a burst", lab.effort.windows, &cases)?;
    let of = |wanted: (u64, High, usize)| {
        let at = kinds.iter().position(|kind| *kind == wanted);
        at.and_then(|at| found[at].of(Kind::Engine))
    };
    for threads in lab.one_and_all() {
        let [below, above] = [High::Below, High::Above].map(|high| of((GOAL_PAGES, high, threads)));
        let name =
            format!("a burst of 256 pages above high, over below, {}", counted(threads as u64, "thread"));
        lab.at_most(name, ratio(above, below), ABOVE_MOST, "x");
    }
    table.note("across: the first half of the burst stays below high; the parent has 1,000 more groups. Above: usage is at high before the burst. Nothing is refused. Only memgroup and stock off have a high; the controls have none");
    lab.print(&table)
}
