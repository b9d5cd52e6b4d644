//! Labels: the bytes of a group by their purpose.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::grace::Lent;
use memgroup_sync::{CachePadded, Mutex};

use crate::tree::node::Node;
use crate::tree::parts::{Key, Part};

/// The most labels of one group.
pub const LABELS_MAX: usize = 16;

/// The labels of one group.
pub(crate) struct Labels {
    pub(crate) names: Mutex<Vec<String>>,
    pub(crate) bytes: [CachePadded<AtomicU64>; LABELS_MAX],
}

impl Labels {
    fn new() -> Labels {
        let bytes = std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0)));
        Labels { names: Mutex::new(Vec::new()), bytes }
    }

    fn list(&self) -> Vec<(String, u64)> {
        let names = self.names.lock().clone();
        // ORDERING: Relaxed; a report.
        names
            .into_iter()
            .zip(&self.bytes)
            .map(|(name, bytes)| (name, bytes.load(Ordering::Relaxed)))
            .collect()
    }
}

impl Part for Labels {
    /// For a new group in the node.
    fn reset(&self) {
        self.names.lock().clear();
    }
}

static LABELS: Key<Labels> = Key::new(7, Labels::new);

impl Node {
    /// The group's labels with their bytes, in the order in which they were made.
    pub(crate) fn list_labels(&self) -> Vec<(String, u64)> {
        self.find_part(&LABELS).map_or_else(Vec::new, |labels| labels.list())
    }

    /// The labels of the group.
    pub(crate) fn labels(&self) -> Lent<'_, Labels> {
        self.part(&LABELS)
    }
}
