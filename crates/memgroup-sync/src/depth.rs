//! Depth: whether this thread is within a part of the engine in which no allocation may be
//! charged.
//!
//! A global allocator that charges groups is called by the engine too: where a thread allocates
//! while it holds a lock of the engine. A charge there could want the same lock. So each
//! [`Mutex`](crate::Mutex) raises the depth of its holder, and so do parts that allocate for the
//! engine itself. The allocator looks at the depth first.
//!
//! - I1. The thread-local has no destructor, and its access allocates nothing. So the depth can be
//!   read at any time in a thread's life.

use core::marker::PhantomData;

#[cfg(not(memgroup_loom))]
std::thread_local! {
    static DEPTH: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

/// While it lives, the thread is within the engine. Guards nest. If one is forgotten
/// (`mem::forget`), the thread stays within the engine until it ends.
#[derive(Debug)]
#[must_use = "the depth falls when the guard is dropped"]
pub struct Depth(PhantomData<*const ()>);

/// Raises the depth of this thread.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::depth;
///
/// let inner = depth::enter();
/// assert!(depth::is_inside());
/// drop(inner);
/// assert!(!depth::is_inside());
/// # }
/// ```
#[inline(always)]
pub fn enter() -> Depth {
    #[cfg(not(memgroup_loom))]
    DEPTH.set(DEPTH.get() + 1);
    Depth(PhantomData)
}

/// Returns whether the thread is within the engine. Never so in a model, where no allocator
/// charges.
#[inline(always)]
pub fn is_inside() -> bool {
    #[cfg(not(memgroup_loom))]
    return DEPTH.get() > 0;
    #[cfg(memgroup_loom)]
    false
}

impl Drop for Depth {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(not(memgroup_loom))]
        DEPTH.set(DEPTH.get() - 1);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::{Mutex, depth};

    #[test]
    fn a_lock_raises_the_depth_of_its_holder_alone() {
        let (outer, inner) = (Mutex::new(()), Mutex::new(()));
        let first = outer.lock();
        let second = inner.try_lock();
        assert!(depth::is_inside());
        std::thread::scope(|scope| scope.spawn(|| assert!(!depth::is_inside())).join().unwrap());
        drop(first);
        assert!(depth::is_inside(), "one lock is held");
        drop(second);
        assert!(!depth::is_inside());
    }
}
