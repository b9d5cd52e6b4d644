//! Tests of one counter: refusals, the largest usage, the records of forced charges.

use crate::base::limit::BYTES_MAX;
use crate::state::counter::{Counter, Purpose, Verdict};

#[test]
fn refuses_above_the_limit_and_reports_usage_and_limit() {
    let counter = Counter::new();
    counter.set_max(100);
    assert_eq!(counter.try_charge(60, 0, Verdict::Hint, Purpose::Charge), Ok(60));
    let seen = counter.try_charge(41, 0, Verdict::Final, Purpose::Charge).unwrap_err();
    assert_eq!((seen.usage, seen.max, seen.offline), (60, 100, false));
    assert_eq!(counter.try_charge(40, 0, Verdict::Final, Purpose::Charge), Ok(100));
}

#[test]
fn keeps_usage_when_the_limit_is_changed_many_times() {
    let counter = Counter::new();
    counter.try_charge(77, 0, Verdict::Hint, Purpose::Charge).unwrap();
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
    assert_eq!(counter.try_charge(BYTES_MAX, 0, Verdict::Hint, Purpose::Charge), Ok(BYTES_MAX));
    assert!(counter.try_charge(1, 0, Verdict::Final, Purpose::Charge).is_err());
    assert!(counter.charge_forced(1, u64::MAX, true).is_err());
    assert!(!counter.is_offline());
    counter.uncharge(BYTES_MAX);
    assert_eq!(counter.usage(), 0);
}

#[test]
fn records_only_the_part_of_a_forced_charge_that_went_over() {
    let counter = Counter::new();
    counter.set_max(100);
    for (bytes, recorded) in [(90, (0, 0)), (30, (1, 20)), (5, (2, 25))] {
        let with_it = counter.charge_forced(bytes, u64::MAX, false).unwrap();
        counter.record_overdraft(with_it, bytes);
        assert_eq!(counter.overdraft(), recorded);
    }
}

#[test]
fn too_large_an_uncharge_panics_after_the_counter_is_repaired() {
    let counter = Counter::new();
    counter.try_charge(10, 0, Verdict::Hint, Purpose::Charge).unwrap();
    let complaint = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| counter.uncharge(11)));
    assert!(complaint.is_err());
    assert_eq!(counter.usage(), 0);
    assert!(!counter.is_offline());
    assert_eq!(counter.read().max, crate::base::limit::UNLIMITED);
}

#[test]
fn an_offline_counter_refuses_and_a_reset_one_does_not() {
    let counter = Counter::new();
    counter.set_max(10);
    counter.mark_offline();
    assert!(counter.try_charge(1, 0, Verdict::Final, Purpose::Charge).unwrap_err().offline);
    assert!(counter.charge_forced(1, u64::MAX, false).is_err());
    assert_eq!(counter.charge_forced(1, u64::MAX, true), Ok(1));
    counter.uncharge(1);
    counter.reset();
    assert_eq!(counter.try_charge(11, 0, Verdict::Hint, Purpose::Charge), Ok(11));
}
