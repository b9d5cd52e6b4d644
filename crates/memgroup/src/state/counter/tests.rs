//! Tests of one counter: refusals, the largest usage, the records of forced charges.

use memgroup_sync::Erasable;

use crate::base::limit::BYTES_MAX;
use crate::state::counter::{Counter, Purpose, Reading};
use crate::state::past::Past;

#[test]
fn refuses_above_the_limit_and_reports_usage_and_limit() {
    let counter = Counter::new();
    counter.set_max(100);
    assert_eq!(counter.try_charge(60, 0, Purpose::Charge), Ok(60));
    let seen = counter.try_charge(41, 0, Purpose::Charge).unwrap_err();
    assert_eq!((seen.usage, seen.max, seen.offline), (60, 100, false));
    assert_eq!(counter.try_charge(40, 0, Purpose::Charge), Ok(100));
}

#[test]
fn keeps_usage_when_the_limit_is_changed_many_times() {
    let counter = Counter::new();
    counter.try_charge(77, 0, Purpose::Charge).unwrap();
    for max in 0..100_000 {
        counter.set_max(max);
        assert_eq!(counter.read().max, max);
    }
    assert_eq!(counter.usage(), 77);
    assert!(!counter.is_offline());
}

#[test]
fn holds_no_more_than_its_bits() {
    let counter = Counter::new();
    assert_eq!(counter.try_charge(BYTES_MAX, 0, Purpose::Charge), Ok(BYTES_MAX));
    assert!(counter.try_charge(1, 0, Purpose::Charge).is_err());
    assert!(counter.charge_forced(1, u64::MAX, true).is_err());
    assert!(!counter.is_offline());
    counter.uncharge(BYTES_MAX);
    assert_eq!(counter.usage(), 0);
}

#[test]
fn records_only_the_part_of_a_forced_charge_that_went_over() {
    let (counter, past) = (Counter::new(), Past::zero());
    counter.set_max(100);
    for (bytes, recorded) in [(90, (0, 0)), (30, (1, 20)), (5, (2, 25))] {
        let with_it = counter.charge_forced(bytes, u64::MAX, false).unwrap();
        let with_it = Reading { usage: with_it, ..counter.read() };
        assert_eq!(with_it.usage > with_it.max && past.record_overdraft(with_it, bytes), recorded.0 > 0);
        assert_eq!(past.overdraft(), recorded);
    }
}

#[test]
fn too_large_an_uncharge_takes_what_is_there_and_no_mark() {
    for (is_offline, is_over) in [(false, false), (true, false), (false, true), (true, true)] {
        let counter = Counter::new();
        counter.set_max(100);
        counter.try_charge(10, 0, Purpose::Charge).unwrap();
        counter.mark_over(is_over);
        if is_offline {
            counter.mark_offline();
        }
        for bytes in [11, BYTES_MAX, u64::MAX] {
            let left = counter.uncharge(bytes);
            assert_eq!((left.is_done(), left.is_over()), (is_offline, is_over), "{bytes}");
            let seen = counter.read();
            assert_eq!(
                (seen.usage, seen.max, seen.offline, seen.over),
                (0, 100, is_offline, is_over),
                "{bytes}"
            );
        }
    }
}

#[test]
fn threads_that_take_back_too_much_together_leave_no_mark_and_no_byte() {
    let counter = Counter::new();
    counter.set_max(1000);
    std::thread::scope(|threads| {
        for seed in 1..4_u64 {
            let counter = &counter;
            threads.spawn(move || {
                for round in 0..20_000 {
                    let bytes = (round * seed) % 50;
                    if counter.try_charge(bytes, 0, Purpose::Charge).is_ok() {
                        counter.uncharge(bytes + round % 3);
                    }
                    let seen = counter.read();
                    assert!(
                        seen.usage <= 1000 && !seen.offline && !seen.over && seen.max == 1000,
                        "{seen:?}"
                    );
                }
            });
        }
    });
    counter.uncharge(1000);
    assert_eq!(counter.usage(), 0);
}

#[test]
fn an_offline_counter_refuses_and_a_reset_one_does_not() {
    let counter = Counter::new();
    counter.set_max(10);
    counter.mark_offline();
    assert!(counter.try_charge(1, 0, Purpose::Charge).unwrap_err().offline);
    assert!(counter.charge_forced(1, u64::MAX, false).is_err());
    assert_eq!(counter.charge_forced(1, u64::MAX, true), Ok(1));
    counter.uncharge(1);
    counter.reset();
    assert_eq!(counter.try_charge(11, 0, Purpose::Charge), Ok(11));
}
