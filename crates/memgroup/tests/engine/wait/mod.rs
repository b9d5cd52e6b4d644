//! Waits: charges with a deadline, their order, and their ends.

mod charges;
mod checkpoints;
mod ends;
mod fairness;
mod room;
mod shrinker_slots;
mod storm;
mod together;

use std::time::{Duration, Instant};

use memgroup::{ChargeError, ChargeErrorKind, Config, Group, Hierarchy, SlotSource};

const PAGE: u64 = 4096;

/// A hierarchy on so many slots, with a group that has room for so many pages.
fn parent(slots: usize, pages: u64) -> (Hierarchy, Group) {
    let config = Config::with_slots(SlotSource::virtual_slots(slots).unwrap());
    let hierarchy = Hierarchy::new(config).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(pages * PAGE).unwrap();
    (hierarchy, tenants)
}

/// A deadline that no test comes to, unless it hangs.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn in_ms(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

/// Charges a page to a full group, for so many milliseconds. The call itself may begin late, and
/// then it waits for less.
fn waits_in_vain(group: &Group, ms: u64) -> ChargeError {
    let (called, deadline) = (Instant::now(), in_ms(ms));
    let error = group.charge_until(PAGE, deadline).unwrap_err();
    let ended = Instant::now();
    assert!(error.kind() == ChargeErrorKind::Deadline && ended >= deadline, "{error}");
    assert!(error.waited() > Duration::ZERO && error.waited() <= ended - called, "{error}");
    error
}

/// Until so many wait in the group and below.
fn until_waiting(group: &Group, waiters: usize) {
    let began = Instant::now();
    while group.waiters().now != waiters {
        assert!(began.elapsed() < Duration::from_secs(60), "{} wait, not {waiters}", group.waiters().now);
        std::thread::yield_now();
    }
}

/// Until so many are in line at `/tenants`; for waits of groups below it, which are said to wait
/// there when they do.
fn until_in_line(hierarchy: &Hierarchy, waiters: usize) {
    let began = Instant::now();
    while hierarchy.waits().iter().filter(|wait| wait.at == "/tenants").count() != waiters {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", hierarchy.waits());
        std::thread::yield_now();
    }
}
