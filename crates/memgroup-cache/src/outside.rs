//! Values that a cache releases on a thread that is in a call of a cache. They are dropped when the
//! thread has left the call.
//!
//! - O1. A value is never dropped while its thread is in a call of a `moka` cache, so a value may
//!   use the cache when it is dropped.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// The holder of a value.
pub(crate) trait Vacate {
    /// Drops the value, if it is still there.
    fn vacate(&self);
}

thread_local! {
    /// Calls of caches that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static WAITING: RefCell<Vec<Arc<dyn Vacate>>> = const { RefCell::new(Vec::new()) };
}

/// A call of a cache. At the end of the outermost one the waiting values are dropped.
struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth > 0 {
            return;
        }
        // One by one, because dropping a value may add others.
        while let Ok(Some(holder)) = WAITING.try_with(|waiting| waiting.borrow_mut().pop()) {
            holder.vacate();
        }
    }
}

/// Returns whether this thread is in a call of a cache.
pub(crate) fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Runs a call of a cache.
pub(crate) fn call<T>(call: impl FnOnce() -> T) -> T {
    DEPTH.set(DEPTH.get() + 1);
    let _inside = Inside;
    call()
}

/// Vacates a holder when this thread is in no call. This is at once if it is in none, or is ending.
pub(crate) fn vacate_outside(holder: Arc<dyn Vacate>) {
    let mut holder = Some(holder);
    if is_inside() {
        _ = WAITING.try_with(|waiting| waiting.borrow_mut().extend(holder.take()));
    }
    if let Some(holder) = holder {
        holder.vacate();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::{Vacate, call, is_inside, vacate_outside};

    /// Checks that it is vacated outside, and vacates others there.
    struct Holder(Arc<AtomicU32>, u32);

    impl Vacate for Holder {
        fn vacate(&self) {
            // ORDERING: Relaxed; one thread.
            self.0.fetch_add(1, Ordering::Relaxed);
            assert!(!is_inside());
            if self.1 > 0 {
                let next = Holder(Arc::clone(&self.0), self.1 - 1);
                call(|| vacate_outside(Arc::new(next)));
            }
        }
    }

    #[test]
    fn vacates_outside_of_the_outermost_call() {
        let vacated = Arc::new(AtomicU32::new(0));
        // ORDERING: Relaxed; one thread.
        let count = || vacated.load(Ordering::Relaxed);
        let holder = |more| Arc::new(Holder(Arc::clone(&vacated), more));
        call(|| {
            call(|| vacate_outside(holder(3)));
            assert_eq!(count(), 0);
        });
        assert_eq!(count(), 4);
        vacate_outside(holder(0));
        assert_eq!(count(), 5);
    }
}
