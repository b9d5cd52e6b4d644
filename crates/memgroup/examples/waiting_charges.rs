//! The cost of charges that wait as futures: bytes of each, and join, cancel and serve beside 1, 1,000 and 100,000 that wait.
//!
//! ```text
//! cargo run --release -p memgroup --example waiting_charges
//! ```
//!
//! Each figure is the median of the rounds' means. `serve` is the uncharge, `take` the poll after it. The memory is the bytes that were allocated
//! for each, and the future itself.
#![cfg(not(memgroup_loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memgroup::{Charge, Charging, Config, Group, Hierarchy};

const PAGE: u64 = 4096;
const ROUNDS: usize = 21;
const TURNS: usize = 1000;

/// Counts the bytes that are allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(unsafe_code)]
// SAFETY: each call is passed on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // ORDERING: Relaxed, here and below; a number by itself.
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // ORDERING: as above.
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.dealloc(block, layout) }
    }
}

fn allocated() -> usize {
    // ORDERING: as above.
    ALLOCATED.load(Ordering::Relaxed)
}

fn poll(charging: &mut Charging) -> Poll<Charge> {
    let polled = Pin::new(charging).poll(&mut Context::from_waker(Waker::noop()));
    polled.map(|charge| charge.expect("nothing ends the waits"))
}

/// A future that waits.
fn join(group: &Group) -> Charging {
    let mut charging = group.charge(PAGE);
    assert!(poll(&mut charging).is_pending());
    charging
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The time that calls take, each timed by itself.
#[derive(Default)]
struct Timed {
    nanos: f64,
    calls: f64,
}

impl Timed {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let made = call();
        self.nanos += begin.elapsed().as_nanos() as f64;
        self.calls += 1.0;
        made
    }

    fn mean(&self) -> f64 {
        self.nanos / self.calls
    }
}

/// Measures beside so many that wait.
fn beside(count: usize) {
    let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
    let reclaimer = hierarchy.reclaimer();
    let stop = reclaimer.stop_handle();
    let thread = std::thread::spawn(|| reclaimer.run());
    let parent = hierarchy.create("/parent").expect("a new group");
    parent.set_max(PAGE).expect("a limit");
    let group = parent.create("group").expect("a new group");
    let mut held = group.try_charge(PAGE).expect("room");
    let mut waiting = VecDeque::with_capacity(count + TURNS);
    // The first wait has the group marked.
    let first = join(&group);
    std::thread::sleep(Duration::from_millis(20));
    let before = allocated();
    waiting.extend((0..count).map(|_| Some(join(&group))));
    let bytes = (allocated() - before) as f64 / count as f64 + size_of::<Charging>() as f64;
    drop(first);
    let mut seed = 1_u64;
    let [mut joins, mut cancels, mut serves, mut takes] = [(); 4].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        let [mut join_time, mut cancel_time, mut serve_time, mut take_time] =
            [(); 4].map(|()| Timed::default());
        for _ in 0..TURNS {
            waiting.push_back(Some(join_time.time(|| join(&group))));
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % waiting.len();
            // A place that is empty already is as good as another that is not far.
            let cancelled = (at..waiting.len()).find_map(|at| waiting[at].take());
            cancel_time.time(|| drop(cancelled));
        }
        for _ in 0..TURNS {
            // The uncharge serves the one that has waited longest, and its poll takes the charge.
            serve_time.time(|| held.shrink(PAGE));
            // While a reclaimer looks after the first, the second is served.
            held = loop {
                let Some(mut first) = waiting.pop_front().expect("one is served") else { continue };
                if let Poll::Ready(charge) = take_time.time(|| poll(&mut first)) {
                    break charge;
                }
                waiting.push_back(Some(first));
            };
            waiting.push_back(Some(join(&group)));
        }
        let figures = [&mut joins, &mut cancels, &mut serves, &mut takes];
        let times = [join_time, cancel_time, serve_time, take_time];
        figures.into_iter().zip(times).for_each(|(all, time)| all.push(time.mean()));
    }
    let [join, cancel, serve, take] = [joins, cancels, serves, takes].map(median);
    println!("{count:>7} {bytes:>10.0} {join:>10.0} {cancel:>10.0} {serve:>10.0} {take:>10.0}");
    drop((waiting, held));
    assert_eq!(group.usage_exact(), 0);
    stop.stop();
    thread.join().expect("the reclaimer ends");
}

fn main() {
    println!(
        "a future has {} bytes; nanoseconds of each operation, about 25 of them for the clock",
        size_of::<Charging>()
    );
    let columns = ["bytes each", "join", "cancel", "serve", "take"];
    println!(
        "{:>7} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "waiting", columns[0], columns[1], columns[2], columns[3], columns[4]
    );
    for count in [1, 1000, 100_000] {
        beside(count);
    }
}
