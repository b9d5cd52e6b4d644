//! The lock of one page cache: taken by its connection for some instructions at every call, tried by everybody else.
//!
//! ```text
//!   free ── lock, try_lock: swap ──▶ held ── Guard dropped: store ──▶ free
//! ```
//!
//! - I1. A value is reached through a [`Guard`] only, and of a lock there is one guard at a time.
//! - I2. Nothing that can wait, allocate, charge or free happens while a guard lives, so [`Lock::lock`] waits for some
//!   instructions of another thread. A thread that holds the guard never calls `lock` again; `try_lock` would only fail.
//! - E1. What is done under a guard is seen by the next holder: the Release store that ends it pairs with the Acquire swap
//!   that begins the next. Loom: `loom_a_holder_of_the_lock_has_the_value_alone`.
//!
//! One swap and one store, where `std::sync::Mutex` takes two read-modify-writes: a page is fetched and unpinned in some
//! twenty nanoseconds, and the lock is taken for each.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use memgroup_sync::atomic::{AtomicBool, Ordering};
use memgroup_sync::spin;

use crate::mutation::{self, Mutation};

/// Rounds of a wait that spin or give the processor away, before those that sleep: a holder of lower priority has to run, too.
const ROUNDS: u32 = 64;

/// How long a later round sleeps.
const SLEEP: Duration = Duration::from_micros(50);

/// A value, and the word that says whether somebody has it.
pub(super) struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time (I1), each of which sees what the last one did (E1).
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Lock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// The value, once no other thread has it.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        if !self.take() {
            self.wait();
        }
        Guard { lock: self }
    }

    /// The value, if nobody has it.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // The load keeps a thread that only tries from taking the line away from the one that has the value.
        // ORDERING: Relaxed; a hint, the swap decides.
        if self.held.load(Ordering::Relaxed) || !self.take() { None } else { Some(Guard { lock: self }) }
    }

    /// Whether the value is this thread's now.
    #[inline]
    fn take(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release store in `Guard::drop` (E1). Weaker, this thread could see the lists of
        // a cache half changed.
        let ordering =
            if mutation::active(Mutation::LockRelaxed) { Ordering::Relaxed } else { Ordering::Acquire };
        !self.held.swap(true, ordering)
    }

    #[cold]
    fn wait(&self) {
        let mut wait = spin::Wait::new();
        for round in 0_u32.. {
            if round < ROUNDS || cfg!(memgroup_loom) {
                wait.wait();
            } else {
                std::thread::sleep(SLEEP);
            }
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
        // SAFETY: this is the one guard (I1), and it is borrowed for as long as the reference lives.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the Acquire swap in `Lock::take` (E1). Weaker, the next holder could see the lists of a
        // cache half changed.
        let ordering =
            if mutation::active(Mutation::UnlockRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        if cfg!(memgroup_loom) {
            // A store may stay behind the swaps of a thread that waits for ever.
            self.lock.held.swap(false, ordering);
        } else {
            self.lock.held.store(false, ordering);
        }
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_lock_lets_one_thread_in() {
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
