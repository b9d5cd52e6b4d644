//! Maintenance: returns per-CPU memory that groups no longer need to the system.
//!
//! The engine starts no thread. A caller gives `Hierarchy::maintain` some of its time. When enough
//! has piled up, removals and creations do the same work in steps of about 50 us (`pace`), so that
//! memory goes back without any call of `maintain`.
//!
//! One pass, with the tree lock held for at most 64 pages' worth of records at a time:
//!
//! 1. free places give up the records that they kept for their next group, and idle groups theirs
//!    (`residence`);
//! 2. records move out of sparse chunks into holes of full ones;
//! 3. the pass waits for a grace period, with no lock that a charge takes, and frees the memory
//!    left behind;
//! 4. pages without live records go back.
//!
//! - P1. A removal begins a pass when the kept records are at least half of the live ones, and
//!   more than may float. So each pass returns a part of the memory, and a process that removes
//!   all its groups pays for a few passes in all.
//! - P2. A step waits for no grace period: the next steps poll it. While it lasts no more is given
//!   up, so a section that does not end holds back 1 MiB, or the fourth part of the memory without
//!   a group. A grace period begins with the expedited barrier, once for each 256 KiB that wait at
//!   least.
//! - P3. The end of the last handle removes all groups, and makes a pass for more than 256 KiB,
//!   floating pages included. If many dropped hierarchies wait for a user already, it does so for
//!   any memory. Records of groups with charged bytes stay for the next hierarchy of the same
//!   shape: the thread that returns the last byte must not wait.

use core::time::Duration;
use std::time::Instant;

use memgroup_percpu::Arena;
use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicBool, Ordering};
use memgroup_sync::grace::{self, Form, Pending};

use crate::control::release;
use crate::lifecycle::pace::Pace;
use crate::lifecycle::{memory, records};
use crate::state::stats::store::StatStore;
use crate::tree::node::Node;
use crate::tree::parts::{HierarchyPart, Key, Part};
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

#[cfg(all(test, not(memgroup_loom)))]
mod tests;

/// The most pages that are worked on while a lock is held.
pub(crate) const PAGES_HELD_MAX: u64 = 64;

/// The least that a step gives up, and the least that it begins a grace period for.
const FREED_LEAST: u64 = 256 << 10;

/// Steps give up about so much for one grace period, or the fourth part of the memory without a
/// group: then few periods are enough.
const LIMBO_MOST: u64 = 1 << 20;

/// The longest wait of the last handle's end for a grace period, which takes 10 to 20 ms where no
/// read section lasts long.
const GRACE_MOST: Duration = Duration::from_millis(250);

/// The longest pause between two looks at a grace period that lasts.
const LOOK_PAUSE_MOST: Duration = Duration::from_millis(10);

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
    /// A pass that moves at most 64 MiB, and leaves the pages that may float by the hierarchy's
    /// [`Config`](crate::Config).
    ///
    /// It waits for one or two grace periods of 8 to 24 ms each, by `membarrier`, which interrupts
    /// no thread. Memory goes back by `madvise` and `munmap`: each call interrupts every CPU
    /// that runs the process, for some microseconds (a TLB shootdown). Up to 64 neighbouring
    /// pages of a slot go in one call.
    pub fn new() -> Maintenance {
        Maintenance { move_bytes_max: 64 << 20, form: Form::Quiet, all: false, now: None }
    }

    /// Sets the most bytes of records to move, over all slots. The last record that moves may pass
    /// the bound.
    ///
    /// With 0 no record moves, and [`more`](Maintained::more) is about pages alone.
    #[must_use]
    pub fn move_bytes_max(self, bytes: u64) -> Maintenance {
        Maintenance { move_bytes_max: bytes, ..self }
    }

    /// Waits for grace periods by interrupting each running thread of the process for some
    /// microseconds.
    #[must_use]
    pub fn expedited(self) -> Maintenance {
        Maintenance { form: Form::Expedited, ..self }
    }

    /// Returns pages that may float too, and has glibc's allocator return free memory, which takes
    /// milliseconds where the heap is large.
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
    /// Records that moved. A group has one for its stock, and one in each subsystem that it has
    /// statistics in.
    pub moved_records: u64,
    /// Idle groups that gave their records up, and removed groups with handles or bytes.
    pub demoted_groups: u64,
    /// The most pages worked on while a lock was held.
    pub pages_held_max: u64,
    /// Time that the pass waited for grace periods. Removals and creations do not wait.
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
    /// Held during a pass, and during a step.
    pub(crate) steps: Mutex<Steps>,
    /// A step left work to the next one.
    is_under_way: AtomicBool,
    /// The sum of all passes. Locked for an addition or a copy, under no lock but `steps`.
    pub(crate) done: Mutex<Maintained>,
}

/// Where a pass in steps is.
#[derive(Default)]
pub(crate) struct Steps {
    /// The grace period of the memory that was given up, with the time of its begin and of the
    /// next look.
    period: Option<(Pending, Instant, Instant)>,
    /// Records are still to be given up.
    gives_up: bool,
    /// Bytes of records that may move: as many as were given up.
    move_left: u64,
}

static UPKEEP: Key<HierarchyPart, Upkeep> = Key::new(HierarchyPart::Upkeep, Upkeep::new);

impl Upkeep {
    fn new() -> Upkeep {
        Upkeep {
            steps: Mutex::new(Steps::default()),
            is_under_way: AtomicBool::new(false),
            done: Mutex::new(Maintained::default()),
        }
    }
}

impl Part for Upkeep {
    /// The steps stay where they are: they are of the memory, which the next user of the hierarchy
    /// gets too.
    fn reset(&self) {
        *self.done.lock() = Maintained::default();
    }
}

impl Shared {
    pub(crate) fn upkeep(&self) -> &Upkeep {
        self.parts.get(&UPKEEP)
    }
}

/// Number of groups that need no memory: free places, and removed groups that still have a handle
/// or bytes.
fn reclaimable(tree: &Tree) -> u64 {
    (tree.kept() + tree.departed()) as u64
}

/// Bytes of those groups. Removed groups that are not free keep their nodes.
fn reclaimable_bytes(shared: &'static Shared, tree: &Tree) -> u64 {
    let kept = memory::stock_bytes(shared) + size_of::<Node>() as u64;
    reclaimable(tree) * memory::record_bytes(shared) + tree.kept() as u64 * kept
}

/// Whether a removal should do a step.
pub(crate) fn is_due(shared: &'static Shared, tree: &Tree) -> bool {
    is_under_way(shared) || shared.config.maintain_on_removal() && is_worth_it(shared, tree)
}

/// Whether a step was left to later calls.
pub(crate) fn is_under_way(shared: &'static Shared) -> bool {
    // ORDERING: Relaxed; a hint, which is checked again during the step.
    shared.upkeep().is_under_way.load(Ordering::Relaxed)
}

/// Whether a pass should begin (P1).
fn is_worth_it(shared: &'static Shared, tree: &Tree) -> bool {
    2 * reclaimable(tree) > u64::from(tree.online())
        && reclaimable_bytes(shared, tree) > shared.config.float_bytes().max(FREED_LEAST)
}

/// A step of a pass, on the time of a removal or a creation: about 50 us, and no wait. The caller
/// holds no lock.
#[cold]
pub(crate) fn step(shared: &'static Shared) {
    let Some(mut steps) = shared.upkeep().steps.try_lock() else { return };
    let (mut done, before) = (Maintained::default(), memory::returned_bytes(shared));
    let is_left = steps.run(shared, &mut done);
    done.more = false;
    end_pass(shared, before, is_left, &mut done);
}

impl Steps {
    /// Goes on with the pass until its time is over. Whether work is left.
    fn run(&mut self, shared: &'static Shared, done: &mut Maintained) -> bool {
        let now = Instant::now();
        if self.is_held_back(now) {
            return true;
        }
        let pace = Pace::step(now);
        free_ripe(shared, &pace, done);
        return_pages(shared, now, false, &pace, done);
        self.gives_up |= is_worth_it(shared, &shared.tree.lock());
        if self.gives_up && pace.goes_on() {
            self.give_up(shared, &pace, done);
        }
        // Steps that are late begin a period too, once they have given up as much as may wait for
        // one.
        let limbo = limbo_bytes(shared);
        if !pace.goes_on() && limbo < LIMBO_MOST {
            return true;
        }
        if limbo < FREED_LEAST {
            return false;
        }
        self.period = Some((grace::begin(Form::Expedited), now, now));
        true
    }

    /// Whether a section still lasts that was begun before the memory was given up. The looks at
    /// it become rare.
    fn is_held_back(&mut self, now: Instant) -> bool {
        let Some((period, began, next_look)) = &mut self.period else { return false };
        if now < *next_look {
            return true;
        }
        if !period.poll() {
            *next_look = now + (now.saturating_duration_since(*began) / 8).min(LOOK_PAUSE_MOST);
            return true;
        }
        self.period = None;
        false
    }

    /// Gives all kept records up, as many at a time as may wait for one grace period. Moves at
    /// most as many into the space that earlier passes freed.
    fn give_up(&mut self, shared: &'static Shared, pace: &Pace, done: &mut Maintained) {
        let part = reclaimable_bytes(shared, &shared.tree.lock()) / 4;
        let bytes_max = part.max(LIMBO_MOST).saturating_sub(limbo_bytes(shared));
        self.move_left += records::free_kept(shared, bytes_max, pace, done);
        self.move_left += records::demote_removed(shared, bytes_max, pace, done);
        if shared.config.relocate() && pace.goes_on() {
            let before = done.moved_bytes;
            records::relocate(shared, self.move_left, pace, done);
            self.move_left = self.move_left.saturating_sub(done.moved_bytes - before);
        }
        if pace.goes_on() && shared.tree.lock().kept() == 0 {
            (self.gives_up, self.move_left) = (false, 0);
        }
    }
}

/// Adds a pass to the sums. `is_under_way` is a hint for the next removal.
fn end_pass(shared: &'static Shared, returned_before: u64, is_under_way: bool, done: &mut Maintained) {
    // ORDERING: Relaxed; a hint.
    shared.upkeep().is_under_way.store(is_under_way, Ordering::Relaxed);
    done.depopulated_bytes = memory::returned_bytes(shared) - returned_before;
    shared.upkeep().done.lock().add(done);
}

/// The pass of the last handle: all groups are removed, and those without charged bytes give their
/// memory back.
///
/// It does nothing if that is not worth a grace period: for little memory, while few hierarchies
/// keep as much. It does nothing in a read section of this thread, because it would wait for
/// itself. The next hierarchy of the same shape has the memory then.
#[cold]
pub(crate) fn at_the_end(shared: &'static Shared) {
    let is_crowded = release::is_crowded(shared);
    let is_worth_it = || is_crowded || memory::all_bytes(shared) > FREED_LEAST;
    if !shared.config.maintain_on_removal() || grace::inside() || !is_worth_it() {
        return;
    }
    // Where many hierarchies end one after the other, quiet grace periods would take seconds.
    let form = if is_crowded { Form::Expedited } else { Form::Quiet };
    // A thread that holds the lock has a handle, so the hierarchy is in use again, or it ends the
    // hierarchy.
    if let Some(mut steps) = shared.upkeep().steps.try_lock() {
        let mut done = Maintained::default();
        records::free_all(shared, &mut done);
        let wait = || _ = grace::synchronize_until(form, Instant::now() + GRACE_MOST);
        free_limbo(shared, &mut done, wait);
        return_pages(shared, Instant::now(), true, &Pace::whole(), &mut done);
        if is_crowded {
            memory::arenas(shared).for_each(Arena::unmap_empty);
            // The address space that was set aside for the next groups went with it.
            let _tree = shared.tree.lock();
            shared.statistics.stores().for_each(StatStore::provide);
        }
        *steps = Steps::default();
        // ORDERING: Relaxed; a hint.
        shared.upkeep().is_under_way.store(false, Ordering::Relaxed);
    }
}

/// One pass of `maintain`.
pub(crate) fn pass(shared: &'static Shared, options: Maintenance) -> Maintained {
    let mut steps = shared.upkeep().steps.lock();
    let (mut done, before) = (Maintained::default(), memory::returned_bytes(shared));
    *steps = Steps::default();
    let (now, pace) = (options.now.unwrap_or_else(Instant::now), Pace::whole());
    let wait = || grace::synchronize(options.form);
    records::free_kept(shared, u64::MAX, &pace, &mut done);
    records::demote_removed(shared, u64::MAX, &pace, &mut done);
    records::demote_idle(shared, now, &mut done);
    free_limbo(shared, &mut done, wait);
    if shared.config.relocate() && options.move_bytes_max > 0 {
        records::relocate(shared, options.move_bytes_max, &pace, &mut done);
        free_limbo(shared, &mut done, wait);
    }
    return_pages(shared, now, options.all, &pace, &mut done);
    provide(shared);
    end_pass(shared, before, false, &mut done);
    if options.all {
        // Names and tables of groups are on the heap, between blocks that stay.
        memgroup_sync::trim_heap();
    }
    done
}

/// Sets address space aside for the groups without records, so that their next additions never
/// wait for it.
fn provide(shared: &'static Shared) {
    let _tree = shared.tree.lock();
    shared.statistics.stores().for_each(StatStore::provide);
}

/// Bytes that wait for a grace period.
fn limbo_bytes(shared: &'static Shared) -> u64 {
    let of_stores = shared.statistics.stores().map(StatStore::limbo_bytes).sum::<u64>();
    of_stores + shared.limbo_bytes()
}

/// Frees the memory that waits for a grace period, after `wait`.
fn free_limbo(shared: &'static Shared, done: &mut Maintained, wait: impl Fn()) {
    let has_limbo = shared.has_limbo() || shared.statistics.stores().any(StatStore::has_limbo);
    if has_limbo {
        let began = Instant::now();
        wait();
        done.grace += began.elapsed();
        free_ripe(shared, &Pace::whole(), done);
    }
}

/// Frees the memory for which the grace period is over.
fn free_ripe(shared: &'static Shared, pace: &Pace, done: &mut Maintained) {
    let most = pace.at_once(8, usize::MAX);
    for store in shared.statistics.stores() {
        while pace.goes_on() && pace.counts(store.reclaim(most)) {}
    }
    let most = pace.at_once(1, usize::MAX);
    while pace.goes_on() && shared.has_limbo() {
        let bytes = shared.reclaim_nodes(most, || pace.have_flushes_ended(shared));
        done.node_bytes += bytes;
        if !pace.counts_chunk(bytes > 0) {
            return;
        }
    }
}

/// Returns pages without live records to the system.
fn return_pages(shared: &'static Shared, now: Instant, all: bool, pace: &Pace, done: &mut Maintained) {
    for arena in memory::arenas(shared) {
        while pace.goes_on() {
            let most = pace.at_once(16, PAGES_HELD_MAX as usize);
            let returned = if all { arena.depopulate_now(most) } else { arena.depopulate(now, most) };
            done.pages_held_max = done.pages_held_max.max(returned.pages as u64);
            if !pace.counts_pages(returned.pages > 0) || !returned.more {
                done.more |= returned.more;
                break;
            }
        }
    }
}
