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

use super::Script;
use crate::harness::prelude::*;

/// An object of some words on each slot.
trait Object {
    /// The first and the last word on a slot.
    fn ends(&self, slot: usize) -> [&AtomicU64; 2];
}

impl<const N: usize> Object for PerCpu<[AtomicU64; N]> {
    fn ends(&self, slot: usize) -> [&AtomicU64; 2] {
        let words = self.get(slot);
        [&words[0], &words[N - 1]]
    }
}

fn object<const N: usize>(arena: &'static Arena) -> Result<Box<dyn Object>> {
    Ok(Box::new(PerCpu::<[AtomicU64; N]>::try_new_in(arena).set_up("an object on each slot")?))
}

type Make = fn(&'static Arena) -> Result<Box<dyn Object>>;

/// The objects of a group, by their words: a reference count, and statistics of three subsystems.
const OBJECTS: [Make; 4] = [object::<1>, object::<8>, object::<64>, object::<256>];
const BYTES: &str = "8, 64, 512, 2,048";

/// The first and the last word of each object on each slot.
fn words(objects: &[Box<dyn Object>], slots: usize) -> impl Iterator<Item = &AtomicU64> {
    objects.iter().flat_map(move |object| (0..slots).flat_map(|slot| object.ends(slot)))
}

/// Populated and live bytes of the arenas: with all groups, after the removal, and after
/// depopulation.
type Played = [(u64, u64); 3];

/// Plays the script with an arena for each of a group's objects; the last one is for those that
/// have none.
fn play(script: Script, slots: usize, arenas: &[&'static Arena]) -> Result<Played> {
    let sum = |of: fn(&ArenaStats) -> u64| arenas.iter().map(|arena| of(&arena.stats())).sum::<u64>();
    let look = || (sum(|stats| stats.populated_bytes), sum(|stats| stats.live_bytes));
    // The shared arena may hold other objects.
    let before = look();
    let since = |now: (u64, u64)| (now.0 - before.0, now.1 - before.1);
    let mut number = 0;
    let (staying, going) = script.make(|_, _| {
        number += 1;
        let arena = |at: usize| arenas[at.min(arenas.len() - 1)];
        let objects = OBJECTS.iter().enumerate().map(|(at, make)| make(arena(at)));
        let objects = objects.collect::<Result<Vec<_>>>()?;
        // ORDERING: Relaxed, here and below; numbers by themselves, read by this thread.
        words(&objects, slots).for_each(|word| word.store(number, Ordering::Relaxed));
        Ok((number, objects))
    })?;
    let created = since(look());
    drop(going);
    let removed = since(look());
    for arena in arenas {
        while arena.depopulate_now(usize::MAX).more {}
    }
    let depopulated = since(look());
    for (number, objects) in &staying {
        // ORDERING: Relaxed; this thread stored the values.
        let right = words(objects, slots).all(|word| word.load(Ordering::Relaxed) == *number);
        ensure(right, || format!("an object of group {number} lost its value on a slot"))?;
    }
    Ok([created, removed, depopulated])
}

/// An arena with memory on all slots.
fn admitted(arena: &'static Arena, slots: usize) -> &'static Arena {
    (0..slots).for_each(|slot| arena.admit(slot));
    arena
}

fn own_arena(slots: usize) -> Result<&'static Arena> {
    let arena = Arena::new(ArenaConfig::new(slots)).set_up("an arena")?;
    Ok(admitted(Box::leak(Box::new(arena)), slots))
}

pub(super) fn run(lab: &mut Lab<'_>, script: Script, source: SlotSource) -> Result<()> {
    let slots = source.slots();
    let shared = admitted(Arena::shared(slots).set_up("the shared arena")?, slots);
    let own = OBJECTS.iter().map(|_| own_arena(slots)).collect::<Result<Vec<_>>>()?;
    let sides = [("all sizes in one arena", vec![shared]), ("an arena for each size (control)", own)];
    let played = sides.map(|(name, arenas)| {
        let [created, removed, depopulated] = play(script, slots, &arenas)?;
        let [peak, kb @ ..] =
            [created.0, removed.0, depopulated.0, depopulated.1].map(|of| of as f64 / 1024.0);
        let percent = |kb: f64| 100.0 * kb / peak.max(1.0);
        let figures = Samples::from([
            ("created", peak),
            ("removed", kb[0]),
            ("depopulated", kb[1]),
            ("live", kb[2]),
            ("objects kept", percent(kb[1])),
            ("live of the peak", percent(kb[2])),
        ]);
        Ok((name, figures))
    });
    let played = played.into_iter().collect::<Result<Vec<_>>>()?;
    let title = format!(
        "the script with objects that cannot move, of {BYTES} bytes, on {}",
        counted(slots as u64, "slot")
    );
    let rows = played.iter().map(|(name, figures)| (*name, *name, json!({"outer": script.outer}), figures));
    let kb = ["created", "removed", "depopulated", "live"].map(|stage| (stage, "kB"));
    let columns = [&kb[..], &[("objects kept", "%"), ("live of the peak", "%")]].concat();
    lab.show(title, &columns, rows, "depopulated: every empty page went back. With mixed sizes as with one, what is left is the pages on which something lives: a page that a small object shares with large ones is no worse than the large ones' own. A hierarchy's records move as well, which is the rest of the way to the live bytes (the tables above)")?;
    let over = played[0].1.over(&played[1].1, "objects kept");
    lab.at_most("objects of all sizes in one arena: kept over an arena each", over, 1.1, "x");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_values_of_the_objects_that_stay_and_gives_pages_back() {
        let (script, slots) = (Script { outer: 40, inner: 10 }, 2);
        let [created, removed, depopulated] = play(script, slots, &[own_arena(slots).unwrap()]).unwrap();
        assert!(created.1 >= (440 * 2632 * slots) as u64 && depopulated.1 * 10 < created.1, "{created:?}");
        assert!(depopulated.0 < removed.0 && depopulated.0 >= depopulated.1, "{removed:?} {depopulated:?}");
    }
}
