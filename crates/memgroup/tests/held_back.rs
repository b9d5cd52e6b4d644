//! Bytes that an allocator holds back for a group serve the charges that wait above it when the group is removed.
//!
//! A binary of its own, because a process has one holder.
#![cfg(not(memgroup_loom))]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use memgroup::block::{self, Holder, Owner, Take};
use memgroup::{Config, Hierarchy, scope};
use xtask::Watchdog;

/// Shows its bytes to a removal only, as a slot does that was empty when the charge began to wait.
struct Late(Mutex<Option<(Owner, u64)>>);

impl Holder for Late {
    fn visit(&self, ask: &mut dyn FnMut(Owner, u64) -> Take, taken: &mut dyn FnMut(Owner, u64)) {
        let mut held = self.0.lock().unwrap();
        let Some((owner, bytes)) = *held else { return };
        if matches!(ask(owner, bytes), Take::CloseSoon) {
            *held = None;
            taken(owner, bytes);
        }
    }
}

static LATE: Late = Late(Mutex::new(None));

#[test]
fn a_removal_serves_the_charge_that_waits_for_bytes_held_back() {
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
