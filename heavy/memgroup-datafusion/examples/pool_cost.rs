//! A growth of 1 MiB and its shrinkage, with DataFusion's pools and with a pool of a group three
//! levels deep.
//!
//! `cargo run --release -p memgroup-datafusion --example pool_cost`. The figures are nanoseconds of
//! a pair of `try_grow` and `shrink` of a `MemoryReservation`. They contain the reservation's own
//! two atomic operations and its two calls of the pool: the row `no pool` has these alone. The row
//! `the group alone` is a charge and an uncharge without DataFusion, and has no consumer. Up to
//! four threads count the bytes of a consumer by stores, and all others by atomic additions. In the
//! row `GroupPool, 5th thread` four others have grown each consumer first.
//!
//! Each thread has a consumer of its own, which holds 8 MiB. Nothing is refused, and `GroupPool`
//! tracks its consumers as `TrackConsumersPool` does. With two threads, each one makes pairs before
//! and after those that are timed, until both have timed theirs. A round in which a thread waited
//! for a CPU for more than a fiftieth of its time is left out. The pools take turns, and the
//! figures are medians of the rounds.

use std::fmt;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use datafusion::common::Result;
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation, TrackConsumersPool,
};
use memgroup::{Config, Effort, Group, Hierarchy};
use memgroup_datafusion::GroupPool;

const BYTES: usize = 1 << 20;
const LIMIT: usize = 64 << 30;
const PAIRS: u32 = 2_000_000;
const CHUNK: u32 = 1000;
const ROUNDS: usize = 15;
const CASES: [(usize, bool); 4] = [(1, false), (2, false), (1, true), (2, true)];

/// A pool that does nothing.
#[derive(Debug)]
struct NoPool;

impl fmt::Display for NoPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("none")
    }
}

impl MemoryPool for NoPool {
    fn name(&self) -> &str {
        "none"
    }

    fn grow(&self, _: &MemoryReservation, _: usize) {}

    fn shrink(&self, _: &MemoryReservation, _: usize) {}

    fn try_grow(&self, _: &MemoryReservation, _: usize) -> Result<()> {
        Ok(())
    }

    fn reserved(&self) -> usize {
        0
    }
}

/// The maker of the pairs.
enum Row {
    /// With consumers that this many other threads grew first.
    Pool(Arc<dyn MemoryPool>, usize),
    Group(Group),
}

/// A consumer that holds some bytes, which `others` threads grew first, and a pair of its
/// reservation.
fn consumer(pool: &Arc<dyn MemoryPool>, can_spill: bool, others: usize) -> impl Fn() + use<> {
    // One consumer at a time: the threads that grow it first have numbers in a row, and so all of
    // its counts.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().expect("no thread panics with it");
    let reservation = MemoryConsumer::new("consumer").with_can_spill(can_spill).register(pool);
    for _ in 0..others {
        thread::scope(|scope| _ = scope.spawn(|| reservation.grow(BYTES)));
    }
    reservation.grow((8 - others) * BYTES);
    move || {
        reservation.try_grow(black_box(BYTES)).expect("nothing is refused");
        reservation.shrink(black_box(BYTES));
    }
}

impl Row {
    fn nanos(&self, threads: usize, can_spill: bool) -> Option<f64> {
        match self {
            Row::Pool(pool, others) => nanos(threads, || consumer(pool, can_spill, *others)),
            Row::Group(group) => nanos(threads, || {
                || drop(group.try_charge_by(black_box(BYTES as u64), Effort::Count).expect("as above"))
            }),
        }
    }
}

/// Nanoseconds that this thread waited for a CPU so far; 0 where the system does not tell.
fn waited() -> f64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    times.split(' ').nth(1).and_then(|waited| waited.parse().ok()).unwrap_or(0.0)
}

/// Nanoseconds of a pair of one thread, while the others make them too. `None` if a thread waited
/// for a CPU.
fn nanos<P: Fn()>(threads: usize, start: impl Fn() -> P + Sync) -> Option<f64> {
    let (started, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let one = || {
        let pair = start();
        let chunk = || (0..CHUNK).for_each(|_| pair());
        let until_all = |count: &AtomicUsize| {
            // ORDERING: Relaxed, both; a number by itself.
            count.fetch_add(1, Ordering::Relaxed);
            while count.load(Ordering::Relaxed) < threads {
                chunk();
            }
        };
        until_all(&started);
        let (before, begin) = (waited(), Instant::now());
        (0..PAIRS / CHUNK).for_each(|_| chunk());
        let (took, waited) = (begin.elapsed().as_nanos() as f64, waited() - before);
        until_all(&ended);
        (waited < took / 50.0).then_some(took / f64::from(PAIRS))
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let times = running.into_iter().map(|thread| thread.join().expect("the thread ends"));
        times.sum::<Option<f64>>().map(|sum| sum / threads as f64)
    })
}

fn main() {
    let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
    let tenant = hierarchy.create("/tenant").expect("a group");
    tenant.set_max(LIMIT as u64).expect("a limit");
    let query = tenant.create("query").expect("a group");
    let named = NonZeroUsize::new(5).expect("not zero");
    let built_in: [(&str, Arc<dyn MemoryPool>); 4] = [
        ("GreedyMemoryPool", Arc::new(GreedyMemoryPool::new(LIMIT))),
        ("FairSpillPool", Arc::new(FairSpillPool::new(LIMIT))),
        ("TrackConsumers, Greedy", Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(LIMIT), named))),
        ("TrackConsumers, FairSpill", Arc::new(TrackConsumersPool::new(FairSpillPool::new(LIMIT), named))),
    ];
    let pool = Arc::new(GroupPool::new(&hierarchy, &query));
    let mut rows = vec![("GroupPool", Row::Pool(pool.clone(), 0))];
    rows.extend(built_in.map(|(name, pool)| (name, Row::Pool(pool, 0))));
    rows.push(("GroupPool, 5th thread", Row::Pool(pool, 4)));
    rows.push(("no pool", Row::Pool(Arc::new(NoPool), 0)));
    rows.push(("the group alone", Row::Group(query)));

    let mut times = vec![[const { Vec::new() }; CASES.len()]; rows.len()];
    for _ in 0..ROUNDS {
        for ((_, row), times) in rows.iter().zip(&mut times) {
            for ((threads, can_spill), times) in CASES.iter().zip(times) {
                times.extend(row.nanos(*threads, *can_spill));
            }
        }
    }
    let kept = times.iter().flatten().map(Vec::len).min().unwrap_or(0);
    assert!(
        kept > 0,
        "failed to measure: in each round a thread waited for a CPU; it takes two that are free"
    );
    let medians = times.iter_mut().map(|cases| {
        cases.each_mut().map(|times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        })
    });
    let medians: Vec<_> = medians.collect();
    report(&rows, &medians, kept);
}

/// Prints the figures, in brackets those of each row over those of `GroupPool`, and the goals.
fn report(rows: &[(&str, Row)], medians: &[[f64; CASES.len()]], kept: usize) {
    print!("{:<26}", "ns of a pair of 1 MiB");
    for title in ["1 thread", "2 threads", "1, can spill", "2, can spill"] {
        print!("{title:>16}");
    }
    println!();
    for ((name, _), medians_of_row) in rows.iter().zip(medians) {
        print!("{name:<26}");
        for (time, ours) in medians_of_row.iter().zip(&medians[0]) {
            print!("{:>16}", format!("{time:.1} ({:.2})", time / ours));
        }
        println!();
    }
    println!("({kept} to {ROUNDS} rounds of {PAIRS} pairs count)");
    let least = |threads: usize, pools: std::ops::Range<usize>| {
        let cases = (0..CASES.len()).filter(|case| CASES[*case].0 == threads);
        let ratios = cases.flat_map(|case| pools.clone().map(move |pool| (case, pool)));
        ratios.map(|(case, pool)| medians[pool][case] / medians[0][case]).fold(f64::INFINITY, f64::min)
    };
    let most = medians[0].iter().copied().fold(0.0, f64::max);
    for (goal, measured, is_met) in [
        ("at most 16 ns", format!("{most:.1} ns"), most <= 16.0),
        (
            "2 threads: at least 2 x faster than each built-in pool",
            format!("{:.2} x", least(2, 1..5)),
            least(2, 1..5) >= 2.0,
        ),
        (
            "1 thread: faster than FairSpill and Track",
            format!("{:.2} x", least(1, 2..5)),
            least(1, 2..5) > 1.0,
        ),
    ] {
        println!("goal {goal:<56}{measured:>8}  {}", if is_met { "met" } else { "missed" });
    }
}
