//! Aftermath: the consequences of a charge or an uncharge of the counters, and of a drain.
//!
//! The layers below report facts: a level's usage fell, a level was emptied or is marked OVER, an
//! event was counted. Only this file acts on them: it serves waiting charges, releases groups that
//! were emptied, and wakes threads that wait for events.

use memgroup_sync::{grace, interleave};

use crate::base::mutation::{self, Mutation};
pub(crate) use crate::control::release::unpin;
use crate::control::{held_back, oom, over_limit, waiters};
use crate::counter::chain::{self, Charged, Climb, Refused, Until};
use crate::observe::event;
use crate::reclaim::credit::{self, ReclaimCredit};
use crate::state::counter::Left;
use crate::stats::update::count_drain;
use crate::stock::drain::{self, Drained, Taken};
use crate::tree::node::Node;

/// Charges `bytes` as `climb` says. A refused charge takes bytes for a moment at the levels below
/// the one that refused it. When it gives them back, charges that wait at those levels may fit.
#[inline]
pub(crate) fn charge(node: &'static Node, bytes: u64, climb: Climb) -> Result<(), Refused> {
    after_charge(node, chain::charge(node, bytes, climb))
}

/// Charges `bytes` up to `beyond` bytes above each limit; see [`chain::charge_forced`].
pub(crate) fn charge_forced(
    node: &'static Node,
    bytes: u64,
    beyond: u64,
    offline_too: bool,
) -> Result<(), Refused> {
    after_charge(node, chain::charge_forced(node, bytes, beyond, offline_too))
}

#[inline]
fn after_charge(node: &'static Node, outcome: Result<Charged, Refused>) -> Result<(), Refused> {
    match outcome {
        Ok(charged) => event::after_charge(node, charged),
        Err(refused) => {
            after_refusal(node, refused.level());
            return Err(refused);
        }
    }
    Ok(())
}

/// Acts on the bytes that a refused charge gave back below the level that refused it.
#[inline(never)]
fn after_refusal(node: &'static Node, end: Option<&'static Node>) {
    let below = |level: &&'static Node| end.is_none_or(|end| !std::ptr::eq(*level, end));
    for level in chain::levels(node).take_while(below) {
        oom::after_uncharge(level);
        if !mutation::active(Mutation::TakenBackWithoutALook) {
            waiters::serve_freed_untold(level);
        }
    }
}

/// Takes `bytes` back from every level, and acts on the levels that are marked.
pub(crate) fn uncharge(from: &'static Node, until: Until, bytes: u64) {
    let mut lowest = None;
    // Without its bytes the group may be released and its node erased, but not while a read section
    // lasts.
    let mut section = Some(grace::enter());
    chain::uncharge(from, until, bytes, |level, left| {
        if lowest.is_none() && has_work(level, left) {
            if mutation::active(Mutation::AftermathPinsTooLate) {
                section = None;
            }
            interleave::point();
            // From here on, a reference holds this node, and this node holds those above it.
            // `Shared::reclaim_nodes` checks for references once all sections have ended.
            level.pin_inner();
            lowest = Some(level);
        }
    });
    drop(section);
    if let Some(lowest) = lowest {
        act(lowest, until);
    }
}

/// Returns whether there is more to do at a level that was uncharged, and had this `left` then. The
/// caller is in the section that keeps the node, and none of the levels above was uncharged yet.
fn has_work(level: &'static Node, left: Left) -> bool {
    left.is_done() || level.marks.is_watched() || left.is_over() && over_limit::has_work(level)
}

/// Acts on the levels from `lowest` up, when all of them have been uncharged, and lets go of
/// `lowest`. Charges that wait at a lower level came first: while others wait above it, a charge
/// queues with those (`wait::held_level`).
#[cold]
#[inline(never)]
fn act(lowest: &'static Node, until: Until) {
    for level in std::iter::successors(Some(lowest), |level| until.next(level)) {
        oom::after_uncharge(level);
        if level.counter.read().over {
            over_limit::after_uncharge(level);
        }
    }
    // As in the drop of a handle. The pin may have held off a release that another thread tried.
    unpin(lowest);
}

/// Returns bytes to the counters without the stock. If the thread reclaims for a charge, the bytes
/// are kept for that charge.
#[inline]
pub(crate) fn uncharge_counters(node: &'static Node, bytes: u64) {
    if credit::is_reclaiming() {
        uncharge_for_credit(node, bytes);
    } else {
        uncharge(node, Until::Top, bytes);
    }
}

#[cold]
#[inline(never)]
fn uncharge_for_credit(node: &'static Node, bytes: u64) {
    match credit::uncharge(node, bytes) {
        None => uncharge(node, Until::Top, bytes),
        Some(kept) => {
            if !std::ptr::eq(node, kept.at) {
                uncharge(node, Until::Below(kept.at), bytes);
            }
            if bytes > kept.bytes {
                uncharge(kept.at, Until::Top, bytes - kept.bytes);
            }
        }
    }
}

/// Ends the credit of a charge that was made with its kept bytes.
pub(crate) fn use_kept(credit: &ReclaimCredit, until: Until) {
    let kept = credit.use_kept();
    if let Until::Below(charged) = until
        && kept > 0
    {
        uncharge(charged, Until::Top, kept);
    }
}

impl Drop for ReclaimCredit {
    fn drop(&mut self) {
        if let Some(kept) = self.end() {
            uncharge(kept.at, Until::Top, kept.bytes);
        }
    }
}

/// Empties the group's own open stocks on every slot. The caller must hold the group.
pub(crate) fn drain(node: &'static Node) -> Drained {
    drained(drain::empty(node))
}

/// Empties the group's own stocks and returns their caps. Unless a level's word bars new grants,
/// the stocks may be opened again. The caller must hold the tree lock.
pub(crate) fn retire(node: &'static Node) {
    drained(drain::retire(node));
    if held_back::retire(node) > 0 && !mutation::active(Mutation::RetireServesNoWaiter) {
        came_back(node);
    }
}

/// Acts on the bytes that a drain returned from stocks to the counters, and then returns the
/// grants.
pub(crate) fn drained(taken: Taken) -> Drained {
    let &Taken { node, amount, .. } = &taken;
    if amount.bytes > 0 {
        came_back(node);
        count_drain(node, amount.bytes);
    }
    // This must come last, because from here on the group may be removed without waiting.
    drop(taken);
    amount
}

/// Serves charges that wait at `node` or above it, after prepaid bytes went back to the counters
/// there. The caller must hold the node.
fn came_back(node: &'static Node) {
    fallen(node);
    chain::levels(node).for_each(waiters::serve_freed_untold);
}

/// Acts on a fall of usage at `node` and above it whose levels were not checked. The caller must
/// hold the node.
pub(crate) fn fallen(node: &'static Node) {
    chain::levels(node).for_each(oom::after_uncharge);
}
