//! Bytes of work that was told to stop are on their way until its group is empty, also when its
//! hook is gone: meanwhile no small group dies in vain.

use std::time::Duration;

use memgroup::{
    Charge, ChargeErrorKind, Group, Hierarchy, KillAnswer, KillOutcome, KillRegistration, KillRequest,
};
use xtask::Watchdog;

use super::tenant::{LONG, PAGE, Tenant, full, outcomes};

/// A hundred pages: 80 of a request, a few of a small one, the rest of the parent.
struct House {
    hierarchy: Hierarchy,
    parent: Group,
    request: Tenant,
    small: Tenant,
    of_small: KillRegistration,
    _rest: Charge,
}

impl House {
    fn new(small: u64, patience: Duration) -> House {
        let (hierarchy, parent) = full(2, 100, patience);
        let (request, small) = (Tenant::new(&parent, "request", 80), Tenant::new(&parent, "small", small));
        let rest = parent.try_charge((20 - small.memory.lock().unwrap().len() as u64) * PAGE).unwrap();
        let of_small = small.answers(KillAnswer::Dying);
        House { hierarchy, parent, request, small, of_small, _rest: rest }
    }

    /// Has the request stopped by a charge that is refused.
    fn stop_request(&self) -> KillRegistration {
        let hook = self.request.answers(KillAnswer::Dying);
        assert!(self.parent.try_charge(PAGE).is_err());
        assert_eq!((self.request.calls(), self.small.calls()), (1, 0));
        hook
    }

    fn refuse(&self, pages: u64) {
        let error = self.parent.try_charge(pages * PAGE).unwrap_err();
        assert_eq!(error.kind(), ChargeErrorKind::VictimDying, "{error}");
        assert_eq!(error.held_by(), Some(self.request.group.id()));
    }

    fn leave(&self, pages: usize) {
        self.request.memory.lock().unwrap().truncate(pages);
        self.request.group.drain();
    }
}

#[test]
fn a_request_whose_hook_is_gone_is_dying_while_its_memory_is_there() {
    for is_removed in [false, true] {
        let house = House::new(2, LONG);
        let hook = house.stop_request();
        drop(hook);
        if is_removed {
            house.request.group.remove().unwrap();
        }
        for _ in 0..10 {
            house.refuse(1);
        }
        assert_eq!(outcomes(&house.hierarchy)[0], ("request".to_owned(), None));
        // Half is freed, and the rest is enough.
        house.leave(30);
        let held = house.parent.try_charge(50 * PAGE).unwrap();
        house.refuse(30);
        assert_eq!((house.small.calls(), house.hierarchy.kills().len()), (0, 1), "no small one died in vain");
        house.leave(0);
        drop(held);
        let _made = house.parent.try_charge(80 * PAGE).unwrap();
        assert_eq!(outcomes(&house.hierarchy), [("request".to_owned(), Some(KillOutcome::Died))]);
        // From here on it counts no more.
        assert!(house.parent.try_charge(PAGE).is_err());
        assert_eq!(house.small.calls(), 1);
    }
}

#[test]
fn what_a_removed_request_has_left_counts_beside_its_hook() {
    let house = House::new(10, LONG);
    let _hook = house.stop_request();
    house.request.group.remove().unwrap();
    house.leave(5);
    let _held = house.parent.try_charge(75 * PAGE).unwrap();
    house.refuse(5);
    assert_eq!(house.small.calls(), 0);
    // More than is on its way.
    assert!(house.parent.try_charge(6 * PAGE).is_err());
    assert_eq!((house.small.calls(), house.request.calls()), (1, 1));
}

#[test]
fn a_request_that_goes_on_is_passed_over_after_the_patience() {
    let _watchdog = Watchdog::over("a claim on bytes that never come");
    let patience = Duration::from_millis(20);
    for is_removed in [false, true] {
        let house = House::new(2, patience);
        drop(house.stop_request());
        if is_removed {
            house.request.group.remove().unwrap();
        }
        while house.small.calls() == 0 {
            assert!(house.parent.try_charge(PAGE).is_err());
            std::thread::yield_now();
        }
        let first = &house.hierarchy.kills()[0];
        assert_eq!((first.outcome, first.took), (Some(KillOutcome::Overdue), None));
        assert!(house.hierarchy.kills()[1].at - first.at >= patience);
    }
}

#[test]
fn a_claim_ends_when_that_is_reported_or_the_group_has_another_hook() {
    for has_hook in [false, true] {
        let house = House::new(2, LONG);
        drop(house.stop_request());
        house.refuse(1);
        let hook = has_hook.then(|| house.request.answers(KillAnswer::Dying));
        assert_eq!(house.request.group.kill_done(), !has_hook);
        assert_eq!(outcomes(&house.hierarchy)[0], ("request".to_owned(), Some(KillOutcome::Died)));
        assert!(house.parent.try_charge(PAGE).is_err());
        assert_eq!((house.request.calls(), house.small.calls()), if has_hook { (2, 0) } else { (1, 1) });
        drop((hook, house.of_small));
    }
}

#[test]
fn a_hook_that_goes_within_its_call_leaves_a_claim() {
    let house = House::new(2, LONG);
    let own: std::sync::Arc<std::sync::Mutex<Option<KillRegistration>>> = std::sync::Arc::default();
    let its = std::sync::Arc::clone(&own);
    let hook = move |_: &KillRequest<'_>| {
        drop(its.lock().unwrap().take());
        KillAnswer::Dying
    };
    *own.lock().unwrap() = Some(house.request.group.set_kill_hook(hook).unwrap());
    house.refuse(1);
    house.refuse(1);
    house.leave(0);
    assert!(house.parent.try_charge(80 * PAGE).is_ok());
    assert_eq!((house.small.calls(), house.hierarchy.kills().len()), (0, 1));
}

#[test]
fn a_group_that_has_the_node_of_a_claim_is_another() {
    let house = House::new(2, LONG);
    drop(house.stop_request());
    let House { hierarchy, parent, request, small, .. } = &house;
    request.group.remove().unwrap();
    request.free();
    let number = request.group.id().node();
    let id = request.group.id();
    // The handle goes with the tenant: here it is the last one.
    let Tenant { group, memory, calls } =
        Tenant { group: request.group.clone(), memory: request.memory.clone(), calls: request.calls.clone() };
    drop((group, memory, calls));
    assert_eq!(number, id.node());
    let next = Tenant::new(parent, "next", 80);
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!((small.calls(), hierarchy.kills().len()), (1, 2));
    drop(next);
}
