//! Models of nodes that are given back: a thread that took the last bytes of a group never finds
//! its node erased. And of movers beside flushes of several subsystems.

use core::mem::ManuallyDrop;

use memgroup_sync::grace::{self, Form};
use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{COUNTED, UNIT, charge_counters, config, explore, explore_up_to, obtain};
use crate::control::aftermath;
use crate::counter::chain::Until;
use crate::lifecycle::maintenance::Maintained;
use crate::lifecycle::pace::Pace;
use crate::lifecycle::records::{demote, free_kept, has_record};
use crate::state::config::{CHUNK, Config};
use crate::state::stats::stat::{Stat, Subsystem};
use crate::stats::flush;
use crate::tree::handle::Group;

/// One thread takes bytes of a removed group, which is marked OVER: it has to look at the group
/// afterwards. Another takes the rest, gives up the last handle, and gives the node back.
fn the_last_bytes_beside_an_erasure() {
    let shared = obtain(config(1, 2 * CHUNK).stock_cap_bytes(0));
    // The root is in the first chunk, which stays.
    let groups: Vec<_> =
        (0..CHUNK).map(|number| shared.create(shared.root(), &number.to_string()).unwrap()).collect();
    let node = groups[CHUNK as usize - 1];
    charge_counters(node, 2).unwrap_or_else(|_| panic!("no limit"));
    shared.remove(node).unwrap();
    node.counter.mark_over(true);
    let other = thread::spawn(move || aftermath::uncharge(node, Until::Top, 1));
    aftermath::uncharge(node, Until::Top, 1);
    drop(Group::adopted(node));
    free_kept(shared, u64::MAX, &Pace::whole(), &mut Maintained::default());
    grace::synchronize(Form::Quiet);
    if shared.has_limbo() {
        shared.reclaim_nodes(usize::MAX, || true);
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

/// A flush of one subsystem lasts, a mover waits for it, and another subsystem is read: the flush
/// ends after the read.
fn a_reader_beside_a_flush_of_others_and_a_mover() {
    static SUBSYSTEMS: [Subsystem; 2] =
        [COUNTED[0], Subsystem { name: "model", stats: &[Stat::gauge("first")] }];
    let shared = obtain(Config { builtin: &SUBSYSTEMS, ..config(1, 2) });
    let group = shared.create(shared.root(), "group").unwrap();
    group.charge_at(0, UNIT).unwrap();
    let [read, flushed] = [0, 1].map(|number| shared.statistics.store(number));
    // Not dropped where the model fails.
    let slow = ManuallyDrop::new(flush::lock(flushed.updates, shared));
    let id = group.group_id();
    let mover = thread::spawn(move || demote(shared, &[id], &Pace::whole(), &mut Maintained::default()));
    drop(flush::flush(read, shared.root()));
    drop(ManuallyDrop::into_inner(slow));
    assert!(mover.join().unwrap() && !has_record(group));
    group.uncharge_at(0, UNIT);
}

#[test]
fn reads_beside_a_flush_of_others_and_a_mover() {
    explore_up_to(2, a_reader_beside_a_flush_of_others_and_a_mover);
}

#[test]
#[should_panic(expected = "deadlock")]
fn catches_a_mover_that_keeps_its_turn() {
    mutation::with(Mutation::MoverKeepsItsTurn, || {
        explore_up_to(2, a_reader_beside_a_flush_of_others_and_a_mover)
    });
}
