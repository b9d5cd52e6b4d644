//! A growth of 1 MiB and its shrinkage, with DataFusion's pools and with a pool of a group three levels deep.
//!
//! `cargo run --release -p memgroup-datafusion --example pool_cost`. Nanoseconds of a pair, medians of rounds in which the pools take turns. Each
//! thread has a consumer of its own. Nothing is refused, and `GroupPool` tracks its consumers as `TrackConsumersPool` does.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool, TrackConsumersPool,
};
use memgroup::{Config, Hierarchy};
use memgroup_datafusion::GroupPool;

const BYTES: usize = 1 << 20;
const LIMIT: usize = 64 << 30;
const PAIRS: u32 = 200_000;
const ROUNDS: usize = 15;

/// Nanoseconds of a pair of one thread, while so many do the same.
fn pair(pool: &Arc<dyn MemoryPool>, threads: usize, can_spill: bool) -> f64 {
    let begin = Barrier::new(threads);
    let times = thread::scope(|scope| {
        let one = || {
            let consumer = MemoryConsumer::new("consumer").with_can_spill(can_spill);
            let reservation = consumer.register(pool);
            // A consumer holds some batches already.
            reservation.grow(8 * BYTES);
            begin.wait();
            let started = Instant::now();
            for _ in 0..PAIRS {
                reservation.try_grow(black_box(BYTES)).expect("nothing is refused");
                reservation.shrink(black_box(BYTES));
            }
            started.elapsed().as_nanos() as f64 / f64::from(PAIRS)
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|thread| thread.join().expect("the thread ends")).collect::<Vec<_>>()
    });
    times.iter().sum::<f64>() / threads as f64
}

fn main() {
    let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
    let tenant = hierarchy.create("/tenant").expect("a group");
    tenant.set_max(LIMIT as u64).expect("a limit");
    let query = tenant.create("query").expect("a group");
    let named = NonZeroUsize::new(5).expect("not zero");
    let pools: [(&str, Arc<dyn MemoryPool>); 5] = [
        ("GroupPool", Arc::new(GroupPool::new(&hierarchy, &query))),
        ("GreedyMemoryPool", Arc::new(GreedyMemoryPool::new(LIMIT))),
        ("FairSpillPool", Arc::new(FairSpillPool::new(LIMIT))),
        ("TrackConsumers, Greedy", Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(LIMIT), named))),
        ("TrackConsumers, FairSpill", Arc::new(TrackConsumersPool::new(FairSpillPool::new(LIMIT), named))),
    ];
    println!(
        "{:<26}{:>10}{:>10}{:>14}{:>14}",
        "ns of a pair of 1 MiB", "1 thread", "2", "1, spillable", "2, spillable"
    );
    let cases = [(1, false), (2, false), (1, true), (2, true)];
    let mut times = vec![[const { Vec::new() }; 4]; pools.len()];
    for _ in 0..ROUNDS {
        for ((_, pool), times) in pools.iter().zip(&mut times) {
            for ((threads, can_spill), times) in cases.iter().zip(times) {
                times.push(pair(pool, *threads, *can_spill));
            }
        }
    }
    for ((name, _), times) in pools.iter().zip(&mut times) {
        let [one, two, spills, two_spill] = times.each_mut().map(|times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!("{name:<26}{one:>10.1}{two:>10.1}{spills:>14.1}{two_spill:>14.1}");
    }
}
