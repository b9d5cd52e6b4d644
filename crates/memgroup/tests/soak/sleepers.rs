//! Sleepers: threads that wait for room without a deadline, on their own or through a task, beside
//! the actors. They show hangs without a clock.
//!
//! At each quiet moment, when all threads sleep, `unserved` looks for a wait that would be over if
//! nothing had been forgotten. A moment is quiet if no sleeper runs and none has run meanwhile,
//! which the system's counts of context switches tell (`/proc/self/task/*/status`). A sleeper that
//! wakes every 100 ms to ask shrinkers is asleep between.

use std::fmt::Write as _;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Scope, ScopedJoinHandle, Thread};

use memgroup::{Charge, ChargeError, ChargeErrorKind, Deadline, Group, Hierarchy, ReclaimerStop, WaitKind};

use crate::house::House;
use crate::ledger::{Held, Member, lock};

/// Calls of shrinkers and hooks that have not returned. A thread may sleep in one.
pub(crate) static CALLS: AtomicU64 = AtomicU64::new(0);

/// A wait that an actor asks a sleeper for.
pub(crate) struct Wish {
    pub(crate) member: Arc<Member>,
    pub(crate) bytes: u64,
    pub(crate) as_task: bool,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Asked(Wish),
    Waits(Arc<Member>, u64),
    Over,
}

/// One sleeper, seen from outside.
#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
    /// The folder of its thread.
    task: OnceLock<String>,
}

pub(crate) struct Sleepers {
    desks: Vec<Desk>,
    /// The thread that makes room for tasks runs from one check to the next.
    reclaimer: Mutex<Option<(ReclaimerStop, Arc<OnceLock<String>>)>>,
}

/// The folder of this thread.
fn this_task() -> String {
    let link = std::fs::read_link("/proc/thread-self").expect("the system lists its threads");
    format!("/proc/{}/status", link.display())
}

/// The switches of a thread that sleeps; `None` if it runs.
fn asleep(task: &OnceLock<String>) -> Option<String> {
    let text = std::fs::read_to_string(task.get()?).ok()?;
    let lines = text.lines().filter(|line| line.contains("ctxt_switches"));
    text.contains("State:\tS").then(|| lines.collect::<String>())
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a charge as a task does, on a thread that parks.
fn block_on(charging: impl Future<Output = Result<Charge, ChargeError>>) -> Result<Charge, ChargeError> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut charging = pin!(charging);
    loop {
        match charging.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl Desk {
    fn work(&self) {
        self.task.get_or_init(this_task);
        loop {
            let mut state = lock(&self.state);
            let wish = loop {
                match std::mem::take(&mut *state) {
                    State::Asked(wish) => break wish,
                    State::Over => return,
                    other => *state = other,
                }
                state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            };
            let Wish { member, bytes, as_task } = wish;
            *state = State::Waits(Arc::clone(&member), bytes);
            drop(state);
            let outcome = if as_task {
                block_on(member.group.charge(bytes))
            } else {
                member.group.charge_until(bytes, Deadline::NEVER)
            };
            match outcome {
                Ok(charge) => drop(Held::plain(&member, charge)),
                Err(error) => assert_ne!(error.kind(), ChargeErrorKind::Deadline, "{error}"),
            }
            drop(member);
            // Its last handle may be among them: dropped without the lock.
            let waited = std::mem::take(&mut *lock(&self.state));
            drop(waited);
        }
    }

    /// Whether it has nothing to do.
    fn is_idle(&self) -> bool {
        matches!(*lock(&self.state), State::Idle)
    }

    /// Its switches if it sleeps.
    fn asleep(&self) -> Option<String> {
        match *lock(&self.state) {
            State::Idle | State::Over => Some(String::new()),
            State::Asked(_) => None,
            State::Waits(..) => asleep(&self.task),
        }
    }
}

/// Ends all sleepers when it is dropped, also after a failure.
pub(crate) struct EndsSleep<'s>(pub(crate) &'s Sleepers, pub(crate) &'s Hierarchy);

impl Drop for EndsSleep<'_> {
    fn drop(&mut self) {
        self.0.end_waits(self.1);
        for desk in &self.0.desks {
            *lock(&desk.state) = State::Over;
            desk.changed.notify_one();
        }
    }
}

impl Sleepers {
    pub(crate) fn new(count: usize) -> Sleepers {
        Sleepers { desks: (0..count).map(|_| Desk::default()).collect(), reclaimer: Mutex::default() }
    }

    pub(crate) fn begin<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
    ) -> Vec<ScopedJoinHandle<'scope, ()>> {
        self.desks.iter().map(|desk| scope.spawn(|| desk.work())).collect()
    }

    /// Has a sleeper that is idle wait, if there is one.
    pub(crate) fn ask(&self, hierarchy: &Hierarchy, wish: Wish) {
        if wish.as_task {
            self.begin_reclaimer(hierarchy);
        }
        for desk in &self.desks {
            let mut state = lock(&desk.state);
            if matches!(*state, State::Idle) {
                *state = State::Asked(wish);
                desk.changed.notify_one();
                return;
            }
        }
    }

    fn begin_reclaimer(&self, hierarchy: &Hierarchy) {
        let mut running = lock(&self.reclaimer);
        if running.is_none() {
            let reclaimer = hierarchy.reclaimer();
            let task = Arc::new(OnceLock::new());
            *running = Some((reclaimer.stop_handle(), Arc::clone(&task)));
            std::thread::spawn(move || {
                task.get_or_init(this_task);
                reclaimer.run();
            });
        }
    }

    /// The switches of all sleepers and of the reclaimer, if none of them runs.
    fn quiet(&self) -> Option<Vec<String>> {
        if CALLS.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let mut switches = self.desks.iter().map(Desk::asleep).collect::<Option<Vec<_>>>()?;
        if let Some((_, task)) = &*lock(&self.reclaimer) {
            switches.push(asleep(task)?);
        }
        Some(switches)
    }

    /// The waits of sleepers that do not come to rest, with the levels of their groups.
    pub(crate) fn report(&self) -> String {
        let mut text = String::new();
        for desk in &self.desks {
            if let State::Waits(member, bytes) = &*lock(&desk.state) {
                _ = writeln!(text, "sleeper: for {bytes} bytes, asleep: {:?}", asleep(&desk.task));
                for Member { group, .. } in member.levels() {
                    let numbers =
                        (group.usage(), group.usage_exact(), group.max(), group.share(), group.weight());
                    let kept = (group.min(), group.low(), group.reserves_min(), group.is_enforced());
                    let share = group.fair_share();
                    _ = writeln!(
                        text,
                        "   {} {numbers:?} {kept:?} {share:?} {}",
                        group.path(),
                        group.is_online()
                    );
                }
            }
        }
        text
    }

    /// At a quiet moment no waiter may fit that was not served. The actors are at rest.
    pub(crate) fn check(&self, house: &House) {
        loop {
            if let Some(before) = self.quiet() {
                let found = unserved(house);
                if self.quiet().is_some_and(|after| after == before) {
                    assert!(found.is_none(), "a waiter fits and was not served: {}", found.unwrap());
                    break;
                }
            }
            std::thread::yield_now();
        }
        self.end_waits(&house.hierarchy);
    }

    /// Ends all waits, and the reclaimer. Afterwards every sleeper is idle.
    fn end_waits(&self, hierarchy: &Hierarchy) {
        if let Some((stop, _)) = lock(&self.reclaimer).take() {
            stop.stop();
        }
        while !self.desks.iter().all(Desk::is_idle) {
            hierarchy.root().wake_waiters();
            std::thread::yield_now();
        }
    }
}

/// Whether a charge must fit at this level: nothing that is kept free for others is in the way,
/// and usage with the bytes is within the limit. Prepaid bytes count as used, so this says no
/// where it is not sure.
fn fits(level: &Group, bytes: u64) -> bool {
    let is_plain =
        level.share().is_none() && level.children().iter().all(|child| child.min() == 0 && child.low() == 0);
    !level.is_enforced()
        || is_plain && level.max().is_none_or(|max| level.usage().saturating_add(bytes) <= max)
}

/// A wait for room at a group where every charge that waits fits at all its levels. Then one of
/// them should have been served, whatever their order.
fn unserved(house: &House) -> Option<String> {
    let waits: Vec<_> =
        house.hierarchy.waits().into_iter().filter(|wait| wait.kind == WaitKind::Charge).collect();
    house.figures.count(|figures| &figures.slept, waits.len() as u64);
    let must_fit = |path: &str, bytes| {
        let group = house.hierarchy.lookup(path).ok();
        let mut levels = std::iter::successors(group, Group::parent).peekable();
        levels.peek().is_some() && levels.all(|level| fits(&level, bytes))
    };
    let is_owed = |at: &str| {
        let mut here = waits.iter().filter(|wait| wait.at == at);
        here.all(|wait| must_fit(&wait.group, wait.bytes))
    };
    waits.iter().find(|wait| is_owed(&wait.at)).map(|wait| format!("{wait}, of {} waits", waits.len()))
}
