//! Delivery: callbacks for events, which run on threads that call [`Hierarchy::deliver_events`].
//!
//! An event runs no user code. It wakes a thread that is in a delivery, if one is. The delivery finds the callbacks that are due: it compares a
//! group's counts with those that the callback was told last.
//!
//! ```text
//!            taken by a delivery            returned
//!   Idle ──────────────────────▶ Running ─────────────▶ Idle      (due again, if a count has changed meanwhile)
//!     │                              │ └── panicked ──▶ Out, with the message
//!     └────── subscription dropped ──┴────────────────▶ Out
//! ```
//!
//! - I1. A callback is in `Told` only while it does not run. It is called and dropped under no lock, by one thread at a time.
//! - I2. Events counted after a callback was told are told to it by a later delivery, unless it is out.
//! - E1. A callback returns: Idle, then a look for an armed delivery. A delivery arms itself, then looks at the states. One of the two sees the
//!   other, as in `event`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{Ordering, fence};

use crate::base::deadline::Deadline;
use crate::base::mutation::{self, Mutation};
use crate::base::panic;
use crate::counter::events::Events;
use crate::observe::wait::WaitKind;
use crate::observe::wait::list::{Target, begin_for_events};
use crate::state::stats::Reach;
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::parts::{Key, Part};
use crate::tree::shared::Shared;

type Callback = Box<dyn FnMut(&Group, &Events) + Send>;

/// The subscriptions of one hierarchy, in the order of their numbers.
#[derive(Default)]
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
    /// `None` while it runs, and when it is out.
    callback: Option<Callback>,
    /// The begin of the present call.
    running_since: Option<Instant>,
    panic: Option<String>,
    is_ended: bool,
    /// The counts that the callback was told last.
    events: Events,
    calls: u64,
}

/// A callback for a group's events; from [`Group::on_events`].
///
/// Dropping it ends it: the callback is not called again. A call that has begun goes on, and drops the callback when it returns. The subscription
/// keeps its group as a handle does.
#[must_use = "dropping it ends the subscription"]
pub struct EventSubscription {
    subscriber: Arc<Subscriber>,
}

/// The state of a callback for events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriptionReport {
    /// The path of its group.
    pub path: String,
    /// Calls that were begun.
    pub calls: u64,
    /// How long the present call has lasted. A callback that hangs shows here.
    pub running_for: Option<Duration>,
    /// The message of its panic. After that it is not called again.
    pub panic: Option<String>,
}

impl Subscriber {
    fn now(&self) -> Events {
        self.group.node().events().of(Reach::Subtree)
    }

    /// Whether the callback does not run, and has something to be told.
    fn is_due(&self) -> bool {
        self.is_due_in(&self.told.lock())
    }

    fn is_due_in(&self, told: &Told) -> bool {
        told.callback.is_some() && told.events != self.now()
    }

    /// Calls the callback if it is due. Returns whether it was.
    fn run(&self) -> bool {
        let mut told = self.told.lock();
        let events = self.now();
        if told.events == events {
            return false;
        }
        let Some(mut callback) = told.callback.take() else { return false };
        told.running_since = Some(Instant::now());
        told.events = events;
        told.calls += 1;
        drop(told);
        let outcome = catch_unwind(AssertUnwindSafe(|| callback(&self.group, &events)));
        self.returned(callback, outcome.err());
        true
    }

    fn returned(&self, callback: Callback, panic: Option<Box<dyn Any + Send>>) {
        let message = panic.as_deref().map(panic::message);
        let mut told = self.told.lock();
        let is_out = told.is_ended || message.is_some();
        (told.running_since, told.panic) = (None, message);
        let mut callback = Some(callback);
        if !is_out {
            told.callback = callback.take();
        }
        let is_due = self.is_due_in(&told);
        drop(told);
        // Both are the user's, and so are their drops.
        panic::drop_caught(callback);
        panic::drop_caught(panic);
        if is_due && !mutation::active(Mutation::CallbackReturnsInSilence) {
            wake_delivery(self.group.node().shared());
        }
    }

    fn report(&self) -> SubscriptionReport {
        let path = self.group.path();
        let told = self.told.lock();
        let running_for = told.running_since.map(|since| since.elapsed());
        SubscriptionReport { path, calls: told.calls, running_for, panic: told.panic.clone() }
    }
}

/// Wakes the threads in a delivery: a callback is due.
fn wake_delivery(shared: &'static Shared) {
    if shared.waits().is_armed() {
        shared.waits().wake_armed(|_, target| target == Target::Callbacks);
    }
}

/// All subscriptions, the oldest first, each looked up by itself: callbacks may subscribe and unsubscribe.
fn all(shared: &'static Shared) -> impl Iterator<Item = Arc<Subscriber>> {
    let from = move |number| {
        let subscribers = shared.subscribers().lock();
        let index = subscribers.list.partition_point(|subscriber| subscriber.number < number);
        subscribers.list.get(index).cloned()
    };
    std::iter::successors(from(0), move |before| from(before.number + 1))
}

pub(crate) fn deliver(shared: &'static Shared, deadline: Instant) -> usize {
    loop {
        let calls = all(shared).filter(|subscriber| subscriber.run()).count();
        if calls > 0 || Instant::now() >= deadline {
            return calls;
        }
        let listed = begin_for_events(shared.root(), WaitKind::Event, Target::Callbacks, deadline);
        listed.arm();
        if !all(shared).any(|subscriber| subscriber.is_due()) {
            listed.park(deadline);
        }
    }
}

/// Callbacks for events.
impl Group {
    /// Has threads in [`Hierarchy::deliver_events`] call `callback` whenever [`events`](Group::events) has changed since it was told last, with the
    /// group and its counts. No charge calls it.
    ///
    /// Events counted while it runs are told to it afterwards; several events may come as one call. It runs on one thread at a time. A callback that
    /// panics is not called again, and its [report](EventSubscription::report) says so.
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
        node.events().watch();
        // ORDERING: SeqCst fence; pairs with the one of an event (`event` E1). The event finds the group watched, or the counts below have it.
        fence(Ordering::SeqCst);
        let told = Told {
            callback: Some(Box::new(callback)),
            running_since: None,
            panic: None,
            is_ended: false,
            events: self.events(),
            calls: 0,
        };
        let mut subscribers = node.shared().subscribers().lock();
        let number = subscribers.next;
        subscribers.next += 1;
        let subscriber = Arc::new(Subscriber { number, group: self.clone(), told: Mutex::new(told) });
        subscribers.list.push(Arc::clone(&subscriber));
        drop(subscribers);
        if subscriber.is_due() {
            wake_delivery(node.shared());
        }
        EventSubscription { subscriber }
    }
}

impl EventSubscription {
    /// The state of the callback.
    pub fn report(&self) -> SubscriptionReport {
        self.subscriber.report()
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        let node = self.subscriber.group.node();
        let mut subscribers = node.shared().subscribers().lock();
        if let Ok(index) = subscribers.list.binary_search_by_key(&self.subscriber.number, |one| one.number) {
            drop(subscribers.list.remove(index));
        }
        drop(subscribers);
        node.events().unwatch();
        let mut told = self.subscriber.told.lock();
        told.is_ended = true;
        let callback = told.callback.take();
        drop(told);
        // The user drops an idle callback on this thread, and without the lock.
        drop(callback);
    }
}

/// Callbacks for events.
impl Hierarchy {
    /// Calls the callbacks of [`Group::on_events`] that are due, each once, on this thread. If none is due, it waits until one is, or until the
    /// deadline. Returns how many it called.
    ///
    /// Call it in a loop, on any number of threads that have time. A callback that hangs holds up only its own thread. The deadline bounds the
    /// wait alone: callbacks that are due are called after it too.
    pub fn deliver_events(&self, deadline: impl Into<Deadline>) -> usize {
        deliver(self.shared(), deadline.into().instant_or_far())
    }

    /// The state of each subscription to events, the oldest first.
    pub fn event_subscriptions(&self) -> Vec<SubscriptionReport> {
        all(self.shared()).map(|subscriber| subscriber.report()).collect()
    }
}

impl core::fmt::Debug for EventSubscription {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("EventSubscription").field(&self.report()).finish()
    }
}

impl Part for Mutex<Subscribers> {}

static SUBSCRIBERS: Key<Mutex<Subscribers>> = Key::new(0, || Mutex::new(Subscribers::default()));

impl Shared {
    /// The subscriptions to events.
    pub(crate) fn subscribers(&self) -> &Mutex<Subscribers> {
        self.parts.get(&SUBSCRIBERS)
    }
}
