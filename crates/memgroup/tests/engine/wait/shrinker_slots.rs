//! Waits for a cache that another charge is having give back: seen and ended as all others.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use memgroup::{
    Ask, Charge, ChargeErrorKind, Count, Group, Hierarchy, Scan, Shrinker, ShrinkerConfig, WaitKind,
};

use super::{PAGE, parent, until_waiting};

/// Gives a page back each time that it is told to, and says when it is asked.
struct Told {
    asked: Sender<()>,
    told: Mutex<Receiver<()>>,
    pages: Mutex<Vec<Charge>>,
}

impl Shrinker for Told {
    fn count(&self, _token: u64) -> Count {
        Count::Holds { bytes: 20 * PAGE, objects: 20 }
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        self.asked.send(()).unwrap();
        let _ = self.told.lock().unwrap().recv();
        let page = self.pages.lock().unwrap().pop();
        Scan::Freed { bytes: page.map_or(0, |page| page.bytes()) }
    }
}

/// Runs `act` with idle, alice and bob. Alice's charge has idle's cache give back meanwhile, and
/// bob's charge waits for the same cache. The act ends bob's wait.
fn while_bob_waits(act: impl FnOnce(&Hierarchy, &Group, &Group, &Group)) {
    let (hierarchy, tenants) = parent(2, 20);
    let (idle, alice, bob) =
        (tenants.create("idle").unwrap(), tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let pages = (0..20).map(|_| idle.try_charge(PAGE).unwrap()).collect();
    let ((tell, told), (asked, is_asked)) = (channel(), channel());
    let config = ShrinkerConfig::new("told").patience(Duration::from_secs(60));
    let cache = Told { asked, told: Mutex::new(told), pages: Mutex::new(pages) };
    let shrinker = idle.add_shrinker(config, cache).unwrap();
    shrinker.mark();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| alice.try_charge(PAGE));
        is_asked.recv().unwrap();
        let waiter = scope.spawn(|| bob.try_charge(PAGE));
        until_waiting(&bob, 1);
        act(&hierarchy, &idle, &alice, &bob);
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ChargeErrorKind::Refused);
        assert!(hierarchy.waits().is_empty());
        tell.send(()).unwrap();
        drop(caller.join().unwrap().expect("the charge in the call has the freed bytes"));
        drop(tell);
    });
    shrinker.remove().unwrap();
    assert_eq!(tenants.usage_exact(), 0);
}

#[test]
fn lists_a_wait_for_a_shrinker_and_refuses_when_it_is_ended() {
    while_bob_waits(|hierarchy, _, alice, bob| {
        let waits = hierarchy.waits();
        assert_eq!((waits[0].kind, waits[0].bytes), (WaitKind::Shrinker, PAGE));
        assert_eq!((waits[0].group.as_str(), waits[0].at.as_str()), ("/tenants/bob", "/tenants/idle"));
        assert!(waits[0].deadline - waits[0].since <= Duration::from_secs(60), "the patience of the call");
        assert_eq!(alice.wake_waiters(), 0, "it is in the call, and does not wait");
        assert_eq!(bob.wake_waiters(), 1);
    });
}

#[test]
fn ends_the_waits_of_other_groups_for_its_cache() {
    while_bob_waits(|_, idle, alice, _| {
        assert_eq!(alice.wake_waiters(), 0, "bob waits neither in it nor for its cache");
        assert_eq!(idle.wake_waiters(), 1);
    });
}
