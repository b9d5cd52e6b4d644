//! The exploration that the models of this crate share.

/// Explores `model` with up to so many preemptions.
pub(crate) fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = memgroup_sync::loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    memgroup_sync::explore(&builder, model);
}
