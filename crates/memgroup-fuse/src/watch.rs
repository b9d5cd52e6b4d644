//! Watch: a thread that notifies waiting polls, releases removed groups, and answers removals with
//! slow callbacks.
//!
//! ```text
//!   poll ─▶ polled ─┐      any event of the hierarchy ─▶ wait at the root ends ─┐
//!   write ─▶ keeps ─┴──────────────── every TICK ───────────────────────────────┴▶ look at each ─▶ told, let go
//! ```
//!
//! All events count at the root, so one wait there covers any number of descriptors. The engine
//! does not report removals, nor triggers that no thread waits for, so the thread checks for those.
//! It sleeps without a tick while no descriptor is polled, none keeps a group, and no removal is
//! running.
//!
//! - I1. A poll is registered before it checks its descriptor, and the thread reads the counts at
//!   the root before it checks the descriptors. So an event that neither sees ends the wait at the
//!   root.
//! - I2. The kernel locks the parent of a group until its removal is answered. So the thread
//!   answers as soon as the group is gone, even if callbacks are still running.
//! - I3. A check reads each value of a group once, however many descriptors are polled.
//! - I4. Every user finds places: the more are taken, the fewer a user may have, and a few are
//!   never refused ([`Places`]).
//! - B1. Events are reported at most every 10 ms, like the kernel's for `memory.events`. Removals
//!   and triggers are reported up to [`TICK`] late.
//! - B2. Checks take at most a twentieth of the thread's time, because the next one waits [`REST`]
//!   times as long as the last one took. So with many polls, or with groups whose bytes take long
//!   to add up, changes are reported later. Removals by users of the mount are answered in time.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{Errno, FileHandle, PollNotifier, ReplyEmpty};
use memgroup::{Group, GroupId, Hierarchy, WeakGroup};
use parking_lot::{Condvar, Mutex};

use crate::open::{Open, Values};
use crate::table::Places;

/// The time between two checks while a descriptor is polled or a group is being removed: a tenth of
/// the shortest window of a trigger, as in the kernel.
const TICK: Duration = Duration::from_millis(50);

/// The time between two checks while descriptors keep groups, but none is polled.
const SLOW_TICK: Duration = Duration::from_secs(1);

/// The least time between two checks.
const PAUSE: Duration = Duration::from_millis(10);

/// How many times longer than a check of all descriptors the time until the next one is.
const REST: u32 = 20;

/// The most waiting polls of all users together, beyond those that each may always have. The first
/// user gets 1,024, and leaves 4,096 to the others.
const POLLED_MOST: usize = 5 * 1024;

/// Descriptors with a poll that waits, by their handles.
struct Polls<N> {
    waiting: HashMap<u64, (Arc<Open>, N)>,
    places: Places,
}

impl<N> Default for Polls<N> {
    fn default() -> Polls<N> {
        Polls { waiting: HashMap::new(), places: Places::default() }
    }
}

impl<N> Polls<N> {
    /// Adds the poll of a descriptor, or replaces it. Returns whether there is a place.
    fn insert(&mut self, handle: u64, open: &Arc<Open>, notifier: N) -> bool {
        if let Some((_, before)) = self.waiting.get_mut(&handle) {
            // The previous one is dropped with the lock held, which runs no foreign code.
            *before = notifier;
            return true;
        }
        let has_place = self.places.take(open.user, POLLED_MOST);
        if has_place {
            self.waiting.insert(handle, (Arc::clone(open), notifier));
        }
        has_place
    }

    fn remove(&mut self, handle: u64) -> Option<(Arc<Open>, N)> {
        let (open, notifier) = self.waiting.remove(&handle)?;
        self.places.change(open.user, 1, 0);
        Some((open, notifier))
    }
}

#[derive(Default)]
struct State {
    is_over: bool,
    polls: Polls<PollNotifier>,
    /// Descriptors that keep their group.
    keeping: HashMap<u64, Arc<Open>>,
    /// Removals that are not answered yet.
    removals: HashMap<GroupId, Removal>,
}

/// A removal by a worker.
struct Removal {
    group: WeakGroup,
    began: Instant,
    reply: ReplyEmpty,
}

impl State {
    /// Returns whether there is nothing to check at each tick.
    fn is_quiet(&self) -> bool {
        self.polls.waiting.is_empty() && self.removals.is_empty()
    }
}

/// What the thread of the watch shares with the workers.
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
    fn run(&self, hierarchy: &Hierarchy) {
        let root = hierarchy.root();
        // The next check must not begin before this time (B2).
        let mut not_before = Instant::now();
        while self.wait_for_work() {
            self.answer_slow_removals();
            let began = Instant::now();
            // Read before the check (I1).
            let seen = root.events();
            let is_due = began >= not_before;
            if is_due {
                self.look();
                not_before = Instant::now() + REST * began.elapsed();
            }
            let mut state = self.state.lock();
            if state.polls.waiting.is_empty() {
                let is_removing = !state.removals.is_empty();
                let has_rest = |state: &mut State| {
                    let is_polled = !state.polls.waiting.is_empty();
                    !state.is_over && !is_polled && state.removals.is_empty() != is_removing
                };
                let tick = if is_removing { TICK } else { SLOW_TICK };
                _ = self.changed.wait_while_for(&mut state, has_rest, tick);
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

    /// Waits until there is a descriptor to check. Returns `false` at the end.
    fn wait_for_work(&self) -> bool {
        let has_rest = |state: &mut State| !state.is_over && state.is_quiet() && state.keeping.is_empty();
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, has_rest);
        !state.is_over
    }

    /// Answers removals whose callbacks are slow.
    fn answer_slow_removals(&self) {
        // Only after a delay, so that a worker with short callbacks answers first. A handle of this
        // thread would keep a removed group for a moment.
        let slow: Vec<WeakGroup> = {
            let state = self.state.lock();
            let slow = state.removals.values().filter(|removal| removal.began.elapsed() >= TICK);
            slow.map(|removal| removal.group).collect()
        };
        for group in slow {
            if group.upgrade().is_none_or(|group| !group.is_online()) {
                self.answer(group.id(), Ok(()));
            }
        }
    }

    /// Notifies polls of changed files, and releases removed groups.
    fn look(&self) {
        let (polled, keeping) = {
            let state = self.state.lock();
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
                self.state.lock().keeping.remove(&handle);
            }
        }
    }

    fn tell(&self, handle: u64) {
        let told = self.state.lock().polls.remove(handle);
        if let Some((_, notifier)) = told {
            // An error means that the descriptor is closed or the mount is gone.
            _ = notifier.notify();
        }
    }

    /// Notifies the descriptors of a group at once, because a user of the mount has removed it.
    pub(crate) fn removed(&self, group: GroupId) {
        let (polled, keeping) = {
            let state = self.state.lock();
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

    /// Answers a removal, unless it was answered already.
    pub(crate) fn answer(&self, group: GroupId, removed: Result<(), Errno>) {
        let removal = self.state.lock().removals.remove(&group);
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

    /// Registers a waiting poll. The caller must check the descriptor afterwards (I1). Returns
    /// `false` if the user has too many waiting polls.
    #[must_use]
    pub(crate) fn poll(&self, handle: FileHandle, open: &Arc<Open>, notifier: PollNotifier) -> bool {
        let has_place = self.shared.state.lock().polls.insert(handle.0, open, notifier);
        self.shared.changed.notify_one();
        has_place
    }

    /// Removes a poll that no longer waits.
    pub(crate) fn polled(&self, handle: FileHandle) {
        self.shared.state.lock().polls.remove(handle.0);
    }

    /// Notes that the descriptor may keep its group alive from now on.
    pub(crate) fn keep(&self, handle: FileHandle, open: &Arc<Open>) {
        self.shared.state.lock().keeping.insert(handle.0, Arc::clone(open));
        self.shared.changed.notify_one();
    }

    /// Forgets a closed descriptor.
    pub(crate) fn forget(&self, handle: FileHandle) {
        let mut state = self.shared.state.lock();
        let gone = (state.polls.remove(handle.0), state.keeping.remove(&handle.0));
        drop(state);
        drop(gone);
    }

    /// Notes that a worker is removing the group. The reply is sent when it is removed, or by the
    /// worker's answer.
    pub(crate) fn removing(&self, group: &Group, reply: ReplyEmpty) -> Arc<Shared> {
        let removal = Removal { group: group.downgrade(), began: Instant::now(), reply };
        self.shared.state.lock().removals.insert(group.id(), removal);
        self.shared.changed.notify_one();
        Arc::clone(&self.shared)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
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
        assert!(polls.waiting.is_empty() && polls.places.all == 0);
        assert_eq!(take(&mut polls, 0), 1024, "the places are free again");
    }
}
