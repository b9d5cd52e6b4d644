//! Kills: from the choice of a victim until its memory is free, and until who needed it has it.
//!
//! ```text
//!   full ──┬── victim: holds 64 MiB; its hook raises a flag, or interrupts SQLite's statement
//!          └── requester: charge_until, timed
//!
//!   call ──▶ chosen (KillReport::at) ──▶ half is gone (KillReport::took) ──▶ all is free
//!      └───────────────────────▶ charged
//! ```
//!
//! - I1. Each kill is of the victim, for the requester, and it died; no charge is refused; nothing is charged at the end.
//! - I2. The victim is on a thread of its own, which looks at its flag every 100 us and as late as the system wakes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memgroup::{Charge, Config, Group, Hierarchy, KillHook, KillOutcome, KillReport, Killed, Killing};
use memgroup_sqlite::{TenantConnection, TenantError};

use super::{KILL_MS_MOST, add_quantiles, calls};
use crate::Error;
use crate::harness::Lab;
use crate::harness::quantiles::Quantiles;
use crate::harness::report::{Check, params};
use crate::harness::sqlite::{Sqlite, failed, remove, unique};
use crate::harness::table::Table;
use crate::harness::tree::{child, expect_bytes, limit};

/// What the victim holds before it is chosen.
const HELD: u64 = 64 << 20;
const HELD_TINY: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// How often the victim looks whether it is to stop.
const LOOK: Duration = Duration::from_micros(100);
/// When who needs memory gives up, which would be a wrong result.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nanoseconds of each kill.
#[derive(Default)]
struct Times {
    half: Vec<f64>,
    free: Vec<f64>,
    charged: Vec<f64>,
    /// Calls before which the victim had taken all itself, and was refused: nobody was killed.
    outrun: usize,
}

/// One kill: what the engine reports of it, when all was free, when the requester called and when it had its bytes.
struct One {
    report: KillReport,
    free: Instant,
    called: Instant,
    charged: Instant,
}

impl Times {
    fn push(&mut self, one: &One, victim: &Group, requester: &Group) -> Result<(), Error> {
        let report = &one.report;
        let names = (report.victim.as_str(), report.requester.as_str(), report.outcome);
        let (took, right) = (report.took, (victim.path(), requester.path()));
        match took {
            Some(took) if names == (&right.0, &right.1, Some(KillOutcome::Died)) => {
                self.half.push(took.as_nanos() as f64);
                self.free.push(one.free.saturating_duration_since(report.at).as_nanos() as f64);
                self.charged.push(one.charged.saturating_duration_since(one.called).as_nanos() as f64);
                Ok(())
            }
            _ => Err(Error::Wrong(format!("{} was to die for {}, and {report:?}", right.0, right.1))),
        }
    }
}

/// What the table shows of a victim.
struct Line {
    victim: &'static str,
    asked: u64,
    times: Times,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let held = if lab.args.tiny { HELD_TINY } else { HELD };
    let mut lines = Vec::new();
    for asked in [64 << 10, held / 2] {
        let times = of_charges(lab, held, asked, calls(lab, 150, 1_000))?;
        lines.push(Line { victim: "charges of 4 KiB", asked, times });
    }
    let times = of_sqlite(lab, held, calls(lab, 40, 200))?;
    lines.push(Line { victim: "a sort in SQLite", asked: 3 * held + held / 2, times });
    show(lab, held, lines)
}

/// A victim that charges until it is full, and stops when its flag is up.
struct Victim {
    flag: Arc<AtomicBool>,
    begin: Option<Sender<()>>,
    full: Receiver<Result<(), Error>>,
    free: Receiver<Instant>,
    thread: Option<JoinHandle<()>>,
    _hook: KillHook,
}

impl Victim {
    fn start(group: &Group, held: u64) -> Result<Victim, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        let raised = Arc::clone(&flag);
        let hook = group.set_kill_hook(move |_: &Killing<'_>| {
            // ORDERING: Relaxed; the flag says nothing but itself.
            raised.store(true, Ordering::Relaxed);
            Killed::Dying
        });
        let hook = hook.map_err(|why| Error::setup("a kill hook", why))?;
        let ((begin, begun), (say_full, full), (say_free, free)) = (channel(), channel(), channel());
        let (looked, group) = (Arc::clone(&flag), group.clone());
        let live = move || {
            let mut charges: Vec<Charge> = Vec::with_capacity((held / PAGE) as usize);
            while begun.recv().is_ok() {
                let filled = (0..held / PAGE).try_for_each(|_| {
                    charges.push(group.try_charge(PAGE)?);
                    Ok(())
                });
                let filled = filled.map_err(|why: memgroup::ChargeError| {
                    Error::Wrong(format!("a charge of the victim's, where there is room: {why}"))
                });
                let is_full = filled.is_ok();
                if say_full.send(filled).is_err() || !is_full {
                    return;
                }
                // ORDERING: Relaxed; as above.
                while !looked.load(Ordering::Relaxed) {
                    std::thread::sleep(LOOK);
                }
                charges.clear();
                if say_free.send(Instant::now()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("victim".to_owned()).spawn(live);
        let what = "start the victim's thread".to_owned();
        let thread = Some(thread.map_err(|source| Error::System { what, source })?);
        Ok(Victim { flag, begin: Some(begin), full, free, thread, _hook: hook })
    }

    /// Has it charge all it holds.
    fn fill(&self) -> Result<(), Error> {
        // ORDERING: Relaxed; the message below hands it on.
        self.flag.store(false, Ordering::Relaxed);
        let ended = || Error::Wrong("the victim's thread has ended".to_owned());
        self.begin.as_ref().ok_or_else(ended)?.send(()).map_err(|_| ended())?;
        self.full.recv().map_err(|_| ended())?
    }

    /// When all of it was free.
    fn freed(&self) -> Result<Instant, Error> {
        let wrong = |_| Error::Wrong("the victim's thread ended before all was free".to_owned());
        self.free.recv_timeout(PATIENCE).map_err(wrong)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.begin = None;
        // ORDERING: Relaxed; it is to end, whatever it does.
        self.flag.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // What it says is known by its messages.
            let _ = thread.join();
        }
    }
}

fn of_charges(lab: &Lab<'_>, held: u64, asked: u64, kills: usize) -> Result<Times, Error> {
    let config = Config::with_slots(lab.slots);
    let hierarchy = Hierarchy::new(config).map_err(|why| Error::setup("the hierarchy", why))?;
    let full = child(&hierarchy.root(), "full")?;
    let (victim_group, requester) = (child(&full, "victim")?, child(&full, "requester")?);
    limit(&full, held)?;
    let mut times = Times::default();
    let victim = Victim::start(&victim_group, held)?;
    for _ in 0..kills {
        victim.fill()?;
        let (called, charge, charged) = request(lab, &requester, asked)?;
        let free = victim.freed()?;
        let report = last_kill(&hierarchy)?;
        times.push(&One { report, free, called, charged }, &victim_group, &requester)?;
        expect_bytes(&full, "usage after a kill", full.usage_exact(), asked)?;
        drop(charge);
    }
    drop(victim);
    hierarchy.root().drain();
    for group in hierarchy.groups() {
        expect_bytes(&group, "usage at the end", group.usage(), 0)?;
    }
    Ok(times)
}

/// Charges from the crew's first CPU: when it called, the charge, and when it had it.
fn request(lab: &Lab<'_>, requester: &Group, asked: u64) -> Result<(Instant, Charge, Instant), Error> {
    let requester = requester.clone();
    let call = move |_| {
        let called = Instant::now();
        let charge = requester.charge_until(asked, called + PATIENCE);
        (called, charge, Instant::now())
    };
    let (called, charge, charged) = lab.crew.run(1, call).remove(0);
    let charge =
        charge.map_err(|why| Error::Wrong(format!("a victim has what is needed, and yet: {why}")))?;
    Ok((called, charge, charged))
}

fn last_kill(hierarchy: &Hierarchy) -> Result<KillReport, Error> {
    let last = hierarchy.kills().pop();
    last.ok_or_else(|| Error::Wrong("a charge was made where all was full, and nobody was killed".to_owned()))
}

/// A sort that keeps all it has read in memory, of more rows than there ever is memory for.
const RUNAWAY: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000000)
     SELECT max(text) FROM (SELECT i, hex(zeroblob(500)) AS text FROM n ORDER BY i * 7919 % 100003 LIMIT -1 OFFSET 1)";

/// The same with a statement of SQLite's for a victim. There is three times as much again as it has before it is chosen, as it goes on growing while the requester
/// comes. Where it takes all of that before the requester has a CPU it is refused itself, which is no kill, and begins anew.
fn of_sqlite(lab: &Lab<'_>, held: u64, kills: usize) -> Result<Times, Error> {
    let sqlite = Sqlite::take(lab.slots)?;
    let full = child(&sqlite.hierarchy.root(), &unique("runaway"))?;
    let (victim, requester) = (child(&full, "victim")?, child(&full, "requester")?);
    limit(&full, 4 * held)?;
    // More than is left when the victim has `held`, and all of it can be had when the victim is gone but for its connection.
    let asked = 3 * held + held / 2;
    let connection = TenantConnection::open_in_memory(&victim).map_err(failed)?;
    connection.execute_batch("PRAGMA temp_store = MEMORY").map_err(failed)?;
    let (mut times, connection) = (Times::default(), Arc::new(std::sync::Mutex::new(connection)));
    while times.free.len() < kills {
        let runs = Arc::clone(&connection);
        let runaway = std::thread::Builder::new().name("runaway".to_owned()).spawn(move || {
            let connection = runs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let answer = connection.query_row(RUNAWAY, [], |row| row.get::<_, String>(0));
            (answer, Instant::now())
        });
        let what = "start a thread for SQLite".to_owned();
        let runaway = runaway.map_err(|source| Error::System { what, source })?;
        while victim.usage() < held && !runaway.is_finished() {
            std::thread::sleep(LOOK);
        }
        let killed = victim.events().oom_kill;
        let asking = request(lab, &requester, asked);
        let (answer, free) =
            runaway.join().map_err(|_| Error::Wrong("SQLite's thread panicked".to_owned()))?;
        let (called, charge, charged) = asking?;
        match answer {
            Err(TenantError::Killed(_)) => {}
            // It was told to stop, and refused before it looked.
            Err(TenantError::OutOfMemory(_)) if victim.events().oom_kill > killed => {}
            Err(TenantError::OutOfMemory(_)) if times.outrun < 2 * kills => {
                times.outrun += 1;
                continue;
            }
            other => return Err(Error::Wrong(format!("the runaway was to be killed, and is {other:?}"))),
        }
        let report = last_kill(&sqlite.hierarchy)?;
        times.push(&One { report, free, called, charged }, &victim, &requester)?;
        expect_bytes(&requester, "what the requester has", requester.usage_exact(), asked)?;
        drop(charge);
    }
    let connection = Arc::into_inner(connection)
        .and_then(|connection| connection.into_inner().ok())
        .ok_or_else(|| Error::Wrong("a thread of SQLite's has not ended".to_owned()))?;
    connection.close().map_err(failed)?;
    full.drain();
    expect_bytes(&full, "usage after all was closed", full.usage(), 0)?;
    drop((victim, requester));
    remove(&full)?;
    Ok(times)
}

fn show(lab: &mut Lab<'_>, held: u64, lines: Vec<Line>) -> Result<(), Error> {
    let mut table = Table::new(
        format!("kills of a victim that has {} MiB: ms, p50 and p99", held >> 20),
        ["victim", "asked KiB", "kills", "half gone", "p99", "all free", "p99", "call to charge", "p99"],
    );
    let mut outrun = 0;
    for Line { victim, asked, times } in lines {
        let kills = times.free.len();
        outrun += times.outrun;
        let mut cells = vec![victim.to_owned(), (asked >> 10).to_string(), kills.to_string()];
        for (what, ns) in [("half gone", times.half), ("all free", times.free), ("charged", times.charged)] {
            let quantiles = Quantiles::of(ns);
            let row = params([("asked", asked.into()), ("held", held.into()), ("until", what.into())]);
            cells.extend(add_quantiles(lab, victim, &row, quantiles, 1e6).into_iter().take(2));
            if what == "all free" {
                lab.report.checks.push(Check::at_most(
                    format!("a kill of {victim} for {} KiB, all free, p99", asked >> 10),
                    quantiles.map(|ns| ns.p99 / 1e6),
                    KILL_MS_MOST,
                    "ms",
                ));
            }
        }
        table.row(cells);
    }
    table.note(format!(
        "half gone and all free since the engine chose the victim; the last two since the requester's call. A victim of charges looks at its flag every {} us; a sort has a connection of its own, and is free when its statement has returned with the error that it was killed. Victim and requester have {} CPUs",
        LOOK.as_micros(),
        lab.crew.cpus()
    ));
    if outrun > 0 {
        table.note(format!(
            "{outrun} more sorts took all there was before the requester asked, and were refused: nobody was killed"
        ));
    }
    lab.print(&table)
}
