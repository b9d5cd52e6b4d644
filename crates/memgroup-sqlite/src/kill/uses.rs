//! Uses of a group's connections: which of them run something now, and how those are told to stop.
//!
//! ```text
//!            begin                 try_stop, under the lock: mark, then interrupt
//!   IDLE ─────────────▶ RUNNING ─────────────────────────────────────────▶ KILLED
//!    ▲                     │ end: nobody has marked it                        │ quieten: waits for the lock, takes the interrupt back
//!    │                     │                                                  ▼
//!    └─────────────────────┴─────────────────────────────────────────────── ENDING ── what is left to clean up
//! ```
//!
//! - I1. Every step is made by the thread that uses the connection, but RUNNING → KILLED, which is made under the lock of the list alone.
//! - I2. A connection is interrupted under that lock, while it stands in the list, and it leaves the list before it is closed.
//! - I3. A use is interrupted once, when it becomes KILLED, and has got that when it becomes ENDING. What an interrupt leaves behind is taken back there, so that nothing of it is there when it is IDLE.
//! - I4. The lock is held for some instructions for each connection of the group: who holds it waits for nothing but a kill that it says has ended.
//! - E1. End of a killed use after its interrupt: the lock. Loom: `loom_an_interrupt_hits_the_use_that_it_was_meant_for`.

use std::sync::Arc;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::interleave;

use crate::mutation::{self, Mutation};

const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const KILLED: u32 = 2;
const ENDING: u32 = 3;

/// What can be interrupted by any thread.
pub(super) trait Interrupt {
    fn interrupt(&self);

    /// Takes an interrupt back that has come; by the thread that uses it.
    fn forget(&self);
}

/// A connection, in use or not.
pub(super) struct Use<D> {
    state: AtomicU32,
    pub(super) connection: D,
}

impl<D> Use<D> {
    pub(super) fn new(connection: D) -> Use<D> {
        Use { state: AtomicU32::new(IDLE), connection }
    }

    /// It is used from here on; false: it is already, and this use is a part of that one.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        // ORDERING: Relaxed; only this thread takes it from IDLE, or back.
        let is_outermost = self.state.load(Ordering::Relaxed) == IDLE;
        if is_outermost {
            // ORDERING: Relaxed; it carries nothing. Who tells it to stop does so by an RMW, which has the last value.
            self.state.store(RUNNING, Ordering::Relaxed);
        }
        is_outermost
    }

    /// Whether this use was told to stop, and has not ended.
    #[inline]
    pub(super) fn is_killed(&self) -> bool {
        // ORDERING: Relaxed; for the thread that uses it a hint, for others only under the lock.
        self.state.load(Ordering::Relaxed) >= KILLED
    }

    /// Whether it was, and its interrupt is taken back.
    pub(super) fn is_quiet(&self) -> bool {
        // ORDERING: Relaxed; only this thread makes it so.
        self.state.load(Ordering::Relaxed) == ENDING
    }

    /// RUNNING → KILLED, under the lock; whether it ran.
    fn mark(&self) -> bool {
        // ORDERING: Relaxed, both; the end of a marked use takes the lock, under which this is done (E1).
        self.state.compare_exchange(RUNNING, KILLED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// RUNNING → IDLE; false: it was told to stop.
    #[inline]
    pub(super) fn end_unmarked(&self) -> bool {
        // ORDERING: Relaxed, both; nobody interrupts who was not marked, and who was takes the lock (E1).
        self.state.compare_exchange(RUNNING, IDLE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// KILLED → ENDING.
    fn mark_ending(&self) {
        // ORDERING: Relaxed; nobody else changes it when it is KILLED.
        self.state.store(ENDING, Ordering::Relaxed);
    }

    /// ENDING → IDLE.
    fn clear(&self) {
        // ORDERING: Relaxed; as in `begin`.
        self.state.store(IDLE, Ordering::Relaxed);
    }
}

/// What came of [`Uses::try_stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Some run, and all of them were told.
    Running,
    /// None runs.
    NoneRuns,
    /// Somebody has the list.
    Busy,
}

struct Listed<D, R> {
    one: Arc<Use<D>>,
    /// Why it was told to stop, as long as it is KILLED.
    reason: Option<R>,
}

/// The connections of one group.
pub(super) struct Uses<D, R> {
    list: Mutex<Vec<Listed<D, R>>>,
}

impl<D: Interrupt, R: Clone> Uses<D, R> {
    pub(super) fn new() -> Uses<D, R> {
        Uses { list: Mutex::new(Vec::new()) }
    }

    pub(super) fn enlist(&self, one: &Arc<Use<D>>) {
        self.list.lock().push(Listed { one: Arc::clone(one), reason: None });
    }

    /// No interrupt comes after this (I2).
    pub(super) fn delist(&self, one: &Arc<Use<D>>) {
        let mut list = self.list.lock();
        if let Some(at) = list.iter().position(|listed| Arc::ptr_eq(&listed.one, one)) {
            list.swap_remove(at);
        }
    }

    /// Tells all that run to stop, because of `reason`. Waits for nothing and allocates nothing.
    pub(super) fn try_stop(&self, reason: impl Fn() -> R) -> Told {
        let Some(mut list) = self.list.try_lock() else { return Told::Busy };
        let mut told = Told::NoneRuns;
        for listed in list.iter_mut() {
            if listed.one.mark() {
                interleave::point();
                listed.reason = Some(reason());
                listed.one.connection.interrupt();
            }
            if listed.one.is_killed() {
                told = Told::Running;
            }
        }
        told
    }

    /// Why this use was told to stop.
    pub(super) fn reason(&self, one: &Arc<Use<D>>) -> Option<R> {
        let list = self.list.lock();
        list.iter().find(|listed| Arc::ptr_eq(&listed.one, one))?.reason.clone()
    }

    /// A use that was told to stop has done its work: its interrupt has come, is taken back, and none comes any more (I3).
    #[cold]
    #[inline(never)]
    pub(super) fn quieten(&self, one: &Use<D>) {
        if one.is_quiet() {
            return;
        }
        if !mutation::active(Mutation::KilledEndsUnlocked) {
            // Who has marked it holds the lock until it has interrupted it.
            drop(self.list.lock());
        }
        one.mark_ending();
        one.connection.forget();
    }

    /// Ends an outermost use. When it was the last that had been told to stop, `all_have_ended` is called, while nobody is told.
    #[inline]
    pub(super) fn end(&self, one: &Arc<Use<D>>, all_have_ended: impl FnOnce()) {
        if !one.end_unmarked() {
            self.end_killed(one, all_have_ended);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_killed(&self, one: &Arc<Use<D>>, all_have_ended: impl FnOnce()) {
        self.quieten(one);
        let mut list = self.list.lock();
        one.clear();
        let ended = list.iter_mut().find(|listed| Arc::ptr_eq(&listed.one, one));
        let reason = ended.and_then(|listed| listed.reason.take());
        if !list.iter().any(|listed| listed.one.is_killed()) {
            all_have_ended();
        }
        drop(list);
        // It may have the last handle on a group.
        drop(reason);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[derive(Default)]
    struct Interrupts(Cell<u32>);

    impl Interrupt for Interrupts {
        fn interrupt(&self) {
            self.0.set(self.0.get() + 1);
        }

        fn forget(&self) {
            self.0.set(0);
        }
    }

    fn one(uses: &Uses<Interrupts, &'static str>) -> Arc<Use<Interrupts>> {
        // The threads of these tests are one.
        #[allow(clippy::arc_with_non_send_sync)]
        let one = Arc::new(Use::new(Interrupts::default()));
        uses.enlist(&one);
        one
    }

    #[test]
    fn those_that_run_are_told_once_and_those_that_do_not_are_not() {
        let uses = Uses::new();
        let (first, second, idle) = (one(&uses), one(&uses), one(&uses));
        assert_eq!(uses.try_stop(|| "too early"), Told::NoneRuns);
        assert!(first.begin() && second.begin() && !first.begin(), "the third is a part of the first");
        assert_eq!((uses.try_stop(|| "a"), uses.try_stop(|| "b")), (Told::Running, Told::Running));
        assert_eq!((first.connection.0.get(), second.connection.0.get(), idle.connection.0.get()), (1, 1, 0));
        assert_eq!(
            (uses.reason(&first), uses.reason(&second), uses.reason(&idle)),
            (Some("a"), Some("a"), None)
        );
    }

    #[test]
    fn a_kill_has_ended_when_the_last_that_was_told_has() {
        let uses = Uses::new();
        let (first, second, third) = (one(&uses), one(&uses), one(&uses));
        assert!(first.begin() && second.begin());
        assert_eq!(uses.try_stop(|| "a"), Told::Running);
        assert!(third.begin());
        let ended = Cell::new(0);
        let end = |one| uses.end(one, || ended.set(ended.get() + 1));
        end(&first);
        assert_eq!((ended.get(), uses.reason(&first)), (0, None));
        end(&third);
        assert_eq!(ended.get(), 0, "nobody has told that one");
        end(&second);
        assert_eq!(ended.get(), 1);
        assert!(second.begin() && !second.is_killed());
    }

    #[test]
    fn what_a_kill_leaves_behind_is_gone_before_the_use_has_ended() {
        let uses = Uses::new();
        let one = one(&uses);
        assert!(one.begin());
        assert_eq!((uses.try_stop(|| "a"), one.connection.0.get()), (Told::Running, 1));
        assert!(!one.is_quiet() && !one.end_unmarked());
        uses.quieten(&one);
        assert_eq!((one.is_quiet(), one.is_killed(), one.connection.0.get()), (true, true, 0));
        assert_eq!((uses.try_stop(|| "b"), one.connection.0.get()), (Told::Running, 0), "it has been told");
        assert_eq!(uses.reason(&one), Some("a"));
        let mut has_ended = false;
        uses.end(&one, || has_ended = true);
        assert!(has_ended && !one.is_killed() && uses.reason(&one).is_none());
    }

    #[test]
    fn who_has_left_is_told_nothing_and_a_busy_list_tells_nobody() {
        let uses = Uses::new();
        let (gone, stays) = (one(&uses), one(&uses));
        assert!(gone.begin() && stays.begin());
        uses.delist(&gone);
        {
            let _busy = uses.list.lock();
            assert_eq!(uses.try_stop(|| "a"), Told::Busy);
        }
        assert_eq!(uses.try_stop(|| "a"), Told::Running);
        assert_eq!((gone.connection.0.get(), stays.connection.0.get()), (0, 1));
    }
}
