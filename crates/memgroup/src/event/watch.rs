//! Watch: who waits for events of a hierarchy, and how an event finds them.
//!
//! ```text
//!   event    counts ── fence ── armed? ── no: done
//!                                  └──── yes: watched at a level of the chain? ── list, under its lock ── out of the list, unpark
//!   waiter   list, armed + 1 ── fence ── counts ── park ── ...
//! ```
//!
//! A waiter is in the list for one wake-up: whoever wakes it takes it out, so a storm of events takes the lock once for each wait and not once for each event.
//!
//! - I1. The list's lock is the last one: nothing is called, allocated, freed or locked under it, but for the unparking of threads. So an event
//!   may be counted inside somebody's allocator, and under the tree lock.
//! - I2. What a waiter points to is held by its caller's handle.
//! - E1. See the module above.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memgroup_sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use memgroup_sync::thread::{self, Thread};
use memgroup_sync::{Mutex, interleave};

use super::deliver::Subscribers;
use super::levels;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::rstat::Reach;

/// The longest sleep between two looks at the clock.
const NAP_MOST: Duration = Duration::from_secs(3600);

/// Everything that watches the events of one hierarchy.
pub(crate) struct Watch {
    /// Waiters in the list.
    armed: AtomicU32,
    waiters: Mutex<Vec<Arc<Waiter>>>,
    pub(super) subscribers: Mutex<Subscribers>,
}

/// What somebody waits for.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// An event of this group, or of it and those below it.
    Group(&'static Node, Reach),
    /// Anything that a callback could be called for.
    Callbacks,
}

struct Waiter {
    target: Target,
    thread: Thread,
    woken: AtomicBool,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch {
            armed: AtomicU32::new(0),
            waiters: Mutex::new(Vec::new()),
            subscribers: Mutex::new(Subscribers::new()),
        }
    }

    /// Wakes whom `concerns` names.
    fn wake(&self, concerns: impl Fn(Target) -> bool) {
        let mut waiters = self.waiters.lock();
        let mut at = 0;
        while let Some(waiter) = waiters.get(at) {
            if concerns(waiter.target) {
                // Its owner has it, too, and drops it only after it has had this lock.
                let waiter = waiters.swap_remove(at);
                // ORDERING: Relaxed; written under the lock, and who does not see it looks once too often.
                self.armed.fetch_sub(1, Ordering::Relaxed);
                waiter.wake();
            } else {
                at += 1;
            }
        }
    }

    /// Whether anybody waits. What the caller did before is seen by who is not seen here.
    fn is_armed(&self) -> bool {
        if !mutation::active(Mutation::EventLooksWithoutFence) {
            // ORDERING: SeqCst fence; pairs with the one in `Armed::new` (E1). Weaker, the look could be made before the counts can be seen: the
            // waiter sees no count, we see no waiter, and it sleeps.
            fence(Ordering::SeqCst);
        }
        // ORDERING: Relaxed; after the fence.
        self.armed.load(Ordering::Relaxed) > 0
    }

    /// A callback that nobody could run can be run.
    pub(super) fn wake_for_callbacks(&self) {
        if self.is_armed() {
            self.wake(|target| matches!(target, Target::Callbacks));
        }
    }
}

impl Waiter {
    fn wake(&self) {
        // ORDERING: Release; pairs with the Acquire in `Armed::sleep`: with the wake-up comes what was counted.
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// An event of `node` was counted.
pub(super) fn announce(node: &'static Node) {
    if node.shared.watch.is_armed() {
        wake_watchers(node);
    }
}

#[cold]
fn wake_watchers(node: &'static Node) {
    // ORDERING: Relaxed; written before the fence that made us see `armed`, or its writer sees the counts (E1).
    let is_watched = |level: &Node| level.control.events.watched.load(Ordering::Relaxed) > 0;
    if !levels(node).any(is_watched) {
        return;
    }
    node.shared.watch.wake(|target| match target {
        Target::Group(group, Reach::Local) => std::ptr::eq(group, node),
        Target::Group(group, Reach::Subtree) => node.is_within(group),
        Target::Callbacks => true,
    });
}

/// The group was taken offline: nobody is to wait for it any longer.
pub(crate) fn end(node: &'static Node) {
    let watch = &node.shared.watch;
    if watch.is_armed() {
        watch.wake(|target| matches!(target, Target::Group(group, _) if std::ptr::eq(group, node)));
    }
}

/// A thread that has announced that it waits; it looks once more before it sleeps. It ends by `sleep` or `disarm`, and nothing in between panics.
#[must_use = "it stays in the list"]
pub(super) struct Armed<'w> {
    watch: &'w Watch,
    waiter: Arc<Waiter>,
}

impl<'w> Armed<'w> {
    pub(super) fn new(watch: &'w Watch, target: Target) -> Armed<'w> {
        let waiter = Arc::new(Waiter { target, thread: thread::current(), woken: AtomicBool::new(false) });
        let armed = Armed { watch, waiter };
        armed.count(1);
        armed.watch.enlist(&armed.waiter);
        interleave::point();
        // ORDERING: SeqCst fence; pairs with the one in `Watch::is_armed` (E1). Weaker, our look at the counts could be made before we can be seen.
        fence(Ordering::SeqCst);
        armed
    }

    /// One more or less who watches the group.
    fn count(&self, by: u32) {
        if let Target::Group(node, _) = self.waiter.target {
            node.control.events.watch(by);
        }
    }

    /// Sleeps until it is woken; `false`: the deadline has passed, or it is called off.
    pub(super) fn sleep(self, deadline: Option<Instant>, is_called_off: impl Fn() -> bool) -> bool {
        loop {
            // ORDERING: Acquire; pairs with the Release in `Waiter::wake`.
            let is_woken = self.waiter.woken.load(Ordering::Acquire);
            let left =
                deadline.map_or(NAP_MOST, |deadline| deadline.saturating_duration_since(Instant::now()));
            if is_woken || left.is_zero() || is_called_off() {
                self.disarm();
                return is_woken;
            }
            thread::park_timeout(left.min(NAP_MOST));
        }
    }

    /// It need not be woken any more.
    pub(super) fn disarm(self) {
        let mut waiters = self.watch.waiters.lock();
        if let Some(at) = waiters.iter().position(|waiter| Arc::ptr_eq(waiter, &self.waiter)) {
            // Not the last one of it.
            drop(waiters.swap_remove(at));
            // ORDERING: Relaxed; as in `wake`.
            self.watch.armed.fetch_sub(1, Ordering::Relaxed);
        }
        drop(waiters);
        self.count(u32::MAX);
    }
}

impl Watch {
    /// Puts a waiter into the list. Room is made without the lock: an allocator may charge.
    fn enlist(&self, waiter: &Arc<Waiter>) {
        let waiter = Arc::clone(waiter);
        let mut waiters = self.waiters.lock();
        let mut spare = Vec::new();
        while waiters.len() == waiters.capacity() {
            let capacity = 2 * waiters.capacity() + 4;
            drop(waiters);
            if spare.capacity() < capacity {
                spare = Vec::with_capacity(capacity);
            }
            waiters = self.waiters.lock();
            if spare.capacity() > waiters.capacity() {
                spare.append(&mut waiters);
                std::mem::swap(&mut *waiters, &mut spare);
            }
        }
        waiters.push(waiter);
        // ORDERING: Relaxed; before the fence of the caller.
        self.armed.fetch_add(1, Ordering::Relaxed);
        // The lock goes before what is spare does.
        drop(waiters);
    }
}

impl super::Counts {
    /// One more who watches the group, or with `u32::MAX` one less.
    pub(super) fn watch(&self, by: u32) {
        // ORDERING: Relaxed; before the caller's fence (E1). One less that is seen late costs a look at the list.
        self.watched.fetch_add(by, Ordering::Relaxed);
    }
}
