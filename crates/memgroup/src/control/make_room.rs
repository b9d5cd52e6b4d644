//! Make room: has shrinkers free the bytes that a refused charge lacks.

use std::time::{Duration, Instant};

use crate::base::limit::BYTES_MAX;
use crate::control::{aftermath, dry_run, freeze, high, over_limit};
use crate::counter::chain::{Climb, Until};
use crate::counter::events::Event;
use crate::observe::pressure::StallGuard;
use crate::observe::{event, pressure};
use crate::reclaim::{self, Purpose, ReclaimCredit, ScanControl, ScanStats, credit};
use crate::state::stats::builtin::memory;
use crate::stats::update::count;
use crate::tree::node::Node;

/// How many rounds in a row without progress end the search in a group.
const FRUITLESS_MOST: u32 = 16;

/// How many rounds end the search even if each of them freed bytes, so that it ends although
/// shrinkers free a byte at a time.
const ROUNDS_MOST: u32 = 1024;

/// How long a charge sleeps for a thread that moves a mark before it asks again.
const MOVE_PAUSE: Duration = Duration::from_millis(1);

/// In how many levels, one after the other, room is made for one charge. Each is the level that
/// refuses the charge then.
const LEVELS_MOST: u32 = 16;

/// The result of making room for a charge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// The charge is made.
    Charged,
    /// Caches had nothing left for this charge when they were last asked. Other threads may fill
    /// them again.
    NothingLeft,
    /// Caches were asked as often as one charge may ask them, or returned nothing.
    None,
}

/// Has shrinkers make room after `over` refused a charge of `node` and draining did not help: in
/// `over`, and in each level that refuses next. If the charge isn't made, `over` becomes the level
/// that refuses it now. No round and no wait begins after `end`.
pub(crate) fn make_room(
    node: &'static Node,
    until: Until,
    bytes: u64,
    over: &mut &'static Node,
    end: Instant,
) -> Room {
    if credit::is_reclaiming() {
        return if draw_on_reserve(node, until, bytes) { Room::Charged } else { Room::None };
    }
    let mut search = Search { node, until, bytes, end, stalled: None, room: Room::None };
    if at_refusing_levels(over, |over| search.make_room_in(over)) { Room::Charged } else { search.room }
}

/// The result of making room in one group.
pub(crate) enum Step {
    /// The charge is made.
    Charged,
    /// The group can't release more.
    Full,
    /// Another level of the chain refuses now.
    FullAt(&'static Node),
}

/// Repeats `step` in the level that refuses, which may change each time. Returns whether the
/// charge was made.
pub(crate) fn at_refusing_levels(
    over: &mut &'static Node,
    mut step: impl FnMut(&'static Node) -> Step,
) -> bool {
    for _ in 0..LEVELS_MOST {
        match step(over) {
            Step::Charged => return true,
            Step::Full => return false,
            Step::FullAt(next) => {
                event::count(next, Event::Max);
                *over = next;
            }
        }
    }
    false
}

/// The search for room for one charge.
struct Search {
    node: &'static Node,
    until: Until,
    bytes: u64,
    end: Instant,
    stalled: Option<StallGuard<'static>>,
    /// The result for the group that was searched last.
    room: Room,
}

/// The rounds in one group so far.
struct Rounds {
    /// The fewest bytes that the charge has lacked.
    least: u64,
    fruitless: u32,
    /// The group on whose behalf the next round waits for busy shrinkers.
    waiter: Option<&'static Node>,
    spares_low: bool,
}

/// What a round did.
struct Round {
    stats: ScanStats,
    lacks: u64,
    freed_any: bool,
    kept_any: bool,
}

/// What follows a round that left the charge refused.
enum Next {
    Again,
    /// Again, after other threads had the CPU.
    Yield,
    /// Again, after a pause for a thread that moves a mark and may have lost its CPU.
    Pause,
    End(Room),
}

impl Search {
    fn make_room_in(&mut self, over: &'static Node) -> Step {
        let &mut Search { node, until, bytes, end, .. } = self;
        self.room = Room::None;
        if !over.shared().config.reclaim() {
            return Step::Full;
        }
        if !reclaim::is_any(over) {
            self.room = Room::NothingLeft;
            return Step::Full;
        }
        self.stalled.get_or_insert_with(|| pressure::stall(node));
        let Some(kept) = ReclaimCredit::begin(over, Purpose::Charge(node, bytes)) else { return Step::Full };
        let mut rounds = Rounds { least: kept.lacks(), fruitless: 0, waiter: None, spares_low: true };
        for _ in 0..ROUNDS_MOST {
            if Instant::now() >= end {
                break;
            }
            let (freed_before, kept_before) = (kept.freed(), kept.kept());
            let missing = freed_before + kept.lacks().max(1);
            let control = ScanControl::new(over, &kept, missing, rounds.spares_low);
            let control = ScanControl { waiter: rounds.waiter, end: Some(end), ..control };
            let stats = reclaim::round(over, control).stats;
            // Usually the kept bytes are enough. A drain visits every group below.
            let attempt = || try_with_kept(node, until, bytes, over, &kept);
            let step = attempt().filter(|step| matches!(step, Step::Charged)).or_else(|| {
                freeze::drain_for_charge(over, kept.lacks());
                attempt()
            });
            match step {
                Some(Step::Charged) => {
                    count(node, memory::GAINED, kept.freed());
                    return Step::Charged;
                }
                Some(refused) => return refused,
                None => {}
            }
            let round = Round {
                stats,
                lacks: kept.lacks(),
                freed_any: kept.freed() > freed_before,
                kept_any: kept.kept() > kept_before,
            };
            match rounds.judge(&round, over, kept.freed() > 0) {
                Next::Again => continue,
                Next::End(room) => {
                    self.room = room;
                    return Step::Full;
                }
                Next::Yield => std::thread::yield_now(),
                Next::Pause => std::thread::sleep(MOVE_PAUSE),
            }
            rounds.waiter = Some(node);
        }
        Step::Full
    }
}

impl Rounds {
    /// Decides what follows a round in `over`.
    fn judge(&mut self, round: &Round, over: &'static Node, has_freed: bool) -> Next {
        let stats = &round.stats;
        if stats.is_called_off {
            return Next::End(Room::None);
        }
        // Bytes that other threads took again are no progress.
        if round.lacks < self.least || round.kept_any {
            self.least = self.least.min(round.lacks);
            self.fruitless = 0;
            return Next::Again;
        }
        // Other threads moved marks or emptied a cache during the round, so it may have missed
        // caches.
        let may_have_more = stats.marks_moved || stats.was_emptied;
        let gave_all = !round.freed_any && stats.busy == 0 && !may_have_more;
        if stats.spared_low && (self.waiter.is_some() || gave_all) {
            // No other shrinker has anything to release.
            self.spares_low = false;
            return Next::Again;
        }
        let nothing_left = |is: bool| Next::End(if is { Room::NothingLeft } else { Room::None });
        if gave_all {
            return nothing_left(has_freed || !reclaim::is_any(over));
        }
        if self.fruitless < FRUITLESS_MOST {
            self.fruitless += 1;
            return Next::Yield;
        }
        // The cache whose mark is being moved may be full.
        if over.shared().shrinkers().is_moving() { Next::Pause } else { nothing_left(may_have_more) }
    }
}

/// Tries a charge for which `kept` holds bytes in `full`. Returns `None` if `full` still refuses
/// it.
pub(crate) fn try_with_kept(
    node: &'static Node,
    until: Until,
    bytes: u64,
    full: &'static Node,
    kept: &ReclaimCredit,
) -> Option<Step> {
    let climb = || Climb { credit: Some((full, kept.kept())), ..Climb::to(until) };
    match dry_run::past_dry_runs(bytes, || aftermath::charge(node, bytes, climb())) {
        Ok(()) => {
            aftermath::use_kept(kept, until);
            Some(Step::Charged)
        }
        Err(refused) if refused.seen.offline || bytes > BYTES_MAX - refused.seen.usage => Some(Step::Full),
        Err(refused) if !std::ptr::eq(refused.node, full) => Some(Step::FullAt(refused.node)),
        Err(_) => None,
    }
}

/// Makes the charge of a callback beyond the limits, as far as the reserve allows.
pub(crate) fn draw_on_reserve(node: &'static Node, until: Until, bytes: u64) -> bool {
    let reserve = node.shared().config.reclaim_reserve_bytes();
    let Until::Top = until else { return false };
    if aftermath::charge_forced(node, bytes, reserve, false).is_err() {
        return false;
    }
    count(node, memory::FORCED, 1);
    over_limit::mark_levels(node);
    high::after_forced_charge(node, bytes);
    true
}
