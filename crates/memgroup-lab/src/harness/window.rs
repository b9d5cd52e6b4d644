//! Short windows of many variants, in random order, in one process.
//!
//!   round 1:  stock │ mutex │ no stock │ ...      each window about a millisecond
//!   round 2:  mutex │ no stock │ stock │ ...      a new order every round
//!
//! A machine that is slower for a while is slower for all variants, so their ratios hold.
//!
//! - I1. A window counts only if the kernel took no thread of it off its CPU, and only if the threads' windows
//!   overlap by more than 95 %.
//! - I2. A variant is measured until it has its number of counted windows, or three times as many have been tried.

use std::sync::Arc;

use super::clock::{self, Clock};
use super::crew::{Crew, Start};
use super::os::ThreadUsage;
use super::random::Random;
use super::stats::Summary;
use crate::Error;

const OVERLAP_LEAST: f64 = 0.95;
const TRIES_PER_ROUND: usize = 3;
/// Windows before the first that may count.
const WARM_UPS: usize = 3;
/// A batch is long enough to hide the two clock readings around it, short enough to end windows together.
const BATCH_NS: f64 = 10_000.0;
const BATCH_OPS_MAX: u64 = 4096;

/// What a window repeats.
pub(crate) trait Work: Send + Sync {
    /// Does about `count` operations on the crew's thread `thread` and returns how many it did.
    /// `cursor` is this thread's own, 0 at the start of a window.
    fn batch(&self, thread: usize, cursor: &mut usize, count: u64) -> Result<u64, Error>;
}

/// One variant: work, and the number of threads that do it at once.
pub(crate) struct Variant {
    pub(crate) work: Arc<dyn Work>,
    pub(crate) threads: usize,
    /// Threads whose operations are counted, from thread 0 on; the others only disturb.
    pub(crate) counted: usize,
}

impl Variant {
    /// Work of `threads` threads, all of them counted.
    pub(crate) fn of(work: Arc<dyn Work>, threads: usize) -> Variant {
        Variant { work, threads, counted: threads }
    }
}

/// What came out for one variant, in nanoseconds an operation as each thread sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    /// None when no window counted.
    pub(crate) ns: Option<Summary>,
    pub(crate) tried: usize,
    /// Of those, in which the kernel took a thread off its CPU.
    pub(crate) switched: usize,
    /// Operations done in all windows, those that do not count and the warm-up included.
    pub(crate) ops: u64,
}

/// How many windows, and how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) window_us: u64,
}

/// What one thread did in one window.
#[derive(Debug, Clone, Copy)]
struct Part {
    begin: u64,
    end: u64,
    ops: u64,
    undisturbed: bool,
}

struct Series {
    batch_ops: u64,
    samples: Vec<f64>,
    tried: usize,
    switched: usize,
    ops: u64,
}

/// Measures all variants, interleaved. A variant's own warm-up windows come first and count for nothing.
pub(crate) fn interleave(
    crew: &Crew,
    clock: &Clock,
    plan: Plan,
    variants: &[Variant],
    random: &mut Random,
) -> Result<Vec<Measured>, Error> {
    let mut series = Vec::with_capacity(variants.len());
    for variant in variants {
        let (batch_ops, ops) = warm_up(crew, clock, plan, variant)?;
        series.push(Series { batch_ops, samples: Vec::new(), tried: 0, switched: 0, ops });
    }
    let mut order: Vec<usize> = (0..variants.len()).collect();
    for _ in 0..plan.rounds * TRIES_PER_ROUND {
        random.shuffle(&mut order);
        for &index in &order {
            let (variant, one) = (&variants[index], &mut series[index]);
            if one.samples.len() < plan.rounds {
                one.tried += 1;
                let result = window(crew, clock, plan.window_us, variant, one.batch_ops)?;
                one.ops += result.ops;
                one.switched += usize::from(result.switched);
                one.samples.extend(result.counted);
            }
        }
    }
    let measured = |one: &Series| Measured {
        ns: Summary::of(&one.samples),
        tried: one.tried,
        switched: one.switched,
        ops: one.ops,
    };
    Ok(series.iter().map(measured).collect())
}

/// Warms what the variant touches and sizes its batches; their size, and the operations done. The size is that of the fastest
/// of some windows: one that was disturbed would make batches so small that the readings of the clock around them show.
fn warm_up(crew: &Crew, clock: &Clock, plan: Plan, variant: &Variant) -> Result<(u64, u64), Error> {
    let (mut fastest_ns, mut ops) = (f64::INFINITY, 0);
    for _ in 0..WARM_UPS {
        let result = window(crew, clock, plan.window_us, variant, 16)?;
        fastest_ns = fastest_ns.min(result.ns_rough);
        ops += result.ops;
    }
    Ok((((BATCH_NS / fastest_ns.max(0.1)) as u64).clamp(1, BATCH_OPS_MAX), ops))
}

struct WindowResult {
    ns_rough: f64,
    ops: u64,
    switched: bool,
    counted: Option<f64>,
}

fn window(
    crew: &Crew,
    clock: &Clock,
    window_us: u64,
    variant: &Variant,
    batch_ops: u64,
) -> Result<WindowResult, Error> {
    let (work, start) = (Arc::clone(&variant.work), Start::new(variant.threads));
    let (lead, length) = (clock.ticks_per_us() * 2, clock.ticks_per_us() * window_us);
    let parts =
        crew.run(variant.threads, move |thread| part(&*work, &start, thread, batch_ops, lead, length));
    let parts = parts.into_iter().collect::<Result<Vec<Part>, Error>>()?;
    let ns = clock.ns(ticks_per_op(&parts[..variant.counted]));
    let ops = parts.iter().map(|part| part.ops).sum();
    let switched = parts.iter().any(|part| !part.undisturbed);
    Ok(WindowResult { ns_rough: ns, ops, switched, counted: counts(&parts).then_some(ns) })
}

/// Whether a window of these parts counts (I1).
fn counts(parts: &[Part]) -> bool {
    parts.iter().all(|part| part.undisturbed) && overlap(parts) > OVERLAP_LEAST
}

fn part(
    work: &dyn Work,
    start: &Start,
    thread: usize,
    batch_ops: u64,
    lead_ticks: u64,
    length_ticks: u64,
) -> Result<Part, Error> {
    let (mut cursor, mut ops) = (0, 0);
    let before = ThreadUsage::now();
    let deadline = start.wait(lead_ticks) + length_ticks;
    let begin = clock::now();
    let mut end;
    loop {
        ops += work.batch(thread, &mut cursor, batch_ops)?;
        end = clock::now();
        if end >= deadline {
            break;
        }
    }
    let undisturbed = ThreadUsage::now().since(before).switches_involuntary == 0;
    Ok(Part { begin, end, ops, undisturbed })
}

/// Ticks an operation as a thread sees it: all threads' time over all threads' operations.
fn ticks_per_op(parts: &[Part]) -> f64 {
    let ticks: u64 = parts.iter().map(|part| part.end - part.begin).sum();
    let ops: u64 = parts.iter().map(|part| part.ops).sum();
    ticks as f64 / ops.max(1) as f64
}

/// The part of the whole span during which all threads were in their window.
fn overlap(parts: &[Part]) -> f64 {
    let last_begin = parts.iter().map(|part| part.begin).max().unwrap_or(0);
    let first_end = parts.iter().map(|part| part.end).min().unwrap_or(0);
    let first_begin = parts.iter().map(|part| part.begin).min().unwrap_or(0);
    let last_end = parts.iter().map(|part| part.end).max().unwrap_or(0);
    first_end.saturating_sub(last_begin) as f64 / (last_end - first_begin).max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    fn spanning(begin: u64, end: u64, ops: u64) -> Part {
        Part { begin, end, ops, undisturbed: true }
    }

    #[test]
    fn overlap_is_the_common_part_of_the_whole_span() {
        assert_eq!(overlap(&[spanning(0, 100, 1)]), 1.0);
        assert_eq!(overlap(&[spanning(0, 100, 1), spanning(0, 100, 1)]), 1.0);
        assert_eq!(overlap(&[spanning(0, 80, 1), spanning(20, 100, 1)]), 0.6);
        assert_eq!(overlap(&[spanning(0, 10, 1), spanning(20, 30, 1)]), 0.0);
    }

    #[test]
    fn a_disturbed_window_and_one_whose_parts_do_not_overlap_are_not_counted() {
        let good = spanning(0, 100, 1);
        assert!(counts(&[good]) && counts(&[good, good]));
        assert!(!counts(&[Part { undisturbed: false, ..good }]));
        assert!(!counts(&[good, Part { undisturbed: false, ..good }]));
        assert!(counts(&[good, spanning(4, 100, 1)]));
        assert!(!counts(&[good, spanning(5, 100, 1)]), "95 % is not more than 95 %");
        assert!(!counts(&[spanning(0, 10, 1), spanning(20, 30, 1)]));
    }

    /// Thread 1 is in its batch long after thread 0 has ended.
    struct Late;

    impl Work for Late {
        fn batch(&self, thread: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
            std::thread::sleep(Duration::from_millis(1 + 20 * thread as u64));
            Ok(count)
        }
    }

    #[test]
    fn a_window_that_one_thread_ends_late_is_tried_again_and_never_counted() {
        let (crew, clock) = (Crew::start(2).unwrap(), Clock::calibrate(Duration::from_millis(2)));
        let plan = Plan { rounds: 1, window_us: 100 };
        let variants = [Variant::of(Arc::new(Late), 2)];
        let measured = interleave(&crew, &clock, plan, &variants, &mut Random::new(7)).unwrap();
        assert!(measured[0].ns.is_none());
        assert_eq!(measured[0].tried, TRIES_PER_ROUND);
        assert!(measured[0].switched <= TRIES_PER_ROUND);
    }

    #[test]
    fn time_per_operation_is_what_each_thread_sees() {
        assert_eq!(ticks_per_op(&[spanning(0, 100, 10)]), 10.0);
        assert_eq!(ticks_per_op(&[spanning(0, 100, 10), spanning(0, 100, 30)]), 5.0);
    }

    /// Its very first batch takes longer than a window.
    struct SlowAtFirst {
        batches: AtomicU64,
        largest: AtomicU64,
    }

    impl Work for SlowAtFirst {
        fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
            // ORDERING: Relaxed, here and below; counts, read after the threads are joined.
            if self.batches.fetch_add(1, Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.largest.fetch_max(count, Ordering::Relaxed);
            Ok(count)
        }
    }

    #[test]
    fn a_disturbed_warm_up_does_not_make_batches_small() {
        let (crew, clock) = (Crew::start(1).unwrap(), Clock::calibrate(Duration::from_millis(2)));
        let work = Arc::new(SlowAtFirst { batches: AtomicU64::new(0), largest: AtomicU64::new(0) });
        let plan = Plan { rounds: 1, window_us: 200 };
        let variants = [Variant::of(work.clone(), 1)];
        interleave(&crew, &clock, plan, &variants, &mut Random::new(7)).unwrap();
        // ORDERING: Relaxed; the windows are over.
        let largest = work.largest.load(Ordering::Relaxed);
        assert!(largest > 16, "batches of {largest}, no more than in the warm-up");
    }

    struct Counting {
        done: AtomicU64,
        fail: bool,
    }

    impl Work for Counting {
        fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
            if self.fail {
                return Err(Error::Wrong("on purpose".to_owned()));
            }
            for _ in 0..count {
                // ORDERING: Relaxed; a count, read after the threads are joined.
                self.done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(count)
        }
    }

    fn measure(fail: bool) -> Result<(Vec<Measured>, u64), Error> {
        let crew = Crew::start(2)?;
        let clock = Clock::calibrate(Duration::from_millis(2));
        let work = Arc::new(Counting { done: AtomicU64::new(0), fail });
        let variants = [1, 2].map(|threads| Variant::of(work.clone(), threads));
        let plan = Plan { rounds: 3, window_us: 200 };
        let measured = interleave(&crew, &clock, plan, &variants, &mut Random::new(7))?;
        // ORDERING: Relaxed; the windows are over.
        Ok((measured, work.done.load(Ordering::Relaxed)))
    }

    #[test]
    fn every_variant_is_tried_and_does_work() {
        let (measured, done) = measure(false).unwrap();
        assert!(done > 0);
        assert_eq!(measured.iter().map(|one| one.ops).sum::<u64>(), done, "every operation is reported");
        for one in measured {
            assert!((3..=9).contains(&one.tried));
            assert!(one.ns.is_none_or(|ns| ns.median > 0.0 && ns.count <= 3));
        }
    }

    #[test]
    fn a_wrong_result_in_a_window_ends_the_measurement() {
        assert!(matches!(measure(true), Err(Error::Wrong(text)) if text == "on purpose"));
    }
}
