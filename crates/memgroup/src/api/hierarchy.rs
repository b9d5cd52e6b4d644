//! Hierarchy: the public methods of a tree of groups.

use core::fmt;
use core::ops::Range;
use std::time::{Duration, Instant};

use memgroup_sync::grace;

use crate::api::raw;
use crate::api::scope;
use crate::api::snapshot::Snapshot;
use crate::api::statistics::Statistics;
use crate::base::deadline::Deadline;
use crate::base::effort::Means;
use crate::base::error::GroupError;
use crate::base::id::{GroupId, IdError, NodeId};
use crate::charge::charge::Charge;
use crate::control::held_back;
use crate::lifecycle::maintenance::{self, Maintained, Maintenance};
use crate::lifecycle::memory::{self, PerCpuStats};
use crate::reclaim;
use crate::reclaim::{
    CallsError, Registration, Shrinker, ShrinkerConfig, ShrinkerError, ShrinkerReport, quiesce, report,
};
use crate::state::config::{Config, ConfigError};
use crate::state::stats::builtin::{CPU, IO, MEMORY};
use crate::state::stats::stat::{RegisterError, Subsystem};
use crate::stock::Unheld;
use crate::tree::error::ChargeError;
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::listing::{self, Listing};
use crate::tree::node::Node;
use crate::tree::shared::Shared;

/// A removed group that still holds bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dying {
    /// Its path before it was removed.
    pub path: String,
    /// Bytes still charged to it.
    pub usage_bytes: u64,
    /// When it was removed.
    pub removed: Instant,
    /// Time since then.
    pub age: Duration,
}

/// The methods that most programs need.
impl Hierarchy {
    /// Makes a hierarchy with only an online, unlimited root.
    ///
    /// # Errors
    /// A setting of `config` is out of its range.
    pub fn new(config: Config) -> Result<Hierarchy, ConfigError> {
        let hierarchy = Hierarchy::adopted(Shared::obtain(config.checked()?)?);
        held_back::begin();
        Ok(hierarchy)
    }

    /// Creates the group at an absolute path, `/parent/child`. The parent must exist.
    ///
    /// # Errors
    /// The path or the name is invalid, the parent does not exist, the group does, or a bound of
    /// [`Config`] is reached.
    pub fn create(&self, path: &str) -> Result<Group, GroupError> {
        self.shared().create_path(path).map(Group::adopted)
    }

    /// The online group at an absolute path; `/` is the root.
    ///
    /// # Errors
    /// No such group is online. The error names the part of the path that is missing.
    pub fn lookup(&self, path: &str) -> Result<Group, GroupError> {
        let tree = self.shared().tree.lock();
        tree.lookup(path).map(|id| self.pinned(id))
    }

    /// The online group of this path, which is created if there is none, with the groups above it
    /// that are missing. For a group of a request or a tenant that is first seen. Of several
    /// threads that call it at once each gets the same group.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let first = hierarchy.get_or_create("/tenants/alice/request-7").unwrap();
    /// assert_eq!(hierarchy.get_or_create("/tenants/alice/request-7").unwrap(), first);
    /// assert_eq!(first.parent().unwrap().path(), "/tenants/alice");
    /// ```
    ///
    /// # Errors
    /// As for [`create`](Hierarchy::create). Groups above that were created by then stay.
    pub fn get_or_create(&self, path: &str) -> Result<Group, GroupError> {
        loop {
            let missing = match self.lookup(path) {
                Err(GroupError::NotFound { missing, .. }) => missing,
                found => return found,
            };
            self.shared().create_missing(path, &missing)?;
        }
    }

    /// The whole tree as it is now, dying groups included.
    ///
    /// It allocates, takes the tree lock for short steps, and flushes each subsystem's statistics
    /// once. It calls no shrinker. Its [page](crate::guide::snapshot) says how consistent it
    /// is. The figures of one group are read within some hundred nanoseconds, those of two
    /// groups up to [`Snapshot::took`] apart.
    pub fn snapshot(&self) -> Snapshot {
        self.root().snapshot()
    }
}

/// Groups and configuration.
impl Hierarchy {
    /// The configuration that the hierarchy was made with.
    pub fn config(&self) -> Config {
        self.shared().config.given()
    }

    /// All online groups, parents before children, the root first. Children of one parent are in
    /// the order of their names.
    ///
    /// It takes the tree lock for 32 groups at a time. A group that is online from the beginning
    /// to the end is listed once; one that is created or removed meanwhile may be listed or
    /// not.
    pub fn groups(&self) -> Vec<Group> {
        Listing::of(&self.root()).online().collect()
    }

    /// The group with this id, if it is online or dying.
    pub fn group(&self, id: GroupId) -> Option<Group> {
        let tree = self.shared().tree.lock();
        self.shared().find(&tree, id).map(Group::pinned)
    }

    /// Removed groups that still hold bytes, in the order of their removal.
    ///
    /// A removed group without bytes, which only a handle or a group below keeps, is left out: it
    /// takes a place of [`Config::groups_max`](crate::Config::groups_max), and the
    /// [snapshot](Hierarchy::snapshot) lists it. While [`Group::remove_all`] removes a group, and
    /// groups below it one by one, that group and all below it are in no list.
    ///
    /// If no group is dying, it takes the tree lock once. Otherwise it visits all groups, and
    /// takes the lock for 32 at a time.
    pub fn dying(&self) -> Vec<Dying> {
        let of = |(group, removed): (Group, Instant)| Dying {
            path: group.path(),
            usage_bytes: group.usage(),
            removed,
            age: removed.elapsed(),
        };
        held_back::settle_removed(self.shared());
        let dying = listing::dying(&self.root()).into_iter();
        dying.map(of).filter(|dying| dying.usage_bytes > 0).collect()
    }

    fn pinned(&self, id: NodeId) -> Group {
        Group::pinned(self.shared().made(id))
    }
}

/// Charges of memory blocks and of threads.
impl Hierarchy {
    /// Charges `bytes` to the current group of this thread ([`scope`]), as [`Group::try_charge`]
    /// does. `None` if there is none, or it is of another hierarchy.
    ///
    /// It goes with [`uncharge`](Hierarchy::uncharge), because each hierarchy has its own ids.
    #[inline]
    pub fn try_charge_current(&self, bytes: u64) -> Option<Result<Charge, ChargeError>> {
        let unheld = Unheld::begin();
        let node = scope::node().filter(|node| node.is_of(self.shared()))?;
        Some(node.charge_unheld(unheld, bytes, Means::PLAIN).map(|()| Charge::owning(node, bytes)))
    }

    /// Uncharges `bytes` from the group with this id, for a memory block that stores its owner's
    /// id instead of a [`Charge`]. It pairs with [`Charge::into_parts`].
    ///
    /// The id is checked. The bytes are not, except that a group cannot give back more than 1 TiB
    /// that it does not use: for them the caller keeps the [contract](crate::raw#contract) of
    /// parts.
    ///
    /// # Errors
    /// No group has this id now, or the bytes are absurd. Nothing was uncharged.
    #[inline]
    pub fn uncharge(&self, id: GroupId, bytes: u64) -> Result<(), IdError> {
        let node = self.node_of(id, bytes)?;
        if bytes > 0 {
            node.uncharge(bytes);
        }
        Ok(())
    }

    /// Makes a charge that owns `bytes` already charged to the group with this id: the inverse of
    /// [`Charge::into_parts`].
    ///
    /// The id and the bytes are checked as in [`uncharge`](Hierarchy::uncharge).
    ///
    /// # Errors
    /// No group has this id now, or the bytes are absurd.
    pub fn charge_from_parts(&self, id: GroupId, bytes: u64) -> Result<Charge, IdError> {
        if bytes == 0 {
            return self.group(id).map(|group| Charge::empty(&group)).ok_or(IdError { id, bytes });
        }
        self.node_of(id, bytes).map(|node| Charge::owning(node, bytes))
    }

    #[inline]
    fn node_of(&self, id: GroupId, bytes: u64) -> Result<&'static Node, IdError> {
        let is_given = id.generation() % 2 == 1;
        let node = self.shared().node(NodeId(id.node())).filter(|_| is_given);
        let is_of = |node: &&Node| node.generation() == id.generation() && raw::is_plausible(node, bytes);
        node.filter(is_of).ok_or(IdError { id, bytes })
    }
}

/// Shrinkers.
impl Hierarchy {
    /// Registers a shrinker that may hold memory of several groups. It is called for those in
    /// which it has a [slot](Registration::attach). For the memory of one group,
    /// [`Group::add_shrinker`] is simpler.
    ///
    /// # Errors
    /// The hierarchy has as many shrinkers as it can have.
    pub fn add_shrinker(
        &self,
        config: ShrinkerConfig,
        shrinker: impl Shrinker,
    ) -> Result<Registration, ShrinkerError> {
        reclaim::register(self.shared(), config, Box::new(shrinker))
    }

    /// Reports of all registered shrinkers with the results of their calls, as Linux has them in
    /// debugfs.
    ///
    /// ```
    /// # use memgroup::{Ask, Config, Count, Hierarchy, Scan, Shrinker, ShrinkerConfig};
    /// # struct Nothing;
    /// # impl Shrinker for Nothing {
    /// #     fn count(&self, _: u64) -> Count { Count::Empty }
    /// #     fn scan(&self, _: &Ask<'_>) -> Scan { Scan::Freed { bytes: 0 } }
    /// # }
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let registered = hierarchy.root().add_shrinker(ShrinkerConfig::new("plans"), Nothing).unwrap();
    /// let report = &hierarchy.shrinkers()[0];
    /// assert_eq!((report.name.as_str(), report.scans, report.quarantine), ("plans", 0, None));
    /// # drop(registered);
    /// ```
    pub fn shrinkers(&self) -> Vec<ShrinkerReport> {
        report::all(self.shared())
    }

    /// Waits until every shrinker call of this hierarchy that runs now has returned. It does not
    /// wait for calls that begin meanwhile.
    ///
    /// While a thread walks over shrinkers it makes an expedited `membarrier`, which interrupts
    /// the running threads of the process.
    ///
    /// Code that frees memory which callbacks of several shrinkers may use calls it first, as
    /// `synchronize_shrinkers` in Linux. For one shrinker, its [`Removal`](crate::Removal)
    /// waits. Everything that the calls did happens before the return.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # use std::time::{Duration, Instant};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// hierarchy.wait_for_shrinkers(Some(Instant::now() + Duration::from_secs(1))).unwrap();
    /// ```
    ///
    /// # Errors
    /// The calling thread is itself in a call; or the deadline has passed, and the error names a
    /// call that still runs.
    pub fn wait_for_shrinkers(&self, deadline: impl Into<Deadline>) -> Result<(), CallsError> {
        quiesce::wait(self.shared(), deadline.into().instant())
    }
}

/// Statistics.
impl Hierarchy {
    /// The statistics of the subsystem `memory`: [`stats::memory`](crate::stats::memory).
    pub fn memory(&self) -> Statistics {
        self.builtin(MEMORY)
    }

    /// The statistics of the subsystem `cpu`: [`stats::cpu`](crate::stats::cpu).
    pub fn cpu(&self) -> Statistics {
        self.builtin(CPU)
    }

    /// The statistics of the subsystem `io`: [`stats::io`](crate::stats::io).
    pub fn io(&self) -> Statistics {
        self.builtin(IO)
    }

    /// Registers a subsystem for the rest of the hierarchy's life: from now on all groups have its
    /// statistics.
    ///
    /// It may be called at any time, and again with the same definition. It allocates some hundred
    /// bytes for each group. Per-CPU memory follows with each group's first addition.
    ///
    /// # Errors
    /// A name is invalid, another subsystem has the name, or there are eight subsystems already
    /// ([`SUBSYSTEMS_MAX`](crate::SUBSYSTEMS_MAX)), the three built-in ones included.
    pub fn register(&self, subsystem: Subsystem) -> Result<Statistics, RegisterError> {
        Statistics::register(self, subsystem)
    }

    /// The statistics of the subsystem with this name.
    pub fn statistics(&self, name: &str) -> Option<Statistics> {
        self.shared().statistics.find(name).map(|store| Statistics::of(self, store))
    }

    /// The names of all subsystems, the built-in ones first.
    pub fn subsystems(&self) -> Vec<&'static str> {
        self.shared().statistics.registered().map(|(subsystem, _)| subsystem.name).collect()
    }

    fn builtin(&self, number: usize) -> Statistics {
        Statistics::of(self, self.shared().statistics.store(number))
    }
}

/// Prepaid bytes and per-CPU memory.
impl Hierarchy {
    /// Bytes of each slot's budget that stocks have reserved now. The prepaid bytes of a slot
    /// never exceed them.
    pub fn stock_reserved_bytes(&self) -> Vec<u64> {
        self.shared().budget.reserved().collect()
    }

    /// Returns per-CPU memory that groups no longer need to the system; see [`Maintenance`].
    ///
    /// A thread with spare time calls it now and then. Removals and creations do the same in small
    /// steps. One pass runs at a time: a second caller waits for the first. A charge waits for
    /// a pass only while the pass holds the tree lock: for 64 pages' worth of records at a time,
    /// at most. The pass waits for pieces of running flushes, of one subsystem at a time, and for
    /// grace periods, without that lock. No count and no charge is lost when records move.
    ///
    /// It makes these system calls: `membarrier` for one or two grace periods of 8 to 24 ms each,
    /// which interrupts no thread; `madvise` and `munmap`, which interrupt every CPU that runs
    /// the process for some microseconds each (a TLB shootdown).
    ///
    /// # Panics
    /// In a read section (`memgroup_sync::grace`) of the calling thread, which the pass would wait
    /// for without end. Nothing is done then.
    pub fn maintain(&self, options: Maintenance) -> Maintained {
        assert!(!grace::inside(), "failed to maintain a hierarchy: this thread is in a read section");
        maintenance::pass(self.shared(), options)
    }

    /// Sum of all passes of maintenance so far, those of removals included.
    pub fn maintained(&self) -> Maintained {
        *self.shared().upkeep().done.lock()
    }

    /// Amount of the groups' per-CPU memory. It asks the system, in about a nanosecond a page.
    pub fn percpu(&self) -> PerCpuStats {
        memory::stats(self.shared())
    }

    /// Address ranges of the per-CPU memory, as in the system's own reports (`/proc/self/smaps`).
    pub fn percpu_ranges(&self) -> Vec<Range<usize>> {
        memory::ranges(self.shared())
    }
}

impl fmt::Debug for Hierarchy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Read before the formatter is called: that is user code, which may be slow or charge.
        let groups = self.shared().tree.lock().in_use();
        f.debug_struct("Hierarchy")
            .field("groups", &groups)
            .field("config", &self.shared().config.given())
            .finish()
    }
}
