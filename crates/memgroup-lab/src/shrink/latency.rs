//! How long it takes to register and to remove a shrinker: beside nothing, beside a walk, beside a
//! callback that does not return (Hocko's mount that stalled behind a slow callback).
//!
//! - The lock is the kernel's way before the seed ([`Kernel`]): a read-write lock around the lists
//!   of all groups, held for reading over the callbacks of one group, and for writing by a thread
//!   that registers or removes.
//! - SRCU is the seed's own way. Registering waits for nothing, but a removal waits for every
//!   walk's section that has begun. The test robot measured 3.05 ms for each, and the series was
//!   reverted.
//!
//! Beside a callback that never returns, neither control would ever end. Theirs return after 20 ms,
//! and the figure is how much of that a call waits.
//!
//! - I1. The measured calls are on the first worker's CPU, the walk is on the second's; a callback
//!   that blocks sleeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{Ask, Charge, Count, Scan, Shrinker, SlotSource};

use super::groups::{Groups, Kernel, Registered, Srcu};
use super::{LOCK, OURS, SRCU, srcu_wait_ms};
use crate::harness::prelude::*;

/// Groups below the parent, each with a shrinker that cannot tell its size.
const GROUPS: usize = 1_000;
/// The charge of each group, which a shrinker with a gate says it could give back.
const HELD_BYTES: u64 = 1 << 30;
/// How long the controls' callback blocks.
const BLOCKED: Duration = Duration::from_millis(20);
/// Longer than any case lasts.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// The first callback that comes to it waits until the sender is dropped or the time is over.
/// Later callbacks pass.
struct Gate {
    is_in: AtomicBool,
    opened: Mutex<Receiver<()>>,
    opens_after: Duration,
}

impl Gate {
    fn closed(opens_after: Duration) -> (Sender<()>, Arc<Gate>) {
        let (open, opened) = channel();
        (open, Arc::new(Gate { is_in: AtomicBool::new(false), opened: Mutex::new(opened), opens_after }))
    }

    fn pass(&self) {
        // ORDERING: Release; pairs with `was_entered`: a thread that finds it set knows that the
        // call has begun.
        if !self.is_in.swap(true, Ordering::Release) {
            let _ = lock(&self.opened).recv_timeout(self.opens_after);
        }
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

/// What goes on beside the measured calls: nothing, a thread that walks all the time, or one whose
/// callback blocks at the gate.
const BESIDE: [&str; 3] = ["nothing else", "a walk", "a blocked call"];

/// Registers and removes shrinkers, one group after the other, beside what [`BESIDE`] says. Returns
/// the nanoseconds of each registration and of each removal.
fn measure(
    lab: &Lab<'_>,
    all: &Groups<Answer>,
    beside: usize,
    opens_after: Duration,
    calls: usize,
) -> Result<[Vec<f64>; 2]> {
    let register = |group, gate| {
        let registered = all.register(group, &Arc::new(Answer(gate)));
        registered.inspect(Registered::mark)
    };
    let (open, gate) = (beside == 2).then(|| Gate::closed(opens_after)).unzip();
    let open = Mutex::new(open);
    let blocked = gate.clone().map(|gate| register(0, Some(gate))).transpose()?;
    let watch = lab.clock.stopwatch();
    let job = || {
        spin_until(|| gate.as_ref().is_none_or(|gate| gate.was_entered()).then_some(()));
        let mut times = [Vec::new(), Vec::new()];
        let done = (0..calls).try_for_each(|call| {
            let answer = Arc::new(Answer(None));
            let (ns, registered) = watch.time(|| all.register(call % GROUPS, &answer));
            times[0].push(ns);
            let registered = registered?;
            registered.mark();
            let (ns, removed) = watch.time(|| all.remove(registered));
            times[1].push(ns);
            removed
        });
        drop(lock(&open).take());
        done.map(|()| times)
    };
    let walks = |shift: &Shift| {
        shift.begin(1);
        while shift.lasts() {
            walk(all);
        }
        Ok(())
    };
    let times = if beside == 0 {
        lab.workers.run_one(job)
    } else {
        lab.workers.beside(1, job, walks).map(|done| done.0)
    };
    blocked.map_or(Ok(()), |blocked| all.remove(blocked))?;
    times
}

/// Calls all marked shrinkers, on the one thread that walks.
fn walk(all: &Groups<Answer>) {
    match &all.kernel {
        None => _ = all.parent.reclaim(u64::MAX, None),
        Some(kernel) => (0..all.groups.len()).for_each(|group| _ = kernel.visit(group, Answer::call)),
    }
}

/// Groups side by side, each with one shrinker that cannot tell its size; and their charges,
/// because a shrinker is asked only for bytes that its group holds.
fn build(
    slots: SlotSource,
    groups: usize,
    kernel: Option<Kernel<Answer>>,
) -> Result<(Vec<Registered>, Vec<Charge>, Groups<Answer>)> {
    let all = Groups::build(slots, kernel, groups, None)?;
    let held = all.groups.iter().map(|group| group.try_charge(HELD_BYTES)).collect::<Result<_, _>>();
    let registered = (0..groups).map(|group| all.register(group, &Arc::new(Answer(None))));
    let registered = registered.collect::<Result<Vec<_>>>()?;
    registered.iter().for_each(Registered::mark);
    Ok((registered, held.set_up("a charge")?, all))
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let [lock, srcu] = [None, Some(Srcu::new(1))].map(|srcu| Some(Kernel::new(GROUPS, srcu)));
    let variants = [
        (OURS, "a call that never returns", FOR_EVER, None),
        (LOCK, "a call of 20 ms", BLOCKED, lock),
        (SRCU, "a call of 20 ms", BLOCKED, srcu),
    ];
    let built = variants.map(|(variant, blocked, opens_after, kernel)| {
        build(lab.slots, GROUPS, kernel).map(|built| (variant, blocked, opens_after, built))
    });
    let built = built.into_iter().collect::<Result<Vec<_>>>()?;
    let (blocks, calls) = lab.pick((1, 5), (9, 500), (25, 2_000));
    let found = lab.sample(blocks, 3 * BESIDE.len(), |lab, index, found| {
        let ((variant, _, opens_after, (.., all)), beside) = (&built[index / 3], index % 3);
        let is_blocked_control = beside == 2 && *variant != OURS;
        // The first call waits for the controls' callback; after it there is nothing to wait for.
        let calls = if is_blocked_control { 1 } else { calls };
        let [registrations, removals] = measure(lab, all, beside, *opens_after, calls)?;
        found.block("register", registrations, 1e3);
        // Where a registration has waited for the lock, the removal after it has nothing to wait
        // for.
        if !(is_blocked_control && *variant == LOCK) {
            found.block("remove", removals, 1e3);
        }
        Ok(())
    })?;
    let columns = ["register p50", "register p99", "register max", "remove p50", "remove p99", "remove max"];
    let rows = found.iter().enumerate().map(|(index, found)| {
        let (variant, blocked, ..) = built[index / 3];
        let beside = [BESIDE[0], BESIDE[1], blocked][index % 3];
        let name = format!("{}: {beside}", variant.trim_end_matches(" (control)"));
        (name, variant, json!({"beside": beside}), found)
    });
    let note = format!(
        "medians of the blocks' p50 and p99, and the largest of all. A removal also waits until no call of the shrinker runs. The lock and SRCU are the controls; their call returns after {} ms, ours never. The kernel's SRCU batches its waits: the robot's unregistrations took {} ms longer each, computed from its figures",
        BLOCKED.as_millis(),
        figure(srcu_wait_ms())
    );
    let title = format!("registering and removing a shrinker beside {GROUPS} others");
    lab.show(title, &columns.map(|metric| (metric, "us")), rows, note)?;
    for (call, name) in [("register", "registering"), ("remove", "removing")] {
        for of in ["p50", "p99"] {
            let over = found[2].over(&found[0], &format!("{call} {of}"));
            lab.at_most(
                format!("{name} beside a call that never returns, over nothing, {of}"),
                over,
                2.0,
                "x",
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_a_shrinker_while_it_is_registered() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        for kernel in [None, Some(Kernel::new(3, None)), Some(Kernel::new(3, Some(Srcu::new(1))))] {
            let (_registered, _held, all) = build(slots, 3, kernel).unwrap();
            let (_open, gate) = Gate::closed(Duration::ZERO);
            let registered = all.register(1, &Arc::new(Answer(Some(Arc::clone(&gate))))).unwrap();
            registered.mark();
            walk(&all);
            assert!(gate.was_entered(), "a registered and marked shrinker is called");
            all.remove(registered).unwrap();
            assert_eq!(Arc::strong_count(&gate), 1, "a removed shrinker is dropped");
            walk(&all);
        }
    }
}
