//! A mutex without poisoning.
//!
//! - I1. A panic while the lock is held releases it and leaves no mark: the next `lock` returns
//!   the guard. Code that holds the lock therefore keeps the data valid at every step, not only at
//!   the end of the critical section.
//! - P1. A thread that lets go and locks again at once, in a loop, keeps no other thread out: not
//!   where one has waited for `PATIENCE`. Until then it may lock again, because a change of
//!   threads costs more than most sections take.
//! - P2. A thread that lets go and locks again by `lock_behind` goes behind the first thread that
//!   waits, however short it has waited.
//! - P3. The first thread that waits looks for the lock for a while (`LOOKS_FOR`) before it
//!   sleeps. Most sections are shorter, and the system needs some tens of microseconds to wake a
//!   thread on an idle CPU. The others sleep.
//! - E1. unlock → lock: everything before the release happens before everything after the next
//!   acquisition.

use core::fmt;
use core::ops::{Deref, DerefMut};
#[cfg(not(memgroup_loom))]
use std::sync as imp;
use std::sync::{PoisonError, TryLockError};

#[cfg(memgroup_loom)]
use loom::sync as imp;

#[cfg(not(memgroup_loom))]
use crate::atomic::{AtomicU32, Ordering};
use crate::depth::{self, Depth};
#[cfg(not(memgroup_loom))]
use crate::ticks;

/// How long a thread may wait, in microseconds, until all others queue behind it (P1).
#[cfg(not(memgroup_loom))]
const PATIENCE: u32 = 1000;

/// How long the first thread that waits looks for the lock, in nanoseconds (P3).
#[cfg(not(memgroup_loom))]
const LOOKS_FOR: u64 = 30_000;

/// Mutual exclusion around a `T`: `std::sync::Mutex` without poisoning, or loom's under
/// `cfg(memgroup_loom)`.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::Mutex;
///
/// static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// NAMES.lock().push("a".to_owned());
/// assert_eq!(NAMES.lock().len(), 1);
/// # }
/// ```
///
/// A thread that waits gets the lock although others lock again and again: after a millisecond
/// they queue behind it.
#[derive(Default)]
pub struct Mutex<T> {
    /// Held by the one thread that waits for `inner`. The others wait for this.
    #[cfg(not(memgroup_loom))]
    first: imp::Mutex<()>,
    /// Since when that thread waits: microseconds of the monotonic clock, made odd; 0 where none
    /// waits.
    #[cfg(not(memgroup_loom))]
    waits_since: AtomicU32,
    inner: imp::Mutex<T>,
}

/// The right to use the value of a [`Mutex`]; dropping it unlocks. While it lives the thread is
/// [within the engine](crate::depth).
///
/// If it is forgotten (`mem::forget`), the mutex stays locked, and the thread within the engine:
/// an allocator charges the thread's later blocks to no group.
#[must_use = "the lock is released when the guard is dropped"]
pub struct MutexGuard<'a, T> {
    // In this order: the lock is released first.
    inner: imp::MutexGuard<'a, T>,
    _depth: Depth,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T> Mutex<T> {
    /// An unlocked mutex around `value`.
    #[cfg(not(memgroup_loom))]
    pub const fn new(value: T) -> Self {
        Self { first: imp::Mutex::new(()), waits_since: AtomicU32::new(0), inner: imp::Mutex::new(value) }
    }

    /// An unlocked mutex around `value`.
    #[cfg(memgroup_loom)]
    pub fn new(value: T) -> Self {
        Self { inner: imp::Mutex::new(value) }
    }

    /// Waits until the lock is free and takes it.
    ///
    /// A panic of an earlier holder is not reported. Locking twice on one thread never returns: it
    /// deadlocks or panics, as `std::sync::Mutex` does.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(not(memgroup_loom))]
        return match if self.is_owed() { None } else { self.try_lock() } {
            Some(guard) => guard,
            None => self.lock_in_turn(),
        };
        #[cfg(memgroup_loom)]
        MutexGuard {
            inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner),
            _depth: depth::enter(),
        }
    }

    /// Like [`lock`](Self::lock), behind a thread that waits already. A thread that does long work
    /// in pieces, and lets go between two pieces, locks so again.
    ///
    /// ```
    /// # use memgroup_sync::Mutex;
    /// # fn piece(_: &mut u32) -> bool { false }
    /// # fn work(mutex: &Mutex<u32>) {
    /// let mut guard = mutex.lock();
    /// while piece(&mut guard) {
    ///     drop(guard);
    ///     guard = mutex.lock_behind();
    /// }
    /// # }
    /// ```
    pub fn lock_behind(&self) -> MutexGuard<'_, T> {
        #[cfg(not(memgroup_loom))]
        return self.lock_in_turn();
        #[cfg(memgroup_loom)]
        self.lock()
    }

    /// Returns whether a thread has waited for so long that it goes first (P1).
    #[cfg(not(memgroup_loom))]
    #[inline]
    fn is_owed(&self) -> bool {
        // ORDERING: Relaxed; a hint. The locks order everything.
        match self.waits_since.load(Ordering::Relaxed) {
            0 => false,
            since => micros().wrapping_sub(since) >= PATIENCE,
        }
    }

    #[cfg(not(memgroup_loom))]
    #[cold]
    fn lock_in_turn(&self) -> MutexGuard<'_, T> {
        let depth = depth::enter();
        let _first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        // ORDERING: Relaxed, both; as in `is_owed`.
        self.waits_since.store(micros(), Ordering::Relaxed);
        let inner = self.look_for_inner();
        let inner = inner.unwrap_or_else(|| self.inner.lock().unwrap_or_else(PoisonError::into_inner));
        // ORDERING: as above.
        self.waits_since.store(0, Ordering::Relaxed);
        MutexGuard { inner, _depth: depth }
    }

    #[cfg(not(memgroup_loom))]
    fn look_for_inner(&self) -> Option<imp::MutexGuard<'_, T>> {
        // Where the lock is free, the clock is not read.
        let mut until = None;
        loop {
            let inner = self.try_inner();
            if inner.is_some() {
                return inner;
            }
            let now = ticks::monotonic();
            if now >= *until.get_or_insert(now + LOOKS_FOR) {
                return None;
            }
            // Each look takes the cache line from the holder.
            (0..8).for_each(|_| core::hint::spin_loop());
        }
    }

    fn try_inner(&self) -> Option<imp::MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes the lock if it is free, else returns `None` at once.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.try_inner().map(|inner| MutexGuard { inner, _depth: depth::enter() })
    }

    /// The value, once no other thread can lock it.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The monotonic clock's microseconds, odd. They start again after 71 minutes.
#[cfg(not(memgroup_loom))]
#[cold]
fn micros() -> u32 {
    (ticks::monotonic() / 1000) as u32 | 1
}

impl<T> fmt::Debug for Mutex<T> {
    /// Never locks, so that a holder of the lock may be debugged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn locks_after_a_panic_of_the_holder() {
        let mutex = Mutex::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut guard = mutex.lock();
            *guard = 2;
            panic!("while the lock is held");
        }));
        assert!(panicked.is_err());
        assert_eq!(*mutex.lock(), 2);
        assert_eq!(mutex.try_lock().map(|guard| *guard), Some(2));
        assert_eq!(mutex.into_inner(), 2);
    }

    #[test]
    fn a_thread_that_waits_gets_the_lock_beside_one_that_locks_again_at_once() {
        let mutex = Mutex::new(0);
        std::thread::scope(|scope| {
            for round in 0..10 {
                let guard = mutex.lock();
                scope.spawn(|| *mutex.lock() += 1);
                while !mutex.is_owed() {
                    std::thread::yield_now();
                }
                drop(guard);
                assert_eq!(*mutex.lock(), round + 1, "the other thread waited longer");
            }
        });
    }

    #[test]
    fn locks_behind_a_thread_that_waits() {
        const PIECES: u64 = 100;
        let mutex = Mutex::new(0);
        std::thread::scope(|scope| {
            for piece in 1..=PIECES {
                let guard = mutex.lock();
                scope.spawn(|| *mutex.lock() += 1);
                // ORDERING: Relaxed; a hint. The thread that has set it holds `first`.
                while mutex.waits_since.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                drop(guard);
                assert_eq!(*mutex.lock_behind(), piece, "the other thread was there before");
            }
        });
    }

    #[test]
    fn refuses_a_try_while_it_is_held() {
        let mutex = Mutex::new(());
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        assert_eq!(format!("{mutex:?}"), "Mutex { .. }", "printing does not lock");
        drop(held);
        assert!(mutex.try_lock().is_some());
    }
}

#[cfg(all(test, memgroup_loom))]
mod loom_models {
    use std::sync::Arc;

    use super::*;
    use crate::atomic::{AtomicU64, Ordering};
    use crate::thread;

    /// Two threads add one each, by a load and a store, within `section`.
    fn sum_after(section: fn(&Mutex<()>, &dyn Fn())) -> u64 {
        let shared = Arc::new((Mutex::new(()), AtomicU64::new(0)));
        let add = move |shared: &(Mutex<()>, AtomicU64)| {
            section(&shared.0, &|| {
                // ORDERING: Relaxed; the lock orders the two sections (E1).
                let before = shared.1.load(Ordering::Relaxed);
                // ORDERING: Relaxed, as above.
                shared.1.store(before + 1, Ordering::Relaxed);
            });
        };
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || add(&shared)
        });
        add(&shared);
        other.join().unwrap();
        // ORDERING: Relaxed; both adds are done, and joined.
        shared.1.load(Ordering::Relaxed)
    }

    #[test]
    fn loom_e1_lock_sees_the_writes_before_the_last_unlock() {
        crate::model(|| {
            let sum = sum_after(|mutex, body| {
                let _held = mutex.lock();
                body();
            });
            assert_eq!(sum, 2);
        });
    }

    #[test]
    fn loom_e1_a_try_that_succeeds_is_a_lock() {
        crate::model(|| {
            let sum = sum_after(|mutex, body| {
                let _held = loop {
                    match mutex.try_lock() {
                        Some(held) => break held,
                        None => thread::yield_now(),
                    }
                };
                body();
            });
            assert_eq!(sum, 2);
        });
    }

    /// The mutation: the lock is taken and released before the section.
    #[test]
    #[should_panic(expected = "both adds are counted")]
    fn loom_finds_the_add_that_is_lost_when_the_lock_is_released_too_early() {
        crate::model(|| {
            let sum = sum_after(|mutex, body| {
                drop(mutex.lock());
                body();
            });
            assert!(sum == 2, "both adds are counted, not {sum}");
        });
    }
}
