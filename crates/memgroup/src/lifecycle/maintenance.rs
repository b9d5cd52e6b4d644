//! Maintenance: returns per-CPU memory that groups no longer need to the system.
//!
//! The engine starts no thread. A caller gives `Hierarchy::maintain` some of its time. A removal does a bounded part of the same work
//! when enough has piled up, so that memory goes back without any call of `maintain`.
//!
//! One pass, each step with the tree lock held for at most 64 pages' worth of records at a time:
//!
//! 1. free places give up the records that they kept for their next group, and idle groups theirs (`residence`);
//! 2. records move out of sparse chunks into holes of full ones;
//! 3. the pass waits for a grace period, with no lock that a charge takes, and frees the memory left behind;
//! 4. pages without live records go back.
//!
//! - P1. A removal makes a pass when the kept records are at least half of the live ones, and more than may float. So each pass
//!   returns a part of the memory, and a process that removes all its groups pays for a few passes in all.
//! - P2. The end of the last handle removes all groups, and makes a pass for more than 256 KiB, floating pages included. Records of
//!   groups with charged bytes stay for the next hierarchy of the same configuration: the thread that returns the last byte must not
//!   wait.

use core::time::Duration;
use std::time::Instant;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicBool, Ordering};
use memgroup_sync::grace::{self, Form};

use crate::lifecycle::{memory, records, residence};
use crate::state::stats::store::StatStore;
use crate::stats::release::DeferredReleases;
use crate::tree::node::Node;
use crate::tree::parts::{Key, Part};
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// The most pages that are worked on while a lock is held.
pub(crate) const PAGES_HELD_MAX: u64 = 64;

/// The least that a removal makes a pass for: less is not worth a grace period.
const FREED_LEAST: u64 = 256 << 10;

/// The most that one removal frees. Later removals continue.
const FREED_MOST: u64 = 256 << 20;

/// The longest wait of a removal for a grace period, which takes 10 to 20 ms where no read section lasts long.
const GRACE_MOST: Duration = Duration::from_millis(250);

/// After a removal waited that long in vain, others make no pass for this time.
const STALLED_PAUSE: Duration = Duration::from_secs(5);

/// Options of one pass of [`Hierarchy::maintain`](crate::Hierarchy::maintain).
///
/// ```
/// use memgroup::{Config, Hierarchy, Maintenance};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let done = hierarchy.maintain(Maintenance::new().move_bytes_max(1 << 20));
/// assert_eq!(done.moved_records, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Maintenance {
    move_bytes_max: u64,
    form: Form,
    all: bool,
    now: Option<Instant>,
}

impl Default for Maintenance {
    fn default() -> Maintenance {
        Maintenance::new()
    }
}

impl Maintenance {
    /// A pass that moves at most 64 MiB, and leaves the pages that may float by the hierarchy's [`Config`](crate::Config).
    ///
    /// It waits for grace periods without interrupting threads, which takes some tens of milliseconds. Pages that go back to the
    /// system still interrupt every CPU that runs the process, for some microseconds (a TLB shootdown).
    pub fn new() -> Maintenance {
        Maintenance { move_bytes_max: 64 << 20, form: Form::Quiet, all: false, now: None }
    }

    /// Sets the most bytes of records to move, over all slots. The last record that moves may pass the bound.
    ///
    /// With 0 no record moves, and [`more`](Maintained::more) is about pages alone.
    #[must_use]
    pub fn move_bytes_max(self, bytes: u64) -> Maintenance {
        Maintenance { move_bytes_max: bytes, ..self }
    }

    /// Waits for grace periods by interrupting each running thread of the process for some microseconds.
    #[must_use]
    pub fn expedited(self) -> Maintenance {
        Maintenance { form: Form::Expedited, ..self }
    }

    /// Returns pages that may float too, and has glibc's allocator return free memory, which takes milliseconds where the heap is large.
    #[must_use]
    pub fn all(self) -> Maintenance {
        Maintenance { all: true, ..self }
    }

    /// Decides by this time which groups are idle, and which pages have floated long enough.
    #[must_use]
    pub fn at(self, now: Instant) -> Maintenance {
        Maintenance { now: Some(now), ..self }
    }
}

/// Figures of one pass of maintenance, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Bytes that went back to the system, as pages and as whole chunks.
    pub depopulated_bytes: u64,
    /// Bytes of nodes that went back to the system. They go by chunks of 64 groups.
    pub node_bytes: u64,
    /// Bytes of records that moved, over all slots.
    pub moved_bytes: u64,
    /// Records that moved. A group has one for its stock, and one in each subsystem that it has statistics in.
    pub moved_records: u64,
    /// Idle groups that gave their records up, and removed groups with handles or bytes.
    pub demoted_groups: u64,
    /// The most pages worked on while a lock was held.
    pub pages_held_max: u64,
    /// Time that the pass waited for grace periods.
    pub grace: Duration,
    /// Whether more could be moved or returned than the pass was allowed to.
    pub more: bool,
}

impl Maintained {
    /// Adds one more pass. The last one decides whether there is more.
    fn add(&mut self, pass: &Maintained) {
        self.depopulated_bytes += pass.depopulated_bytes;
        self.node_bytes += pass.node_bytes;
        self.moved_bytes += pass.moved_bytes;
        self.moved_records += pass.moved_records;
        self.demoted_groups += pass.demoted_groups;
        self.pages_held_max = self.pages_held_max.max(pass.pages_held_max);
        self.grace += pass.grace;
        self.more = pass.more;
    }
}

/// The maintenance of one hierarchy.
pub(crate) struct Upkeep {
    /// Held during a pass. No removal starts one before this moment, because a read section did not end during the last one.
    pub(crate) not_before: Mutex<Option<Instant>>,
    /// A removal left empty pages to the next one.
    has_unreturned: AtomicBool,
    /// The sum of all passes. Locked for an addition or a copy, under no lock but `not_before`.
    pub(crate) done: Mutex<Maintained>,
}

static UPKEEP: Key<Upkeep> = Key::new(6, Upkeep::new);

impl Upkeep {
    fn new() -> Upkeep {
        Upkeep {
            not_before: Mutex::new(None),
            has_unreturned: AtomicBool::new(false),
            done: Mutex::new(Maintained::default()),
        }
    }
}

impl Part for Upkeep {
    /// The pause and the pages that wait stay: they are of the memory, which the next user of the hierarchy gets too.
    fn reset(&self) {
        *self.done.lock() = Maintained::default();
    }
}

impl Shared {
    pub(crate) fn upkeep(&self) -> &Upkeep {
        self.parts.get(&UPKEEP)
    }
}

/// Number of groups that need no memory: free places, and removed groups that still have a handle or bytes.
fn reclaimable(tree: &Tree) -> u64 {
    (tree.kept() + tree.departed()) as u64
}

/// Bytes of those groups. Removed groups that are not free keep their nodes.
fn reclaimable_bytes(shared: &'static Shared, tree: &Tree) -> u64 {
    reclaimable(tree) * memory::group_bytes(shared) + (tree.kept() * size_of::<Node>()) as u64
}

/// Whether a removal should make a pass.
pub(crate) fn is_due(shared: &'static Shared, tree: &Tree) -> bool {
    let config = &shared.config;
    if !config.depopulate || !config.maintain_on_removal {
        return false;
    }
    let worth_it = reclaimable_bytes(shared, tree) > config.float_bytes.max(FREED_LEAST);
    // ORDERING: Relaxed; a hint, which is checked again during the pass.
    let has_unreturned = shared.upkeep().has_unreturned.load(Ordering::Relaxed);
    worth_it && 2 * reclaimable(tree) > u64::from(tree.online()) || has_unreturned
}

/// The pass of a removal.
///
/// It waits for one grace period, if there is enough to free. It moves no more than it frees, into space that earlier passes freed.
#[cold]
pub(crate) fn after_removal(shared: &'static Shared) {
    if grace::inside() {
        // It would wait for its own thread. The next removal finds the same work.
        return;
    }
    let Some(mut not_before) = shared.upkeep().not_before.try_lock() else { return };
    if not_before.is_some_and(|moment| Instant::now() < moment) {
        return;
    }
    let (mut done, before) = (Maintained::default(), memory::returned_bytes(shared));
    let kept = reclaimable_bytes(shared, &shared.tree.lock());
    // While a stalled read section holds memory back, no more is given up, and places keep their records for their next groups.
    let mut in_time = free_limbo_soon(shared, &mut done);
    if kept > FREED_LEAST && in_time {
        let freed = kept.min(FREED_MOST);
        records::free_kept(shared, freed, &mut done);
        records::demote_removed(shared, freed, &mut done);
        if shared.config.relocate {
            records::relocate(shared, freed, &mut done);
        }
        in_time = free_limbo_soon(shared, &mut done);
    }
    *not_before = (!in_time).then(|| Instant::now() + STALLED_PAUSE);
    done.more = false;
    return_pages(shared, Instant::now(), false, FREED_MOST, &mut done);
    end_pass(shared, before, done.more, &mut done);
}

/// Adds a pass to the sums. `has_unreturned` is a hint for the next removal.
fn end_pass(shared: &'static Shared, returned_before: u64, has_unreturned: bool, done: &mut Maintained) {
    // ORDERING: Relaxed; a hint.
    shared.upkeep().has_unreturned.store(has_unreturned, Ordering::Relaxed);
    done.depopulated_bytes = memory::returned_bytes(shared) - returned_before;
    shared.upkeep().done.lock().add(done);
}

/// The pass of the last handle: all groups are removed, and those without charged bytes give their memory back.
///
/// It does nothing if that is not worth a grace period. It does nothing in a read section of this thread, because it would wait for itself.
/// The next hierarchy of the same configuration has the memory then.
#[cold]
pub(crate) fn at_the_end(shared: &'static Shared) {
    if !shared.config.maintain_on_removal || grace::inside() || memory::all_bytes(shared) <= FREED_LEAST {
        return;
    }
    // A thread that holds the lock has a handle, so the hierarchy is in use again, or it ends the hierarchy.
    if let Some(_pass) = shared.upkeep().not_before.try_lock() {
        let mut done = Maintained::default();
        records::free_all(shared, &mut done);
        free_limbo_soon(shared, &mut done);
        return_pages(shared, Instant::now(), true, u64::MAX, &mut done);
    }
}

/// One pass of `maintain`. The caller holds the lock of passes.
pub(crate) fn pass(shared: &'static Shared, options: Maintenance) -> Maintained {
    let (mut done, before) = (Maintained::default(), memory::returned_bytes(shared));
    if !shared.config.depopulate {
        return done;
    }
    let now = options.now.unwrap_or_else(Instant::now);
    let wait = || {
        grace::synchronize(options.form);
        true
    };
    records::free_kept(shared, u64::MAX, &mut done);
    records::demote_removed(shared, u64::MAX, &mut done);
    let cold = records::demote_idle(shared, now, &mut done);
    free_limbo(shared, &mut done, wait);
    if shared.config.relocate && options.move_bytes_max > 0 {
        records::relocate(shared, options.move_bytes_max, &mut done);
        free_limbo(shared, &mut done, wait);
    }
    return_pages(shared, now, options.all, u64::MAX, &mut done);
    provide(shared, cold);
    end_pass(shared, before, false, &mut done);
    if options.all {
        // Names and tables of groups are on the heap, between blocks that stay.
        memgroup_sync::trim_heap();
    }
    done
}

/// Sets address space aside for the groups without records, so that their next charges and additions never wait for it.
fn provide(shared: &'static Shared, cold: u64) {
    if shared.config.demote_after.is_some() {
        // Where the system refuses, their charges stay exact, and the next pass asks again.
        let _ = shared.memory.stocks.provide(cold);
    }
    let _tree = shared.tree.lock();
    shared.statistics.stores().for_each(StatStore::provide);
}

/// As `free_limbo`, for a thread that did not ask for maintenance: it waits only for so long. Memory that a longer read section
/// holds back is left to the next pass. `grace::stallers` names its thread.
fn free_limbo_soon(shared: &'static Shared, done: &mut Maintained) -> bool {
    let wait = || grace::synchronize_until(Form::Quiet, Instant::now() + GRACE_MOST).is_ok();
    free_limbo(shared, done, wait)
}

/// Frees the memory that waits for a grace period, after `wait`, which tells whether the grace period has passed.
fn free_limbo(shared: &'static Shared, done: &mut Maintained, wait: impl Fn() -> bool) -> bool {
    let stocks = &shared.memory.stocks;
    let has_limbo = stocks.limbo_records() > 0
        || shared.has_limbo()
        || shared.statistics.stores().any(StatStore::has_limbo);
    if !has_limbo {
        return true;
    }
    let began = Instant::now();
    let in_time = wait();
    done.grace += began.elapsed();
    stocks.reclaim(|old, tag| residence::last_look(shared, old, tag));
    shared.statistics.stores().for_each(StatStore::reclaim);
    if shared.has_limbo() {
        let _releases = DeferredReleases(shared);
        done.node_bytes += shared.reclaim_nodes(&shared.layout.write());
    }
    in_time
}

/// Returns pages without live records to the system, at most so many bytes.
fn return_pages(shared: &'static Shared, now: Instant, all: bool, bytes_max: u64, done: &mut Maintained) {
    let mut bytes = 0;
    for arena in memory::all(shared).map(|records| records.arena()) {
        loop {
            if bytes >= bytes_max {
                done.more = true;
                return;
            }
            let most = PAGES_HELD_MAX as usize;
            let returned = if all { arena.depopulate_now(most) } else { arena.depopulate(now, most) };
            bytes += returned.bytes;
            done.pages_held_max = done.pages_held_max.max(returned.pages as u64);
            if !returned.more || returned.pages == 0 {
                done.more |= returned.more;
                break;
            }
        }
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use core::time::Duration;
    use std::sync::mpsc::channel;

    use memgroup_percpu::SlotSource;
    use xtask::Watchdog;

    use super::*;
    use crate::{Config, Hierarchy, Stat, Subsystem};

    /// A hierarchy in which memory waits for a grace period.
    fn with_limbo() -> Hierarchy {
        let hierarchy = Hierarchy::new(Config::new().slots(SlotSource::virtual_slots(3).unwrap())).unwrap();
        let shared = hierarchy.root().node().shared();
        // The hierarchy may have been another test's.
        *shared.upkeep().not_before.lock() = None;
        let group = hierarchy.create("/group").unwrap();
        drop(group.try_charge(1).unwrap());
        group.remove().unwrap();
        drop(group);
        records::free_kept(shared, u64::MAX, &mut Maintained::default());
        assert!(shared.memory.stocks.limbo_records() > 0);
        hierarchy
    }

    #[test]
    fn pauses_removals_after_a_late_grace_period() {
        let (tell, told) = channel();
        let (leave, left) = channel::<()>();
        let _watchdog = Watchdog::over("a removal beside a section that lasts");
        let began = Instant::now();
        let hierarchy = std::thread::scope(|scope| {
            scope.spawn(move || {
                let _section = grace::enter();
                tell.send(()).unwrap();
                left.recv().unwrap_err();
            });
            told.recv().unwrap();
            // In the section: other tests end grace periods that began before it.
            let hierarchy = with_limbo();
            after_removal(hierarchy.root().node().shared());
            drop(leave);
            hierarchy
        });
        let shared = hierarchy.root().node().shared();
        assert!(shared.memory.stocks.limbo_records() > 0, "the section holds it back");
        let paused = shared.upkeep().not_before.lock().expect("removals pause");
        assert!(paused >= began + STALLED_PAUSE);
        assert!(hierarchy.maintained().grace >= GRACE_MOST);
    }

    #[test]
    fn waits_for_no_grace_period_in_the_pause() {
        let hierarchy = with_limbo();
        let shared = hierarchy.root().node().shared();
        let later = Instant::now() + Duration::from_secs(3600);
        *shared.upkeep().not_before.lock() = Some(later);
        let before = hierarchy.maintained();
        (0..10).for_each(|_| after_removal(shared));
        assert_eq!(hierarchy.maintained(), before, "no pass was made");
        assert!(shared.memory.stocks.limbo_records() > 0);
        assert_eq!(*shared.upkeep().not_before.lock(), Some(later));
    }

    #[test]
    fn ends_the_pause_with_a_pass_in_time() {
        let hierarchy = with_limbo();
        let shared = hierarchy.root().node().shared();
        hierarchy.maintain(Maintenance::new().expedited());
        assert_eq!(shared.memory.stocks.limbo_records(), 0);
        *shared.upkeep().not_before.lock() = Some(Instant::now());
        after_removal(shared);
        assert_eq!(*shared.upkeep().not_before.lock(), None);
    }

    #[test]
    fn adds_up_all_passes_of_one_hierarchy() {
        let config = Config::new()
            .slots(SlotSource::virtual_slots(1).unwrap())
            .float(0, Duration::ZERO)
            .groups_max(1001);
        let hierarchy = Hierarchy::new(config).unwrap();
        let stats: &'static [Stat] =
            (0..501).map(|number| Stat::gauge(format!("gauge{number}").leak())).collect::<Vec<_>>().leak();
        let counts = hierarchy.register(Subsystem { name: "gauges", stats }).unwrap();
        let key = counts.keys().next().unwrap();
        let groups: Vec<_> = (0..1000)
            .map(|number| {
                let group = hierarchy.root().create(&format!("g{number}")).unwrap();
                counts.add(&group, key, 1);
                group
            })
            .collect();
        let (stay, go): (Vec<_>, Vec<_>) = (0..).zip(groups).partition(|(number, _)| number % 10 == 0);
        go.into_iter().for_each(|(_, group)| group.remove().unwrap());
        let removals = hierarchy.maintained();
        assert!(removals.moved_bytes > 0 && removals.moved_records > 0, "{removals:?}");
        let pass = hierarchy.maintain(Maintenance::new().all());
        let all = hierarchy.maintained();
        assert!(pass.pages_held_max > 0, "{pass:?}");
        assert_eq!(all.moved_bytes, removals.moved_bytes + pass.moved_bytes);
        assert_eq!(all.depopulated_bytes, removals.depopulated_bytes + pass.depopulated_bytes);
        assert_eq!(all.grace, removals.grace + pass.grace);
        drop((stay, counts, hierarchy));
        assert_eq!(Hierarchy::new(config).unwrap().maintained(), Maintained::default());
    }
}
