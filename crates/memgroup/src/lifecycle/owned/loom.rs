//! Models of the last owner beside a new one, and of a weak handle beside the release of its
//! group.

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{config, explore, obtain};
use crate::lifecycle::owned::OwnedGroup;
use crate::tree::handle::Group;

/// The last owner of a group is dropped while another thread asks for an owner of the same path.
fn the_last_owner_beside_a_new_one() {
    let shared = obtain(config(1, 3).stock_cap_bytes(0));
    let owned = || OwnedGroup::adopted(shared.own_path("/request").unwrap());
    let first = owned();
    let other = thread::spawn(move || drop(first));
    let second = owned();
    other.join().unwrap();
    assert!(second.is_online(), "the owner has a group that was removed");
    let named = shared.tree.lock().lookup("/request").unwrap();
    assert_eq!(named, second.node().id(), "the path leads to the owner's group");
    drop(second);
    assert_eq!(shared.tree.lock().in_use(), 1, "the last owner removed the group");
}

#[test]
fn a_new_owner_gets_a_group_that_stays() {
    explore(the_last_owner_beside_a_new_one);
}

#[test]
#[should_panic(expected = "the owner has a group that was removed")]
fn catches_an_owner_that_ignores_others() {
    mutation::with(Mutation::OwnerIgnoresOthers, || explore(the_last_owner_beside_a_new_one));
}

/// A group is released, and its place is given to another group, while a weak handle is upgraded.
fn an_upgrade_beside_a_release() {
    let shared = obtain(config(1, 2).stock_cap_bytes(0));
    let group = Group::adopted(shared.create(shared.root(), "first").unwrap());
    let weak = group.downgrade();
    let other = thread::spawn(move || {
        shared.remove(group.node()).unwrap();
        drop(group);
        shared.create(shared.root(), "second").map(Group::adopted)
    });
    let upgraded = weak.upgrade();
    if let Some(group) = &upgraded {
        assert_eq!((group.id(), group.name().as_str()), (weak.id(), "first"), "it is another group");
    }
    let second = other.join().unwrap();
    let is_kept = upgraded.is_some();
    // The bound is one group below the root.
    assert!(second.is_ok() || is_kept, "the place is free");
    drop(upgraded);
    assert_eq!(weak.upgrade(), None);
    drop(second);
}

#[test]
fn an_upgrade_gets_its_group_or_none() {
    explore(an_upgrade_beside_a_release);
}

#[test]
#[should_panic(expected = "it is another group")]
fn catches_an_upgrade_that_ignores_the_generation() {
    mutation::with(Mutation::UpgradeIgnoresGeneration, || explore(an_upgrade_beside_a_release));
}
