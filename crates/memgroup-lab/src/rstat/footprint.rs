//! Memory of statistics: for each group and slot by the cover letter's formula, and as it is measured.

use memgroup::{Config, Statistics};
use memgroup_percpu::pin_virtual;

use super::{CHILDREN, CPUS, gauges};
use crate::Trees;
use crate::harness::prelude::*;

/// Groups and slots: the cover letter's machine with one parent's children, and many groups.
const SHAPES: [(usize, usize); 2] = [(CHILDREN, CPUS), (4_000, 8)];

/// Bytes that Linux takes for each group and CPU to keep its trees, by the cover letter's formula with the sizes that were merged: the
/// links and the base statistics of one, and the links of each controller. The statistics themselves come on top.
fn linux_link_bytes(controllers: u64) -> u64 {
    const BASE: u64 = 128 + 16;
    const LINKS: u64 = 16;
    BASE + LINKS * controllers
}

/// Bytes a group and slot.
struct Taken {
    /// The words of its statistics.
    words: f64,
    /// The marks of changes.
    marks: f64,
    /// Backed by the system for the words.
    backed: f64,
    /// Of a group beside the slots.
    beside: usize,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let title = "memory for each group and slot, bytes: memory, cpu, io, and 48 more";
    let mut table = Table::new(title, ["groups x slots", "", "what changed", "statistics", "backed"]);
    let (linux, mut beside) = (linux_link_bytes(2), 0);
    for (groups, slots) in SHAPES {
        let shape = format!("{} x {slots}", count(groups as u64));
        for trees in Trees::BOTH {
            let taken = measure(trees, groups, slots)?;
            beside = taken.beside;
            let mut row = lab.record(trees.name(), json!({"slots": slots, "groups": groups}));
            let cells = [("marks", taken.marks), ("statistics", taken.words), ("backed", taken.backed)]
                .map(|(metric, bytes)| row.value(metric, "B", Some(bytes)));
            table.row(&shape, [trees.name().to_owned()].into_iter().chain(cells));
            if trees == Trees::Separate {
                let name = format!("bytes that tell of changes, {shape}, over the letter's formula");
                lab.at_most(name, Some(taken.marks / linux as f64), 1.0, "x");
            }
        }
    }
    table.row("any", ["Linux, the letter's formula".into(), count(linux), "-".into(), "-".into()]);
    table.note("what changed: the marks of a group that has changed on a slot; statistics: its words there; backed: by the system, for these. The letter's formula, for memory, io and the base: groups x (sizeof(rstat_base_cpu) + sizeof(rstat_cpu) x controllers), that is 144 + 16 x controllers bytes for each CPU. Linux links each group and CPU into a tree of its own; here it is a bit in a set, for each subsystem, and 576 bytes a slot are the least that a set takes. Linux's statistics are counted apart: some 2 kB a group and CPU, value and previous value");
    table.note(format!("beside the slots a group has {} bytes in all four once they are flushed, whatever the number of slots: flushed values, and words for additions that find no record", count(beside as u64)));
    lab.print(&table)
}

/// Has every group counted for in every subsystem on every slot.
fn measure(trees: Trees, groups: usize, slots: usize) -> Result<Taken> {
    let config = Config::with_slots(virtual_slots(slots)?)
        .separate_trees(trees == Trees::Separate)
        .groups_max(groups as u32 + 1)
        .maintain_on_removal(false);
    let hierarchy = hierarchy(config)?;
    let groups = children(&hierarchy.root(), "g", groups)?;
    let own = hierarchy.register(gauges(48)).set_up("the subsystem")?;
    let all = [hierarchy.memory(), hierarchy.cpu(), hierarchy.io(), own];
    let before = hierarchy.percpu();
    for slot in 0..slots {
        let _pin = pin_virtual(slot);
        for group in &groups {
            let first = |of: &Statistics| of.keys().take(1).for_each(|key| of.add(group, key, 1));
            all.iter().for_each(first);
        }
    }
    let after = hierarchy.percpu();
    let footprints = all.iter().map(Statistics::footprint);
    // One tree is shared by all.
    let trees_there = if trees == Trees::Separate { all.len() } else { 1 };
    let marks: usize = footprints.clone().take(trees_there).map(|one| one.marks_bytes).sum();
    let each = |bytes: u64| bytes as f64 / (groups.len() * slots) as f64;
    Ok(Taken {
        words: each(after.live_bytes - before.live_bytes),
        marks: each(marks as u64),
        backed: each(after.populated_bytes.saturating_sub(before.populated_bytes)),
        beside: footprints.map(|one| one.group_bytes).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_two_pairs_of_links_for_memory_and_io() {
        assert_eq!(linux_link_bytes(0), 144);
        assert_eq!(linux_link_bytes(2) - linux_link_bytes(0), 32);
    }
}
