//! Watch: a thread that tells waiting polls, lets go of removed groups, and answers removals with slow callbacks.
//!
//! ```text
//!   poll ─▶ polled ─┐      any event of the hierarchy ─▶ wait at the root ends ─┐
//!   write ─▶ keeps ─┴──────────────── every TICK ───────────────────────────────┴▶ look at each ─▶ told, let go
//! ```
//!
//! All events count at the root. So one wait there covers any number of descriptors. The engine tells neither a removal nor a trigger of which no
//! thread waits; the thread looks for those. It sleeps without a tick while no descriptor is polled, none keeps a group, and no removal is under way.
//!
//! - I1. A poll is registered before it looks. The thread reads the counts at the root before it looks at the descriptors. So an event that neither
//!   sees ends the wait at the root.
//! - I2. The kernel locks the parent of a group until its removal is answered. So the thread answers as soon as the group is gone, although its
//!   callbacks still run.
//! - B1. Events are told at most every 10 ms, as the kernel does with `memory.events`. Removals and triggers are told [`TICK`] late.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{Errno, FileHandle, PollNotifier, ReplyEmpty};
use memgroup::{Group, GroupId, Hierarchy, WeakGroup};

use crate::open::Open;

/// The time between two looks while a descriptor is polled, or a group is removed: a tenth of the shortest window of a trigger, as in the kernel.
const TICK: Duration = Duration::from_millis(50);

/// The time between two looks while descriptors keep groups, and none is polled.
const SLOW_TICK: Duration = Duration::from_secs(1);

/// The least time between two looks.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Default)]
struct State {
    is_over: bool,
    /// Descriptors with a poll that waits.
    polled: HashMap<u64, (Arc<Open>, PollNotifier)>,
    /// Descriptors that keep their group.
    keeping: HashMap<u64, Arc<Open>>,
    /// Removals that are not answered.
    removals: HashMap<GroupId, Removal>,
}

/// A removal that a worker makes.
struct Removal {
    group: WeakGroup,
    began: Instant,
    reply: ReplyEmpty,
}

impl State {
    /// Whether there is nothing to look at with each tick.
    fn is_quiet(&self) -> bool {
        self.polled.is_empty() && self.removals.is_empty()
    }
}

/// The part of the watch that its thread and the workers share.
#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The watch of one mount. Dropping it ends the thread.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, hierarchy: &Hierarchy) {
        let root = hierarchy.root();
        while self.wait_for_work() {
            let began = Instant::now();
            // Before the look (I1).
            let seen = root.events();
            if self.look() {
                root.wait_events(&seen, TICK);
                thread::sleep(PAUSE.saturating_sub(began.elapsed()));
            } else {
                let state = self.state();
                let is_removing = !state.removals.is_empty();
                let has_rest = |state: &mut State| {
                    !state.is_over && state.polled.is_empty() && state.removals.is_empty() != is_removing
                };
                let tick = if is_removing { TICK } else { SLOW_TICK };
                drop(self.changed.wait_timeout_while(state, tick, has_rest));
            }
        }
    }

    /// Waits until there is a descriptor to look at. Returns `false` at the end.
    fn wait_for_work(&self) -> bool {
        let has_rest = |state: &mut State| !state.is_over && state.is_quiet() && state.keeping.is_empty();
        let state = self.changed.wait_while(self.state(), has_rest).unwrap_or_else(PoisonError::into_inner);
        !state.is_over
    }

    /// Tells polls with news, lets go of removed groups, and answers removals. Returns whether any poll still waits.
    fn look(&self) -> bool {
        let (polled, keeping, slow) = {
            let state = self.state();
            let polled: Vec<_> =
                state.polled.iter().map(|(&handle, (open, _))| (handle, Arc::clone(open))).collect();
            let keeping: Vec<_> =
                state.keeping.iter().map(|(&handle, open)| (handle, Arc::clone(open))).collect();
            // Later than a worker with short callbacks: a handle of this thread would keep a removed group for a moment.
            let slow = state.removals.values().filter(|removal| removal.began.elapsed() >= TICK);
            let slow: Vec<_> = slow.map(|removal| removal.group).collect();
            (polled, keeping, slow)
        };
        for group in slow {
            if group.upgrade().is_none_or(|group| !group.is_online()) {
                self.answer(group.id(), Ok(()));
            }
        }
        for (handle, open) in polled {
            if open.has_news() {
                self.tell(handle);
            }
        }
        for (handle, open) in keeping {
            if !open.keeps_group() {
                self.state().keeping.remove(&handle);
            }
        }
        !self.state().polled.is_empty()
    }

    fn tell(&self, handle: u64) {
        let told = self.state().polled.remove(&handle);
        if let Some((_, notifier)) = told {
            // An error says that the descriptor is closed or the mount is gone.
            _ = notifier.notify();
        }
    }

    /// The group was removed by a user of the mount: its descriptors are told at once.
    pub(crate) fn removed(&self, group: GroupId) {
        let (polled, keeping) = {
            let state = self.state();
            let polled = state.polled.iter().filter(|(_, (open, _))| open.id() == group);
            let polled: Vec<_> = polled.map(|(&handle, _)| handle).collect();
            let keeping = state.keeping.values().filter(|open| open.id() == group);
            (polled, keeping.cloned().collect::<Vec<_>>())
        };
        for open in keeping {
            open.keeps_group();
        }
        polled.into_iter().for_each(|handle| self.tell(handle));
    }

    /// Answers a removal, unless that was done.
    pub(crate) fn answer(&self, group: GroupId, removed: Result<(), Errno>) {
        let removal = self.state().removals.remove(&group);
        match (removal, removed) {
            (Some(Removal { reply, .. }), Ok(())) => reply.ok(),
            (Some(Removal { reply, .. }), Err(errno)) => reply.error(errno),
            (None, _) => {}
        }
    }
}

impl Watch {
    pub(crate) fn new(hierarchy: &Hierarchy) -> io::Result<Watch> {
        let (shared, hierarchy) = (Arc::<Shared>::default(), hierarchy.clone());
        let thread = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("memgroup-polls".to_owned()).spawn(move || shared.run(&hierarchy))?
        };
        Ok(Watch { shared, thread: Some(thread) })
    }

    /// A poll waits. The caller looks at the descriptor afterwards (I1).
    pub(crate) fn poll(&self, handle: FileHandle, open: &Arc<Open>, notifier: PollNotifier) {
        self.shared.state().polled.insert(handle.0, (Arc::clone(open), notifier));
        self.shared.changed.notify_one();
    }

    /// The poll has news, and waits no more.
    pub(crate) fn polled(&self, handle: FileHandle) {
        self.shared.state().polled.remove(&handle.0);
    }

    /// The descriptor may keep its group now.
    pub(crate) fn keep(&self, handle: FileHandle, open: &Arc<Open>) {
        self.shared.state().keeping.insert(handle.0, Arc::clone(open));
        self.shared.changed.notify_one();
    }

    /// The descriptor is closed.
    pub(crate) fn forget(&self, handle: FileHandle) {
        let mut state = self.shared.state();
        let gone = (state.polled.remove(&handle.0), state.keeping.remove(&handle.0));
        drop(state);
        drop(gone);
    }

    /// A worker removes the group. The reply is given when it is removed, or by the worker's answer.
    pub(crate) fn removing(&self, group: &Group, reply: ReplyEmpty) -> Arc<Shared> {
        let removal = Removal { group: group.downgrade(), began: Instant::now(), reply };
        self.shared.state().removals.insert(group.id(), removal);
        self.shared.changed.notify_one();
        Arc::clone(&self.shared)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_one();
        _ = self.thread.take().map(JoinHandle::join);
    }
}
