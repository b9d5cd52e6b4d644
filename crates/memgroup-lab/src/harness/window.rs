//! Short windows of many variants, in random order, in one process.
//!
//!   round 1:  stock │ mutex │ no stock │ ...      each window about a millisecond
//!   round 2:  mutex │ no stock │ stock │ ...      a new order every round
//!
//! A machine that is slower for a while is slower for all variants, so their ratios hold.
//!
//! - I1. A window counts only if the kernel took no thread of it off its CPU, and only if the
//!   threads' windows overlap by more than 95 %.
//! - I2. A variant is measured until it has its number of counted windows, or three times as many
//!   have been tried.

use super::prelude::*;
use super::workers::Start;

const OVERLAP_LEAST: f64 = 0.95;
const TRIES_PER_ROUND: usize = 3;
/// Windows before the first that may count.
const WARM_UPS: usize = 3;
/// A batch is long enough to hide the two clock readings around it, short enough to end windows
/// together.
const BATCH_NS: f64 = 10_000.0;
const BATCH_OPS_MAX: u64 = 4096;

/// The operations that a window repeats.
///
/// Called with the worker's number, this worker's own cursor (0 at the start of a window) and a
/// count, it does about that many operations and returns how many it did.
pub(crate) type Work<'w> = dyn Fn(usize, &mut usize, u64) -> Result<u64> + Sync + 'w;

/// Work that repeats one operation, the same on every worker.
pub(crate) fn each<T>(
    operation: impl Fn() -> Result<T> + Sync,
) -> impl Fn(usize, &mut usize, u64) -> Result<u64> + Sync {
    move |_, _, count| {
        for _ in 0..count {
            operation()?;
        }
        Ok(count)
    }
}

/// An operation that cannot fail.
pub(crate) fn always<T>(act: impl Fn() -> T + Sync) -> impl Fn() -> Result<T> + Sync {
    move || Ok(act())
}

/// What one more thread does meanwhile, on the CPU after those of the work.
#[derive(Clone, Copy)]
pub(crate) struct Beside<'w> {
    pub(crate) act: &'w (dyn Fn() -> Result<()> + Sync),
    /// Microseconds between two acts, in which the thread spins; with 0 it never rests.
    pub(crate) every_us: u64,
    /// The acts have the kernel switch the work's threads, so windows count all the same.
    pub(crate) switches: bool,
}

impl<'w> Beside<'w> {
    pub(crate) fn every(every_us: u64, act: &'w (dyn Fn() -> Result<()> + Sync)) -> Beside<'w> {
        Beside { act, every_us, switches: false }
    }
}

/// One variant: work, the number of threads that do it at once, and what another does beside them.
#[derive(Clone, Copy)]
pub(crate) struct Variant<'w> {
    pub(crate) work: &'w Work<'w>,
    pub(crate) threads: usize,
    pub(crate) beside: Option<Beside<'w>>,
}

impl<'w> Variant<'w> {
    /// Work of `threads` threads, alone.
    pub(crate) fn of(work: &'w Work<'w>, threads: usize) -> Variant<'w> {
        Variant { work, threads, beside: None }
    }
}

/// The figures of one variant, in nanoseconds an operation as each thread sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    /// None when no window counted.
    pub(crate) ns: Option<Summary>,
    pub(crate) tried: usize,
    /// Of those, the windows in which the kernel took a thread off its CPU.
    pub(crate) switched: usize,
    /// Operations done in all windows, including the warm-up and those that do not count.
    pub(crate) ops: u64,
    /// Acts beside them, likewise.
    pub(crate) acts: u64,
    /// How often the kernel switched threads of the work in the windows tried.
    pub(crate) switches: u64,
}

/// Number and length of windows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) window_us: u64,
}

/// The part of one thread in one window.
#[derive(Debug, Clone, Copy)]
struct Part {
    begin: u64,
    end: u64,
    ops: u64,
    /// How often the kernel took the thread off its CPU, and all switches.
    switches: [u64; 2],
}

/// Measures all variants, interleaved. A variant's own warm-up windows come first and count for
/// nothing.
pub(crate) fn interleave(
    workers: &Workers,
    clock: &Clock,
    plan: Plan,
    variants: &[Variant<'_>],
    random: &mut Random,
) -> Result<Vec<Measured>> {
    let warm = |variant| {
        let mut measured = Measured { ns: None, tried: 0, switched: 0, ops: 0, acts: 0, switches: 0 };
        let batch_ops = warm_up(workers, clock, plan, variant, &mut measured)?;
        Ok((batch_ops, Vec::<f64>::new(), measured))
    };
    let mut series = variants.iter().map(warm).collect::<Result<Vec<_>>>()?;
    let mut order: Vec<usize> = (0..variants.len()).collect();
    for _ in 0..plan.rounds * TRIES_PER_ROUND {
        random.shuffle(&mut order);
        for &index in &order {
            let (batch_ops, samples, measured) = &mut series[index];
            if samples.len() < plan.rounds {
                let parts = window(workers, clock, plan.window_us, &variants[index], *batch_ops, measured)?;
                measured.tried += 1;
                measured.switched += usize::from(parts.iter().any(|part| part.switches[0] > 0));
                let of_work = &parts[..variants[index].threads];
                measured.switches += of_work.iter().map(|part| part.switches[1]).sum::<u64>();
                if counts(&parts, variants[index].beside.is_some_and(|beside| beside.switches)) {
                    samples.push(clock.ns(ticks_per_op(of_work)));
                }
            }
        }
    }
    let summed = |(_, samples, measured)| Measured { ns: Summary::of(samples), ..measured };
    Ok(series.into_iter().map(summed).collect())
}

/// Warms the caches and sizes the variant's batches.
///
/// The fastest of some windows sizes them. After a disturbed one, batches would be so small that
/// the clock readings show.
fn warm_up(
    workers: &Workers,
    clock: &Clock,
    plan: Plan,
    variant: &Variant<'_>,
    measured: &mut Measured,
) -> Result<u64> {
    let mut fastest_ns = f64::INFINITY;
    for _ in 0..WARM_UPS {
        let parts = window(workers, clock, plan.window_us, variant, 16, measured)?;
        fastest_ns = fastest_ns.min(clock.ns(ticks_per_op(&parts[..variant.threads])));
    }
    Ok(((BATCH_NS / fastest_ns.max(0.1)) as u64).clamp(1, BATCH_OPS_MAX))
}

/// Runs one window; the operations and acts of its parts are added to those of the variant.
fn window(
    workers: &Workers,
    clock: &Clock,
    window_us: u64,
    variant: &Variant<'_>,
    batch_ops: u64,
    measured: &mut Measured,
) -> Result<Vec<Part>> {
    let threads = variant.threads + usize::from(variant.beside.is_some());
    let (per_us, start) = (clock.ticks_per_us(), Start::new(threads));
    let parts = workers.try_run(threads, |thread| {
        let (mut cursor, mut next) = (0, 0);
        let mut turn = || match variant.beside.filter(|_| thread == variant.threads) {
            None => (variant.work)(thread, &mut cursor, batch_ops),
            Some(_) if clock::now() < next => {
                std::hint::spin_loop();
                Ok(0)
            }
            Some(beside) => {
                next = clock::now() + beside.every_us * per_us;
                (beside.act)().map(|()| 1)
            }
        };
        // A thread's first operations find nothing of its own in the caches. An error must not keep
        // the others waiting at the start.
        let warmed = turn();
        // Before the start, so that a thread that is switched out while it waits does not count.
        let before = ThreadUsage::now();
        let deadline = start.wait(2 * per_us) + window_us * per_us;
        let (begin, mut ops) = (clock::now(), 0);
        let first = warmed?;
        loop {
            ops += turn()?;
            let end = clock::now();
            if end >= deadline {
                let now = ThreadUsage::now();
                let switches =
                    [now.switches_involuntary - before.switches_involuntary, now.switches - before.switches];
                return Ok((Part { begin, end, ops, switches }, first));
            }
        }
    })?;
    for (thread, (part, first)) in parts.iter().enumerate() {
        let sum = if thread < variant.threads { &mut measured.ops } else { &mut measured.acts };
        *sum += part.ops + first;
    }
    Ok(parts.into_iter().map(|(part, _)| part).collect())
}

/// Whether a window of these parts counts (I1).
fn counts(parts: &[Part], switches: bool) -> bool {
    (switches || parts.iter().all(|part| part.switches[0] == 0)) && overlap(parts) > OVERLAP_LEAST
}

/// Ticks an operation as a thread sees it: all threads' time over all threads' operations.
fn ticks_per_op(parts: &[Part]) -> f64 {
    let ticks: u64 = parts.iter().map(|part| part.end - part.begin).sum();
    let ops: u64 = parts.iter().map(|part| part.ops).sum();
    ticks as f64 / ops.max(1) as f64
}

/// The part of the whole span during which all threads were in their window.
fn overlap(parts: &[Part]) -> f64 {
    let (begins, ends) = (parts.iter().map(|part| part.begin), parts.iter().map(|part| part.end));
    let common = ends.clone().min().unwrap_or(0).saturating_sub(begins.clone().max().unwrap_or(0));
    common as f64 / (ends.max().unwrap_or(0) - begins.min().unwrap_or(0)).max(1) as f64
}

/// Notes how many windows are behind the figures of a table, of how many tried, and why some
/// figures have none.
pub(crate) fn note_windows<'m>(table: &mut Table, measured: impl IntoIterator<Item = &'m Measured>) {
    let measured: Vec<&Measured> = measured.into_iter().collect();
    let range = |of: fn(&Measured) -> usize| {
        let of = || measured.iter().map(|one| of(one));
        match (of().min().unwrap_or(0), of().max().unwrap_or(0)) {
            (min, max) if min < max => format!("{min} to {max}"),
            (min, _) => min.to_string(),
        }
    };
    let counted = range(|one| one.ns.map_or(0, |ns| ns.count));
    table.note(format!("windows counted for each figure: {counted} of {} tried", range(|one| one.tried)));
    let missing: Vec<_> = measured.iter().filter(|one| one.ns.is_none()).collect();
    if !missing.is_empty() {
        let tried: usize = missing.iter().map(|one| one.tried).sum();
        let switched: usize = missing.iter().map(|one| one.switched).sum();
        table.note(format!("a dash: no window counted. Of {tried} tried windows, the kernel took a thread off its CPU in {switched}; in the others the threads' windows overlapped too little"));
    }
}

/// A small generator for the order of the windows, seeded so that a run can be repeated:
/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::Error;

    fn spanning(begin: u64, end: u64, ops: u64) -> Part {
        Part { begin, end, ops, switches: [0; 2] }
    }

    #[test]
    fn takes_the_common_part_of_the_span_as_overlap() {
        assert_eq!(overlap(&[spanning(0, 100, 1)]), 1.0);
        assert_eq!(overlap(&[spanning(0, 100, 1), spanning(0, 100, 1)]), 1.0);
        assert_eq!(overlap(&[spanning(0, 80, 1), spanning(20, 100, 1)]), 0.6);
        assert_eq!(overlap(&[spanning(0, 10, 1), spanning(20, 30, 1)]), 0.0);
    }

    #[test]
    fn counts_no_window_that_is_disturbed_or_overlaps_little() {
        let good = spanning(0, 100, 1);
        let counts = |parts: &[Part]| super::counts(parts, false);
        let switched = Part { switches: [1, 1], ..good };
        assert!(counts(&[good]) && counts(&[good, good]));
        assert!(!counts(&[switched]) && !counts(&[good, switched]));
        assert!(super::counts(&[good, switched], true), "the work is about switches");
        assert!(counts(&[good, spanning(4, 100, 1)]));
        assert!(!counts(&[good, spanning(5, 100, 1)]), "95 % is not more than 95 %");
        assert!(!super::counts(&[spanning(0, 10, 1), spanning(20, 30, 1)], true));
    }

    fn start(threads: usize) -> (Workers, Clock) {
        (Workers::start(threads).unwrap(), Clock::calibrate(Duration::from_millis(2)))
    }

    #[test]
    fn tries_again_and_never_counts_when_one_thread_ends_late() {
        let (workers, clock) = start(2);
        // Thread 1 is in its batch long after thread 0 has ended.
        let late = |thread: usize, _: &mut usize, count| {
            std::thread::sleep(Duration::from_millis(1 + 20 * thread as u64));
            Ok(count)
        };
        let plan = Plan { rounds: 1, window_us: 100 };
        let variants = [Variant::of(&late, 2)];
        let measured = interleave(&workers, &clock, plan, &variants, &mut Random::new(7)).unwrap();
        assert!(measured[0].ns.is_none());
        assert_eq!(measured[0].tried, TRIES_PER_ROUND);
        assert!(measured[0].switched <= TRIES_PER_ROUND);
    }

    #[test]
    fn takes_time_per_operation_as_each_thread_sees_it() {
        assert_eq!(ticks_per_op(&[spanning(0, 100, 10)]), 10.0);
        assert_eq!(ticks_per_op(&[spanning(0, 100, 10), spanning(0, 100, 30)]), 5.0);
    }

    #[test]
    fn sizes_batches_well_after_a_disturbed_warm_up() {
        let ((workers, clock), batches, largest) = (start(1), AtomicU64::new(0), AtomicU64::new(0));
        let slow_at_first = |_: usize, _: &mut usize, count: u64| {
            // ORDERING: Relaxed, here and below; counts, read after the workers are done.
            // The first one comes before the window.
            if batches.fetch_add(1, Ordering::Relaxed) == 1 {
                std::thread::sleep(Duration::from_millis(5));
            }
            largest.fetch_max(count, Ordering::Relaxed);
            Ok(count)
        };
        let plan = Plan { rounds: 1, window_us: 200 };
        let variants = [Variant::of(&slow_at_first, 1)];
        interleave(&workers, &clock, plan, &variants, &mut Random::new(7)).unwrap();
        // ORDERING: Relaxed; the windows are over.
        let largest = largest.load(Ordering::Relaxed);
        assert!(largest > 16, "batches of {largest}, no more than in the warm-up");
    }

    fn measure(fail: bool) -> Result<(Vec<Measured>, u64)> {
        let ((workers, clock), done) = (start(2), AtomicU64::new(0));
        let work = each(|| {
            // ORDERING: Relaxed; a count, read after the workers are done.
            done.fetch_add(1, Ordering::Relaxed);
            if fail { Err(Error::Wrong("on purpose".to_owned())) } else { Ok(()) }
        });
        let variants = [1, 2].map(|threads| Variant::of(&work, threads));
        let plan = Plan { rounds: 3, window_us: 200 };
        let measured = interleave(&workers, &clock, plan, &variants, &mut Random::new(7))?;
        // ORDERING: Relaxed; the windows are over.
        Ok((measured, done.load(Ordering::Relaxed)))
    }

    #[test]
    fn tries_every_variant_and_reports_every_operation() {
        let (measured, done) = measure(false).unwrap();
        assert!(done > 0);
        assert_eq!(measured.iter().map(|one| one.ops).sum::<u64>(), done);
        for one in measured {
            assert!((3..=9).contains(&one.tried));
            assert!(one.ns.is_none_or(|ns| ns.median > 0.0 && ns.count <= 3));
        }
    }

    #[test]
    fn ends_the_measurement_at_a_wrong_result() {
        assert!(matches!(measure(true), Err(Error::Wrong(text)) if text == "on purpose"));
    }

    #[test]
    fn keeps_every_item_and_reaches_every_order() {
        let mut random = Random::new(1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut items = [0, 1, 2];
            random.shuffle(&mut items);
            seen.insert(items);
            items.sort_unstable();
            assert_eq!(items, [0, 1, 2]);
        }
        assert_eq!(seen.len(), 6);
    }
}
