//! Waiting for events: until a count differs from what the caller has seen.

use core::time::Duration;
use std::time::Instant;

use super::Events;
use super::watch::{Armed, Target};
use crate::group::Group;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::rstat::Reach;
use crate::wait::{self, WaitKind};

impl Group {
    /// Waits until a count of [`events`](Group::events) differs from `seen`, and returns the counts then; at once, if one does already. `None` when the
    /// deadline passes (`None` as deadline: never), the group is removed, or its waits are [ended](Group::wake_waiters), with nothing new: so a loop that takes each answer for its next
    /// `seen` misses no event, and ends with the group.
    ///
    /// What was counted before the return is in the counts. Several events may come as one answer.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # use std::time::Instant;
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenants = hierarchy.create("/tenants").unwrap();
    /// let alice = tenants.create("alice").unwrap();
    /// alice.set_max(4096).unwrap();
    /// let seen = tenants.events();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| alice.try_charge(5000).unwrap_err());
    ///     let now = tenants.wait_events(&seen, None).unwrap();
    ///     assert_eq!(now.max, seen.max + 1);
    /// });
    /// assert_eq!(tenants.wait_events(&tenants.events(), Some(Instant::now())), None);
    /// ```
    pub fn wait_events(&self, seen: &Events, deadline: Option<Instant>) -> Option<Events> {
        wait_listed(self.node(), Reach::Subtree, seen, deadline)
    }

    /// As [`wait_events`](Group::wait_events), for what happens to this group alone.
    pub fn wait_events_local(&self, seen: &Events, deadline: Option<Instant>) -> Option<Events> {
        wait_listed(self.node(), Reach::Local, seen, deadline)
    }
}

/// The deadline of who gives none, as reports show it.
const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Waits, in the list of all waits.
fn wait_listed(
    node: &'static Node,
    reach: Reach,
    seen: &Events,
    deadline: Option<Instant>,
) -> Option<Events> {
    let listed = wait::begin(node, WaitKind::Event, 0, deadline.unwrap_or_else(|| Instant::now() + FAR));
    wait(node, reach, seen, deadline, || listed.is_called_off())
}

pub(super) fn wait(
    node: &'static Node,
    reach: Reach,
    seen: &Events,
    deadline: Option<Instant>,
    is_called_off: impl Fn() -> bool,
) -> Option<Events> {
    let look = || {
        // First: what was counted before the group was removed is seen with that.
        let is_over = node.counter.is_offline();
        let now = node.control.events.of(reach);
        if now != *seen { Some(Some(now)) } else { is_over.then_some(None) }
    };
    loop {
        let late = mutation::active(Mutation::WaiterLooksBeforeItIsArmed).then(look);
        if let Some(end) = late.flatten() {
            return end;
        }
        let armed = Armed::new(&node.shared.watch, Target::Group(node, reach));
        if late.is_none()
            && let Some(end) = look()
        {
            armed.disarm();
            return end;
        }
        if !armed.sleep(deadline, &is_called_off) {
            return look().flatten();
        }
    }
}
