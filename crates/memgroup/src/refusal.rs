#![doc = include_str!("../docs/refusal.md")]
//!
//! # In which order, here
//!
//! 1. The stocks of the refusing ancestor's subtree are drained, empty ones skipped, and the charge is tried again. This is
//!    what a busy tenant near its limit pays, and mostly it suffices. Where shrinkers can give back, which costs less than a look at the stocks of
//!    thousands of groups, it is made at some of the refusals only ([`Roster::drains_now`]).
//! 2. Shrinkers of the subtree give back what is missing, if there are any (`shrink::reclaim`), and the charge is made with it.
//! 3. Where groups have kill hooks, one of the subtree is told to stop (`oom`), and the charge is tried again.
//! 4. The subtree is closed (`stock::closure`) and the charge tried once more. If another level refuses now, the closure
//!    grows to that level's subtree; if a level inside the closure refuses, that is final.
//!
//! # G1, the refusal guarantee
//! *When a charge is refused, there was an instant within the call at which live charges, charges in flight and what was asked
//! together exceeded the limit of the group the error names, less what was kept there for groups within their protection.*
//!
//! What is kept is told by the error ([`ChargeError::reserved`]); mostly nothing is, and at most what `protect::reserve` allows. It was looked up within the call, for the charge that was
//! refused, from sums that may lag by what was being charged at that moment.
//!
//! Let R be that group. The last try ran inside a closure of R's subtree, and its refusal was decided by an RMW on R's
//! counter (`Verdict::Final`) at an instant t. Every byte in R's usage at t was put there by a charge in the subtree, and is
//! one of these:
//!
//! - *a live charge*, or one whose uncharge has begun and not ended (it is live until that call returns). What such an
//!   uncharge added to a word after it was closed, or took out of it again, is its own bytes and no more;
//! - *a charge in flight*: added to R by an exact charge that has not returned, perhaps because a higher level is
//!   about to refuse it. Or what a charge has had set free and keeps (`shrink::keep`), at most what it asked for. Or prepaid bytes that an attempt to consume, not served and not yet undone, hides from the closing:
//!   at most as many as that charge, which is in flight, asked for (`stock::withdraw_closed` has the sum);
//! - *prepaid*: showing in a word. None: every word of the subtree was CLOSED, and drained as it was, before t; what is added
//!   to a CLOSED word is of the two kinds above; groups are created under the tree lock, which we hold;
//! - *on the way between a word and the counters*: the surplus of a batch, or an overflow, or an evicted stock. Such bytes are
//!   on the way only while their word says PENDING. PENDING is set by compare-and-swap on an open word, so once the word is
//!   CLOSED no such section begins, and those that had begun were waited for; the surplus of a batch that meets CLOSED goes
//!   back to the counters before PENDING ends. Drains hold the tree lock. None at t.
//!
//! So usage at t is at most live charges and charges in flight, and usage + asked + kept > limit. Several refusers take turns under
//! the tree lock; a third who takes the drained bytes takes them as an exact charge (its words are CLOSED), and that is a
//! live charge or one in flight. ∎
//!
//! A charge larger than the limit itself, less what is kept, needs no instant to be found: it is refused at once.
//!
//! Loom: `a_refusal_is_never_caused_by_stock`, `a_refill_between_sweep_and_refusal_refuses_nobody`,
//! `several_chargers_that_fail_at_once_are_refused_by_live_charges_only` and the twins with a fault each. With real threads:
//! `tests/stress.rs`.

use crate::chain::{self, Refused, Until};
use crate::counter::{LARGEST, Verdict};
use crate::error::ChargeError;
use crate::event::{self, Event};
use crate::measure;
use crate::node::Node;
use crate::oom;
use crate::shrink::roster::{Roster, Standing};
use crate::shrink::{keep, reclaim};
use crate::stock::closure::Closure;
use crate::stock::{count, drain};

/// What is done for a charge where nothing can be reclaimed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnOom {
    Kill,
    Refuse,
}

/// Makes the charge after all, or refuses it for good.
#[cold]
#[inline(never)]
pub(crate) fn decide(
    node: &'static Node,
    until: Until,
    bytes: u64,
    first: Refused,
) -> Result<(), ChargeError> {
    make(node, until, bytes, first, OnOom::Kill).map_err(|last| refuse(last, bytes))
}

/// `decide`, for a caller that counts the refusal when it gives up.
pub(crate) fn make(
    node: &'static Node,
    until: Until,
    bytes: u64,
    first: Refused,
    on_oom: OnOom,
) -> Result<(), Refused> {
    let attempt = |verdict| chain::try_charge_now(node, until, bytes, verdict);
    let first = if first.seen.only_measures(bytes) {
        match measure::passing(None, bytes, node, || attempt(Verdict::Hint)) {
            Ok(()) => return Ok(()),
            Err(enforced) => enforced,
        }
    } else {
        first
    };
    if first.seen.offline || bytes > first.seen.most() || !node.shared.has_stock() {
        return decide_without_stock(node, until, bytes, first, on_oom);
    }
    let (mut tree, mut held_up) = (None, first);
    let gives = node.shared.shrinkers.is_any();
    if !gives || first.node.roster().is_none_or(Roster::drains_now) {
        let locked = tree.insert(node.shared.tree.lock());
        let drained = drain::counted_in(locked, first.node);
        // Of the group that was drained; another may refuse next.
        if let Some(roster) = first.node.roster() {
            roster.drained(drained.stocks);
        }
        if drained.bytes > 0 {
            match measure::passing(Some(locked), bytes, node, || attempt(Verdict::Hint)) {
                Ok(()) => return Ok(()),
                Err(again) => held_up = again,
            }
        }
    }
    count_max(held_up, bytes);
    let mut over = held_up.node;
    if gives {
        tree = None;
        if reclaim::make_room(node, until, bytes, &mut over) {
            return Ok(());
        }
    }
    let mut counted = None;
    if on_oom == OnOom::Kill && node.shared.victims.is_any() {
        tree = None;
        let relief = oom::relieve(node, until, bytes, &mut over);
        if relief.is_made {
            return Ok(());
        }
        counted = relief.counted();
    }
    let tree = tree.unwrap_or_else(|| node.shared.tree.lock());
    let mut closure = Closure::new(&tree);
    loop {
        closure.extend(over);
        let refused = match measure::passing(Some(&tree), bytes, node, || attempt(Verdict::Final)) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        // Counted where it was held up last; another level that refuses is counted, too.
        if !std::ptr::eq(refused.node, over) {
            count_max(refused, bytes);
        }
        if refused.seen.offline || closure.covers(refused.node) {
            return run_out(refused, bytes, counted);
        }
        over = refused.node;
    }
}

/// A charge is held up by a limit: not by a removal, nor by what a counter can hold.
fn count_max(refused: Refused, bytes: u64) {
    if !refused.seen.offline && bytes <= LARGEST - refused.seen.usage {
        event::count(refused.node, Event::Max);
    }
}

/// No drain can help: the group is offline, or the charge is larger than the limit leaves room for, or there is no stock anywhere.
fn decide_without_stock(
    node: &'static Node,
    until: Until,
    bytes: u64,
    first: Refused,
    on_oom: OnOom,
) -> Result<(), Refused> {
    if first.seen.offline {
        return Err(first);
    }
    count_max(first, bytes);
    if bytes > first.seen.most() {
        return Err(first);
    }
    let mut over = first.node;
    if node.shared.shrinkers.is_any() && reclaim::make_room(node, until, bytes, &mut over) {
        return Ok(());
    }
    let mut counted = None;
    if on_oom == OnOom::Kill && node.shared.victims.is_any() {
        let relief = oom::relieve(node, until, bytes, &mut over);
        if relief.is_made {
            return Ok(());
        }
        counted = relief.counted();
    }
    let attempt = || chain::try_charge_now(node, until, bytes, Verdict::Final);
    measure::passing(None, bytes, node, attempt).or_else(|last| {
        if !std::ptr::eq(last.node, over) {
            count_max(last, bytes);
        }
        run_out(last, bytes, counted)
    })
}

/// Nothing could be reclaimed for a charge. That is counted where it was not yet; not for a callback, which is not to have anything reclaimed.
fn run_out(last: Refused, bytes: u64, counted: Option<&'static Node>) -> Result<(), Refused> {
    let is_counted = counted.is_some_and(|counted| std::ptr::eq(counted, last.node));
    let is_held_up = !last.seen.offline && bytes <= LARGEST - last.seen.usage;
    if is_held_up && !is_counted && !keep::is_reclaiming() {
        event::count(last.node, Event::Oom);
    }
    Err(last)
}

/// Counts a refusal, and says it.
pub(crate) fn refuse(refused: Refused, bytes: u64) -> ChargeError {
    refused.node.counter.count_refusal();
    count::refusal(refused.node);
    ChargeError::of(refused.node, refused.seen, bytes)
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use memgroup_percpu::SlotSource;

    use super::*;
    use crate::config::Config;
    use crate::hierarchy::Hierarchy;
    use crate::shrink::{Ask, Count, Scan, Shrinker, ShrinkerConfig};

    struct Empty;

    impl Shrinker for Empty {
        fn count(&self, _token: u64) -> Count {
            Count::Empty
        }

        fn scan(&self, _ask: &Ask<'_>) -> Scan {
            Scan::Stopped { bytes: 0 }
        }
    }

    #[test]
    fn a_drain_of_many_stocks_is_for_refusals_of_the_group_that_was_drained() {
        const PAGE: u64 = 4096;
        let config = Config::with_slots(SlotSource::virtual_slots(128).unwrap());
        let hierarchy = Hierarchy::new(config).unwrap();
        let above = hierarchy.create("/above").unwrap();
        let below = above.create("below").unwrap();
        let (idle, busy) = (below.create("idle").unwrap(), below.create("busy").unwrap());
        let shrinker = idle.add_shrinker(ShrinkerConfig::new("empty"), Empty).unwrap();
        above.set_max(1000 * PAGE - 1).unwrap();
        below.set_max(1000 * PAGE).unwrap();
        let _held = idle.try_charge(PAGE).unwrap();
        assert!(below.usage() > PAGE, "the rest of a batch is prepaid, and so the lower group refuses first");
        // With that drained it has room, and the one above has not.
        assert_eq!(busy.try_charge(999 * PAGE).unwrap_err().group(), above.id());
        let drains_now = |group: &crate::Group| group.node().roster().unwrap().drains_now();
        assert!(!drains_now(&below), "its 384 stocks were looked at");
        assert!(drains_now(&above), "nobody has looked at its stocks");
        shrinker.remove().unwrap();
    }
}
