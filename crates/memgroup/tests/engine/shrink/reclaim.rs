//! Which caches are asked, for how much, and which charge gets it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{
    Ask, Charge, ChargeErrorKind, Config, Count, Freshness, Group, Hierarchy, Reach, Scan, Shrinker,
    ShrinkerConfig, SlotSource, stats,
};

use super::cache::{BATCH, Cache, PAGE, Tenant, add, parent, plenty};

#[test]
fn reclaims_from_an_idle_tenant_before_it_refuses() {
    let (_hierarchy, tenants) = parent(2, 1024);
    let idle = Tenant::new(&tenants, "idle");
    let busy = Tenant::new(&tenants, "busy");
    idle.fill(1000);
    let charges: Vec<Charge> = (0..500).map(|_| busy.group.try_charge(PAGE).unwrap()).collect();
    assert_eq!((busy.group.refusals(), tenants.refusals()), (0, 0));
    let left = idle.cache.len() as u64;
    assert!(left <= 1024 - 500, "{left} pages are left, {} were charged", charges.len());
    assert!(
        left >= 1024 - 500 - 2 * BATCH / PAGE - 128,
        "{left} pages are left: more was taken than was needed"
    );
    assert!(tenants.usage() <= tenants.max().unwrap());
}

#[test]
fn takes_at_most_a_batch_more_than_needed() {
    let (_hierarchy, tenants) = parent(2, 1024);
    let idle = Tenant::new(&tenants, "idle");
    let busy = tenants.create("busy").unwrap();
    idle.fill(1024);
    let _charge = busy.try_charge(100 * PAGE).unwrap();
    let taken = 1024 - idle.cache.len() as u64;
    assert!((100..100 + BATCH / PAGE).contains(&taken), "{taken} pages were taken for 100");
}

#[test]
fn asks_larger_caches_first() {
    let (_hierarchy, tenants) = parent(2, 20_000);
    let large = Tenant::new(&tenants, "large");
    let small: Vec<Tenant> = (0..50).map(|at| Tenant::new(&tenants, &format!("small{at}"))).collect();
    let busy = tenants.create("busy").unwrap();
    small.iter().for_each(|tenant| tenant.fill(4));
    large.fill(20_000 - 50 * 4);
    // At first no size is known.
    drop(busy.try_charge(PAGE).unwrap());
    assert!(small.iter().all(|tenant| tenant.cache.counted() <= 2));
    large.fill(20_000 - 50 * 4 - large.cache.len() as u64);
    let _charge = busy.try_charge(1000 * PAGE).unwrap();
    assert!(small.iter().all(|tenant| tenant.cache.counted() == 0 && tenant.cache.len() == 4));
}

#[test]
fn asks_small_caches_last() {
    let (_hierarchy, tenants) = parent(2, 200);
    let small: Vec<Tenant> = (0..50).map(|at| Tenant::new(&tenants, &format!("small{at}"))).collect();
    small.iter().for_each(|tenant| tenant.fill(4));
    let busy = tenants.create("busy").unwrap();
    let _charge = busy.try_charge(200 * PAGE).unwrap();
    assert!(small.iter().all(|tenant| tenant.cache.len() == 0));
}

#[test]
fn does_not_count_an_empty_cache_before_it_is_marked() {
    let (_hierarchy, tenants) = parent(2, 64);
    let idle = Tenant::new(&tenants, "idle");
    let full = tenants.create("full").unwrap();
    let _charge = full.try_charge(64 * PAGE).unwrap();
    idle.shrinker.mark();
    assert!(full.try_charge(PAGE).is_err());
    assert!(idle.cache.counted() > 0);
    for _ in 0..10 {
        assert!(full.try_charge(PAGE).is_err());
    }
    assert_eq!(idle.cache.counted(), 0);
    idle.shrinker.mark();
    assert!(full.try_charge(PAGE).is_err());
    assert!(idle.cache.counted() > 0);
}

#[test]
fn asks_only_the_subtree_of_the_refusing_group() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let (here, there) = (hierarchy.create("/here").unwrap(), hierarchy.create("/there").unwrap());
    here.set_max(100 * PAGE).unwrap();
    let (inside, outside) = (Tenant::new(&here, "inside"), Tenant::new(&there, "outside"));
    inside.fill(100);
    outside.fill(100);
    let _charge = here.create("busy").unwrap().try_charge(50 * PAGE).unwrap();
    assert!(inside.cache.len() <= 50);
    assert_eq!((outside.cache.len(), outside.cache.counted()), (100, 0));
}

#[test]
fn asks_a_removed_group_that_holds_a_cache() {
    let (_hierarchy, tenants) = parent(2, 100);
    let gone = Tenant::new(&tenants, "gone");
    gone.fill(100);
    gone.group.remove().unwrap();
    let _charge = tenants.create("busy").unwrap().try_charge(80 * PAGE).unwrap();
    assert!(gone.cache.len() <= 20);
}

#[test]
fn asks_the_charging_group_itself() {
    let (_hierarchy, tenants) = parent(2, 1000);
    let tenant = Tenant::new(&tenants, "tenant");
    tenant.group.set_max(100 * PAGE).unwrap();
    tenant.fill(100);
    let _charge = tenant.group.try_charge(30 * PAGE).unwrap();
    assert!(tenant.cache.len() <= 70);
}

#[test]
fn asks_a_cache_in_the_root() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let root = hierarchy.root();
    root.set_max(100 * PAGE).unwrap();
    let cache = Arc::new(Cache::default());
    let shrinker = root.add_shrinker(ShrinkerConfig::new("root"), Arc::clone(&cache)).unwrap();
    (0..100).for_each(|_| cache.push(root.try_charge(PAGE).unwrap()));
    shrinker.mark();
    let _charge = hierarchy.create("/a").unwrap().create("b").unwrap().try_charge(60 * PAGE).unwrap();
    assert!(cache.len() <= 40);
}

/// A cache that frees pages while another group, in the same callback, tries to charge their
/// bytes.
struct Robbed {
    pages: Mutex<Vec<Charge>>,
    robber: Group,
    robbed: Mutex<Vec<Result<Charge, ChargeErrorKind>>>,
}

impl Shrinker for Robbed {
    fn count(&self, _token: u64) -> Count {
        let pages = self.pages.lock().unwrap().len() as u64;
        Count::of(pages * PAGE, pages)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let mut pages = self.pages.lock().unwrap();
        let keep = pages.len().saturating_sub((ask.bytes() / PAGE) as usize);
        pages.truncate(keep);
        drop(pages);
        // There is no reserve, and a thread does not wait within a call: this charge takes all
        // bytes that any thread can have now.
        let attempt = self.robber.try_charge(PAGE).map_err(|error| error.kind());
        self.robbed.lock().unwrap().push(attempt);
        Scan::Freed { bytes: ask.bytes() }
    }
}

#[test]
fn gives_freed_bytes_to_the_charge_that_freed_them() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).reclaim_reserve_bytes(0);
    let hierarchy = Hierarchy::new(config).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(100 * PAGE).unwrap();
    let group = tenants.create("idle").unwrap();
    let pages = (0..100).map(|_| group.try_charge(PAGE).unwrap()).collect();
    let robber = tenants.create("robber").unwrap();
    let cache = Arc::new(Robbed { pages: Mutex::new(pages), robber, robbed: Mutex::default() });
    let shrinker =
        group.add_shrinker(ShrinkerConfig::new("robbed").batch_bytes(8 * PAGE), Arc::clone(&cache)).unwrap();
    shrinker.mark();
    let charge = tenants.create("busy").unwrap().try_charge(40 * PAGE).unwrap();
    let robbed = cache.robbed.lock().unwrap();
    assert!(robbed.len() >= 5, "{} batches", robbed.len());
    for attempt in robbed.iter() {
        assert_eq!(attempt.as_ref().unwrap_err(), &ChargeErrorKind::Refused);
    }
    drop(charge);
}

#[test]
fn uncharges_freed_bytes_that_were_not_enough() {
    let (_hierarchy, tenants) = parent(2, 100);
    let idle = Tenant::new(&tenants, "idle");
    let held = tenants.create("held").unwrap();
    let _held = held.try_charge(80 * PAGE).unwrap();
    idle.fill(20);
    let error = tenants.create("busy").unwrap().try_charge(50 * PAGE).unwrap_err();
    assert_eq!(error.kind(), ChargeErrorKind::Refused);
    assert_eq!(tenants.usage_exact(), 80 * PAGE + idle.cache.len() as u64 * PAGE);
    let _charge = held.try_charge(10 * PAGE).unwrap();
}

#[test]
fn reclaims_by_hand() {
    let (hierarchy, tenants) = parent(2, 2000);
    let tenant = Tenant::new(&tenants, "tenant");
    tenant.fill(1000);
    let reclaimed = tenants.reclaim(100 * PAGE, None);
    assert!((100 * PAGE..100 * PAGE + BATCH).contains(&reclaimed.bytes), "{reclaimed:?}");
    assert_eq!(tenant.group.usage_exact(), 1000 * PAGE - reclaimed.bytes);
    let reclaimed_stat =
        hierarchy.memory().get(&tenant.group, stats::memory::RECLAIMED, Reach::Local, Freshness::Fresh);
    assert_eq!(reclaimed_stat, reclaimed.bytes as i64);
    assert_eq!(tenants.reclaim(0, None).scans, 0);
    let rest = tenants.reclaim(u64::MAX, None);
    assert_eq!((rest.bytes, tenant.cache.len()), (1000 * PAGE - reclaimed.bytes, 0));
}

#[test]
fn reclaims_from_all_groups_by_hand_in_an_unaccounted_root() {
    for account_root in [true, false] {
        let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).account_root(account_root);
        let hierarchy = Hierarchy::new(config).unwrap();
        let root = hierarchy.root();
        let own = Arc::new(Cache::default());
        let shrinker = root.add_shrinker(ShrinkerConfig::new("own"), Arc::clone(&own)).unwrap();
        own.push(root.try_charge(PAGE).unwrap());
        shrinker.mark();
        let tenant = Tenant::new(&hierarchy.create("/tenants").unwrap(), "tenant");
        tenant.fill(1000);
        assert_eq!(root.reclaim(PAGE, None).bytes, BATCH, "{account_root}");
        assert_eq!(tenant.group.usage_exact(), 1000 * PAGE - BATCH);
        assert_eq!(root.reclaim(u64::MAX, None).bytes, 1001 * PAGE - BATCH);
        assert_eq!((tenant.group.usage_exact(), root.usage_exact()), (0, 0));
        // A charge asks only caches with memory that counts in the refusing group.
        tenant.fill(10);
        root.set_max(10 * PAGE).unwrap();
        let _held = root.charge_forced(10 * PAGE).unwrap();
        assert!(root.try_charge(PAGE).is_err());
        assert_eq!(tenant.cache.len(), if account_root { 0 } else { 10 });
    }
}

#[test]
fn refuses_when_reclaim_is_off() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).reclaim(false);
    let hierarchy = Hierarchy::new(config).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(100 * PAGE).unwrap();
    let idle = Tenant::new(&tenants, "idle");
    idle.fill(100);
    let busy = tenants.create("busy").unwrap();
    assert!(busy.try_charge(PAGE).is_err());
    assert_eq!(idle.cache.len(), 100);
    tenants.reclaim(10 * PAGE, None);
    assert!(busy.try_charge(PAGE).is_ok());
}

#[test]
fn reclaims_without_stock() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).stock_cap_bytes(0);
    let hierarchy = Hierarchy::new(config).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(100 * PAGE).unwrap();
    let idle = Tenant::new(&tenants, "idle");
    idle.fill(100);
    let _charge = tenants.create("busy").unwrap().try_charge(60 * PAGE).unwrap();
    assert!(idle.cache.len() <= 40);
    assert!(tenants.usage() <= tenants.max().unwrap());
}

#[test]
fn reclaims_at_every_full_level() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let outer = hierarchy.create("/outer").unwrap();
    outer.set_max(300 * PAGE).unwrap();
    let inner = outer.create("inner").unwrap();
    inner.set_max(100 * PAGE).unwrap();
    let (near, far) = (Tenant::new(&inner, "near"), Tenant::new(&outer, "far"));
    near.fill(100);
    far.fill(200);
    let busy = inner.create("busy").unwrap();
    let charges: Vec<Charge> = (0..60).map(|_| busy.try_charge(PAGE).unwrap()).collect();
    assert!(near.cache.len() <= 40);
    assert!(inner.usage() <= inner.max().unwrap() && outer.usage() <= outer.max().unwrap());
    drop(charges);
}

#[test]
fn finds_a_grown_cache_when_it_is_marked() {
    let (_hierarchy, tenants) = parent(2, 4000);
    let (grown, other) = (Tenant::new(&tenants, "grown"), Tenant::new(&tenants, "other"));
    grown.fill(1);
    other.fill(1500);
    tenants.reclaim(PAGE, None);
    // Both are known by now. One grows without a word, and is small to a walk that has enough
    // elsewhere.
    let before = grown.cache.len() as u64;
    (0..1500).for_each(|_| grown.cache.push(grown.group.try_charge(PAGE).unwrap()));
    tenants.reclaim(BATCH, None);
    assert_eq!(grown.cache.len() as u64, before + 1500);
    grown.shrinker.mark();
    grown.cache.counted();
    tenants.reclaim(BATCH, None);
    assert!(grown.cache.counted() > 0);
}

#[test]
fn counts_reclaimed_bytes_at_both_groups() {
    let (hierarchy, tenants) = parent(2, 200);
    let idle = Tenant::new(&tenants, "idle");
    idle.fill(200);
    let busy = tenants.create("busy").unwrap();
    let _charge = busy.try_charge(100 * PAGE).unwrap();
    let figure = |group, stat| hierarchy.memory().get(group, stat, Reach::Local, Freshness::Fresh) as u64;
    let taken = (200 - idle.cache.len() as u64) * PAGE;
    assert_eq!(figure(&idle.group, stats::memory::RECLAIMED), taken);
    assert_eq!(figure(&busy, stats::memory::GAINED), taken);
    assert_eq!((figure(&busy, stats::memory::RECLAIMED), figure(&idle.group, stats::memory::GAINED)), (0, 0));
}

#[test]
fn tells_a_callback_whether_and_until_when_it_may_wait() {
    let (_hierarchy, tenants) = parent(2, 100);
    let _held = tenants.try_charge(100 * PAGE).unwrap();
    let asked: Arc<Mutex<Vec<_>>> = Arc::default();
    let log = Arc::clone(&asked);
    let _shrinker = add(&tenants, "listens", plenty, move |ask| {
        log.lock().unwrap().push((ask.may_wait(), ask.deadline()));
        Scan::Stopped { bytes: 0 }
    });
    let all_asked = |expected| {
        let asked = std::mem::take(&mut *asked.lock().unwrap());
        assert!(!asked.is_empty() && asked.iter().all(|told| *told == expected), "{asked:?}");
    };
    tenants.try_charge(PAGE).unwrap_err();
    all_asked((false, None));
    tenants.reclaim(PAGE, None);
    all_asked((true, None));
    let deadline = Instant::now() + Duration::from_secs(1000);
    tenants.reclaim(PAGE, Some(deadline));
    all_asked((true, Some(deadline)));
}

#[test]
fn begins_with_another_cache_in_each_round() {
    // Turns go by number, and in a hierarchy that was another test's there are numbers of groups
    // that are gone: so one of its own.
    let (_hierarchy, tenants) = parent(7, 4000);
    let all: Vec<Tenant> = (0..3).map(|at| Tenant::new(&tenants, &format!("t{at}"))).collect();
    all.iter().for_each(|tenant| tenant.fill(1000));
    for _ in 0..30 {
        assert_eq!(tenants.reclaim(BATCH, None).bytes, BATCH);
    }
    let gave = |tenant: &Tenant| (1000 - tenant.cache.len()) as u64 * PAGE / BATCH;
    let batches: Vec<u64> = all.iter().map(gave).collect();
    assert_eq!(batches.iter().sum::<u64>(), 30);
    assert!(batches.iter().all(|batches| (9..=11).contains(batches)), "{batches:?}");
}

#[test]
fn skips_a_poor_cache_except_at_the_last_priorities() {
    let (hierarchy, tenants) = parent(2, 5000);
    // 256 batches: something is asked of it from priority 9 on. Then it rests at 8; at 6, 5 and 4;
    // at 2; and not at the last two.
    let _held = tenants.try_charge(256 * BATCH).unwrap();
    let _poor = add(&tenants, "poor", || Count::of(256 * BATCH, 1), |_| Scan::Freed { bytes: 0 });
    tenants.reclaim(PAGE, None);
    assert_eq!(hierarchy.shrinkers()[0].scans, 5, "series of calls, at priorities 9, 7, 3, 1 and 0");
}

#[test]
fn drains_idle_stocks_before_caches_are_asked() {
    let (_hierarchy, tenants) = parent(512, 200);
    let idle = Tenant::new(&tenants, "idle");
    let (busy, neighbour) = (tenants.create("busy").unwrap(), tenants.create("neighbour").unwrap());
    idle.fill(200);
    let first = busy.try_charge(PAGE).unwrap();
    drop(neighbour.try_charge(PAGE).unwrap());
    let prepaid = neighbour.stock().prepaid_bytes;
    assert!(prepaid > 0, "the bytes that it has bought stay with it");
    let cached = idle.cache.len();
    let second = busy.try_charge(tenants.max().unwrap() - tenants.usage() + prepaid).unwrap();
    assert_eq!((idle.cache.len(), neighbour.stock().prepaid_bytes), (cached, 0), "no cache was asked");
    let last = busy.try_charge(tenants.max().unwrap() - first.bytes() - second.bytes()).unwrap();
    assert_eq!((idle.cache.len(), neighbour.stock().prepaid_bytes), (0, 0));
    assert_eq!(tenants.usage_exact(), first.bytes() + second.bytes() + last.bytes());
}
