//! Debt: bytes that a group charged while it was above a limit, until they are paid for or forgiven.
//!
//! - I1. What is noted is taken or forgiven once: every change is one RMW of the word. Loom: `a_debt_is_paid_once`.
//! - B1. It stops at 2^64 - 1 bytes; no delay is longer than what a few MiB make.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::interleave;

use crate::mutation::{self, Mutation};

/// What one group owes.
pub(crate) struct Debt {
    bytes: AtomicU64,
}

impl Debt {
    pub(crate) fn new() -> Debt {
        Debt { bytes: AtomicU64::new(0) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        // ORDERING: Relaxed; a number by itself, which `take` compares.
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds to it.
    pub(crate) fn note(&self, bytes: u64) {
        let mut owed = self.bytes();
        loop {
            let with_it = owed.saturating_add(bytes);
            interleave::point();
            if mutation::active(Mutation::DebtIsNotedBlindly) {
                // ORDERING: Relaxed (a mutation for the models only).
                return self.bytes.store(with_it, Ordering::Relaxed);
            }
            // ORDERING: Relaxed, both; the number is all there is to see, and the exchange loses none of it (I1).
            match self.bytes.compare_exchange_weak(owed, with_it, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => owed = newer,
            }
        }
    }

    /// Takes all of it, if that is worth it.
    pub(crate) fn take(&self, is_due: impl Fn(u64) -> bool) -> Option<u64> {
        let mut owed = self.bytes();
        while owed > 0 && is_due(owed) {
            interleave::point();
            if mutation::active(Mutation::DebtIsTakenBlindly) {
                // ORDERING: Relaxed (a mutation for the models only).
                self.bytes.store(0, Ordering::Relaxed);
                return Some(owed);
            }
            // ORDERING: Relaxed, both; as in `note`.
            match self.bytes.compare_exchange_weak(owed, 0, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(owed),
                Err(newer) => owed = newer,
            }
        }
        None
    }

    /// What was seen to be owed is not owed any more, unless it has changed.
    pub(crate) fn forgive_seen(&self, owed: u64) {
        // ORDERING: Relaxed, both; as in `note`.
        let _ = self.bytes.compare_exchange(owed, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Nothing is owed any more; what was.
    pub(crate) fn forgive(&self) -> u64 {
        // ORDERING: Relaxed; as in `note`.
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::Debt;

    #[test]
    fn a_debt_stops_at_the_largest_number_and_is_taken_whole() {
        let debt = Debt::new();
        for bytes in [u64::MAX - 1, 5, u64::MAX] {
            debt.note(bytes);
        }
        assert_eq!(debt.take(|owed| owed < 10), None);
        assert_eq!(debt.bytes(), u64::MAX, "it was not worth it");
        assert_eq!(debt.take(|_| true), Some(u64::MAX));
        assert_eq!((debt.take(|_| true), debt.forgive()), (None, 0));
    }

    #[test]
    fn what_has_come_since_is_not_forgiven() {
        let debt = Debt::new();
        debt.note(7);
        let seen = debt.bytes();
        debt.note(1);
        debt.forgive_seen(seen);
        assert_eq!(debt.bytes(), 8);
        debt.forgive_seen(8);
        assert_eq!(debt.bytes(), 0);
    }

    #[test]
    fn of_many_threads_that_note_and_take_each_byte_is_taken_once() {
        let debt = Debt::new();
        let taken = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for bytes in 1..=4 {
                let (debt, taken) = (&debt, &taken);
                scope.spawn(move || {
                    for _ in 0..50_000 {
                        debt.note(bytes);
                        if let Some(owed) = debt.take(|owed| owed % 3 == 0) {
                            // ORDERING: Relaxed; a sum, read when the threads are joined.
                            taken.fetch_add(owed, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(taken.into_inner() + debt.forgive(), 50_000 * (1 + 2 + 3 + 4));
    }
}
