//! Kills: from the choice of a victim until its memory is free, and until the requester has it.
//!
//! ```text
//!   full ──┬── victim: holds 64 MiB; its hook raises a flag, or interrupts SQLite's statement
//!          └── requester: charge_until, timed
//!
//!   call ──▶ chosen (KillReport::at) ──▶ half is gone (KillReport::took) ──▶ all is free
//!      └───────────────────────▶ charged
//! ```
//!
//! - I1. Each kill is of the victim, for the requester, and the victim died; no charge is refused; nothing is charged at the end.
//! - I2. The victim is on a thread of its own, which looks at its flag every 100 us and as late as the system wakes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memgroup::{Charge, ChargeError, Config, Group, Hierarchy, KillAnswer, KillOutcome, KillRequest};
use memgroup_sqlite::{TenantConnection, TenantError};

use super::KILL_MS_MOST;
use crate::harness::prelude::*;

/// Bytes that the victim holds before it is chosen.
const HELD: u64 = 64 << 20;
const HELD_TINY: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// How often the victim looks at its flag.
const LOOK: Duration = Duration::from_micros(100);
/// The requester gives up after this, which would be a wrong result.
const PATIENCE: Duration = Duration::from_secs(60);

/// A full group with a victim and a requester.
struct Scene {
    hierarchy: Hierarchy,
    full: Group,
    victim: Group,
    requester: Group,
    held: u64,
    asked: u64,
    /// Nanoseconds of each kill, by [`UNTIL`].
    times: [Vec<f64>; 3],
}

/// The moments that are timed.
const UNTIL: [&str; 3] = ["half gone", "all free", "charged"];

/// The moments of one request.
struct Request {
    called: Instant,
    charge: Charge,
    charged: Instant,
    /// When the victim's thread was done.
    free: Instant,
}

impl Scene {
    fn set(hierarchy: Hierarchy, max: u64, held: u64, asked: u64) -> Result<Scene> {
        let full = child(&hierarchy.root(), &unique("full"))?;
        let (victim, requester) = (child(&full, "victim")?, child(&full, "requester")?);
        limit(&full, max)?;
        Ok(Scene { hierarchy, full, victim, requester, held, asked, times: Default::default() })
    }

    /// Runs the victim on a thread of its own until it holds its bytes, then charges from the first worker; also the victim's answer.
    fn request<R: Send>(&self, lab: &Lab<'_>, victim: impl FnOnce() -> R + Send) -> Result<(R, Request)> {
        std::thread::scope(|threads| {
            let running = threads.spawn(|| (victim(), Instant::now()));
            while self.victim.usage_exact() < self.held && !running.is_finished() {
                std::thread::sleep(LOOK);
            }
            let (called, charge, charged) = lab.workers.run_one(|| {
                let called = Instant::now();
                (called, self.requester.charge_until(self.asked, called + PATIENCE), Instant::now())
            });
            let (answer, free) = running.join().map_err(|_| "panic").or_wrong("the victim's thread")?;
            let charge = charge.or_wrong("a victim has the needed bytes, and yet")?;
            Ok((answer, Request { called, charge, charged, free }))
        })
    }

    /// Adds the times of a kill after its report is checked (I1).
    fn add(&mut self, request: Request) -> Result<()> {
        let Request { called, charge, charged, free } = request;
        let report = self.hierarchy.kills().pop();
        let report = report.ok_or("no victim was killed").or_wrong("a charge was made where all was full")?;
        let found = (&report.victim, &report.requester, report.outcome);
        let right = (&self.victim.path(), &self.requester.path(), Some(KillOutcome::Died));
        expect("victim, requester and outcome of a kill", found, right)?;
        let took = report.took.ok_or("no time").or_wrong("the report of a kill has")?;
        let (free, charged) =
            (free.saturating_duration_since(report.at), charged.saturating_duration_since(called));
        for (times, took) in self.times.iter_mut().zip([took, free, charged]) {
            times.push(took.as_nanos() as f64);
        }
        expect_bytes(&self.requester, "the requester's usage", self.requester.usage_exact(), self.asked)?;
        drop(charge);
        Ok(())
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let held = if lab.args.tiny { HELD_TINY } else { HELD };
    let mut table = Table::new(
        format!("kills of a victim that has {} MiB: ms, p50 and p99", held >> 20),
        ["victim", "asked KiB", "kills", "half gone", "p99", "all free", "p99", "call to charge", "p99"],
    );
    for asked in [64 << 10, held / 2] {
        let scene = of_charges(lab, held, asked)?;
        add_row(lab, &mut table, "charges of 4 KiB", scene);
    }
    let (scene, outrun) = of_sqlite(lab, held)?;
    add_row(lab, &mut table, "a sort in SQLite", scene);
    table.note(format!(
        "half gone and all free since the engine chose the victim; the last two since the requester's call. A victim of charges looks at its flag every {} us. A sort has a connection of its own, and is free when its statement has returned with the error that it was killed. Victim and requester have {} CPUs",
        LOOK.as_micros(),
        lab.workers.cpus
    ));
    if outrun > 0 {
        table.note(format!(
            "{outrun} more sorts took all memory before the requester asked, and were refused: no victim was killed"
        ));
    }
    lab.print(&table)
}

fn add_row(lab: &mut Lab<'_>, table: &mut Table, victim: &str, scene: Scene) {
    let Scene { held, asked, times, .. } = scene;
    let mut cells = vec![(asked >> 10).to_string(), times[0].len().to_string()];
    for (until, ns) in UNTIL.into_iter().zip(times) {
        let ns = Quantiles::of(ns);
        let params = json!({"asked": asked, "held": held, "until": until});
        cells.extend(lab.record(victim, params).quantiles(ns, 1e6).into_iter().take(2));
        if until == "all free" {
            let name = format!("a kill of {victim} for {} KiB, all free, p99", asked >> 10);
            lab.at_most(name, ns.map(|ns| ns.p99 / 1e6), KILL_MS_MOST, "ms");
        }
    }
    table.row(victim, cells);
}

/// Kills of a victim that charges until it is full, and stops when its flag is up.
fn of_charges(lab: &Lab<'_>, held: u64, asked: u64) -> Result<Scene> {
    let mut scene = Scene::set(hierarchy(Config::with_slots(lab.slots))?, held, held, asked)?;
    let flag = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&flag);
    let hook = scene.victim.set_kill_hook(move |_: &KillRequest<'_>| {
        // ORDERING: Relaxed; the flag publishes nothing but itself.
        raised.store(true, Ordering::Relaxed);
        KillAnswer::Dying
    });
    let hook = hook.set_up("a kill hook")?;
    for _ in 0..lab.pick(lab.effort.calls, 150, 1_000) {
        // ORDERING: Relaxed; the start of the victim's thread hands it on.
        flag.store(false, Ordering::Relaxed);
        let (filled, request) = scene.request(lab, || {
            let charge = |_| scene.victim.try_charge(PAGE);
            let charges: Result<Vec<Charge>, ChargeError> = (0..held / PAGE).map(charge).collect();
            let full = Instant::now();
            // ORDERING: Relaxed; as above.
            while charges.is_ok() && !flag.load(Ordering::Relaxed) && full.elapsed() < PATIENCE {
                std::thread::sleep(LOOK);
            }
            charges.map(drop)
        })?;
        filled.or_wrong("a charge of the victim's, where there is room")?;
        expect_bytes(&scene.full, "usage after a kill", scene.full.usage_exact(), asked)?;
        scene.add(request)?;
    }
    drop(hook);
    check_empty(&scene.hierarchy)?;
    Ok(scene)
}

/// A sort that keeps all its input in memory, of more rows than there ever is memory for.
const RUNAWAY: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000000)
     SELECT max(text) FROM (SELECT i, hex(zeroblob(500)) AS text FROM n ORDER BY i * 7919 % 100003 LIMIT -1 OFFSET 1)";

/// Kills of a SQLite statement; also how often a sort took all memory before the requester had a CPU.
///
/// The limit is four times the bytes at which the requester comes, because the sort goes on growing meanwhile. A sort that reaches the
/// limit first is refused itself, which is no kill, and begins anew.
fn of_sqlite(lab: &Lab<'_>, held: u64) -> Result<(Scene, usize)> {
    let (kills, mut outrun) = (lab.pick(lab.effort.calls, 40, 200), 0);
    let sqlite = Sqlite::take(lab.slots)?;
    // More than is left when the victim has `held`; the requester gets it when the victim has only its connection.
    let asked = 3 * held + held / 2;
    let mut scene = Scene::set(sqlite.hierarchy.clone(), 4 * held, held, asked)?;
    let mut connection = TenantConnection::open_in_memory(&scene.victim).or_wrong(STATEMENT)?;
    connection.execute_batch("PRAGMA temp_store = MEMORY").or_wrong(STATEMENT)?;
    while scene.times[0].len() < kills {
        let (killed, connection) = (scene.victim.events().oom_kill, &mut connection);
        let sort = move || connection.query_row(RUNAWAY, [], |row| row.get::<_, String>(0));
        let (answer, request) = scene.request(lab, sort)?;
        let was_chosen = scene.victim.events().oom_kill > killed;
        match answer {
            Err(TenantError::Killed(_)) => {}
            // It was told to stop, and refused before it looked.
            Err(TenantError::OutOfMemory(_)) if was_chosen => {}
            Err(TenantError::OutOfMemory(_)) if outrun < 2 * kills => {
                outrun += 1;
                continue;
            }
            other => return Err(Error::Wrong(format!("the runaway was to be killed, and is {other:?}"))),
        }
        scene.add(request)?;
    }
    connection.close().or_wrong(STATEMENT)?;
    remove_empty(&scene.full)?;
    Ok((scene, outrun))
}
