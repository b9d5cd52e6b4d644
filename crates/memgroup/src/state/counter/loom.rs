//! Models of a limit that changes while it is charged against, and of a refusal.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicBool, Ordering};
use memgroup_sync::loom::{self, thread};

use crate::base::mutation::{self, Mutation};
use crate::state::counter::{Counter, Purpose};

fn a_charger_and_a_setter() {
    let counter: &'static Counter = memgroup_sync::keep(Box::new(Counter::new()));
    counter.set_max(2);
    let charger = thread::spawn(move || {
        let _ = counter.try_charge(1, 0, Purpose::Charge);
        let _ = counter.try_charge(1, 0, Purpose::Charge);
    });
    counter.set_max(1);
    let lowered = counter.read();
    assert_eq!(lowered.max, 1);
    charger.join().unwrap();
    let settled = counter.read();
    assert!(settled.usage <= lowered.usage || settled.usage <= settled.max, "{lowered:?}, then {settled:?}");
}

#[test]
fn a_charge_never_rises_above_the_limit_in_force() {
    loom::model(a_charger_and_a_setter);
}

#[test]
#[should_panic]
fn a_charge_against_a_limit_no_longer_in_force_is_caught() {
    mutation::with(Mutation::LimitIgnoresEpoch, || loom::model(a_charger_and_a_setter));
}

#[test]
fn usage_and_limit_are_read_as_of_one_instant() {
    loom::model(|| {
        let counter: &'static Counter = memgroup_sync::keep(Box::new(Counter::new()));
        counter.set_max(1);
        let setter = thread::spawn(move || {
            counter.try_charge(1, 0, Purpose::Charge).unwrap();
            counter.set_max(2);
            counter.try_charge(1, 0, Purpose::Charge).unwrap();
            counter.set_max(3);
        });
        let seen = counter.read();
        assert!(seen.usage <= seen.max);
        setter.join().unwrap();
    });
}

/// The charge begins when the uncharge has returned, but nothing makes its effect visible to the
/// charging thread.
fn a_charge_after_an_uncharge() {
    let counter: &'static Counter = memgroup_sync::keep(Box::new(Counter::new()));
    counter.set_max(1);
    counter.try_charge(1, 0, Purpose::Charge).unwrap();
    let has_returned = Arc::new(AtomicBool::new(false));
    let returned = Arc::clone(&has_returned);
    let other = thread::spawn(move || {
        _ = counter.uncharge(1);
        // ORDERING: Relaxed on both sides; an ordering here would hide the fault.
        returned.store(true, Ordering::Relaxed);
    });
    // ORDERING: as said above.
    if has_returned.load(Ordering::Relaxed) {
        let charged = counter.try_charge(1, 0, Purpose::Charge);
        assert!(charged.is_ok(), "nothing is charged: {charged:?}");
    }
    other.join().unwrap();
}

#[test]
fn a_charge_after_an_uncharge_is_not_refused() {
    loom::model(a_charge_after_an_uncharge);
}

#[test]
#[should_panic(expected = "nothing is charged")]
fn a_refusal_by_an_older_usage_is_caught() {
    mutation::with(Mutation::RefusalIgnoresNewerUsage, || loom::model(a_charge_after_an_uncharge));
}
