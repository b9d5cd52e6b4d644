//! The cover letter's cause: allocations of different sizes share chunks. "New small-ish
//! allocations are placed onto almost filled old-ish chunks, effectively pinning them in memory."
//!
//! A hierarchy keeps each kind of record in an arena of its own, so sizes never mix there, and
//! records can move. An object by itself ([`PerCpu`]) gives its address out, so it can't move, and
//! objects of all sizes of a process lie in one arena ([`Arena::shared`]). The letter's script is
//! played with such objects: each group has four, of 8 to 2,048 bytes a slot. The control has an
//! arena for each size. After the removal both give back what depopulation can.
//!
//! - I1. The words of the objects that stay keep their values.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup_percpu::{Arena, ArenaConfig, ArenaStats, PerCpu, SlotSource};

use super::script::Script;
use crate::harness::prelude::*;

/// The words of the objects of a group: a reference count, and statistics of three subsystems.
const SIZES: [usize; 4] = [1, 8, 64, 256];

/// A group's objects, of the [`SIZES`].
struct Objects(
    PerCpu<[AtomicU64; 1]>,
    PerCpu<[AtomicU64; 8]>,
    PerCpu<[AtomicU64; 64]>,
    PerCpu<[AtomicU64; 256]>,
);

impl Objects {
    /// Makes them, each in its arena, and writes `value` to the first and the last word on each
    /// slot.
    fn new(arenas: [&'static Arena; 4], slots: usize, value: u64) -> Result<Objects> {
        const WHAT: &str = "objects on each slot";
        let objects = Objects(
            PerCpu::try_new_in(arenas[0]).set_up(WHAT)?,
            PerCpu::try_new_in(arenas[1]).set_up(WHAT)?,
            PerCpu::try_new_in(arenas[2]).set_up(WHAT)?,
            PerCpu::try_new_in(arenas[3]).set_up(WHAT)?,
        );
        for word in objects.words(slots) {
            // ORDERING: Relaxed; a number by itself, read by this thread.
            word.store(value, Ordering::Relaxed);
        }
        Ok(objects)
    }

    /// The first and the last word of each object on each slot.
    fn words(&self, slots: usize) -> impl Iterator<Item = &AtomicU64> {
        (0..slots).flat_map(move |slot| {
            let Objects(count, few, some, many) = self;
            let all: [&[AtomicU64]; 4] = [count.get(slot), few.get(slot), some.get(slot), many.get(slot)];
            all.into_iter().flat_map(|words| [&words[0], &words[words.len() - 1]])
        })
    }

    fn check(&self, slots: usize, value: u64) -> Result<()> {
        // ORDERING: Relaxed; as in `new`.
        let right = self.words(slots).all(|word| word.load(Ordering::Relaxed) == value);
        ensure(right, || format!("an object of group {value} lost its value on a slot"))
    }
}

/// Populated and live bytes of the arenas: with all groups, after the removal, and after
/// depopulation.
type Played = [(u64, u64); 3];

fn play(script: Script, slots: usize, arenas: [&'static Arena; 4]) -> Result<Played> {
    // Those that are one arena are counted once.
    let mut distinct: Vec<&Arena> = arenas.to_vec();
    distinct.dedup_by(|one, other| std::ptr::eq(*one, *other));
    let sum = |of: fn(&ArenaStats) -> u64| distinct.iter().map(|arena| of(&arena.stats())).sum::<u64>();
    let look = || (sum(|stats| stats.populated_bytes), sum(|stats| stats.live_bytes));
    // The shared arena may hold other objects.
    let before = look();
    let since = |now: (u64, u64)| (now.0 - before.0, now.1 - before.1);
    let (mut staying, mut going) = (Vec::new(), Vec::new());
    for (number, (_, stays)) in script.names().enumerate() {
        let objects = Objects::new(arenas, slots, number as u64)?;
        if stays { &mut staying } else { &mut going }.push((number as u64, objects));
    }
    let created = since(look());
    drop(going);
    let removed = since(look());
    for arena in &distinct {
        while arena.depopulate_now(usize::MAX).more {}
    }
    let depopulated = since(look());
    staying.iter().try_for_each(|(number, objects)| objects.check(slots, *number))?;
    Ok([created, removed, depopulated])
}

pub(super) fn run(lab: &mut Lab<'_>, script: Script, source: SlotSource) -> Result<()> {
    let slots = source.slots();
    let shared = Arena::shared(slots).set_up("the shared arena")?;
    (0..slots).for_each(|slot| shared.admit(slot));
    let mut own = Vec::new();
    for _ in SIZES {
        let arena: &'static Arena =
            Box::leak(Box::new(Arena::new(ArenaConfig::new(slots)).set_up("an arena")?));
        (0..slots).for_each(|slot| arena.admit(slot));
        own.push(arena);
    }
    let own = [own[0], own[1], own[2], own[3]];
    let bytes = SIZES.map(|words| count(words as u64 * 8)).join(", ");
    let title = format!(
        "the script with objects that cannot move, of {bytes} bytes, on {}",
        counted(slots as u64, "slot")
    );
    let columns = ["kB", "created", "removed", "depopulated", "live", "% of peak", "live, %"];
    let mut table = Table::new(title, columns);
    let mut kept = Vec::new();
    for (name, arenas) in [("all sizes in one arena", [shared; 4]), ("an arena for each size (control)", own)]
    {
        let [created, removed, depopulated] = play(script, slots, arenas)?;
        let percent = |bytes: u64| 100.0 * bytes as f64 / created.0.max(1) as f64;
        let mut row = lab.record(name, json!({"outer": script.outer, "inner": script.inner}));
        let share = row.value("objects kept", "%", Some(percent(depopulated.0)));
        let bytes = [created.0, removed.0, depopulated.0, depopulated.1].map(kib);
        table.row(name, bytes.into_iter().chain([share, figure(percent(depopulated.1))]));
        kept.push(percent(depopulated.0));
    }
    table.note("depopulated: every empty page went back. With mixed sizes as with one, what is left is the pages on which something lives: a page that a small object shares with large ones is no worse than the large ones' own. A hierarchy's records move as well, which is the rest of the way to the live bytes (the table above)");
    lab.print(&table)?;
    lab.at_most(
        "objects of all sizes in one arena: kept over an arena each",
        ratio(Some(kept[0]), Some(kept[1])),
        1.1,
        "x",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_values_of_the_objects_that_stay_and_gives_pages_back() {
        let (script, slots) = (Script { outer: 40, inner: 10 }, 2);
        let arena: &'static Arena = Box::leak(Box::new(Arena::new(ArenaConfig::new(slots)).unwrap()));
        (0..slots).for_each(|slot| arena.admit(slot));
        let [created, removed, depopulated] = play(script, slots, [arena; 4]).unwrap();
        assert!(created.1 >= (440 * 2632 * slots) as u64 && depopulated.1 * 10 < created.1, "{created:?}");
        assert!(depopulated.0 < removed.0 && depopulated.0 >= depopulated.1, "{removed:?} {depopulated:?}");
    }
}
