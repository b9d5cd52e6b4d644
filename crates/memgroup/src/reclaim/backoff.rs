//! Back-off: how long walks leave a cache alone that gives less than it is asked for.
//!
//! ```text
//!   scans in a row that gave too little    0    1    2     3 ..      more than 16 that gave nothing
//!   it counts as if it held                all  1/8  1/64  1/512     nothing
//!   so it is asked later by                0    3    6     9         until a round that explores
//! ```
//!
//! A scan gave too little if that is less than an eighth of what was asked for. So the cache is
//! believed to hold an eighth: it is due three priorities later, and marked in the class below.
//! Walks that get enough from others don't come near it.
//!
//! Two rules bring it back. The last two priorities ask every cache, because the refusal of the
//! charge comes next; except one that has freed nothing so often that charges would only lose time
//! with it. And one round in 16 first explores (`rounds`): it ignores the back-off, and asks a few
//! of these caches.
//!
//! - I1. All of it is one word, so no thread sees or writes half of a change. It decides when a
//!   cache is asked, never whether it may be.

use memgroup_sync::atomic::{AtomicU32, Ordering};

use crate::reclaim::due::{CLASS_PRIORITIES, SERIOUS};

/// Scans that gave too little count up to this if they freed anything: then only the last two
/// priorities ask the cache.
const POOR_MOST: u8 = 4;

/// After more scans in a row that freed nothing, the last two priorities skip it, too.
const LYING: u8 = 16;

/// From this priority on a cache is due of which nothing is known: at all.
const ALWAYS: u8 = u8::MAX;

/// See the module.
pub(crate) struct Backoff(AtomicU32);

/// What the word says.
#[derive(Clone, Copy)]
struct Word {
    /// It is due at priorities below this one.
    below: u8,
    /// It would be due from this priority on without the back-off. Priorities go down.
    from: u8,
    /// Scans in a row that gave too little.
    scans: u8,
}

impl Word {
    const NEW: Word = Word { below: ALWAYS, from: ALWAYS, scans: 0 };

    const fn pack(self) -> u32 {
        u32::from_le_bytes([self.below, self.from, self.scans, 0])
    }

    fn of(word: u32) -> Word {
        let [below, from, scans, _] = word.to_le_bytes();
        Word { below, from, scans }
    }

    fn shift(self) -> u8 {
        CLASS_PRIORITIES as u8 * self.scans.min(POOR_MOST)
    }

    /// With these figures.
    fn with(from: u8, scans: u8) -> Word {
        let word = Word { below: 0, from, scans };
        let first = from.saturating_sub(word.shift()).max(SERIOUS as u8);
        Word { below: if scans > LYING { 0 } else { first.saturating_add(1) }, ..word }
    }
}

impl Backoff {
    /// For a cache of which nothing is known: it is due at any priority.
    pub(crate) fn new() -> Backoff {
        Backoff(AtomicU32::new(Word::NEW.pack()))
    }

    #[inline(always)]
    fn load(&self) -> Word {
        // ORDERING: Relaxed; a number by itself (I1).
        Word::of(self.0.load(Ordering::Relaxed))
    }

    fn update(&self, change: impl Fn(Word) -> Word) {
        let change = |word| Some(change(Word::of(word)).pack()).filter(|changed| *changed != word);
        // ORDERING: Relaxed, both; a number by itself (I1). A line that doesn't change isn't
        // written.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Makes the cache due at any priority, and forgets what it gave.
    pub(crate) fn reset(&self) {
        self.update(|_| Word::NEW);
    }

    /// Makes it due from `priority` on, less the back-off. Priorities go down.
    pub(crate) fn ask_from(&self, priority: u32) {
        self.update(|word| Word::with(priority as u8, word.scans));
    }

    /// Makes it due at any priority once, whatever it gave.
    pub(crate) fn ask_always(&self) {
        self.update(|word| Word { scans: word.scans, ..Word::NEW });
    }

    /// Notes the result of a scan, which may have stopped before it was done.
    pub(crate) fn note(&self, asked: u64, freed: u64, has_stopped: bool) {
        if asked == 0 {
            return;
        }
        self.update(|word| {
            let before = word.scans;
            let scans = match freed {
                0 if has_stopped => before.max(POOR_MOST.min(before + 1)),
                0 => (before + 1).min(LYING + 1),
                _ if freed >= asked / 8 => 0,
                _ => (before + 1).min(POOR_MOST),
            };
            Word::with(word.from, scans)
        });
    }

    /// Returns by how many priorities it is asked later: it counts as if it held `bytes >> shift`.
    pub(crate) fn shift(&self) -> u32 {
        self.load().shift().into()
    }

    /// Returns whether the cache may be due at a priority, or would be if it had given enough and
    /// the walk `ignores` that it didn't.
    #[inline(always)]
    pub(crate) fn is_due(&self, priority: u32, ignores: bool) -> bool {
        let word = self.load();
        priority < word.below.into() || (ignores && priority <= word.from.into())
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::reclaim::backoff::*;
    use crate::reclaim::due::PRIORITIES;

    /// The first priority at which it is due.
    fn due_from(backoff: &Backoff, explores: bool) -> Option<u32> {
        (0..=PRIORITIES).rev().find(|&priority| backoff.is_due(priority, explores))
    }

    #[test]
    fn asks_a_poor_cache_three_priorities_later_each_time() {
        let backoff = Backoff::new();
        assert_eq!(due_from(&backoff, false), Some(PRIORITIES), "nothing is known of it");
        backoff.ask_from(10);
        for expected in [10, 7, 4, 1, 1, 1] {
            assert_eq!((due_from(&backoff, false), due_from(&backoff, true)), (Some(expected), Some(10)));
            backoff.note(800, 99, false);
        }
        backoff.note(800, 100, false);
        assert_eq!(due_from(&backoff, false), Some(10), "an eighth is enough");
    }

    #[test]
    fn asks_one_that_gives_nothing_16_times() {
        let backoff = Backoff::new();
        backoff.ask_from(8);
        for scans in 1..=16 {
            backoff.note(100, 0, false);
            assert_eq!(due_from(&backoff, false), Some(8_u32.saturating_sub(3 * scans).max(SERIOUS)));
        }
        for _ in 0..3 {
            backoff.note(100, 0, false);
            backoff.note(100, 0, true);
            assert_eq!((due_from(&backoff, false), due_from(&backoff, true)), (None, Some(8)));
            assert!(backoff.is_due(0, true), "the user asks it all the same");
        }
        backoff.note(800, 1, false);
        assert_eq!(due_from(&backoff, false), Some(SERIOUS), "it gave something");
        backoff.reset();
        assert_eq!(due_from(&backoff, false), Some(PRIORITIES));
    }

    #[test]
    fn counts_no_scan_that_asked_for_nothing_and_few_that_stopped() {
        let backoff = Backoff::new();
        backoff.ask_from(12);
        backoff.note(0, 0, false);
        assert_eq!(due_from(&backoff, false), Some(12));
        (0..40).for_each(|_| backoff.note(100, 0, true));
        assert_eq!(due_from(&backoff, false), Some(SERIOUS), "a lock was taken each time");
        backoff.ask_always();
        assert_eq!(due_from(&backoff, false), Some(PRIORITIES));
    }
}
