//! How long registering and removing a shrinker takes: while nothing else happens, while others walk, while a callback does not return.
//!
//! With a lock nothing could be measured beside a callback that never returns; the control's returns after a while, and what is shown is how
//! long who registered waited for it.
//!
//! - I1. Who is measured is on the crew's first CPU, who walks is on the second; a callback that blocks sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::registries::{Answer, Gate, Locked, Ours, Registry};
use super::seed;
use crate::Error;
use crate::harness::crew::spin_until;
use crate::harness::quantiles::Times;
use crate::harness::report::{Check, params, ratio};
use crate::harness::table::{Table, figure, figure_or_dash};
use crate::harness::{Lab, clock, os};

/// Groups below the parent, each with a shrinker that cannot tell what it has.
const GROUPS: usize = 1_000;

/// How long the control's callback blocks.
const BLOCKED: Duration = Duration::from_millis(20);

/// Longer than anything here lasts.
const FOR_EVER: Duration = Duration::from_secs(3600);

const OURS: &str = "shrinkers";
const CONTROL: &str = "read-write lock (control)";

/// What goes on meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// So many threads walk all the time.
    Walks(usize),
    /// A callback blocks for so long.
    Blocked(Duration),
}

impl Beside {
    fn name(self) -> String {
        match self {
            Beside::Nothing => "nothing else".to_owned(),
            Beside::Walks(1) => "a walk on another CPU".to_owned(),
            Beside::Walks(walks) => format!("{walks} walks on another CPU"),
            Beside::Blocked(FOR_EVER) => "a callback blocked for ever".to_owned(),
            Beside::Blocked(time) => format!("a callback blocked for {} ms", time.as_millis()),
        }
    }
}

/// Threads that walk, or one in a callback.
struct Company<R: Registry> {
    stop: Arc<AtomicBool>,
    blocked: Option<(Arc<Gate>, R::Registered)>,
    threads: Vec<JoinHandle<()>>,
}

impl<R: Registry> Company<R> {
    fn start(registry: &Arc<R>, beside: Beside) -> Result<Company<R>, Error> {
        let cpus = os::allowed_cpus()?;
        let cpu = cpus[1 % cpus.len()];
        let (walks, gate) = match beside {
            Beside::Nothing => (0, None),
            Beside::Walks(walks) => (walks, None),
            Beside::Blocked(time) => (1, Some(Gate::closed(time))),
        };
        let mut company = Company { stop: Arc::default(), blocked: None, threads: Vec::new() };
        if let Some(gate) = &gate {
            let registered = registry.register(0, Answer(Some(Arc::clone(gate))))?;
            registry.mark(&registered);
            company.blocked = Some((Arc::clone(gate), registered));
        }
        let begun = Arc::new(AtomicUsize::new(0));
        for _ in 0..walks {
            let (registry, stop, begun) =
                (Arc::clone(registry), Arc::clone(&company.stop), Arc::clone(&begun));
            let walk = move || {
                // One that cannot be pinned runs where it likes, as the crew's, and the heading says so.
                let _ = os::pin_to(cpu);
                // ORDERING: Relaxed; a number by itself.
                begun.fetch_add(1, Ordering::Relaxed);
                // ORDERING: Relaxed; nothing else hangs on it.
                while !stop.load(Ordering::Relaxed) {
                    registry.walk();
                }
            };
            let thread = std::thread::Builder::new().name("walk".to_owned()).spawn(walk);
            let what = "start a thread that walks".to_owned();
            company.threads.push(thread.map_err(|source| Error::System { what, source })?);
        }
        // ORDERING: Relaxed; as above.
        spin_until(|| (begun.load(Ordering::Relaxed) == walks).then_some(()));
        if let Some(gate) = gate {
            spin_until(|| gate.was_entered().then_some(()));
        }
        Ok(company)
    }

    fn end(self, registry: &R) -> Result<(), Error> {
        // ORDERING: Relaxed; nothing else hangs on it.
        self.stop.store(true, Ordering::Relaxed);
        if let Some((gate, _)) = &self.blocked {
            gate.open();
        }
        for thread in self.threads {
            thread.join().map_err(|_| Error::Wrong("a thread that walked panicked".to_owned()))?;
        }
        self.blocked.map_or(Ok(()), |(_, registered)| registry.remove(registered))
    }
}

/// Nanoseconds of each call of one block.
#[derive(Default)]
struct Block {
    register: Vec<f64>,
    remove: Vec<f64>,
    wait: Vec<f64>,
}

/// Calls for each wait until no callback runs: beside walks it may take as long as these have the CPU.
const CALLS_A_WAIT: usize = 10;

/// Registers and removes so many, one after the other, in one group after the other; and waits now and then, if no callback is on for ever.
fn block<R: Registry>(registry: &R, clock: clock::Clock, calls: usize, waits: bool) -> Result<Block, Error> {
    let reading = clock::reading_ticks();
    let ns = |ticks: u64| clock.ns(ticks.saturating_sub(reading) as f64);
    let mut block = Block::default();
    for call in 0..calls {
        let (group, answer) = (call % GROUPS, Answer(None));
        let begin = clock::now_ordered();
        let registered = registry.register(group, answer)?;
        block.register.push(ns(clock::now_ordered() - begin));
        registry.mark(&registered);
        let begin = clock::now_ordered();
        registry.remove(registered)?;
        block.remove.push(ns(clock::now_ordered() - begin));
        if waits && call.is_multiple_of(CALLS_A_WAIT) {
            let begin = clock::now_ordered();
            registry.wait_for_calls()?;
            block.wait.push(ns(clock::now_ordered() - begin));
        }
    }
    Ok(block)
}

/// One case of one registry.
struct Line {
    name: &'static str,
    beside: Beside,
    register: Times,
    remove: Times,
    wait: Times,
}

impl Line {
    fn new(name: &'static str, beside: Beside) -> Line {
        Line { name, beside, register: Times::default(), remove: Times::default(), wait: Times::default() }
    }

    fn measure<R: Registry>(&mut self, lab: &Lab<'_>, registry: &Arc<R>, calls: usize) -> Result<(), Error> {
        let company = Company::start(registry, self.beside)?;
        let (measured, clock) = (Arc::clone(registry), lab.clock);
        let waits = !matches!(self.beside, Beside::Blocked(_));
        let block = lab.crew.run(1, move |_| block(&*measured, clock, calls, waits)).remove(0);
        company.end(registry)?;
        let block = block?;
        self.register.push(block.register);
        self.remove.push(block.remove);
        if waits {
            self.wait.push(block.wait);
        }
        Ok(())
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let ours = Arc::new(Ours::build(lab.slots, GROUPS)?);
    let control = Arc::new(Locked::build(lab.slots, GROUPS)?);
    let shared = [Beside::Nothing, Beside::Walks(1), Beside::Walks(4)];
    let ours_too =
        shared.into_iter().chain([Beside::Blocked(FOR_EVER)]).map(|beside| Line::new(OURS, beside));
    let control_too =
        shared.into_iter().chain([Beside::Blocked(BLOCKED)]).map(|beside| Line::new(CONTROL, beside));
    let mut lines: Vec<Line> = ours_too.chain(control_too).collect();
    let (blocks, calls) = match (lab.args.tiny, lab.args.quick) {
        (true, _) => (1, 5),
        (_, true) => (9, 500),
        (_, false) => (25, 2_000),
    };
    let mut order: Vec<usize> = (0..lines.len()).collect();
    for _ in 0..blocks {
        lab.random.shuffle(&mut order);
        for &index in &order {
            let line = &mut lines[index];
            match (line.name, line.beside) {
                (OURS, _) => line.measure(lab, &ours, calls)?,
                // The first call waits for the callback, and then there is nothing to wait for: also not for who removes.
                (_, Beside::Blocked(_)) => {
                    line.measure(lab, &control, 1)?;
                    line.remove = Times::default();
                }
                // Threads of one CPU take turns by the tick, and each may have the lock when its turn ends.
                (_, Beside::Walks(walks)) if walks > 1 => line.measure(lab, &control, calls.min(100))?,
                _ => line.measure(lab, &control, calls)?,
            }
        }
    }
    show(lab, &lines)?;
    check(lab, &lines);
    Ok(())
}

fn show(lab: &mut Lab<'_>, lines: &[Line]) -> Result<(), Error> {
    let mut table = Table::new(
        format!("registering and removing a shrinker beside {GROUPS} others: us"),
        ["meanwhile", "add p50", "p99", "max", "remove p50", "p99", "max", "wait p50", "p99"],
    );
    for line in lines {
        let us = |ns: Option<f64>| figure_or_dash(ns.map(|ns| ns / 1e3));
        let cells = |times: &Times| {
            [times.p50().map(|ns| ns.median), times.p99().map(|ns| ns.median), times.max()].map(us)
        };
        let name = match line.name {
            OURS => line.beside.name(),
            _ => format!("lock: {}", line.beside.name()),
        };
        let all = std::iter::once(name)
            .chain(cells(&line.register))
            .chain(cells(&line.remove))
            .chain(cells(&line.wait).into_iter().take(2));
        table.row(all.collect());
        for (call, times) in [("register", &line.register), ("remove", &line.remove), ("wait", &line.wait)] {
            let what = || params([("meanwhile", line.beside.name().into()), ("call", call.into())]);
            for (metric, ns) in [("p50", times.p50()), ("p99", times.p99())] {
                if let Some(ns) = ns {
                    lab.report.add(line.name, what(), metric, "ns", ns);
                }
            }
            if let Some(max) = times.max() {
                lab.report.add_count(line.name, what(), "max", "ns", max);
            }
        }
    }
    table.note(format!(
        "medians of the blocks' p50 and p99, and the largest of all. Removing is waiting too, until no call of the shrinker runs. Wait: until no call of any runs, as the kernel's synchronize_shrinkers. The control is a read-write lock around the lists of all groups. Its callback returns after {} ms, and who registers waits for that; blocked for ever is for ever. With SRCU each of the robot's unregistrations took {} ms longer",
        BLOCKED.as_millis(),
        figure(seed::srcu_wait_ms())
    ));
    lab.print(&table)
}

fn check(lab: &mut Lab<'_>, lines: &[Line]) {
    let of = |beside, times: fn(&Line) -> &Times, quantile: fn(&Times) -> Option<f64>| {
        let line = lines.iter().find(|line| line.name == OURS && line.beside == beside)?;
        quantile(times(line))
    };
    let blocked = Beside::Blocked(FOR_EVER);
    let p50: fn(&Times) -> Option<f64> = |times| times.p50().map(|ns| ns.median);
    let p99: fn(&Times) -> Option<f64> = |times| times.p99().map(|ns| ns.median);
    let mut add = |call: &str, times: fn(&Line) -> &Times| {
        for (name, quantile) in [("p50", p50), ("p99", p99)] {
            lab.report.checks.push(Check::at_most(
                format!("{call} beside a callback blocked for ever over idle, {name}"),
                ratio(of(blocked, times, quantile), of(Beside::Nothing, times, quantile)),
                2.0,
                "x",
            ));
        }
    };
    add("registering", |line| &line.register);
    add("removing", |line| &line.remove);
}
