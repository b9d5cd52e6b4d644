//! Who is busy when: each thread's tenants take turns, and one that has its turn makes some thousand statements.
//!
//! Most are look-ups, one in 16 changes a row, one in 64 sums some. A statement is known to have made room when a walk of its thread came by the
//! probe. What SQLite charges from within begins and ends where nobody can look, so beside each statement a buffer of a page is charged, too, and
//! timed by itself. CPU time is a system call that takes as long as a statement, and is taken after each window, when nobody is busy and all is full.

use std::sync::{Arc, PoisonError};

use memgroup::{Charge, Freshness, Reach, Statistics, stats};

use super::probe;
use super::tenants::House;
use crate::Error;
use crate::harness::crew::Start;
use crate::harness::os::thread_cpu_ns;
use crate::harness::random::Random;
use crate::harness::sqlite::Tenant;
use crate::harness::{Lab, clock};

/// Bytes of a buffer: those of a page.
const BUFFER: u64 = 4096;
/// Bytes of a buffer that needs room by itself, and how many are charged after a window.
const LARGE: u64 = 64 << 10;
const LARGE_COUNT: u64 = 8;

/// How a window is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turns {
    pub(super) threads: usize,
    /// Statements of a turn.
    pub(super) statements: u64,
    /// Turns of each tenant.
    pub(super) rounds: u64,
}

/// What one thread did, or all. Times are in ticks.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) statements: Vec<u64>,
    /// Of those, the ones in which room was made.
    pub(super) stalled: Vec<u64>,
    /// Charges of buffers that made room.
    pub(super) stalls: Vec<u64>,
    /// Of whole turns.
    pub(super) turns: Vec<u64>,
    usage_max: u64,
}

impl Part {
    fn with(mut self, other: Part) -> Part {
        self.statements.extend(other.statements);
        self.stalled.extend(other.stalled);
        self.stalls.extend(other.stalls);
        self.turns.extend(other.turns);
        Part { usage_max: self.usage_max.max(other.usage_max), ..self }
    }
}

/// What the engine says of a window.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    /// Bytes that caches gave back, and nanoseconds that their calls took.
    pub(super) reclaimed: u64,
    pub(super) scan_ns: u64,
    pub(super) reads: u64,
    /// Of all charges, SQLite's own too: it does without a page that is refused, and nobody would notice.
    pub(super) refusals: u64,
}

/// One window: what its threads did, and what the engine told.
pub(super) fn window(
    lab: &Lab<'_>,
    house: &Arc<House>,
    turns: Turns,
    seed: u64,
) -> Result<(Part, Told), Error> {
    let before = Figures::read(house);
    let (working, start, lead) = (house.clone(), Start::new(turns.threads), lab.clock.ticks_per_us() * 10);
    let parts = lab.crew.run(turns.threads, move |thread| {
        start.wait(lead);
        work(&working, turns, thread, seed)
    });
    let mut part = Part::default();
    for one in parts {
        part = part.with(one?);
    }
    let told = Figures::read(house).since(before, house)?;
    house.check_bounds()?;
    if part.usage_max > house.parent.max() {
        return Err(Error::Wrong(format!(
            "{}: {} bytes were charged in all, {} may be",
            house.bounds.name(),
            part.usage_max,
            house.parent.max()
        )));
    }
    Ok((part, told))
}

/// One thread's part: its tenants in turn, in another order each round.
fn work(house: &House, turns: Turns, thread: usize, seed: u64) -> Result<Part, Error> {
    let mut own: Vec<usize> = (thread..house.tenants.len()).step_by(turns.threads).collect();
    let mut random = Random::new(seed ^ (thread as u64) << 32);
    let mut part = Part::default();
    for _ in 0..turns.rounds {
        random.shuffle(&mut own);
        for &at in &own {
            let mut tenant = house.tenants[at].lock().unwrap_or_else(PoisonError::into_inner);
            let begin = clock::now();
            for _ in 0..turns.statements {
                buffer(house, &tenant, &mut part);
                let (calls, before) = (probe::calls(), clock::now());
                make(&mut tenant, random.next())?;
                let ticks = clock::now() - before;
                part.statements.push(ticks);
                if probe::calls() != calls {
                    part.stalled.push(ticks);
                }
            }
            part.turns.push(clock::now() - begin);
        }
    }
    Ok(part)
}

fn make(tenant: &mut Tenant, random: u64) -> Result<(), Error> {
    let id = (random >> 8) as i64 % tenant.rows() + 1;
    match random % 64 {
        0 => tenant.sum(id),
        kind if kind % 16 == 1 => tenant.update(id),
        _ => tenant.look_up(id),
    }
}

/// Charges a buffer, looks at the usage while it is charged, and lets it go.
fn buffer(house: &House, tenant: &Tenant, part: &mut Part) {
    let (calls, before) = (probe::calls(), clock::now());
    let charged = tenant.buffers.try_charge(BUFFER);
    let ticks = clock::now() - before;
    part.usage_max = part.usage_max.max(house.parent.usage());
    drop(charged);
    if probe::calls() != calls {
        part.stalls.push(ticks);
    }
}

/// Room made by hand.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Freed {
    pub(super) bytes: u64,
    /// Of the thread's CPU time, in the charges.
    pub(super) cpu_ns: u64,
}

/// Charges large buffers for one tenant while nobody is busy: what they set free, and the CPU time they took.
pub(super) fn by_hand(lab: &Lab<'_>, house: &Arc<House>, seed: u64) -> Result<Freed, Error> {
    let house = house.clone();
    let freed = lab.crew.run(1, move |_| {
        let at = seed as usize % house.tenants.len();
        let tenant = house.tenants[at].lock().unwrap_or_else(PoisonError::into_inner);
        let memory = house.hierarchy.memory();
        let gained =
            || memory.get(&tenant.buffers, stats::memory::GAINED, Reach::Local, Freshness::Fresh) as u64;
        let (gained_before, before) = (gained(), thread_cpu_ns());
        let charged: Result<Vec<Charge>, _> =
            (0..LARGE_COUNT).map(|_| tenant.buffers.try_charge(LARGE)).collect();
        let cpu_ns = thread_cpu_ns() - before;
        let refused = |why| Error::Wrong(format!("a buffer was refused while caches were full: {why}"));
        charged.map_err(refused).map(|_| Freed { bytes: gained() - gained_before, cpu_ns })
    });
    freed.into_iter().next().unwrap_or_else(|| Ok(Freed::default()))
}

/// The engine's figures of a house while nobody is busy.
struct Figures {
    told: Told,
    claimed: u64,
    freed: u64,
}

impl Figures {
    fn read(house: &House) -> Figures {
        let (memory, io) = (house.hierarchy.memory(), house.hierarchy.io());
        let of_all =
            |of: &Statistics, stat| of.get(&house.parent, stat, Reach::Subtree, Freshness::Fresh) as u64;
        let (mut scan_ns, mut claimed, mut freed) = (0, 0, 0);
        for shrinker in house.hierarchy.shrinkers() {
            scan_ns += shrinker.time.as_nanos() as u64;
            claimed += shrinker.claimed_bytes;
            freed += shrinker.freed_bytes;
        }
        let told = Told {
            reclaimed: of_all(&memory, stats::memory::RECLAIMED),
            scan_ns,
            reads: of_all(&io, stats::io::RIOS),
            refusals: of_all(&memory, stats::memory::REFUSALS),
        };
        Figures { told, claimed, freed }
    }

    /// What a window came to. What the engine counted as reclaimed is what the caches say they gave: no other house was busy.
    fn since(&self, before: Figures, house: &House) -> Result<Told, Error> {
        let (now, then) = (self.told, before.told);
        let told = Told {
            reclaimed: now.reclaimed - then.reclaimed,
            scan_ns: now.scan_ns - then.scan_ns,
            reads: now.reads - then.reads,
            refusals: now.refusals - then.refusals,
        };
        let (claimed, freed) = (self.claimed - before.claimed, self.freed - before.freed);
        if told.reclaimed == claimed && freed == claimed {
            return Ok(told);
        }
        Err(Error::Wrong(format!(
            "{}: caches say they gave {claimed} bytes, {freed} were uncharged in their calls, and {} were counted as reclaimed",
            house.bounds.name(),
            told.reclaimed
        )))
    }
}
