//! What the models of this crate share.

#![allow(unsafe_code)]

/// Explores `model` with up to so many preemptions.
pub(crate) fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = memgroup_sync::loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Drops what was leaked: a model has many executions, and each makes its own.
///
/// # Safety
///
/// It was a box, and nothing refers to it any more.
pub(crate) unsafe fn take_back<T>(leaked: &'static T) {
    // SAFETY: passed on to the caller.
    drop(unsafe { Box::from_raw(core::ptr::from_ref(leaked).cast_mut()) });
}
