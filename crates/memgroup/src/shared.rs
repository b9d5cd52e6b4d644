#![doc = include_str!("../docs/lifetime.md")]
//!
//! # Shared
//!
//! Shared: what all groups of one hierarchy have in common, and the table of their nodes.
//!
//! A `Shared` is made once and never freed, so that a charge, a handle and a thread's scope can point to their node without a
//! reference count. When the last handle of a hierarchy is gone and the last byte released, it waits in a pool for the
//! next hierarchy of the same configuration; what a process keeps is bounded by the hierarchies it had at
//! one time of each configuration, and of each of them the nodes and little per-CPU memory (`maintenance`).
//!
//! - I1. A node's address never changes; its place in the table is its `GroupId`.
//! - I2. `handles` counts every `Hierarchy` and every `Group`. At zero all groups are removed; what is still charged keeps
//!   them dying until it is released.
//! - E1. Lock order: the turn to flush one subsystem's statistics, then their layout, then the tree lock, then the pool's or the
//!   line of those that wait for room, then the list of all waits, then nothing; who
//!   holds the tree lock takes the layout only if it is free. No user's code runs under it, and no I/O: who waits for it, a refused charge
//!   inside somebody's allocator too, waits for bounded steps of the engine only.

use std::sync::OnceLock;
use std::time::Instant;

use memgroup_percpu::SlotSource;
use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use memgroup_sync::{Mutex, RwLock};

use crate::config::{Config, ConfigError};
use crate::error::GroupError;
use crate::event::watch::{self, Watch};
use crate::group::GroupId;
use crate::maintenance::{self, Maintained};
use crate::memory::Memory;
use crate::mutation::{self, Mutation};
use crate::node::{Node, TOP};
use crate::oom::Victims;
use crate::pressure;
use crate::protect;
use crate::residence;
use crate::rstat::registry::Registry;
use crate::rstat::settle;
use crate::shrink::{Registry as Shrinkers, roster};
use crate::stock::budget::Budget;
use crate::stock::drain;
use crate::tree::{ROOT, State, Tree};
use crate::wait::{self, Waits};

#[cfg(not(memgroup_loom))]
const CHUNK: u32 = 64;
#[cfg(memgroup_loom)]
const CHUNK: u32 = 4;

/// Hierarchies that nobody uses any more.
static POOL: std::sync::Mutex<Vec<&'static Shared>> = std::sync::Mutex::new(Vec::new());

/// One hierarchy.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) source: SlotSource,
    pub(crate) stock_cap_max: u64,
    pub(crate) budget: Budget,
    pub(crate) memory: Memory,
    /// Held by whoever does maintenance. No pass of a removal before this moment: a section that does not end held up the last one.
    pub(crate) maintaining: Mutex<Option<Instant>>,
    /// A removal left empty pages to the next one.
    pub(crate) unreturned: AtomicBool,
    /// What all passes did so far. Locked for an addition or a look, under no other lock but `maintaining`.
    pub(crate) maintained: Mutex<Maintained>,
    pub(crate) tree: Mutex<Tree>,
    /// The statistics of all groups.
    pub(crate) statistics: Registry,
    /// Set once some group has had a `high`; never unset, also where the hierarchy is used again.
    pub(crate) highs: OnceLock<()>,
    /// Who waits for events.
    pub(crate) watch: Watch,
    /// What can give memory back.
    pub(crate) shrinkers: Shrinkers,
    /// Who waits, for what.
    pub(crate) waits: Waits,
    /// How many groups are protected.
    pub(crate) protected: protect::Protected,
    /// What can be killed.
    pub(crate) victims: Victims,
    /// Which groups have statistics, and where: held for reading while they are flushed, alone by who moves or settles them.
    pub(crate) layout: RwLock<()>,
    /// Releases were left to whoever holds the layout.
    pub(crate) unsettled: AtomicBool,
    /// The beginning of the hierarchy's clock.
    began: Instant,
    chunks: Box<[OnceLock<Box<[Node]>>]>,
    places: AtomicU32,
    handles: AtomicU64,
}

/// How many hierarchies that have all the stores of subsystems they can have are kept before one is used again: what its next user
/// registers may not fit them.
const FULL_ONES_KEPT: usize = 4;

/// Which hierarchy of the pool is used again: one that has room for any subsystem, else one of those that have none, if they pile up.
fn choose(pool: &[&'static Shared], config: &Config) -> Option<usize> {
    let matching = || pool.iter().enumerate().filter(|(_, shared)| shared.config == *config);
    let with_room = matching().find(|(_, shared)| !shared.statistics.is_full());
    let full = || matching().nth(FULL_ONES_KEPT - 1).and_then(|_| matching().next());
    with_room.or_else(full).map(|(index, _)| index)
}

impl Shared {
    /// A hierarchy with an online root and one handle, from the pool or new. `config` is checked.
    pub(crate) fn obtain(config: Config) -> Result<&'static Shared, ConfigError> {
        let pooled = if cfg!(memgroup_loom) {
            None
        } else {
            let mut pool = POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            choose(&pool, &config).map(|index| pool.swap_remove(index))
        };
        let shared = match pooled {
            Some(shared) => {
                *shared.maintained.lock() = Maintained::default();
                shared.statistics.forget();
                shared.victims.clear();
                shared
            }
            None => memgroup_sync::keep(Box::new(Shared::new(config)?)),
        };
        // Held before the tree lock is free again: a retirement that comes late must see that somebody has it.
        shared.hold();
        let mut tree = shared.tree.lock();
        if tree.state(ROOT) != State::Online {
            tree.revive_root();
        }
        shared.make_place(&tree, ROOT);
        if let Err(refused) = residence::furnish(shared.root()) {
            tree.retire(ROOT);
            // Nobody has had a handle: its release puts the hierarchy into the pool.
            tree.retired = true;
            shared.release_held(&mut tree, ROOT);
            drop(tree);
            shared.let_go();
            return Err(refused.into());
        }
        shared.root().adopt(TOP, TOP, 0);
        shared.root().entries().for_each(|entry| entry.store.expect(&tree, entry));
        drop(tree);
        Ok(shared)
    }

    fn new(config: Config) -> Result<Shared, ConfigError> {
        if config.scope_time {
            memgroup_sync::ticks::prepare();
        }
        Ok(Shared {
            config,
            source: config.source,
            stock_cap_max: config.stock_cap(),
            budget: Budget::new(config.source.slots(), config.stock_budget_bytes)?,
            memory: Memory::new(&config)?,
            maintaining: Mutex::new(None),
            unreturned: AtomicBool::new(false),
            maintained: Mutex::new(Maintained::default()),
            tree: Mutex::new(Tree::new(config.groups_max, config.depth_max)),
            statistics: Registry::new(&config)?,
            highs: OnceLock::new(),
            watch: Watch::new(),
            shrinkers: Shrinkers::new(),
            waits: Waits::new(),
            protected: protect::Protected::new(),
            victims: Victims::new(),
            layout: RwLock::new(()),
            unsettled: AtomicBool::new(false),
            began: Instant::now(),
            chunks: (0..config.groups_max.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            places: AtomicU32::new(0),
            handles: AtomicU64::new(0),
        })
    }

    /// Places that nodes can ever be made for: they are made in chunks.
    pub(crate) fn places_max(config: &Config) -> u32 {
        config.groups_max.next_multiple_of(CHUNK)
    }

    pub(crate) fn has_stock(&self) -> bool {
        self.stock_cap_max > 0
    }

    /// The node at a place; `None` where none was ever made.
    #[inline]
    pub(crate) fn node(&'static self, id: GroupId) -> Option<&'static Node> {
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
    fn made(&'static self, id: GroupId) -> &'static Node {
        self.node(id).expect("a place the tree gave out has a node")
    }

    /// Places that have had a group so far.
    pub(crate) fn places(&self) -> u32 {
        // ORDERING: Relaxed; a bound for the budget's clock hand, whose look-ups check again.
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

    /// The nodes whose charges count in `top`: its subtree, but for a root that is left unaccounted, which counts for
    /// itself.
    pub(crate) fn counted_in(
        &'static self,
        tree: &Tree,
        top: &'static Node,
    ) -> impl Iterator<Item = &'static Node> {
        let alone = top.id == ROOT && !self.config.account_root;
        self.subtree(tree, top).take(if alone { 1 } else { usize::MAX })
    }

    fn make_place(&'static self, tree: &Tree, id: GroupId) {
        self.chunks[(id.0 / CHUNK) as usize].get_or_init(|| {
            let first = id.0 / CHUNK * CHUNK;
            // The last chunk ends where the places do: there are no marks beyond.
            let end = (first + CHUNK).min(self.config.groups_max);
            (first..end).map(|at| Node::new(self, GroupId(at))).collect()
        });
        // ORDERING: Relaxed, as in `places`; written under the tree lock only.
        self.places.store(tree.places(), Ordering::Relaxed);
    }

    /// Makes a child of `parent`, with one handle on it.
    pub(crate) fn create(
        &'static self,
        parent: &'static Node,
        name: &str,
    ) -> Result<&'static Node, GroupError> {
        let mut tree = self.tree.lock();
        self.create_held(&mut tree, parent.id, name)
    }

    /// As `create`, by path.
    pub(crate) fn create_path(&'static self, path: &str) -> Result<&'static Node, GroupError> {
        if path == "/" {
            return Err(GroupError::IsRoot);
        }
        let wrong = |reason| GroupError::InvalidPath { path: path.to_owned(), reason };
        let (parent, name) = path.rsplit_once('/').ok_or_else(|| wrong("it does not begin with a slash"))?;
        if parent == "/" {
            return Err(wrong("it has an empty name in it"));
        }
        let mut tree = self.tree.lock();
        let parent = tree.lookup(if parent.is_empty() { "/" } else { parent })?;
        self.create_held(&mut tree, parent, name)
    }

    fn create_held(
        &'static self,
        tree: &mut Tree,
        parent: GroupId,
        name: &str,
    ) -> Result<&'static Node, GroupError> {
        let id = tree.create(parent, name)?;
        self.make_place(tree, id);
        let node = self.made(id);
        if residence::furnish(node).is_err() {
            let path = tree.path(id);
            tree.retire(id);
            tree.release(id);
            return Err(GroupError::OutOfMemory { path, bytes: self.memory.stock_bytes() });
        }
        let up = if parent == ROOT && !self.config.account_root { TOP } else { parent };
        node.adopt(up, parent, tree.depth(id));
        node.entries().for_each(|entry| entry.store.expect(tree, entry));
        self.made(parent).gain_child();
        node.pin();
        Ok(node)
    }

    /// Removes a group: at once if nothing is charged to it, else it is dying until the last byte is released.
    pub(crate) fn remove(&'static self, node: &'static Node) -> Result<(), GroupError> {
        let mut tree = self.tree.lock();
        tree.check_removal(node.id)?;
        self.take_offline(&mut tree, node);
        self.release_held(&mut tree, node.id);
        let due = maintenance::is_due(self, &tree);
        drop(tree);
        if due {
            maintenance::after_removal(self);
        }
        Ok(())
    }

    fn take_offline(&'static self, tree: &mut Tree, node: &'static Node) {
        node.counter.mark_offline();
        wait::removed(node);
        watch::end(node);
        if !mutation::active(Mutation::RemovalLeavesStocksOpen) {
            drain::close(node);
            drain::wait_settled(node);
            drain::retire_caps(node);
        }
        protect::clear(tree, node);
        tree.retire(node.id);
    }

    /// Releases a dying group that holds nothing any more and that nobody has a handle on; else does nothing.
    pub(crate) fn release_if_done(&'static self, node: &'static Node) {
        self.release_held(&mut self.tree.lock(), node.id);
    }

    pub(crate) fn release_held(&'static self, tree: &mut Tree, id: GroupId) {
        let mut next = Some(id);
        while let Some(id) = next {
            let node = self.made(id);
            // In this order: in a dying group usage only falls outside the tree lock, and a handle comes only from another
            // handle or from a charge with bytes (`node` I3). So zero here stays zero.
            let done = matches!(tree.state(id), State::Dying { .. })
                && node.counter.usage() == 0
                && !node.is_pinned();
            if !done || !settle::settle(tree, node) {
                break;
            }
            pressure::release(node);
            next = tree.release(id);
            roster::delist(node);
            node.leave();
            if let Some(parent) = next {
                self.made(parent).lose_child();
            }
        }
        if tree.retired && tree.in_use() == 0 && !cfg!(memgroup_loom) {
            tree.retired = false;
            POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(self);
        }
    }

    /// The path of the group that had this generation of a place, while it is there.
    pub(crate) fn path_of(&'static self, id: GroupId, generation: u32) -> Option<String> {
        let tree = self.tree.lock();
        let here = tree.state(id) != State::Free && self.made(id).generation() == generation;
        here.then(|| tree.path(id))
    }

    /// Counts one more `Hierarchy` or `Group`.
    pub(crate) fn hold(&self) {
        // ORDERING: Relaxed; the holder has a handle, or a charge with bytes, already.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives one back; after the last one nothing can be charged any more, so all groups are removed, and their memory goes.
    pub(crate) fn let_go(&'static self) {
        // ORDERING: AcqRel; what was done through the handles precedes what the last one starts.
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 && !cfg!(memgroup_loom) && self.retire() {
            maintenance::at_the_end(self);
        }
    }

    /// Removes all groups, if no handle is left; whether it did.
    #[cold]
    fn retire(&'static self) -> bool {
        let mut tree = self.tree.lock();
        // ORDERING: Acquire; a charge with bytes may have given out a new handle meanwhile, whose end comes here again; or
        // another retirement was faster, and the hierarchy waits in the pool or has a new user.
        if self.handles.load(Ordering::Acquire) != 0 || tree.retired || tree.in_use() == 0 {
            return false;
        }
        tree.retired = true;
        let online: Vec<GroupId> = match tree.state(ROOT) {
            State::Online => tree.subtree(ROOT).collect(),
            State::Dying { .. } | State::Free => Vec::new(),
        };
        for &id in online.iter().rev() {
            self.take_offline(&mut tree, self.made(id));
            self.release_held(&mut tree, id);
        }
        true
    }
}
