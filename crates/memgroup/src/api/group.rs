//! Group: a handle on one group of a tree.

use crate::base::deadline::Deadline;
use crate::base::effort::{Effort, Means};
use crate::base::error::GroupError;
use crate::base::limit::{self, LimitError};
use crate::charge::charge::Charge;
use crate::charge::wait;
use crate::control::{dry_run, freeze, held_back, over_limit, waiters};
use crate::counter::chain;
use crate::counter::protect::{Protection, ProtectionError};
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
use crate::tree::listing::Listing;
use crate::tree::node::Node;

/// The bytes that forced charges took beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Overdraft {
    /// Forced charges that went over this group's limit.
    pub charges: u64,
    /// Bytes by which they did, added up over all of them.
    pub bytes: u64,
}

/// The methods that most programs need.
impl Group {
    /// Creates a child.
    ///
    /// # Errors
    /// The name is wrong or taken, this group was removed, or a bound of [`Config`](crate::Config)
    /// is reached.
    pub fn create(&self, name: &str) -> Result<Group, GroupError> {
        self.node().shared().create(self.node(), name).map(Group::adopted)
    }

    /// Puts a limit in force, at once and under load; `None` takes it away. From the instant at
    /// which `max` returns it, no charge that would rise above it succeeds. If usage is above
    /// it, the subtree's stocks are drained before this returns, and stay empty until usage is
    /// within the limit. Live charges stay charged, and new charges are refused. Limits of one
    /// hierarchy change one after the other.
    ///
    /// # Errors
    /// The limit is more than a counter holds (256 TiB).
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// tenant.set_max(64 << 20).unwrap();
    /// assert_eq!(tenant.max(), Some(64 << 20));
    /// tenant.set_max(None).unwrap();
    /// assert_eq!(tenant.max(), None);
    /// ```
    pub fn set_max(&self, max: impl Into<Option<u64>>) -> Result<(), LimitError> {
        let max = limit::stored(max.into(), "max", || self.path())?;
        over_limit::change(self.node(), |node| node.counter.set_max(max));
        if self.node().marks.is_shared() {
            // Stocks may have caps that leave shares of a smaller room too little.
            freeze::drain_all(self.node());
        }
        waiters::serve_all(self.node());
        Ok(())
    }

    /// Protects the first `bytes` of the group. A reclaim for a group above does not take them: a
    /// charge that finds no other bytes is refused. `memory.min` of cgroup v2. The default is
    /// 0: no byte is protected. With [`BYTES_MAX`](crate::BYTES_MAX), the file's `max`, all are.
    ///
    /// The setting counts in full right below the group that needs memory. Deeper it counts as far
    /// as the groups above are protected themselves
    /// ([`protection_within`](Group::protection_within)). It is in force at once; a reclaim that
    /// runs heeds it from its next batch.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let lookups = hierarchy.create("/lookups").unwrap();
    /// lookups.set_min(64 << 20).unwrap();
    /// assert_eq!((lookups.min(), lookups.low()), (64 << 20, 0));
    /// assert_eq!(lookups.protection().min, 64 << 20);
    /// ```
    ///
    /// # Errors
    /// More than a counter holds (256 TiB), or the group was removed.
    pub fn set_min(&self, bytes: u64) -> Result<(), ProtectionError> {
        self.set_protection("min", bytes, |min, settings| Protection { min, ..settings })
    }

    /// Charges `bytes` to the group and all its ancestors.
    ///
    /// | path | when | cost |
    /// |---|---|---|
    /// | hit | the stock of this thread's slot has the bytes | one atomic addition; no lock, no allocation, no system call |
    /// | miss | it has not, and the limits leave room | a batch, or exactly `bytes`, by one compare-and-swap a level; no lock, except at the first use of a slot and where a group comes above its `high` |
    /// | slow path | a limit leaves no room | drains stocks below the full group, then runs shrinkers and kill hooks on this thread; may allocate, and may wait for a cache that another charge scans |
    ///
    /// The first charge of a thread also registers the thread, by a system call. A charge never
    /// waits for memory to come free; [`charge_until`](Group::charge_until) does. `usage` never
    /// rises above `max` by it.
    ///
    /// It doesn't queue: it takes free bytes although other charges wait for them. So callers that
    /// always have some charge under way can keep a [waiting](Group::charge_until) charge for
    /// most of the limit from ever being served. Where such charges occur, charge with a deadline
    /// everywhere.
    ///
    /// It reclaims for at most [`Config::reclaim_patience`](crate::Config::reclaim_patience), 1 s
    /// unless told: all rounds, retries, levels and waits for caches together. The shrinker's
    /// call that it makes itself at that moment comes to its end first, and kill hooks come on
    /// top.
    ///
    /// # Errors
    /// A limit on the way to the root leaves no room, or the group was removed. When a limit
    /// refuses, live charges, charges in flight and `bytes` exceeded it at an instant within
    /// the call. Bytes kept for groups within their [`min`](Group::set_min) or `low`
    /// ([`ChargeError::reserved`]) lower the limit for this. This is guarantee G1: prepaid bytes
    /// are never the reason.
    #[inline(always)]
    pub fn try_charge(&self, bytes: u64) -> Result<Charge, ChargeError> {
        self.node().charge(bytes).map(|()| Charge::owning(self.node(), bytes))
    }

    /// Charges `bytes` as [`try_charge`](Group::try_charge) does, and goes no further than
    /// `effort` to make room.
    ///
    /// With [`Effort::Count`] no foreign code runs on the thread: for asynchronous executors, and
    /// for code that holds a lock which a shrinker may need. Caches stay as they are then, so
    /// it is refused where `try_charge` would have made room.
    ///
    /// ```
    /// # use memgroup::{Config, Effort, Hierarchy, KillAnswer, KillRequest};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let query = hierarchy.create("/query").unwrap();
    /// query.set_max(1000).unwrap();
    /// let _held = query.try_charge(600).unwrap();
    /// let _hook = query.set_kill_hook(|_: &KillRequest<'_>| panic!("it is not called")).unwrap();
    /// assert!(query.try_charge_by(300, Effort::Count).is_ok());
    /// assert!(query.try_charge_by(500, Effort::Count).is_err());
    /// ```
    ///
    /// # Errors
    /// As there. G1 holds for each effort.
    #[inline(always)]
    pub fn try_charge_by(&self, bytes: u64, effort: Effort) -> Result<Charge, ChargeError> {
        self.node().charge_by(bytes, Means::with(effort)).map(|()| Charge::owning(self.node(), bytes))
    }

    /// Charges `bytes` as [`try_charge`](Group::try_charge) does. Where that is refused, it waits
    /// until `deadline` for room at the group that refused.
    ///
    /// The thread that uncharges there makes the waiting charges: in the order of their groups'
    /// [weights](Group::set_weight), then of arrival. A charge that does not fit is passed by
    /// at most 16 others. A charge without a deadline may take free bytes at any time; one with a
    /// deadline queues behind those that wait. So the wait for a large part of the limit may be
    /// in vain beside callers of [`try_charge`](Group::try_charge): bytes add up for it only
    /// while they take none. Have them charge with a deadline, or reserve the bytes
    /// ([`set_min`](Group::set_min), [`set_reserve_min`](Group::set_reserve_min)). The wait is
    /// [listed](crate::Hierarchy::waits), and ended by [`wake_waiters`](Group::wake_waiters) and
    /// by the removal of the group.
    ///
    /// It may allocate, and it blocks. So it is not for code that holds a lock that other threads
    /// need to set memory free, nor for the inside of an allocator. It does not wait within a
    /// shrinker's call, in a read section (`memgroup_sync::grace`), or after the deadline.
    ///
    /// ```
    /// # use memgroup::{ChargeErrorKind, Config, Hierarchy};
    /// # use std::time::{Duration, Instant};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// tenant.set_max(1000).unwrap();
    /// let held = tenant.try_charge(600).unwrap();
    /// let soon = Instant::now() + Duration::from_millis(20);
    /// let error = tenant.charge_until(600, soon).unwrap_err();
    /// assert_eq!((error.kind(), error.usage()), (ChargeErrorKind::Deadline, 600));
    /// assert!(Instant::now() >= soon && error.waited() > Duration::ZERO);
    /// drop(held);
    /// ```
    ///
    /// # Errors
    /// - [`Deadline`](crate::ChargeErrorKind::Deadline): there was no room in time; the numbers
    ///   are those of the group at which it waited last.
    /// - [`Woken`](crate::ChargeErrorKind::Woken): all waits of the group were ended.
    /// - At once, as by `try_charge`: the group was removed, also while it waited; or `bytes` are
    ///   more than a limit allows in all.
    pub fn charge_until(&self, bytes: u64, deadline: impl Into<Deadline>) -> Result<Charge, ChargeError> {
        let deadline = deadline.into().instant_or_far();
        wait::charge_until(self.node(), bytes, deadline).map(|()| Charge::owning(self.node(), bytes))
    }

    /// Registers a shrinker that has memory of this group alone, and attaches it here. The group
    /// does not know how much it holds already before the first [`mark`](GroupShrinker::mark).
    ///
    /// It takes two short locks under which nothing is called, waited for or reclaimed, and costs
    /// the same however many groups and shrinkers there are.
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

    /// Bytes charged to this group and its descendants, with the bytes prepaid in their stocks:
    /// one load. It exceeds [`usage_exact`](Group::usage_exact) by at most the slots' budgets,
    /// and never falls short of live charges.
    pub fn usage(&self) -> u64 {
        self.node().counter.usage()
    }

    /// Removes the group. Its stocks go back to the counters and new charges are refused from now
    /// on, through any handle. Bytes that are still charged stay counted here and in the
    /// ancestors until their charges end; until then
    /// [`Hierarchy::dying`](crate::Hierarchy::dying) lists the group. Its name may be used again
    /// at once.
    ///
    /// Some removals also give memory of removed groups back, in steps of about 50 us, which may
    /// interrupt other CPUs
    /// ([`Config::maintain_on_removal`](crate::Config::maintain_on_removal)).
    ///
    /// # Errors
    /// It is the root, has online children, or was removed already.
    pub fn remove(&self) -> Result<(), GroupError> {
        self.node().shared().remove(self.node())
    }

    /// Removes the group and all groups below it, as `fs::remove_dir_all` does with directories.
    ///
    /// From the first instant on no path leads to any of them, their names may be used again, and
    /// none can be created in this group. They are removed one after another, the lowest first,
    /// each as by [`remove`](Group::remove). A group that another thread creates below meanwhile,
    /// through a handle, is removed too, or its creation fails. So all are removed at the
    /// return, however many threads create. Live charges stay counted in their groups and above
    /// until they end.
    ///
    /// It takes the tree lock for one group at a time, so its time grows with the number of
    /// groups, and other threads go on meanwhile.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let request = hierarchy.get_or_create("/alice/request-7/sort").unwrap();
    /// let charge = request.try_charge(4096).unwrap();
    /// let alice = hierarchy.lookup("/alice").unwrap();
    /// alice.remove_all().unwrap();
    /// assert!(!request.is_online() && hierarchy.lookup("/alice").is_err());
    /// assert_eq!(hierarchy.root().usage_exact(), 4096);
    /// # drop(charge);
    /// ```
    ///
    /// # Errors
    /// It is the root, or was removed already, or is being removed. Nothing is changed then.
    pub fn remove_all(&self) -> Result<(), GroupError> {
        self.node().shared().remove_all(self.node())
    }
}

/// Usage and limit, read.
impl Group {
    /// Bytes charged to this group and its descendants, without prepaid bytes, and without those
    /// that an allocator holds back for its next blocks ([`block`](crate::block)). Exact while
    /// no thread charges, drains or changes a limit; else a sum over moving numbers.
    ///
    /// Where bytes may be prepaid below it, it visits the groups of its subtree, and no others. It
    /// takes the tree lock for 32 groups at a time.
    pub fn usage_exact(&self) -> u64 {
        let node = self.node();
        if node.counter.prepaid_most() == 0 {
            return self.usage().saturating_sub(held_back::sum(node));
        }
        let counts = |below: &&'static Node| chain::levels(below).any(|level| std::ptr::eq(level, node));
        let listing = Listing::of(self);
        let nodes = listing.groups.iter().map(|listed| listed.group.node());
        let prepaid: u64 = nodes.filter(counts).map(drain::prepaid).sum();
        self.usage().saturating_sub(prepaid).saturating_sub(held_back::sum(node))
    }

    /// The limit, in bytes, whether it is in force or a [dry run](Group::set_enforced); `None` if
    /// there is none.
    pub fn max(&self) -> Option<u64> {
        limit::given(self.node().counter.read().max)
    }

    /// `(usage, max)` as they were together at one instant.
    pub fn usage_and_max(&self) -> (u64, Option<u64>) {
        let seen = self.node().counter.read();
        (seen.usage, limit::given(seen.max))
    }

    /// Bytes that could be charged now, over all levels, less the bytes kept for others; a hint,
    /// old as soon as it is read. Limits that [refuse nothing](Group::set_enforced) do not
    /// count.
    pub fn headroom(&self) -> u64 {
        dry_run::headroom(self.node())
    }

    /// Charges of at least one byte that this group itself refused, whichever descendant asked: by
    /// its own limit, or because it was removed.
    pub fn refusals(&self) -> u64 {
        self.node().rare().past.refusals()
    }
}

/// Charges at any limit, and bytes charged earlier.
impl Group {
    /// Charges `bytes` at any limit, for growth that cannot be refused; bytes above a limit are
    /// recorded there as [`overdraft`](Group::overdraft). A removed group takes forced charges
    /// too, so that nothing goes uncounted.
    ///
    /// # Errors
    /// Only when a counter could not hold it: 256 TiB.
    pub fn charge_forced(&self, bytes: u64) -> Result<Charge, ChargeError> {
        Charge::forced(self.node(), bytes).map(|()| Charge::owning(self.node(), bytes))
    }

    /// The bytes that forced charges took beyond this group's limit.
    pub fn overdraft(&self) -> Overdraft {
        let (charges, bytes) = self.node().rare().past.overdraft();
        Overdraft { charges, bytes }
    }
}

/// Reclaim by hand.
impl Group {
    /// Has shrinkers of this group and of those below it give back about `bytes`, as a charge that
    /// does not fit does. Here they may wait. It ends when enough is uncharged, when no
    /// shrinker has more to give, or after the callback in which `deadline` passes.
    ///
    /// A charge does not wait for a callback that runs here, because that callback may be waiting
    /// for a lock that the charging thread holds. So the charge may be refused meanwhile.
    ///
    /// From within a shrinker's call it does nothing.
    pub fn reclaim(&self, bytes: u64, deadline: impl Into<Deadline>) -> Reclaimed {
        reclaim::reclaim(self.node(), Purpose::ByHand, bytes, deadline.into().instant())
    }

    /// Has one shrinker give back about `bytes` of its memory of this group, by hand. It is asked
    /// whatever its size, and also if it is [quarantined](crate::Quarantine).
    ///
    /// # Errors
    /// There is no such shrinker now, it is not attached to this group, or the thread is in a
    /// shrinker's call.
    pub fn ask_shrinker(&self, id: ShrinkerId, bytes: u64) -> Result<Reclaimed, AskError> {
        report::ask(self.node(), id, bytes)
    }
}

/// Prepaid bytes.
impl Group {
    /// Returns the stocks of this group and all its descendants to the counters, from this thread
    /// and for every slot. It is complete when it returns, and interrupts no thread. It waits
    /// for other changes of the group's limit, and serves charges that wait for the
    /// bytes. Returns the number of bytes.
    pub fn drain(&self) -> u64 {
        freeze::drain_all(self.node())
    }

    /// The work of this group's own stocks so far, and their bytes now.
    pub fn stock(&self) -> StockStats {
        let mut values = [0; memory::STOCK_DRAINED.index() + 1];
        let store = self.node().shared().statistics.store(MEMORY);
        flush::refresh(store, self.node());
        self.node().entry(store).flushed().copy(Reach::Local, &mut values);
        StockStats::of(&values, drain::prepaid(self.node()))
    }
}
