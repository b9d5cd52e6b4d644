//! Registration of a subsystem, at any time: every group that exists gets an entry in its store.

use crate::state::stats::stat::{RegisterError, Subsystem};
use crate::state::stats::store::StatStore;
use crate::tree::shared::Shared;
use crate::tree::topology::State;

/// Registers `subsystem` in the hierarchy, or returns the store of the same one registered before.
pub(crate) fn register(
    shared: &'static Shared,
    subsystem: Subsystem,
) -> Result<&'static StatStore, RegisterError> {
    shared.statistics.register(subsystem, |store, publish| {
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
    })
}
