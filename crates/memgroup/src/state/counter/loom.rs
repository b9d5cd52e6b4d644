//! Models of a limit that changes while it is charged against.

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
