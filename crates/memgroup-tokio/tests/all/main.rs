//! Tasks in groups: on tokio's runtime, with its paused time where time matters.

mod body;
mod charge;
mod delay;
mod events;
#[path = "../support/frames.rs"]
mod frames;
mod in_group;
mod limited;
mod request;
mod spawn;
mod sweep;
mod tasks;

use memgroup::{Config, Group, Hierarchy};

/// A hierarchy with a group below the root.
fn fixture() -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/group").unwrap();
    (hierarchy, group)
}

/// Checks that all bytes are uncharged, in the group and in the root.
fn assert_empty(hierarchy: &Hierarchy, group: &Group) {
    assert_eq!((group.usage_exact(), hierarchy.root().usage_exact()), (0, 0));
}
