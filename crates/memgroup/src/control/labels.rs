//! Labels: the bytes of a group by their purpose.

use std::sync::OnceLock;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{CachePadded, Mutex};

use crate::tree::node::Node;
use crate::tree::parts::{Key, Part};

/// The most labels of one group.
pub const LABELS_MAX: usize = 16;

/// The labels of one group, made with its first.
pub(crate) struct Labels {
    pub(crate) made: OnceLock<Box<Made>>,
}

pub(crate) struct Made {
    pub(crate) names: Mutex<Vec<String>>,
    pub(crate) bytes: [CachePadded<AtomicU64>; LABELS_MAX],
}

impl Labels {
    pub(crate) fn new() -> Labels {
        Labels { made: OnceLock::new() }
    }

    pub(crate) fn make(&self) -> &Made {
        self.made.get_or_init(|| {
            let bytes = std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0)));
            Box::new(Made { names: Mutex::new(Vec::new()), bytes })
        })
    }

    /// The labels with their bytes, in the order in which they were made.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let Some(made) = self.made.get() else { return Vec::new() };
        let names = made.names.lock().clone();
        // ORDERING: Relaxed; a report.
        names
            .into_iter()
            .zip(&made.bytes)
            .map(|(name, bytes)| (name, bytes.load(Ordering::Relaxed)))
            .collect()
    }
}

impl Part for Labels {
    /// For a new group in the node.
    fn reset(&self) {
        if let Some(made) = self.made.get() {
            made.names.lock().clear();
        }
    }
}

pub(crate) static LABELS: Key<Labels> = Key::new(7, Labels::new);

impl Node {
    /// The labels of the group.
    pub(crate) fn labels(&self) -> &Labels {
        self.parts.get(&LABELS)
    }
}
