//! Stalls of many threads at once, against the union of the times that they took.

use std::thread;
use std::time::{Duration, Instant};

use memgroup::{Group, scope};

use super::super::random::Random;
use super::{hierarchy, some_us, us};

/// A stall: from when to when it was under way at least, and at most.
#[derive(Clone, Copy)]
struct Taken {
    group: usize,
    within: (Instant, Instant),
    around: (Instant, Instant),
}

/// The time that is in any of the intervals.
fn union(mut intervals: Vec<(Instant, Instant)>) -> Duration {
    intervals.sort();
    let mut covered: Option<Instant> = None;
    let mut sum = Duration::ZERO;
    for (begin, end) in intervals {
        let from = covered.map_or(begin, |covered| covered.max(begin));
        sum += end.saturating_duration_since(from);
        covered = Some(covered.map_or(end, |covered| covered.max(end)));
    }
    sum
}

/// One thread's stalls, at random.
fn storm(groups: &[Group], seed: u64, stalls: usize) -> Vec<Taken> {
    let mut random = Random(seed);
    let spin = |turns: u64| (0..turns).for_each(|_| std::hint::spin_loop());
    let mut taken = Vec::with_capacity(stalls);
    for _ in 0..stalls {
        let group = random.below(groups.len() as u64) as usize;
        let _scope = (random.below(3) > 0).then(|| scope::enter(&groups[group]));
        let around = Instant::now();
        let guard = groups[group].stall();
        let within = Instant::now();
        spin(random.below(3000));
        let nested =
            (random.below(4) == 0).then(|| groups[random.below(groups.len() as u64) as usize].stall());
        if random.below(50) == 0 {
            thread::yield_now();
        }
        drop(nested);
        let end = Instant::now();
        drop(guard);
        taken.push(Taken { group, within: (within, end), around: (around, Instant::now()) });
        spin(random.below(3000));
    }
    taken
}

#[test]
fn the_total_at_every_level_is_the_union_of_the_stalls_there() {
    const THREADS: u64 = 4;
    let seed = std::env::var("PRESSURE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed);
    println!("PRESSURE_SEED={seed}");
    let hierarchy = hierarchy();
    let above: Vec<Group> = (0..2).map(|number| hierarchy.create(&format!("/{number}")).unwrap()).collect();
    let groups: Vec<Group> =
        (0..6).map(|number| above[number % 2].create(&format!("{number}")).unwrap()).collect();
    for round in 0..3 {
        let before = |group: &Group| some_us(group);
        let root = hierarchy.root();
        let starts: Vec<u64> = groups.iter().chain(&above).chain([&root]).map(before).collect();
        let taken: Vec<Taken> = thread::scope(|threads| {
            let groups = &groups;
            let storms: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let seed = (seed + 1) * (1 + thread + THREADS * round) * 0x9e37_79b9;
                    threads.spawn(move || storm(groups, seed, 3000))
                })
                .collect();
            storms.into_iter().flat_map(|storm| storm.join().unwrap()).collect()
        });
        let check = |name: &str, group: &Group, start: u64, is_in: &dyn Fn(usize) -> bool| {
            let of = |interval: fn(&Taken) -> (Instant, Instant)| {
                union(taken.iter().filter(|taken| is_in(taken.group)).map(interval).collect())
            };
            let (least, most) = (us(of(|taken| taken.within)), us(of(|taken| taken.around)));
            let total = some_us(group) - start;
            // Before and after are each cut off to a microsecond.
            assert!(
                total + 2 >= least && total <= most + 2,
                "{name}: {total} us, the union is {least} to {most}"
            );
            assert!(group.pressure().full.total <= group.pressure().some.total);
        };
        for (number, group) in groups.iter().enumerate() {
            check("a leaf", group, starts[number], &|at| at == number);
        }
        for (number, group) in above.iter().enumerate() {
            check("a parent", group, starts[groups.len() + number], &|at| at % 2 == number);
        }
        check("the root", &root, starts[groups.len() + above.len()], &|_| true);
    }
}

#[test]
fn loses_nothing_when_groups_come_and_go_under_stalls() {
    const THREADS: usize = 4;
    let hierarchy = hierarchy();
    let above = hierarchy.create("/above").unwrap();
    let taken: Vec<((Instant, Instant), (Instant, Instant))> = thread::scope(|threads| {
        let storms: Vec<_> = (0..THREADS)
            .map(|thread| {
                let above = &above;
                threads.spawn(move || {
                    let mut taken = Vec::new();
                    for _ in 0..500 {
                        let group = above.create(&format!("{thread}")).unwrap();
                        assert_eq!(group.pressure(), Default::default(), "of a new group");
                        let around = Instant::now();
                        let handle = group.clone();
                        let stalled = handle.stall();
                        let within = Instant::now();
                        group.remove().unwrap();
                        drop(group);
                        let end = Instant::now();
                        drop(stalled);
                        drop(handle);
                        taken.push(((within, end), (around, Instant::now())));
                    }
                    taken
                })
            })
            .collect();
        storms.into_iter().flat_map(|storm| storm.join().unwrap()).collect()
    });
    let (within, around): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
    let (least, most) = (us(union(within)), us(union(around)));
    for group in [&above, &hierarchy.root()] {
        let total = some_us(group);
        assert!(total + 1 >= least && total <= most + 1, "{total} us, the union is {least} to {most}");
        thread::sleep(super::MILLI);
        assert_eq!(some_us(group), total, "nothing is stalled any more");
    }
}
