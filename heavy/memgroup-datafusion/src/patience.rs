//! The wait of a growth that cannot spill, for memory that other queries are asked to free.
//!
//! - I1. All growths of a query share its patience, and each one uses it up while it waits,
//!   including one that gets its memory.
//! - I2. A thread waits only if tokio hands its other tasks to another thread.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memgroup::{Charge, Effort, Group};
use tokio::runtime::{Handle, RuntimeFlavor};

/// How often a waiting growth is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(2);

/// The time for which the growths of one query may wait.
pub(crate) struct Patience {
    in_all: Duration,
    /// Nanoseconds that its growths waited.
    waited: AtomicU64,
    /// Tokio has refused to let a thread of the query block.
    may_not_block: AtomicBool,
}

impl Patience {
    pub(crate) fn of(in_all: Duration) -> Patience {
        Patience { in_all, waited: AtomicU64::new(0), may_not_block: AtomicBool::new(false) }
    }

    fn left(&self) -> Option<Duration> {
        // ORDERING: Relaxed, because the number publishes nothing else.
        let waited = Duration::from_nanos(self.waited.load(Ordering::Relaxed));
        self.in_all.checked_sub(waited).filter(|left| !left.is_zero())
    }

    /// Returns whether a growth on this thread may wait.
    pub(crate) fn may_wait(&self) -> bool {
        let is_multi = |handle: Handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread;
        // ORDERING: Relaxed, because this is only a hint.
        let may_block = !self.may_not_block.load(Ordering::Relaxed);
        self.left().is_some() && may_block && Handle::try_current().is_ok_and(is_multi)
    }

    /// Waits for room in `group`, if the thread can hand its other tasks over to another one.
    pub(crate) fn wait(&self, group: &Group, bytes: usize) -> Option<Charge> {
        let mut has_begun = false;
        // The handle may belong to a runtime other than the one that polls this thread's task. In
        // that case tokio panics before the call.
        let waited = catch_unwind(AssertUnwindSafe(|| {
            tokio::task::block_in_place(|| {
                has_begun = true;
                self.wait_here(group, bytes)
            })
        }));
        match waited {
            Ok(charge) => charge,
            Err(panic) if has_begun => resume_unwind(panic),
            Err(_) => {
                // ORDERING: Relaxed; as in `may_wait`.
                self.may_not_block.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    fn wait_here(&self, group: &Group, bytes: usize) -> Option<Charge> {
        let _stall = group.stall();
        let mut since = Instant::now();
        while let Some(left) = self.left() {
            let charge = group.try_charge_by(bytes as u64, Effort::Reclaim).ok();
            if charge.is_none() {
                std::thread::sleep(TRY_AGAIN.min(left));
            }
            let now = Instant::now();
            // ORDERING: Relaxed; as in `left`.
            self.waited.fetch_add((now - since).as_nanos() as u64, Ordering::Relaxed);
            since = now;
            if charge.is_some() {
                return charge;
            }
        }
        group.try_charge_by(bytes as u64, Effort::Stop).ok()
    }
}
