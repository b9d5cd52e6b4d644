//! Registration of a subsystem, at any time: every group that exists gets an entry in its store.

use crate::state::stats::stat::{RegisterError, Subsystem};
use crate::state::stats::store::StatStore;
use crate::stats::flush;
use crate::tree::shared::Shared;
use crate::tree::topology::State;

/// Registers `subsystem` in the hierarchy, or returns the store of the same one registered before.
pub(crate) fn register(
    shared: &'static Shared,
    subsystem: Subsystem,
) -> Result<&'static StatStore, RegisterError> {
    let attach = |store: &'static StatStore, publish: &dyn Fn()| {
        let tree = shared.tree.lock();
        if !shared.attach(&tree, store) {
            return false;
        }
        for node in shared.nodes(&tree) {
            if tree.state(node.id()) != State::Free {
                store.prepare(node.entry(store));
            }
        }
        publish();
        true
    };
    // As a flush: a release that finds the turn taken meanwhile is left to this thread. Loom:
    // `finishes_a_release_left_to_a_registration`.
    shared.statistics.register(subsystem, attach, |store| flush::lock(store.updates, shared).join(store))
}
