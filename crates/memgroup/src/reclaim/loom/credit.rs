//! Models of the credit: bytes that a thread frees for its charge are that charge's, whatever
//! other threads charge meanwhile.

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{UNIT, charge_counters, config, explore, obtain};
use crate::control::aftermath;
use crate::counter::chain::{Climb, Until};
use crate::reclaim::credit::{Purpose, ReclaimCredit};
use crate::tree::node::Node;

/// A full group, and below it one that gives back, one that waits for that, and another.
struct Full {
    over: &'static Node,
    victim: &'static Node,
    waiter: &'static Node,
    other: &'static Node,
}

impl Full {
    /// With a limit of so much, all of it charged to the victim.
    fn new(bytes: u64) -> Full {
        let shared = obtain(config(1, 5).stock_cap_bytes(0));
        let over = shared.create(shared.root(), "over").unwrap();
        over.counter.set_max(bytes);
        let [victim, waiter, other] =
            ["victim", "waiter", "other"].map(|name| shared.create(over, name).unwrap());
        charge_counters(victim, bytes).unwrap_or_else(|_| panic!("it is empty"));
        Full { over, victim, waiter, other }
    }

    /// The victim gives so much back, and the waiter charges `bytes`. Returns whether it could.
    fn reclaim(&self, freed: u64, bytes: u64) -> bool {
        let kept = ReclaimCredit::begin(self.over, Purpose::Charge(self.waiter, bytes)).unwrap();
        aftermath::uncharge_counters(self.victim, freed);
        assert_eq!(kept.freed(), freed);
        let charged = {
            let credit = Some((self.over, kept.kept()));
            aftermath::charge(self.waiter, bytes, Climb { credit, ..Climb::to(Until::Top) })
        };
        if charged.is_ok() {
            aftermath::use_kept(&kept, Until::Top);
        }
        charged.is_ok()
    }

    fn assert_usage(&self, [over, victim, waiter, other]: [u64; 4]) {
        let usage = |node: &Node| node.counter.usage();
        assert_eq!(usage(self.over), over, "of the group that was full");
        assert_eq!([usage(self.victim), usage(self.waiter), usage(self.other)], [victim, waiter, other]);
    }
}

fn charges(node: &'static Node, bytes: u64) -> bool {
    charge_counters(node, bytes).is_ok()
}

/// Another thread charges while a waiter has as much freed as it needs.
fn enough_is_freed() {
    let full = Full::new(2 * UNIT);
    let other = thread::spawn(move || charges(full.other, UNIT));
    assert!(full.reclaim(UNIT, UNIT), "the waiter has the bytes that it freed");
    assert!(!other.join().unwrap(), "no other thread has the bytes that the waiter freed");
    full.assert_usage([2 * UNIT, UNIT, UNIT, 0]);
}

/// Any thread may have the bytes that are freed beyond the waiter's need, and no more.
fn more_is_freed() {
    let full = Full::new(3 * UNIT);
    let other = thread::spawn(move || charges(full.other, UNIT));
    assert!(full.reclaim(2 * UNIT, UNIT), "the waiter has the bytes that it freed");
    let others = if other.join().unwrap() { UNIT } else { 0 };
    full.assert_usage([2 * UNIT + others, UNIT, UNIT, others]);
}

/// The freed bytes are not enough: in the end any thread may have them, once.
fn not_enough_is_freed() {
    let full = Full::new(2 * UNIT);
    let other = thread::spawn(move || charges(full.other, UNIT));
    assert!(!full.reclaim(UNIT, 2 * UNIT), "two are more than the one that was freed");
    let others = if other.join().unwrap() { UNIT } else { 0 };
    full.assert_usage([UNIT + others, UNIT, 0, others]);
    assert_eq!(charges(full.other, UNIT), others == 0, "the freed bytes can be charged");
}

/// Two threads free bytes, and each has its own.
fn two_free() {
    let full = Full::new(2 * UNIT);
    let other = thread::spawn(move || {
        let full = Full { waiter: full.other, ..full };
        full.reclaim(UNIT, UNIT)
    });
    let mine = full.reclaim(UNIT, UNIT);
    assert!(mine && other.join().unwrap(), "the waiter has the bytes that it freed");
    full.assert_usage([2 * UNIT, 0, UNIT, UNIT]);
}

#[test]
fn keeps_freed_bytes_for_the_waiter() {
    explore(enough_is_freed);
    explore(more_is_freed);
    explore(not_enough_is_freed);
    explore(two_free);
}

#[test]
#[should_panic(expected = "the waiter")]
fn catches_freed_bytes_that_leave_the_full_group() {
    mutation::with(Mutation::KeptLeavesTheFullGroup, || explore(enough_is_freed));
}

#[test]
#[should_panic(expected = "the waiter")]
fn catches_a_charge_that_leaves_its_bytes_in_the_credit() {
    mutation::with(Mutation::UsedIsStillKept, || explore(enough_is_freed));
}

#[test]
#[should_panic(expected = "of the group that was full")]
fn catches_unused_bytes_that_stay_charged() {
    mutation::with(Mutation::KeptIsNotLetGo, || explore(not_enough_is_freed));
}
