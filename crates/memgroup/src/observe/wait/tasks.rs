//! Tasks: waits of futures for events and triggers.
//!
//! ```text
//!   poll ─▶ look: found ─▶ Ready          event, firing, removal ─▶ notified: its waker is in the queue
//!             └─ in the list, armed ─▶ look: found ─▶ Ready           └─▶ a reclaimer calls it without a lock
//!                                       └─▶ Pending
//! ```
//!
//! An event may be counted inside an allocator, under locks of the engine, or while a level is
//! frozen. A waker is the user's code, and may charge. So the thread that counts an event calls no
//! waker. A reclaimer does, on a thread that is in none of these.
//!
//! - I1. A task is in the list from the poll that found nothing until its future ends or is
//!   dropped.
//! - I2. A task is in the list before it looks for a reclaimer. The last reclaimer leaves before
//!   it notifies the tasks in the list. So one of the two sees the other, and no task waits
//!   without a reclaimer.
//! - E1. Reclaimer ↔ event: see `reclaimers` E1.

use core::fmt;
use std::task::{Poll, Waker};
use std::time::Instant;

use crate::base::deadline::Deadline;
use crate::base::mutation::{self, Mutation};
use crate::observe::wait::list::{Place, Target, Wait};
use crate::observe::wait::party::Party;
use crate::observe::wait::{WaitKind, Wake};
use crate::tree::handle::Group;

/// The reason why a future for events or for a trigger ended with nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitEnded {
    /// The deadline has passed.
    Deadline,
    /// All waits of the group were ended ([`Group::wake_waiters`]).
    Woken,
    /// The group was removed.
    Removed,
    /// No [`Reclaimer`](crate::Reclaimer) is there that would wake the task.
    NoReclaimer,
}

impl fmt::Display for WaitEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WaitEnded::Deadline => "wait for news of a group: the deadline has passed",
            WaitEnded::Woken => "wait for news of a group: all its waits were ended",
            WaitEnded::Removed => "wait for news of a group: it was removed",
            WaitEnded::NoReclaimer => "wait for news of a group: no reclaimer runs that would wake the task",
        })
    }
}

impl std::error::Error for WaitEnded {}

/// The wait of a future: not in the list, in it, or over.
pub(crate) struct TaskWait {
    /// Dropped before the group, which keeps the node.
    place: Option<Place>,
    group: Group,
    kind: WaitKind,
    target: Target,
    deadline: Option<Instant>,
    is_over: bool,
}

impl TaskWait {
    pub(crate) fn new(group: &Group, kind: WaitKind, target: Target) -> TaskWait {
        TaskWait { place: None, group: group.clone(), kind, target, deadline: None, is_over: false }
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline = deadline.instant();
        if let Some(place) = &self.place {
            place.with(|entry| entry.deadline = deadline.instant_or_far());
            place.look_again(self.deadline);
        }
    }

    /// Polls it. `look` returns the result, or, as an error, when it must look again although
    /// nothing notifies it.
    pub(crate) fn poll<T>(
        &mut self,
        waker: &Waker,
        mut look: impl FnMut() -> Result<T, Option<Instant>>,
    ) -> Poll<Result<T, WaitEnded>> {
        assert!(!self.is_over, "a wait is polled after its end");
        let polled = self.poll_listed(waker, &mut look);
        if polled.is_ready() {
            (self.is_over, self.place) = (true, None);
        }
        polled
    }

    fn poll_listed<T>(
        &mut self,
        waker: &Waker,
        look: &mut impl FnMut() -> Result<T, Option<Instant>>,
    ) -> Poll<Result<T, WaitEnded>> {
        let node = self.group.node();
        if self.place.is_none()
            && let Ok(found) = look()
        {
            return Poll::Ready(Ok(found));
        }
        let mut has_reclaimer = true;
        let place = match &mut self.place {
            Some(place) => place,
            empty @ None => {
                let deadline = Deadline::from(self.deadline).instant_or_far();
                let (kind, target, party) = (self.kind, Some(self.target), Party::awake());
                let wait = Wait { node, at: node, kind, bytes: 0, deadline, target, party };
                let place = empty.insert(Place::begin(wait));
                // After it is in the list (I2).
                has_reclaimer = node.shared().waits().reclaimers.is_any();
                place
            }
        };
        let early = mutation::active(Mutation::WaiterLooksBeforeItIsArmed).then(&mut *look);
        place.arm();
        let wake = place.renew(waker.clone());
        if wake == Some(Wake::Notified) {
            // The notice that was taken away just now may have come after the first, and a notice
            // disarms.
            place.arm();
        }
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let again = match early.unwrap_or_else(&mut *look) {
            Ok(found) => return Poll::Ready(Ok(found)),
            Err(again) => again,
        };
        let ended = match wake {
            Some(Wake::All) if node.counter.is_offline() => WaitEnded::Removed,
            Some(Wake::All) => WaitEnded::Woken,
            Some(Wake::Deserted) => WaitEnded::NoReclaimer,
            _ if !has_reclaimer => WaitEnded::NoReclaimer,
            _ if is_late => WaitEnded::Deadline,
            _ => {
                place.look_again(again.into_iter().chain(self.deadline).min());
                return Poll::Pending;
            }
        };
        Poll::Ready(Err(ended))
    }
}
