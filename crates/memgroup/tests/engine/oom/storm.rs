//! Refusals by several threads while victims free from others: no byte and no kill is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{Charge, KillAnswer, KillOutcome, KillRegistration, KillRequest};
use memgroup_percpu::pin_virtual;
use xtask::Watchdog;

use super::tenant::{PAGE, Tenant, full};

use super::super::random::Random;

const TENANTS: usize = 6;
const THREADS: usize = 4;

/// The next act of a hook, by chance.
fn answer(random: &Mutex<Random>, killing: &KillRequest<'_>, free: impl Fn(bool)) -> KillAnswer {
    let dice = random.lock().unwrap().below(16);
    match dice {
        0 => KillAnswer::Refused,
        1 => {
            free(true);
            KillAnswer::Idle { freed: killing.usage }
        }
        // It never stops.
        2 => KillAnswer::Dying,
        3 => panic!("by chance"),
        _ => {
            free(false);
            KillAnswer::Dying
        }
    }
}

fn storm(slots: usize, seed: u64, steps: u64) {
    let (hierarchy, parent) = full(slots, 200, Duration::from_millis(2));
    let tenants: Arc<Vec<Tenant>> =
        Arc::new((0..TENANTS).map(|number| Tenant::new(&parent, &format!("{number}"), 0)).collect());
    let (told, to_free) = channel::<usize>();
    let random = Arc::new(Mutex::new(Random(seed)));
    let answers = Arc::new(AtomicU64::new(0));
    let hooks: Vec<_> = (0..TENANTS)
        .map(|number| {
            let (memory, random, answers) =
                (Arc::clone(&tenants[number].memory), Arc::clone(&random), Arc::clone(&answers));
            let told = Mutex::new(told.clone());
            tenants[number].group.set_kill_hook(move |killing: &KillRequest<'_>| {
                let free = |now: bool| {
                    if now {
                        // A thread may have it that charges: then nothing is given back.
                        let freed = memory.try_lock().map(|mut memory| std::mem::take(&mut *memory));
                        drop(freed);
                    } else {
                        told.lock().unwrap().send(number).unwrap();
                    }
                };
                let answer = answer(&random, killing, free);
                answers.fetch_add(u64::from(answer == KillAnswer::Dying), Ordering::Relaxed);
                answer
            })
        })
        .map(Result::unwrap)
        .collect();
    drop(told);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let freeing = Arc::clone(&tenants);
        scope.spawn(move || {
            for number in to_free {
                let freed: Vec<Charge> = std::mem::take(&mut *freeing[number].memory.lock().unwrap());
                drop(freed);
                freeing[number].group.kill_done();
            }
        });
        let chargers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (tenants, parent) = (&tenants, &parent);
                scope.spawn(move || {
                    let mut random = Random(seed + 1 + thread as u64);
                    for _ in 0..steps {
                        let _pin = pin_virtual(random.below(slots as u64) as usize);
                        let tenant = &tenants[random.below(TENANTS as u64) as usize];
                        let bytes = random.bytes(20);
                        if let Ok(charge) = tenant.group.try_charge(bytes) {
                            tenant.memory.lock().unwrap().push(charge);
                        }
                        assert!(parent.usage() <= 200 * PAGE, "beyond its limit");
                    }
                })
            })
            .collect();
        let (over, all, tree) = (&is_over, &tenants, &hierarchy);
        scope.spawn(move || {
            let mut random = Random(seed + 100);
            while !over.load(Ordering::Relaxed) {
                hooks.iter().for_each(KillRegistration::reinstate);
                // Another thread reports the end of a group that never stops.
                all[random.below(TENANTS as u64) as usize].group.kill_done();
                assert!(tree.kills().len() <= 64);
                std::thread::sleep(Duration::from_micros(500));
            }
            // Without hooks no group is told any more, and the freeing thread ends.
            drop(hooks);
        });
        let results: Vec<_> = chargers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        let counted = parent.events();
        assert_eq!(counted.oom_kill, answers.load(Ordering::Relaxed), "each was counted once");
        let killed: u64 = tenants.iter().map(|tenant| tenant.group.events().oom_kill).sum();
        assert_eq!(counted.oom_kill, killed);
        assert!(counted.oom_kill > 0, "seed {seed}");
        results.into_iter().for_each(|result| result.unwrap());
    });
    // Those of removed hooks go on for a patience.
    while hierarchy.kills().iter().any(|kill| kill.outcome.is_none()) {
        std::thread::yield_now();
    }
    for kill in hierarchy.kills() {
        assert!(kill.outcome != Some(KillOutcome::Died) || kill.took.is_some(), "{kill:?} took some time");
    }
    for tenant in tenants.iter() {
        let held: u64 = tenant.memory.lock().unwrap().iter().map(Charge::bytes).sum();
        assert_eq!(tenant.group.usage_exact(), held, "seed {seed}");
        tenant.free();
    }
    assert_eq!(hierarchy.root().usage_exact(), 0);
}

#[test]
fn a_storm_of_refusals_loses_no_byte_and_no_kill() {
    let _watchdog = Watchdog::over("a storm of refusals");
    for (slots, seed) in [(2, 11), (8, 22), (128, 33)] {
        storm(slots, seed, 1000);
    }
}
