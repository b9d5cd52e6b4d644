//! Tests of triggers with a clock that is moved by hand.

use super::*;

const MILLI: u64 = 1_000_000;

fn condition(text: &str) -> Condition {
    text.parse().unwrap()
}

/// A trigger on `some`, and a line that is switched by hand.
struct Bench {
    watch: Watch,
    now_ms: u64,
    total_ms: u64,
    is_on: bool,
    fired_at_ms: Vec<u64>,
}

impl Bench {
    fn new(text: &str) -> Bench {
        let mut bench = Bench {
            watch: Watch::new(condition(text), &seen(5000, 0, false)),
            now_ms: 5000,
            total_ms: 0,
            is_on: false,
            fired_at_ms: Vec::new(),
        };
        bench.run(0, false);
        bench
    }

    /// For so long the line is as it was, looked at each millisecond as by a waiter; then it is as told.
    fn run(&mut self, for_ms: u64, then: bool) {
        for step in 0..=for_ms {
            if step > 0 {
                self.now_ms += 1;
                self.total_ms += u64::from(self.is_on);
            }
            if step == for_ms {
                self.is_on = then;
            }
            self.watch.see(&seen(self.now_ms, self.total_ms, self.is_on));
            if std::mem::take(&mut self.watch.lock().is_due) {
                self.fired_at_ms.push(self.now_ms);
            }
        }
    }
}

fn seen(now_ms: u64, total_ms: u64, is_on: bool) -> Seen {
    let off = Progress { is_on: false, total_nanos: 0 };
    Seen { now: now_ms * MILLI, some: Progress { is_on, total_nanos: total_ms * MILLI }, full: off }
}

#[test]
fn it_fires_within_the_stall_that_brings_it_to_its_threshold() {
    let mut bench = Bench::new("some 150000 1000000");
    bench.run(100, true);
    bench.run(149, true);
    assert!(bench.fired_at_ms.is_empty());
    bench.run(1, true);
    assert_eq!(bench.fired_at_ms, [5250]);
}

#[test]
fn short_stalls_count_together_as_long_as_they_are_in_one_window() {
    let mut bench = Bench::new("some 150000 1000000");
    for _ in 0..20 {
        bench.run(90, true);
        bench.run(10, false);
    }
    assert!(bench.fired_at_ms.is_empty(), "100 ms in each second: {:?}", bench.fired_at_ms);
    for _ in 0..10 {
        bench.run(80, true);
        bench.run(20, false);
    }
    assert_eq!(bench.fired_at_ms.len(), 1, "200 ms in a second: {:?}", bench.fired_at_ms);
}

#[test]
fn a_stall_that_goes_on_fires_once_in_each_window_and_one_that_is_over_does_not_fire_again() {
    let mut bench = Bench::new("some 150000 1000000");
    bench.run(0, true);
    bench.run(3500, false);
    assert_eq!(bench.fired_at_ms, [5150, 6150, 7150, 8150]);
    bench.run(10_000, false);
    // 350 ms were stalled since it fired last, but of the window that ends a second after that.
    assert_eq!(bench.fired_at_ms, [5150, 6150, 7150, 8150, 9150]);
}

#[test]
fn what_it_has_fired_for_does_not_make_it_fire_again() {
    let mut bench = Bench::new("some 1 500000");
    bench.run(0, true);
    bench.run(7, false);
    bench.run(5000, false);
    // The line is looked at each millisecond: 1 ms is what it takes, and 6 ms come after that.
    assert_eq!(bench.fired_at_ms, [5001, 5501]);
    bench.run(0, true);
    bench.run(1, false);
    bench.run(5000, false);
    assert_eq!(bench.fired_at_ms.len(), 3, "{:?}", bench.fired_at_ms);
}

#[test]
fn a_waiter_sleeps_until_it_could_fire_and_dozes_where_nothing_is_stalled() {
    let watch = Watch::new(condition("some 150000 1000000"), &seen(0, 0, false));
    let patience = |now_ms, total_ms, is_on| {
        let seen = seen(now_ms, total_ms, is_on);
        let mut state = watch.lock();
        state.see(&watch.condition, &seen);
        watch.patience(&state, &seen).map(|patience| patience.as_millis())
    };
    assert_eq!(patience(100, 0, false), None);
    assert_eq!(patience(100, 0, true), Some(150));
    assert_eq!(patience(200, 100, true), Some(50));
    assert_eq!(patience(248, 148, true), Some(20), "a fiftieth of the window");
    assert_eq!(patience(250, 150, true), Some(1000), "it has fired");
    assert_eq!(patience(500, 150, false), None, "nothing is stalled, and nothing was since it fired");
}

#[test]
fn texts_that_are_no_trigger_are_told_what_would_be_right() {
    let cases = [
        ("", "it has 0 words and not three"),
        ("some", "it has 1 words and not three"),
        ("some 150000 1000000 7", "it has 4 words and not three"),
        ("most 150000 1000000", "it begins neither with some nor with full"),
        ("SOME 150000 1000000", "it begins neither with some nor with full"),
        ("some -5 1000000", "the stall and the window are not both whole numbers"),
        ("some +5 1000000", "the stall and the window are not both whole numbers"),
        ("some 1.5 1000000", "the stall and the window are not both whole numbers"),
        ("some 150000 99999999999999999999999", "the stall and the window are not both whole numbers"),
        ("some 150000 499999", "its window has 499999 us and not 500000 to 10000000"),
        ("full 150000 10000001", "its window has 10000001 us and not 500000 to 10000000"),
        ("some 18446744073709551615 18446744073709551615", "its window has 18446744073709551615 us"),
        ("some 0 1000000", "its stall has 0 us and not 1 to those of its window, 1000000"),
        ("full 1000001 1000000", "its stall has 1000001 us and not 1 to those of its window, 1000000"),
        ("some\u{a0}150000 1000000", "it has 2 words and not three"),
    ];
    let hierarchy = crate::Hierarchy::new(crate::Config::new()).unwrap();
    for (text, reason) in cases {
        let error = hierarchy.root().add_pressure_trigger(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{text:?} is no trigger: {reason}")), "{error}");
        assert!(error.ends_with("the line, the stall and the window in microseconds"), "{error}");
    }
    let long = hierarchy.root().add_pressure_trigger(&"x".repeat(1 << 20)).unwrap_err().to_string();
    assert!(long.len() < 300, "{} bytes", long.len());
    for text in ["some 1 500000", "full 10000000 10000000", "  full\t150000\n1000000 \n"] {
        assert!(text.parse::<Condition>().is_ok(), "{text:?}");
    }
}
