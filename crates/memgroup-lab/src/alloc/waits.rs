//! Waiting charges: the memory of each, and join, cancel and serve beside 1, 1,000 and 100,000 that wait as futures.
//!
//! - I1. No charge is made for a future that was cancelled: at the end nothing is charged.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use memgroup::{Charge, Charging, Config, Group};

use crate::harness::prelude::*;

const PAGE: u64 = 4096;
const WAITING: [usize; 3] = [1, 1_000, 100_000];
const BYTES_MOST: f64 = 200.0;
const OPERATION_MOST_US: f64 = 1.0;
/// Each has a deadline, in the order of which the reclaimer keeps them.
const DEADLINE: Duration = Duration::from_secs(3600);
/// Operations of each kind in one round.
const TURNS: usize = 1_000;

fn poll(charging: &mut Charging) -> Result<Poll<Charge>> {
    match Pin::new(charging).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(charge) => charge.map(Poll::Ready).or_wrong("a wait that nothing ends"),
        Poll::Pending => Ok(Poll::Pending),
    }
}

/// The order of the deadlines.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// Each is behind all others, as where all waits have the same patience.
    Rising,
    /// Each is as likely to be before another as behind it.
    Any,
}

impl Order {
    fn deadline(self, random: &mut Random) -> Duration {
        let more = if self == Order::Any { random.next() % DEADLINE.as_nanos() as u64 } else { 0 };
        DEADLINE + Duration::from_nanos(more)
    }
}

/// A future that waits.
fn join(group: &Group, deadline: Duration) -> Result<Charging> {
    let mut charging = group.charge(PAGE).until(deadline);
    let polled = poll(&mut charging)?;
    ensure(polled.is_pending(), || "a charge without room was made".to_owned())?;
    Ok(charging)
}

/// Nanoseconds of the calls of one kind, each timed by itself; the mean of a round is one sample.
#[derive(Default)]
struct Timed {
    ticks: u64,
    calls: u64,
    rounds: Vec<f64>,
}

impl Timed {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let begin = clock::now_ordered();
        let made = call();
        self.ticks += clock::now_ordered() - begin;
        self.calls += 1;
        made
    }

    fn end_round(&mut self, clock: &Clock) {
        self.rounds.push(clock.ns(self.ticks as f64) / self.calls.max(1) as f64);
        (self.ticks, self.calls) = (0, 0);
    }
}

/// The figures beside so many that wait.
struct Beside {
    /// Bytes of the heap for each, and the future.
    bytes: Option<f64>,
    /// Join, cancel, serve, take.
    operations: [Timed; 4],
}

fn beside(lab: &mut Lab<'_>, count: usize, order: Order, rounds: usize) -> Result<Beside> {
    let (hierarchy, parent) = limited_parent(Config::with_slots(lab.slots), PAGE)?;
    let reclaimer = hierarchy.reclaimer();
    let stop = reclaimer.stop_handle();
    let thread = std::thread::spawn(|| reclaimer.run());
    let group = child(&parent, "group")?;
    let mut held = group.try_charge(PAGE).or_wrong("a charge with room")?;
    let mut waiting = VecDeque::with_capacity(count + TURNS);
    // The first wait has the group marked, and its queue made.
    let first = join(&group, order.deadline(&mut lab.random))?;
    let before = heap_bytes();
    for _ in 0..count {
        waiting.push_back(Some(join(&group, order.deadline(&mut lab.random))?));
    }
    let heap = before.zip(heap_bytes()).map(|(before, after)| after.saturating_sub(before) as f64);
    let bytes = heap.map(|heap| heap / count as f64 + size_of::<Charging>() as f64);
    drop(first);
    let mut operations: [Timed; 4] = Default::default();
    for _ in 0..rounds {
        let [joins, cancels, serves, takes] = &mut operations;
        for _ in 0..TURNS {
            let until = order.deadline(&mut lab.random);
            let joined = joins.time(|| join(&group, until))?;
            waiting.push_back(Some(joined));
            let at = lab.random.next() as usize % waiting.len();
            // A place that is empty already is as good as another that is not far.
            let cancelled = (at..waiting.len()).find_map(|at| waiting[at].take());
            cancels.time(|| drop(cancelled));
        }
        for _ in 0..TURNS {
            // The uncharge serves the future that has waited longest. Its poll takes the charge.
            serves.time(|| held.shrink(PAGE));
            held = loop {
                let front = waiting.pop_front();
                let mut front = match front {
                    Some(Some(front)) => front,
                    Some(None) => continue,
                    None => return Err("none").or_wrong("futures that wait at the end of a round"),
                };
                if let Poll::Ready(charge) = takes.time(|| poll(&mut front))? {
                    break charge;
                }
                // While a reclaimer looks after the first, the second is served.
                waiting.push_back(Some(front));
            };
            waiting.push_back(Some(join(&group, order.deadline(&mut lab.random))?));
        }
        operations.iter_mut().for_each(|timed| timed.end_round(&lab.clock));
    }
    drop((waiting, held));
    stop.stop();
    thread.join().unwrap_or_else(|_| panic!("the reclaimer panicked"));
    check_empty(&hierarchy)?;
    Ok(Beside { bytes, operations })
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let mut table = Table::new(
        "charges that wait as futures: bytes each, and us of one operation",
        ["", "bytes", "join", "cancel", "serve", "take"],
    );
    let rounds = lab.pick(1, 7, 21);
    let orders = [("", Order::Rising), (", deadlines in any order", Order::Any)];
    for (suffix, order) in orders {
        for count in WAITING {
            let count = lab.pick((count / 100).max(1), count, count);
            let figures = beside(lab, count, order, rounds)?;
            let params = json!({"waiting": count, "any order": order == Order::Any});
            let mut record = lab.record("waiting charge", params);
            // Later waits have the memory of those before.
            let heap = figures.bytes.filter(|_| order == Order::Rising);
            let bytes = record.value("memory", "bytes", heap);
            let names = ["join", "cancel", "serve", "take"];
            let us = figures.operations.map(|timed| median_of(timed.rounds));
            let cells: Vec<String> =
                names.into_iter().zip(us).map(|(name, ns)| record.us(name, ns)).collect();
            let row = counted(count as u64, "waiting charge") + suffix;
            table.row(row, [bytes].into_iter().chain(cells));
            let charges = counted(count as u64, "charge") + suffix;
            if count >= 1_000 && order == Order::Rising {
                lab.at_most(format!("a waiting charge, of {charges}"), heap, BYTES_MOST, "bytes");
            }
            for (name, ns) in names.into_iter().zip(us).take(3) {
                let us = ns.map(|ns| ns / 1e3);
                lab.at_most(format!("{name} beside {charges}"), us, OPERATION_MOST_US, "us");
            }
        }
    }
    table.note("bytes: of the heap with its own overhead, and the future; not of the task. Each has a deadline, behind all others where the row tells no order. One before all others wakes the reclaimer. Some 25 ns of each operation are the clock's");
    lab.print(&table)
}
