//! Stop: ends tasks at their next poll, and wakes them for it.
//!
//! ```text
//!   member made ─▶ polled ─▶ pending: its waker is put into the list ─▶ ... ─▶ dropped: its place is free
//!                              stop: counts, takes the whole list, wakes outside the lock ─▶ polled: the count differs ─▶ ended
//! ```
//!
//! - I1. A member is stopped if the number of stops differs from the one that it was made with. The
//!   number changes under the lock only.
//! - I2. A pending member has its waker in the list, or was stopped, because it reads the number
//!   again under the lock when it adds the waker. So a stop is never missed, and the number that a
//!   poll reads without the lock is only an early hint.
//! - I3. The last member to end after a stop notifies the engine, so that it may choose the next
//!   victim. A stop in between counts as ended as well. The member of a request does not notify the
//!   engine, because its closures on other threads may still have the memory, so the engine relies
//!   on the group's bytes.
//! - I4. The lock is held for a few steps, and never while foreign code runs: wakers are cloned,
//!   woken and dropped outside. A stop only tries the lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::Waker;

use memgroup::{Group, GroupId, KillRegistration};

/// The charge for which tasks were stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StopReason {
    pub(crate) requester: GroupId,
    pub(crate) full: GroupId,
    pub(crate) asked: u64,
}

/// The result of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// This many members were told to stop.
    Told(usize),
    /// There is none.
    NoneRuns,
    /// Another thread, or this one, is changing the list.
    Busy,
}

/// What the members are.
#[derive(Debug)]
pub(crate) enum Work {
    /// Tasks of a group, whose memory is freed with the last of them.
    Tasks,
    /// The handler of a request. Closures that it has started on other threads continue after its
    /// end.
    Request { has_answered: AtomicBool },
}

/// The members that are stopped together.
pub(crate) struct Stops {
    work: Work,
    /// Dropped with the last handle and the last member, after which no hook is called. It has the
    /// group, so that a request needs no further handle of it.
    hook: OnceLock<KillRegistration>,
    number: AtomicU64,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    reason: Option<StopReason>,
    /// Members since the last stop.
    members: usize,
    /// Members of the last stop that have not ended yet.
    stopping: usize,
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// A task that can be stopped.
pub(crate) struct Member {
    stops: Arc<Stops>,
    number: u64,
    listed: Option<(usize, Waker)>,
}

impl Stops {
    /// The caller must set the hook before the first member joins.
    pub(crate) fn new(work: Work) -> Stops {
        let (hook, number, list) = (OnceLock::new(), AtomicU64::new(0), Mutex::default());
        Stops { work, hook, number, list }
    }

    /// Keeps the hook that stops these members.
    pub(crate) fn keep(&self, hook: KillRegistration) {
        assert!(self.hook.set(hook).is_ok(), "a group has one hook");
    }

    pub(crate) fn group(&self) -> &Group {
        self.hook.get().expect("the hook is set before there is a member").group()
    }

    /// Notes that the request's handler has returned its response.
    pub(crate) fn answered(&self) {
        if let Work::Request { has_answered } = &self.work {
            // ORDERING: Relaxed; a hint for the hook's answer.
            has_answered.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether a request without a response has no member left. Whatever still has memory
    /// in its group works for nobody, and will end.
    pub(crate) fn is_cut_short(&self) -> bool {
        // ORDERING: Relaxed; as in `answered`.
        matches!(&self.work, Work::Request { has_answered } if !has_answered.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release in `stop`: a member that finds a new number
        // finds its reason. The lock decides (I2).
        self.number.load(Ordering::Acquire)
    }

    pub(crate) fn join(self: &Arc<Stops>) -> Member {
        let mut list = self.lock();
        list.members += 1;
        let number = self.number();
        drop(list);
        Member { stops: Arc::clone(self), number, listed: None }
    }

    /// Members that were not told to stop.
    pub(crate) fn members(&self) -> usize {
        self.lock().members
    }

    /// Stops all members. A waker that panics is skipped.
    pub(crate) fn stop(&self, reason: Option<StopReason>) -> Stopped {
        let mut list = match self.list.try_lock() {
            Ok(list) => list,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Stopped::Busy,
        };
        if list.members == 0 {
            return Stopped::NoneRuns;
        }
        let members = std::mem::take(&mut list.members);
        list.stopping += members;
        list.reason = reason;
        let (wakers, free) = (std::mem::take(&mut list.wakers), std::mem::take(&mut list.free));
        // ORDERING: Release; pairs with the Acquire in `number`.
        self.number.fetch_add(1, Ordering::Release);
        drop(list);
        drop(free);
        for waker in wakers.into_iter().flatten() {
            // A panic's value may panic again when it is dropped.
            catch_unwind(AssertUnwindSafe(|| waker.wake())).unwrap_or_else(std::mem::forget);
        }
        Stopped::Told(members)
    }
}

impl Member {
    /// Returns whether it was told to stop.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stops.number() != self.number
    }

    /// The charge for which the last members were stopped.
    pub(crate) fn reason(&self) -> Option<StopReason> {
        self.stops.lock().reason
    }

    /// Registers `waker` to be woken by a stop. Returns whether the member was stopped already.
    pub(crate) fn wake_by(&mut self, waker: &Waker) -> bool {
        if self.listed.as_ref().is_some_and(|(_, listed)| listed.will_wake(waker)) {
            return self.is_stopped();
        }
        let (listed, own) = (waker.clone(), waker.clone());
        let mut list = self.stops.lock();
        if self.is_stopped() {
            drop(list);
            return true;
        }
        let place = self.listed.as_ref().map(|&(place, _)| place);
        let place = place.or_else(|| list.free.pop()).unwrap_or_else(|| {
            list.wakers.push(None);
            list.wakers.len() - 1
        });
        let before = list.wakers[place].replace(listed);
        drop(list);
        drop(before);
        self.listed = Some((place, own));
        false
    }

    /// Leaves the list. Returns whether it is the last one to end after a stop.
    fn leave(&mut self) -> bool {
        let mut list = self.stops.lock();
        if self.is_stopped() {
            list.stopping -= 1;
            return list.stopping == 0;
        }
        list.members -= 1;
        if let Some((place, _)) = self.listed {
            let waker = list.wakers[place].take();
            list.free.push(place);
            drop(list);
            drop(waker);
        }
        false
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.leave() && matches!(self.stops.work, Work::Tasks) {
            self.stops.group().kill_done();
        }
    }
}
