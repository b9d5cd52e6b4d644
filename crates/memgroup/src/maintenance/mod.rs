//! Maintenance: per-CPU memory that groups need no more goes back to the system.
//!
//! The engine starts no thread. A caller gives `Hierarchy::maintain` some of its time; a removal does a bounded part of the same
//! work when enough has piled up, so that whoever never calls `maintain` gets memory back too.
//!
//! One pass, each step with the tree lock held for at most 64 pages' worth of records at a time:
//!
//! 1. free places give up the records they kept for their next group, and idle groups theirs (`residence`);
//! 2. records move out of sparse chunks into the holes of full ones;
//! 3. a grace period passes, with no lock held, and what was left behind is free;
//! 4. pages without live records go back.
//!
//! - P1. A removal does this when the kept records are as much as half of the live ones, and more than may float: so each pass gives
//!   back a part of what there is, and a process that removes all its groups pays for a few passes in all.
//! - P2. The end of the last handle removes all groups, and does this for what is more than 256 KiB, whatever may float. The records of
//!   groups that bytes are still charged to stay for the next hierarchy of the same configuration: the last byte is returned where
//!   nobody may wait.

mod records;

use core::time::Duration;
use std::time::Instant;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::grace::{self, Form};

use self::records::{demote_idle, relocate, strip, strip_departed, strip_root};
use crate::memory;
use crate::residence;
use crate::rstat::Store;
use crate::shared::Shared;
use crate::tree::Tree;

/// The most pages that are worked on while a lock is held.
const PAGES_HELD_MAX: u64 = 64;

/// A removal does a pass for no less: a grace period is to be worth its while.
const FREED_LEAST: u64 = 256 << 10;

/// And for no more: what a removal may take is bounded, whatever has piled up. The rest is for those that follow.
const FREED_MOST: u64 = 256 << 20;

/// And waits no longer for a grace period, which takes 10 to 20 ms where no section is held up.
const GRACE_MOST: Duration = Duration::from_millis(250);

/// After it waited that long in vain, removals leave it at that for so long.
const STALLED_PAUSE: Duration = Duration::from_secs(5);

/// What a pass of [`Hierarchy::maintain`](crate::Hierarchy::maintain) may do.
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
    /// Moves at most 64 MiB, interrupts no running thread (and so may take some tens of milliseconds), and leaves what may float
    /// by the hierarchy's [`Config`](crate::Config).
    pub fn new() -> Maintenance {
        Maintenance { move_bytes_max: 64 << 20, form: Form::Quiet, all: false, now: None }
    }

    /// The most bytes of records to move, over all slots; the last record that moves may pass it. With 0 none moves, and
    /// [`more`](Maintained::more) tells of pages alone.
    #[must_use]
    pub fn move_bytes_max(self, bytes: u64) -> Maintenance {
        Maintenance { move_bytes_max: bytes, ..self }
    }

    /// Waits for grace periods by interrupting each running thread of the process for some microseconds, instead of for some
    /// milliseconds without.
    #[must_use]
    pub fn expedited(self) -> Maintenance {
        Maintenance { form: Form::Expedited, ..self }
    }

    /// Gives back all there is, whatever may float.
    #[must_use]
    pub fn all(self) -> Maintenance {
        Maintenance { all: true, ..self }
    }

    /// As if it were `now`: decides which groups are idle and what has floated long enough.
    #[must_use]
    pub fn at(self, now: Instant) -> Maintenance {
        Maintenance { now: Some(now), ..self }
    }
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Bytes that went back to the system, as pages and as whole chunks.
    pub depopulated_bytes: u64,
    /// Bytes of records that moved, over all slots.
    pub moved_bytes: u64,
    /// Records that moved. A group has one for its stock, and one in each subsystem that it has statistics in.
    pub moved_records: u64,
    /// Idle groups that gave their records up, and removed ones on which somebody has a handle or bytes.
    pub demoted_groups: u64,
    /// The most pages worked on while a lock was held.
    pub pages_held_max: u64,
    /// How long the pass waited for grace periods.
    pub grace: Duration,
    /// There is more to move or to give back than the pass was allowed.
    pub more: bool,
}

impl Maintained {
    /// Counts one more pass in; whether there is more is for the last one to say.
    fn add(&mut self, pass: &Maintained) {
        self.depopulated_bytes += pass.depopulated_bytes;
        self.moved_bytes += pass.moved_bytes;
        self.moved_records += pass.moved_records;
        self.demoted_groups += pass.demoted_groups;
        self.pages_held_max = self.pages_held_max.max(pass.pages_held_max);
        self.grace += pass.grace;
        self.more = pass.more;
    }
}

/// Groups whose memory nobody needs: free places, and removed groups on which somebody still has a handle or bytes.
fn reclaimable(tree: &Tree) -> u64 {
    (tree.kept() + tree.departed()) as u64
}

/// Bytes of it. Removed groups that are not free keep their flushed values.
fn reclaimable_bytes(shared: &'static Shared, tree: &Tree) -> u64 {
    reclaimable(tree) * memory::group_bytes(shared) + tree.kept() as u64 * memory::beside_bytes(shared)
}

/// Whether a removal should do a pass.
pub(crate) fn is_due(shared: &'static Shared, tree: &Tree) -> bool {
    let config = &shared.config;
    if !config.depopulate || !config.maintain_on_removal {
        return false;
    }
    let kept = reclaimable(tree);
    let worth_it = reclaimable_bytes(shared, tree) > config.float_bytes.max(FREED_LEAST);
    // ORDERING: Relaxed; a hint, and whoever has the turn knows better.
    worth_it && 2 * kept > u64::from(tree.online()) || shared.unreturned.load(Ordering::Relaxed)
}

/// The pass of a removal: waits for one grace period, if there is enough to free, and moves no more than it frees, into what earlier
/// passes freed.
#[cold]
pub(crate) fn after_removal(shared: &'static Shared) {
    if grace::inside() {
        // It would wait for its own thread. The next removal finds as much to do, and more.
        return;
    }
    let Some(mut not_before) = shared.maintaining.try_lock() else { return };
    if not_before.is_some_and(|moment| Instant::now() < moment) {
        return;
    }
    let (mut done, before) = (Maintained::default(), memory::returned_bytes(shared));
    let kept = reclaimable_bytes(shared, &shared.tree.lock());
    // What a stalled section still holds comes first: while it does, no more is put aside, and places keep their records for
    // the next groups.
    let mut in_time = settle_soon(shared, &mut done);
    if kept > FREED_LEAST && in_time {
        let freed = kept.min(FREED_MOST);
        strip(shared, freed, &mut done);
        strip_departed(shared, freed, &mut done);
        if shared.config.relocate {
            relocate(shared, freed, &mut done);
        }
        in_time = settle_soon(shared, &mut done);
    }
    *not_before = (!in_time).then(|| Instant::now() + STALLED_PAUSE);
    done.more = false;
    give_back(shared, Instant::now(), false, FREED_MOST, &mut done);
    // ORDERING: Relaxed; a hint for the next removal.
    shared.unreturned.store(done.more, Ordering::Relaxed);
    done.depopulated_bytes = memory::returned_bytes(shared) - before;
    shared.maintained.lock().add(&done);
}

/// The pass of the last handle: all groups are removed, and what no byte is charged to any more gives its memory back. Left alone if
/// that is less than a grace period is worth, and in a read section of this thread, for whose end it would wait for ever: the next
/// hierarchy of the same configuration has the memory then.
#[cold]
pub(crate) fn at_the_end(shared: &'static Shared) {
    if !shared.config.maintain_on_removal
        || grace::inside()
        || memory::stats(shared).populated_bytes + memory::all_beside_bytes(shared) <= FREED_LEAST
    {
        return;
    }
    // Whoever has the turn has a handle: the hierarchy is in use again.
    if let Some(_turn) = shared.maintaining.try_lock() {
        let mut done = Maintained::default();
        strip(shared, u64::MAX, &mut done);
        strip_root(shared);
        settle_soon(shared, &mut done);
        give_back(shared, Instant::now(), true, u64::MAX, &mut done);
    }
}

/// One pass; the caller has the turn.
pub(crate) fn pass(shared: &'static Shared, what: Maintenance) -> Maintained {
    let (mut done, before) = (Maintained::default(), memory::returned_bytes(shared));
    if !shared.config.depopulate {
        return done;
    }
    let now = what.now.unwrap_or_else(Instant::now);
    strip(shared, u64::MAX, &mut done);
    strip_departed(shared, u64::MAX, &mut done);
    let cold = demote_idle(shared, now, &mut done);
    settle(shared, what.form, &mut done);
    if shared.config.relocate && what.move_bytes_max > 0 {
        relocate(shared, what.move_bytes_max, &mut done);
        settle(shared, what.form, &mut done);
    }
    give_back(shared, now, what.all, u64::MAX, &mut done);
    // ORDERING: Relaxed; a hint for the next removal.
    shared.unreturned.store(false, Ordering::Relaxed);
    provide(shared, cold);
    done.depopulated_bytes = memory::returned_bytes(shared) - before;
    shared.maintained.lock().add(&done);
    done
}

/// Address space for so many groups that may come back: their charges take what there is and wait for nothing. What was set aside for
/// those that came back, or were removed, goes.
fn provide(shared: &'static Shared, cold: u64) {
    if shared.config.demote_after.is_some() {
        // Refused, they go on being exact, and the next pass asks again.
        let _ = shared.memory.stocks.provide(cold);
    }
    let tree = shared.tree.lock();
    shared.statistics.stores().for_each(|store| store.provide(&tree));
}

/// Waits for a grace period, if anything waits for one, and frees what was left behind.
fn settle(shared: &'static Shared, form: Form, done: &mut Maintained) {
    settle_by(shared, done, || grace::synchronize(form));
}

/// As `settle`, where nobody asked for maintenance: a section that does not end does not hold it up. What it keeps waits for the next
/// pass. Whether it ended in time.
fn settle_soon(shared: &'static Shared, done: &mut Maintained) -> bool {
    let mut in_time = true;
    settle_by(shared, done, || {
        // Who holds it up is told by `grace::stallers`.
        in_time = grace::synchronize_until(Form::Quiet, Instant::now() + GRACE_MOST).is_ok();
    });
    in_time
}

fn settle_by(shared: &'static Shared, done: &mut Maintained, wait: impl FnOnce()) {
    let stocks = &shared.memory.stocks;
    if stocks.limbo_records() == 0 && !shared.statistics.stores().any(Store::has_limbo) {
        return;
    }
    let began = Instant::now();
    wait();
    done.grace += began.elapsed();
    stocks.reclaim(|old, tag| residence::last_look(shared, old, tag));
    shared.statistics.stores().for_each(Store::reclaim);
}

/// Pages without live records go back to the system, at most so many bytes of them.
fn give_back(shared: &'static Shared, now: Instant, all: bool, bytes_max: u64, done: &mut Maintained) {
    let mut given_back = 0;
    for records in memory::all(shared) {
        loop {
            if given_back >= bytes_max {
                done.more = true;
                return;
            }
            let returned = if all {
                records.arena().depopulate_now(PAGES_HELD_MAX as usize)
            } else {
                records.arena().depopulate(now, PAGES_HELD_MAX as usize)
            };
            given_back += returned.bytes;
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
    use memgroup_percpu::SlotSource;

    use super::*;
    use crate::{Config, Hierarchy, Stat, Subsystem};

    #[test]
    fn the_sums_count_the_passes_of_removals_and_start_anew_with_a_hierarchy() {
        let config = Config::new()
            .slots(SlotSource::virtual_slots(1).unwrap())
            .float(0, Duration::ZERO)
            .groups_max(1001);
        let hierarchy = Hierarchy::new(config).unwrap();
        let stats: &'static [Stat] =
            (0..501).map(|number| Stat::gauge(format!("gauge{number}").leak())).collect::<Vec<_>>().leak();
        let counts = hierarchy.register(Subsystem { name: "gauges", stats }).unwrap();
        let groups: Vec<_> = (0..1000)
            .map(|number| {
                let group = hierarchy.root().create(&format!("g{number}")).unwrap();
                counts.add(&group, 0, 1);
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
