//! Tenants that charge and compute: a small one with statements and a cache, and a runaway.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memgroup::{Charge, ChargeError, Group, KillRegistration};

use super::{End, Scene, Setting, Tally, stop_by};
use crate::harness::cache::{PAGE, Pages, Tenant};
use crate::harness::prelude::*;

/// The deadline of a charge that waits.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// A refused statement is tried again after this.
pub(super) const PAUSE: Duration = Duration::from_micros(200);
/// A small tenant rests so long between two statements, for each small tenant, on average: together they have work for half a CPU.
const REST_US: u64 = 200;
/// A small statement charges 1 to so many times so many bytes, 1 MiB at most, and works on them for 10 us.
const STEPS: u64 = 16;
const STEP: u64 = 64 << 10;
const WORK: u64 = 12_000;
/// Pages that a small tenant would cache, 1 MiB, and the work to read one that is not cached: 5 us.
const WORKING_SET: u64 = 256;
const READ: u64 = 6_000;
/// The runaway fills the parent in so many steps, and caches so many pages in each.
const RUNAWAY_STEPS: u64 = 256;
const RUNAWAY_PAGES: u64 = 8;

/// Rests between two statements, one of so many small tenants.
pub(super) fn rest(random: &mut Random, small: usize) {
    std::thread::sleep(Duration::from_micros(random.next() % (2 * small as u64 * REST_US)));
}

fn work(random: &mut Random, rounds: u64) {
    (0..rounds).for_each(|_| _ = black_box(random.next()));
}

/// A tenant with a cache, and the flag that stops it. With one group for all there is no hook to stop one of them.
struct Player {
    tenant: Tenant,
    stop: Arc<AtomicBool>,
    _hook: Option<KillRegistration>,
    random: Random,
}

impl Player {
    fn new(scene: &Scene, group: &Group, seed: u64) -> Result<Player> {
        let stop = Arc::<AtomicBool>::default();
        let hook = (scene.setting != Setting::Wide).then(|| stop_by(group, &stop)).transpose()?;
        let tenant = Tenant::of(group.clone(), |pages: Arc<Pages>| pages)?;
        Ok(Player { tenant, stop, _hook: hook, random: Random::new(seed) })
    }

    fn is_stopped(&self) -> bool {
        // ORDERING: Relaxed; the flag publishes nothing but itself.
        self.stop.swap(false, Ordering::Relaxed)
    }
}

/// A tenant with statements of 1 MiB at most, and a cache of 1 MiB.
pub(super) struct Small {
    player: Player,
    waits: bool,
    pub(super) tally: Tally,
}

impl Small {
    pub(super) fn all(scene: &Scene, waits: bool, seed: u64) -> Result<Vec<Small>> {
        let new = |(number, group)| {
            let player = Player::new(scene, group, seed + number as u64)?;
            Ok(Small { player, waits, tally: Tally::default() })
        };
        scene.small.iter().enumerate().map(new).collect()
    }

    fn charge(&self) -> Result<Charge, ChargeError> {
        let group = &self.player.tenant.group;
        if self.waits { group.charge_until(STEP, Instant::now() + PATIENCE) } else { group.try_charge(STEP) }
    }

    fn attempt(&mut self) -> Result<End, ChargeError> {
        let mut held = Vec::with_capacity(STEPS as usize);
        for _ in 0..=self.player.random.next() % STEPS {
            held.push(self.charge()?);
            let player = &mut self.player;
            if player.is_stopped() {
                return Ok(End::Stopped);
            }
            if player.random.next() % WORKING_SET >= player.tenant.pages.bytes() / PAGE {
                work(&mut player.random, READ);
                self.tally.again += u64::from(player.tenant.add_page().is_err());
            }
            work(&mut player.random, WORK);
        }
        Ok(End::Done)
    }

    /// One statement. Its charges are free when it ends; its cache stays.
    pub(super) fn statement(&mut self, clock: Clock) -> End {
        let began = clock::now();
        let end = self.attempt().unwrap_or_else(|error| {
            self.tally.why.get_or_insert_with(|| error.to_string());
            End::Refused
        });
        match end {
            End::Done => self.tally.times.push(clock.ns((clock::now() - began) as f64)),
            End::Refused | End::Stopped => std::thread::sleep(PAUSE),
        }
        self.tally.add(end);
        end
    }

    pub(super) fn rest(&mut self, small: usize) {
        rest(&mut self.player.random, small);
    }

    /// Closes the tenant.
    pub(super) fn end(self) -> Tally {
        self.player.tenant.pages.clear();
        self.tally
    }
}

/// A tenant with a statement that never has enough. In the control it computes as much, and charges nothing.
pub(super) struct Runaway {
    player: Player,
    step: u64,
    demand: bool,
    pub(super) tally: Tally,
}

impl Runaway {
    pub(super) fn new(scene: &Scene, demand: bool, seed: u64) -> Result<Runaway> {
        let (player, step) = (Player::new(scene, &scene.large, !seed)?, scene.max() / RUNAWAY_STEPS);
        Ok(Runaway { player, step, demand, tally: Tally::default() })
    }

    /// One statement, until it is refused or stopped; then `full` is called, and all is free but its cache. One that `over` ends does not count.
    pub(super) fn statement(&mut self, over: &AtomicBool, full: impl FnOnce()) {
        let mut held = Vec::new();
        let end = loop {
            // ORDERING: Relaxed; the flag publishes nothing but itself.
            if over.load(Ordering::Relaxed) {
                return full();
            }
            let player = &mut self.player;
            if player.is_stopped() {
                break End::Stopped;
            }
            // Twice the limit: none is ever done, but in the control.
            if held.len() as u64 == 2 * RUNAWAY_STEPS {
                break End::Done;
            }
            let charge = self.demand.then(|| player.tenant.group.try_charge(self.step)).transpose();
            let Ok(charge) = charge else { break End::Refused };
            held.push(charge);
            for _ in 0..if self.demand { RUNAWAY_PAGES } else { 0 } {
                self.tally.again += u64::from(player.tenant.add_page().is_err());
            }
            work(&mut player.random, WORK);
        };
        self.tally.add(end);
        full();
    }

    pub(super) fn end(self) -> Tally {
        self.player.tenant.pages.clear();
        self.tally
    }
}
