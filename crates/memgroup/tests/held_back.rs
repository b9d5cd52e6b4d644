//! Bytes that an allocator holds back for a group serve the charges that wait above it when the
//! group is removed.
//!
//! A binary of its own, because a process has one holder.
#![cfg(not(memgroup_loom))]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use memgroup::block::{self, Holder, Owner, Take};
use memgroup::{Config, Hierarchy, scope};
use xtask::Watchdog;

/// Shows its bytes to a removal only, as a slot does that was empty when the charge began to wait.
struct Late(Mutex<Option<(Owner, u64)>>);

impl Holder for Late {
    fn visit(&self, ask: &mut dyn FnMut(Owner, u64) -> Take, taken: &mut dyn FnMut(Owner, u64)) {
        // ORDERING: Relaxed; a number by itself.
        VISITS.fetch_add(1, Ordering::Relaxed);
        let mut held = self.0.lock().unwrap();
        let Some((owner, bytes)) = *held else { return };
        if matches!(ask(owner, bytes), Take::CloseSoon) {
            *held = None;
            taken(owner, bytes);
        }
    }
}

static LATE: Late = Late(Mutex::new(None));

/// How often the bytes of all threads were looked through.
static VISITS: AtomicU64 = AtomicU64::new(0);

/// Held by each test, because they share the holder.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_removal_serves_the_charge_that_waits_for_bytes_held_back() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::over("a charge that waits above a removed group");
    assert!(block::register(&LATE));
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(100_000).unwrap();
    let (removed, waiting) = (parent.create("removed").unwrap(), parent.create("waiting").unwrap());
    let owner = {
        let _scope = scope::enter(&removed);
        block::current().unwrap()
    };
    assert_eq!(owner.charge(60_000, 0).unwrap().bytes, 60_000);
    std::thread::scope(|threads| {
        let waiter =
            threads.spawn(|| waiting.charge_until(80_000, Instant::now() + Duration::from_secs(3600)));
        while parent.waiters().now == 0 {
            std::thread::yield_now();
        }
        // It looks once more after it queued. Without this pause that look may find the bytes, and
        // the removal has nothing to serve.
        std::thread::sleep(Duration::from_millis(200));
        *LATE.0.lock().unwrap() = Some((owner, 60_000));
        removed.remove().unwrap();
        assert_eq!(waiter.join().unwrap().unwrap().bytes(), 80_000);
    });
    assert_eq!(parent.usage_exact(), 0);
}

#[test]
fn frees_beside_a_charge_that_nearly_fits_look_through_no_threads() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::over("frees beside a charge that nearly fits");
    assert!(block::register(&LATE));
    let hierarchy = Hierarchy::new(Config::new().stock_budget_bytes(0)).unwrap();
    let group = hierarchy.create("/group").unwrap();
    group.set_max(100_000).unwrap();
    let owner = {
        let _scope = scope::enter(&group);
        block::current().unwrap()
    };
    assert_eq!(owner.charge(50_000, 0).unwrap().bytes, 50_000);
    let (held, visits) = std::thread::scope(|threads| {
        let waiter = threads.spawn(|| group.charge_until(50_001, Instant::now() + Duration::from_secs(3600)));
        // Until it has told how much it waits for, a slot may hold bytes back.
        while group.waiters().now == 0 || owner.may_hold_beside(false) {
            std::thread::yield_now();
        }
        // ORDERING: Relaxed; a number by itself.
        let before = VISITS.load(Ordering::Relaxed);
        let held = (0..1000).filter(|_| {
            let holds = owner.may_hold() || owner.may_hold_beside(false);
            owner.charge(16, 0);
            owner.uncharge(16);
            holds
        });
        let held = held.count();
        // ORDERING: Relaxed, as above.
        let visits = VISITS.load(Ordering::Relaxed) - before;
        owner.uncharge(50_000);
        assert_eq!(waiter.join().unwrap().unwrap().bytes(), 50_001);
        (held, visits)
    });
    assert_eq!(held, 0, "one byte is missing");
    assert!(visits <= 10, "1000 frees looked through all threads {visits} times");
    assert_eq!(group.usage_exact(), 0);
}
