//! Models of the hand-off: what a thread sets free for its charge is that charge's, whoever charges meanwhile.

use memgroup_sync::loom::thread;

use crate::chain::{self, Until};
use crate::counter::Verdict;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::shrink::keep;
use crate::stock::loom::{UNIT, config, explore, obtain};

/// A full group, and below it who gives back, who waits for that, and somebody else.
struct Full {
    over: &'static Node,
    victim: &'static Node,
    waiter: &'static Node,
    other: &'static Node,
}

impl Full {
    /// With room for so much, all of it the victim's.
    fn new(bytes: u64) -> Full {
        let shared = obtain(config(1, 5).stock_cap_bytes(0));
        let over = shared.create(shared.root(), "over").unwrap();
        over.counter.set_max(bytes);
        let [victim, waiter, other] =
            ["victim", "waiter", "other"].map(|name| shared.create(over, name).unwrap());
        chain::try_charge_now(victim, Until::Top, bytes, Verdict::Final)
            .unwrap_or_else(|_| panic!("it is empty"));
        Full { over, victim, waiter, other }
    }

    /// The victim gives so much back, and the waiter charges `bytes`; whether it could.
    fn reclaim(&self, freed: u64, bytes: u64) -> bool {
        let keeper = keep::begin(self.over, bytes).unwrap();
        self.victim.uncharge_counters(freed);
        assert_eq!(keeper.freed(), freed);
        let charged = chain::try_charge_kept(self.waiter, Until::Top, bytes, self.over, keeper.kept());
        if charged.is_ok() {
            keeper.use_kept(Until::Top);
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
    chain::try_charge_now(node, Until::Top, bytes, Verdict::Final).is_ok()
}

/// Somebody charges while a waiter has as much set free as it needs.
fn enough_is_set_free() {
    let full = Full::new(2 * UNIT);
    let other = thread::spawn(move || charges(full.other, UNIT));
    assert!(full.reclaim(UNIT, UNIT), "the waiter has what it set free");
    assert!(!other.join().unwrap(), "nobody else has what the waiter set free");
    full.assert_usage([2 * UNIT, UNIT, UNIT, 0]);
}

/// Of what is set free beyond what the waiter needs, anybody may have it; not more.
fn more_is_set_free() {
    let full = Full::new(3 * UNIT);
    let other = thread::spawn(move || charges(full.other, UNIT));
    assert!(full.reclaim(2 * UNIT, UNIT), "the waiter has what it set free");
    let others = if other.join().unwrap() { UNIT } else { 0 };
    full.assert_usage([2 * UNIT + others, UNIT, UNIT, others]);
}

/// What is set free is not enough: it is everybody's in the end, once.
fn not_enough_is_set_free() {
    let full = Full::new(2 * UNIT);
    let other = thread::spawn(move || charges(full.other, UNIT));
    assert!(!full.reclaim(UNIT, 2 * UNIT), "two are more than the one that was set free");
    let others = if other.join().unwrap() { UNIT } else { 0 };
    full.assert_usage([UNIT + others, UNIT, 0, others]);
    assert_eq!(charges(full.other, UNIT), others == 0, "what was set free can be had");
}

/// Two threads set free, and each has its own.
fn two_set_free() {
    let full = Full::new(2 * UNIT);
    let other = thread::spawn(move || {
        let full = Full { waiter: full.other, ..full };
        full.reclaim(UNIT, UNIT)
    });
    let mine = full.reclaim(UNIT, UNIT);
    assert!(mine && other.join().unwrap(), "the waiter has what it set free");
    full.assert_usage([2 * UNIT, 0, UNIT, UNIT]);
}

#[test]
fn what_is_set_free_is_its_waiters() {
    explore(enough_is_set_free);
    explore(more_is_set_free);
    explore(not_enough_is_set_free);
    explore(two_set_free);
}

#[test]
#[should_panic(expected = "the waiter")]
fn what_is_set_free_is_anybodys_where_it_leaves_the_full_group_before_it_is_charged() {
    mutation::with(Mutation::KeptLeavesTheFullGroup, || explore(enough_is_set_free));
}

#[test]
#[should_panic(expected = "the waiter")]
fn what_is_set_free_is_let_go_too_where_who_has_used_it_keeps_it() {
    mutation::with(Mutation::UsedIsStillKept, || explore(enough_is_set_free));
}

#[test]
#[should_panic(expected = "of the group that was full")]
fn what_is_not_enough_stays_charged_where_nobody_lets_it_go() {
    mutation::with(Mutation::KeptIsNotLetGo, || explore(not_enough_is_set_free));
}
