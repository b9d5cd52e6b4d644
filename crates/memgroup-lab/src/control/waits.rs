//! Hand-over: from an uncharge on one thread to the return of the charge that waited for it on another.
//!
//! There is room for one charge, which goes round: who has it looks that all others wait, notes the time, and gives it back; who is
//! handed it notes the time too. The control is the least that people write by hand: a flag behind a mutex, and a condition variable, on which
//! one waiter is woken.
//!
//! - I1. All but one wait when the charge is given back, so each return is a hand-over and none finds room by itself.
//! - I2. Each charge that is asked for is made; at the end nothing is charged and nobody waits.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memgroup::{Charge, Config, Group, Hierarchy};

use super::{add_quantiles, calls};
use crate::Error;
use crate::harness::quantiles::Quantiles;
use crate::harness::report::params;
use crate::harness::table::{Table, count};
use crate::harness::tree::{child, expect_bytes, limit};
use crate::harness::{Lab, clock};

const PAGE: u64 = 4096;
const WAITERS: [usize; 3] = [1, 8, 64];
/// For so long who has the charge keeps it when all others are in line: the last of them falls asleep meanwhile.
const SETTLE_US: u64 = 20;
/// When a waiter gives up, which would be a wrong result.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one at a time can have.
trait Room: Send + Sync + 'static {
    type Held;
    /// Waits for it.
    fn take(&self) -> Result<Self::Held, Error>;
    /// How many wait.
    fn waiting(&self) -> usize;
    fn give(&self, held: Self::Held);
    fn end(&self) -> Result<(), Error>;
}

/// A group with room for one charge.
struct Ours {
    hierarchy: Hierarchy,
    tenant: Group,
}

impl Ours {
    fn build(lab: &Lab<'_>) -> Result<Ours, Error> {
        let hierarchy = Hierarchy::new(Config::with_slots(lab.slots));
        let hierarchy = hierarchy.map_err(|why| Error::setup("the hierarchy", why))?;
        let parent = child(&hierarchy.root(), "parent")?;
        limit(&parent, PAGE)?;
        let tenant = child(&parent, "tenant")?;
        Ok(Ours { hierarchy, tenant })
    }
}

impl Room for Ours {
    type Held = Charge;

    fn take(&self) -> Result<Charge, Error> {
        self.tenant
            .charge_until(PAGE, Instant::now() + PATIENCE)
            .map_err(|why| Error::Wrong(format!("room is handed round, and yet: {why}")))
    }

    fn waiting(&self) -> usize {
        self.tenant.waiters().now
    }

    fn give(&self, held: Charge) {
        drop(held);
    }

    fn end(&self) -> Result<(), Error> {
        self.hierarchy.root().drain();
        for group in self.hierarchy.groups() {
            expect_bytes(&group, "usage at the end", group.usage(), 0)?;
        }
        match self.hierarchy.waits().as_slice() {
            [] => Ok(()),
            [wait, ..] => Err(Error::Wrong(format!("all is over, and {wait}"))),
        }
    }
}

/// The control.
#[derive(Default)]
struct Condition {
    taken: Mutex<Taken>,
    freed: Condvar,
}

#[derive(Default)]
struct Taken {
    is_taken: bool,
    waiting: usize,
}

impl Room for Condition {
    type Held = ();

    fn take(&self) -> Result<(), Error> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.waiting += 1;
        let mut taken =
            self.freed.wait_while(taken, |taken| taken.is_taken).unwrap_or_else(PoisonError::into_inner);
        (taken.waiting, taken.is_taken) = (taken.waiting - 1, true);
        Ok(())
    }

    fn waiting(&self) -> usize {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).waiting
    }

    fn give(&self, (): ()) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).is_taken = false;
        self.freed.notify_one();
    }

    fn end(&self) -> Result<(), Error> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.is_taken || taken.waiting > 0 {
            return Err(Error::Wrong("somebody waits at the control, and all is over".to_owned()));
        }
        Ok(())
    }
}

/// What the threads of one round share.
struct Round<R> {
    room: R,
    waiters: usize,
    settle_ticks: u64,
    /// When it was given back last, in ticks; 0 before that.
    given: AtomicU64,
    left: AtomicUsize,
    is_over: AtomicBool,
}

impl<R: Room> Round<R> {
    /// One thread's part: ticks of the hand-overs to it.
    fn part(&self) -> Result<Vec<u64>, Error> {
        let mut ticks = Vec::new();
        loop {
            let held = self.room.take();
            let now = clock::now_ordered();
            let held = held.inspect_err(|_| {
                // ORDERING: Relaxed; others are only to end.
                self.is_over.store(true, Ordering::Relaxed);
            })?;
            // ORDERING: Relaxed, here and below: who has the room is alone with these, and handing it on publishes them.
            let (given, left) = (self.given.load(Ordering::Relaxed), self.left.load(Ordering::Relaxed));
            if left == 0 {
                // ORDERING: Relaxed, here and below; flags and numbers by themselves, what is timed is ordered by the room's own lock.
                self.is_over.store(true, Ordering::Relaxed);
            }
            // ORDERING: Relaxed, as above.
            if self.is_over.load(Ordering::Relaxed) {
                self.room.give(held);
                return Ok(ticks);
            }
            if given > 0 {
                ticks.push(now.saturating_sub(given));
                // ORDERING: Relaxed, as above.
                self.left.store(left - 1, Ordering::Relaxed);
            }
            // ORDERING: Relaxed, as above.
            while self.room.waiting() < self.waiters && !self.is_over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let in_line = clock::now();
            while clock::now() - in_line < self.settle_ticks {
                std::hint::spin_loop();
            }
            // ORDERING: Relaxed; who is handed the bytes by the next line sees it, by the room's lock.
            self.given.store(clock::now_ordered(), Ordering::Relaxed);
            self.room.give(held);
        }
    }
}

/// Nanoseconds of so many hand-overs, each to the first of so many that wait.
fn hand_overs<R: Room>(lab: &Lab<'_>, room: R, waiters: usize, calls: usize) -> Result<Vec<f64>, Error> {
    let (given, left, is_over) = (AtomicU64::new(0), AtomicUsize::new(calls), AtomicBool::new(false));
    let settle_ticks = lab.clock.ticks_per_us() * SETTLE_US;
    let round = Arc::new(Round { room, waiters, settle_ticks, given, left, is_over });
    let start = |number: usize| {
        let round = Arc::clone(&round);
        std::thread::Builder::new()
            .name(format!("waiter {number}"))
            .spawn(move || round.part())
            .map_err(|source| Error::System { what: format!("start waiter {number}"), source })
    };
    let started: Vec<_> = (0..=waiters).map(start).collect();
    if started.iter().any(Result::is_err) {
        // ORDERING: Relaxed; who runs is only to end.
        round.is_over.store(true, Ordering::Relaxed);
    }
    let mut ns = Vec::with_capacity(calls);
    let mut first_wrong = Ok(());
    for thread in started {
        let part = thread.and_then(|thread| {
            thread.join().map_err(|_| Error::Wrong("a waiter panicked".to_owned())).flatten()
        });
        match part {
            Ok(ticks) => ns.extend(ticks.into_iter().map(|ticks| lab.clock.ns(ticks as f64))),
            Err(why) => first_wrong = first_wrong.and(Err(why)),
        }
    }
    first_wrong?;
    if ns.len() != calls {
        return Err(Error::Wrong(format!("{} hand-overs were timed of {calls}", ns.len())));
    }
    round.room.end()?;
    Ok(ns)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let mut table = Table::new(
        "hand-over: from an uncharge to the return of a charge that waited for it: us",
        ["waiters", "hand-overs", "p50", "p99", "max", "condition variable (control), p50", "p99"],
    );
    for waiters in WAITERS {
        // Between two of many waiters all others have to be back in line.
        let calls = (calls(lab, 4_000, 40_000) / waiters.isqrt()).max(3);
        let ours = hand_overs(lab, Ours::build(lab)?, waiters, calls)?;
        let control = hand_overs(lab, Condition::default(), waiters, calls)?;
        let what = params([("waiters", waiters.into())]);
        let cells = add_quantiles(lab, "hand-over", &what, Quantiles::of(ours), 1e3);
        let control = add_quantiles(lab, "condition variable (control)", &what, Quantiles::of(control), 1e3);
        let row = [waiters.to_string(), count(calls as u64)].into_iter().chain(cells);
        table.row(row.chain(control.into_iter().take(2)).collect());
    }
    table.note(
        "both include what the system takes to wake a thread. The engine's thread that gives back makes the waiting charge itself, so nobody who comes by can take it; no goal",
    );
    lab.print(&table)
}
