//! Values that are kept for ever, or for as long as a model runs once.
//!
//! A value that lives as long as the process is leaked. A model runs some ten thousand times in
//! one process, and would leak as often. So the values kept in one execution of a model are
//! dropped when the next one begins.
//!
//! - I1. Under loom all threads of a model run on one OS thread, so its list of kept values is
//!   that thread's.

#![allow(unsafe_code)]

/// A reference to `value` that is good for the rest of the process; in a model, for the rest of
/// the execution.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// let kept: &'static u64 = memgroup_sync::keep(Box::new(7));
/// assert_eq!(*kept, 7);
/// # }
/// ```
#[cfg(not(memgroup_loom))]
pub fn keep<T: 'static>(value: Box<T>) -> &'static T {
    Box::leak(value)
}

#[cfg(memgroup_loom)]
std::thread_local! {
    static KEPT: std::cell::RefCell<Kept> = const { std::cell::RefCell::new(Kept(Vec::new())) };
    static IS_OVER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The values that one execution kept. They are dropped after it, so their drops touch no modelled
/// atomics.
#[cfg(memgroup_loom)]
struct Kept(Vec<Box<dyn std::any::Any>>);

#[cfg(memgroup_loom)]
impl Drop for Kept {
    fn drop(&mut self) {
        IS_OVER.set(true);
        self.0.clear();
        IS_OVER.set(false);
    }
}

/// Returns whether the values of an execution that is over are being dropped now.
#[cfg(memgroup_loom)]
pub(crate) fn is_over() -> bool {
    IS_OVER.get()
}

/// Returns whether this is the unwinding of a model that failed: its atomics are not there any
/// more.
#[inline(always)]
pub(crate) fn model_failed() -> bool {
    cfg!(memgroup_loom) && std::thread::panicking()
}

/// A reference to `value` that is good for the rest of the execution of this model; see
/// [`explore`].
#[cfg(memgroup_loom)]
pub fn keep<T: 'static>(value: Box<T>) -> &'static T {
    let kept = core::ptr::from_ref(&*value);
    KEPT.with(|list| list.borrow_mut().0.push(value));
    // SAFETY: the box is in the list, and its value is neither moved nor dropped before `explore`
    // begins another execution; references of one execution are not used in the next, which has
    // objects of its own.
    unsafe { &*kept }
}

/// Runs every execution of a model that `builder` explores. The values that the last one
/// [kept](keep) are dropped first.
#[cfg(memgroup_loom)]
pub fn explore(builder: &loom::model::Builder, model: impl Fn() + Sync + Send + 'static) {
    builder.check(move || {
        let kept = KEPT.with(|list| std::mem::replace(&mut *list.borrow_mut(), Kept(Vec::new())));
        drop(kept);
        model();
    });
}
