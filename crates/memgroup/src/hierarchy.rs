//! Hierarchy: the tree as its users see it.

use core::fmt;
use core::ops::Range;
use std::time::{Duration, Instant};

use memgroup_sync::grace;

use crate::charge::Charge;
use crate::config::{Config, ConfigError};
use crate::error::{ChargeError, GroupError};
use crate::group::{Group, GroupId};
use crate::maintenance::{self, Maintained, Maintenance};
use crate::memory::{self, PerCpuStats};
use crate::node::Node;
use crate::rstat::builtin::{CPU, IO, MEMORY};
use crate::rstat::{RegisterError, Statistics, Subsystem};
use crate::scope;
use crate::shared::Shared;
use crate::shrink::quiesce;
use crate::shrink::{
    self, AskError, CallsError, Count, Registration, Shrinker, ShrinkerConfig, ShrinkerError, ShrinkerId,
    ShrinkerReport, report,
};
use crate::tree::{ROOT, State};

/// A tree of groups, with its root.
///
/// A handle: clones are the same tree. The tree lives as long as any `Hierarchy` or [`Group`] of it; when the last
/// is dropped all groups are removed, and bytes still charged are accounted until their [`Charge`]s are dropped. Per-CPU memory
/// goes back then, if it is more than 256 KiB: that waits for a grace period, some 10 to 20 ms. The memory of
/// the tree itself, some tens of KiB, is kept for the next hierarchy of the same [`Config`].
///
/// ```
/// use memgroup::{Config, Hierarchy};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let tenants = hierarchy.create("/tenants")?;
/// tenants.set_max(1 << 30)?;
/// let alice = hierarchy.create("/tenants/alice")?;
/// let charge = alice.try_charge(4096)?;
/// assert!(tenants.usage() >= 4096);
/// drop(charge);
/// assert_eq!(tenants.usage_exact(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Hierarchy {
    shared: &'static Shared,
}

/// A removed group that still holds bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dying {
    /// The path it had.
    pub path: String,
    /// Bytes still charged to it.
    pub usage_bytes: u64,
    /// When it was removed.
    pub removed: Instant,
    /// How long ago that was.
    pub age: Duration,
    /// The [labels](Group::label) under which bytes are charged to it, with those.
    pub labels: Vec<(String, u64)>,
}

impl Hierarchy {
    /// Makes a hierarchy with nothing but an online, unlimited root.
    ///
    /// # Errors
    /// A setting of `config` is out of its range.
    pub fn new(config: Config) -> Result<Hierarchy, ConfigError> {
        Ok(Hierarchy { shared: Shared::obtain(config.checked()?)? })
    }

    /// What the hierarchy was made with.
    pub fn config(&self) -> Config {
        self.shared.config
    }

    /// The root group.
    pub fn root(&self) -> Group {
        Group::pinned(self.shared.root())
    }

    /// Creates the group at an absolute path, `/parent/child`; the parent must be there.
    ///
    /// # Errors
    /// The path or the name is wrong, the parent is not there, the group is, or a bound of [`Config`] is reached.
    pub fn create(&self, path: &str) -> Result<Group, GroupError> {
        self.shared.create_path(path).map(Group::adopted)
    }

    /// The online group at an absolute path; `/` is the root.
    ///
    /// # Errors
    /// No such group is online; the error names the part of the path that is not there.
    pub fn lookup(&self, path: &str) -> Result<Group, GroupError> {
        let tree = self.shared.tree.lock();
        tree.lookup(path).map(|id| self.pinned(id))
    }

    /// All online groups, parents before children, the root first.
    pub fn groups(&self) -> Vec<Group> {
        let tree = self.shared.tree.lock();
        tree.subtree(ROOT).map(|id| self.pinned(id)).collect()
    }

    /// Removed groups that still hold bytes, the longest removed first.
    pub fn dying(&self) -> Vec<Dying> {
        let tree = self.shared.tree.lock();
        let of = |(id, removed): (GroupId, Instant)| Dying {
            path: tree.path(id),
            usage_bytes: self.node(id).counter.usage(),
            removed,
            age: removed.elapsed(),
            labels: self.node(id).control.labels.list().into_iter().filter(|(_, bytes)| *bytes > 0).collect(),
        };
        tree.dying().into_iter().map(of).filter(|dying| dying.usage_bytes > 0).collect()
    }

    /// Bytes that stocks have reserved of their slots' budgets now, slot by slot; what is prepaid in a slot never exceeds it.
    pub fn stock_reserved_bytes(&self) -> Vec<u64> {
        self.shared.budget.reserved().collect()
    }

    /// Gives per-CPU memory back to the system that groups need no more: see [`Maintenance`]. For a thread with some time, now and
    /// then; removals do a part of it themselves. One pass at a time: a second caller waits for the first.
    ///
    /// No charge waits for it: locks are held for at most 64 pages' worth of records at a time, and grace periods are waited for without
    /// any. No count and no charge is lost by what moves.
    ///
    /// # Panics
    /// In a read section (`memgroup_sync::grace`) of the calling thread, for whose end it would wait for ever. Nothing was done.
    pub fn maintain(&self, what: Maintenance) -> Maintained {
        assert!(!grace::inside(), "failed to maintain a hierarchy: this thread is in a read section");
        let _turn = self.shared.maintaining.lock();
        maintenance::pass(self.shared, what)
    }

    /// What all passes of maintenance did so far, those of removals included.
    pub fn maintained(&self) -> Maintained {
        *self.shared.maintained.lock()
    }

    /// What the groups' per-CPU memory amounts to; asks the system, about a nanosecond a page.
    pub fn percpu(&self) -> PerCpuStats {
        memory::stats(self.shared)
    }

    /// Where the per-CPU memory is mapped, to be found in the system's own reports (`/proc/self/smaps`).
    pub fn percpu_ranges(&self) -> Vec<Range<usize>> {
        memory::ranges(self.shared)
    }

    /// Registers a shrinker that may hold memory of several groups; it is asked for those in which it has a [seat](Registration::seat).
    /// Where it has the memory of one group alone, [`Group::add_shrinker`] is less to keep.
    ///
    /// # Errors
    /// There are as many shrinkers as there can be.
    pub fn add_shrinker(
        &self,
        config: ShrinkerConfig,
        shrinker: impl Shrinker,
    ) -> Result<Registration, ShrinkerError> {
        shrink::register(self.shared, config, Box::new(shrinker))
    }

    /// Every shrinker that is registered, and what its calls came to: what Linux shows of its shrinkers in debugfs.
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
    /// assert_eq!(hierarchy.shrinker_counts(report.id).unwrap()[0].1, Count::Empty);
    /// # drop(registered);
    /// ```
    pub fn shrinkers(&self) -> Vec<ShrinkerReport> {
        report::all(self.shared)
    }

    /// What a shrinker says it holds in each group in which it has a seat, asked now.
    ///
    /// # Errors
    /// No shrinker has this number now.
    pub fn shrinker_counts(&self, id: ShrinkerId) -> Result<Vec<(Group, Count)>, AskError> {
        report::counts(self.shared, id)
    }

    /// Waits until each call of a shrinker of this hierarchy that is on now has returned; calls that begin meanwhile are not waited for. For who
    /// frees what callbacks of several shrinkers may be using: what Linux has `synchronize_shrinkers` for. For one shrinker, its
    /// [`Removal`](crate::Removal) waits.
    ///
    /// What the calls did happens before the return.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # use std::time::{Duration, Instant};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// hierarchy.wait_for_shrinkers(Some(Instant::now() + Duration::from_secs(1))).unwrap();
    /// ```
    ///
    /// # Errors
    /// The calling thread is itself in a call; or the deadline has passed, and the error names a call that goes on.
    pub fn wait_for_shrinkers(&self, deadline: Option<Instant>) -> Result<(), CallsError> {
        quiesce::wait(self.shared, deadline)
    }

    /// Registers a subsystem: from now on all groups have its statistics. At any time, for the rest of the hierarchy's life; a
    /// subsystem that is registered already, with the same statistics, is found.
    ///
    /// Allocates some hundred bytes for each group there is, and per-CPU memory with the first addition in each.
    ///
    /// # Errors
    /// A name is invalid, or taken by other statistics, or there are eight subsystems already ([`SUBSYSTEMS_MAX`](crate::SUBSYSTEMS_MAX)), the
    /// three built-in ones included.
    pub fn register(&self, subsystem: Subsystem) -> Result<Statistics, RegisterError> {
        Statistics::register(self, subsystem)
    }

    /// The statistics of the subsystem with this name.
    pub fn statistics(&self, name: &str) -> Option<Statistics> {
        self.shared.statistics.find(name).map(|store| Statistics::of(self, store))
    }

    /// The names of all subsystems, the built-in ones first.
    pub fn subsystems(&self) -> Vec<&'static str> {
        self.shared.statistics.names()
    }

    fn builtin(&self, number: usize) -> Statistics {
        Statistics::of(self, self.shared.statistics.store(number))
    }

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

    pub(crate) fn shared(&self) -> &'static Shared {
        self.shared
    }

    /// The group that has this id now, if it is online or dying. Ids of groups that were released are given to new ones.
    pub fn group(&self, id: GroupId) -> Option<Group> {
        let tree = self.shared.tree.lock();
        (id.0 < tree.places() && tree.state(id) != State::Free).then(|| self.pinned(id))
    }

    /// Uncharges `bytes` from the group with this id: for memory blocks that remember their owner instead of holding a
    /// [`Charge`]. Pairs with [`Charge::into_parts`]; as fast as dropping a charge.
    ///
    /// # Panics
    /// When `id` was never given out, or when more is uncharged than the group holds. The counters are put right
    /// before the panic, but charges of others may be uncounted by then.
    #[inline]
    pub fn uncharge(&self, id: GroupId, bytes: u64) {
        if bytes > 0 {
            self.node(id).uncharge(bytes);
        }
    }

    /// Charges `bytes` to the group in force on this thread, as [`Group::try_charge`] does; `None` if none is in force or
    /// it is another hierarchy's. Ids are a hierarchy's own, so this is what goes with [`uncharge`](Hierarchy::uncharge).
    #[inline]
    pub fn try_charge_current(&self, bytes: u64) -> Option<Result<Charge, ChargeError>> {
        let node = scope::node().filter(|node| std::ptr::eq(node.shared, self.shared))?;
        Some(node.charge(bytes).map(|()| Charge::owning(node, bytes)))
    }

    /// The inverse of [`Charge::into_parts`]: a charge that owns `bytes` already charged to the group with this id.
    ///
    /// # Panics
    /// When `id` was never given out, or, for zero bytes, when no group has it now.
    pub fn charge_from_parts(&self, id: GroupId, bytes: u64) -> Charge {
        if bytes > 0 {
            return Charge::owning(self.node(id), bytes);
        }
        let group = self.group(id).unwrap_or_else(|| panic!("no group has the id {}", id.0));
        Charge::empty(&group)
    }

    fn pinned(&self, id: GroupId) -> Group {
        Group::pinned(self.node(id))
    }

    #[inline]
    fn node(&self, id: GroupId) -> &'static Node {
        // A node is made before its place is given out; the number of places tells which were.
        match self.shared.node(id) {
            Some(node) if id.0 < self.shared.places() => node,
            _ => unknown(id),
        }
    }
}

#[cold]
fn unknown(id: GroupId) -> ! {
    panic!("the group id {} was never given out by this hierarchy", id.0)
}

impl Clone for Hierarchy {
    fn clone(&self) -> Hierarchy {
        self.shared.hold();
        Hierarchy { shared: self.shared }
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        self.shared.let_go();
    }
}

impl fmt::Debug for Hierarchy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Read before anything is written: a writer is a user's code, and may be slow or charge.
        let groups = self.shared.tree.lock().in_use();
        f.debug_struct("Hierarchy").field("groups", &groups).field("config", &self.shared.config).finish()
    }
}

impl PartialEq for Hierarchy {
    /// Whether both are handles of one tree.
    fn eq(&self, other: &Hierarchy) -> bool {
        std::ptr::eq(self.shared, other.shared)
    }
}

impl Eq for Hierarchy {}
