//! Shared: the data of one hierarchy, and the table of its nodes. See [`guide::lifetime`](crate::guide::lifetime).
//!
//! A `Shared` is made once and never freed, so that a charge, a handle and a thread's scope can point to their node without a
//! reference count. When the last handle of a hierarchy is gone and the last byte released, it waits in a pool for the
//! next hierarchy of the same configuration. So a process keeps at most as many as it had at one time of each configuration, with their
//! nodes and little per-CPU memory (`lifecycle::maintenance`).
//!
//! - I1. A node's address never changes; its place in the table is its `NodeId`.
//! - I2. `handles` counts every `Hierarchy` and every `Group`. At zero all groups are removed; bytes still charged keep
//!   them dying.
//! - E1. Lock order: the turn to flush one subsystem's statistics, then their layout, then the tree lock, then the pool or the
//!   queue of waiting charges, then the list of all waits. A thread that holds the tree lock takes the layout only if it is free. No foreign
//!   code and no I/O runs under the tree lock, so a thread that waits for it waits for bounded steps of the engine only.

use std::sync::OnceLock;
use std::time::Instant;

use memgroup_percpu::SlotSource;
use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use memgroup_sync::{Mutex, RwLock};

use crate::base::id::{GroupId, NodeId};
use crate::state::budget::Budget;
use crate::state::config::{CHUNK, Config, ConfigError};
use crate::state::memory::Memory;
use crate::state::stats::registry::Registry;
use crate::tree::node::Node;
use crate::tree::parts::Parts;
use crate::tree::topology::{ROOT, State, Tree};

/// One hierarchy.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) source: SlotSource,
    pub(crate) stock_cap_max: u64,
    pub(crate) budget: Budget,
    pub(crate) memory: Memory,
    pub(crate) tree: Mutex<Tree>,
    /// The statistics of all groups.
    pub(crate) statistics: Registry,
    /// Set once some group has had a `high`; never unset, also where the hierarchy is used again.
    pub(crate) highs: OnceLock<()>,
    /// Which groups have statistics, and where: held for reading by a flush, and alone by a thread that moves or settles them.
    pub(crate) layout: RwLock<()>,
    /// Releases were left to the thread that holds the layout.
    pub(crate) unsettled: AtomicBool,
    /// The state that the layers above keep for the hierarchy.
    pub(crate) parts: Parts,
    /// The beginning of the hierarchy's clock.
    began: Instant,
    chunks: Box<[OnceLock<Box<[Node]>>]>,
    places: AtomicU32,
    handles: AtomicU64,
}

impl Shared {
    /// One without a group. The caller makes its parts. `config` is checked.
    pub(crate) fn new(config: Config) -> Result<Shared, ConfigError> {
        if config.scope_time {
            memgroup_sync::ticks::prepare();
        }
        Ok(Shared {
            config,
            source: config.source,
            stock_cap_max: config.stock_cap(),
            budget: Budget::new(config.source.slots(), config.stock_budget_bytes)?,
            memory: Memory::new(&config)?,
            tree: Mutex::new(Tree::new(config.groups_max, config.depth_max)),
            statistics: Registry::new(&config)?,
            highs: OnceLock::new(),
            layout: RwLock::new(()),
            unsettled: AtomicBool::new(false),
            parts: Parts::new(),
            began: Instant::now(),
            chunks: (0..config.groups_max.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            places: AtomicU32::new(0),
            handles: AtomicU64::new(0),
        })
    }

    pub(crate) fn has_stock(&self) -> bool {
        self.stock_cap_max > 0
    }

    /// The node at a place; `None` where none was ever made.
    #[inline]
    pub(crate) fn node(&'static self, id: NodeId) -> Option<&'static Node> {
        self.chunks.get((id.0 / CHUNK) as usize)?.get()?.get((id.0 % CHUNK) as usize)
    }

    /// All nodes there are, those of free places too; the borrow of the tree is the proof of its lock.
    pub(crate) fn nodes(&'static self, _tree: &Tree) -> impl Iterator<Item = &'static Node> {
        self.chunks.iter().filter_map(OnceLock::get).flatten()
    }

    /// Nanoseconds on the hierarchy's clock.
    pub(crate) fn nanos(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    pub(crate) fn root(&'static self) -> &'static Node {
        self.made(ROOT)
    }

    /// The node of a place that the tree gave out.
    pub(crate) fn made(&'static self, id: NodeId) -> &'static Node {
        self.node(id).expect("a place the tree gave out has a node")
    }

    /// Places that have had a group so far.
    pub(crate) fn places(&self) -> u32 {
        // ORDERING: Relaxed; a bound for the budget's clock hand, which checks again.
        self.places.load(Ordering::Relaxed)
    }

    /// The nodes of `top` and of all online groups below it; the borrow of the tree is the proof of its lock.
    pub(crate) fn subtree(
        &'static self,
        tree: &Tree,
        top: &'static Node,
    ) -> impl Iterator<Item = &'static Node> {
        tree.subtree(top.id).filter_map(|id| self.node(id))
    }

    /// The nodes with charges that count in `top`: its subtree; for a root that is left unaccounted,
    /// itself.
    pub(crate) fn counted_in(
        &'static self,
        tree: &Tree,
        top: &'static Node,
    ) -> impl Iterator<Item = &'static Node> {
        let alone = top.id == ROOT && !self.config.account_root;
        self.subtree(tree, top).take(if alone { 1 } else { usize::MAX })
    }

    /// The node of the group with this id, while it is online or dying. The borrow of the tree is the proof of its lock.
    pub(crate) fn find(&'static self, tree: &Tree, id: GroupId) -> Option<&'static Node> {
        let node = NodeId(id.node());
        let is_free = node.0 >= tree.places() || tree.state(node) == State::Free;
        self.node(node).filter(|node| !is_free && node.generation() == id.generation())
    }

    /// The path of the group with this id, while it is online or dying.
    pub(crate) fn path_of(&'static self, id: GroupId) -> Option<String> {
        let tree = self.tree.lock();
        self.find(&tree, id).map(|node| tree.path(node.id))
    }

    /// Counts one more `Hierarchy` or `Group`.
    pub(crate) fn hold(&self) {
        // ORDERING: Relaxed; the holder has a handle, or a charge with bytes, already.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the nodes of the chunk in which `id` is, if there are none; `made` completes each.
    pub(crate) fn make_place(&'static self, tree: &Tree, id: NodeId, made: impl Fn(&Node)) {
        self.chunks[(id.0 / CHUNK) as usize].get_or_init(|| {
            let first = id.0 / CHUNK * CHUNK;
            // The last chunk ends where the places do: there are no marks beyond.
            let end = (first + CHUNK).min(self.config.groups_max);
            (first..end).map(|at| Node::new(self, NodeId(at))).inspect(made).collect()
        });
        // ORDERING: Relaxed, as in `places`; written under the tree lock only.
        self.places.store(tree.places(), Ordering::Relaxed);
    }

    /// Gives back a `Hierarchy` or a `Group`; whether it was the last.
    pub(crate) fn let_go_one(&self) -> bool {
        // ORDERING: AcqRel; the uses of all handles precede the end that the last one starts.
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether no handle is left now.
    pub(crate) fn is_without_handles(&self) -> bool {
        // ORDERING: Acquire; pairs with `let_go_one`.
        self.handles.load(Ordering::Acquire) == 0
    }
}
