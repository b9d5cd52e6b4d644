//! Shared: the data of one hierarchy, and the table of its nodes. See
//! [`guide::lifetime`](crate::guide::lifetime).
//!
//! A `Shared` is made once and never freed, so that a charge, a handle and a thread's scope can
//! point to their node without a reference count. When the last handle of a hierarchy is gone and
//! its last byte is released, the `Shared` waits in a pool for the next hierarchy of the same
//! shape, which may have other settings, but must have the same slots and the same size of tables.
//! So, for each shape, a process keeps at most a few more than it ever had at one time, without
//! their nodes and with little per-CPU memory (`control::release`, `lifecycle::maintenance`).
//!
//! Nodes come in chunks of `CHUNK` places, whose addresses stay valid after a chunk was given back
//! (`memgroup_sync::Chunk`). A chunk is given back when all its places are free and have given up
//! their records, and a grace period has passed. A thread that is late finds erased nodes.
//!
//! - I1. A node does not move while its place has a group. Its place in the table is its `NodeId`.
//! - I2. `handles` counts every `Hierarchy` and every `Group`. When it reaches zero, all groups
//!   are removed, and those with charged bytes stay dying until the bytes are gone.
//! - I3. A chunk is erased after a grace period that began after it left the table, when every
//!   flush that began before is over, and when no node of it has a handle. Nodes that ever had a
//!   part for walks of shrinkers or for kill hooks are erased when no group is left.
//! - E1. Lock order: the turn to flush one subsystem's statistics, then the tree lock, then the
//!   pool or the queue of waiting charges, then the list of all waits. A thread that has a turn or
//!   holds the tree lock may take another turn only if that is free. No foreign code and no I/O
//!   runs under the tree lock, so a thread that waits for it waits only for bounded steps of the
//!   engine.
//! - E2. Last uncharge → erasure: the thread that takes the last bytes pins the node in the
//!   section in which it took them (`control::aftermath`). Loom:
//!   `a_node_is_there_until_the_aftermath_is_over`.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Instant;

use memgroup_percpu::{SlotSource, Words};
use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use memgroup_sync::grace::{DeferredFree, Limbo};
use memgroup_sync::{AtomicRef, CachePadded, Chunk, ChunkPool, FixedU64, Mutex, MutexGuard, RetiredChunk};

use crate::base::id::{GroupId, NodeId};
use crate::base::mutation::{self, Mutation};
use crate::base::process;
use crate::state::budget::Budget;
use crate::state::config::{CHUNK, Config, ConfigError, Shape};
use crate::state::settings::Settings;
use crate::state::stats::registry::Registry;
use crate::state::stats::store::{StatStore, ValuesChunk};
use crate::state::stock_word::LARGEST_CAP;
use crate::tree::node::{CHUNK_NODES, MoreEntries, Node, NodeChunk, RareWords, STATS_WITHIN};
use crate::tree::parts::{HierarchyParts, NodeParts, PlaceParts};
use crate::tree::topology::{ROOT, State, Tree};

/// The memory of nodes, of all hierarchies.
static NODES: ChunkPool<Node> = ChunkPool::new(CHUNK_NODES);
/// The memory of their rare words, which most groups never touch.
static RARE: ChunkPool<RareWords> = ChunkPool::new(CHUNK_NODES);
/// The memory of their entries in the stores of further subsystems.
static ENTRIES: ChunkPool<MoreEntries> = ChunkPool::new(CHUNK_NODES);

/// The memory of one hierarchy's nodes, and the traces of those that were given back.
struct OwnedNodes {
    chunks: BTreeMap<u32, Places>,
    /// Chunks that were taken out of the table, until a grace period has passed.
    limbo: Limbo<RetiredPlaces>,
    /// Parts that went with their nodes, until a grace period has passed.
    parts: DeferredFree<NodeParts>,
    /// Parts that stay with places without a node.
    kept: BTreeMap<NodeId, &'static PlaceParts>,
    /// What a chunk of places has already, if the system refused the rest of its memory.
    spare: Spare,
}

/// Parts of the memory of a chunk of places. A part without an owner would be lost, so they are
/// kept for the next chunk that is made.
#[derive(Default)]
struct Spare {
    nodes: Option<NodeChunk>,
    rare: Option<Chunk<RareWords>>,
    entries: Option<Chunk<MoreEntries>>,
}

/// The memory of one chunk of places: their nodes, and their flushed values in each store. The
/// system backs all but the nodes when they are first written to.
struct Places {
    nodes: NodeChunk,
    rare: Chunk<RareWords>,
    entries: Chunk<MoreEntries>,
    values: Vec<ValuesChunk>,
}

impl OwnedNodes {
    /// Erases places that left the table, after a grace period.
    fn retire(&mut self, number: u32, places: Places) {
        self.hold_back(places.retire(number));
    }

    /// Keeps places for one more grace period.
    fn hold_back(&mut self, places: RetiredPlaces) {
        let refused = self.limbo.retire(places, NODES.chunk_bytes());
        assert!(refused.is_ok(), "the limbo of nodes has no bound");
    }
}

/// Places without groups, to be erased after a grace period.
struct RetiredPlaces {
    /// The number of their chunk.
    number: u32,
    nodes: RetiredChunk<Node>,
    _rare: RetiredChunk<RareWords>,
    _entries: RetiredChunk<MoreEntries>,
    _values: Vec<RetiredChunk<AtomicU64>>,
}

impl Spare {
    /// Takes places without values; `None` if the system refuses memory.
    fn take_places(&mut self) -> Option<Places> {
        let nodes = self.nodes.take().or_else(|| NODES.take());
        let rare = self.rare.take().or_else(|| RARE.take());
        let entries = self.entries.take().or_else(|| ENTRIES.take());
        match (nodes, rare, entries) {
            (Some(nodes), Some(rare), Some(entries)) => {
                Some(Places { nodes, rare, entries, values: Vec::new() })
            }
            (nodes, rare, entries) => {
                *self = Spare { nodes, rare, entries };
                None
            }
        }
    }
}

/// Takes flushed values for a chunk of nodes in each store; `None` if the system refuses memory.
fn take_values(
    stores: impl Iterator<Item = &'static StatStore> + Clone,
) -> Option<Vec<(&'static StatStore, ValuesChunk)>> {
    let count = stores.clone().count();
    let taken: Vec<_> = stores.map_while(|store| Some((store, store.take_values()?))).collect();
    if taken.len() < count {
        taken.into_iter().for_each(|(store, values)| store.put_back(values));
        return None;
    }
    Some(taken)
}

impl Places {
    /// Gives each node below `end` its entry in the store of these values.
    fn attach(&mut self, first: u32, end: u32, store: &'static StatStore, values: ValuesChunk) {
        for (place, _) in (0..CHUNK_NODES).zip(first..end) {
            let (node, number) = (&self.nodes.cells()[place], first + place as u32);
            match node.stats.get(store.number) {
                Some(entry) => store.attach(entry, number, &self.nodes, &values),
                None => {
                    let entry = &self.entries.cells()[place].entries[store.number - STATS_WITHIN];
                    store.attach(entry, number, &self.entries, &values);
                }
            }
        }
        self.values.push(values);
    }

    fn retire(self, number: u32) -> RetiredPlaces {
        let values = self.values.into_iter().map(Chunk::retire).collect();
        RetiredPlaces {
            number,
            nodes: self.nodes.retire(),
            _rare: self.rare.retire(),
            _entries: self.entries.retire(),
            _values: values,
        }
    }
}

/// Two levels share their locks if their numbers differ by a multiple of this. No thread holds two
/// locks of one kind.
const LEVEL_LOCKS: usize = if cfg!(memgroup_loom) { 4 } else { 64 };

#[derive(Default)]
#[repr(align(64))]
struct LevelLocks {
    holders: Mutex<()>,
    changes: Mutex<()>,
    stalls: Mutex<()>,
}

/// The stock of one group may take up one part in this many of a slot's budget, for charges that
/// are larger than most.
const BUDGET_PARTS: u64 = 4;

/// One hierarchy.
pub(crate) struct Shared {
    /// The settings of its user.
    pub(crate) config: Settings,
    pub(crate) shape: Shape,
    pub(crate) source: SlotSource,
    stock_cap_max: FixedU64,
    /// Whether charges bypass all stocks, because failures are injected.
    bypasses_stocks: AtomicBool,
    pub(crate) budget: Budget,
    /// The stock words of all places.
    pub(crate) stocks: Words,
    pub(crate) tree: Mutex<Tree>,
    /// The statistics of all groups.
    pub(crate) statistics: Registry,
    /// Set as soon as a group has had a `high`. It stays set even if the hierarchy is used again.
    pub(crate) highs: OnceLock<()>,
    /// The state that the layers above keep for the hierarchy.
    pub(crate) parts: HierarchyParts,
    /// The zero of the hierarchy's clock.
    began: Instant,
    /// The nodes of each chunk of places; none if no place of the chunk has a group or a record.
    chunks: Box<[AtomicRef<[Node; CHUNK_NODES]>]>,
    /// The memory of those nodes. A thread that holds this lock takes no other lock of the engine.
    owned: Mutex<OwnedNodes>,
    /// A lock for the lists of holders of each few groups (`tree::holders`), and one for the
    /// changes of each few levels.
    level_locks: [LevelLocks; LEVEL_LOCKS],
    /// Stalls that are on. In a line of its own, because each change of scope reads it.
    pub(crate) stalls: CachePadded<AtomicU32>,
    /// Held while a group gets its first part.
    pub(crate) making_parts: Mutex<()>,
    /// The number of walks through lists of holders so far.
    walks: AtomicU32,
    places: AtomicU32,
    handles: AtomicU64,
    /// The number of forks when it was made, or was last used again.
    forks: std::sync::atomic::AtomicU32,
}

impl Shared {
    /// Makes a hierarchy without a group. The caller must make its parts, and has checked
    /// `config`.
    pub(crate) fn new(config: Config) -> Result<Shared, ConfigError> {
        if config.scope_time_of > 0 {
            memgroup_sync::ticks::prepare();
        }
        Ok(Shared {
            config: Settings::new(&config),
            shape: config.shape(),
            source: config.source,
            stock_cap_max: FixedU64::new(config.stock_cap()),
            bypasses_stocks: AtomicBool::new(false),
            budget: Budget::new(config.source.slots(), config.stock_budget_bytes),
            stocks: Words::new(config.source.slots()),
            tree: Mutex::new(Tree::new(config.groups_max, config.depth_max)),
            statistics: Registry::new(&config)?,
            highs: OnceLock::new(),
            parts: HierarchyParts::new(),
            began: Instant::now(),
            chunks: (0..config.shape().places.div_ceil(CHUNK)).map(|_| AtomicRef::none()).collect(),
            owned: Mutex::new(OwnedNodes {
                chunks: BTreeMap::new(),
                limbo: Limbo::new(usize::MAX),
                parts: DeferredFree::new(),
                kept: BTreeMap::new(),
                spare: Spare::default(),
            }),
            level_locks: std::array::from_fn(|_| LevelLocks::default()),
            stalls: CachePadded::new(AtomicU32::new(0)),
            making_parts: Mutex::new(()),
            walks: AtomicU32::new(0),
            places: AtomicU32::new(0),
            handles: AtomicU64::new(0),
            forks: std::sync::atomic::AtomicU32::new(process::forks()),
        })
    }

    /// Makes a hierarchy that has no user one with this configuration, which has the same shape.
    /// The caller has taken it out of the pool.
    pub(crate) fn take_over(&self, config: &Config) {
        debug_assert!(self.shape == config.shape());
        if config.scope_time_of > 0 {
            memgroup_sync::ticks::prepare();
        }
        self.config.replace(config);
        self.stock_cap_max.set(config.stock_cap());
        self.budget.set_limit(config.stock_budget_bytes);
        self.tree.lock().set_bounds_of_all(config.groups_max, config.depth_max);
        self.statistics.forget(config);
        self.parts.reset();
    }

    /// Returns the largest cap of a stock that serves charges of usual sizes.
    pub(crate) fn stock_cap_max(&self) -> u64 {
        self.stock_cap_max.get()
    }

    /// Returns the largest charge that a stock serves. For such charges, a stock may have a larger
    /// cap than others.
    pub(crate) fn stock_charge_max(&self) -> u64 {
        let cap_max = self.stock_cap_max();
        if cap_max == 0 || self.bypasses_stocks() {
            return 0;
        }
        let share = (self.config.stock_budget_bytes() / BUDGET_PARTS).max(1);
        (1 << share.ilog2()).min(LARGEST_CAP).max(cap_max) / 2
    }

    /// Returns whether charges bypass all stocks.
    #[inline]
    pub(crate) fn bypasses_stocks(&self) -> bool {
        // ORDERING: Relaxed; a charge that began before the change may miss it.
        self.bypasses_stocks.load(Ordering::Relaxed)
    }

    /// Has the charges of all groups bypass their stocks, or no longer.
    pub(crate) fn bypass_stocks(&'static self, tree: &Tree, is_on: bool) {
        // ORDERING: Relaxed; as in `bypasses_stocks`.
        self.bypasses_stocks.store(is_on, Ordering::Relaxed);
        tree.subtree(ROOT).for_each(|id| self.made(id).use_stock());
    }

    pub(crate) fn has_stock(&self) -> bool {
        self.stock_cap_max() > 0
    }

    /// Returns the node at a place, if there is one.
    #[inline]
    pub(crate) fn node(&'static self, id: NodeId) -> Option<&'static Node> {
        // ORDERING: Acquire pairs with the Release in `make_chunk`: a thread that finds the node
        // finds it initialised.
        let chunk = self.chunks.get((id.0 / CHUNK) as usize)?.load(Ordering::Acquire)?;
        Some(&chunk[(id.0 % CHUNK) as usize])
    }

    /// Returns the nodes of all places, including free ones. The borrow of the tree proves that
    /// its lock is held.
    pub(crate) fn nodes(&'static self, tree: &Tree) -> impl Iterator<Item = &'static Node> {
        (0..tree.places()).filter_map(|at| self.node(NodeId(at)))
    }

    /// Gives each node, including those of free places, an entry in the statistics of one more
    /// subsystem. The borrow of the tree proves that its lock is held. Returns `false` if the
    /// system refuses memory.
    pub(crate) fn attach(&self, _tree: &Tree, store: &'static StatStore) -> bool {
        let mut owned = self.owned.lock();
        let Some(taken) = take_values(std::iter::repeat_n(store, owned.chunks.len())) else { return false };
        for ((&number, places), (store, values)) in owned.chunks.iter_mut().zip(taken) {
            places.attach(number * CHUNK, self.shape.places, store, values);
        }
        true
    }

    /// Returns a number for a walk through lists of holders, which is not 0.
    pub(crate) fn next_walk(&self) -> u32 {
        // ORDERING: Relaxed, because the number publishes nothing.
        self.walks.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1)
    }

    /// Takes the lock of a level's list of holders. A thread that holds it takes no other lock.
    pub(crate) fn holder_lock(&self, level: NodeId) -> MutexGuard<'_, ()> {
        self.level_locks[level.0 as usize % LEVEL_LOCKS].holders.lock()
    }

    /// Takes the lock under which a level's limit and OVER mark change, and its subtree is frozen.
    pub(crate) fn level_lock(&self, level: NodeId) -> MutexGuard<'_, ()> {
        self.level_locks[level.0 as usize % LEVEL_LOCKS].changes.lock()
    }

    /// Takes the lock of a level's stalls. A thread that holds it takes no other lock.
    pub(crate) fn stall_lock(&self, level: NodeId) -> MutexGuard<'_, ()> {
        self.level_locks[level.0 as usize % LEVEL_LOCKS].stalls.lock()
    }

    /// Makes the hierarchy, which has no user yet, belong to this process.
    pub(crate) fn belong_here(&self) {
        // ORDERING: Relaxed, because the first handle publishes it.
        self.forks.store(process::forks(), Ordering::Relaxed);
    }

    /// Returns whether this process got the hierarchy by a fork. Its locks may never be released
    /// then.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        // ORDERING: Relaxed, because it was stored before there was a handle.
        self.forks.load(Ordering::Relaxed) != process::forks()
    }

    /// Returns the time on the hierarchy's clock, in nanoseconds.
    pub(crate) fn nanos(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    pub(crate) fn root(&'static self) -> &'static Node {
        self.made(ROOT)
    }

    /// Returns the node of a place that the tree gave out.
    pub(crate) fn made(&'static self, id: NodeId) -> &'static Node {
        self.node(id).expect("a place the tree gave out has a node")
    }

    /// Returns the number of places that have had a group so far.
    pub(crate) fn places(&self) -> u32 {
        // ORDERING: Relaxed, here and where it is stored under the tree lock, because it is a bound
        // for the budget's clock hand, which checks again.
        self.places.load(Ordering::Relaxed)
    }

    /// Returns the node of the group with this id, while it is online or dying. The borrow of the
    /// tree proves that its lock is held.
    pub(crate) fn find(&'static self, tree: &Tree, id: GroupId) -> Option<&'static Node> {
        let at = NodeId(id.node());
        let is_free = at.0 >= tree.places() || tree.state(at) == State::Free;
        self.node(at).filter(|node| !is_free && node.generation() == id.generation())
    }

    /// Returns the path of the group with this id, while it is online or dying.
    pub(crate) fn path_of(&'static self, id: GroupId) -> Option<String> {
        let tree = self.tree.lock();
        self.find(&tree, id).map(|node| tree.path(node.id()))
    }

    /// Counts one more `Hierarchy` or `Group`.
    pub(crate) fn hold(&self) {
        // ORDERING: Relaxed, because the caller already has a handle, or a charge with bytes.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the nodes of the chunk in which `id` is, if there are none. Returns `false` if the
    /// system refuses memory.
    pub(crate) fn make_place(&'static self, tree: &Tree, id: NodeId) -> bool {
        self.places.store(tree.places(), Ordering::Relaxed);
        self.node(id).is_some() || self.make_chunk(id.0 / CHUNK)
    }

    #[cold]
    fn make_chunk(&'static self, number: u32) -> bool {
        let mut owned = self.owned.lock();
        let first = number * CHUNK;
        if self.stocks.reserve(first).is_err() {
            return false;
        }
        let values = take_values(self.statistics.stores());
        let places = values.as_ref().and_then(|_| owned.spare.take_places());
        let Some(mut places) = places else {
            self.stocks.release(first);
            values.into_iter().flatten().for_each(|(store, values)| store.put_back(values));
            return false;
        };
        let nodes = places.nodes.cells();
        for (at, node) in (first..self.shape.places).zip(nodes) {
            let place = (at % CHUNK) as usize;
            let (rare, entries) = (&places.rare.cells()[place], &places.entries.cells()[place]);
            node.init(self, NodeId(at), rare, entries);
            if let Some(kept) = owned.kept.remove(&NodeId(at)) {
                node.keep_parts(kept);
            }
        }
        for (store, values) in values.into_iter().flatten() {
            places.attach(first, self.shape.places, store, values);
        }
        // ORDERING: Release pairs with the Acquire in `node`.
        self.chunks[number as usize].store(nodes.first_chunk(), Ordering::Release);
        owned.chunks.insert(number, places);
        true
    }

    /// Gives the parts of a free place back. The caller must hold the tree lock.
    pub(crate) fn free_parts(&self, node: &'static Node) {
        if let Some(parts) = node.withdraw_parts() {
            self.owned.lock().parts.retire(parts, size_of::<NodeParts>());
        }
    }

    /// Gives the nodes of a chunk back, after a grace period. All its places must be free and have
    /// given up their records, and the caller must hold the tree lock.
    ///
    /// A walk of shrinkers may have reached a node without holding it. So nodes that ever had a
    /// part for walks stay until no group is left.
    pub(crate) fn free_chunk(&self, tree: &Tree, number: u32) {
        let mut owned = self.owned.lock();
        let kept = |places: &Places| places.nodes.cells().iter().any(|node| node.kept_parts().is_some());
        if owned.chunks.get(&number).is_none_or(|places| tree.in_use() > 0 && kept(places)) {
            return;
        }
        let Some(places) = owned.chunks.remove(&number) else { return };
        // ORDERING: Release, because the uses of the nodes under the tree lock come before. Threads
        // that found the chunk may still read it.
        self.chunks[number as usize].store(None, Ordering::Release);
        for (at, node) in (number * CHUNK..).zip(places.nodes.cells()) {
            if let Some(kept) = node.kept_parts() {
                owned.kept.insert(NodeId(at), kept);
            }
        }
        owned.retire(number, places);
    }

    /// Gives all nodes back, after a grace period. The caller must hold the tree lock, and no
    /// group may be left.
    pub(crate) fn free_all_chunks(&self, tree: &mut Tree) {
        debug_assert!(tree.kept() == 0, "places have records, which would be lost");
        let numbers: Vec<u32> = self.owned.lock().chunks.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.free_chunk(tree, number));
        tree.forget_places();
        self.places.store(tree.places(), Ordering::Relaxed);
    }

    /// Returns whether nodes or parts wait for a grace period.
    pub(crate) fn has_limbo(&self) -> bool {
        let owned = self.owned.lock();
        !owned.limbo.is_empty() || !owned.parts.is_empty()
    }

    /// Returns the bytes of nodes and parts that wait for a grace period.
    pub(crate) fn limbo_bytes(&self) -> u64 {
        let owned = self.owned.lock();
        (owned.limbo.bytes() + owned.parts.bytes()) as u64
    }

    /// Gives back the memory of nodes and parts whose grace period is over: at most `most` chunks
    /// of nodes, and at most one part for each node of so many chunks. Returns the bytes of
    /// nodes.
    ///
    /// A piece of a flush may refer to nodes that no group holds. `flushes_ended` returns whether
    /// all pieces that run when it is called have ended; it may wait for them.
    pub(crate) fn reclaim_nodes(&self, most: usize, flushes_ended: impl FnOnce() -> bool) -> u64 {
        let mut done = Vec::new();
        let mut owned = self.owned.lock();
        owned.parts.reclaim_some(most.saturating_mul(CHUNK_NODES));
        owned.limbo.reclaim_some(most, |places| done.push(places));
        drop(owned);
        if done.is_empty() {
            return 0;
        }
        let has_ended = flushes_ended();
        // A thread that uncharged may pin a node of a released group for the aftermath (E2).
        let is_held = |places: &RetiredPlaces| places.nodes.cells().iter().any(Node::is_pinned);
        let stays =
            |places: &_| !has_ended || is_held(places) && !mutation::active(Mutation::ErasesHeldNodes);
        let (stay, go): (Vec<_>, Vec<_>) = done.into_iter().partition(stays);
        let mut owned = self.owned.lock();
        stay.into_iter().for_each(|places| owned.hold_back(places));
        drop(owned);
        // The pages of the others go back to the system while no lock is held.
        go.iter().for_each(|places| self.stocks.release(places.number * CHUNK));
        (go.len() * NODES.chunk_bytes()) as u64
    }

    /// Returns the bytes of all nodes that there are now.
    pub(crate) fn nodes_bytes(&self) -> usize {
        self.owned.lock().chunks.len() * NODES.chunk_bytes()
    }

    /// Gives back a `Hierarchy` or a `Group`. Returns whether it was the last.
    pub(crate) fn let_go_one(&self) -> bool {
        // ORDERING: AcqRel pairs with itself: the uses of all handles come before the end that the
        // last one starts.
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Returns whether no handle is left now.
    pub(crate) fn is_without_handles(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `let_go_one`.
        self.handles.load(Ordering::Acquire) == 0
    }
}
