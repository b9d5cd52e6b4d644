//! Debt: the bytes that a group charged while it was above a limit, until they are repaid or
//! forgiven.
//!
//! - I1. Each byte that is added is taken or forgiven once, because every change is one RMW of the
//!   word. Loom: `a_debt_is_paid_once`.
//! - B1. A debt stops growing at 2^64 - 1 bytes. A few MiB already lead to the longest delay.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{erasable, interleave};

use crate::base::mutation::{self, Mutation};

#[cfg(all(test, memgroup_loom))]
mod loom;

erasable! {
    /// The debt of one group.
    pub(crate) struct Debt {
        bytes: AtomicU64,
    }
}

impl Debt {
    #[cfg(test)]
    pub(crate) fn new() -> Debt {
        memgroup_sync::Erasable::zero()
    }

    pub(crate) fn bytes(&self) -> u64 {
        // ORDERING: Relaxed, here and below, because no other memory belongs to the number. The
        // exchanges alone make sure that no byte of it is lost (I1).
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds to the debt.
    pub(crate) fn add(&self, bytes: u64) {
        _ = self.change(Mutation::DebtIsNotedBlindly, |owed| Some(owed.saturating_add(bytes)));
    }

    /// Takes up to `bytes` off the debt.
    pub(crate) fn lessen(&self, bytes: u64) {
        let less = |owed: u64| (owed > 0 && bytes > 0).then(|| owed.saturating_sub(bytes));
        _ = self.change(Mutation::DebtIsNotedBlindly, less);
    }

    /// Takes the whole debt and returns it, if `is_due`.
    pub(crate) fn take(&self, is_due: impl Fn(u64) -> bool) -> Option<u64> {
        self.change(Mutation::DebtIsTakenBlindly, |owed| (owed > 0 && is_due(owed)).then_some(0))
    }

    /// Changes the debt unless `change` returns `None`. Returns the debt before the change.
    fn change(&self, fault: Mutation, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut owed = self.bytes();
        loop {
            let changed = change(owed)?;
            interleave::point();
            if mutation::active(fault) {
                self.bytes.store(changed, Ordering::Relaxed);
                return Some(owed);
            }
            match self.bytes.compare_exchange_weak(owed, changed, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(owed),
                Err(newer) => owed = newer,
            }
        }
    }

    /// Forgives the debt if it is still the `owed` bytes that the caller read.
    pub(crate) fn forgive_seen(&self, owed: u64) {
        let _ = self.bytes.compare_exchange(owed, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Forgives the whole debt and returns it.
    pub(crate) fn forgive(&self) -> u64 {
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::state::debt::Debt;

    #[test]
    fn stops_at_the_largest_number_and_is_taken_whole() {
        let debt = Debt::new();
        for bytes in [u64::MAX - 1, 5, u64::MAX] {
            debt.add(bytes);
        }
        assert_eq!(debt.take(|owed| owed < 10), None);
        assert_eq!(debt.bytes(), u64::MAX, "it was not due");
        assert_eq!(debt.take(|_| true), Some(u64::MAX));
        assert_eq!((debt.take(|_| true), debt.forgive()), (None, 0));
    }

    #[test]
    fn forgives_no_bytes_added_since() {
        let debt = Debt::new();
        debt.add(7);
        let seen = debt.bytes();
        debt.add(1);
        debt.forgive_seen(seen);
        assert_eq!(debt.bytes(), 8);
        debt.forgive_seen(8);
        assert_eq!(debt.bytes(), 0);
    }

    #[test]
    fn gives_each_byte_to_one_of_many_threads() {
        let debt = Debt::new();
        let taken = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for bytes in 1..=4 {
                let (debt, taken) = (&debt, &taken);
                scope.spawn(move || {
                    for _ in 0..50_000 {
                        debt.add(bytes);
                        if let Some(owed) = debt.take(|owed| owed % 3 == 0) {
                            // ORDERING: Relaxed, because the sum is read after the threads are
                            // joined.
                            taken.fetch_add(owed, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(taken.into_inner() + debt.forgive(), 50_000 * (1 + 2 + 3 + 4));
    }
}
