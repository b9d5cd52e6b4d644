//! The cost of a visit of a place: `cargo run --release -p memgroup-sync --example hazard_cost`.
//!
//! A walk over sixteen places, each with a value of which a word is read, by one thread and by two
//! at a time. Prints the median of eleven interleaved rounds of each row, in nanoseconds a visit,
//! and the difference to the row without protection. With `MEMGROUP_GRACE=swap` places are pinned
//! by a swap. Then, in microseconds, a withdrawal that is waited for.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Barrier, LazyLock, RwLock};
use std::time::Instant;

use memgroup_sync::grace;
use memgroup_sync::hazard::{Domain, Place};

const ROUNDS: usize = 11;
const WALKS: u32 = 200_000;
const PLACES: usize = 16;

static DOMAIN: LazyLock<Domain> = LazyLock::new(Domain::new);

/// A value as each of the rows finds it, in lines of its own.
#[repr(align(128))]
struct Visited {
    place: Place<u64>,
    pointer: AtomicPtr<u64>,
    count: AtomicUsize,
    lock: RwLock<u64>,
}

fn visited() -> Visited {
    let visited = Visited {
        place: Place::empty(&DOMAIN),
        pointer: AtomicPtr::new(Box::leak(Box::new(7))),
        count: AtomicUsize::new(1),
        lock: RwLock::new(7),
    };
    visited.place.put(Box::new(7));
    visited
}

type All = [Visited; PLACES];

/// Nanoseconds a visit, of walks that `walk` makes.
fn ns(mut walk: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..WALKS {
        walk();
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(WALKS) / PLACES as f64
}

/// The use of a value's address; a callback would be called.
#[inline(always)]
fn visit(value: &u64) {
    black_box(value);
}

#[inline(never)]
fn unprotected(all: &'static All) -> f64 {
    ns(|| {
        for each in all {
            // ORDERING: Acquire; as in the rows with protection.
            black_box(each.pointer.load(Ordering::Acquire));
        }
    })
}

#[inline(never)]
fn hazard(all: &'static All) -> f64 {
    let mut lease = DOMAIN.lease();
    ns(|| {
        for each in all {
            if let Some(value) = lease.pin(&each.place) {
                visit(&value);
            }
        }
    })
}

#[inline(never)]
fn hazard_and_lease(all: &'static All) -> f64 {
    ns(|| {
        let mut lease = DOMAIN.lease();
        for each in all {
            if let Some(value) = lease.pin(&each.place) {
                visit(&value);
            }
        }
    })
}

/// A hazard record without the asymmetric barrier.
#[inline(never)]
fn fenced(all: &'static All) -> f64 {
    #[repr(align(128))]
    struct Record(AtomicPtr<u64>);
    let record = Record(AtomicPtr::default());
    ns(|| {
        for each in all {
            // ORDERING: Relaxed, SeqCst, Acquire, Release; those of a hazard pointer with the
            // barrier on the reader's side.
            record.0.store(each.pointer.load(Ordering::Relaxed), Ordering::Relaxed);
            // ORDERING: as above.
            fence(Ordering::SeqCst);
            // ORDERING: as above.
            black_box(each.pointer.load(Ordering::Acquire));
            // ORDERING: as above.
            black_box(&record).0.store(std::ptr::null_mut(), Ordering::Release);
        }
    })
}

/// A count for each place: raised if it is not zero, lowered after.
#[inline(never)]
fn counted(all: &'static All) -> f64 {
    ns(|| {
        for each in all {
            // ORDERING: Relaxed; the first look of the exchange.
            let mut count = each.count.load(Ordering::Relaxed);
            while count != 0 {
                // ORDERING: Acquire, Relaxed; those of a reference count that may be zero.
                match each.count.compare_exchange_weak(count, count + 1, Ordering::Acquire, Ordering::Relaxed)
                {
                    Ok(_) => break,
                    Err(now) => count = now,
                }
            }
            // ORDERING: Acquire; as in the other rows.
            black_box(each.pointer.load(Ordering::Acquire));
            // ORDERING: Release; the use is over.
            each.count.fetch_sub(1, Ordering::Release);
        }
    })
}

#[inline(never)]
fn locked(all: &'static All) -> f64 {
    ns(|| {
        for each in all {
            if let Ok(value) = each.lock.try_read() {
                visit(&value);
            }
        }
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A row's name, and the function that measures it once.
type Row = (&'static str, fn(&'static All) -> f64);

/// The mean of the measurements of `threads` threads at one time.
fn at_once(threads: usize, all: &'static All, measure: fn(&'static All) -> f64) -> f64 {
    let begin = Barrier::new(threads);
    let one = || {
        begin.wait();
        measure(all)
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|thread| thread.join().expect("it only measures")).sum::<f64>()
            / threads as f64
    })
}

/// Median microseconds of putting a value, withdrawing it and waiting for its users.
fn withdrawal_us(place: &'static Place<u64>) -> f64 {
    let call = || {
        place.put(Box::new(7));
        let begun = Instant::now();
        let value = place.withdraw().map(|withdrawn| withdrawn.wait());
        let us = begun.elapsed().as_secs_f64() * 1e6;
        drop(value);
        us
    };
    median((0..5000).map(|_| call()).collect())
}

/// The result of `measure` while another thread walks without rest.
fn beside_a_walker(place: &'static Place<u64>, measure: impl FnOnce() -> f64) -> f64 {
    let over = AtomicBool::new(false);
    let walks = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut lease = DOMAIN.lease();
            walks.wait();
            // ORDERING: Relaxed; a flag that ends the loop.
            while !over.load(Ordering::Relaxed) {
                black_box(lease.pin(place).is_some());
            }
        });
        walks.wait();
        let measured = measure();
        // ORDERING: Relaxed, as above.
        over.store(true, Ordering::Relaxed);
        measured
    })
}

fn main() {
    println!("{}", grace::report());
    let all: &'static All = Box::leak(Box::new(std::array::from_fn(|_| visited())));
    let rows: [Row; 6] = [
        ("no protection", unprotected),
        ("pin", hazard),
        ("pin, a lease for each walk", hazard_and_lease),
        ("hazard record with a fence", fenced),
        ("reference count", counted),
        ("try_read of a lock", locked),
    ];
    for threads in [1, 2] {
        let mut measured = rows.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (values, (_, measure)) in measured.iter_mut().zip(&rows) {
                values.push(at_once(threads, all, *measure));
            }
        }
        let medians = measured.map(median);
        println!("{threads} thread{}", if threads == 1 { "" } else { "s" });
        for ((name, _), ns) in rows.iter().zip(medians) {
            println!("  {name:<28} {ns:>7.2} ns  {:>+7.2}", ns - medians[0]);
        }
    }
    let [one, other] =
        [(); 2].map(|()| -> &'static Place<u64> { Box::leak(Box::new(Place::empty(&DOMAIN))) });
    other.put(Box::new(7));
    println!("withdrawal, no walker: {:.3} us", withdrawal_us(one));
    let elsewhere = beside_a_walker(other, || withdrawal_us(one));
    println!("withdrawal, a walker in another place: {elsewhere:.2} us");
    println!("withdrawal, a walker in this place: {:.2} us", beside_a_walker(one, || withdrawal_us(one)));
}
