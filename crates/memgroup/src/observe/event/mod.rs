//! Events: counts of limits that were met. See [`guide::events`](crate::guide::events).
//!
//! # Synchronisation
//!
//! - E1. `announce` ↔ `wait`: an event counts, fences, and looks for an armed wait. A waiter arms its wait, fences, and looks at the counts. One of
//!   the two sees the other, so no wake-up is lost. Loom: `an_event_wakes_its_waiter`, and its twins with a fault each.

mod deliver;
#[cfg(all(test, memgroup_loom))]
mod loom;

use memgroup_sync::atomic::Ordering;

use crate::base::deadline::Deadline;
use crate::base::mutation::{self, Mutation};
use crate::counter::events::{self, Event, Events};
pub use crate::observe::event::deliver::{EventSubscription, SubscriptionReport};
use crate::observe::wait::Wake;
use crate::observe::wait::list::{Target, begin_for_events};
use crate::state::stats::Reach;
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// Counts an event of `node`, here and above, and wakes the threads that wait for it. The caller holds the node.
pub(crate) fn count(node: &'static Node, event: Event) {
    events::count(node, event);
    announce(node);
}

/// Wakes the threads that wait for events of `node`, after one was counted.
pub(crate) fn announce(node: &'static Node) {
    if node.shared().waits().is_armed() {
        wake_watchers(node);
    }
}

#[cold]
fn wake_watchers(node: &'static Node) {
    // ORDERING: Relaxed; written before the fence of the wait that was seen armed, or its waiter sees the counts (E1).
    let is_watched = |level: &Node| level.events().watched.load(Ordering::Relaxed) > 0;
    if events::levels(node).any(is_watched) {
        node.shared().waits().wake_armed(|group, target| match target {
            Target::Group(Reach::Local) => std::ptr::eq(group, node),
            Target::Group(Reach::Subtree) => node.is_within(group),
            Target::Callbacks => true,
        });
    }
}

/// Waits until a count differs from `seen`. Returns `None` if the wait ends before.
fn wait(node: &'static Node, reach: Reach, seen: &Events, deadline: Deadline) -> Option<Events> {
    let deadline = deadline.instant_or_far();
    let look = || {
        // Read first: a reader that sees the removal sees the events before it too.
        let is_over = node.counter.is_offline();
        let now = node.events().of(reach);
        if now != *seen { Some(Some(now)) } else { is_over.then_some(None) }
    };
    let listed = begin_for_events(node, Target::Group(reach), deadline);
    loop {
        let early = mutation::active(Mutation::WaiterLooksBeforeItIsArmed).then(look);
        listed.arm();
        if let Some(end) = early.unwrap_or_else(look) {
            return end;
        }
        if listed.park(deadline) != Wake::Notified {
            return look().flatten();
        }
    }
}

/// Waiting for events.
impl Group {
    /// Waits until a count of [`events`](Group::events) differs from `seen`, and returns the counts. Returns at once if one differs already.
    ///
    /// Returns `None` if the wait ends with nothing new: at the deadline, when the group is removed, or when its waits
    /// are [ended](Group::wake_waiters). A loop that takes each answer for its next `seen` misses no event, and ends with the group.
    /// Several events may come as one answer.
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
    pub fn wait_events(&self, seen: &Events, deadline: impl Into<Deadline>) -> Option<Events> {
        wait(self.node(), Reach::Subtree, seen, deadline.into())
    }

    /// Waits as [`wait_events`](Group::wait_events) does, for events of this group alone.
    pub fn wait_events_local(&self, seen: &Events, deadline: impl Into<Deadline>) -> Option<Events> {
        wait(self.node(), Reach::Local, seen, deadline.into())
    }
}
