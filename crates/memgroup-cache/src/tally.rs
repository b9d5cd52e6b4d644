//! The bytes and entries of a cache, or of one of its shards.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// From here on a cache that doubles since its last visit is marked as grown.
const GROWN_BYTES: u64 = 16 << 10;

#[derive(Default)]
pub(crate) struct Tally {
    bytes: AtomicU64,
    entries: AtomicU64,
    /// All bytes that ever went.
    gone: AtomicU64,
    /// Binary digits of the bytes when the slot was last marked; 0 since a visit.
    marked: AtomicU32,
}

impl Tally {
    /// Counts an entry. Returns whether the shrinker's slot has to be marked: for the first entry, and when the bytes have doubled since.
    ///
    /// A full cache evicts as much as it takes in, and passes the same size all the time. It is not marked each time.
    pub(crate) fn add(&self, bytes: u64) -> bool {
        // ORDERING: Relaxed, all; estimates. The mark that follows shows them to the count that decides whether the cache is empty. The first
        // entry marks, whatever `marked` says. A mark too many or too few moves the cache to the class of its size later.
        self.entries.fetch_add(1, Ordering::Relaxed);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let after = before.saturating_add(bytes);
        let digits = u64::BITS - after.leading_zeros();
        let is_marked = before == 0 || after >= GROWN_BYTES && digits > self.marked.load(Ordering::Relaxed);
        if is_marked {
            self.marked.store(digits, Ordering::Relaxed);
        }
        is_marked
    }

    /// Notes a visit: the engine moves the mark to the class of the size that it counts.
    pub(crate) fn visit(&self) {
        // ORDERING: Relaxed; as in `add`.
        self.marked.store(0, Ordering::Relaxed);
    }

    /// Counts an entry out.
    pub(crate) fn sub(&self, bytes: u64) {
        // ORDERING: Relaxed, all three; as in `add`.
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.gone.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        // ORDERING: Relaxed; as in `add`.
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn entries(&self) -> u64 {
        // ORDERING: Relaxed; as in `add`.
        self.entries.load(Ordering::Relaxed)
    }

    #[cfg(feature = "moka")]
    pub(crate) fn gone(&self) -> u64 {
        // ORDERING: Relaxed; as in `add`.
        self.gone.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn marks_the_first_entry_and_each_size_once_between_visits() {
        let tally = Tally::default();
        assert!(tally.add(1000), "first");
        assert!(!tally.add(1000), "small");
        assert!(tally.add(30_000));
        for _ in 0..10 {
            tally.sub(1000);
            assert!(!tally.add(1000), "passes the same size");
        }
        assert!(tally.add(40_000), "doubled");
        tally.visit();
        assert!(tally.add(1));
        assert!(!tally.add(1));
        let bytes = tally.bytes();
        tally.sub(bytes);
        assert!(tally.add(1), "first again");
    }
}
