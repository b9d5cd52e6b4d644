//! A storm of refusals: the cost of a refused charge, for its thread and for others under the same root.
//!
//! A refusal costs more than a charge on purpose. The refused thread first sweeps every stock of the refusing subtree, so that no charge is
//! refused while there is unused credit.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Charge, Config, Group};
use memgroup_percpu::SlotSource;

use super::pairs::group_pairs;
use super::{PAGE_BYTES, REFUSED};
use crate::harness::prelude::*;

const FULL_BYTES: u64 = 1 << 20;
const MANY_LEAVES: usize = 1_000;
/// With that many leaves a refusal takes a tenth of a millisecond and more. A window ends with an operation, so windows are
/// as many times longer; else those of several threads would end too far apart to count.
const MANY_LEAVES_WINDOW: u64 = 20;
/// And there are as many times fewer.
const MANY_LEAVES_ROUNDS_PART: usize = 5;

/// A full group below the root, the charge that fills it, and a bystander beside it.
struct Storm {
    fixture: Fixture,
    slots: usize,
    at_parent: bool,
    full: Group,
    filling: Charge,
    refusing: Group,
    bystander: [Group; 1],
    refused: AtomicU64,
}

impl Storm {
    /// root ── parent ── leaves, the limit at one leaf or at the parent of all; the bystander is a child of the root.
    fn set(slots: SlotSource, at_parent: bool, leaves: usize) -> Result<Storm> {
        let fixture = Fixture::chain(Config::new().slots(slots), 3, leaves)?;
        let full = fixture.leaves[0].clone();
        let refusing = if at_parent { fixture.parent.clone() } else { full.clone() };
        limit(&refusing, FULL_BYTES)?;
        let filling = full.try_charge(FULL_BYTES).or_wrong(REFUSED)?;
        let (bystander, refused) = ([child(&fixture.hierarchy.root(), "bystander")?], AtomicU64::new(0));
        Ok(Storm { fixture, slots: slots.slots(), at_parent, full, filling, refusing, bystander, refused })
    }

    /// Charges to the full group: all are refused.
    fn refuse(&self, count: u64) -> Result<u64> {
        for _ in 0..count {
            let refused = self.full.try_charge(PAGE_BYTES).is_err();
            ensure(refused, || format!("{} took a charge beyond its limit", self.full.path()))?;
        }
        // ORDERING: Relaxed; a count, read when the windows are over.
        self.refused.fetch_add(count, Ordering::Relaxed);
        Ok(count)
    }

    /// The group is as full as before, every refusal was counted where it was given, and nothing is left over.
    fn check(self) -> Result<()> {
        expect_bytes(&self.full, "usage after the storm", self.full.usage_exact(), FULL_BYTES)?;
        // ORDERING: Relaxed; the windows are over.
        let (counted, seen) = (self.refusing.refusals(), self.refused.load(Ordering::Relaxed));
        expect(format_args!("counted refusals of {}", self.refusing.path()), counted, seen)?;
        drop(self.filling);
        self.fixture.check_empty()
    }
}

/// One row: its name, the operation, and the storm and work behind it.
struct Row<'s> {
    name: &'static str,
    operation: &'static str,
    storm: &'s Storm,
    work: Box<Work<'s>>,
    threads: usize,
    counted: usize,
}

/// The rows of one storm: refusals, and pairs of a bystander alone and beside them.
fn rows(storm: &Storm, threads: usize) -> Vec<Row<'_>> {
    let name = if storm.at_parent { "refused by the parent" } else { "refused by the leaf" };
    let refused = |threads| {
        let work = Box::new(|_, _: &mut usize, count| storm.refuse(count));
        Row { name, operation: "refusal", storm, work, threads, counted: threads }
    };
    let mut rows = vec![refused(1)];
    rows.extend((threads > 1).then(|| refused(threads)));
    if storm.at_parent && storm.fixture.leaves.len() == 1 {
        let bystander = |name, threads| {
            let work = Box::new(|thread, cursor: &mut usize, count| match thread {
                0 => group_pairs(&storm.bystander, PAGE_BYTES, cursor, count, || ()),
                _ => storm.refuse(1),
            });
            Row { name, operation: "pair", storm, work, threads, counted: 1 }
        };
        rows.push(bystander("bystander alone", 1));
        rows.extend((threads > 1).then(|| bystander("bystander beside the storm", threads)));
    }
    rows
}

/// Measures refusals, and pairs beside them.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (slots, many) = (lab.slots, virtual_slots(128)?);
    let storms = [(slots, false, 1), (slots, true, 1), (many, true, 1), (slots, true, MANY_LEAVES)];
    let storms = storms.into_iter().map(|(slots, at_parent, leaves)| Storm::set(slots, at_parent, leaves));
    let mut storms = storms.collect::<Result<Vec<_>>>()?;
    let slow = storms.split_off(storms.len() - 1);
    let Plan { rounds, window_us } = lab.effort.windows;
    let fewer =
        Plan { rounds: rounds.div_ceil(MANY_LEAVES_ROUNDS_PART), window_us: window_us * MANY_LEAVES_WINDOW };
    let columns = ["ns: median (min..p90)", "of a", "threads", "slots", "leaves", "ns", "TSC cycles"];
    let mut table = Table::new("a storm of refusals, depth 3", columns);
    let mut windows = Vec::new();
    for (storms, plan) in [(&storms, lab.effort.windows), (&slow, fewer)] {
        let rows: Vec<Row<'_>> = storms.iter().flat_map(|storm| rows(storm, lab.args.threads())).collect();
        let variants: Vec<Variant<'_>> = rows
            .iter()
            .map(|Row { work, threads, counted, .. }| Variant { work, threads: *threads, counted: *counted })
            .collect();
        let measured = lab.interleave_by(plan, &variants)?;
        for (row, measured) in rows.iter().zip(&measured) {
            let (slots, leaves, threads) = (row.storm.slots, row.storm.fixture.leaves.len(), row.threads);
            let params = json!({"threads": threads, "slots": slots, "leaves": leaves, "depth": 3});
            let ns = lab.record(row.name, params).time(row.operation, measured.ns);
            let cycles = figure_or_dash(measured.ns.and_then(|ns| lab.clock.cycles(ns.median)));
            let [slots, leaves] = [slots, leaves].map(|number| count(number as u64));
            table.row(row.name, [row.operation.to_owned(), threads.to_string(), slots, leaves, ns, cycles]);
        }
        windows.extend(measured);
    }
    storms.into_iter().chain(slow).try_for_each(Storm::check)?;
    note_windows(&mut table, &windows);
    table.note(format!(
        "leaves: groups below the parent; a refusal sweeps all that are below the refusing group, idle ones too. With {} of them windows are {MANY_LEAVES_WINDOW} times as long, and there are fewer",
        count(MANY_LEAVES as u64)
    ));
    table.note("the bystander charges a sibling of the full subtree, under the same root; its row counts its own pairs only");
    lab.print(&table)
}
