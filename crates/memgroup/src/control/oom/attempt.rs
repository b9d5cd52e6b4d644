//! Out-of-memory attempt: a charge for which reclaim freed too little has victims killed, and
//! tries again.
//!
//! ```text
//!   full ─▶ is there a candidate? ─▶ drain, try ─▶ choose ─▶ call the hook ─▶ Dying, Idle: drain, try ─▶ choose ─▶ ...
//!                 └─ no, or a group is dying: refused          ├─ Refused, panicked: choose the next
//!                                                              └─ Refused by the requester's own hook: refused
//! ```
//!
//! - I1. The thread that calls a hook holds no lock. It holds a pin on the hook, and nothing else.
//! - I2. A charge asks each hook once, and at most [`ASKED_MOST`] sets of them. So it ends,
//!   whatever hooks answer.
//! - I3. If the requester itself is chosen, and its hook answers that it cannot be stopped, no
//!   other group is asked. The others are smaller, and the requester takes the refusal.
//! - I4. Bytes that a hook frees on the charging thread are kept for that charge
//!   (`reclaim::credit`).

use crate::control::freeze;
use crate::control::make_room::{self, Step, at_refusing_levels};
use crate::control::oom::hook::{KillAnswer, KillRequest, domain};
use crate::control::oom::state::OomState;
use crate::control::oom::victims::{Call, Chosen, OomControl};
use crate::counter::chain::Until;
use crate::counter::events::Event;
use crate::counter::protect::effective::effective;
use crate::observe::event;
use crate::reclaim::{Purpose, ReclaimCredit, credit};
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// Sets of victims that are asked for one charge: groups, or groups that are killed as a whole.
const ASKED_MOST: u32 = 64;

/// The result of calling one hook, or those of a set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relief {
    /// Memory may have been freed, or will be.
    Likely,
    None,
    /// The requester's own hook refused, and so the charge is refused (I3).
    RequesterRefused,
}

/// The kills for one charge, which goes on as long as the charge waits.
#[derive(Clone, Copy)]
pub(crate) struct OomAttempt {
    node: &'static Node,
    /// The charge's number.
    charge: u64,
    /// The charge waits for room.
    waits: bool,
    /// The level at which running out of memory was counted.
    pub(crate) counted: Option<&'static Node>,
    /// The requester's own hook was asked, and refused (I3).
    is_given_up: bool,
}

impl OomAttempt {
    pub(crate) fn new(node: &'static Node, waits: bool) -> OomAttempt {
        let charge = node.shared().victims().begin_charge();
        OomAttempt { node, charge, waits, counted: None, is_given_up: false }
    }

    /// Has victims killed after `full` refused the charge and reclaim freed too little, and tries
    /// the charge again. It goes on at the levels that refuse next; the last of them is left in
    /// `full`. Returns whether the charge was made.
    pub(crate) fn make_charge(&mut self, until: Until, bytes: u64, full: &mut &'static Node) -> bool {
        if credit::is_reclaiming() {
            return make_room::draw_on_reserve(self.node, until, bytes);
        }
        if !self.node.shared().config.oom() || self.is_given_up {
            return false;
        }
        let &mut OomAttempt { node: requester, charge, waits, .. } = self;
        let control = |full| OomControl { requester, full, asked: bytes, charge, waits };
        at_refusing_levels(full, |full| self.kill_in(&control(full), until))
    }

    fn kill_in(&mut self, control: &OomControl, until: Until) -> Step {
        let &OomControl { requester: node, full, asked, .. } = control;
        let victims = full.shared().victims();
        if !victims.is_any_for(control) {
            return Step::Full;
        }
        let Some(kept) = ReclaimCredit::begin(full, Purpose::Charge(node, asked)) else { return Step::Full };
        let mut relief = Relief::Likely;
        for _ in 0..ASKED_MOST {
            if relief == Relief::Likely {
                // The freed bytes may lie in stocks, of the victim or of others.
                freeze::drain_for_charge(full, kept.lacks());
                if let Some(step) = make_room::try_with_kept(node, until, asked, full, &kept) {
                    return step;
                }
            }
            let Some(chosen) = victims.choose(control, kept.lacks()) else { break };
            if !self.counted.is_some_and(|counted| std::ptr::eq(counted, full)) {
                event::count(full, Event::Oom);
                self.counted = Some(full);
            }
            relief = call_all(control, &chosen);
            if relief == Relief::RequesterRefused {
                self.is_given_up = true;
                break;
            }
        }
        Step::Full
    }
}

/// Calls the hooks of a set one after the other.
fn call_all(control: &OomControl, chosen: &Chosen) -> Relief {
    let (mut from, mut unit, mut all) = (0, chosen.unit, Relief::None);
    while let Some(call) = control.full.shared().victims().begin_call(control, chosen, &mut from) {
        let one = call_one(control, chosen, &call, &mut unit);
        if one == Relief::Likely || all == Relief::None {
            all = one;
        }
    }
    all
}

/// Calls one hook. The first victim that dies counts as the kill of `uncounted`, the group that is
/// killed as a whole.
fn call_one(
    control: &OomControl,
    chosen: &Chosen,
    call: &Call,
    uncounted: &mut Option<&'static Node>,
) -> Relief {
    let victims = control.full.shared().victims();
    let mut lease = domain().lease();
    let pinned = call.node.find_oom().and_then(OomState::place).and_then(|place| lease.pin(place));
    // The group may have another hook by now.
    let Some(hook) = pinned.filter(|hook| hook.number == call.number) else {
        victims.end_call(call, Some(KillAnswer::Refused));
        return Relief::None;
    };
    // The pinned hook keeps its group, and those above.
    let (requester, full) = (Group::pinned(control.requester), Group::pinned(control.full));
    let unit = chosen.unit.map(Group::pinned);
    let request = KillRequest {
        group: &hook.group,
        requester: &requester,
        full: &full,
        unit: unit.as_ref(),
        asked: control.asked,
        usage: call.usage,
        above_min: call.node.counter.usage().saturating_sub(effective(call.node, control.full).min),
        kills_requester: call.kills_requester,
    };
    let answer = hook.long_use(|hook| hook.call(&request));
    if answer == Some(KillAnswer::Dying) {
        event::count(call.node, Event::OomKill);
        if let Some(unit) = uncounted.take() {
            event::count(unit, Event::OomGroupKill);
        }
    }
    victims.end_call(call, answer);
    match answer {
        Some(KillAnswer::Dying | KillAnswer::Idle { .. }) => Relief::Likely,
        Some(KillAnswer::Refused) if call.kills_requester => Relief::RequesterRefused,
        Some(KillAnswer::Refused) | None => Relief::None,
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use memgroup_percpu::SlotSource;

    use crate::control::oom::attempt::*;
    use crate::state::config::Config;
    use crate::tree::handle::Hierarchy;

    #[test]
    fn skips_a_hook_that_replaced_the_chosen_one() {
        let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let _held = group.try_charge(4096).unwrap();
        let calls = Arc::new(AtomicU64::new(0));
        let hook = || {
            let calls = Arc::clone(&calls);
            let hook = move |_: &KillRequest<'_>| {
                // ORDERING: Relaxed; one thread.
                calls.fetch_add(1, Ordering::Relaxed);
                KillAnswer::Dying
            };
            group.set_kill_hook(hook).unwrap()
        };
        let (node, victims) = (group.node(), hierarchy.shared().victims());
        let charge = victims.begin_charge();
        let control = OomControl { requester: node, full: node, asked: 1, charge, waits: false };
        let first = hook();
        let chosen = victims.choose(&control, 1).expect("it has enough");
        let call = victims.begin_call(&control, &chosen, &mut 0).expect("it is the only one");
        assert!(!victims.is_any_for(&control), "it is dying");
        drop(first);
        let second = hook();
        assert!(call_one(&control, &chosen, &call, &mut None) == Relief::None);
        // ORDERING: Relaxed; one thread.
        assert_eq!((calls.load(Ordering::Relaxed), group.events().oom_kill), (0, 0));
        assert!(victims.is_any_for(&control), "no kill of the next one is pending");
        assert!(hierarchy.kills()[0].outcome.is_some());
        drop(second);
    }
}
