//! Place: a wait in the list, as its thread or its task has it.

use std::marker::PhantomData;
use std::task::Waker;
use std::time::Instant;

use memgroup_sync::atomic::{Ordering, fence};
use memgroup_sync::{interleave, thread};

use crate::base::mutation::{self, Mutation};
use crate::observe::pressure::{self, StallGuard};
use crate::observe::wait::list::{Entry, Target, Ticket, Waits};
use crate::observe::wait::party::Party;
use crate::observe::wait::{WaitKind, Wake};
use crate::tree::node::Node;

/// The place of a wait, which is over when this is dropped.
pub(crate) struct Place {
    node: &'static Node,
    ticket: Ticket,
    target: Option<Target>,
}

/// A wait of this thread, which is over when this is dropped.
pub(crate) struct Listed {
    place: Place,
    deadline: Instant,
    /// The thread is stalled meanwhile, unless it waits for events.
    _stall: Option<StallGuard<'static>>,
    here: PhantomData<*const ()>,
}

/// A wait that begins.
pub(crate) struct Wait {
    pub(crate) node: &'static Node,
    pub(crate) at: &'static Node,
    pub(crate) kind: WaitKind,
    pub(crate) bytes: u64,
    pub(crate) deadline: Instant,
    pub(crate) target: Option<Target>,
    pub(crate) party: Party,
}

/// Begins a wait of this thread for a group, at that group.
#[cfg(test)]
pub(crate) fn begin(node: &'static Node, kind: WaitKind, bytes: u64, deadline: Instant) -> Listed {
    begin_at(node, node, kind, bytes, deadline)
}

/// Begins a wait of this thread for a group, at that group or one above. The caller holds the node
/// until the wait is over.
pub(crate) fn begin_at(
    node: &'static Node,
    at: &'static Node,
    kind: WaitKind,
    bytes: u64,
    deadline: Instant,
) -> Listed {
    let party = Party::Thread(thread::current());
    let place = Place::begin(Wait { node, at, kind, bytes, deadline, target: None, party });
    let stall = (kind.is_for_memory()).then(|| pressure::stall(node));
    Listed { place, deadline, _stall: stall, here: PhantomData }
}

/// Waits on this thread for events or for a trigger, until `look` returns a result. Its error says
/// when it must look again although nothing notifies the wait. Returns `None` if the wait ends
/// before. The caller holds the node.
pub(crate) fn wait_for<T>(
    node: &'static Node,
    kind: WaitKind,
    target: Target,
    deadline: Instant,
    mut look: impl FnMut() -> Result<T, Option<Instant>>,
) -> Option<T> {
    let party = Party::Thread(thread::current());
    let place = Place::begin(Wait { node, at: node, kind, bytes: 0, deadline, target: Some(target), party });
    let listed = Listed { place, deadline, _stall: None, here: PhantomData };
    loop {
        let early = mutation::active(Mutation::WaiterLooksBeforeItIsArmed).then(&mut look);
        listed.place.arm();
        let again = match early.unwrap_or_else(&mut look) {
            Ok(found) => return Some(found),
            Err(again) => again,
        };
        let until = again.map_or(deadline, |again| again.min(deadline));
        match listed.park(until) {
            Wake::Notified => {}
            Wake::Deadline if until < deadline => {}
            _ => return look().ok(),
        }
    }
}

impl Place {
    /// The caller holds the node until the wait is over.
    pub(crate) fn begin(wait: Wait) -> Place {
        let Wait { node, at, kind, bytes, deadline, target, party } = wait;
        let ticket = node.shared().waits().put(Entry {
            node,
            at,
            kind,
            bytes,
            since: Instant::now(),
            deadline,
            target,
            is_armed: false,
            party,
            wake: None,
            look_at: None,
        });
        if target == Some(Target::Group) {
            node.events().watch();
        }
        Place { node, ticket, target }
    }

    /// From now on the next event notifies it. The caller looks at the counts afterwards.
    pub(crate) fn arm(&self) {
        self.with(|entry| {
            if !std::mem::replace(&mut entry.is_armed, true) {
                // ORDERING: Relaxed; before the fence below.
                self.waits().armed.fetch_add(1, Ordering::Relaxed);
            }
        });
        interleave::point();
        // ORDERING: SeqCst fence; pairs with the one in `Waits::is_armed` (E3). Weaker, the
        // caller's look at the counts could come before this wait can be seen.
        fence(Ordering::SeqCst);
    }

    /// The task that polls has this waker from now on. Returns the reason why it was woken.
    pub(crate) fn renew(&self, waker: Waker) -> Option<Wake> {
        let (before, wake) = self.waits().list.lock().renew(self.ticket, Party::Task(waker));
        // The user's code may run here.
        drop(before);
        wake
    }

    /// Has a reclaimer notify the task at that moment, so that it looks again.
    pub(crate) fn look_again(&self, at: Option<Instant>) {
        if let Some(at) = at {
            self.waits().list.lock().look_again(self.ticket, at);
            self.waits().reclaimers.wake_one();
        }
    }

    fn waits(&self) -> &'static Waits {
        self.node.shared().waits()
    }

    pub(in crate::observe::wait) fn with<T>(&self, act: impl FnOnce(&mut Entry) -> T) -> T {
        act(self.waits().list.lock().listed(self.ticket))
    }
}

impl Listed {
    /// Sets another deadline.
    pub(crate) fn postpone(&self, deadline: Instant) {
        self.place.with(|entry| entry.deadline = deadline);
    }

    /// The ticket by which others notify it.
    pub(crate) fn ticket(&self) -> Ticket {
        self.place.ticket
    }

    /// Whether all waits of the group were ended.
    pub(crate) fn is_called_off(&self) -> bool {
        self.place.with(|entry| entry.wake == Some(Wake::All))
    }

    /// Sleeps until it is notified, woken with all others, or the earlier of `until` and its
    /// deadline.
    pub(crate) fn park(&self, until: Instant) -> Wake {
        let until = until.min(self.deadline);
        loop {
            if let Some(wake) = self.place.with(Entry::take_wake) {
                return wake;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Wake::Deadline;
            }
            thread::park_timeout(left);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if crate::observe::wait::is_model_failing() {
            return;
        }
        if self.target == Some(Target::Group) {
            self.node.events().unwatch();
        }
        let mut list = self.waits().list.lock();
        let mut ended = list.end(self.ticket);
        ended.iter_mut().for_each(|entry| self.waits().disarm(entry));
        drop(list);
        // Its waker is dropped without the lock (I3).
        drop(ended);
    }
}
