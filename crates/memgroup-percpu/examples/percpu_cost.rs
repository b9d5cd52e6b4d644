//! What per-slot memory costs: an object made and dropped among 11,000 others, a copy looked up, and pages given back.
//!
//! ```text
//! cargo run --release -p memgroup-percpu --example percpu_cost
//! ```

fn main() {
    #[cfg(not(memgroup_loom))]
    measured::run();
}

#[cfg(not(memgroup_loom))]
mod measured {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use memgroup_percpu::{Arena, ArenaConfig, PerCpu};

    /// As large as the per-CPU records of one kernel group: 2,704 bytes.
    type Record = [AtomicU64; 338];

    const OBJECTS: usize = 11_000;
    const ROUNDS: usize = 21;

    fn median(mut samples: Vec<f64>) -> f64 {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    }

    fn arena(slots: usize) -> &'static Arena {
        let config = ArenaConfig::new(slots).float_bytes(0);
        Box::leak(Box::new(Arena::new(config).expect("the number of slots is within bounds")))
    }

    fn object<T: memgroup_percpu::PerCpuValue>(arena: &'static Arena) -> PerCpu<T> {
        PerCpu::try_new_in(arena).expect("the system has memory")
    }

    /// Nanoseconds to make and drop an object in holes among others.
    fn pair<T: memgroup_percpu::PerCpuValue>(slots: usize) -> f64 {
        const BATCH: usize = 1000;
        let arena = arena(slots);
        (0..slots).for_each(|slot| arena.admit(slot));
        let mut objects: Vec<Option<PerCpu<T>>> = (0..OBJECTS).map(|_| Some(object(arena))).collect();
        objects.iter_mut().step_by(3).for_each(|object| *object = None);
        let samples = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            let made: Vec<PerCpu<T>> = (0..BATCH).map(|_| object(arena)).collect();
            drop(black_box(made));
            start.elapsed().as_nanos() as f64 / BATCH as f64
        });
        median(samples.collect())
    }

    /// Nanoseconds to add to the copy of a slot.
    fn add(slots: usize) -> f64 {
        const ADDS: usize = 1_000_000;
        let object: PerCpu<AtomicU64> = object(arena(slots));
        let samples = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            for turn in 0..ADDS {
                black_box(&object).get(black_box(turn % slots)).fetch_add(1, Ordering::Relaxed);
            }
            start.elapsed().as_nanos() as f64 / ADDS as f64
        });
        median(samples.collect())
    }

    /// Microseconds a page to give back what ten of eleven records leave, and how many pages a call took.
    fn depopulate() -> (f64, f64) {
        let (mut samples, mut pages, mut calls) = (Vec::new(), 0, 0);
        for _ in 0..ROUNDS {
            let arena = arena(2);
            let mut objects: Vec<PerCpu<Record>> = (0..OBJECTS / 4).map(|_| object(arena)).collect();
            for object in &objects {
                object.iter().flatten().for_each(|word| word.store(1, Ordering::Relaxed));
            }
            let mut turn = 0;
            objects.retain(|_| {
                turn += 1;
                turn % 11 == 0
            });
            let (start, before) = (Instant::now(), pages);
            loop {
                let done = arena.depopulate_now(64);
                (pages, calls) = (pages + done.pages, calls + done.calls);
                if !done.more {
                    break;
                }
            }
            samples.push(start.elapsed().as_nanos() as f64 / 1000.0 / (pages - before) as f64);
        }
        (median(samples), pages as f64 / calls as f64)
    }

    pub(crate) fn run() {
        println!("make and drop an object among {OBJECTS}, a third of them freed; median of {ROUNDS}");
        println!("    8 bytes, 2 slots    {:8.0} ns", pair::<AtomicU64>(2));
        println!("  384 bytes, 2 slots    {:8.0} ns", pair::<[AtomicU64; 48]>(2));
        println!(" 2704 bytes, 2 slots    {:8.0} ns", pair::<Record>(2));
        println!("one add to the copy of a slot, 2 slots  {:.2} ns", add(2));
        let (us, pages) = depopulate();
        println!(
            "depopulate, 10 of 11 records of 2704 bytes gone: {us:.2} us a page, {pages:.1} pages a call"
        );
    }
}
