//! Group: a handle on one group of a tree.

use core::fmt;
use std::time::Instant;

use memgroup_sync::grace;

use crate::charge::Charge;
use crate::error::{ChargeError, GroupError};
use crate::limit::LimitError;
use crate::measure;
use crate::node::Node;
use crate::overrun;
use crate::rstat::builtin::{MEMORY, memory};
use crate::rstat::{Reach, flush};
use crate::shrink::{
    AskError, GroupShrinker, Reclaimed, Shrinker, ShrinkerConfig, ShrinkerError, ShrinkerId, reclaim, report,
};
use crate::stock::{StockStats, drain};

/// The number of a group's place in its hierarchy.
///
/// A group keeps its id while it is online, while a handle on it exists, and while a byte is charged to it. After that the
/// id is given to another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub(crate) u32);

impl GroupId {
    /// The number, to be kept where a few bits are all there is, as in a memory block's header.
    pub fn as_u32(self) -> u32 {
        self.0
    }

    /// The id with this number; whether a group has it shows when it is used.
    pub fn from_u32(number: u32) -> GroupId {
        GroupId(number)
    }
}

/// What was charged beyond a limit by forced charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overdraft {
    /// Forced charges that went over this group's limit.
    pub charges: u64,
    /// Bytes by which they did, added up over all of them.
    pub bytes: u64,
}

/// A group: a node of the tree that memory is charged to.
///
/// A handle, `Send` and `Sync`; clones are the same group. Dropping handles does not remove the group, [`remove`](Group::remove)
/// does. A handle on a removed group stays good for reading.
pub struct Group {
    node: &'static Node,
}

impl Group {
    /// A handle that counts on `node`, which is held by the tree lock or by another handle.
    pub(crate) fn pinned(node: &'static Node) -> Group {
        node.pin();
        Group { node }
    }

    /// A handle whose count was taken already.
    pub(crate) fn adopted(node: &'static Node) -> Group {
        Group { node }
    }

    pub(crate) fn node(&self) -> &'static Node {
        self.node
    }

    /// Its id.
    pub fn id(&self) -> GroupId {
        self.node.id
    }

    /// Its absolute path; the path it had, if it was removed.
    pub fn path(&self) -> String {
        self.node.shared.tree.lock().path(self.node.id)
    }

    /// Its name, the last part of the path; empty for the root.
    pub fn name(&self) -> String {
        self.node.shared.tree.lock().name(self.node.id).to_owned()
    }

    /// The group above; `None` for the root.
    pub fn parent(&self) -> Option<Group> {
        let shared = self.node.shared;
        let tree = shared.tree.lock();
        tree.parent(self.node.id).and_then(|id| shared.node(id)).map(Group::pinned)
    }

    /// Its online children, by name.
    pub fn children(&self) -> Vec<Group> {
        let shared = self.node.shared;
        let tree = shared.tree.lock();
        tree.children(self.node.id).filter_map(|id| shared.node(id)).map(Group::pinned).collect()
    }

    /// Creates a child.
    ///
    /// # Errors
    /// The name is wrong or taken, this group was removed, or a bound of [`Config`](crate::Config) is reached.
    pub fn create(&self, name: &str) -> Result<Group, GroupError> {
        self.node.shared.create(self.node, name).map(Group::adopted)
    }

    /// Removes the group. Its stocks go back to the counters and new charges are refused from now on, by whatever handle.
    /// Bytes that are still charged stay counted here and in the ancestors until their charges end; until then
    /// [`Hierarchy::dying`](crate::Hierarchy::dying) lists the group. Its name may be used again at once.
    ///
    /// # Errors
    /// It is the root, has online children, or was removed already.
    pub fn remove(&self) -> Result<(), GroupError> {
        self.node.shared.remove(self.node)
    }

    /// Whether the group has not been removed.
    pub fn is_online(&self) -> bool {
        !self.node.counter.is_offline()
    }

    /// Charges `bytes` to the group and all its ancestors.
    ///
    /// Mostly one atomic addition to the stock word of this thread's slot. Else a batch is bought within the limits; else
    /// exactly `bytes` are charged; else all stocks of the refusing group's subtree are drained and it is tried
    /// again. Neither allocates nor makes a system call. A charge that finds no room at first takes the tree lock, whose holders
    /// run bounded steps of the engine and no user's code, and waits for threads in the same few instructions; any other
    /// waits for nobody. `usage` never rises above `max` by it.
    ///
    /// # Errors
    /// A limit on the way to the root leaves no room, or the group was removed. When a limit refuses there was an
    /// instant within the call at which live charges, charges in flight and `bytes` exceeded it, less what is kept for groups within
    /// their [`min`](Group::set_min) or `low` ([`ChargeError::reserved`]; guarantee G1): stock is never the reason.
    #[inline(always)]
    pub fn try_charge(&self, bytes: u64) -> Result<Charge, ChargeError> {
        self.node.charge(bytes).map(|()| Charge::owning(self.node, bytes))
    }

    /// Charges `bytes` whatever the limits, for growth that cannot be refused; what goes over a limit is recorded there
    /// as [`overdraft`](Group::overdraft). A removed group takes forced charges too, so that nothing goes uncounted.
    ///
    /// # Errors
    /// Only when a counter could not hold it: 256 TiB.
    pub fn charge_forced(&self, bytes: u64) -> Result<Charge, ChargeError> {
        Charge::forced(self.node, bytes).map(|()| Charge::owning(self.node, bytes))
    }

    /// Bytes charged to this group and its descendants, with what is prepaid in their stocks: one load. It exceeds
    /// [`usage_exact`](Group::usage_exact) by at most the slots' budgets, and never falls short of what is charged.
    pub fn usage(&self) -> u64 {
        self.node.counter.usage()
    }

    /// Bytes charged to this group and its descendants without what is prepaid; walks the subtree under the tree lock.
    /// Exact when nobody charges, else as good as a sum over moving numbers is.
    pub fn usage_exact(&self) -> u64 {
        let shared = self.node.shared;
        let tree = shared.tree.lock();
        let prepaid: u64 = shared.counted_in(&tree, self.node).map(drain::prepaid).sum();
        self.usage().saturating_sub(prepaid)
    }

    /// The limit, in bytes, whether it is in force or [only measures](Group::set_enforced); [`UNLIMITED`](crate::UNLIMITED) if there is none.
    pub fn max(&self) -> u64 {
        self.node.counter.read().max
    }

    /// `(usage, max)` as they were together at one instant.
    pub fn usage_and_max(&self) -> (u64, u64) {
        let seen = self.node.counter.read();
        (seen.usage, seen.max)
    }

    /// Puts a limit in force, at once and under load: no charge that would rise above it succeeds from the instant at
    /// which `max` returns it. If usage is above it, the subtree's stocks are drained before this returns, and stay empty
    /// until usage is within the limit; what is really charged stays charged, and new charges are refused. Limits of one
    /// hierarchy change one after the other.
    ///
    /// # Errors
    /// The limit is more than a counter holds (256 TiB) and not [`UNLIMITED`](crate::UNLIMITED).
    pub fn set_max(&self, bytes: u64) -> Result<(), LimitError> {
        let max = LimitError::check(bytes)?;
        let tree = self.node.shared.tree.lock();
        self.node.counter.set_max(max);
        overrun::settle(&tree, self.node);
        Ok(())
    }

    /// Charges of at least one byte that this group itself refused, whichever descendant asked: by its own limit, or because it was
    /// removed.
    pub fn refusals(&self) -> u64 {
        self.node.counter.refusals()
    }

    /// What forced charges took beyond this group's limit.
    pub fn overdraft(&self) -> Overdraft {
        let (charges, bytes) = self.node.counter.overdraft();
        Overdraft { charges, bytes }
    }

    /// Returns the stocks of this group and all its descendants to the counters, from this thread and for every slot;
    /// complete when it returns. No system call, no thread woken or interrupted. The bytes returned.
    pub fn drain(&self) -> u64 {
        let tree = self.node.shared.tree.lock();
        drain::subtree(&tree, self.node)
    }

    /// Registers a shrinker that has memory of this group alone, and gives it its seat here. What it holds already is not known before the
    /// first [`mark`](GroupShrinker::mark).
    ///
    /// It takes two short locks under which nothing is called, waited for or reclaimed, and costs the same however many groups and
    /// shrinkers there are.
    ///
    /// # Errors
    /// The group was removed, or there are as many shrinkers as there can be.
    pub fn add_shrinker(
        &self,
        config: ShrinkerConfig,
        shrinker: impl Shrinker,
    ) -> Result<GroupShrinker, ShrinkerError> {
        GroupShrinker::new(self, config, Box::new(shrinker))
    }

    /// Has shrinkers of this group and of those below it give back about `bytes`, as a charge does that does not fit; here they may
    /// wait. It ends when enough is uncharged, when there is nothing more to be had, or after the callback in which `deadline` passes.
    ///
    /// A charge that needs what is being given back here does not wait for it, because the callback may be waiting for what the charge's thread
    /// holds; it may be refused meanwhile.
    ///
    /// From within a shrinker's call it does nothing.
    pub fn reclaim(&self, bytes: u64, deadline: Option<Instant>) -> Reclaimed {
        reclaim::reclaim(self.node, bytes, deadline)
    }

    /// Has one shrinker give back about `bytes` of what it holds of this group, by hand: whatever its size, and also where it is
    /// [set aside](crate::Quarantine).
    ///
    /// # Errors
    /// There is no such shrinker now, it has no seat in this group, or the thread is in a shrinker's call.
    pub fn ask_shrinker(&self, id: ShrinkerId, bytes: u64) -> Result<Reclaimed, AskError> {
        report::ask(self.node, id, bytes)
    }

    /// What this group's own stocks did so far and hold now.
    pub fn stock(&self) -> StockStats {
        let mut values = [0; memory::STOCK_DRAINED + 1];
        let store = self.node.shared.statistics.store(MEMORY);
        flush::refresh(store, self.node);
        self.node.entry(store).side(&grace::enter()).copy(Reach::Local, &mut values);
        StockStats::of(&values, drain::prepaid(self.node))
    }

    /// Bytes that could be charged now, over all levels, without what is kept for others; a hint, old as soon as it is read. Limits that
    /// [only measure](Group::set_enforced) do not count.
    pub fn headroom(&self) -> u64 {
        measure::headroom(self.node)
    }
}

impl Clone for Group {
    fn clone(&self) -> Group {
        Group::pinned(self.node)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.node.unpin();
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Group) -> bool {
        std::ptr::eq(self.node, other.node)
    }
}

impl Eq for Group {}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (usage, max) = self.usage_and_max();
        let mut group = f.debug_struct("Group");
        group.field("path", &self.path()).field("usage", &usage);
        if max == crate::UNLIMITED {
            group.field("max", &format_args!("max"))
        } else {
            group.field("max", &max)
        }
        .finish()
    }
}
