//! Tests of the tally: against the kernel's windows, against the exact integral, and at the ends
//! of the clock.

use crate::observe::pressure::tally::*;

const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;

/// Averages as the kernel makes them, in windows of 2 s, in floating point.
struct Windows {
    averages: [f64; 3],
}

impl Windows {
    fn close(&mut self, stalled: f64) {
        for (average, span) in self.averages.iter_mut().zip([10.0, 60.0, 300.0]) {
            let kept = f64::exp(-2.0 / span);
            *average = *average * kept + 100.0 * stalled * (1.0 - kept);
        }
    }
}

fn averages(line: PressureLine) -> [f64; 3] {
    [line.avg10, line.avg60, line.avg300]
}

fn assert_close(found: [f64; 3], expected: [f64; 3], tolerance: [f64; 3], when: &str) {
    for index in 0..3 {
        let off = (found[index] - expected[index]).abs();
        assert!(off <= tolerance[index], "{when}: {found:?}, expected {expected:?} to within {tolerance:?}");
    }
}

/// xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn averages_are_close_to_those_of_the_kernels_windows() {
    // The kernel does not know where in its window a stall lies. With a window of w and an average
    // over T the error is at most w / 8 T.
    let tolerance = [10.0, 60.0, 300.0].map(|span| 100.0 * (2.0 + 0.1) / (8.0 * span) + 0.01);
    for seed in 1..=20 {
        let mut random = Random(seed * 0x9e37_79b9);
        let (mut tally, mut windows) = (Tally::default(), Windows { averages: [0.0; 3] });
        let (mut next, mut is_on, mut before) = (0, false, 0);
        let (on_most, off_most) = (1 + random.below(3000), 1 + random.below(3000));
        for window in 1..=400_u64 {
            let end = window * 2 * SECOND;
            while next < end {
                is_on = !is_on;
                tally.change(next, is_on, false);
                next += random.below(if is_on { on_most } else { off_most }) * MILLI + random.below(MILLI);
            }
            let total = tally.seen(end).some.total_nanos;
            windows.close((total - before) as f64 / (2 * SECOND) as f64);
            before = total;
            assert_close(averages(tally.report(end).some), windows.averages, tolerance, "at a window's end");
        }
    }
}

#[test]
fn averages_are_the_integral_weighted_by_age() {
    let mut random = Random(7);
    let (mut tally, mut now, mut is_on) = (Tally::default(), 0, false);
    let mut exact = [0.0_f64; 3];
    for _ in 0..20_000 {
        // From a microsecond to a minute.
        let most = 10_u64.pow(3 + random.below(8) as u32);
        let lasts = 1 + random.below(most);
        let kept = kept_after(lasts);
        for (exact, kept) in exact.iter_mut().zip(kept) {
            *exact = *exact * kept + if is_on { 100.0 * (1.0 - kept) } else { 0.0 };
        }
        now += lasts;
        is_on = !is_on;
        tally.change(now, is_on, is_on);
        let tolerance = [10.0, 60.0, 300.0].map(|span| 100.0 * 0.1 / (8.0 * span) + 1e-6);
        let report = tally.report(now);
        assert_close(averages(report.some), exact, tolerance, "some");
        assert_eq!(report.some, report.full, "both were on at the same times");
    }
}

#[test]
fn forgets_a_stall_of_nine_minutes_ago_without_a_look() {
    let mut tally = Tally::default();
    tally.change(100 * SECOND, true, true);
    tally.change(130 * SECOND, false, false);
    let report = tally.report(670 * SECOND);
    assert!(report.some.avg10 < 1e-9, "{report}");
    assert!((report.some.avg60 - 100.0 * (1.0 - f64::exp(-0.5)) * f64::exp(-9.0)).abs() < 1e-6, "{report}");
    assert!((report.some.avg300 - 100.0 * (1.0 - f64::exp(-0.1)) * f64::exp(-1.8)).abs() < 1e-6, "{report}");
    assert_eq!(report.some.total, 30_000_000);
}

#[test]
fn dates_a_short_stall_that_was_not_folded() {
    let mut tally = Tally::default();
    tally.change(100 * SECOND, true, false);
    tally.change(100 * SECOND + 50 * MILLI, false, false);
    // As much of the ten minutes would be 0.0083 of a hundred.
    assert!(tally.report(700 * SECOND).some.avg10 < 1e-9);
    let just_now = tally.report(100 * SECOND + 50 * MILLI).some.avg10;
    assert!((just_now - 0.5).abs() < 0.01, "{just_now}");
}

#[test]
fn shows_a_stall_that_is_on_and_reading_changes_nothing() {
    let (mut looked_at, mut alone) = (Tally::default(), Tally::default());
    for tally in [&mut looked_at, &mut alone] {
        tally.change(SECOND, true, true);
    }
    for tenth in 11..=110 {
        let report = looked_at.report(tenth * SECOND / 10);
        assert_eq!(report.full.total, (tenth - 10) * 100_000);
        let expected = 100.0 * (1.0 - f64::exp(-((tenth - 10) as f64) / 100.0));
        assert!((report.some.avg10 - expected).abs() < 1e-6, "{report} and not {expected}");
    }
    looked_at.change(20 * SECOND, false, false);
    alone.change(20 * SECOND, false, false);
    assert_eq!(looked_at.report(21 * SECOND), alone.report(21 * SECOND));
}

#[test]
fn loses_nothing_when_the_clock_stands_or_comes_late() {
    let mut tally = Tally::default();
    tally.change(10 * SECOND, true, true);
    tally.change(8 * SECOND, true, false);
    tally.change(10 * SECOND, true, true);
    assert_eq!(tally.seen(9 * SECOND).some.total_nanos, 0);
    tally.change(11 * SECOND, false, false);
    assert_eq!((tally.report(0).some.total, tally.report(0).full.total), (1_000_000, 1_000_000));
    for moment in [11 * SECOND, u64::MAX / 2, u64::MAX] {
        tally.change(moment, true, false);
        let report = tally.report(moment);
        assert!(averages(report.some).iter().all(|average| (0.0..=100.0).contains(average)), "{report:?}");
    }
    assert_eq!(tally.report(u64::MAX).full.total, 1_000_000);
}

#[test]
fn is_never_full_without_some() {
    let mut tally = Tally::default();
    tally.change(SECOND, false, true);
    assert_eq!(tally.report(2 * SECOND).full.total, 0);
}

#[test]
fn averages_of_a_line_on_for_hours_are_a_hundred() {
    let mut tally = Tally::default();
    tally.change(0, true, true);
    for minute in 1..=240 {
        tally.change(minute * 60 * SECOND, true, true);
    }
    let text = tally.report(240 * 60 * SECOND).to_string();
    assert!(text.starts_with("some avg10=100.00 avg60=100.00 avg300=100.00 total=14400000000\n"), "{text}");
}
