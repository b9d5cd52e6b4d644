//! Make room: has shrinkers free the bytes that a refused charge lacks.

use std::time::{Duration, Instant};

use crate::base::limit::BYTES_MAX;
use crate::control::{aftermath, dry_run, freeze, high, over_limit};
use crate::counter::chain::{Climb, Until};
use crate::counter::events::Event;
use crate::observe::pressure::Stall;
use crate::observe::{event, pressure};
use crate::reclaim::{self, Purpose, ReclaimCredit, ScanControl, credit};
use crate::state::stats::builtin::memory;
use crate::stats::update::count;
use crate::tree::node::Node;

/// Further rounds without progress after which a charge is refused.
const FRUITLESS_MOST: u32 = 16;

/// Rounds for one group after which a charge is refused, even if each of them freed bytes. So a reclaim ends although shrinkers free a byte at a time.
const ROUNDS_MOST: u32 = 1024;

/// How long a charge waits for a thread that moves a mark before it looks again.
const MOVE_PAUSE: Duration = Duration::from_millis(1);

/// How often room is made for one charge, each time in the group that refuses it then.
const LEVELS_MOST: u32 = 16;

/// The result of making room for a charge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// The charge is made.
    Charged,
    /// Caches had nothing left for this charge when they were last asked. Other threads may fill them.
    NothingLeft,
    /// Caches were asked as often as they may be for one charge, or gave nothing.
    None,
}

/// Has shrinkers make room after `over` refused a charge of `node` and draining did not help: there, and in each level that refuses next. If
/// the charge was not made, `over` is the level that refuses it now. No round and no wait begins after `end`.
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
    let (mut stalled, mut room) = (None, Room::None);
    let is_charged = at_refusing_levels(over, |over| {
        if !over.shared().config.reclaim() {
            return Step::Full;
        }
        if !reclaim::is_any(over) {
            room = Room::NothingLeft;
            return Step::Full;
        }
        let stalled = stalled.get_or_insert_with(|| pressure::stall(node));
        make_room_in(node, until, bytes, over, end, stalled, &mut room)
    });
    if is_charged { Room::Charged } else { room }
}

/// The result of making room in one group.
pub(crate) enum Step {
    /// The charge is made.
    Charged,
    /// The group gives no more.
    Full,
    /// Another level of the chain refuses now.
    FullAt(&'static Node),
}

/// Repeats `step` in the level that refuses, which may change. Returns whether the charge was made.
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

fn make_room_in(
    node: &'static Node,
    until: Until,
    bytes: u64,
    over: &'static Node,
    end: Instant,
    stalled: &mut Stall,
    room: &mut Room,
) -> Step {
    *room = Room::None;
    let Some(kept) = ReclaimCredit::begin(over, Purpose::Charge(node, bytes)) else { return Step::Full };
    let (mut least, mut fruitless, mut waits, mut spares_low) = (kept.lacks(), 0, None, true);
    for _ in 0..ROUNDS_MOST {
        if Instant::now() >= end {
            break;
        }
        let (freed_before, kept_before) = (kept.freed(), kept.kept());
        let missing = freed_before + kept.lacks().max(1);
        let control = ScanControl::new(over, &kept, missing, spares_low);
        let control = ScanControl { waiter: waits, end: Some(end), ..control };
        let stats = reclaim::round(over, control).stats;
        // Without another round: a cache was busy, or may have been missed.
        let may_have_more = stats.marks_moved || stats.was_emptied;
        let may_give = stats.busy > 0 || may_have_more;
        // Mostly the kept bytes are enough. A drain visits every group below.
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
            None if stats.is_called_off => return Step::Full,
            // Bytes that others took again are no progress.
            None if kept.lacks() < least || kept.kept() > kept_before => {
                least = least.min(kept.lacks());
                fruitless = 0;
            }
            // No other shrinker has anything to give.
            None if stats.spared_low && (waits.is_some() || (kept.freed() == freed_before && !may_give)) => {
                spares_low = false;
            }
            None if kept.freed() == freed_before && !may_give => {
                if kept.freed() > 0 || !reclaim::is_any(over) {
                    *room = Room::NothingLeft;
                }
                return Step::Full;
            }
            // The thread that moves a mark may have lost its CPU, and the cache may be full.
            None if fruitless == FRUITLESS_MOST && over.shared().shrinkers().is_moving() => {
                waits = Some(node);
                stalled.lasts();
                std::thread::sleep(MOVE_PAUSE);
            }
            None if fruitless == FRUITLESS_MOST => {
                // Others moved marks or emptied a cache during the last round: they may have filled caches.
                if may_have_more {
                    *room = Room::NothingLeft;
                }
                return Step::Full;
            }
            None => {
                (fruitless, waits) = (fruitless + 1, Some(node));
                stalled.lasts();
                std::thread::yield_now();
            }
        }
    }
    Step::Full
}

/// Tries a charge for which `kept` holds bytes in `full`. Returns `None` if `full` still refuses it.
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

/// Makes the charge of a callback: beyond the limits, as far as the reserve goes.
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
