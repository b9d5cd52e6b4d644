//! The time to register and remove a shrinker: beside nothing, beside others that walk, beside a callback that does not return.
//!
//! The control is the kernel's way before the seed: a read-write lock around the lists of all groups, held for reading over the callbacks of
//! one group and tried again for the next; held for writing by a thread that registers or removes. With it nothing could be measured beside
//! a callback that never returns. The control's callback returns after a while, and the figure is how long a registration waited for it.
//!
//! - I1. The measured calls are on the first worker's CPU, the walks are on the second's; a callback that blocks sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use memgroup::{Ask, Charge, Config, Count, GroupShrinker, Scan, Shrinker, ShrinkerConfig, SlotSource};

use super::srcu_wait_ms;
use crate::harness::prelude::*;

/// Groups below the parent, each with a shrinker that cannot tell its size.
const GROUPS: usize = 1_000;
/// The charge of each group, which a shrinker with a gate says it could give back.
const HELD_BYTES: u64 = 1 << 30;
/// How long the control's callback blocks.
const BLOCKED: Duration = Duration::from_millis(20);
/// Longer than any case lasts.
const FOR_EVER: Duration = Duration::from_secs(3600);
/// Calls for each wait until no callback runs: beside walks it may take as long as these have the CPU.
const CALLS_A_WAIT: usize = 10;
const OURS: &str = "shrinkers";
const CONTROL: &str = "read-write lock (control)";

/// The first callback that comes to it waits until it opens; those after it pass.
struct Gate {
    is_in: AtomicBool,
    is_open: AtomicBool,
    /// It opens by itself after so long.
    opens_after: Duration,
}

impl Gate {
    fn closed(opens_after: Duration) -> Arc<Gate> {
        Arc::new(Gate { is_in: AtomicBool::new(false), is_open: AtomicBool::new(false), opens_after })
    }

    fn pass(&self) {
        let begin = Instant::now();
        // ORDERING: Release; pairs with `was_entered`: a thread that finds it set knows that the call has begun.
        if self.is_in.swap(true, Ordering::Release) {
            return;
        }
        // ORDERING: Acquire; pairs with `open`.
        while !self.is_open.load(Ordering::Acquire) && begin.elapsed() < self.opens_after {
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    fn open(&self) {
        // ORDERING: Release; pairs with `pass`.
        self.is_open.store(true, Ordering::Release);
    }

    /// Whether a callback waits, or has waited.
    fn was_entered(&self) -> bool {
        // ORDERING: Acquire; pairs with `pass`.
        self.is_in.load(Ordering::Acquire)
    }
}

/// A shrinker that cannot tell its size; with a gate, it has plenty and waits there when it is asked for it.
struct Answer(Option<Arc<Gate>>);

impl Shrinker for Answer {
    fn count(&self, _token: u64) -> Count {
        if self.0.is_some() { Count::of(HELD_BYTES, 1) } else { Count::Unknown }
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        self.0.iter().for_each(|gate| gate.pass());
        Scan::Stopped { bytes: 0 }
    }
}

/// Shrinkers that are registered, removed and walked.
trait Registry: Sync + Sized {
    type Registered;

    /// Groups side by side, each with one shrinker that cannot tell its size.
    fn build(slots: SlotSource, groups: usize) -> Result<Self>;
    /// Registers one in a group, by number.
    fn register(&self, group: usize, shrinker: Answer) -> Result<Self::Registered>;
    /// Marks one; in the control every shrinker is marked.
    fn mark(&self, _: &Self::Registered) {}
    /// Removes it, and returns when no call of it runs.
    fn remove(&self, registered: Self::Registered) -> Result<()>;
    /// Calls all that are marked.
    fn walk(&self);
    /// Waits until no call runs that runs now.
    fn wait_for_calls(&self) -> Result<()>;
}

/// The engine. The shrinkers go before their groups.
struct Ours {
    shrinkers: Vec<GroupShrinker>,
    /// A shrinker is asked only for bytes that its group holds.
    _held: Vec<Charge>,
    fixture: Fixture,
}

impl Registry for Ours {
    type Registered = GroupShrinker;

    fn build(slots: SlotSource, groups: usize) -> Result<Ours> {
        let fixture = Fixture::flat(Config::with_slots(slots), groups)?;
        let held = fixture.leaves.iter().map(|group| group.try_charge(HELD_BYTES)).collect::<Result<_, _>>();
        let mut ours = Ours { shrinkers: Vec::new(), _held: held.set_up("a charge")?, fixture };
        let register = |group| ours.register(group, Answer(None)).inspect(GroupShrinker::mark);
        ours.shrinkers = (0..groups).map(register).collect::<Result<_>>()?;
        Ok(ours)
    }

    fn register(&self, group: usize, shrinker: Answer) -> Result<GroupShrinker> {
        let config = ShrinkerConfig::new(String::new());
        self.fixture.leaves[group].add_shrinker(config, shrinker).set_up("a shrinker")
    }

    fn mark(&self, registered: &GroupShrinker) {
        registered.mark();
    }

    fn remove(&self, registered: GroupShrinker) -> Result<()> {
        registered.remove().or_wrong("a removal")
    }

    fn walk(&self) {
        self.fixture.parent.reclaim(u64::MAX, None);
    }

    fn wait_for_calls(&self) -> Result<()> {
        self.fixture.hierarchy.wait_for_shrinkers(None).or_wrong("a wait for callbacks")
    }
}

/// The shrinkers of a group in the control, with their numbers.
type List = Vec<(u64, Box<Answer>)>;

/// The control: the lists of all groups, and a lock around them.
struct Locked {
    lists: RwLock<Vec<List>>,
    numbers: AtomicU64,
}

impl Locked {
    fn write(&self) -> RwLockWriteGuard<'_, Vec<List>> {
        self.lists.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry for Locked {
    type Registered = (usize, u64);

    fn build(_: SlotSource, groups: usize) -> Result<Locked> {
        let lists = (0..groups).map(|_| Vec::new()).collect();
        let locked = Locked { lists: RwLock::new(lists), numbers: AtomicU64::new(0) };
        for group in 0..groups {
            locked.register(group, Answer(None))?;
        }
        Ok(locked)
    }

    fn register(&self, group: usize, shrinker: Answer) -> Result<(usize, u64)> {
        // ORDERING: Relaxed; a number by itself.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let shrinker = Box::new(shrinker);
        self.write()[group].push((number, shrinker));
        Ok((group, number))
    }

    fn remove(&self, (group, number): (usize, u64)) -> Result<()> {
        let mut lists = self.write();
        let index = lists[group].iter().position(|listed| listed.0 == number);
        let removed = index.map(|index| lists[group].swap_remove(index));
        drop(lists);
        let not_there = || format!("shrinker {number} is not in the control's list of group {group}");
        ensure(removed.is_some(), not_there)
    }

    fn walk(&self) {
        let groups = self.lists.try_read().map_or(0, |lists| lists.len());
        for group in 0..groups {
            // The walk passes by a group when its lock is taken.
            let Ok(lists) = self.lists.try_read() else { continue };
            for (_, shrinker) in &lists[group] {
                let called: &dyn Shrinker = &**shrinker;
                if called.count(0) != Count::Unknown {
                    shrinker.0.iter().for_each(|gate| gate.pass());
                }
            }
        }
    }

    /// As the kernel's `synchronize_shrinkers`.
    fn wait_for_calls(&self) -> Result<()> {
        drop(self.write());
        Ok(())
    }
}

/// The disturbance beside the measured calls.
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

/// One case of one registry: the times of registering, removing and waiting.
struct Case {
    variant: &'static str,
    beside: Beside,
    times: [Blocks; 3],
}

impl Case {
    fn measure<R: Registry>(&mut self, lab: &Lab<'_>, registry: &R, calls: usize) -> Result<()> {
        let (stop, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
        let cpus = os::allowed_cpus()?;
        let (walks, gate) = match self.beside {
            Beside::Nothing => (0, None),
            Beside::Walks(walks) => (walks, None),
            Beside::Blocked(time) => (1, Some(Gate::closed(time))),
        };
        let blocked = gate.clone().map(|gate| registry.register(0, Answer(Some(gate)))).transpose()?;
        blocked.iter().for_each(|registered| registry.mark(registered));
        let block = std::thread::scope(|threads| {
            for _ in 0..walks {
                threads.spawn(|| {
                    // One that cannot be pinned runs anywhere, as a worker does, and the heading says so.
                    let _ = os::pin_to(cpus[1 % cpus.len()]);
                    // ORDERING: Relaxed; a number by itself.
                    begun.fetch_add(1, Ordering::Relaxed);
                    // ORDERING: Relaxed; the flag publishes nothing.
                    while !stop.load(Ordering::Relaxed) {
                        registry.walk();
                    }
                });
            }
            // ORDERING: Relaxed; as above.
            spin_until(|| (begun.load(Ordering::Relaxed) == walks).then_some(()));
            spin_until(|| gate.as_ref().is_none_or(|gate| gate.was_entered()).then_some(()));
            let (watch, waits) = (lab.clock.stopwatch(), gate.is_none());
            let block = lab.workers.run_one(|| block(registry, watch, calls, waits));
            // ORDERING: Relaxed; as above.
            stop.store(true, Ordering::Relaxed);
            gate.iter().for_each(|gate| gate.open());
            block
        });
        blocked.map_or(Ok(()), |registered| registry.remove(registered))?;
        for (times, block) in self.times.iter_mut().zip(block?) {
            times.push(block);
        }
        Ok(())
    }
}

/// Registers and removes so many, one after the other, in one group after the other; and waits now and then, unless a callback is on for ever.
fn block<R: Registry>(registry: &R, watch: Stopwatch, calls: usize, waits: bool) -> Result<[Vec<f64>; 3]> {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for call in 0..calls {
        let (ns, registered) = watch.time(|| registry.register(call % GROUPS, Answer(None)));
        times[0].push(ns);
        let registered = registered?;
        registry.mark(&registered);
        let (ns, removed) = watch.time(|| registry.remove(registered));
        times[1].push(ns);
        removed?;
        if waits && call.is_multiple_of(CALLS_A_WAIT) {
            let (ns, waited) = watch.time(|| registry.wait_for_calls());
            times[2].push(ns);
            waited?;
        }
    }
    Ok(times)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let ours = Ours::build(lab.slots, GROUPS)?;
    let control = Locked::build(lab.slots, GROUPS)?;
    let of =
        |(variant, blocked)| {
            [Beside::Nothing, Beside::Walks(1), Beside::Walks(4), Beside::Blocked(blocked)]
                .map(|beside| Case { variant, beside, times: Default::default() })
        };
    let mut cases: Vec<Case> = [(OURS, FOR_EVER), (CONTROL, BLOCKED)].into_iter().flat_map(of).collect();
    let (blocks, calls) = lab.pick((1, 5), (9, 500), (25, 2_000));
    lab.in_turns(blocks, cases.len(), |lab, index| {
        let case = &mut cases[index];
        match (case.variant, case.beside) {
            (OURS, _) => case.measure(lab, &ours, calls),
            // The first registration waits for the callback. After it there is nothing to wait for, not for a removal either.
            (_, Beside::Blocked(_)) => {
                case.measure(lab, &control, 1)?;
                case.times[1] = Blocks::default();
                Ok(())
            }
            // Threads of one CPU take turns by the tick, and each may have the lock when its turn ends.
            (_, Beside::Walks(2..)) => case.measure(lab, &control, calls.min(100)),
            _ => case.measure(lab, &control, calls),
        }
    })?;
    show(lab, &cases)?;
    add_goals(lab, &cases);
    Ok(())
}

fn show(lab: &mut Lab<'_>, cases: &[Case]) -> Result<()> {
    let title = format!("registering and removing a shrinker beside {GROUPS} others: us");
    let columns = ["meanwhile", "add p50", "p99", "max", "remove p50", "p99", "max", "wait p50", "p99"];
    let mut table = Table::new(title, columns);
    for Case { variant, beside, times } in cases {
        let mut cells = Vec::new();
        for (call, times) in ["register", "remove", "wait"].into_iter().zip(times) {
            let mut row = lab.record(*variant, json!({"meanwhile": beside.name(), "call": call}));
            row.value("max", "ns", times.max());
            cells.extend(row.blocks(times));
        }
        cells.pop();
        let lock = if *variant == OURS { "" } else { "lock: " };
        table.row(format!("{lock}{}", beside.name()), cells);
    }
    table.note(format!(
        "medians of the blocks' p50 and p99, and the largest of all. Removing is waiting too, until no call of the shrinker runs. Wait: until no call of any runs, as the kernel's synchronize_shrinkers. The control is a read-write lock around the lists of all groups. Its callback returns after {} ms, and a registration waits for that; blocked for ever is for ever. With SRCU each of the robot's unregistrations took {} ms longer",
        BLOCKED.as_millis(),
        figure(srcu_wait_ms())
    ));
    lab.print(&table)
}

fn add_goals(lab: &mut Lab<'_>, cases: &[Case]) {
    for (call, name) in ["registering", "removing"].into_iter().enumerate() {
        for (quantile, of) in [("p50", Blocks::p50 as fn(&Blocks) -> _), ("p99", Blocks::p99)] {
            let ns = |beside| {
                let case = cases.iter().find(|case| case.variant == OURS && case.beside == beside);
                median(of(&case?.times[call]))
            };
            let over = ratio(ns(Beside::Blocked(FOR_EVER)), ns(Beside::Nothing));
            let name = format!("{name} beside a callback blocked for ever over idle, {quantile}");
            lab.at_most(name, over, 2.0, "x");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls_and_drops<R: Registry>() {
        let registry = R::build(SlotSource::virtual_slots(2).unwrap(), 3).unwrap();
        let gate = Gate::closed(Duration::ZERO);
        let registered = registry.register(1, Answer(Some(Arc::clone(&gate)))).unwrap();
        registry.mark(&registered);
        registry.walk();
        assert!(gate.was_entered(), "a registered and marked shrinker is called");
        registry.remove(registered).unwrap();
        assert_eq!(Arc::strong_count(&gate), 1, "a removed shrinker is dropped");
        registry.walk();
    }

    #[test]
    fn calls_a_shrinker_while_it_is_registered() {
        calls_and_drops::<Ours>();
        calls_and_drops::<Locked>();
    }
}
