//! What statistics take: for each group and slot by the letter's formula, and as it is measured.

use memgroup::{Config, Group, Hierarchy};
use memgroup_percpu::pin_virtual;

use super::seed;
use crate::harness::Lab;
use crate::harness::machine::virtual_slots;
use crate::harness::report::{Check, params};
use crate::harness::table::{Table, count, figure};
use crate::harness::tree::child;
use crate::{Error, Trees};

/// Groups and slots: the letter's machine with one parent's children, and many groups.
const SHAPES: [(usize, usize); 2] = [(seed::CHILDREN, seed::CPUS), (4_000, 8)];

/// Bytes a group and slot.
struct Taken {
    /// The words of its statistics.
    words: f64,
    /// What tells that they changed.
    marks: f64,
    /// What the system backs for the words.
    backed: f64,
    /// Of a group beside the slots.
    beside: usize,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let mut table = Table::new(
        "memory for each group and slot, bytes: memory, cpu, io, and 48 more",
        ["groups x slots", "", "what changed", "statistics", "backed"],
    );
    let linux = seed::linux_link_bytes(2);
    let mut beside = 0;
    for (groups, slots) in SHAPES {
        let shape = format!("{} x {slots}", count(groups as u64));
        for trees in Trees::BOTH {
            let taken = measure(trees, groups, slots)?;
            beside = taken.beside;
            table.row(vec![
                shape.clone(),
                trees.name().to_owned(),
                format!("{:.2}", taken.marks),
                figure(taken.words),
                figure(taken.backed),
            ]);
            let what = || params([("slots", slots.into()), ("groups", groups.into())]);
            let metrics = [("marks", taken.marks), ("statistics", taken.words), ("backed", taken.backed)];
            for (metric, bytes) in metrics {
                lab.report.add_count(trees.name(), what(), metric, "B", bytes);
            }
            if trees == Trees::Separate {
                lab.report.checks.push(Check::at_most(
                    format!("bytes that tell of changes, {shape}, over the letter's formula"),
                    Some(taken.marks / linux as f64),
                    1.0,
                    "x",
                ));
            }
        }
    }
    table.row(vec!["any".into(), "Linux, the letter's formula".into(), count(linux), "-".into(), "-".into()]);
    table.note(format!("what tells that a group has changed on a slot, its statistics there, and what the system backs for these; the letter's formula, for memory, io and the base: {}. Linux links each group and CPU into a tree of its own; here it is a bit in a set, for each subsystem, and 576 bytes a slot are the least that a set takes. Its statistics are counted apart: some 2 kB a group and CPU, value and previous value", seed::FORMULA));
    table.note(format!("beside the slots, on the heap, a group has {} bytes in all four, whatever the number of slots: flushed values, and words for what finds no record", count(beside as u64)));
    lab.print(&table)
}

fn build(trees: Trees, groups: usize, slots: usize) -> Result<(Hierarchy, Vec<Group>), Error> {
    let source = virtual_slots(slots)?;
    let config = Config::with_slots(source)
        .separate_trees(trees == Trees::Separate)
        .groups_max(groups as u32 + 1)
        .maintain_on_removal(false);
    let hierarchy = Hierarchy::new(config).map_err(|why| Error::setup("the hierarchy", why))?;
    let groups =
        (0..groups).map(|n| child(&hierarchy.root(), &format!("g{n}"))).collect::<Result<Vec<_>, _>>()?;
    Ok((hierarchy, groups))
}

/// Has every group counted for in every subsystem on every slot.
fn measure(trees: Trees, groups: usize, slots: usize) -> Result<Taken, Error> {
    let pairs = (groups * slots) as f64;
    let (hierarchy, groups) = build(trees, groups, slots)?;
    let own = hierarchy
        .register(super::updates::subsystem(super::updates::STATS))
        .map_err(|why| Error::setup("the subsystem", why))?;
    let all = [hierarchy.memory(), hierarchy.cpu(), hierarchy.io(), own];
    let before = hierarchy.percpu();
    for slot in 0..slots {
        let _pin = pin_virtual(slot);
        for group in &groups {
            all.iter().for_each(|statistics| statistics.add(group, 0, 1));
        }
    }
    let after = hierarchy.percpu();
    let footprints = all.iter().map(memgroup::Statistics::footprint);
    // One tree is shared by all.
    let trees_there = if trees == Trees::Separate { all.len() } else { 1 };
    let marks: usize = footprints.clone().take(trees_there).map(|one| one.marks_bytes).sum();
    let each = |bytes: u64| bytes as f64 / pairs;
    Ok(Taken {
        words: each(after.live_bytes - before.live_bytes),
        marks: each(marks as u64),
        backed: each(after.populated_bytes.saturating_sub(before.populated_bytes)),
        beside: footprints.map(|one| one.group_bytes).sum(),
    })
}
