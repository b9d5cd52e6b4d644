//! A thread's own number, and the virtual slot that it is pinned to.
//!
//! - I1. Two threads of a process never have the same number, until 2^32 threads have drawn one.
//! - I2. Neither thread-local needs a destructor. So both can be read at any time in a thread's
//!   life, also while its other thread-locals are dropped. Reading allocates nothing.

use core::cell::Cell;
use core::marker::PhantomData;
// A plain atomic in both builds: under loom it only hands out numbers, once for each execution,
// and no model's outcome hangs on it.
use core::sync::atomic::{AtomicU32, Ordering};

memgroup_sync::global! {
    static NEXT: AtomicU32 = AtomicU32::new(0);
}

memgroup_sync::thread_local! {
    static NUMBER: Cell<Option<u32>> = const { Cell::new(None) };
    static PINNED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// This thread's number, given out on first use: 0, 1, 2, ...
#[inline]
pub(crate) fn current() -> u32 {
    NUMBER.with(|number| number.get().unwrap_or_else(|| first(number)))
}

#[cold]
fn first(number: &Cell<Option<u32>>) -> u32 {
    // ORDERING: Relaxed; only the number's uniqueness counts, and a read-modify-write alone gives
    // that.
    let drawn = NEXT.fetch_add(1, Ordering::Relaxed);
    number.set(Some(drawn));
    drawn
}

/// The slot this thread is pinned to by [`pin_virtual`], if any.
#[inline]
pub(crate) fn pinned() -> Option<usize> {
    PINNED.with(Cell::get)
}

/// Lets this thread use slot `slot` of every *virtual* slot source, modulo that source's number of
/// slots, until the guard drops. Sources that follow real CPUs or hash the thread do not change.
///
/// Guards nest. Each restores the slot before it, so drop them in the reverse order of their
/// making.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_percpu::{SlotSource, pin_virtual};
///
/// let source = SlotSource::virtual_slots(128)?;
/// let _on_seven = pin_virtual(7);
/// {
///     let _on_two = pin_virtual(128 + 2);
///     assert_eq!(source.current(), 2);
/// }
/// assert_eq!(source.current(), 7);
/// # }
/// # Ok::<(), memgroup_percpu::SlotError>(())
/// ```
pub fn pin_virtual(slot: usize) -> VirtualGuard {
    VirtualGuard { before: PINNED.with(|pinned| pinned.replace(Some(slot))), this_thread: PhantomData }
}

/// Keeps this thread on a virtual slot; see [`pin_virtual`]. It cannot leave its thread.
#[derive(Debug)]
#[must_use = "the thread leaves the slot when the guard drops"]
pub struct VirtualGuard {
    before: Option<usize>,
    this_thread: PhantomData<*const ()>,
}

impl Drop for VirtualGuard {
    fn drop(&mut self) {
        PINNED.with(|pinned| pinned.set(self.before));
    }
}
