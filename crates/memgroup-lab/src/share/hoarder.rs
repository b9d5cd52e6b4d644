//! A hoarder: it fills all it can get, keeps it, and asks for nothing more. It comes before the small tenants or after them.
//!
//! - I1. Without a hook it never gives a byte back. With one, the hook drops all it holds.
//! - I2. Counted are the statements that ended after the hoarder was full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{Charge, Hierarchy, KillAnswer, KillRequest};

use super::players::Small;
use super::{End, MIB, Scene, Setting, held_most, joined};
use crate::harness::prelude::*;

const SMALL: usize = 8;
const STEPS: u64 = 256;

/// One case, and its results.
struct Seen {
    held: f64,
    done: u64,
    refused: u64,
    stopped: u64,
    /// Small tenants with a statement that was done, and when the last of them had its first, in milliseconds.
    ran: usize,
    all_ran_ms: Option<f64>,
    /// Bytes that the small ones' caches gave back; with one group for all it is not told apart.
    given: u64,
    why: Option<String>,
}

fn one(lab: &Lab<'_>, hierarchy: &Hierarchy, setting: Setting, is_first: bool, hook: bool) -> Result<Seen> {
    let scene = Scene::set(hierarchy, setting, SMALL)?;
    let hoard: Arc<Mutex<Vec<Charge>>> = Arc::default();
    let owned = Arc::clone(&hoard);
    let drops = move |request: &KillRequest<'_>| {
        if request.kills_requester {
            return KillAnswer::Refused;
        }
        lock(&owned).clear();
        KillAnswer::Dying
    };
    let hook = hook.then(|| scene.large.set_kill_hook(drops).set_up("a kill hook")).transpose()?;
    let step = scene.max() / STEPS;
    // The most it held: it is told to give while it still fills.
    let fill = || {
        let mut most = 0;
        while let Ok(charge) = scene.large.try_charge(step) {
            let mut hoard = lock(&hoard);
            hoard.push(charge);
            most = most.max(hoard.len() as u64 * step);
            if most > hoard.len() as u64 * step {
                break;
            }
        }
        most
    };
    let (clock, over) = (lab.clock, AtomicBool::new(false));
    let small = Small::all(&scene, false, 1)?;
    let mut most = if is_first { fill() } else { 0 };
    let (full, ends) = std::thread::scope(|threads| {
        let over = &over;
        let work = |mut player: Small| {
            threads.spawn(move || {
                let mut ends = Vec::new();
                // ORDERING: Relaxed, here and below; the flag publishes nothing but itself.
                while !over.load(Ordering::Relaxed) {
                    ends.push((player.statement(clock), clock::now()));
                    player.rest(SMALL);
                }
                Ok((ends, player.end().why))
            })
        };
        let mut full = clock::now();
        let started: Vec<_> = small.into_iter().map(work).collect();
        if !is_first {
            std::thread::sleep(Duration::from_millis(lab.pick(2, 20, 20)));
            most = fill();
            full = clock::now();
        }
        std::thread::sleep(Duration::from_millis(lab.pick(5, 100, 200)));
        // ORDERING: Relaxed; as above.
        over.store(true, Ordering::Relaxed);
        let ends: Result<Vec<_>> = started.into_iter().map(joined).collect();
        Ok::<_, Error>((full, ends?))
    })?;
    let (ends, why): (Vec<Vec<(End, u64)>>, Vec<_>) = ends.into_iter().unzip();
    drop(hook);
    lock(&hoard).clear();
    let (held, [given, _]) = (most as f64 / scene.max() as f64, scene.given());
    scene.end()?;
    let after = |end: End| ends.iter().flatten().filter(|one| one.1 >= full && one.0 == end).count() as u64;
    let first =
        |ends: &Vec<(End, u64)>| ends.iter().find(|one| one.1 >= full && one.0 == End::Done).map(|one| one.1);
    let firsts: Vec<u64> = ends.iter().filter_map(first).collect();
    let all_ran = firsts.iter().max().filter(|_| firsts.len() == SMALL);
    Ok(Seen {
        held,
        done: after(End::Done),
        refused: after(End::Refused),
        stopped: after(End::Stopped),
        ran: firsts.len(),
        given,
        why: why.into_iter().flatten().next(),
        all_ran_ms: all_ran.map(|&at| clock.ns((at - full) as f64) / 1e6),
    })
}

pub(super) fn run(lab: &mut Lab<'_>, hierarchy: &Hierarchy) -> Result<()> {
    let mut table = Table::new(
        format!("a hoarder beside {SMALL} small tenants, statements at once"),
        [
            "setting, hoarder",
            "held %",
            "done",
            "refused",
            "stopped",
            "that ran",
            "all ran after ms",
            "small gave MiB",
        ],
    );
    for setting in Setting::ALL {
        for (is_first, hook) in [(true, false), (true, true), (false, false), (false, true)] {
            // With one group for all no hook can tell the hoarder from the others.
            if setting == Setting::Wide && hook {
                continue;
            }
            let seen = one(lab, hierarchy, setting, is_first, hook)?;
            let order = if is_first { "first" } else { "last" };
            let name = format!("{}, {order}, {}", setting.name(), if hook { "a hook" } else { "no hook" });
            let mut record = lab.record(&name, json!({"small": SMALL}));
            let cells = [
                record.value("held", "%", Some(seen.held * 100.0)),
                record.count("done", "statements", seen.done),
                record.count("refused", "statements", seen.refused),
                record.count("stopped", "statements", seen.stopped),
                format!("{} of {SMALL}", seen.ran),
                record.value("all ran", "ms", seen.all_ran_ms),
                (record.count("small gave", "bytes", seen.given), count(seen.given / MIB)).1,
            ];
            table.row(&name, cells);
            if setting == Setting::Share {
                lab.at_most(format!("a hoarder held, {name}"), Some(seen.held * 100.0), held_most(), "%");
                if let Some(why) = seen.why {
                    table.note(format!("{name}, a refusal: {why}"));
                }
            }
            if setting == Setting::Share && hook {
                let failed = (seen.refused + seen.stopped) as f64;
                lab.at_most(format!("refused or stopped beside a hoarder, {name}"), Some(failed), 0.0, "");
            }
        }
    }
    table.note("since the hoarder was full. It keeps all it got and asks for nothing more; its hook drops all. A refused statement is tried again after 0.2 ms. Held: the most");
    lab.print(&table)
}
