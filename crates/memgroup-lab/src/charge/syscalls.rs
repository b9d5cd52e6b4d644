//! Seed 000's table 2.4: mapping and unmapping one page, with and without a write, and an idle loop.
//!
//! The seed counted cycles a *system call*, half a pair of mmap and munmap, on an isolated CPU; so do we, on a
//! pinned thread. Accounting charges one page for the time it is mapped; the idle loop charges one a sleep.

use std::sync::Arc;
use std::time::Duration;

use memgroup::Group;

use super::pair::{config, refused};
use super::pairs::{PAGE_BYTES, cell, note_windows};
use crate::Error;
use crate::harness::Lab;
use crate::harness::os::{Mapping, page_bytes, sleep_short};
use crate::harness::report::params;
use crate::harness::table::{Table, figure_or_dash};
use crate::harness::tree::Tree;
use crate::harness::window::{Plan, Variant, Work};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loop {
    NoWrite,
    Write,
    Idle,
}

impl Loop {
    const ALL: [Loop; 3] = [Loop::NoWrite, Loop::Write, Loop::Idle];

    fn name(self) -> &'static str {
        match self {
            Loop::NoWrite => "mmap + munmap, no write",
            Loop::Write => "mmap + write + munmap",
            Loop::Idle => "usleep(10)",
        }
    }

    /// System calls of one turn, as the seed divides.
    fn calls(self) -> f64 {
        if self == Loop::Idle { 1.0 } else { 2.0 }
    }
}

struct Turns {
    kind: Loop,
    group: Option<Group>,
}

impl Turns {
    fn turn(&self) -> Result<(), Error> {
        let charge = self.group.as_ref().map(|group| group.try_charge(PAGE_BYTES)).transpose();
        let charge = charge.map_err(refused)?;
        match self.kind {
            Loop::Idle => sleep_short(Duration::from_micros(10)),
            kind => {
                let page = Mapping::new(page_bytes())?;
                if kind == Loop::Write {
                    page.touch(0);
                }
            }
        }
        drop(charge);
        Ok(())
    }
}

impl Work for Turns {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            self.turn()?;
        }
        Ok(count)
    }
}

const ACCOUNTING: [(&str, Option<bool>); 3] =
    [("accounting off", None), ("no stock", Some(false)), ("stock", Some(true))];

/// Measures the three loops with accounting off, without stock and with it.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let depth = lab.args.depth.unwrap_or(3);
    let mut built = Vec::new();
    for kind in Loop::ALL {
        for (name, stock) in ACCOUNTING {
            let tree =
                stock.map(|stock| Tree::grow(config(stock, depth, lab.slots), depth, 1)).transpose()?;
            let group = tree.as_ref().map(|tree| tree.leaves[0].clone());
            built.push((kind, name, tree, Arc::new(Turns { kind, group })));
        }
    }
    let variants: Vec<Variant> = built.iter().map(|(_, _, _, work)| Variant::of(work.clone(), 1)).collect();
    let plan = Plan { rounds: lab.effort.rounds, window_us: lab.effort.window_us * 3 };
    let measured = lab.interleave_by(plan, &variants)?;

    let title = format!(
        "seed 000, table 2.4: system calls of one pinned thread, accounting on and off, depth {depth}"
    );
    let columns = ["ns a call: median (min..p90)", "accounting", "ns", "TSC cycles", "before", "after"];
    let mut table = Table::new(title, columns);
    let clock = lab.clock;
    for ((kind, name, tree, _), measured) in built.iter().zip(&measured) {
        if let Some(tree) = tree {
            tree.check_stock(*name == "stock", name)?;
            tree.check_empty()?;
        }
        let ns = measured.ns.map(|ns| ns.scaled(1.0 / kind.calls()));
        let cycles = ns.and_then(|ns| clock.cycles(ns.median));
        let (before, after) = seed_cycles(*kind);
        table.row(vec![
            kind.name().to_owned(),
            (*name).to_owned(),
            cell(ns),
            figure_or_dash(cycles),
            figure_or_dash(before),
            figure_or_dash(after),
        ]);
        let params = params([("loop", kind.name().into()), ("depth", depth.into())]);
        lab.report.add_time(&clock, name, params, "system call", ns);
    }
    note_windows(&mut table, &measured);
    table.note("before and after: the seed's cycles a system call as the seed counts them: half an mmap + munmap pair. It gives no figure for the idle loop.");
    lab.print(&table)
}

/// Upstream and patched, of the seed's table 2.4.2.
fn seed_cycles(kind: Loop) -> (Option<f64>, Option<f64>) {
    match kind {
        Loop::NoWrite => (Some(3012.22), Some(2991.195)),
        Loop::Write => (Some(5749.605), Some(5746.495)),
        Loop::Idle => (None, None),
    }
}
