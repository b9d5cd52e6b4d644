//! The bytes and entries of a cache or of one of its shards, and how long a cache that gave memory
//! back keeps its lower capacity.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A cache with at least this many bytes is marked as grown when it has doubled since its last
/// visit.
const GROWN_BYTES: u64 = 16 << 10;

#[derive(Default)]
pub(crate) struct Tally {
    bytes: AtomicU64,
    entries: AtomicU64,
    /// All bytes that ever left the cache.
    gone: AtomicU64,
    /// In the low byte the binary digits of the bytes when the slot was last marked, or 1 if a
    /// visit found some; 0 if it may be unmarked; the bits above count visits.
    marked: AtomicU64,
}

/// The low byte of `marked`.
const DIGITS: u64 = 0xff;

impl Tally {
    /// Counts an entry before it is in the cache, and calls `mark` if the slot may be unmarked, or
    /// if the bytes have doubled since the last mark.
    ///
    /// When it returns, the slot is marked, even if another thread inserted the first entry and has
    /// not made its own mark yet. A full cache evicts as much as it admits, so it passes the same
    /// size again and again, and isn't marked each time.
    pub(crate) fn add(&self, bytes: u64, mark: impl FnOnce()) {
        // ORDERING: Relaxed; a figure.
        self.entries.fetch_add(1, Ordering::Relaxed);
        // ORDERING: SeqCst, both; pairs with `visit`. A visit that doesn't count these bytes comes
        // before the load, which then finds no mark. With less, both might miss the other.
        let before = self.bytes.fetch_add(bytes, Ordering::SeqCst);
        let seen = self.marked.load(Ordering::SeqCst);
        let after = before.saturating_add(bytes);
        let digits = u64::from(u64::BITS - after.leading_zeros());
        let has_grown = after >= GROWN_BYTES && digits > seen & DIGITS;
        if before == 0 || seen & DIGITS == 0 || has_grown {
            mark();
            // ORDERING: AcqRel; whoever sees it relies on the mark. It fails after another visit,
            // which may have taken the mark.
            let with_digits = seen & !DIGITS | digits;
            _ = self.marked.compare_exchange(seen, with_digits, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Notes a visit and returns the bytes: the engine takes the mark of an empty cache, and moves
    /// another one to the class of the size that it counts. Whoever counts these bytes must tell
    /// the engine the same, because a cache that isn't empty here is taken to keep its mark.
    pub(crate) fn visit(&self) -> u64 {
        // ORDERING: SeqCst, both; pairs with `add`.
        let before = self
            .marked
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |seen| Some((seen | DIGITS).wrapping_add(1)));
        let now = before.map_or_else(|seen| seen, |seen| (seen | DIGITS).wrapping_add(1));
        let bytes = self.bytes.load(Ordering::SeqCst);
        if bytes > 0 {
            // The slot stays marked for a cache that holds something. A walk that found it empty
            // and is about to take the mark visits it once more.
            // ORDERING: AcqRel; as in `add`.
            _ = self.marked.compare_exchange(now, now | 1, Ordering::AcqRel, Ordering::Relaxed);
        }
        bytes
    }

    /// Counts an entry that leaves the cache.
    pub(crate) fn sub(&self, bytes: u64) {
        // ORDERING: Relaxed, all three; figures. A visit that still counts the bytes leaves a mark
        // too many.
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.gone.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        // ORDERING: Relaxed; a figure. A visit has read the bytes before, and so reads no older
        // ones.
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn entries(&self) -> u64 {
        // ORDERING: Relaxed; a figure. A visit has read the bytes before, and so reads no older
        // ones.
        self.entries.load(Ordering::Relaxed)
    }

    #[cfg(feature = "moka")]
    pub(crate) fn gone(&self) -> u64 {
        // ORDERING: Relaxed; a figure. A visit has read the bytes before, and so reads no older
        // ones.
        self.gone.load(Ordering::Relaxed)
    }
}

/// A cache may always have this much while it settles, however much it freed.
pub(crate) const FLOOR_BYTES: u64 = 256 << 10;

/// The deadline after which the next insertion removes the wedge.
pub(crate) struct Settle {
    begin: Instant,
    wait: Duration,
    /// Nanoseconds after `begin`, plus one; 0 while there is no wedge.
    until: AtomicU64,
}

impl Settle {
    pub(crate) fn new(wait: Duration) -> Settle {
        Settle { begin: Instant::now(), wait, until: AtomicU64::new(0) }
    }

    fn nanos(time: Duration) -> u64 {
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Restarts the time, because a wedge was inserted.
    pub(crate) fn start(&self) {
        let until = Settle::nanos(self.begin.elapsed().saturating_add(self.wait)).saturating_add(1);
        // ORDERING: Relaxed, because a wedge stays too long or goes too early by at most one
        // insertion. The cache's own lock orders accesses to the wedge.
        self.until.store(until, Ordering::Relaxed);
    }

    /// Returns whether this thread must remove the wedge, because the time is over and no other
    /// thread got this answer.
    pub(crate) fn is_over(&self) -> bool {
        // ORDERING: Relaxed, both; as in `start`.
        let until = self.until.load(Ordering::Relaxed);
        until != 0
            && until <= Settle::nanos(self.begin.elapsed())
            && self.until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{Duration, Settle, Tally};

    /// Counts an entry. Returns whether that marked the slot.
    fn add(tally: &Tally, bytes: u64) -> bool {
        let is_marked = Cell::new(false);
        tally.add(bytes, || is_marked.set(true));
        is_marked.get()
    }

    #[test]
    fn marks_the_first_entry_and_each_size_once_between_visits() {
        let tally = Tally::default();
        assert!(add(&tally, 1000), "first");
        assert!(!add(&tally, 1000), "small");
        assert!(add(&tally, 30_000));
        for _ in 0..10 {
            tally.sub(1000);
            assert!(!add(&tally, 1000), "passes the same size");
        }
        assert!(add(&tally, 40_000), "doubled");
        tally.visit();
        assert!(add(&tally, 1));
        assert!(!add(&tally, 1));
        let bytes = tally.bytes();
        tally.sub(bytes);
        assert!(add(&tally, 1), "first again");
        tally.visit();
        assert!(!add(&tally, 1), "a visit found something, and left the mark");
    }

    #[test]
    fn others_mark_while_the_first_one_is_on_its_way_to_its_mark() {
        let tally = Tally::default();
        tally.add(1000, || {
            // The first thread loses its CPU before its mark, and others fill the cache.
            assert!(add(&tally, 1000), "nobody has marked it yet");
            assert!(!add(&tally, 1000), "now it is marked");
        });
        assert!(!add(&tally, 1000));
    }

    #[test]
    fn a_mark_that_a_visit_may_have_taken_counts_for_nothing() {
        let tally = Tally::default();
        tally.add(1000, || {
            tally.sub(1000);
            // A walk finds the cache empty, and takes the mark.
            tally.visit();
            tally.visit();
        });
        tally.add(1000, || {
            assert!(add(&tally, 1000), "the first thread's mark is gone");
        });
    }

    #[test]
    fn a_visit_counts_the_bytes_by_which_it_left_the_mark() {
        let tally = Tally::default();
        add(&tally, 1000);
        assert_eq!(tally.visit(), 1000);
        tally.sub(1000);
        assert_eq!(tally.visit(), 0);
        tally.add(1000, || {
            // The mark was taken, so everybody marks until one mark was made.
            assert!(add(&tally, 1000));
        });
    }

    #[test]
    fn tells_one_thread_once_that_the_time_is_over() {
        let settle = Settle::new(Duration::ZERO);
        assert!(!settle.is_over(), "no wedge is in");
        settle.start();
        // The clock of some machines moves in coarse steps.
        while !settle.is_over() {}
        assert!(!settle.is_over());
    }

    #[test]
    fn keeps_a_wedge_for_the_longest_time_without_overflow() {
        let settle = Settle::new(Duration::MAX);
        settle.start();
        assert!(!settle.is_over());
    }
}
