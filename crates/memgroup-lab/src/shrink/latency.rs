//! How long it takes to register and to remove a shrinker: beside nothing, beside a walk, beside a
//! callback that does not return (Hocko's mount that stalled behind a slow callback).
//!
//! - The lock is the kernel's way before the seed: a read-write lock around the lists of all
//!   groups, held for reading over the callbacks of one group, and for writing by a thread that
//!   registers or removes.
//! - SRCU is the seed's own way. Registering waits for nothing, but a removal waits for every
//!   walk's section that has begun. The test robot measured 3.05 ms for each, and the series was
//!   reverted.
//!
//! Beside a callback that never returns, neither control would ever end. Theirs return after 20 ms,
//! and the figure is how much of that a call waits.
//!
//! - I1. The measured calls are on the first worker's CPU, the walk is on the second's; a callback
//!   that blocks sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use memgroup::{Ask, Charge, Config, Count, GroupShrinker, Scan, Shrinker, ShrinkerConfig, SlotSource};

use super::{LOCK, OURS, SRCU, Srcu, srcu_wait_ms};
use crate::harness::prelude::*;

/// Groups below the parent, each with a shrinker that cannot tell its size.
const GROUPS: usize = 1_000;
/// The charge of each group, which a shrinker with a gate says it could give back.
const HELD_BYTES: u64 = 1 << 30;
/// How long the controls' callback blocks.
const BLOCKED: Duration = Duration::from_millis(20);
/// Longer than any case lasts.
const FOR_EVER: Duration = Duration::from_secs(3600);

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
        // ORDERING: Release; pairs with `was_entered`: a thread that finds it set knows that the call has
        // begun.
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

/// A shrinker that cannot tell its size. With a gate, it has plenty, and waits at the gate when it
/// is asked for some.
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

impl Answer {
    /// A control's call: it asks a shrinker that has something.
    fn call(&self) {
        let called: &dyn Shrinker = self;
        if called.count(0) != Count::Unknown {
            self.0.iter().for_each(|gate| gate.pass());
        }
    }
}

/// Shrinkers that are registered, removed and walked.
trait Registry: Sync {
    type Registered;

    /// Registers one in a group, by number.
    fn register(&self, group: usize, shrinker: Answer) -> Result<Self::Registered>;
    /// Marks one; in the controls every shrinker is marked.
    fn mark(&self, _: &Self::Registered) {}
    /// Removes it, and returns when no call of it runs.
    fn remove(&self, registered: Self::Registered) -> Result<()>;
    /// Calls all that are marked, on the one thread that walks.
    fn walk(&self);
}

/// The engine. The shrinkers are dropped before their groups.
struct Ours {
    shrinkers: Vec<GroupShrinker>,
    /// A shrinker is asked only for bytes that its group holds.
    _held: Vec<Charge>,
    fixture: Fixture,
}

impl Ours {
    /// Groups side by side, each with one shrinker that cannot tell its size.
    fn new(slots: SlotSource, groups: usize) -> Result<Ours> {
        let fixture = Fixture::flat(Config::with_slots(slots), groups)?;
        let held = fixture.leaves.iter().map(|group| group.try_charge(HELD_BYTES)).collect::<Result<_, _>>();
        let mut ours = Ours { shrinkers: Vec::new(), _held: held.set_up("a charge")?, fixture };
        let register = |group| ours.register(group, Answer(None)).inspect(GroupShrinker::mark);
        ours.shrinkers = (0..groups).map(register).collect::<Result<_>>()?;
        Ok(ours)
    }
}

impl Registry for Ours {
    type Registered = GroupShrinker;

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
}

/// The shrinkers of a group in a control, with their numbers.
type List = Mutex<Vec<(u64, Arc<Answer>)>>;

/// Both controls: a list for each group, walked under the lock of all or in read sections.
struct Control {
    /// The lock of all lists; SRCU has none.
    all: Option<RwLock<()>>,
    srcu: Srcu,
    lists: Vec<List>,
    numbers: AtomicU64,
}

impl Control {
    fn new(has_lock: bool, groups: usize) -> Result<Control> {
        let control = Control {
            all: has_lock.then(RwLock::default),
            srcu: Srcu::new(1),
            lists: (0..groups).map(|_| Mutex::default()).collect(),
            numbers: AtomicU64::new(0),
        };
        (0..groups).try_for_each(|group| control.register(group, Answer(None)).map(drop))?;
        Ok(control)
    }

    fn write(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.all.as_ref().map(|all| all.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn call_all(&self, list: &List) {
        // The kernel reads its list in place. A copy stands for that, because the lists here are not RCU's.
        let list = lock(list).clone();
        list.iter().for_each(|listed| listed.1.call());
    }
}

impl Registry for Control {
    type Registered = (usize, u64);

    fn register(&self, group: usize, shrinker: Answer) -> Result<(usize, u64)> {
        let shrinker = Arc::new(shrinker);
        // ORDERING: Relaxed; a number by itself.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let _all = self.write();
        lock(&self.lists[group]).push((number, shrinker));
        Ok((group, number))
    }

    fn remove(&self, (group, number): (usize, u64)) -> Result<()> {
        let all = self.write();
        let mut list = lock(&self.lists[group]);
        let index = list.iter().position(|listed| listed.0 == number);
        let removed = index.map(|index| list.swap_remove(index)).ok_or("not there").or_wrong("a control")?;
        drop(list);
        if all.is_none() {
            self.srcu.synchronize();
        }
        drop(removed);
        Ok(())
    }

    fn walk(&self) {
        for list in &self.lists {
            match &self.all {
                None => self.srcu.section(0, || self.call_all(list)),
                // The walk passes by a group when its lock is taken.
                Some(all) => _ = all.try_read().map(|_held| self.call_all(list)),
            }
        }
    }
}

/// What goes on beside the measured calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// A thread walks all the time.
    Walk,
    /// A callback blocks for so long.
    Blocked(Duration),
}

impl Beside {
    fn name(self) -> String {
        match self {
            Beside::Nothing => "nothing else".to_owned(),
            Beside::Walk => "a walk".to_owned(),
            Beside::Blocked(FOR_EVER) => "a call that never returns".to_owned(),
            Beside::Blocked(time) => format!("a call of {} ms", time.as_millis()),
        }
    }
}

/// One case of one registry: the times of registering and of removing.
struct Case {
    variant: &'static str,
    beside: Beside,
    times: [Blocks; 2],
}

impl Case {
    fn measure<R: Registry>(&mut self, lab: &Lab<'_>, registry: &R, calls: usize) -> Result<()> {
        let (stop, begun, cpus) = (AtomicBool::new(false), AtomicBool::new(false), os::allowed_cpus()?);
        let gate = match self.beside {
            Beside::Blocked(time) => Some(Gate::closed(time)),
            _ => None,
        };
        let blocked = gate.clone().map(|gate| registry.register(0, Answer(Some(gate)))).transpose()?;
        blocked.iter().for_each(|registered| registry.mark(registered));
        let block = std::thread::scope(|threads| {
            let walk = || {
                // A thread that cannot be pinned runs anywhere, as a worker does, and the heading says so.
                let _ = os::pin_to(cpus[1 % cpus.len()]);
                // ORDERING: Relaxed, both; the flags alone are handed over.
                begun.store(true, Ordering::Relaxed);
                while !stop.load(Ordering::Relaxed) {
                    registry.walk();
                }
            };
            if self.beside != Beside::Nothing {
                threads.spawn(walk);
                // ORDERING: Relaxed; as above.
                spin_until(|| begun.load(Ordering::Relaxed).then_some(()));
            }
            spin_until(|| gate.as_ref().is_none_or(|gate| gate.was_entered()).then_some(()));
            let watch = lab.clock.stopwatch();
            let block = lab.workers.run_one(|| block(registry, watch, calls));
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

/// Registers and removes so many, one after the other, in one group after the other.
fn block<R: Registry>(registry: &R, watch: Stopwatch, calls: usize) -> Result<[Vec<f64>; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    for call in 0..calls {
        let (ns, registered) = watch.time(|| registry.register(call % GROUPS, Answer(None)));
        times[0].push(ns);
        let registered = registered?;
        registry.mark(&registered);
        let (ns, removed) = watch.time(|| registry.remove(registered));
        times[1].push(ns);
        removed?;
    }
    Ok(times)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let ours = Ours::new(lab.slots, GROUPS)?;
    let (locked, sections) = (Control::new(true, GROUPS)?, Control::new(false, GROUPS)?);
    let of = |(variant, blocked)| {
        [Beside::Nothing, Beside::Walk, Beside::Blocked(blocked)].map(|beside| Case {
            variant,
            beside,
            times: Default::default(),
        })
    };
    let variants = [(OURS, FOR_EVER), (LOCK, BLOCKED), (SRCU, BLOCKED)];
    let mut cases: Vec<Case> = variants.into_iter().flat_map(of).collect();
    let (blocks, calls) = lab.pick((1, 5), (9, 500), (25, 2_000));
    lab.in_turns(blocks, cases.len(), |lab, index| {
        let case = &mut cases[index];
        // The first call waits for the controls' callback; after it there is nothing to wait for.
        let calls = if case.beside == Beside::Blocked(BLOCKED) { 1 } else { calls };
        match case.variant {
            OURS => case.measure(lab, &ours, calls),
            LOCK => case.measure(lab, &locked, calls),
            _ => case.measure(lab, &sections, calls),
        }
    })?;
    // The registration has waited for the lock, so the removal after it has nothing to wait for.
    cases
        .iter_mut()
        .filter(|case| (case.variant, case.beside) == (LOCK, Beside::Blocked(BLOCKED)))
        .for_each(|case| case.times[1] = Blocks::default());
    show(lab, &cases)?;
    for (call, name) in ["registering", "removing"].into_iter().enumerate() {
        for (quantile, of) in [("p50", Blocks::p50 as fn(&Blocks) -> _), ("p99", Blocks::p99)] {
            let ns = |index: usize| median(of(&cases[index].times[call]));
            let name = format!("{name} beside a call that never returns, over nothing, {quantile}");
            lab.at_most(name, ratio(ns(2), ns(0)), 2.0, "x");
        }
    }
    Ok(())
}

fn show(lab: &mut Lab<'_>, cases: &[Case]) -> Result<()> {
    let title = format!("registering and removing a shrinker beside {GROUPS} others: us");
    let columns = ["beside", "register: p50", "p99", "max", "remove: p50", "p99", "max"];
    let mut table = Table::new(title, columns);
    for Case { variant, beside, times } in cases {
        let mut cells = Vec::new();
        for (call, times) in ["register", "remove"].into_iter().zip(times) {
            let mut row = lab.record(*variant, json!({"beside": beside.name(), "call": call}));
            row.value("max", "ns", times.max());
            cells.extend(row.blocks(times));
        }
        table.row(format!("{}: {}", variant.trim_end_matches(" (control)"), beside.name()), cells);
    }
    table.note(format!(
        "medians of the blocks' p50 and p99, and the largest of all. A removal also waits until no call of the shrinker runs. The lock and SRCU are the controls; their call returns after {} ms, ours never. The kernel's SRCU batches its waits: the robot's unregistrations took {} ms longer each, computed from its figures",
        BLOCKED.as_millis(),
        figure(srcu_wait_ms())
    ));
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls_and_drops(registry: &impl Registry) {
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
        calls_and_drops(&Ours::new(SlotSource::virtual_slots(2).unwrap(), 3).unwrap());
        calls_and_drops(&Control::new(true, 3).unwrap());
        calls_and_drops(&Control::new(false, 3).unwrap());
    }

    #[test]
    fn passes_by_all_groups_while_the_lock_is_taken() {
        let (control, gate) = (Control::new(true, 3).unwrap(), Gate::closed(Duration::ZERO));
        control.register(1, Answer(Some(Arc::clone(&gate)))).unwrap();
        let held = control.write();
        control.walk();
        assert!(!gate.was_entered());
        drop(held);
        control.walk();
        assert!(gate.was_entered());
    }
}
