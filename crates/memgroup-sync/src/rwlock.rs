//! A readers-writer lock without poisoning.
//!
//! - I1. A panic while the lock is held releases it and leaves no mark: the next `read` or `write` returns the guard. Code
//!   that holds the lock therefore keeps the data valid at every step, not only at the end of the critical section.
//! - E1. unlock → lock: everything before a writer's release happens before everything after the next acquisition.
//!   Everything before a reader's release happens before everything after the next acquisition by a writer.

use core::fmt;
#[cfg(not(memgroup_loom))]
use std::sync as imp;
use std::sync::{PoisonError, TryLockError};

#[cfg(memgroup_loom)]
use loom::sync as imp;

/// Shared or exclusive use of a `T`: `std::sync::RwLock` without poisoning, or loom's under `cfg(memgroup_loom)`.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::RwLock;
///
/// static NAMES: RwLock<Vec<String>> = RwLock::new(Vec::new());
/// NAMES.write().push("a".to_owned());
/// assert_eq!(NAMES.read().len(), 1);
/// # }
/// ```
pub struct RwLock<T> {
    inner: imp::RwLock<T>,
}

/// The right to read the value of a [`RwLock`], beside other readers; dropping it unlocks.
pub type RwLockReadGuard<'a, T> = imp::RwLockReadGuard<'a, T>;

/// The right to use the value of a [`RwLock`] exclusively; dropping it unlocks.
pub type RwLockWriteGuard<'a, T> = imp::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// An unlocked lock around `value`.
    #[cfg(not(memgroup_loom))]
    pub const fn new(value: T) -> Self {
        Self { inner: imp::RwLock::new(value) }
    }

    /// An unlocked lock around `value`.
    #[cfg(memgroup_loom)]
    pub fn new(value: T) -> Self {
        Self { inner: imp::RwLock::new(value) }
    }

    /// Waits until no thread writes, and takes the lock beside other readers.
    ///
    /// A panic of an earlier holder is not reported. A thread that holds the lock must not take it again, not even to read
    /// twice: a writer may wait in between, and then it deadlocks or panics, as with `std::sync::RwLock`.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no thread reads or writes, and takes the lock exclusively.
    ///
    /// A panic of an earlier holder is not reported. A thread that holds the lock must not take it again, as with
    /// [`read`](Self::read).
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock exclusively if no thread reads or writes, else returns `None` at once.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        match self.inner.try_write() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T> fmt::Debug for RwLock<T> {
    /// Never locks, so that a holder of the lock may be debugged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn locks_after_a_panic_of_a_writer() {
        let lock = RwLock::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut guard = lock.write();
            *guard = 2;
            panic!("while the lock is held");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.read(), 2);
        assert_eq!(*lock.write(), 2);
        assert_eq!(lock.try_write().map(|guard| *guard), Some(2));
    }

    #[test]
    fn refuses_a_writer_beside_readers() {
        let lock = RwLock::new(());
        let reading = (lock.read(), lock.read());
        assert!(lock.try_write().is_none());
        assert_eq!(format!("{lock:?}"), "RwLock { .. }", "printing does not lock");
        drop(reading);
        assert!(lock.try_write().is_some());
    }

    #[test]
    fn refuses_a_writer_beside_a_writer() {
        let lock = RwLock::new(());
        let writing = lock.write();
        assert!(lock.try_write().is_none());
        drop(writing);
        assert!(lock.try_write().is_some());
    }
}

#[cfg(all(test, memgroup_loom))]
mod loom_models {
    use std::sync::Arc;

    use super::*;
    use crate::atomic::{AtomicU64, Ordering};
    use crate::thread;

    type Shared = (RwLock<()>, AtomicU64, AtomicU64);

    /// Two threads add one to each of two words, by loads and stores, within `writing`. The first also reads both within
    /// `reading`. Returns the sums at rest.
    fn sums_after(writing: fn(&RwLock<()>, &dyn Fn()), reading: fn(&RwLock<()>, &dyn Fn())) -> (u64, u64) {
        let shared: Arc<Shared> = Arc::new((RwLock::new(()), AtomicU64::new(0), AtomicU64::new(0)));
        let add = move |shared: &Shared| {
            writing(&shared.0, &|| {
                for word in [&shared.1, &shared.2] {
                    // ORDERING: Relaxed; the lock orders the two sections (E1).
                    let before = word.load(Ordering::Relaxed);
                    // ORDERING: Relaxed, as above.
                    word.store(before + 1, Ordering::Relaxed);
                }
            });
        };
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || add(&shared)
        });
        reading(&shared.0, &|| {
            // ORDERING: Relaxed; the lock orders the sections (E1).
            let pair = (shared.1.load(Ordering::Relaxed), shared.2.load(Ordering::Relaxed));
            assert!(pair.0 == pair.1, "a reader sees all or nothing, not {pair:?}");
        });
        add(&shared);
        other.join().unwrap();
        // ORDERING: Relaxed; both adds are done, and joined.
        (shared.1.load(Ordering::Relaxed), shared.2.load(Ordering::Relaxed))
    }

    fn write(lock: &RwLock<()>, body: &dyn Fn()) {
        let _held = lock.write();
        body();
    }

    fn read(lock: &RwLock<()>, body: &dyn Fn()) {
        let _held = lock.read();
        body();
    }

    #[test]
    fn loom_e1_locks_see_the_writes_before_the_last_unlock() {
        crate::model(|| assert_eq!(sums_after(write, read), (2, 2)));
    }

    #[test]
    fn loom_e1_a_try_that_succeeds_is_a_lock() {
        fn try_write(lock: &RwLock<()>, body: &dyn Fn()) {
            let _held = loop {
                match lock.try_write() {
                    Some(held) => break held,
                    None => thread::yield_now(),
                }
            };
            body();
        }
        crate::model(|| assert_eq!(sums_after(try_write, read), (2, 2)));
    }

    /// The mutation: writers take the lock to read, beside each other.
    #[test]
    #[should_panic(expected = "both adds are counted")]
    fn loom_finds_the_add_that_is_lost_when_writers_take_the_lock_to_read() {
        crate::model(|| {
            let sums = sums_after(read, |_, _| ());
            assert!(sums == (2, 2), "both adds are counted, not {sums:?}");
        });
    }

    /// A reader within `reading` finds both words of another thread written, or neither.
    fn half_found(reading: fn(&RwLock<()>, &dyn Fn())) {
        let shared: Arc<Shared> = Arc::new((RwLock::new(()), AtomicU64::new(0), AtomicU64::new(0)));
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                write(&shared.0, &|| {
                    // ORDERING: Relaxed; the lock orders the sections (E1).
                    shared.1.store(1, Ordering::Relaxed);
                    // ORDERING: Relaxed, as above.
                    shared.2.store(1, Ordering::Relaxed);
                });
            }
        });
        reading(&shared.0, &|| {
            // ORDERING: Relaxed; the lock orders the sections (E1).
            let (second, first) = (shared.2.load(Ordering::Relaxed), shared.1.load(Ordering::Relaxed));
            assert!(first == second, "a reader sees all or nothing, not {first} and {second}");
        });
        other.join().unwrap();
    }

    #[test]
    fn loom_e1_a_reader_sees_all_or_nothing() {
        crate::model(|| half_found(read));
    }

    /// The mutation: the lock is taken and released before the read.
    #[test]
    #[should_panic(expected = "all or nothing")]
    fn loom_finds_the_half_that_a_reader_sees_when_the_lock_is_released_too_early() {
        crate::model(|| {
            half_found(|lock, body| {
                drop(lock.read());
                body();
            });
        });
    }
}
