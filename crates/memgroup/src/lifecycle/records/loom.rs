//! Models of nodes that are given back: a thread that took the last bytes of a group never finds its node erased.

use memgroup_sync::grace::{self, Form};
use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{charge_counters, config, explore, obtain};
use crate::control::aftermath;
use crate::counter::chain::Until;
use crate::lifecycle::maintenance::Maintained;
use crate::lifecycle::records::free_kept;
use crate::state::config::CHUNK;
use crate::state::counter::Verdict;
use crate::tree::handle::Group;

/// One thread takes bytes of a removed group, which is marked OVER: it has to look at the group afterwards. Another takes the rest,
/// gives up the last handle, and gives the node back.
fn the_last_bytes_beside_an_erasure() {
    let shared = obtain(config(1, 2 * CHUNK).stock_cap_bytes(0));
    // The root is in the first chunk, which stays.
    let groups: Vec<_> =
        (0..CHUNK).map(|number| shared.create(shared.root(), &number.to_string()).unwrap()).collect();
    let node = groups[CHUNK as usize - 1];
    charge_counters(node, 2, Verdict::Final).unwrap_or_else(|_| panic!("no limit"));
    shared.remove(node).unwrap();
    node.counter.mark_over(true);
    let other = thread::spawn(move || aftermath::uncharge(node, Until::Top, 1));
    aftermath::uncharge(node, Until::Top, 1);
    drop(Group::adopted(node));
    free_kept(shared, u64::MAX, &mut Maintained::default());
    grace::synchronize(Form::Quiet);
    if shared.has_limbo() {
        shared.reclaim_nodes(&shared.layout.write());
    }
    other.join().unwrap();
    assert_eq!(shared.tree.lock().in_use(), CHUNK, "the root and all others");
}

#[test]
fn a_node_is_there_until_the_aftermath_is_over() {
    explore(the_last_bytes_beside_an_erasure);
}

#[test]
#[should_panic(expected = "a node that is in use has a hierarchy")]
fn catches_a_pin_outside_of_the_section() {
    mutation::with(Mutation::AftermathPinsTooLate, || explore(the_last_bytes_beside_an_erasure));
}

#[test]
#[should_panic(expected = "a node that is in use has a hierarchy")]
fn catches_an_erasure_of_held_nodes() {
    mutation::with(Mutation::ErasesHeldNodes, || explore(the_last_bytes_beside_an_erasure));
}
