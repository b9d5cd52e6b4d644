//! Small tenants beside a runaway, all of them at work: no small one is refused, and no limit is
//! passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memgroup::{
    Charge, ChargeError, Config, Events, Group, Hierarchy, KillAnswer, KillRegistration, KillRequest,
    PressureLine, SlotSource,
};
use memgroup_percpu::pin_virtual;

use super::cache::{self, Tenant};

const PAGE: u64 = 4 << 10;
const MIB: u64 = 1 << 20;
/// Room below the parent for each tenant, the runaway included.
const TENANT: u64 = 4 * MIB;
const SMALL: usize = 8;
const STATEMENTS: usize = 40;
/// A small tenant charges in 1 to `STEPS` steps, at most 1 MiB, which is far below its even share.
const STEPS: usize = 16;
const STEP: u64 = 64 << 10;

fn sharing(slots: SlotSource, small: usize) -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::with_slots(slots)).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max((small as u64 + 1) * TENANT).unwrap();
    parent.set_share(8).unwrap();
    (hierarchy, parent)
}

/// A hook that stops the group's work by a flag. A charge of the group's own is refused instead.
fn stopped_by(group: &Group) -> (KillRegistration, Arc<AtomicBool>) {
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    let hook = group.set_kill_hook(move |request: &KillRequest<'_>| {
        if request.kills_requester {
            return KillAnswer::Refused;
        }
        // ORDERING: Relaxed, here and in the tests; the flags publish nothing but themselves.
        raised.store(true, Ordering::Relaxed);
        KillAnswer::Dying
    });
    (hook.unwrap(), stop)
}

/// The statements of a small tenant; panics when one is refused or stopped.
fn work_in(group: &Group, stop: &AtomicBool, charge: impl Fn(&Group) -> Result<Charge, ChargeError>) {
    for statement in 0..STATEMENTS {
        let mut held = Vec::new();
        for _ in 0..=statement * 7 % STEPS {
            held.push(charge(group).unwrap_or_else(|error| panic!("statement {statement}: {error}")));
            assert!(!stop.load(Ordering::Relaxed), "{} was stopped for another", group.path());
        }
        drop(held);
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Charges all that it can get, with a page of cache for each step, until it is refused or
/// stopped, again and again.
fn run_away(tenant: &Tenant, stop: &AtomicBool, working: &AtomicUsize) -> u64 {
    let mut refused = 0;
    while working.load(Ordering::Relaxed) > 0 {
        stop.store(false, Ordering::Relaxed);
        let mut held = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let Ok(charge) = tenant.group.try_charge(STEP) else { break };
            held.push(charge);
            let _ = tenant.try_fill(cache::PAGE);
        }
        refused += 1;
    }
    refused
}

fn nobody_small_fails(charge: impl Fn(&Group) -> Result<Charge, ChargeError> + Sync) {
    let (_hierarchy, parent) = sharing(SlotSource::detect(), SMALL);
    let large = Tenant::new(&parent, "large");
    let (large_hook, large_stop) = stopped_by(&large.group);
    let small: Vec<_> = (0..SMALL).map(|number| parent.create(&format!("small{number}")).unwrap()).collect();
    let working = AtomicUsize::new(SMALL);
    let refused = std::thread::scope(|threads| {
        for group in &small {
            let (working, charge) = (&working, &charge);
            threads.spawn(move || {
                let (_hook, stop) = stopped_by(group);
                // Also when it panics, so that the runaway ends.
                let _done = Done(working);
                work_in(group, &stop, charge);
            });
        }
        run_away(&large, &large_stop, &working)
    });
    assert!(refused > 0, "the runaway was never refused");
    let max = parent.max().unwrap();
    assert!(parent.peak() <= max, "{} above {max}", parent.peak());
    // Eight ninths, and a 128th for stocks.
    let most = max / 9 * 8 + max / 128;
    let held = large.group.peak();
    assert!(held <= most, "the runaway held {held}, at most {most} are its share");
    drop((large_hook, large));
    assert_eq!(parent.usage_exact(), 0);
}

struct Done<'w>(&'w AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn no_small_tenant_is_refused_at_once_beside_a_runaway() {
    nobody_small_fails(|group| group.try_charge(STEP));
}

#[test]
fn no_small_tenant_that_waits_is_refused_beside_a_runaway() {
    nobody_small_fails(|group| group.charge_until(STEP, Instant::now() + Duration::from_secs(60)));
}

/// Charges pages until one is refused, or so many.
fn fill(group: &Group, pages: usize) -> Vec<Charge> {
    (0..pages).map_while(|_| group.try_charge(PAGE).ok()).collect()
}

#[test]
fn prepaid_bytes_of_idle_tenants_decide_nothing() {
    for (slots, small, pages) in [(2, 1, 1), (2, 24, 32), (8, 8, 1), (32, 8, 32), (128, 24, 1)] {
        let (_hierarchy, parent) = sharing(SlotSource::virtual_slots(slots).unwrap(), small);
        let large = parent.create("large").unwrap();
        let small: Vec<_> = (0..small).map(|number| parent.create(&format!("s{number}")).unwrap()).collect();
        for group in &small {
            for slot in 0..slots {
                let _pin = pin_virtual(slot);
                (0..2 * 32 / pages).for_each(|_| assert_eq!(fill(group, pages).len(), pages));
            }
        }
        let prepaid = parent.usage() - parent.usage_exact();
        assert!(prepaid > 0, "{slots} slots: nothing is prepaid");
        let _pin = pin_virtual(0);
        let max = parent.max().unwrap();
        let held = fill(&large, (max / PAGE) as usize).len() as u64 * PAGE;
        let (fair, caps) = (max / 9 * 8, max / 128);
        assert!(
            held >= fair - caps && held <= fair + caps,
            "{slots} slots: {held} of {max}, {fair} are fair"
        );
        for group in &small {
            drop(group.try_charge(256 << 10).unwrap_or_else(|error| panic!("{slots} slots: {error}")));
        }
    }
}

#[test]
fn a_pair_with_every_setting_in_use_causes_no_event() {
    for stock in [true, false] {
        let config = if stock { Config::new() } else { Config::new().stock_cap_bytes(0) };
        let hierarchy = Hierarchy::new(config).unwrap();
        let (parent, tenant) =
            (hierarchy.create("/parent").unwrap(), hierarchy.create("/parent/tenant").unwrap());
        let set = |group: &Group| {
            group.set_max(1 << 40).unwrap();
            group.set_high(1 << 39).unwrap();
            group.set_low(2 * MIB).unwrap();
            group.set_min(MIB).unwrap();
            group.set_weight(500).unwrap();
            let mut peak = group.peak_reader();
            peak.reset();
            let pressure = group.add_pressure_trigger("some 150000 1000000".parse().unwrap());
            (peak, pressure, stopped_by(group))
        };
        let settings = [set(&parent), set(&tenant)];
        for _ in 0..10_000 {
            drop(tenant.try_charge(PAGE).unwrap());
        }
        for (group, (peak, _, (hook, stop))) in [&parent, &tenant].into_iter().zip(settings) {
            assert_eq!((group.events(), group.pressure().some), (Events::default(), PressureLine::default()));
            assert!(!hook.is_set_aside());
            assert!(peak.read() >= PAGE && !stop.load(Ordering::Relaxed));
        }
    }
}
