//! Group: a handle on one group of a tree.

use memgroup_sync::grace;

use crate::base::deadline::Deadline;
use crate::base::error::GroupError;
use crate::base::limit::LimitError;
use crate::charge::charge::Charge;
use crate::control::{aftermath, dry_run, over_limit};
use crate::reclaim::{
    self, AskError, GroupShrinker, Purpose, Reclaimed, Shrinker, ShrinkerConfig, ShrinkerError, ShrinkerId,
    report,
};
use crate::state::stats::Reach;
use crate::state::stats::builtin::{MEMORY, memory};
use crate::stats::flush;
use crate::stats::stock_stats::StockStats;
use crate::stock::drain;
use crate::tree::error::ChargeError;
use crate::tree::handle::Group;

/// The bytes that forced charges took beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overdraft {
    /// Forced charges that went over this group's limit.
    pub charges: u64,
    /// Bytes by which they did, added up over all of them.
    pub bytes: u64,
}

impl Group {
    /// Creates a child.
    ///
    /// # Errors
    /// The name is wrong or taken, this group was removed, or a bound of [`Config`](crate::Config) is reached.
    pub fn create(&self, name: &str) -> Result<Group, GroupError> {
        self.node().shared.create(self.node(), name).map(Group::adopted)
    }

    /// Removes the group. Its stocks go back to the counters and new charges are refused from now on, through any handle.
    /// Bytes that are still charged stay counted here and in the ancestors until their charges end; until then
    /// [`Hierarchy::dying`](crate::Hierarchy::dying) lists the group. Its name may be used again at once.
    ///
    /// # Errors
    /// It is the root, has online children, or was removed already.
    pub fn remove(&self) -> Result<(), GroupError> {
        self.node().shared.remove(self.node())
    }

    /// Charges `bytes` to the group and all its ancestors.
    ///
    /// | path | when | cost |
    /// |---|---|---|
    /// | hit | the stock of this thread's slot has the bytes | one atomic addition; no lock, no allocation, no system call |
    /// | miss | it has not, and the limits leave room | a batch, or exactly `bytes`, by one compare-and-swap a level; no lock |
    /// | slow path | a limit leaves no room | drains under the tree lock, then runs shrinkers and kill hooks on this thread; may allocate, and may wait for a cache that another charge scans |
    ///
    /// It never waits for memory to come free; [`charge_until`](Group::charge_until) does. `usage` never rises above `max` by it.
    ///
    /// # Errors
    /// A limit on the way to the root leaves no room, or the group was removed. When a limit refuses there was an instant within the call at
    /// which live charges, charges in flight and `bytes` exceeded it, less the bytes kept for groups within their [`min`](Group::set_min) or
    /// `low` ([`ChargeError::reserved`]). This is guarantee G1: prepaid bytes are never the reason.
    #[inline(always)]
    pub fn try_charge(&self, bytes: u64) -> Result<Charge, ChargeError> {
        self.node().charge(bytes).map(|()| Charge::owning(self.node(), bytes))
    }

    /// Charges `bytes` at any limit, for growth that cannot be refused; bytes above a limit are recorded there
    /// as [`overdraft`](Group::overdraft). A removed group takes forced charges too, so that nothing goes uncounted.
    ///
    /// # Errors
    /// Only when a counter could not hold it: 256 TiB.
    pub fn charge_forced(&self, bytes: u64) -> Result<Charge, ChargeError> {
        Charge::forced(self.node(), bytes).map(|()| Charge::owning(self.node(), bytes))
    }

    /// Bytes charged to this group and its descendants, with the bytes prepaid in their stocks: one load. It exceeds
    /// [`usage_exact`](Group::usage_exact) by at most the slots' budgets, and never falls short of live charges.
    pub fn usage(&self) -> u64 {
        self.node().counter.usage()
    }

    /// Bytes charged to this group and its descendants, without prepaid bytes; walks the subtree under the tree lock.
    /// Exact while no thread charges, else a sum over moving numbers.
    pub fn usage_exact(&self) -> u64 {
        let shared = self.node().shared;
        let tree = shared.tree.lock();
        let prepaid: u64 = shared.counted_in(&tree, self.node()).map(drain::prepaid).sum();
        self.usage().saturating_sub(prepaid)
    }

    /// The limit, in bytes, whether it is in force or a [dry run](Group::set_enforced); [`UNLIMITED`](crate::UNLIMITED) if there is none.
    pub fn max(&self) -> u64 {
        self.node().counter.read().max
    }

    /// `(usage, max)` as they were together at one instant.
    pub fn usage_and_max(&self) -> (u64, u64) {
        let seen = self.node().counter.read();
        (seen.usage, seen.max)
    }

    /// Puts a limit in force, at once and under load: no charge that would rise above it succeeds from the instant at
    /// which `max` returns it. If usage is above it, the subtree's stocks are drained before this returns, and stay empty
    /// until usage is within the limit; live charges stay charged, and new charges are refused. Limits of one
    /// hierarchy change one after the other.
    ///
    /// # Errors
    /// The limit is more than a counter holds (256 TiB) and not [`UNLIMITED`](crate::UNLIMITED).
    pub fn set_max(&self, bytes: u64) -> Result<(), LimitError> {
        let max = LimitError::check(bytes)?;
        let tree = self.node().shared.tree.lock();
        self.node().counter.set_max(max);
        over_limit::update(&tree, self.node());
        Ok(())
    }

    /// Charges of at least one byte that this group itself refused, whichever descendant asked: by its own limit, or because it was
    /// removed.
    pub fn refusals(&self) -> u64 {
        self.node().counter.refusals()
    }

    /// The bytes that forced charges took beyond this group's limit.
    pub fn overdraft(&self) -> Overdraft {
        let (charges, bytes) = self.node().counter.overdraft();
        Overdraft { charges, bytes }
    }

    /// Returns the stocks of this group and all its descendants to the counters, from this thread and for every slot;
    /// complete when it returns. No system call, no thread woken or interrupted. The bytes returned.
    pub fn drain(&self) -> u64 {
        let tree = self.node().shared.tree.lock();
        aftermath::drain_subtree(&tree, self.node())
    }

    /// Registers a shrinker that has memory of this group alone, and attaches it here. The group does not know
    /// how much it holds already before the first [`mark`](GroupShrinker::mark).
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
    pub fn reclaim(&self, bytes: u64, deadline: impl Into<Deadline>) -> Reclaimed {
        reclaim::reclaim(self.node(), Purpose::ByHand, bytes, deadline.into().instant())
    }

    /// Has one shrinker give back about `bytes` of what it holds of this group, by hand: whatever its size, and also where it is
    /// [set aside](crate::Quarantine).
    ///
    /// # Errors
    /// There is no such shrinker now, it is not attached to this group, or the thread is in a shrinker's call.
    pub fn ask_shrinker(&self, id: ShrinkerId, bytes: u64) -> Result<Reclaimed, AskError> {
        report::ask(self.node(), id, bytes)
    }

    /// The work of this group's own stocks so far, and their bytes now.
    pub fn stock(&self) -> StockStats {
        let mut values = [0; memory::STOCK_DRAINED.index() + 1];
        let store = self.node().shared.statistics.store(MEMORY);
        flush::refresh(store, self.node());
        self.node().entry(store).flushed(&grace::enter()).copy(Reach::Local, &mut values);
        StockStats::of(&values, drain::prepaid(self.node()))
    }

    /// Bytes that could be charged now, over all levels, less the bytes kept for others; a hint, old as soon as it is read. Limits that
    /// [refuse nothing](Group::set_enforced) do not count.
    pub fn headroom(&self) -> u64 {
        dry_run::headroom(self.node())
    }
}
