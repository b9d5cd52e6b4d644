//! Aftermath: the consequences of a charge or an uncharge of the counters, and of a drain.
//!
//! The layers below report facts: a level fell, was emptied, is marked OVER, counted an event. Here, and nowhere else, they are acted
//! on: waiting charges are served, emptied groups released, stocks reopened, threads that wait for events woken.

use memgroup_sync::{grace, interleave};

use crate::base::mutation::{self, Mutation};
use crate::control::{oom, over_limit, waiters};
use crate::counter::chain::{self, Charged, Climb, Refused, Uncharged, Until};
use crate::counter::events;
use crate::observe::event;
use crate::reclaim::credit::{self, ReclaimCredit};
use crate::state::counter::Verdict;
use crate::stats::update::count_drain;
use crate::stock::drain;
use crate::tree::node::Node;
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// Charges exactly `bytes`. First looks at every level, which costs no shared line its owner.
pub(crate) fn try_charge(from: &'static Node, until: Until, bytes: u64) -> Result<(), Refused> {
    chain::look_for_room(from, until, bytes)?;
    charge(from, bytes, Climb::to(until, Verdict::Hint))
}

/// Charges `bytes` as `climb` says. Bytes that a refused charge took for a moment are room again for charges that wait below the level
/// that refused.
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

fn after_charge(node: &'static Node, outcome: Result<Charged, Refused>) -> Result<(), Refused> {
    match outcome {
        Ok(charged) => tell_events(node, charged),
        Err(refused) => {
            let below = |level: &&'static Node| !std::ptr::eq(*level, refused.node);
            for level in chain::levels(node).take_while(below) {
                oom::after_uncharge(level);
                if !mutation::active(Mutation::TakenBackWithoutALook) {
                    waiters::serve(level);
                }
            }
            return Err(refused);
        }
    }
    Ok(())
}

/// Wakes the threads that wait for the events that a charge of `node` counted.
pub(crate) fn tell_events(node: &'static Node, charged: Charged) {
    if charged.has_events {
        events::levels(node).for_each(event::announce);
    }
}

/// Takes `bytes` back from every level, and acts on the facts.
pub(crate) fn uncharge(from: &'static Node, until: Until, bytes: u64) {
    let (shared, mut levels) = (from.shared(), chain::uncharge(from, until, bytes));
    act_on(shared, &mut levels);
}

/// Uncharges the levels that are left, and acts on each.
#[inline(always)]
fn act_on(shared: &'static Shared, levels: &mut impl Iterator<Item = Uncharged>) {
    loop {
        // Without the bytes the group may be released, and its node erased; but not within a section.
        let mut section = Some(grace::enter());
        let Some(level) = levels.find(Uncharged::has_consequences) else { return };
        if mutation::active(Mutation::AftermathPinsTooLate) {
            section = None;
        }
        interleave::point();
        // From here on the node is held: `Shared::reclaim_nodes` looks for that after all sections.
        level.node.pin_inner();
        drop(section);
        act(shared, level, levels);
    }
}

#[cold]
#[inline(never)]
fn act(shared: &'static Shared, level: Uncharged, mut above: &mut dyn Iterator<Item = Uncharged>) {
    let Uncharged { node, is_watched, is_done, is_over } = level;
    let id = node.id();
    if is_watched {
        oom::after_uncharge(node);
    }
    if is_over && !is_done {
        // The levels above first: a charge that is served here is charged there too.
        act_on(shared, &mut above);
        over_limit::after_uncharge(node);
    }
    // As in the drop of a handle. Meanwhile the pin may have held off the release that another thread tried.
    if node.unpin_inner() && node.counter.is_offline_now() {
        shared.release_if_done(id);
    }
}

/// Bytes back to the counters without the stock. A thread that reclaims for a charge keeps them for that charge.
pub(crate) fn uncharge_counters(node: &'static Node, bytes: u64) {
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

/// The charge for which bytes were kept has been made with them.
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

/// After stocks of `node` returned `bytes` to the counters.
pub(crate) fn drained(node: &'static Node, bytes: u64) -> u64 {
    if bytes > 0 {
        // An uncharge under way may have put its bytes into a closed stock: those are room for the charges that wait.
        fallen(node);
        chain::levels(node).for_each(|level| _ = waiters::serve(level));
    }
    count_drain(node, bytes);
    bytes
}

/// After usage fell at `node` and above it with no look at the levels. The caller holds the node.
pub(crate) fn fallen(node: &'static Node) {
    chain::levels(node).for_each(oom::after_uncharge);
}

/// Drains one group's own stocks. The caller holds the tree lock. Returns the bytes that went back.
pub(crate) fn drain(node: &'static Node) -> u64 {
    drained(node, drain::group(node))
}

/// Closes one group's own stocks. Returns the bytes that went back.
pub(crate) fn close(node: &'static Node) -> u64 {
    drained(node, drain::close(node))
}

/// Drains every group of the subtree of `top`. Returns the bytes that went back.
pub(crate) fn drain_subtree(tree: &Tree, top: &'static Node) -> u64 {
    top.shared().subtree(tree, top).map(drain).sum()
}

/// The result of a drain of many groups.
#[derive(Default)]
pub(crate) struct Drained {
    /// Bytes that went back.
    pub(crate) bytes: u64,
    /// Stocks that were looked at.
    pub(crate) stocks: u64,
}

/// Drains every group that counts in `top`.
pub(crate) fn drain_counted_in(tree: &Tree, top: &'static Node) -> Drained {
    let slots = top.shared().source.slots() as u64;
    top.shared().counted_in(tree, top).fold(Drained::default(), |drained, node| Drained {
        bytes: drained.bytes + drain(node),
        stocks: drained.stocks + slots,
    })
}
