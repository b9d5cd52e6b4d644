//! Visit: what a walk does with one marked seat.
//!
//! ```text
//!   class as marked? ─ shrinker pinned? ─ set aside? ─▶ could anything be asked for, going by the last count? ─▶ count ─▶ how much ─▶ scan
//! ```
//!
//! How much is Linux' arithmetic, in bytes: at priority p, F bytes that it holds and D deferred ones make
//! `min((D >> p) + (F >> p) * 4 / cost, 2 F)`, asked for in batches; what is less than a batch, and less than all there is, is deferred, up to 2 F
//! in all. There a cache of less than a batch is *counted* at every priority and *scanned* at the last two; here the mark's class keeps a walk from
//! coming by before it could be asked for anything, and the last count spares the call where it comes too early. At the last priority every
//! cache is counted, and asked for a batch however little its share is: after it comes the refusal. What a group does not hold is asked of nobody.
//!
//! - I1. A scan is one thread's at a time for a seat (`cell` I3), and for the group in which it was found: who has seized the seat looks again
//!   whose it is, and of which group, and until it is let go it is not given to another, nor is the group released (`cell` I2).
//! - E1. The bit of a seat that is empty: unmark → count again, fill → mark. Loom: `a_mark_is_found_from_above`.

use std::time::{Duration, Instant};

use memgroup_sync::atomic::{Ordering, fence};
use memgroup_sync::hazard::Lease;
use memgroup_sync::interleave;

use super::cell::Cell;
use super::entry::{self, Entry};
use super::keep::Keeper;
use super::queue;
use super::registry::UNKNOWN_CLASS;
use super::room::CLASSES;
use super::roster::{self, Roster, Standing};
use super::shrinker::{Ask, Count};
use crate::node::Node;
use crate::rstat::builtin::{MEMORY, memory};
use crate::rstat::update;

/// The priority at which a walk begins: a four-thousandth of what there is.
pub(crate) const PRIORITIES: u32 = 12;

/// What is asked for, and how pressing it is.
pub(crate) struct Wanted {
    pub(crate) bytes: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) may_wait: bool,
}

impl Wanted {
    /// Whether the time is over. Asked after what may have taken some.
    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// What a reclaim met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    pub(crate) visited: u64,
    pub(crate) counted: u64,
    pub(crate) scanned: u64,
    /// Seats of which somebody else is having something given back, or that could not go on.
    pub(crate) busy: u64,
}

/// A walk at one priority.
pub(crate) struct Visitor<'a> {
    pub(crate) wanted: &'a Wanted,
    pub(crate) keeper: &'a Keeper,
    pub(crate) priority: u32,
    pub(crate) class: usize,
    /// With which of the top group's kin the walk begins.
    pub(crate) begin: u32,
    /// Whether it waits for a seat that somebody else is having give back (`queue`).
    pub(crate) waits: bool,
    pub(crate) lease: &'a mut Lease,
    pub(crate) met: &'a mut Met,
}

/// One seat, as it was found.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) node: &'static Node,
    /// The node's, when it was found to be the walk's.
    pub(crate) generation: u32,
    pub(crate) seat: u32,
    pub(crate) cell: &'static Cell,
}

/// The class of a cache that holds so much: the first priorities ask only those that have hundreds of batches.
pub(crate) fn class_of(bytes: u64, batch_bytes: u64) -> usize {
    let batches = bytes / batch_bytes;
    (batches.max(1).ilog2() as usize / 3).min(CLASSES - 1)
}

/// The least class of which something can be asked at a priority: a batch is reached with `2^(priority - 1)` batches.
pub(crate) fn least_class(priority: u32) -> usize {
    (priority.saturating_sub(1) as usize / 3).min(CLASSES - 1)
}

/// What is to be asked for at a priority, of what it holds now and of what was deferred.
fn share(bytes: u64, priority: u32, cost: u32) -> u64 {
    if cost == 0 {
        return bytes / 2;
    }
    ((u128::from(bytes) << 2 >> priority) / u128::from(cost)).min(u128::from(bytes.saturating_mul(2))) as u64
}

/// Whether so much work is worth a call, for a cache that holds `bytes`.
fn is_enough(work: u64, bytes: u64, batch_bytes: u64, priority: u32) -> bool {
    work > 0 && (work >= batch_bytes || work >= bytes || priority == 0)
}

impl Visitor<'_> {
    /// Whether what was wanted is there.
    pub(crate) fn is_done(&self) -> bool {
        self.keeper.freed() >= self.wanted.bytes
    }

    /// Visits a seat that is marked in the walk's class. `false`: the walk is over.
    #[inline(always)]
    pub(crate) fn visit(&mut self, found: &Found) -> bool {
        self.met.visited += 1;
        let &Found { node, cell, .. } = found;
        let Some(shrinker) = cell.shrinker().filter(|_| cell.class() == self.class) else {
            return self.forget(found);
        };
        let Some(place) = node.shared.shrinkers.place_at(shrinker) else { return true };
        let Some(entry) = self.lease.pin(place) else { return true };
        interleave::point();
        if cell.shrinker() != Some(shrinker) || node.generation() != found.generation {
            return true;
        }
        if self.waits && cell.is_busy() && !entry.is_out() {
            let patience = entry.config.patience;
            drop(entry);
            return self.wait_for(found, shrinker, patience);
        }
        let (class, priority, wanted) = (self.class, self.priority, self.wanted);
        let call = Call { found, entry: &entry, shrinker, class, priority, wanted };
        call.make(self.keeper, self.met)
    }

    /// Has a seat give back when those who came before have had it give back, if what they have left is not enough. It is not pinned meanwhile: a
    /// removal waits for calls, not for those who would like to make one.
    #[cold]
    #[inline(never)]
    fn wait_for(&mut self, found: &Found, shrinker: u64, patience: Duration) -> bool {
        let &Found { node, cell, .. } = found;
        if !queue::seize(cell, patience, || node.shared.nanos()) {
            self.met.busy += u64::from(cell.is_busy());
            return true;
        }
        let entry = node.shared.shrinkers.place_at(shrinker).and_then(|place| self.lease.pin(place));
        let lacks = self.keeper.lacks();
        let wanted = Wanted { bytes: self.keeper.freed() + lacks, ..*self.wanted };
        if let Some(entry) = entry.as_deref()
            && !entry.is_out()
            && lacks > 0
        {
            let call = Call { found, entry, shrinker, class: self.class, priority: 0, wanted: &wanted };
            call.scan_if_here(node.shared.nanos(), lacks, lacks, self.keeper, self.met);
        }
        let_go(found, entry.as_deref());
        self.keeper.lacks() > 0
    }

    /// Takes a mark away that tells nothing any more.
    #[cold]
    #[inline(never)]
    fn forget(&self, found: &Found) -> bool {
        let &Found { node, seat, cell, .. } = found;
        // First where it belongs, so that at no time it is nowhere.
        if cell.shrinker().is_some() && cell.class() != self.class {
            roster::mark(node, seat, cell.class());
        }
        roster::unmark(node, seat, self.class);
        // ORDERING: SeqCst; pairs with the fence in `Room::mark` (E1), as in `found_empty`.
        fence(Ordering::SeqCst);
        if cell.shrinker().is_some() && cell.class() == self.class {
            roster::mark(node, seat, self.class);
        }
        true
    }
}

/// One visit of a shrinker that is pinned.
pub(super) struct Call<'a> {
    found: &'a Found,
    entry: &'a Entry,
    shrinker: u64,
    class: usize,
    priority: u32,
    wanted: &'a Wanted,
}

impl<'a> Call<'a> {
    /// A visit that no walk makes.
    pub(super) fn by_hand(found: &'a Found, entry: &'a Entry, shrinker: u64, wanted: &'a Wanted) -> Call<'a> {
        Call { found, entry, shrinker, class: found.cell.class(), priority: 0, wanted }
    }

    /// Has it give back what is wanted, if nobody else is having it give back.
    pub(super) fn demand(&self, keeper: &Keeper, met: &mut Met) {
        let Found { node, cell, .. } = *self.found;
        let began = node.shared.nanos();
        if !cell.seize(began, self.wanted.may_wait) {
            met.busy += 1;
            return;
        }
        self.scan_if_here(began, self.wanted.bytes, self.wanted.bytes, keeper, met);
        let_go(self.found, Some(self.entry));
    }

    /// Has a seat give back that is seized, if it is still the one meant; how many bytes were asked for.
    fn scan_if_here(&self, began: u64, work: u64, bytes: u64, keeper: &Keeper, met: &mut Met) -> u64 {
        if !self.is_here() {
            return 0;
        }
        met.scanned += 1;
        self.scan(began, work, bytes, keeper, met)
    }

    /// Whether the seat is still the shrinker's, and in the group in which it was found.
    fn is_here(&self) -> bool {
        let Found { node, generation, cell, .. } = *self.found;
        cell.shrinker() == Some(self.shrinker) && node.generation() == generation
    }

    /// `false`: the walk is over.
    #[inline(always)]
    fn make(self, keeper: &Keeper, met: &mut Met) -> bool {
        let (entry, cell, wanted) = (self.entry, self.found.cell, self.wanted);
        if cell.is_busy() || entry.is_out() {
            return self.pass_by(met);
        }
        // When it is getting serious it is counted whatever it said, or what has grown since would never be seen.
        if let Some(last) = cell.last_bytes()
            && self.priority > 1
            && !self.could_ask(last)
        {
            return true;
        }
        met.counted += 1;
        let goes_on = match entry.count(cell.token()) {
            Count::Unknown => true,
            count => self.go_on(count, keeper, met),
        };
        goes_on && !wanted.is_late()
    }

    #[inline(never)]
    fn go_on(mut self, count: Count, keeper: &Keeper, met: &mut Met) -> bool {
        let Count::Holds { bytes, .. } = count else { return self.found_empty() };
        let bytes = bytes.min(self.found.node.counter.usage());
        self.place_in_class(bytes);
        self.ask(bytes, keeper, met)
    }

    /// Somebody else is having it give back, or it is not to be called.
    #[cold]
    #[inline(never)]
    fn pass_by(&self, met: &mut Met) -> bool {
        let Found { node, cell, .. } = *self.found;
        if let Some(since) = cell.busy_since() {
            met.busy += 1;
            if self.entry.is_overrun(node.shared.nanos().saturating_sub(since)) && cell.note(since) {
                self.entry.lasts();
            }
        }
        true
    }

    /// Whether anything would be asked of a cache that holds so much.
    fn could_ask(&self, bytes: u64) -> bool {
        let config = &self.entry.config;
        let work = (self.found.cell.deferred() >> self.priority)
            .saturating_add(share(bytes, self.priority, config.cost))
            .min(bytes.saturating_mul(2));
        is_enough(work, bytes, config.batch_bytes, self.priority)
    }

    /// It said it was empty: its mark goes, unless something has come meanwhile.
    fn found_empty(&self) -> bool {
        let Found { node, seat, cell, .. } = *self.found;
        // What comes next may be of any size.
        cell.forget_size(UNKNOWN_CLASS);
        roster::unmark(node, seat, self.class);
        interleave::point();
        // ORDERING: SeqCst; pairs with the fence in `Room::mark` (E1): the count sees what came, or who brought it finds no mark.
        fence(Ordering::SeqCst);
        if cell.shrinker() != Some(self.shrinker) || self.entry.count(cell.token()) != Count::Empty {
            roster::mark(node, seat, cell.class());
        }
        true
    }

    /// Notes how much it holds, and moves its mark to where that belongs.
    fn place_in_class(&mut self, bytes: u64) {
        let Found { node, seat, cell, .. } = *self.found;
        cell.set_last_bytes(bytes);
        let class = class_of(bytes, self.entry.config.batch_bytes);
        if class != self.class {
            cell.set_class(class);
            roster::mark(node, seat, class);
            roster::unmark(node, seat, self.class);
            self.class = class;
        }
    }

    /// Has it give back what its size and the priority make, batch by batch.
    fn ask(&self, bytes: u64, keeper: &Keeper, met: &mut Met) -> bool {
        let (entry, cell) = (self.entry, self.found.cell);
        let delta = share(bytes, self.priority, entry.config.cost);
        let most = bytes.saturating_mul(2);
        let deferred = cell.take_deferred();
        let least = if self.priority == 0 { bytes.min(entry.config.batch_bytes) } else { 0 };
        let work = (deferred >> self.priority).saturating_add(delta).min(most).max(least);
        let is_enough = is_enough(work, bytes, entry.config.batch_bytes, self.priority);
        if !is_enough || (self.priority > 1 && cell.is_resting()) {
            cell.defer(deferred.saturating_add(delta), most);
            return true;
        }
        let began = self.found.node.shared.nanos();
        if !cell.seize(began, self.wanted.may_wait) {
            met.busy += 1;
            cell.defer(deferred.saturating_add(delta), most);
            return true;
        }
        let asked = self.scan_if_here(began, work, bytes, keeper, met);
        cell.defer(deferred.saturating_add(delta).saturating_sub(asked), most);
        let_go(self.found, Some(entry));
        keeper.freed() < self.wanted.bytes
    }

    /// Scans up to `work` bytes, from `began` on; how many were asked for.
    fn scan(&self, mut began: u64, work: u64, bytes: u64, keeper: &Keeper, met: &mut Met) -> u64 {
        let Found { node, cell, .. } = *self.found;
        let (entry, batch_bytes) = (self.entry, self.entry.config.batch_bytes);
        let (freed_before, was_out) = (keeper.freed(), entry.is_out());
        let diverted = node.divert();
        let (mut asked, mut claimed) = (0, 0_u64);
        while is_enough(work - asked, bytes, batch_bytes, self.priority) && keeper.freed() < self.wanted.bytes
        {
            let ask = Ask {
                node,
                token: cell.token(),
                bytes: batch_bytes.min(work - asked),
                deadline: self.wanted.deadline,
                may_wait: self.wanted.may_wait,
                here: core::marker::PhantomData,
            };
            let called = entry.scan(&ask);
            let ended = node.shared.nanos();
            entry.took(ended.saturating_sub(began));
            asked += ask.bytes;
            claimed = claimed.saturating_add(called.claimed);
            if called.has_stopped {
                met.busy += 1;
                entry::add(&entry.calls.stopped, 1);
                break;
            }
            if cell.begin_again(ended) {
                entry.lasts_no_more();
            }
            let is_set_aside = entry.is_out() && !was_out;
            if is_set_aside || entry.is_leaving() || !self.is_here() || self.wanted.is_late() {
                break;
            }
            began = ended;
        }
        drop(diverted);
        let freed = keeper.freed() - freed_before;
        cell.gave(freed < asked / 8);
        entry::add(&entry.calls.scans, 1);
        entry::add(&entry.calls.asked, asked);
        entry::add(&entry.calls.claimed, claimed);
        entry::add(&entry.calls.freed, freed);
        // ORDERING: Relaxed; for people.
        entry.calls.last.store(freed, Ordering::Relaxed);
        update::add(node, MEMORY, memory::RECLAIMS, 1);
        update::add(node, MEMORY, memory::RECLAIMED, freed as i64);
        asked
    }
}

/// Lets a seat go, to who waits for it if somebody does. If it was given up meanwhile, it is given back now.
fn let_go(found: &Found, entry: Option<&Entry>) {
    let &Found { node, seat, cell, .. } = found;
    let ended = queue::let_go(cell, || node.shared.nanos());
    if ended.was_noted
        && let Some(entry) = entry
    {
        entry.lasts_no_more();
    }
    if ended.is_given_up {
        give_back(node, seat);
    }
}

/// A shrinker gives up its seat in a group, which the caller holds. What it was still to be asked for is asked of its next seat above.
pub(crate) fn leave(node: &'static Node, seat: u32, shrinker: u64) {
    let Some(cell) = listed(node).seats.get(seat) else { return };
    // For as long as a call goes on for the seat; `give_back` lets go.
    node.pin();
    let (class, deferred) = (cell.class(), cell.vacate());
    roster::unmark(node, seat, class);
    bequeath(node, shrinker, deferred);
    if cell.give_up() {
        give_back(node, seat);
    }
}

/// A seat that was given up can be another's from now on, and its group is let go.
fn give_back(node: &'static Node, seat: u32) {
    listed(node).return_seat(seat);
    node.unpin();
}

/// Defers `bytes` more at the nearest seat of a shrinker above a group, if it has one.
fn bequeath(node: &'static Node, shrinker: u64, bytes: u64) {
    if bytes == 0 {
        return;
    }
    let above = std::iter::successors(node.parent(), |level| level.parent());
    let heir = above.filter_map(Standing::roster).find_map(|roster| roster.seat_of(shrinker));
    if let Some((_, heir)) = heir {
        heir.defer(bytes, heir.last_bytes().unwrap_or(bytes).saturating_mul(2));
    }
}

fn listed(node: &'static Node) -> &'static Roster {
    node.roster().expect("a group in which a shrinker has a seat has a roster")
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_asked_from_the_first_priority_at_which_a_batch_is_reached() {
        let batch = 64 << 10;
        for batches in [1u64, 2, 7, 8, 9, 63, 64, 100, 511, 512, 5_000, 1 << 20] {
            let bytes = batches * batch;
            let class = class_of(bytes, batch);
            for priority in 0..=PRIORITIES {
                let is_asked = is_enough(share(bytes, priority, 2), bytes, batch, priority);
                assert!(
                    !is_asked || class >= least_class(priority),
                    "{batches} batches are asked for at {priority}, and class {class} is not walked there"
                );
            }
        }
    }

    #[test]
    fn what_is_smaller_than_a_batch_is_asked_at_the_last_priorities_only() {
        let asked: Vec<u32> = (0..=PRIORITIES)
            .filter(|&priority| is_enough(share(4096, priority, 2), 4096, 65_536, priority))
            .collect();
        assert_eq!(asked, [0, 1]);
    }

    #[test]
    fn a_share_is_in_proportion_to_size_and_cost_and_never_more_than_twice_all() {
        assert_eq!(share(1 << 20, 12, 2), 512);
        assert_eq!(share(1 << 20, 12, 4), 256);
        assert_eq!(share(1 << 20, 0, 2), 2 << 20);
        assert_eq!(share(1 << 20, 0, 1), 2 << 20);
        assert_eq!(share(1 << 20, 9, 0), 1 << 19);
        assert_eq!(share(u64::MAX, 0, 1), u64::MAX);
    }
}
