//! Debts: the group that owes, the bytes, and the end of a debt.

use memgroup::{Config, Hierarchy, SlotSource, ThrottleEnd};

use super::cache::PAGE;
use super::{MIB, above, group};

#[test]
fn owes_the_bytes_above_but_no_more_than_it_charged() {
    let (_hierarchy, etl) = group(2);
    let (first, second) = (etl.create("first").unwrap(), etl.create("second").unwrap());
    etl.set_high(10 * MIB).unwrap();
    let within = first.try_charge(9 * MIB).unwrap();
    assert_eq!((first.owed(), etl.events().high), (0, 0));
    let across = first.try_charge(3 * MIB).unwrap();
    assert_eq!(first.owed(), 2 * MIB, "of its three MiB one is within the limit");
    let beyond = second.try_charge(MIB).unwrap();
    assert_eq!((first.owed(), second.owed(), etl.owed()), (2 * MIB, MIB, 0));
    assert_eq!(etl.events().high, 2);
    drop((within, across, beyond));
}

#[test]
fn with_several_levels_above_the_worst_one_counts_once() {
    let (_hierarchy, etl) = group(2);
    let tenant = etl.create("tenant").unwrap();
    etl.set_high(10 * MIB).unwrap();
    tenant.set_high(4 * MIB).unwrap();
    let charge = tenant.try_charge(12 * MIB).unwrap();
    assert_eq!(tenant.owed(), 8 * MIB);
    assert_eq!((etl.events_local().high, tenant.events_local().high, etl.events().high), (1, 1, 2));
    drop(charge);
}

#[test]
fn without_a_high_nothing_is_owed_and_no_event_is_counted() {
    let (hierarchy, etl) = group(2);
    etl.set_max(10 * MIB).unwrap();
    let charge = etl.try_charge(10 * MIB).unwrap();
    assert_eq!((etl.owed(), hierarchy.root().events().high), (0, 0));
    etl.set_high(5 * MIB).unwrap();
    assert_eq!(etl.owed(), 0, "earlier charges were within the limit then");
    etl.set_high(None).unwrap();
    let more = hierarchy.root().try_charge(MIB).unwrap();
    assert_eq!((hierarchy.root().owed(), hierarchy.root().events().high), (0, 0));
    drop((charge, more));
}

#[test]
fn a_forced_charge_is_owed_as_far_as_it_went_above_max() {
    let (_hierarchy, etl) = group(2);
    etl.set_max(10 * MIB).unwrap();
    let forced = etl.charge_forced(11 * MIB).unwrap();
    assert_eq!((etl.owed(), etl.overdraft().bytes), (MIB, MIB));
    let throttle = etl.take_throttle().unwrap();
    assert_eq!(throttle.delay().as_secs(), 2, "10 % above max, for 256 pages");
    drop(throttle);
    drop(forced);
    assert_eq!(etl.throttle(None).end, ThrottleEnd::Within);
    assert_eq!(etl.owed(), 0);
}

#[test]
fn a_high_above_max_counts_for_nothing_until_max_is_raised() {
    let (_hierarchy, etl) = group(2);
    etl.set_max(10 * MIB).unwrap();
    etl.set_high(20 * MIB).unwrap();
    let all = etl.try_charge(10 * MIB).unwrap();
    assert!(etl.try_charge(PAGE).is_err());
    assert_eq!((etl.events().high, etl.owed()), (0, 0));
    etl.set_max(30 * MIB).unwrap();
    let more = etl.try_charge(11 * MIB).unwrap();
    assert_eq!((etl.events().high, etl.owed()), (1, MIB));
    drop((all, more));
}

/// The most that a stock holds above `high`.
const ABOVE_HIGH: u64 = 64 << 10;

#[test]
fn a_high_of_nothing_lets_charges_pass_and_makes_each_owe() {
    let (_hierarchy, etl) = group(2);
    etl.set_high(0).unwrap();
    let charges: Vec<_> = (1..=10).map(|bytes| etl.try_charge(bytes).unwrap()).collect();
    assert!((55..55 + ABOVE_HIGH).contains(&etl.owed()), "{} bytes are owed", etl.owed());
    assert!((1..=10).contains(&etl.events().high), "an event for each charge of the counters");
    etl.drain();
    assert_eq!(
        (etl.usage(), etl.owed()),
        (55, 55),
        "bytes that are prepaid are owed no more when they are drained"
    );
    let large = etl.try_charge(1 << 45).unwrap();
    let throttle = etl.take_throttle().unwrap();
    assert_eq!((throttle.delay().as_secs(), throttle.bytes()), (2, 55 + (1 << 45)));
    drop((charges, large, throttle));
}

#[test]
fn adds_up_small_debts_until_they_are_due() {
    let (_hierarchy, etl, _pinned) = above(10);
    let mut pages = Vec::new();
    let throttle = loop {
        pages.push(etl.try_charge(PAGE).unwrap());
        let charged = pages.len() as u64 * PAGE;
        assert!((charged..=charged + ABOVE_HIGH).contains(&etl.owed()), "{charged}: {}", etl.owed());
        assert!(pages.len() < 200, "200 pages are owed and nothing is due");
        if let Some(throttle) = etl.take_throttle() {
            break throttle;
        }
    };
    let pages = pages.len();
    assert_eq!((etl.owed(), throttle.bytes()), (0, pages as u64 * PAGE));
    // With the pages themselves it is a little more than 1 %.
    assert!((90..=98).contains(&pages), "{pages} pages at 1 % are 10 ms");
}

#[test]
fn the_first_charge_above_high_owes_its_own_bytes_alone() {
    for slots in [2, 8] {
        let source = SlotSource::virtual_slots(slots).unwrap();
        let hierarchy = Hierarchy::new(Config::with_slots(source)).unwrap();
        let etl = hierarchy.create("/etl").unwrap();
        etl.set_high(100 * PAGE).unwrap();
        let charges: Vec<_> = (0..100).map(|_| etl.try_charge(PAGE).unwrap()).collect();
        assert_eq!((etl.usage(), etl.events().high), (100 * PAGE, 0), "{slots} slots");
        let charge = etl.try_charge(64).unwrap();
        assert_eq!((etl.usage(), etl.events().high, etl.owed()), (100 * PAGE + 64, 1, 64));
        drop((charges, charge));
    }
}

#[test]
fn counts_no_event_for_bytes_in_idle_stocks() {
    let source = SlotSource::virtual_slots(8).unwrap();
    let hierarchy = Hierarchy::new(Config::with_slots(source)).unwrap();
    let etl = hierarchy.create("/etl").unwrap();
    let idle = etl.create("idle").unwrap();
    drop((0..64).map(|_| idle.try_charge(PAGE).unwrap()).collect::<Vec<_>>());
    let prepaid = etl.usage();
    assert!(prepaid >= 8 * PAGE, "{prepaid} bytes are prepaid");
    etl.set_high(prepaid).unwrap();
    let busy = etl.create("busy").unwrap();
    let charge = busy.try_charge(prepaid - PAGE).unwrap();
    assert_eq!((etl.events().high, busy.owed()), (0, 0));
    assert!(etl.usage() < prepaid, "the stocks were drained");
    drop(charge);
}

#[test]
fn begins_without_limit_and_debt_in_a_reused_node() {
    let (hierarchy, etl, pinned) = above(500);
    let node = etl.id().node();
    let more = etl.try_charge(MIB).unwrap();
    assert_eq!(etl.owed(), MIB);
    drop((pinned, more));
    etl.remove().unwrap();
    drop(etl);
    let next = hierarchy.create("/next").unwrap();
    assert_eq!(next.id().node(), node, "it has the place of the one that was removed");
    assert_eq!((next.high(), next.owed(), next.events().high), (None, 0, 0));
}
