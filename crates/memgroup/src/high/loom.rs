//! Models of debts.

use memgroup_sync::loom::{self, thread};

use super::debt::Debt;
use crate::mutation::{self, Mutation};

fn two_who_note_and_two_who_take() {
    let debt: &'static Debt = memgroup_sync::keep(Box::new(Debt::new()));
    let charger = thread::spawn(move || {
        debt.note(1);
        debt.take(|owed| owed >= 2).unwrap_or(0)
    });
    debt.note(2);
    let taken = debt.take(|owed| owed >= 2).unwrap_or(0);
    let taken = taken + charger.join().unwrap();
    assert_eq!(taken + debt.forgive(), 3);
}

#[test]
fn a_debt_is_paid_once() {
    loom::model(two_who_note_and_two_who_take);
}

#[test]
#[should_panic]
fn a_debt_that_is_taken_blindly_is_caught() {
    mutation::with(Mutation::DebtIsTakenBlindly, || loom::model(two_who_note_and_two_who_take));
}

#[test]
#[should_panic]
fn a_debt_that_is_noted_blindly_is_caught() {
    mutation::with(Mutation::DebtIsNotedBlindly, || loom::model(two_who_note_and_two_who_take));
}
