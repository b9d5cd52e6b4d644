//! Models of debts.

use memgroup_sync::loom::{self, thread};

use crate::base::mutation::{self, Mutation};
use crate::state::debt::Debt;

fn two_threads_add_and_take() {
    let debt: &'static Debt = memgroup_sync::keep(Box::new(Debt::new()));
    let charger = thread::spawn(move || {
        debt.add(2);
        debt.lessen(1);
        debt.take(|owed| owed >= 2).unwrap_or(0)
    });
    debt.add(2);
    let taken = debt.take(|owed| owed >= 2).unwrap_or(0);
    let taken = taken + charger.join().unwrap();
    // `lessen` finds nothing if the other thread has taken all by then.
    assert!((3..=4).contains(&(taken + debt.forgive())));
}

#[test]
fn a_debt_is_paid_once() {
    loom::model(two_threads_add_and_take);
}

#[test]
#[should_panic]
fn loses_bytes_when_taken_without_an_exchange() {
    mutation::with(Mutation::DebtIsTakenBlindly, || loom::model(two_threads_add_and_take));
}

#[test]
#[should_panic]
fn loses_bytes_when_added_without_an_exchange() {
    mutation::with(Mutation::DebtIsNotedBlindly, || loom::model(two_threads_add_and_take));
}
