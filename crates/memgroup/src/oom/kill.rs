//! Kill: what a charge does when reclaim came to nothing.
//!
//! ```text
//!   full ─▶ anybody to be chosen? ─▶ drain, try ─▶ choose ─▶ call the hook ─▶ Dying, Idle: drain, try ─▶ choose ─▶ ...
//!                 └─ no, or somebody is dying: refused         ├─ Refused, panicked: choose the next
//!                                                              └─ Refused by the requester's own: refused
//! ```
//!
//! - I1. A hook is called under no lock, with a pin on it and nothing else.
//! - I2. A charge asks each hook once, and no more than [`ASKED_MOST`] sets of them, so it comes to its end whatever hooks answer.
//! - I3. Where the one that is chosen is the requester's own and answers that it cannot be stopped, nobody else is: they have less to lose, and it takes the refusal.
//! - I4. What a hook frees on the charge's thread is kept for that charge (`shrink::keep`).

use super::hook::{Killed, Killing, domain};
use super::victims::{Call, Chosen, Plea};
use crate::chain::{self, Until};
use crate::counter::LARGEST;
use crate::event::{self, Event};
use crate::group::Group;
use crate::measure;
use crate::node::Node;
use crate::protect::effective::effective;
use crate::shrink::{keep, reclaim};
use crate::stock::drain;

/// Groups, or groups that die as a whole, that are asked for one charge.
const ASKED_MOST: u32 = 64;

/// How often a victim is looked for, each time in the group that refuses then.
const LEVELS_MOST: u32 = 16;

/// What came of it.
pub(crate) struct Relief {
    /// The charge is made.
    pub(crate) is_made: bool,
    pub(crate) pursuit: Pursuit,
}

impl Relief {
    /// Where it was counted that memory ran out.
    pub(crate) fn counted(&self) -> Option<&'static Node> {
        self.pursuit.counted
    }
}

/// What a hook, or those of a set, came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Something may have been freed, or will be.
    Gave,
    Nothing,
    /// The requester's own refuses: so does the charge (I3).
    TakesRefusal,
}

/// What came of it in one group.
enum Room {
    Made,
    None,
    /// Another level of the chain has none now.
    LacksIn(&'static Node),
}

/// Whom one charge had asked to die, and where it was counted that memory ran out for it.
#[derive(Clone, Copy)]
pub(crate) struct Pursuit {
    /// The charge's number.
    charge: u64,
    counted: Option<&'static Node>,
    /// The requester's own was asked, and refused (I3): that holds for as long as the charge does, also while it waits.
    is_given_up: bool,
}

impl Pursuit {
    pub(crate) fn begin(node: &'static Node) -> Pursuit {
        Pursuit { charge: node.shared.victims.begin_charge(), counted: None, is_given_up: false }
    }
}

/// After `over` has refused a charge of `node`, and nothing could be reclaimed: has a victim killed, there and where it is refused next, which is `over` then, and tries the
/// charge again.
pub(crate) fn relieve(node: &'static Node, until: Until, bytes: u64, over: &mut &'static Node) -> Relief {
    pursue(node, until, bytes, over, Pursuit::begin(node))
}

/// As `relieve`, but for those who were asked already.
pub(crate) fn pursue(
    node: &'static Node,
    until: Until,
    bytes: u64,
    over: &mut &'static Node,
    pursuit: Pursuit,
) -> Relief {
    let mut relief = Relief { is_made: false, pursuit };
    if keep::is_reclaiming() {
        relief.is_made = reclaim::draw_on_reserve(node, until, bytes);
        return relief;
    }
    if !node.shared.config.oom || pursuit.is_given_up {
        return relief;
    }
    let charge = pursuit.charge;
    for _ in 0..LEVELS_MOST {
        let plea = Plea { requester: node, full: over, asked: bytes, charge };
        match relieve_in(&plea, until, &mut relief.pursuit) {
            Room::Made => {
                relief.is_made = true;
                break;
            }
            Room::None => break,
            Room::LacksIn(next) => {
                event::count(next, Event::Max);
                *over = next;
            }
        }
    }
    relief
}

fn relieve_in(plea: &Plea, until: Until, pursuit: &mut Pursuit) -> Room {
    let &Plea { requester: node, full, asked, .. } = plea;
    let victims = &full.shared.victims;
    if !victims.is_any_for(plea) {
        return Room::None;
    }
    let Some(keeper) = keep::begin_for(node, full, asked) else { return Room::None };
    let mut is_worth_a_try = true;
    for _ in 0..ASKED_MOST {
        if is_worth_a_try {
            // What is freed may lie in stocks, the victim's or others'.
            drain::counted_in(&full.shared.tree.lock(), full);
            let attempt = || chain::try_charge_kept(node, until, asked, full, keeper.kept());
            match measure::passing(None, asked, node, attempt) {
                Ok(()) => {
                    keeper.use_kept(until);
                    return Room::Made;
                }
                Err(refused) if refused.seen.offline || asked > LARGEST - refused.seen.usage => {
                    return Room::None;
                }
                Err(refused) if !std::ptr::eq(refused.node, full) => return Room::LacksIn(refused.node),
                Err(_) => {}
            }
        }
        let Some(chosen) = victims.choose(plea, keeper.lacks()) else { break };
        if !pursuit.counted.is_some_and(|counted| std::ptr::eq(counted, full)) {
            event::count(full, Event::Oom);
            pursuit.counted = Some(full);
        }
        match call_all(plea, &chosen) {
            Answer::Gave => is_worth_a_try = true,
            Answer::Nothing => is_worth_a_try = false,
            Answer::TakesRefusal => {
                pursuit.is_given_up = true;
                break;
            }
        }
    }
    Room::None
}

/// Calls the hooks of a set one after the other.
fn call_all(plea: &Plea, chosen: &Chosen) -> Answer {
    let victims = &plea.full.shared.victims;
    let (mut from, mut unit, mut all) = (0, chosen.unit, Answer::Nothing);
    while let Some(call) = victims.begin_call(plea, chosen, &mut from) {
        let one = ask(plea, chosen, &call, &mut unit);
        if one == Answer::Gave || all == Answer::Nothing {
            all = one;
        }
    }
    all
}

/// Calls one hook. With the first that dies `uncounted` does, the group that dies as a whole.
fn ask(plea: &Plea, chosen: &Chosen, call: &Call, uncounted: &mut Option<&'static Node>) -> Answer {
    let victims = &plea.full.shared.victims;
    let mut lease = domain().lease();
    let pinned = call.node.control.oom.place().and_then(|place| lease.pin(place));
    // The group may have another hook by now.
    let Some(hook) = pinned.filter(|hook| hook.number == call.number) else {
        victims.end_call(call, Some(Killed::Refused));
        return Answer::Nothing;
    };
    // While it is pinned its group is there, and those above.
    let (requester, full) = (Group::pinned(plea.requester), Group::pinned(plea.full));
    let unit = chosen.unit.map(Group::pinned);
    let killing = Killing {
        group: &hook.group,
        requester: &requester,
        full: &full,
        unit: unit.as_ref(),
        asked: plea.asked,
        usage: call.usage,
        above_min: call.node.counter.usage().saturating_sub(effective(call.node, plea.full).min),
        by_itself: call.by_itself,
    };
    let answer = hook.dwell(|hook| hook.call(&killing));
    if answer == Some(Killed::Dying) {
        event::count(call.node, Event::OomKill);
        if let Some(unit) = uncounted.take() {
            event::count(unit, Event::OomGroupKill);
        }
    }
    victims.end_call(call, answer);
    match answer {
        Some(Killed::Dying | Killed::Idle { .. }) => Answer::Gave,
        Some(Killed::Refused) if call.by_itself => Answer::TakesRefusal,
        Some(Killed::Refused) | None => Answer::Nothing,
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use memgroup_percpu::SlotSource;

    use super::*;
    use crate::config::Config;
    use crate::hierarchy::Hierarchy;

    #[test]
    fn who_was_chosen_by_a_hook_that_was_replaced_meanwhile_is_not_killed_by_the_next() {
        let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let _held = group.try_charge(4096).unwrap();
        let calls = Arc::new(AtomicU64::new(0));
        let hook = || {
            let calls = Arc::clone(&calls);
            let hook = move |_: &Killing<'_>| {
                // ORDERING: Relaxed; one thread.
                calls.fetch_add(1, Ordering::Relaxed);
                Killed::Dying
            };
            group.set_kill_hook(hook).unwrap()
        };
        let (node, victims) = (group.node(), &hierarchy.shared().victims);
        let plea = Plea { requester: node, full: node, asked: 1, charge: victims.begin_charge() };
        let first = hook();
        let chosen = victims.choose(&plea, 1).expect("it has enough");
        let call = victims.begin_call(&plea, &chosen, &mut 0).expect("it is the only one");
        assert!(!victims.is_any_for(&plea), "it is dying");
        drop(first);
        let second = hook();
        assert!(ask(&plea, &chosen, &call, &mut None) == Answer::Nothing);
        // ORDERING: Relaxed; one thread.
        assert_eq!((calls.load(Ordering::Relaxed), group.events().oom_kill), (0, 0));
        assert!(victims.is_any_for(&plea), "the next one is in no trial");
        assert!(hierarchy.kills()[0].outcome.is_some());
        drop(second);
    }
}
