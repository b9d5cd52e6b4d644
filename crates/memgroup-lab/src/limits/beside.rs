//! An innocent thread beside one that is refused in a loop, or beside waiters.
//!
//! ```text
//!   root ──┬── attacked, full ──┬── leaf 0: the attacker charges here and is refused
//!          │                    └── leaf 1 ...: hold nothing
//!          └── elsewhere ──┬── innocent
//!                          └── full: the innocent's own refusals
//! ```
//!
//! Thread 0 is the innocent, thread 1 its neighbour, which works from before the first operation of a window until after the last. A window
//! ends with the operation in which its time is over, however long that takes. Each figure is the median of the windows' means; a
//! disturbed window counts too, because a window of a starved innocent is long and hardly ever undisturbed.
//!
//! - I1. Every charge of the attacker is refused, in each window at least one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memgroup::{Charge, Config, Group};

use super::ledger::{CasTree, Ledger, MutexTree, Shape};
use super::{MIB, PAGE};
use crate::harness::prelude::*;

/// The innocent's speed beside the storm below 1,000 groups, over that beside a spinning thread.
const SPEED_LEAST: f64 = 0.5;
const GOAL_GROUPS: usize = 1_000;
/// The time of a pair beside an attacker that asks for headroom + 1, and beside waiters, over that beside a spinning thread.
const HEADROOM_MOST: f64 = 3.0;
const WAITERS_MOST: f64 = 1.2;
const HELD: u64 = 64 * MIB;
const WAITERS: usize = 100;
/// Windows of a sample below the shared parent.
const SHORT_WINDOWS: usize = 4;
/// A waiter gives up after this, which would be a wrong result.
const PATIENCE: Duration = Duration::from_secs(600);
const FITS: &str = "a charge far below every limit";

/// Operations in a row; how many.
type Operation<'o> = Box<dyn Fn() -> Result<u64> + Sync + 'o>;

/// One window: the innocent's nanoseconds and operations, and the neighbour's operations.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    ns: f64,
    done: u64,
    neighbours: u64,
}

impl Window {
    /// Nanoseconds of one operation of the innocent.
    fn each(self) -> Option<f64> {
        ratio(Some(self.ns), Some(self.done as f64))
    }

    /// Operations of the neighbour in a second.
    fn neighbours(self) -> Option<f64> {
        ratio(Some(self.neighbours as f64 * 1e9), Some(self.ns))
    }
}

/// Takes one window.
fn window(lab: &Lab<'_>, us: u64, innocent: &Operation<'_>, neighbour: &Operation<'_>) -> Result<Window> {
    let (is_over, length) = (AtomicBool::new(false), lab.clock.ticks_per_us() * us);
    let (has_begun, clock) = (AtomicBool::new(false), lab.clock);
    let parts = lab.workers.try_run(2, |thread| {
        let (mut done, mut end) = (0, 0);
        if thread > 0 {
            // ORDERING: Relaxed, here and below; flags and counts by themselves.
            while !is_over.load(Ordering::Relaxed) {
                let more = neighbour();
                // ORDERING: Relaxed, as above. Also after an error, or the innocent would wait for ever.
                has_begun.store(true, Ordering::Relaxed);
                done += more?;
            }
            return Ok(Window { neighbours: done, ..Window::default() });
        }
        // ORDERING: Relaxed, as above.
        spin_until(|| has_begun.load(Ordering::Relaxed).then_some(()));
        let begin = clock::now();
        let mut result = Ok(0);
        while result.is_ok() && end < begin + length {
            result = innocent();
            done += result.as_ref().map_or(0, |&more| more);
            end = clock::now();
        }
        // ORDERING: Relaxed, as above. Also after an error, or the neighbour would go on.
        is_over.store(true, Ordering::Relaxed);
        result.map(|_| Window { ns: clock.ns((end - begin) as f64), done, neighbours: 0 })
    });
    let parts = parts?;
    Ok(Window { neighbours: parts[1].neighbours, ..parts[0] })
}

/// A thread that does nothing to any group.
fn spins() -> Operation<'static> {
    Box::new(|| {
        (0..64).for_each(|_| std::hint::spin_loop());
        Ok(1)
    })
}

fn refused(group: &Group, bytes: u64) -> Result<u64> {
    let refused = group.try_charge(bytes).is_err();
    ensure(refused, || format!("{} took a charge beyond its limit", group.path()))?;
    Ok(1)
}

fn pairs(group: &Group, bytes: u64) -> Result<u64> {
    const PAIRS: u64 = 64;
    for _ in 0..PAIRS {
        drop(group.try_charge(bytes).or_wrong(FITS)?);
    }
    Ok(PAIRS)
}

/// The groups of one attack.
struct World {
    name: String,
    groups: usize,
    attacked: Group,
    elsewhere: Group,
    innocent: Group,
    full: Group,
    held: Vec<Charge>,
    fixture: Fixture,
}

impl World {
    /// The attacker is refused by its own limit where it has no other group beside it, else by the parent.
    fn build(lab: &Lab<'_>, groups: usize) -> Result<World> {
        let config = Config::with_slots(lab.slots).groups_max(groups as u32 + 64);
        let fixture = Fixture::chain(config, 3, groups)?;
        let (elsewhere, attacked) =
            (child(&fixture.hierarchy.root(), "elsewhere")?, fixture.leaves[0].clone());
        let (innocent, full) = (child(&elsewhere, "innocent")?, child(&elsewhere, "full")?);
        let (full_group, name) = match groups {
            1 => (&attacked, "own limit".to_owned()),
            groups => (&fixture.parent, format!("parent of {}", count(groups as u64))),
        };
        limit(full_group, HELD)?;
        limit(&full, HELD)?;
        limit(&innocent, FAR_BYTES)?;
        let held = [&attacked, &full].map(|group| group.try_charge(HELD).or_wrong(FITS));
        let held = held.into_iter().collect::<Result<_>>()?;
        Ok(World { name, groups, attacked, elsewhere, innocent, full, held, fixture })
    }

    fn attack(&self) -> Operation<'_> {
        Box::new(|| refused(&self.attacked, PAGE))
    }

    /// The innocent's operations, in the order of [`OPERATIONS`].
    fn operations(&self) -> [Operation<'_>; 6] {
        let toggled = AtomicBool::new(false);
        [
            Box::new(|| refused(&self.full, PAGE)),
            Box::new(|| {
                child(&self.elsewhere, "passing")?.remove().or_wrong("failed to remove an empty group")?;
                Ok(1)
            }),
            Box::new(|| {
                let found = self.fixture.hierarchy.lookup("/elsewhere/innocent");
                drop(found.or_wrong("the group is there, and yet")?);
                Ok(1)
            }),
            Box::new(move || {
                // ORDERING: Relaxed; one thread uses it.
                let lower = toggled.fetch_xor(true, Ordering::Relaxed);
                limit(&self.innocent, FAR_BYTES - u64::from(lower))?;
                Ok(1)
            }),
            Box::new(|| pairs(&self.innocent, MIB)),
            Box::new(|| pairs(&self.innocent, PAGE)),
        ]
    }

    fn end(self) -> Result<()> {
        drop(self.held);
        self.fixture.check_empty()
    }
}

const OPERATIONS: [&str; 6] =
    ["own refusal", "create + remove", "look-up by path", "set_max", "pair of 1 MiB", "pair of 4 KiB"];
/// Of those, the operations with a goal, and those that the controls have too.
const WITH_GOAL: usize = 3;
const OF_CONTROLS: [usize; 3] = [0, 4, 5];

/// The operations of a control's innocent in leaf 1, beside an attacker in leaf 0.
fn controls<L: Ledger>(ledger: &L) -> [Operation<'_>; 3] {
    let pair = |bytes| -> Operation<'_> {
        Box::new(move || {
            for _ in 0..64 {
                ledger.free(ledger.charge(1, bytes).ok_or(FITS).or_wrong("the control refused")?);
            }
            Ok(64)
        })
    };
    let refusal = move || refused_by(ledger, 1, 2 * FAR_BYTES);
    [Box::new(refusal), pair(MIB), pair(PAGE)]
}

fn refused_by(ledger: &impl Ledger, leaf: usize, bytes: u64) -> Result<u64> {
    ensure(ledger.charge(leaf, bytes).is_none(), || "a control took a charge beyond its limit".to_owned())?;
    Ok(1)
}

/// Windows of one operation beside a spinning thread and beside another neighbour.
#[derive(Default)]
struct Both {
    spinning: Vec<Window>,
    beside: Vec<Window>,
}

impl Both {
    fn sample(
        &mut self,
        lab: &Lab<'_>,
        us: u64,
        innocent: &Operation<'_>,
        neighbour: &Operation<'_>,
    ) -> Result<()> {
        self.spinning.push(window(lab, us, innocent, &spins())?);
        self.beside.push(window(lab, us, innocent, neighbour)?);
        Ok(())
    }

    /// Nanoseconds of one operation beside a spinning thread and beside the neighbour.
    fn ns(&self) -> [Option<f64>; 2] {
        [&self.spinning, &self.beside]
            .map(|windows| median_of(windows.iter().filter_map(|window| window.each())))
    }

    fn neighbours_a_second(&self) -> Option<f64> {
        median_of(self.beside.iter().filter_map(|window| window.neighbours()))
    }

    /// The speed beside the neighbour over that beside a spinning thread.
    fn speed(&self) -> Option<f64> {
        let [spinning, beside] = self.ns();
        ratio(spinning, beside)
    }

    fn record(&self, lab: &mut Lab<'_>, variant: &str, operation: &str) {
        let summary = |windows: &[Window]| Summary::of(windows.iter().filter_map(|window| window.each()));
        let (speed, neighbours) = (self.speed(), self.neighbours_a_second());
        let mut record = lab.record(variant, json!({"operation": operation}));
        record.summary("beside a spinning thread", "ns", summary(&self.spinning));
        record.summary("beside", "ns", summary(&self.beside));
        record.value("speed", "x", speed);
        record.value("neighbour's", "1/s", neighbours);
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    refusals(lab)?;
    shared(lab)
}

/// Rounds, and microseconds of a window.
fn effort(lab: &Lab<'_>) -> (usize, u64) {
    lab.pick((1, 200), (5, 8_000), (25, 10_000))
}

fn refusals(lab: &mut Lab<'_>) -> Result<()> {
    let groups = if lab.args.tiny { [1, 2, 3, 4] } else { [1, 100, GOAL_GROUPS, 10_000] };
    let worlds: Vec<World> =
        groups.into_iter().map(|groups| World::build(lab, groups)).collect::<Result<_>>()?;
    let shape = Shape { leaf_max: HELD, held: HELD, ..Shape::leaves(2) };
    let (cas, mutex) = (CasTree::build(shape)?, MutexTree::build(shape)?);
    let ((rounds, us), operations) = (effort(lab), OPERATIONS.len());
    let mut found: Vec<Both> = (0..(worlds.len() + 1) * operations).map(|_| Both::default()).collect();
    lab.in_turns(rounds, found.len(), |lab, case| {
        let (world, at) = (case / operations, case % operations);
        if let Some(world) = worlds.get(world) {
            return found[case].sample(lab, us, &world.operations()[at], &world.attack());
        }
        // Three operations on each of the two controls.
        let (innocent, attack): (Operation<'_>, Operation<'_>) = if at < 3 {
            let [a, b, c] = controls(&cas);
            ([a, b, c].into_iter().nth(at).expect("one of three"), Box::new(|| refused_by(&cas, 0, PAGE)))
        } else {
            let [a, b, c] = controls(&mutex);
            let innocent = [a, b, c].into_iter().nth(at - 3).expect("one of three");
            (innocent, Box::new(|| refused_by(&mutex, 0, PAGE)))
        };
        found[case].sample(lab, us, &innocent, &attack)
    })?;
    let names: Vec<String> = worlds.iter().map(|world| world.name.clone()).collect();
    let mut table = Table::new(
        "an innocent beside a thread that is refused in a loop: its speed over that beside a spinning thread",
        ["innocent does", "spinning, ns", &names[0], &names[1], &names[2], &names[3], "CAS tree", "mutex"],
    );
    for (at, operation) in OPERATIONS.into_iter().enumerate() {
        let mut cells = vec![figure_or_dash(found[at].ns()[0])];
        for (index, world) in worlds.iter().enumerate() {
            let both = &found[index * operations + at];
            both.record(lab, &world.name, operation);
            cells.push(share_or_dash(both.speed()));
            if world.groups == GOAL_GROUPS && at < WITH_GOAL {
                let name = format!("{operation} beside a storm below 1,000 groups, speed");
                lab.at_least(name, both.speed(), SPEED_LEAST, "x");
            }
        }
        let control = OF_CONTROLS.iter().position(|&control| control == at);
        for (index, name) in ["CAS tree", "mutex tree"].into_iter().enumerate() {
            let both = control.map(|control| &found[worlds.len() * operations + 3 * index + control]);
            both.inspect(|both| both.record(lab, name, operation));
            cells.push(share_or_dash(both.and_then(Both::speed)));
        }
        table.row(operation, cells);
    }
    let storms = found.chunks(operations).take(worlds.len());
    let storms: Vec<String> =
        storms.map(|of| figure_or_dash(of[operations - 1].neighbours_a_second())).collect();
    table.note(format!(
        "the attacker's refusals a second beside the pairs of 4 KiB: {}. The innocent's groups are in another subtree of the root. The controls are refused by their own limit, beside pairs in a sibling; they have no groups to create or look up",
        storms.join("; ")
    ));
    lab.print(&table)?;
    worlds.into_iter().try_for_each(World::end)?;
    cas.end()?;
    mutex.end()
}

/// "0.52", and small shares with two digits that count.
fn share_or_dash(share: Option<f64>) -> String {
    share.map_or_else(dash, |share| if share < 0.01 { format!("{share:.1e}") } else { format!("{share:.2}") })
}

/// An innocent and an attacker or waiters below one parent with some headroom.
struct Shared {
    fixture: Fixture,
    held: Charge,
}

impl Shared {
    fn build(lab: &Lab<'_>) -> Result<Shared> {
        let fixture = Fixture::chain(Config::with_slots(lab.slots), 3, 2)?;
        limit(&fixture.parent, 2 * HELD)?;
        let held = fixture.leaves[0].try_charge(HELD).or_wrong(FITS)?;
        Ok(Shared { fixture, held })
    }

    fn pairs(&self) -> Operation<'_> {
        Box::new(|| pairs(&self.fixture.leaves[1], PAGE))
    }

    fn hits(&self) -> (u64, u64) {
        let seen = self.fixture.leaves[1].stock();
        (seen.hits, seen.hits + seen.misses)
    }

    /// Takes a sample beside so many threads that wait for a byte more than there is.
    fn beside_waiters(&self, lab: &mut Lab<'_>, waiters: usize, both: &mut Both) -> Result<()> {
        let group = &self.fixture.leaves[0];
        std::thread::scope(|threads| {
            let wait = || group.charge_until(HELD + 1, Instant::now() + PATIENCE).is_err();
            let waiting: Vec<_> = (0..waiters).map(|_| threads.spawn(wait)).collect();
            // One that was not let wait ends at once, which the count below shows.
            let has_ended = || waiting.iter().any(|thread| thread.is_finished());
            spin_until(|| (group.waiters().now == waiters || has_ended()).then_some(()));
            let sampled = short_windows(lab, &self.pairs(), &spins());
            let left = group.waiters().now;
            // A thread that is between two looks at the limit is not in the list.
            while !waiting.iter().all(|thread| thread.is_finished()) {
                group.wake_waiters();
                std::thread::yield_now();
            }
            let woken = waiting.into_iter().filter_map(|thread| thread.join().ok()).filter(|&woken| woken);
            expect(
                "threads that waited throughout, and were woken",
                (left, woken.count()),
                (waiters, waiters),
            )?;
            both.beside.extend(sampled?);
            Ok(())
        })
    }
}

/// The median of some short windows, in which no thread was disturbed: neither thread waits for a lock here for long. None where no
/// window counted.
fn short_windows(
    lab: &mut Lab<'_>,
    innocent: &Operation<'_>,
    neighbour: &Operation<'_>,
) -> Result<Option<Window>> {
    let neighbours = AtomicU64::new(0);
    let work = |thread: usize, _: &mut usize, count: u64| {
        if thread > 0 {
            // ORDERING: Relaxed; a count, read when the windows are over.
            neighbours.fetch_add(neighbour()?, Ordering::Relaxed);
            return Ok(1);
        }
        let mut done = 0;
        while done < count {
            done += innocent()?;
        }
        Ok(done)
    };
    let plan = Plan { rounds: SHORT_WINDOWS, ..lab.effort.windows };
    let measured = lab.interleave_by(plan, &[Variant { work: &work, threads: 2, counted: 1 }])?;
    // ORDERING: Relaxed; the windows are over.
    let neighbours = neighbours.load(Ordering::Relaxed);
    Ok(median(measured[0].ns).map(|ns| Window { ns, done: 1, neighbours }))
}

fn shared(lab: &mut Lab<'_>) -> Result<()> {
    let shared = Shared::build(lab)?;
    let shape = Shape { parent_max: 2 * HELD, held: HELD, ..Shape::leaves(2) };
    let (cas, mutex) = (CasTree::build(shape)?, MutexTree::build(shape)?);
    let waiters = lab.pick(2, WAITERS, WAITERS);
    let names = [
        "an attacker asks for headroom + 1".to_owned(),
        "one waiter is parked at the parent".to_owned(),
        format!("{waiters} waiters are parked"),
        "CAS tree: headroom + 1".to_owned(),
        "mutex tree: headroom + 1".to_owned(),
    ];
    let mut found: [Both; 5] = Default::default();
    let mut hits = [(0, 0); 3];
    let (rounds, _) = effort(lab);
    lab.in_turns(rounds, found.len(), |lab, case| {
        let both = &mut found[case];
        let (innocent, attack): (Operation<'_>, Operation<'_>) = match case {
            3 => (last(controls(&cas)), Box::new(|| refused_by(&cas, 0, HELD + 1))),
            4 => (last(controls(&mutex)), Box::new(|| refused_by(&mutex, 0, HELD + 1))),
            _ => (shared.pairs(), Box::new(|| refused(&shared.fixture.leaves[0], HELD + 1))),
        };
        both.spinning.extend(short_windows(lab, &innocent, &spins())?);
        let before = shared.hits();
        match case {
            1 => shared.beside_waiters(lab, 1, both)?,
            2 => shared.beside_waiters(lab, waiters, both)?,
            _ => both.beside.extend(short_windows(lab, &innocent, &attack)?),
        }
        if let Some(sum) = hits.get_mut(case) {
            let now = shared.hits();
            *sum = (sum.0 + now.0 - before.0, sum.1 + now.1 - before.1);
        }
        Ok(())
    })?;
    let mut table = Table::new(
        "an innocent's pairs of 4 KiB below a parent with 64 MiB of headroom; ns",
        ["beside", "pair", "beside a spinning thread", "", "hits", "refusals"],
    );
    for (case, (name, both)) in names.iter().zip(&found).enumerate() {
        both.record(lab, name, "pair of 4 KiB");
        let [spinning, pair] = both.ns();
        let share = hits.get(case).and_then(|&(hits, of)| ratio(Some(hits as f64), Some(of as f64)));
        let refused = both.beside.iter().map(|window| window.neighbours).sum();
        let refusals = if case == 1 || case == 2 { dash() } else { count(refused) };
        let cells = [figure_or_dash(pair), figure_or_dash(spinning), times(ratio(pair, spinning))];
        table.row(name, cells.into_iter().chain([super::cases::percent(share), refusals]));
        let goal = [HEADROOM_MOST, WAITERS_MOST, WAITERS_MOST].get(case);
        if let Some(&most) = goal {
            lab.at_most(format!("an innocent's pair where {name}"), ratio(pair, spinning), most, "x");
        }
    }
    lab.at_most("an innocent's pair where 100,000 waiters are parked", None, WAITERS_MOST, "x");
    table.note(
        "medians of short windows in which no thread was disturbed. Beside waiters the other thread spins. 100,000 waiters are not measured: each would need a thread",
    );
    lab.print(&table)?;
    drop(shared.held);
    shared.fixture.check_empty()?;
    cas.end()?;
    mutex.end()
}

fn last(operations: [Operation<'_>; 3]) -> Operation<'_> {
    let [.., last] = operations;
    last
}
