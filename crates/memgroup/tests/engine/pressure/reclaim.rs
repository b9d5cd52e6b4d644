//! Reclaim for a charge that did not fit is a stall; a reclaim by hand is not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memgroup::{Ask, Charge, Count, Group, Scan, Shrinker, ShrinkerConfig, scope};

use super::{MILLI, busy, full_us, hierarchy, some_us};

const PAGE: u64 = 4096;

/// A cache that takes a millisecond to give a page back.
struct Slow {
    pages: Mutex<Vec<Charge>>,
    busy_us: AtomicU64,
}

impl Shrinker for &'static Slow {
    fn count(&self, _token: u64) -> Count {
        Count::of(self.pages.lock().unwrap().len() as u64 * PAGE, PAGE)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let begin = std::time::Instant::now();
        // A callback may stall and enter scopes itself: its thread is stalled once.
        let mut bytes = 0;
        while bytes < ask.bytes() {
            busy(MILLI);
            let Some(page) = self.pages.lock().unwrap().pop() else { break };
            bytes += page.bytes();
        }
        self.busy_us.fetch_add(begin.elapsed().as_micros() as u64, Ordering::Relaxed);
        Scan::Freed { bytes }
    }
}

fn fill(group: &Group) -> &'static Slow {
    let pages = (0..16).map(|_| group.try_charge(PAGE).unwrap()).collect();
    Box::leak(Box::new(Slow { pages: Mutex::new(pages), busy_us: AtomicU64::new(0) }))
}

#[test]
fn stalls_a_charge_that_reclaims_in_its_group_and_above() {
    let hierarchy = hierarchy();
    let above = hierarchy.create("/above").unwrap();
    let (victim, charged) = (above.create("victim").unwrap(), above.create("charged").unwrap());
    above.set_max(20 * PAGE).unwrap();
    let slow = fill(&victim);
    let shrinker = victim.add_shrinker(ShrinkerConfig::new("slow"), slow).unwrap();
    shrinker.mark();
    let charge = charged.try_charge(8 * PAGE).unwrap();
    let busy_us = slow.busy_us.load(Ordering::Relaxed);
    assert!(busy_us >= 1000);
    for group in [&charged, &above, &hierarchy.root()] {
        assert!(some_us(group) >= busy_us, "{} of {busy_us} us", some_us(group));
        assert_eq!(full_us(group), some_us(group), "no thread was at work");
    }
    assert_eq!(some_us(&victim), 0, "the group that frees is not stalled");
    let before = some_us(&above);
    slow.pages.lock().unwrap().extend((0..4).map(|_| victim.try_charge(PAGE).unwrap()));
    shrinker.mark();
    victim.reclaim(2 * PAGE, None);
    assert!(slow.busy_us.load(Ordering::Relaxed) > busy_us);
    assert_eq!(some_us(&above), before, "a reclaim by hand is no stall");
    drop(charge);
    shrinker.remove().unwrap();
}

#[test]
fn a_charge_that_is_refused_was_stalled_and_is_no_more() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    group.set_max(20 * PAGE).unwrap();
    let slow = fill(&group);
    let shrinker = group.add_shrinker(ShrinkerConfig::new("slow"), slow).unwrap();
    shrinker.mark();
    let held = group.try_charge(4 * PAGE).unwrap();
    assert_eq!(some_us(&group), 0, "it fitted");
    group.try_charge(20 * PAGE).unwrap_err();
    let total = some_us(&group);
    assert!(total >= slow.busy_us.load(Ordering::Relaxed) && total > 0);
    busy(MILLI);
    assert_eq!(some_us(&group), total);
    drop(held);
    shrinker.remove().unwrap();
}

/// A cache that enters scopes and stalls while it gives back.
struct Nested {
    group: Group,
    pages: Arc<Mutex<Vec<Charge>>>,
}

impl Shrinker for Nested {
    fn count(&self, _token: u64) -> Count {
        Count::of(self.pages.lock().unwrap().len() as u64 * PAGE, PAGE)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        let _scope = scope::enter(&self.group);
        let _stall = self.group.stall();
        busy(MILLI);
        let bytes = self.pages.lock().unwrap().pop().map_or(0, |page| page.bytes());
        Scan::Freed { bytes }
    }
}

#[test]
fn counts_a_stall_within_a_callback_once() {
    let hierarchy = hierarchy();
    let (group, caches) = (hierarchy.create("/group").unwrap(), hierarchy.create("/caches").unwrap());
    hierarchy.root().set_max(20 * PAGE).unwrap();
    let pages = Arc::new(Mutex::new((0..16).map(|_| caches.try_charge(PAGE).unwrap()).collect()));
    let cache = Nested { group: caches.clone(), pages: Arc::clone(&pages) };
    let shrinker = caches.add_shrinker(ShrinkerConfig::new("nested"), cache).unwrap();
    shrinker.mark();
    let _charge = group.try_charge(6 * PAGE).unwrap();
    assert!(some_us(&group) >= 1000);
    assert_eq!(some_us(&caches), 0, "the thread was stalled for another group already");
    assert_eq!(full_us(&group), some_us(&group), "its thread is at work in no scope");
    pages.lock().unwrap().clear();
    shrinker.remove().unwrap();
}
