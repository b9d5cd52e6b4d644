//! The cost of a read section: `cargo run --release -p memgroup-sync --example section_cost`.
//!
//! Prints the median of eleven interleaved rounds of each row, and the difference to the empty
//! loop. The swap row is the entry by a swap, written out; run with `MEMGROUP_GRACE=swap`, the
//! section's own rows are entered so.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use memgroup_sync::grace::{self, Form};

const ROUNDS: usize = 11;
const LOOPS: u32 = 4_000_000;

/// A word in lines of its own, entered and left as a section without a barrier is.
#[repr(align(128))]
struct Own(AtomicU64);

static CLOCK: Own = Own(AtomicU64::new(4));

/// Nanoseconds of one `body`.
fn ns(mut body: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..LOOPS {
        body();
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(LOOPS)
}

#[inline(never)]
fn empty() -> f64 {
    ns(|| {
        black_box(0_u64);
    })
}

#[inline(never)]
fn section() -> f64 {
    ns(|| {
        let _section = grace::enter();
        black_box(0_u64);
    })
}

#[inline(never)]
fn brief() -> f64 {
    ns(|| {
        let brief = grace::enter_briefly();
        black_box(0_u64);
        black_box(&brief);
    })
}

#[inline(never)]
fn nested() -> f64 {
    let _outer = grace::enter();
    section()
}

#[inline(never)]
fn swap() -> f64 {
    let own = Own(AtomicU64::new(0));
    ns(|| {
        // ORDERING: Acquire, AcqRel, Release; those of a section that is entered by a swap.
        let clock = CLOCK.0.load(Ordering::Acquire);
        // ORDERING: as above.
        black_box(&own).0.swap(clock | 1, Ordering::AcqRel);
        black_box(0_u64);
        // ORDERING: as above.
        own.0.store(0, Ordering::Release);
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median microseconds of `calls` grace periods.
fn grace_period_us(form: Form, calls: usize) -> f64 {
    let call = || {
        let begun = Instant::now();
        grace::synchronize(form);
        begun.elapsed().as_secs_f64() * 1e6
    };
    median((0..calls).map(|_| call()).collect())
}

/// A row's name, and the function that measures it once.
type Row = (&'static str, fn() -> f64);

fn main() {
    println!("{}", grace::report());
    drop(grace::enter());
    let rows: [Row; 5] = [
        ("empty loop", empty),
        ("section", section),
        ("brief section", brief),
        ("section in a section", nested),
        ("swap", swap),
    ];
    let mut measured = rows.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (values, (_, measure)) in measured.iter_mut().zip(&rows) {
            values.push(measure());
        }
    }
    let medians = measured.map(median);
    let by_store = grace::report().enters_by_store();
    for ((name, _), ns) in rows.iter().zip(medians) {
        if *name == "brief section" && !by_store {
            println!("{name:<24}      - where sections are entered by a swap");
            continue;
        }
        println!("{name:<24} {ns:>6.2} ns  {:>+6.2}", ns - medians[0]);
    }
    for (form, calls) in [(Form::Quiet, 20), (Form::Expedited, 2000)] {
        let alone = grace_period_us(form, calls);
        let beside_a_reader = beside_a_reader(|| grace_period_us(form, calls));
        println!("{form:?} grace period: {alone:.1} us; beside a running reader {beside_a_reader:.1} us");
    }
}

/// The result of `measure` while another thread runs sections without rest.
fn beside_a_reader(measure: impl FnOnce() -> f64) -> f64 {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // ORDERING: Relaxed; a flag that ends the loop.
            while !over.load(Ordering::Relaxed) {
                let _section = grace::enter();
            }
        });
        let measured = measure();
        // ORDERING: Relaxed, as above.
        over.store(true, Ordering::Relaxed);
        measured
    })
}
