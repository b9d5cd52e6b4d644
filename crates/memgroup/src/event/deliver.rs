//! Delivery: callbacks for events, run by threads that come for it.
//!
//! An event runs nobody's code: it wakes a thread that is in [`Hierarchy::deliver_events`], if one is. Which callbacks are due is found there, by
//! comparing a group's counts with those that its callback was told last.
//!
//! ```text
//!            taken by a delivery            returned
//!   Idle ──────────────────────▶ Running ─────────────▶ Idle      (due again, if a count has changed meanwhile)
//!     │                              │ └── panicked ──▶ Out, with the message
//!     └────── subscription dropped ──┴────────────────▶ Out
//! ```
//!
//! - I1. A callback is in its state only while it does not run: it is called, and dropped, under no lock, and by one thread at a time.
//! - I2. What was counted since a callback was told last is told to it by a delivery that begins later, unless it is out.
//! - E1. A callback returns: Idle, then a look whether a delivery waits. A delivery announces itself, then looks at the states. One of the two
//!   sees the other, as in `watch`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{Ordering, fence};

use super::Events;
use super::watch::{Armed, Target};
use crate::group::Group;
use crate::hierarchy::Hierarchy;
use crate::mutation::{self, Mutation};
use crate::rstat::Reach;
use crate::shared::Shared;

type Callback = Box<dyn FnMut(&Group, &Events) + Send>;

/// The subscriptions of one hierarchy, by number.
pub(crate) struct Subscribers {
    next: u64,
    list: Vec<Arc<Subscriber>>,
}

struct Subscriber {
    number: u64,
    group: Group,
    told: Mutex<Told>,
}

struct Told {
    state: State,
    /// What it was told last.
    events: Events,
    calls: u64,
}

enum State {
    Idle(Callback),
    Running { since: Instant },
    Out { panic: Option<String> },
}

/// A callback for a group's events: [`Group::on_events`]. Dropping it ends it: the callback is not called again. A call that is on goes
/// on, and drops the callback when it returns. It keeps its group as a handle does.
#[must_use = "dropping it ends the subscription"]
pub struct EventSubscription {
    subscriber: Arc<Subscriber>,
}

/// What became of a callback for events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriptionReport {
    /// The path of its group.
    pub path: String,
    /// Calls that were begun.
    pub calls: u64,
    /// For how long the call lasts that is on; one that hangs shows here.
    pub running_for: Option<Duration>,
    /// What it said when it panicked. It is not called again.
    pub panic: Option<String>,
}

impl Subscribers {
    pub(super) fn new() -> Subscribers {
        Subscribers { next: 0, list: Vec::new() }
    }
}

impl Subscriber {
    fn now(&self) -> Events {
        self.group.node().control.events.of(Reach::Subtree)
    }

    /// Whether it could be called, and for something.
    fn is_due(&self) -> bool {
        let told = self.told.lock();
        matches!(told.state, State::Idle(_)) && told.events != self.now()
    }

    /// Calls it, if it is due. Whether it was.
    fn run(&self) -> bool {
        let mut told = self.told.lock();
        let events = self.now();
        if told.events == events {
            return false;
        }
        let mut callback = match std::mem::replace(&mut told.state, State::Running { since: Instant::now() })
        {
            State::Idle(callback) => callback,
            other => {
                told.state = other;
                return false;
            }
        };
        told.events = events;
        told.calls += 1;
        drop(told);
        let outcome = catch_unwind(AssertUnwindSafe(|| callback(&self.group, &events)));
        self.returned(callback, outcome.err());
        true
    }

    fn returned(&self, callback: Callback, panic: Option<Box<dyn Any + Send>>) {
        let message = panic.as_deref().map(message);
        let mut told = self.told.lock();
        let left = match (&told.state, message) {
            (State::Running { .. }, None) => {
                told.state = State::Idle(callback);
                None
            }
            (State::Running { .. }, said @ Some(_)) => {
                told.state = State::Out { panic: said };
                Some(callback)
            }
            _ => Some(callback),
        };
        let is_due = matches!(told.state, State::Idle(_)) && told.events != self.now();
        drop(told);
        // Both are the user's, and so are their drops.
        forget_panics(|| drop(left));
        forget_panics(|| drop(panic));
        if is_due && !mutation::active(Mutation::CallbackReturnsInSilence) {
            self.group.node().shared.watch.wake_for_callbacks();
        }
    }

    fn report(&self) -> SubscriptionReport {
        let path = self.group.path();
        let told = self.told.lock();
        let (running_for, panic) = match &told.state {
            State::Idle(_) => (None, None),
            State::Running { since } => (Some(since.elapsed()), None),
            State::Out { panic } => (None, panic.clone()),
        };
        SubscriptionReport { path, calls: told.calls, running_for, panic }
    }
}

fn forget_panics(act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        std::mem::forget(panic);
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// The subscription with the least number from `from` on.
fn next(shared: &'static Shared, from: u64) -> Option<Arc<Subscriber>> {
    let subscribers = shared.watch.subscribers.lock();
    let at = subscribers.list.partition_point(|subscriber| subscriber.number < from);
    subscribers.list.get(at).cloned()
}

fn all(shared: &'static Shared) -> impl Iterator<Item = Arc<Subscriber>> {
    std::iter::successors(next(shared, 0), move |before| next(shared, before.number + 1))
}

pub(super) fn deliver(shared: &'static Shared, deadline: Instant) -> usize {
    loop {
        let mut calls = 0;
        for subscriber in all(shared) {
            calls += usize::from(subscriber.run());
        }
        if calls > 0 || Instant::now() >= deadline {
            return calls;
        }
        let armed = Armed::new(&shared.watch, Target::Callbacks);
        if all(shared).any(|subscriber| subscriber.is_due()) {
            armed.disarm();
        } else {
            armed.sleep(Some(deadline), || false);
        }
    }
}

impl Group {
    /// Has `callback` called whenever [`events`](Group::events) has changed since it was told last, with the group and its counts: by threads
    /// in [`Hierarchy::deliver_events`], never by a charge. What is counted while it runs is told to it afterwards; several events may
    /// come as one call. It is on no thread twice at a time. One that panics is not called again, and its
    /// [report](EventSubscription::report) says so.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # use std::time::Instant;
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// alice.set_max(4096).unwrap();
    /// let (told, heard) = std::sync::mpsc::channel();
    /// let subscription = alice.on_events(move |group, events| told.send((group.name(), events.max)).unwrap());
    /// alice.try_charge(5000).unwrap_err();
    /// assert_eq!(hierarchy.deliver_events(Instant::now()), 1);
    /// assert_eq!(heard.recv().unwrap(), ("alice".to_owned(), 1));
    /// # drop(subscription);
    /// ```
    pub fn on_events(&self, callback: impl FnMut(&Group, &Events) + Send + 'static) -> EventSubscription {
        let node = self.node();
        let watch = &node.shared.watch;
        node.control.events.watch(1);
        // ORDERING: SeqCst fence; pairs with the one of an event: it finds the group watched, or its count is in what we begin with (`watch` E1).
        fence(Ordering::SeqCst);
        let told = Told { state: State::Idle(Box::new(callback)), events: self.events(), calls: 0 };
        let mut subscribers = watch.subscribers.lock();
        let number = subscribers.next;
        subscribers.next += 1;
        let subscriber = Arc::new(Subscriber { number, group: self.clone(), told: Mutex::new(told) });
        subscribers.list.push(Arc::clone(&subscriber));
        drop(subscribers);
        if subscriber.is_due() {
            watch.wake_for_callbacks();
        }
        EventSubscription { subscriber }
    }
}

impl EventSubscription {
    /// What became of it so far.
    pub fn report(&self) -> SubscriptionReport {
        self.subscriber.report()
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        let node = self.subscriber.group.node();
        let mut subscribers = node.shared.watch.subscribers.lock();
        if let Ok(at) = subscribers.list.binary_search_by_key(&self.subscriber.number, |one| one.number) {
            drop(subscribers.list.remove(at));
        }
        drop(subscribers);
        node.control.events.watch(u32::MAX);
        let mut told = self.subscriber.told.lock();
        let panic = match &mut told.state {
            State::Out { panic } => panic.take(),
            State::Idle(_) | State::Running { .. } => None,
        };
        let state = std::mem::replace(&mut told.state, State::Out { panic });
        drop(told);
        // A callback that is not running is the user's to drop, and this is the user's thread.
        drop(state);
    }
}

impl Hierarchy {
    /// Calls the callbacks of [`Group::on_events`] that are due, each once, on this thread; if none is, waits until one is, or until the deadline. How
    /// many were called. For a thread with time, in a loop; any number of threads may do it, and a callback that hangs holds up
    /// only the one it is on. The deadline bounds the waiting alone: callbacks that are due are called also after it.
    pub fn deliver_events(&self, deadline: Instant) -> usize {
        deliver(self.shared(), deadline)
    }

    /// What became of each subscription to events, the oldest first.
    pub fn event_subscriptions(&self) -> Vec<SubscriptionReport> {
        all(self.shared()).map(|subscriber| subscriber.report()).collect()
    }
}

impl core::fmt::Debug for EventSubscription {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("EventSubscription").field(&self.report()).finish()
    }
}
