//! A child within its even share that finds neither room nor caches has a sibling above its share
//! stopped.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{
    Charge, ChargeErrorKind, Config, Group, Hierarchy, KillAnswer, KillRegistration, KillRequest,
};

use super::cache::{MIB, exact};

/// Memory of a group that is given back when the group is told to stop.
struct Work {
    group: Group,
    memory: Arc<Mutex<Vec<Charge>>>,
    _hook: KillRegistration,
}

impl Work {
    fn new(parent: &Group, name: &str, bytes: u64) -> Work {
        let group = parent.create(name).unwrap();
        let memory = Arc::new(Mutex::new(vec![group.try_charge(bytes).unwrap()]));
        let its = Arc::clone(&memory);
        let hook = move |_: &KillRequest<'_>| {
            its.lock().unwrap().clear();
            KillAnswer::Dying
        };
        let hook = group.set_kill_hook(hook).unwrap();
        Work { group, memory, _hook: hook }
    }

    fn is_stopped(&self) -> bool {
        self.memory.lock().unwrap().is_empty()
    }
}

#[test]
fn a_hoarder_that_came_first_is_stopped_whatever_the_scores_say() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    let small: Vec<_> = (0..4).map(|number| Work::new(&parent, &format!("small{number}"), 4 * MIB)).collect();
    let hoarder = Work::new(&parent, "hoarder", 48 * MIB);
    // Without shares they would be stopped first.
    small.iter().for_each(|work| work.group.set_oom_score(1000).unwrap());
    parent.set_share(8).unwrap();
    let newcomer = parent.create("newcomer").unwrap();
    let charge = newcomer.try_charge(6 * MIB).unwrap();
    assert!(hoarder.is_stopped() && !small.iter().any(Work::is_stopped));
    assert_eq!(charge.bytes(), 6 * MIB);
}

#[test]
fn a_child_above_its_share_has_its_own_work_stopped() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let small = Work::new(&parent, "small", 4 * MIB);
    let runaway = Work::new(&parent, "runaway", 40 * MIB);
    let more = runaway.group.try_charge(20 * MIB).unwrap();
    assert!(runaway.is_stopped() && !small.is_stopped());
    drop(more);
}

#[test]
fn a_newcomer_counts_when_it_is_told_which_siblings_are_above_their_share() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    parent.set_share(8).unwrap();
    // Of two a sibling may have 30.1M, of three 20.5M.
    let [larger, smaller] =
        [("larger", 30), ("smaller", 14)].map(|(name, mib)| Work::new(&parent, name, mib * MIB));
    smaller.group.set_oom_score(1000).unwrap();
    let newcomer = parent.create("newcomer").unwrap();
    assert!(newcomer.try_charge(20 * MIB + MIB / 4).is_ok());
    assert!(larger.is_stopped() && !smaller.is_stopped());
}

#[test]
fn a_refusal_within_the_even_share_names_the_sibling_that_has_the_memory() {
    for is_shared_first in [true, false] {
        let hierarchy = exact();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max(64 * MIB).unwrap();
        parent.set_share(is_shared_first.then_some(8)).unwrap();
        let [hoarder, small, late] = ["hoarder", "small", "late"].map(|name| parent.create(name).unwrap());
        let hoard = hoarder.try_charge(56 * MIB).unwrap();
        let _small = small.try_charge(4 * MIB).unwrap();
        parent.set_share(8).unwrap();
        let error = late.try_charge(5 * MIB).unwrap_err();
        assert_eq!((error.kind(), error.held_by()), (ChargeErrorKind::Refused, Some(hoarder.id())));
        let said = error.to_string();
        assert!(said.ends_with("; /parent/hoarder has 58720256, its even share is 21474836"), "{said}");
        // Nothing but its own wish stands in the way of a charge that no share could hold.
        assert_eq!(late.try_charge(65 * MIB).unwrap_err().held_by(), None);
        drop(hoard);
        let _small = small.try_charge(52 * MIB).unwrap();
        let error = late.try_charge(9 * MIB).unwrap_err();
        assert_eq!(error.held_by(), Some(small.id()), "{error}");
        parent.set_share(None).unwrap();
        assert_eq!(late.try_charge(9 * MIB).unwrap_err().held_by(), None);
    }
}

#[test]
fn a_refusal_names_the_sibling_that_is_most_above_its_share_not_the_one_with_the_most_weight() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let [heavy, light, late] = ["heavy", "light", "late"].map(|name| parent.create(name).unwrap());
    heavy.set_weight(500).unwrap();
    // Even shares with `late`: 44.9M, 9.0M and 9.0M.
    let _held = [heavy.try_charge(30 * MIB).unwrap(), light.try_charge(20 * MIB).unwrap()];
    let _more = heavy.try_charge(10 * MIB).unwrap();
    let error = late.try_charge(8 * MIB).unwrap_err();
    assert_eq!(error.held_by(), Some(light.id()), "{error}");
}

#[test]
fn a_refusal_while_a_victim_dies_says_so_and_names_it() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let [hoarder, late] = ["hoarder", "late"].map(|name| parent.create(name).unwrap());
    let hoard = hoarder.try_charge(56 * MIB).unwrap();
    let _hook = hoarder.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).unwrap();
    let error = late.try_charge(20 * MIB).unwrap_err();
    assert_eq!((error.kind(), error.held_by()), (ChargeErrorKind::VictimDying, Some(hoarder.id())));
    assert!(error.to_string().ends_with("; /parent/hoarder has 58720256 and is being stopped"), "{error}");
    let error = late.charge_until(20 * MIB, Duration::from_millis(1)).unwrap_err();
    assert_eq!((error.kind(), error.held_by()), (ChargeErrorKind::Deadline, Some(hoarder.id())));
    drop(hoard);
    assert!(late.try_charge(20 * MIB).is_ok());
}

#[test]
fn among_two_above_their_share_the_larger_child_is_stopped_although_its_groups_are_smaller() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    let [larger, smaller] = ["larger", "smaller"].map(|name| parent.create(name).unwrap());
    let of_larger = ["one", "two"].map(|name| Work::new(&larger, name, 16 * MIB));
    let of_smaller = Work::new(&smaller, "one", 24 * MIB);
    parent.set_share(8).unwrap();
    let _late = parent.create("late").unwrap().try_charge(10 * MIB).unwrap();
    assert_eq!(of_larger.iter().filter(|work| work.is_stopped()).count(), 1);
    assert!(!of_smaller.is_stopped());
}

#[test]
fn a_child_with_work_that_does_not_stop_comes_after_the_others() {
    // Much longer than the call that stops the other's work may take on a busy machine.
    let patience = Duration::from_millis(200);
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0).kill_patience(patience)).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    let [stubborn, fair] = ["stubborn", "fair"].map(|name| parent.create(name).unwrap());
    let held = ["one", "two", "three"].map(|name| {
        let group = stubborn.create(name).unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let its = Arc::clone(&asked);
        let hook = move |_: &KillRequest<'_>| {
            its.fetch_add(1, Ordering::Relaxed);
            KillAnswer::Dying
        };
        (group.try_charge(12 * MIB).unwrap(), group.set_kill_hook(hook).unwrap(), asked)
    });
    let asked = || held.iter().map(|(_, _, asked)| asked.load(Ordering::Relaxed)).sum::<u32>();
    let work = Work::new(&fair, "one", 24 * MIB);
    parent.set_share(8).unwrap();
    let late = parent.create("late").unwrap();
    let error = late.try_charge(10 * MIB).unwrap_err();
    assert_eq!((error.kind(), asked(), work.is_stopped()), (ChargeErrorKind::VictimDying, 1, false));
    std::thread::sleep(2 * patience);
    assert!(late.try_charge(10 * MIB).is_ok() && work.is_stopped());
    assert_eq!(asked(), 1, "the others of it would have been waited for one after the other");
}

/// A group with a hook that answers so, and the number of its calls.
fn with_hook(group: &Group, answer: KillAnswer) -> (KillRegistration, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let its = Arc::clone(&asked);
    let hook = move |_: &KillRequest<'_>| {
        its.fetch_add(1, Ordering::Relaxed);
        answer
    };
    (group.set_kill_hook(hook).unwrap(), asked)
}

#[test]
fn a_charge_within_the_even_share_leaves_its_own_work_alone_while_a_sibling_has_time_to_give() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(93 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let [hoarder, small] = ["hoarder", "small"].map(|name| parent.create(name).unwrap());
    let hoard = hoarder.try_charge(80 * MIB).unwrap();
    let _held = small.try_charge(5 * MIB).unwrap();
    assert!(small.fair_share().unwrap().even > 43 * MIB);
    let (_hook, asked) = with_hook(&small, KillAnswer::Dying);
    let error = small.charge_until(10 * MIB, Duration::from_millis(1)).unwrap_err();
    assert_eq!((error.held_by(), asked.load(Ordering::Relaxed)), (Some(hoarder.id()), 0));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while parent.waiters().now == 0 {
                std::thread::yield_now();
            }
            // Two more looks for a victim.
            std::thread::sleep(Duration::from_millis(250));
            drop(hoard);
        });
        assert!(small.charge_until(10 * MIB, Duration::from_secs(3600)).is_ok());
    });
    assert_eq!(asked.load(Ordering::Relaxed), 0, "its own work was not to blame");
}

#[test]
fn a_charge_within_the_even_share_leaves_its_own_work_alone_while_a_sibling_is_to_stop() {
    let patience = Duration::from_millis(200);
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0).kill_patience(patience)).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(93 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let [hoarder, small] = ["hoarder", "small"].map(|name| parent.create(name).unwrap());
    let hoard = hoarder.try_charge(80 * MIB).unwrap();
    let _held = small.try_charge(5 * MIB).unwrap();
    let ((of_hoarder, told), (_of_small, asked)) =
        (with_hook(&hoarder, KillAnswer::Dying), with_hook(&small, KillAnswer::Dying));
    assert!(small.try_charge(10 * MIB).is_err());
    std::thread::sleep(2 * patience);
    for of_hoarder in [Some(of_hoarder), None] {
        assert!(small.try_charge(10 * MIB).is_err());
        assert_eq!((told.load(Ordering::Relaxed), asked.load(Ordering::Relaxed)), (1, 0));
        drop(of_hoarder);
    }
    drop(hoard);
    assert!(small.try_charge(10 * MIB).is_ok());
}

#[test]
fn work_that_its_share_spares_does_not_make_up_for_a_victim_that_is_too_small() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let [hoarder, spared, late] = ["hoarder", "spared", "late"].map(|name| parent.create(name).unwrap());
    let killable = hoarder.create("killable").unwrap();
    let _held = [hoarder.try_charge(44 * MIB).unwrap(), killable.try_charge(2 * MIB).unwrap()];
    let _within = spared.try_charge(10 * MIB).unwrap();
    let (_of_killable, asked) = with_hook(&killable, KillAnswer::Dying);
    let (_of_spared, of_spared) = with_hook(&spared, KillAnswer::Dying);
    // 8 MiB are free, and 2 could be freed.
    assert!(late.try_charge(12 * MIB).is_err());
    assert_eq!((asked.load(Ordering::Relaxed), of_spared.load(Ordering::Relaxed)), (0, 0), "in vain");
    assert!(late.try_charge(10 * MIB).is_err());
    assert_eq!((asked.load(Ordering::Relaxed), of_spared.load(Ordering::Relaxed)), (1, 0));
}
