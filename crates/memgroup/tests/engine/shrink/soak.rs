//! Soak: tenants fill caches, others need memory, shrinkers and groups come and go. Oracle: at
//! every rest the charges are those that the tenants hold; no shrinker is called after its
//! removal; usage never rises above the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memgroup::{Ask, Charge, Config, Count, Group, Hierarchy, Scan, Shrinker, ShrinkerConfig, SlotSource};
use memgroup_percpu::pin_virtual;

use super::cache::{Cache, PAGE};

const THREADS: usize = 4;
const STEPS: usize = if cfg!(memgroup_yields) {
    1_000
} else if cfg!(debug_assertions) {
    4_000
} else {
    40_000
};

/// A cache that must not be called when it is gone.
struct Guarded {
    cache: Arc<Cache>,
    is_gone: Arc<AtomicBool>,
    called_late: Arc<AtomicU64>,
}

impl Guarded {
    fn check(&self) {
        if self.is_gone.load(Ordering::Acquire) {
            self.called_late.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Shrinker for Guarded {
    fn count(&self, token: u64) -> Count {
        self.check();
        self.cache.count(token)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        self.check();
        let scanned = self.cache.scan(ask);
        self.check();
        scanned
    }
}

struct Fixture {
    parent: Group,
    called_late: Arc<AtomicU64>,
    over_limit: AtomicU64,
    reclaimed: AtomicU64,
}

impl Fixture {
    /// One thread's tenants: each time a group, a cache, some pages, some charges of its own, and
    /// then all of it goes.
    fn work(&self, thread: usize, mut state: u64) {
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for step in 0..STEPS / 10 {
            let group = self.parent.create(&format!("t{thread}-{step}")).unwrap();
            let cache = Arc::new(Cache::default());
            let is_gone = Arc::new(AtomicBool::new(false));
            let guarded = Guarded {
                cache: Arc::clone(&cache),
                is_gone: Arc::clone(&is_gone),
                called_late: Arc::clone(&self.called_late),
            };
            let config = ShrinkerConfig::new("cache").batch_bytes(4 * PAGE);
            let shrinker = group.add_shrinker(config, guarded).unwrap();
            let mut held: Vec<Charge> = Vec::new();
            for _ in 0..10 {
                let _slot = pin_virtual(random(64) as usize);
                match random(4) {
                    0 => {
                        for _ in 0..random(40) {
                            let Ok(page) = group.try_charge(PAGE) else { break };
                            let was_empty = cache.len() == 0;
                            cache.push(page);
                            if was_empty {
                                shrinker.mark();
                            }
                        }
                    }
                    1 => held.extend(group.try_charge((random(20) + 1) * PAGE)),
                    2 => drop(held.pop()),
                    _ => {
                        let reclaimed = self.parent.reclaim(random(16) * PAGE, None);
                        self.reclaimed.fetch_add(reclaimed.bytes, Ordering::Relaxed);
                    }
                }
                let (usage, max) = self.parent.usage_and_max();
                let is_over = max.is_some_and(|max| usage > max);
                self.over_limit.fetch_add(u64::from(is_over), Ordering::Relaxed);
            }
            let own = held.iter().map(Charge::bytes).sum::<u64>();
            assert!(group.usage() >= own, "the pages of the cache are charged");
            shrinker.remove().unwrap();
            is_gone.store(true, Ordering::Release);
            group.remove().unwrap();
            drop((cache, held));
        }
    }
}

fn soak(slots: usize) {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(slots).unwrap())).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(200 * PAGE).unwrap();
    let called_late = Arc::new(AtomicU64::new(0));
    let fixture = Fixture {
        parent: parent.clone(),
        called_late,
        over_limit: AtomicU64::new(0),
        reclaimed: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fixture = &fixture;
            scope.spawn(move || fixture.work(thread, thread as u64 + 1));
        }
    });
    assert_eq!(fixture.called_late.load(Ordering::Relaxed), 0, "calls after a removal");
    assert_eq!(fixture.over_limit.load(Ordering::Relaxed), 0, "times above the limit");
    assert!(fixture.reclaimed.load(Ordering::Relaxed) > 0);
    assert_eq!(hierarchy.dying().len(), 0);
    assert_eq!((parent.usage_exact(), hierarchy.root().usage_exact()), (0, 0));
}

#[test]
fn accounts_for_every_byte_on_2_slots() {
    soak(2);
}

#[test]
fn accounts_for_every_byte_on_128_slots() {
    soak(128);
}
