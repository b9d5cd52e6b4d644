//! The cover letter's cause: allocations of different sizes share chunks. "New small-ish
//! allocations are placed onto almost filled old-ish chunks, effectively pinning them in memory."
//!
//! A hierarchy keeps each kind of record in an arena of its own, of equal blocks, so sizes never mix
//! there, and records can move. Here the letter's script is played with objects that stay where they
//! are: each group has four, of 8 to 2,048 bytes a slot. One side has an arena of pages, and puts
//! objects of all sizes wherever a page has room; the control has an arena for each size. After the
//! removal both give back what depopulation can.
//!
//! - I1. The words of the objects that stay keep their values.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup_percpu::grace::{self, Form};
use memgroup_percpu::{ArenaConfig, ArenaStats, PageSize, Record, Records, SlotSource};

use super::Script;
use crate::harness::prelude::*;

/// The objects of a group, by their words: a reference count, and statistics of three subsystems.
const OBJECTS: [usize; 4] = [1, 8, 64, 256];
const BYTES: &str = "8, 64, 512, 2,048";

/// Records that never move. An object lies in the first one with room for it.
struct Heap {
    records: &'static Records,
    holders: RefCell<Vec<Holder>>,
}

/// A record, and which of its words belong to objects.
struct Holder {
    record: Record,
    used: Vec<bool>,
    free: usize,
}

impl Heap {
    /// A heap of records of `words` words, on all slots.
    fn new(slots: usize, words: usize) -> Result<Rc<Heap>> {
        let records = Records::new(ArenaConfig::new(slots), words).set_up("an arena")?;
        let records: &'static Records = memgroup_sync::keep(Box::new(records));
        (0..slots).for_each(|slot| records.admit(slot));
        Ok(Rc::new(Heap { records, holders: RefCell::default() }))
    }

    /// A heap of records of a page each.
    fn of_pages(slots: usize) -> Result<Rc<Heap>> {
        Heap::new(slots, PageSize::of_system().bytes().min(64 << 10) / size_of::<u64>())
    }

    fn object(self: &Rc<Heap>, words: usize) -> Result<Object> {
        let mut holders = self.holders.borrow_mut();
        let found = holders.iter().enumerate().filter(|(_, holder)| holder.free >= words);
        let found = found.filter_map(|(number, holder)| Some((number, holder.find(words)?))).next();
        let (holder, start) = found.unwrap_or_else(|| {
            let size = self.records.words();
            let record = self.records.record();
            holders.push(Holder { record, used: vec![false; size], free: size });
            (holders.len() - 1, 0)
        });
        let Holder { record, used, free } = &mut holders[holder];
        if !record.is_linked() {
            self.records.provide(1).set_up("address space")?;
            let fresh = self.records.allocate(holder as u32).expect("there is address space");
            record.link(fresh);
        }
        used[start..start + words].fill(true);
        *free -= words;
        Ok(Object { heap: Rc::clone(self), holder, words: start..start + words })
    }

    fn stats(&self) -> ArenaStats {
        self.records.arena().stats()
    }
}

impl Holder {
    /// Where `words` words in a row are free.
    fn find(&self, words: usize) -> Option<usize> {
        let mut start = 0;
        while start + words <= self.used.len() {
            match self.used[start..start + words].iter().rposition(|&used| used) {
                Some(last) => start += last + 1,
                None => return Some(start),
            }
        }
        None
    }
}

/// Some words on each slot.
struct Object {
    heap: Rc<Heap>,
    holder: usize,
    words: Range<usize>,
}

impl Object {
    /// Whether `each` is true of the first and the last word on each slot.
    fn all(&self, each: impl Fn(&AtomicU64) -> bool) -> bool {
        let record = &self.heap.holders.borrow()[self.holder].record;
        let ends = [self.words.start, self.words.end - 1];
        let mut places = self.heap.records.admitted().flat_map(|slot| ends.map(|word| (slot, word)));
        places.all(|(slot, word)| record.access(slot, word).is_some_and(|word| each(&word)))
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let Holder { record, used, free } = &mut self.heap.holders.borrow_mut()[self.holder];
        used[self.words.clone()].fill(false);
        *free += self.words.len();
        if *free == used.len() {
            self.heap.records.retire(record.unlink().expect("it had an object"));
        }
    }
}

/// Populated and live bytes of the arenas: with all groups, after the removal, and after
/// depopulation.
type Played = [(u64, u64); 3];

/// Plays the script with a heap for each of a group's objects; the last one is for those that have
/// none.
fn play(script: Script, heaps: &[Rc<Heap>]) -> Result<Played> {
    let sum = |of: fn(&ArenaStats) -> u64| heaps.iter().map(|heap| of(&heap.stats())).sum::<u64>();
    let look = || (sum(|stats| stats.populated_bytes), sum(|stats| stats.live_bytes));
    let mut number = 0;
    let (staying, going) = script.make(|_, _| {
        number += 1;
        let object = |(at, words): (usize, &usize)| heaps[at.min(heaps.len() - 1)].object(*words);
        let objects = OBJECTS.iter().enumerate().map(object).collect::<Result<Vec<_>>>()?;
        // ORDERING: Relaxed, here and below; numbers by themselves, read by this thread.
        let store = |word: &AtomicU64| {
            word.store(number, Ordering::Relaxed);
            true
        };
        ensure(objects.iter().all(|object| object.all(store)), || "an object has no memory".to_owned())?;
        Ok((number, objects))
    })?;
    let created = look();
    drop(going);
    grace::synchronize(Form::Expedited);
    heaps.iter().for_each(|heap| _ = heap.records.reclaim());
    let removed = look();
    for heap in heaps {
        while heap.records.arena().depopulate_now(usize::MAX).more {}
    }
    let depopulated = look();
    for (number, objects) in &staying {
        // ORDERING: Relaxed; this thread stored the values.
        let is_kept = |word: &AtomicU64| word.load(Ordering::Relaxed) == *number;
        let right = objects.iter().all(|object| object.all(is_kept));
        ensure(right, || format!("an object of group {number} lost its value on a slot"))?;
    }
    Ok([created, removed, depopulated])
}

pub(super) fn run(lab: &mut Lab<'_>, script: Script, source: SlotSource) -> Result<()> {
    let slots = source.slots();
    let mixed = vec![Heap::of_pages(slots)?];
    let own = OBJECTS.iter().map(|&words| Heap::new(slots, words)).collect::<Result<Vec<_>>>()?;
    let sides = [("all sizes in one arena", mixed), ("an arena for each size (control)", own)];
    let played = sides.map(|(name, heaps)| {
        let [created, removed, depopulated] = play(script, &heaps)?;
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
        let [created, removed, depopulated] = play(script, &[Heap::of_pages(slots).unwrap()]).unwrap();
        assert!(created.1 >= (440 * 2632 * slots) as u64 && depopulated.1 < created.1, "{created:?}");
        assert!(depopulated.0 < removed.0 && depopulated.0 >= depopulated.1, "{removed:?} {depopulated:?}");
    }

    #[test]
    fn fills_holes_of_pages_first() {
        let heap = Heap::new(1, 10).unwrap();
        let [first, second, third] = [4, 4, 4].map(|words| heap.object(words).unwrap());
        assert_eq!((second.holder, second.words.clone(), third.holder), (0, 4..8, 1));
        drop(first);
        assert_eq!(heap.object(3).unwrap().words, 0..3);
        drop((second, third));
        assert!(heap.holders.borrow().iter().all(|holder| !holder.record.is_linked()));
    }
}
