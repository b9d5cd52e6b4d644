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
//! - I3. A look reads each value of a group once, however many descriptors are polled.
//! - I4. Every user finds places: the more are taken, the fewer a user may have, and a few are
//!   never refused ([`has_place`]).
//! - B1. Events are told at most every 10 ms, as the kernel does with `memory.events`. Removals and triggers are told [`TICK`] late.
//! - B2. Looks take a twentieth of the thread's time at most: the next one waits [`REST`] times as long as the last one took. So with many polls, or
//!   groups whose bytes take long to add up, news is told later. Removals that users of the mount make are answered in time.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{Errno, FileHandle, PollNotifier, ReplyEmpty};
use memgroup::{Group, GroupId, Hierarchy, WeakGroup};

use crate::open::{Open, Values};
use crate::table::has_place;

/// The time between two looks while a descriptor is polled, or a group is removed: a tenth of the shortest window of a trigger, as in the kernel.
const TICK: Duration = Duration::from_millis(50);

/// The time between two looks while descriptors keep groups, and none is polled.
const SLOW_TICK: Duration = Duration::from_secs(1);

/// The least time between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// How much longer than a look at all descriptors the time until the next one is.
const REST: u32 = 20;

/// The most waiting polls of all users together, beyond those that each may always have. The first
/// user gets 1,024, and leaves 4,096 to the others.
const POLLED_MOST: usize = 5 * 1024;

/// Descriptors with a poll that waits, by their handles.
struct Polls<N> {
    waiting: HashMap<u64, (Arc<Open>, N)>,
    /// How many each user has.
    users: HashMap<u32, usize>,
}

impl<N> Default for Polls<N> {
    fn default() -> Polls<N> {
        Polls { waiting: HashMap::new(), users: HashMap::new() }
    }
}

impl<N> Polls<N> {
    /// Adds the poll of a descriptor, or replaces it. Returns whether there is a place.
    fn insert(&mut self, handle: u64, open: &Arc<Open>, notifier: N) -> bool {
        if let Some((_, before)) = self.waiting.get_mut(&handle) {
            // The one before is dropped with the lock held, and runs no code of others.
            *before = notifier;
            return true;
        }
        let of_user = self.users.get(&open.user).copied().unwrap_or_default();
        if !has_place(of_user, self.waiting.len(), POLLED_MOST) {
            return false;
        }
        self.users.insert(open.user, of_user + 1);
        self.waiting.insert(handle, (Arc::clone(open), notifier));
        true
    }

    fn remove(&mut self, handle: u64) -> Option<(Arc<Open>, N)> {
        let (open, notifier) = self.waiting.remove(&handle)?;
        if let Some(of_user) = self.users.get_mut(&open.user) {
            *of_user -= 1;
            if *of_user == 0 {
                self.users.remove(&open.user);
            }
        }
        Some((open, notifier))
    }
}

#[derive(Default)]
struct State {
    is_over: bool,
    polls: Polls<PollNotifier>,
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
        self.polls.waiting.is_empty() && self.removals.is_empty()
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
        // Before that no look is made (B2).
        let mut not_before = Instant::now();
        while self.wait_for_work() {
            self.answer_slow_removals();
            let began = Instant::now();
            // Before the look (I1).
            let seen = root.events();
            let is_due = began >= not_before;
            if is_due {
                self.look();
                not_before = Instant::now() + REST * began.elapsed();
            }
            let state = self.state();
            if state.polls.waiting.is_empty() {
                let is_removing = !state.removals.is_empty();
                let has_rest = |state: &mut State| {
                    let is_polled = !state.polls.waiting.is_empty();
                    !state.is_over && !is_polled && state.removals.is_empty() != is_removing
                };
                let tick = if is_removing { TICK } else { SLOW_TICK };
                drop(self.changed.wait_timeout_while(state, tick, has_rest));
                continue;
            }
            drop(state);
            if is_due {
                root.wait_events(&seen, TICK);
            }
            let until_next = not_before.saturating_duration_since(Instant::now());
            thread::sleep(until_next.max(PAUSE.saturating_sub(began.elapsed())).min(TICK));
        }
    }

    /// Waits until there is a descriptor to look at. Returns `false` at the end.
    fn wait_for_work(&self) -> bool {
        let has_rest = |state: &mut State| !state.is_over && state.is_quiet() && state.keeping.is_empty();
        let state = self.changed.wait_while(self.state(), has_rest).unwrap_or_else(PoisonError::into_inner);
        !state.is_over
    }

    /// Answers removals whose callbacks are slow.
    fn answer_slow_removals(&self) {
        // Later than a worker with short callbacks: a handle of this thread would keep a removed group for a moment.
        let slow: Vec<WeakGroup> = {
            let state = self.state();
            let slow = state.removals.values().filter(|removal| removal.began.elapsed() >= TICK);
            slow.map(|removal| removal.group).collect()
        };
        for group in slow {
            if group.upgrade().is_none_or(|group| !group.is_online()) {
                self.answer(group.id(), Ok(()));
            }
        }
    }

    /// Tells polls with news, and lets go of removed groups.
    fn look(&self) {
        let (polled, keeping) = {
            let state = self.state();
            let polled = state.polls.waiting.iter().map(|(&handle, (open, _))| (handle, Arc::clone(open)));
            let keeping = state.keeping.iter().map(|(&handle, open)| (handle, Arc::clone(open)));
            (polled.collect::<Vec<_>>(), keeping.collect::<Vec<_>>())
        };
        let mut values = Values::default();
        for (handle, open) in polled {
            if open.has_news(&mut values) {
                self.tell(handle);
            }
        }
        for (handle, open) in keeping {
            if !open.keeps_group(&mut values) {
                self.state().keeping.remove(&handle);
            }
        }
    }

    fn tell(&self, handle: u64) {
        let told = self.state().polls.remove(handle);
        if let Some((_, notifier)) = told {
            // An error says that the descriptor is closed or the mount is gone.
            _ = notifier.notify();
        }
    }

    /// The group was removed by a user of the mount: its descriptors are told at once.
    pub(crate) fn removed(&self, group: GroupId) {
        let (polled, keeping) = {
            let state = self.state();
            let polled = state.polls.waiting.iter().filter(|(_, (open, _))| open.id() == group);
            let polled: Vec<_> = polled.map(|(&handle, _)| handle).collect();
            let keeping = state.keeping.values().filter(|open| open.id() == group);
            (polled, keeping.cloned().collect::<Vec<_>>())
        };
        let mut values = Values::default();
        for open in keeping {
            open.keeps_group(&mut values);
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

    /// A poll waits. The caller looks at the descriptor afterwards (I1). Returns `false` if the user has too many polls that wait.
    #[must_use]
    pub(crate) fn poll(&self, handle: FileHandle, open: &Arc<Open>, notifier: PollNotifier) -> bool {
        let has_place = self.shared.state().polls.insert(handle.0, open, notifier);
        self.shared.changed.notify_one();
        has_place
    }

    /// The poll has news, and waits no more.
    pub(crate) fn polled(&self, handle: FileHandle) {
        self.shared.state().polls.remove(handle.0);
    }

    /// The descriptor may keep its group now.
    pub(crate) fn keep(&self, handle: FileHandle, open: &Arc<Open>) {
        self.shared.state().keeping.insert(handle.0, Arc::clone(open));
        self.shared.changed.notify_one();
    }

    /// The descriptor is closed.
    pub(crate) fn forget(&self, handle: FileHandle) {
        let mut state = self.shared.state();
        let gone = (state.polls.remove(handle.0), state.keeping.remove(&handle.0));
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

#[cfg(test)]
mod tests {
    use memgroup::Config;

    use super::*;
    use crate::files::Files;
    use crate::table::ALWAYS;

    #[test]
    fn every_user_finds_a_place() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let file = Files::of(&hierarchy).find("memory.events").unwrap().1;
        let open = |user| Arc::new(Open::new(user, hierarchy.root().downgrade(), Arc::clone(&file)));
        let mut polls = Polls::default();
        let mut handles = 0..;
        // Each takes as many as it gets.
        let mut take = |polls: &mut Polls<()>, user| {
            let open = open(user);
            (0..=POLLED_MOST).take_while(|_| polls.insert(handles.next().unwrap(), &open, ())).count()
        };
        let taken: Vec<usize> = (0..100).map(|user| take(&mut polls, user)).collect();
        assert_eq!(taken[..4], [1024, 819, 655, 524], "a fifth of the free places each");
        assert!(taken.is_sorted_by(|before, after| before >= after), "{taken:?}");
        assert_eq!(taken[99], ALWAYS, "a late user has a place");
        assert!(polls.waiting.len() <= POLLED_MOST + 100 * ALWAYS);
        assert_eq!(take(&mut polls, 0), 0, "it has more than its part by now");
        assert!(polls.insert(0, &open(0), ()), "a poll of a file that is polled keeps its place");

        let all: Vec<u64> = polls.waiting.keys().copied().collect();
        for handle in all {
            assert!(polls.remove(handle).is_some() && polls.remove(handle).is_none());
        }
        assert!(polls.waiting.is_empty() && polls.users.is_empty());
        assert_eq!(take(&mut polls, 0), 1024, "the places are free again");
    }
}
