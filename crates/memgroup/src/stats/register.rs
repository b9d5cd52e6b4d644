//! Registration of a subsystem, at any time: every group that exists gets an entry in its store.

use crate::base::id::NodeId;
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
        for node in shared.nodes(&tree) {
            store.attach(&node.stats[store.number], node.id().0);
        }
        for node in (0..tree.places()).filter_map(|at| shared.node(NodeId(at))) {
            if tree.state(node.id()) != State::Free {
                store.prepare(node.entry(store));
            }
        }
        publish();
    })
}
