//! Tests of triggers with a clock that the test sets.

use crate::observe::pressure::trigger::*;

const MILLI: u64 = 1_000_000;

fn trigger(text: &str) -> PressureTrigger {
    text.parse().unwrap()
}

/// A trigger on `some`, and a line that the test switches.
struct Bench {
    watch: TriggerState,
    now_ms: u64,
    total_ms: u64,
    is_on: bool,
    fired_at_ms: Vec<u64>,
}

impl Bench {
    fn new(text: &str) -> Bench {
        let mut bench = Bench {
            watch: TriggerState::new(trigger(text), &seen(5000, 0, false)),
            now_ms: 5000,
            total_ms: 0,
            is_on: false,
            fired_at_ms: Vec::new(),
        };
        bench.run(0, false);
        bench
    }

    /// Keeps the line as it is for so long, looks at it each millisecond as a waiter does, then
    /// switches it.
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
            if std::mem::take(&mut self.watch.state.lock().is_due) {
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
fn fires_within_the_stall_that_reaches_its_threshold() {
    let mut bench = Bench::new("some 150000 1000000");
    bench.run(100, true);
    bench.run(149, true);
    assert!(bench.fired_at_ms.is_empty());
    bench.run(1, true);
    assert_eq!(bench.fired_at_ms, [5250]);
}

#[test]
fn adds_up_short_stalls_in_one_window() {
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
fn fires_once_a_window_while_the_stall_lasts() {
    let mut bench = Bench::new("some 150000 1000000");
    bench.run(0, true);
    bench.run(3500, false);
    assert_eq!(bench.fired_at_ms, [5150, 6150, 7150, 8150]);
    bench.run(10_000, false);
    // 350 ms were stalled since it fired last, in the window that ends a second after that.
    assert_eq!(bench.fired_at_ms, [5150, 6150, 7150, 8150, 9150]);
}

#[test]
fn counts_a_stall_for_one_firing() {
    let mut bench = Bench::new("some 1 500000");
    bench.run(0, true);
    bench.run(7, false);
    bench.run(5000, false);
    // The line is looked at each millisecond: 1 ms makes it fire, and 6 ms come after that.
    assert_eq!(bench.fired_at_ms, [5001, 5501]);
    bench.run(0, true);
    bench.run(1, false);
    bench.run(5000, false);
    assert_eq!(bench.fired_at_ms.len(), 3, "{:?}", bench.fired_at_ms);
}

#[test]
fn lets_a_waiter_sleep_until_it_could_fire() {
    let watch = TriggerState::new(trigger("some 150000 1000000"), &seen(0, 0, false));
    let patience = |now_ms, total_ms, is_on| {
        let seen = seen(now_ms, total_ms, is_on);
        let mut state = watch.state.lock();
        state.see(&watch.trigger, &seen);
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
fn refuses_texts_and_ranges_that_are_no_trigger() {
    let cases = [
        ("", "it does not have three words"),
        ("some", "it does not have three words"),
        ("some 150000 1000000 7", "it does not have three words"),
        ("most 150000 1000000", "it begins neither with some nor with full"),
        ("SOME 150000 1000000", "it begins neither with some nor with full"),
        ("some -5 1000000", "the stall and the window are not whole numbers"),
        ("some +5 1000000", "the stall and the window are not whole numbers"),
        ("some 1.5 1000000", "the stall and the window are not whole numbers"),
        ("some 150000 99999999999999999999999", "the stall and the window are not whole numbers"),
        ("some 150000 499999", "its window is not 500 ms to 10 s"),
        ("full 150000 10000001", "its window is not 500 ms to 10 s"),
        ("some 18446744073709551615 18446744073709551615", "its window is not 500 ms to 10 s"),
        ("some 0 1000000", "its stall is not 1 us to its window"),
        ("full 1000001 1000000", "its stall is not 1 us to its window"),
        ("some\u{a0}150000 1000000", "it does not have three words"),
    ];
    for (text, reason) in cases {
        let error = text.parse::<PressureTrigger>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("read the pressure trigger {text:?}: {reason}; ")), "{error}");
        assert!(error.ends_with("the line, the stall and the window in microseconds"), "{error}");
    }
    let long = "x".repeat(1 << 20).parse::<PressureTrigger>().unwrap_err().to_string();
    assert!(long.len() < 300, "{} bytes", long.len());
    for text in ["some 1 500000", "full 10000000 10000000", "  full\t150000\n1000000 \n"] {
        assert!(text.parse::<PressureTrigger>().is_ok(), "{text:?}");
    }
}
