//! Reclaim: has shrinkers give back what somebody needs, from the whole subtree of the group that is full.
//!
//! By priority from 12 to 0, at each the largest caches first, each in proportion to what it holds, until enough is uncharged. A charge that was
//! refused does that on its own thread, keeps what it set free (`keep`), and tries again; a round in which nothing was set free and
//! nobody else was at it is the last one, and there are at most sixteen in a row after which as much is missing as before. If another level
//! refuses then, room is made in that one. What `low` protects is left alone by the first rounds, what `min` protects by all.
//!
//! - I1. Reclaim does not begin within reclaim: a charge that a callback makes and that is refused draws on the reserve
//!   ([`Config::reclaim_reserve_bytes`](crate::Config::reclaim_reserve_bytes)), or stays refused.
//! - B1. What was kept for a group is let go when another group turns out to refuse, higher up: it is nobody's for that moment.

use std::time::Instant;

use super::call::{Met, Wanted};
use super::entry::domain;
use super::keep::{self, Keeper};
use super::room::CLASSES;
use super::roster::{Roster, Standing, Turn};
use super::share::{PRIORITIES, least_class};
use super::visit::Visitor;
use super::walk;
use crate::chain::{self, Until};
use crate::event::{self, Event};
use crate::high;
use crate::measure;
use crate::node::Node;
use crate::overrun;
use crate::pressure::{self, Stall};
use crate::protect::Sparing;
use crate::rstat::builtin::{MEMORY, memory};
use crate::rstat::update;
use crate::stock::{count, drain};

/// Rounds without success after which a charge is refused.
const FRUITLESS_MOST: u32 = 16;

/// Rounds for one group after which a charge is refused, whatever they came to: caches that give a byte at a time come to nothing.
const ROUNDS_MOST: u32 = 1024;

/// How often room is made for one charge, each time in the group that refuses it then.
const LEVELS_MOST: u32 = 16;

/// What a reclaim came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Bytes that were uncharged in the group and below, on this thread.
    pub bytes: u64,
    /// Times that a shrinker was asked to give back.
    pub scans: u64,
    /// Times that one could not, or that somebody else was having it give back.
    pub busy: u64,
}

/// Whether a shrinker may have anything in `top` or below.
pub(crate) fn is_any(top: &'static Node) -> bool {
    top.shared.shrinkers.is_any()
        && top.roster().is_some_and(|roster| (0..CLASSES).any(|class| roster.is_any(class)))
}

/// One round: all priorities, until what is wanted is set free. At the last it waits for seats that others have, for the group that is given.
fn round(
    top: &'static Node,
    wanted: &Wanted,
    keeper: &Keeper,
    waits: Option<&'static Node>,
    spares_low: bool,
) -> Met {
    let sparing = Sparing::new(top, spares_low);
    let (mut met, mut lease) = (Met::default(), domain().lease());
    let turn = top.roster().map_or_else(Turn::default, Roster::next_turn);
    for priority in (0..=PRIORITIES).rev() {
        for class in (least_class(priority)..CLASSES).rev() {
            let (waits, lease) = (waits.filter(|_| priority == 0), &mut lease);
            let mut visitor =
                Visitor { wanted, keeper, sparing, priority, class, turn, waits, lease, met: &mut met };
            if walk::subtree(top, &mut visitor).is_break() || visitor.is_done() {
                return met;
            }
        }
    }
    met
}

/// Has shrinkers in `top` and below give back `bytes`, or what can be had until the deadline.
pub(crate) fn reclaim(top: &'static Node, bytes: u64, deadline: Option<Instant>) -> Reclaimed {
    give_back(top, &Wanted { bytes, deadline, may_wait: true }, keep::begin)
}

/// As `reclaim`, because usage of `top` is above its `high`: of a root that is left unaccounted, what it has itself.
pub(crate) fn bring_down(
    top: &'static Node,
    bytes: u64,
    deadline: Option<Instant>,
    may_wait: bool,
) -> Reclaimed {
    give_back(top, &Wanted { bytes, deadline, may_wait }, |top, _| keep::begin_beside(top))
}

fn give_back(
    top: &'static Node,
    wanted: &Wanted,
    begin: impl FnOnce(&'static Node, u64) -> Option<Keeper>,
) -> Reclaimed {
    if wanted.bytes == 0 || !is_any(top) {
        return Reclaimed::default();
    }
    let Some(keeper) = begin(top, 0) else { return Reclaimed::default() };
    let mut met = round(top, wanted, &keeper, None, true);
    if met.spared_low && keeper.freed() < wanted.bytes && !wanted.is_late() {
        let Met { scanned, busy, .. } = met;
        met = round(top, wanted, &keeper, None, false);
        met = Met { scanned: met.scanned + scanned, busy: met.busy + busy, ..met };
    }
    Reclaimed { bytes: keeper.freed(), scans: met.scanned, busy: met.busy }
}

/// After `over` has refused a charge of `node`, and draining did not help: has shrinkers make room, there and where it is refused next, and makes
/// the charge. Whether it is made; if not, `over` is where it is refused now.
pub(crate) fn make_room(node: &'static Node, until: Until, bytes: u64, over: &mut &'static Node) -> bool {
    if keep::is_reclaiming() {
        return draw_on_reserve(node, until, bytes);
    }
    let mut stalled = None;
    for _ in 0..LEVELS_MOST {
        if !over.shared.config.reclaim || !is_any(over) {
            return false;
        }
        let stalled = stalled.get_or_insert_with(|| pressure::stall(node));
        match make_room_in(node, until, bytes, over, stalled) {
            Room::Made => return true,
            Room::None => return false,
            Room::LacksIn(next) => {
                event::count(next, Event::Max);
                *over = next;
            }
        }
    }
    false
}

/// What came of making room in one group.
enum Room {
    /// The charge is made.
    Made,
    /// There is none to be had.
    None,
    /// Another level of the chain has none now.
    LacksIn(&'static Node),
}

fn make_room_in(
    node: &'static Node,
    until: Until,
    bytes: u64,
    over: &'static Node,
    stalled: &mut Stall,
) -> Room {
    let Some(keeper) = keep::begin_for(node, over, bytes) else { return Room::None };
    let (mut least, mut fruitless, mut waits, mut spares_low) = (keeper.lacks(), 0, None, true);
    for _ in 0..ROUNDS_MOST {
        let (freed_before, kept_before) = (keeper.freed(), keeper.kept());
        let wanted = Wanted { bytes: freed_before + keeper.lacks().max(1), deadline: None, may_wait: false };
        let met = round(over, &wanted, &keeper, waits, spares_low);
        let attempt = || chain::try_charge_kept(node, until, bytes, over, keeper.kept());
        let charge = || measure::passing(None, bytes, node, attempt);
        // Mostly what was kept is enough, and a drain looks at every group below.
        let outcome = charge().or_else(|_| {
            drain::counted_in(&over.shared.tree.lock(), over);
            charge()
        });
        match outcome {
            Ok(()) => {
                keeper.use_kept(until);
                update::add(node, MEMORY, memory::GAINED, keeper.freed() as i64);
                return Room::Made;
            }
            Err(refused) if refused.seen.offline => return Room::None,
            Err(refused) if !std::ptr::eq(refused.node, over) => return Room::LacksIn(refused.node),
            Err(_) if met.is_called_off => return Room::None,
            // What was set free and taken again is no way to go on.
            Err(_) if keeper.lacks() < least || keeper.kept() > kept_before => {
                least = least.min(keeper.lacks());
                fruitless = 0;
            }
            // Nobody else has anything to give.
            Err(_)
                if met.spared_low
                    && (waits.is_some() || (keeper.freed() == freed_before && met.busy == 0)) =>
            {
                spares_low = false;
            }
            Err(_) if keeper.freed() == freed_before && met.busy == 0 => return Room::None,
            Err(_) if fruitless == FRUITLESS_MOST => return Room::None,
            Err(_) => {
                (fruitless, waits) = (fruitless + 1, Some(node));
                stalled.lasts();
                std::thread::yield_now();
            }
        }
    }
    Room::None
}

/// A charge of a callback's: beyond the limits, as far as the reserve goes.
pub(crate) fn draw_on_reserve(node: &'static Node, until: Until, bytes: u64) -> bool {
    let reserve = node.shared.config.reclaim_reserve_bytes;
    let Until::Top = until else { return false };
    if chain::charge_forced(node, bytes, reserve, false).is_err() {
        return false;
    }
    count::forced(node);
    overrun::begin_if_over(node);
    high::forced(node, bytes);
    true
}
