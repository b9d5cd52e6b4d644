//! The groups whose statistics are kept and read, and the threads that keep them changing.
//!
//! - I1. When a storm is over, the statistics of the parent are what its threads have counted themselves.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memgroup::stats::{cpu, io, memory};
use memgroup::{Config, Freshness, Group, Hierarchy, Reach, SlotSource, Stat, Statistics, Subsystem, scope};
use memgroup_percpu::pin_virtual;

use crate::harness::clock;
use crate::harness::tree::child;
use crate::{Error, Trees};

/// What the children's threads change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Churn {
    /// Memory and io storm; else the threads compute.
    pub(super) storm: bool,
    /// How often each thread has time counted: as a scheduler's tick, or at every step.
    pub(super) tick: Option<Duration>,
}

/// A hierarchy with a parent of many children.
pub(super) struct House {
    pub(super) parent: Group,
    children: Vec<Group>,
    pub(super) memory: Statistics,
    pub(super) cpu: Statistics,
    pub(super) io: Statistics,
    /// A user's subsystem.
    pub(super) own: Statistics,
    source: SlotSource,
    /// What the threads have counted so far.
    counted: Mutex<Counted>,
    /// Ticks of the clock that a step of a storm takes by itself; a step that computes takes as long.
    step_ticks: AtomicU64,
    /// Steps of the children's threads so far, in whole turns.
    steps: AtomicU64,
}

const OWN: Subsystem = Subsystem {
    name: "own",
    stats: &[Stat::count("hits"), Stat::count("misses"), Stat::gauge("held"), Stat::time("build_usec")],
};

/// Steps before a thread gives the CPU to the next, and looks at the clock. So many that the time in which threads change, and nothing else
/// does, is little: the letter's processes ran side by side.
const STEPS: u32 = 1024;
const PAGE: i64 = 4096;

impl House {
    pub(super) fn build(trees: Trees, source: SlotSource, children: usize) -> Result<House, Error> {
        let config = Config::with_slots(source)
            .separate_trees(trees == Trees::Separate)
            .groups_max(children as u32 + 8)
            .depth_max(4);
        let hierarchy = Hierarchy::new(config).map_err(|why| Error::setup("the hierarchy", why))?;
        let parent = child(&hierarchy.root(), "parent")?;
        let children =
            (0..children).map(|n| child(&parent, &format!("child{n}"))).collect::<Result<Vec<_>, _>>()?;
        let (memory, cpu, io) = (hierarchy.memory(), hierarchy.cpu(), hierarchy.io());
        let own = hierarchy.register(OWN).map_err(|why| Error::setup("the user's subsystem", why))?;
        Ok(House {
            parent,
            children,
            memory,
            cpu,
            io,
            own,
            source,
            counted: Mutex::default(),
            step_ticks: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        })
    }

    /// Steps that the children's threads have made so far.
    pub(super) fn steps(&self) -> u64 {
        // ORDERING: Relaxed; a figure for reports.
        self.steps.load(Ordering::Relaxed)
    }

    /// Times the storm's steps with nobody else about, so that those who only compute can take as long.
    pub(super) fn pace(this: &Arc<House>, crew: &crate::harness::crew::Crew) -> Result<(), Error> {
        const TIMED: u64 = 20_000;
        let house = Arc::clone(this);
        let counted = crew.run(1, move |_| {
            let mut counted = Counted::default();
            let begin = clock::now();
            for _ in 0..TIMED {
                house.storm(&house.children[0], &mut counted)?;
            }
            // ORDERING: Relaxed; read by threads that are started later.
            house.step_ticks.store((clock::now() - begin) / TIMED, Ordering::Relaxed);
            Ok::<_, Error>(counted)
        });
        counted.into_iter().try_for_each(|counted| this.check(counted?))
    }

    /// Runs `job` on this thread while each child has a thread on this thread's CPU, or where it was started, that churns.
    pub(super) fn during<T>(
        this: &Arc<House>,
        crew: &crate::harness::crew::Crew,
        churn: Churn,
        job: impl Fn(&House) -> T + Send + Sync + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
    {
        let (ready, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let house = Arc::clone(this);
        let mut parts = crew.run(2, move |thread| {
            if thread == 1 {
                return Part::Churned(house.churn(churn, &ready, &done));
            }
            // ORDERING: Acquire, as the Release of each thread: all have begun.
            while ready.load(Ordering::Acquire) < house.children.len() {
                std::thread::yield_now();
            }
            let found = job(&house);
            // ORDERING: Release; the flag alone is handed over.
            done.store(true, Ordering::Release);
            Part::Found(found)
        });
        let (churned, found) = (parts.remove(1), parts.remove(0));
        match (found, churned) {
            (Part::Found(found), Part::Churned(counted)) => {
                this.check(counted?)?;
                Ok(found)
            }
            _ => Err(Error::Wrong("a job of two threads ran on one".to_owned())),
        }
    }

    /// One thread for each child, all on the CPU of the thread that calls; what they counted in all.
    fn churn(&self, churn: Churn, ready: &AtomicUsize, done: &AtomicBool) -> Result<Counted, Error> {
        std::thread::scope(|threads| {
            let spawned: Result<Vec<_>, _> = (0..self.children.len())
                .map(|index| {
                    std::thread::Builder::new()
                        .spawn_scoped(threads, move || self.churn_child(index, churn, ready, done))
                })
                .collect();
            let spawned = spawned.map_err(|source| {
                // ORDERING: Release, as above; those that were started end.
                done.store(true, Ordering::Release);
                // The reader waits for all of them.
                ready.fetch_add(self.children.len(), Ordering::Release);
                Error::System { what: "start the children's threads".to_owned(), source }
            })?;
            let mut sum = Counted::default();
            for thread in spawned {
                let one =
                    thread.join().map_err(|_| Error::Wrong("a child's thread panicked".to_owned()))??;
                sum.add(one);
            }
            Ok(sum)
        })
    }

    /// A child's thread: storms or computes, gives the CPU to the next, and has its time counted now and then.
    fn churn_child(
        &self,
        index: usize,
        churn: Churn,
        ready: &AtomicUsize,
        done: &AtomicBool,
    ) -> Result<Counted, Error> {
        let group = &self.children[index];
        // A slot of its own, as the letter's processes had CPUs of their own.
        let _pin = (self.source.name() == "virtual").then(|| pin_virtual(index % self.source.slots()));
        // ORDERING: Relaxed; written before the threads were started.
        let step_ticks = self.step_ticks.load(Ordering::Relaxed);
        let mut counted = Counted::default();
        // One after the other, as the ticks of CPUs are.
        let first = |tick: Duration| tick * index as u32 / self.children.len() as u32;
        let mut next_tick = Instant::now() + churn.tick.map_or(Duration::ZERO, first);
        // ORDERING: Release; pairs with the Acquire of the reader.
        ready.fetch_add(1, Ordering::Release);
        // ORDERING: Acquire, as the Release of whoever ends it.
        while !done.load(Ordering::Acquire) {
            for _ in 0..STEPS {
                if churn.storm {
                    self.storm(group, &mut counted)?;
                } else {
                    compute(step_ticks);
                }
                if churn.tick.is_none() {
                    drop(scope::enter(group));
                    counted.ticks += 1;
                }
            }
            // ORDERING: Relaxed; a figure for reports.
            self.steps.fetch_add(u64::from(STEPS), Ordering::Relaxed);
            if let Some(tick) = churn.tick
                && Instant::now() >= next_tick
            {
                drop(scope::enter(group));
                counted.ticks += 1;
                next_tick = Instant::now() + tick;
            }
            std::thread::yield_now();
        }
        Ok(counted)
    }

    /// A page is charged, cached and read, then dropped.
    fn storm(&self, group: &Group, counted: &mut Counted) -> Result<(), Error> {
        let charge = group
            .try_charge(PAGE as u64)
            .map_err(|why| Error::Wrong(format!("a charge without a limit was refused: {why}")))?;
        self.memory.add(group, memory::FILE, PAGE);
        self.memory.add(group, memory::STATEMENTS, 64);
        self.io.add(group, io::RBYTES, PAGE);
        self.io.add(group, io::RIOS, 1);
        self.io.add(group, io::WBYTES, 512);
        self.io.add(group, io::WIOS, 1);
        self.own.add(group, 0, 1);
        self.memory.add(group, memory::STATEMENTS, -64);
        self.memory.add(group, memory::FILE, -PAGE);
        drop(charge);
        counted.charges += 1;
        counted.bytes_read += PAGE;
        Ok(())
    }

    /// The parent's statistics are what was counted (I1).
    fn check(&self, more: Counted) -> Result<(), Error> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.add(more);
        let get = |of: &Statistics, stat| of.get(&self.parent, stat, Reach::Subtree, Freshness::Fresh);
        let found = [
            get(&self.memory, memory::CHARGES),
            get(&self.memory, memory::FILE),
            get(&self.io, io::RBYTES),
            get(&self.own, 0),
            get(&self.cpu, cpu::NR_SCOPES),
        ];
        let right = [counted.charges, 0, counted.bytes_read, counted.charges, counted.ticks];
        if found == right {
            Ok(())
        } else {
            Err(Error::Wrong(format!(
                "charges, cached bytes, bytes read, the user's hits and scopes are {found:?} in the parent's statistics, {right:?} were counted"
            )))
        }
    }
}

/// Computes for so many ticks.
fn compute(ticks: u64) {
    let begin = clock::now();
    while clock::now() - begin < ticks {
        std::hint::spin_loop();
    }
}

enum Part<T> {
    Found(T),
    Churned(Result<Counted, Error>),
}

/// What the children's threads did.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    charges: i64,
    bytes_read: i64,
    /// Times that a child's time was counted.
    ticks: i64,
}

impl Counted {
    fn add(&mut self, more: Counted) {
        self.charges += more.charges;
        self.bytes_read += more.bytes_read;
        self.ticks += more.ticks;
    }
}
