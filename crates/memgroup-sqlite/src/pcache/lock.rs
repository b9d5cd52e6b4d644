//! The lock of one page cache. Its connection takes the lock for a few instructions in most calls;
//! all other threads only try it.
//!
//! ```text
//!   free ── lock, try_lock: swap ──▶ held ── Guard dropped: store ──▶ free
//! ```
//!
//! - I1. A value is reached through a [`Guard`] only, and a lock has one guard at a time.
//! - I2. Nothing that can wait, allocate, charge or free happens while a guard lives. So
//!   [`Lock::lock`] waits for a few instructions of another thread. A thread that holds the guard
//!   never calls `lock` again.
//! - E1. A holder's changes → the next holder: the Release store that ends the first guard pairs
//!   with the Acquire swap that begins the next. Loom:
//!   `loom_gives_the_value_to_one_holder_at_a_time`.
//!
//! This lock makes one swap and one store, where `std::sync::Mutex` makes two read-modify-writes.
//! SQLite fetches and unpins a page in some twenty nanoseconds, and takes the lock in most of these
//! calls.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use memgroup_sync::atomic::{AtomicBool, Ordering};
use memgroup_sync::spin;

use crate::mutation::{self, Mutation};

/// A value, and whether a thread holds it.
pub(super) struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time (I1), each of which sees the changes of the
// last one (E1).
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Lock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits until no other thread holds the value, and returns it.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        if !self.take() {
            self.wait();
        }
        Guard { lock: self }
    }

    /// Returns the value, if no thread holds it.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // ORDERING: Relaxed; a hint, the swap decides. The load keeps a trying thread from taking
        // the cache line from the holder.
        if self.held.load(Ordering::Relaxed) || !self.take() { None } else { Some(Guard { lock: self }) }
    }

    /// Returns whether this thread holds the value now.
    #[inline]
    fn take(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release store in `Guard::drop` (E1). With a weaker
        // ordering, this thread could see half of the last change.
        !self.held.swap(true, mutation::weakened(Mutation::LockRelaxed, Ordering::Acquire))
    }

    #[cold]
    fn wait(&self) {
        let mut wait = spin::Wait::new();
        loop {
            wait.wait();
            // ORDERING: Relaxed; a hint, the swap decides.
            if !self.held.load(Ordering::Relaxed) && self.take() {
                return;
            }
        }
    }
}

/// The value of a [`Lock`], for one thread.
pub(super) struct Guard<'l, T> {
    lock: &'l Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the one guard (I1).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the one guard (I1), borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the Acquire swap in `Lock::take` (E1). With a weaker
        // ordering, the next holder could see half of this one's change.
        let ordering = mutation::weakened(Mutation::UnlockRelaxed, Ordering::Release);
        #[cfg(not(memgroup_loom))]
        self.lock.held.store(false, ordering);
        // ORDERING: that of the store. In loom a thread that swaps in a loop could hide a store for
        // ever.
        #[cfg(memgroup_loom)]
        self.lock.held.swap(false, ordering);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn gives_the_value_to_one_thread_at_a_time() {
        let lock = Lock::new(0_u64);
        let failed = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| (0..100_000).for_each(|_| *lock.lock() += 1));
                threads.spawn(|| {
                    for _ in 0..100_000 {
                        match lock.try_lock() {
                            Some(mut value) => *value += 1,
                            // ORDERING: Relaxed; a sum, read after the threads are joined.
                            None => drop(failed.fetch_add(1, Ordering::Relaxed)),
                        }
                    }
                });
            }
        });
        // ORDERING: Relaxed; as above.
        assert_eq!(*lock.lock() + failed.load(Ordering::Relaxed), 400_000);
        let _held = lock.lock();
        assert!(lock.try_lock().is_none());
    }
}
