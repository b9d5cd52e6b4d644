//! Models of the recorded protection: at rest each value is right, however slow a thread was.

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{charge_counters, config, explore_up_to, obtain};
use crate::control::{aftermath, protection};
use crate::counter::chain::Until;
use crate::counter::protect::used::{self, LOW, MIN, UNFILLED, UNFILLED_MIN, WEIGHT};
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::shared::Shared;

fn hierarchy() -> &'static Shared {
    obtain(config(1, 4).stock_cap_bytes(0))
}

fn create(shared: &'static Shared, name: &str) -> &'static Node {
    shared.create(shared.root(), name).unwrap()
}

fn set(node: &'static Node, min: u64, low: u64) {
    protection::set(&node.shared().tree.lock(), node, min, low);
}

fn charge(node: &'static Node, bytes: u64) {
    charge_counters(node, bytes).unwrap_or_else(|_| panic!("no limit"));
}

fn uncharge(node: &'static Node, bytes: u64) {
    aftermath::uncharge(node, Until::Top, bytes);
}

/// Asserts that the recorded values of the children are right, and that the sums of their parent
/// are theirs.
fn assert_right(children: &[&'static Node]) {
    let mut sums = [0; 5];
    for used in children.iter().map(|node| (node.used(), node.counter.usage())) {
        let (used, usage) = used;
        let claim = used.min().max(used.low());
        let weight = if usage > 0 { used.weight() } else { 0 };
        let unfilled_min = used.min().saturating_sub(usage);
        let right =
            [usage.min(used.min()), usage.min(used.low()), claim.saturating_sub(usage), weight, unfilled_min];
        for kind in [MIN, LOW, UNFILLED, WEIGHT, UNFILLED_MIN] {
            assert_eq!(used.recorded(kind), right[kind], "of kind {kind}, with usage {usage}");
            sums[kind] += right[kind];
        }
    }
    let parent = children[0].parent().unwrap();
    for kind in [MIN, LOW, UNFILLED, WEIGHT, UNFILLED_MIN] {
        assert_eq!(parent.used().sum(kind), sums[kind], "the sum of kind {kind}");
    }
}

fn two_charge_one_group() {
    let shared = hierarchy();
    let group = create(shared, "group");
    set(group, 2, 0);
    let other = thread::spawn(move || {
        charge(group, 1);
        uncharge(group, 1);
    });
    charge(group, 1);
    other.join().unwrap();
    assert_right(&[group]);
}

#[test]
fn records_right_values_at_rest() {
    explore_up_to(2, two_charge_one_group);
}

#[test]
#[should_panic]
fn catches_a_recorder_that_does_not_check_again() {
    mutation::with(Mutation::RecorderDoesNotLookAgain, || explore_up_to(2, two_charge_one_group));
}

/// One thread uncharges the last byte while another charges one. The weight must count among the
/// fair shares above as long as any byte is left.
fn one_empties_and_one_fills() {
    let shared = hierarchy();
    let group = create(shared, "group");
    used::set_weight(&shared.tree.lock(), group, 100);
    charge(group, 1);
    let other = thread::spawn(move || uncharge(group, 1));
    charge(group, 1);
    other.join().unwrap();
    assert_right(&[group]);
    uncharge(group, 1);
    assert_right(&[group]);
}

#[test]
fn records_the_weight_of_a_group_that_holds_memory() {
    explore_up_to(2, one_empties_and_one_fills);
}

#[test]
#[should_panic]
fn catches_a_weight_that_is_not_looked_at_again() {
    mutation::with(Mutation::RecorderDoesNotLookAgain, || explore_up_to(2, one_empties_and_one_fills));
}

/// A charge that the group above refuses takes bytes of the group for a moment, and the other
/// charge may record them.
fn one_charges_and_one_is_refused_above() {
    refused_above(|group| set(group, 2, 0));
}

/// The same for a group that has only a weight: the other charge may find that it is not the
/// first, and record nothing.
fn one_is_refused_above_and_was_the_first() {
    refused_above(|group| used::set_weight(&group.shared().tree.lock(), group, 100));
}

fn refused_above(give_settings: impl Fn(&'static Node)) {
    let shared = hierarchy();
    let above = create(shared, "above");
    let group = shared.create(above, "group").unwrap();
    give_settings(group);
    above.counter.set_max(1);
    let other = thread::spawn(move || assert!(charge_counters(group, 2).is_err()));
    charge(group, 1);
    other.join().unwrap();
    assert_right(&[group]);
}

#[test]
fn records_right_values_after_a_refusal_above() {
    explore_up_to(2, one_charges_and_one_is_refused_above);
}

#[test]
fn records_the_weight_after_a_refusal_of_the_first_charge() {
    explore_up_to(2, one_is_refused_above_and_was_the_first);
}

#[test]
#[should_panic]
fn catches_a_first_charge_that_is_refused_and_not_recorded() {
    mutation::with(Mutation::TakenBackUnrecorded, || {
        explore_up_to(2, one_is_refused_above_and_was_the_first);
    });
}

#[test]
#[should_panic]
fn catches_a_refused_charge_that_is_not_recorded() {
    mutation::with(Mutation::TakenBackUnrecorded, || explore_up_to(2, one_charges_and_one_is_refused_above));
}

fn one_charges_and_one_sets() {
    let shared = hierarchy();
    let group = create(shared, "group");
    set(group, 1, 0);
    let setter = thread::spawn(move || set(group, 2, 0));
    charge(group, 2);
    setter.join().unwrap();
    assert_right(&[group]);
}

#[test]
fn records_right_values_when_settings_change() {
    explore_up_to(2, one_charges_and_one_sets);
}

/// The last byte of a removed group is uncharged, and its place is given to a group below another.
fn one_uncharges_and_one_removes() {
    let shared = hierarchy();
    let (above, group) = (create(shared, "above"), create(shared, "group"));
    charge(group, 1);
    set(group, 0, 2);
    let user = thread::spawn(move || uncharge(group, 1));
    group.shared().remove(group).unwrap();
    drop(Group::adopted(group));
    let heir = shared.create(above, "heir").unwrap();
    set(heir, 0, 1);
    charge(heir, 1);
    user.join().unwrap();
    let used = |node: &Node| [LOW, UNFILLED].map(|kind| node.used().recorded(kind));
    let sums = |node: &Node| [LOW, UNFILLED].map(|kind| node.used().sum(kind));
    assert_eq!((used(heir), sums(above), sums(shared.root())), ([1, 0], [1, 0], [0, 0]));
}

#[test]
fn records_nothing_of_the_group_before_in_its_place() {
    explore_up_to(2, one_uncharges_and_one_removes);
}

/// From the moment a group goes offline, nothing is recorded for it, nor is any value on its way
/// to the parent's sums.
fn one_uncharges_and_one_goes_offline() {
    let shared = hierarchy();
    let group = create(shared, "group");
    charge(group, 1);
    set(group, 0, 2);
    let user = thread::spawn(move || uncharge(group, 1));
    let assert_nothing = || {
        for kind in [MIN, LOW, UNFILLED] {
            let sum = shared.root().used().sum(kind);
            assert_eq!((group.used().recorded(kind), sum), (0, 0), "of kind {kind}");
        }
    };
    protection::clear(&shared.tree.lock(), group);
    assert_nothing();
    user.join().unwrap();
    assert_nothing();
}

#[test]
fn waits_for_recording_threads_on_removal() {
    explore_up_to(3, one_uncharges_and_one_goes_offline);
}

#[test]
#[should_panic]
fn catches_a_removal_that_does_not_wait() {
    mutation::with(Mutation::RecorderIgnoresOffline, || explore_up_to(3, one_uncharges_and_one_goes_offline));
}
