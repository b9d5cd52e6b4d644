//! Waits and delays of the engine are stalls; a delay that a user schedules is not.

use std::time::{Duration, Instant};

use memgroup::ThrottleEnd;

use super::{MILLI, full_us, hierarchy, some_us, us};

#[test]
fn a_throttled_thread_is_stalled_in_its_own_group_and_above() {
    let hierarchy = hierarchy();
    let above = hierarchy.create("/above").unwrap();
    let (group, other) = (above.create("group").unwrap(), above.create("other").unwrap());
    group.set_high(1 << 20).unwrap();
    let _pinned = group.try_charge(2 << 20).unwrap();
    assert_eq!(some_us(&group), 0);
    let around = Instant::now();
    let throttled = group.throttle(Some(Instant::now() + 20 * MILLI));
    let around = us(around.elapsed());
    assert_eq!(throttled.end, ThrottleEnd::Deadline);
    let total = some_us(&group);
    let slack = if cfg!(memgroup_emulated) { 20_000 } else { 1000 };
    assert!(total + slack >= us(throttled.slept) && total <= around, "{total} us of {throttled:?}, {around}");
    assert_eq!((some_us(&above), some_us(&hierarchy.root()), some_us(&other)), (total, total, 0));
    assert_eq!(full_us(&group), total, "no thread was at work");
    // A delay that is handed out stalls no thread.
    let delay = group.take_throttle();
    std::thread::sleep(MILLI);
    drop(delay);
    assert_eq!(some_us(&group), total);
}

#[test]
fn does_not_stall_a_thread_that_waits_for_events() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("some 1 500000".parse().unwrap());
    assert!(!trigger.wait(Instant::now() + Duration::from_millis(5)));
    assert_eq!(some_us(&group), 0);
}
