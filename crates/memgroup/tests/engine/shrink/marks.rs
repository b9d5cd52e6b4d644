//! Marks: caches that fill, empty, come and go while others walk. Oracle: when all is quiet, a
//! walk finds whatever is held.

use std::sync::Arc;

use memgroup::{Config, Group, GroupShrinker, Hierarchy, ShrinkerConfig, SlotSource};
use memgroup_percpu::pin_virtual;

use super::cache::{Cache, PAGE};

const THREADS: u64 = 4;
const ROUNDS: u64 = 20;
const STEPS: u64 = if cfg!(debug_assertions) { 100 } else { 400 };

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// A group with a cache that its owner marks only when the first page comes into it.
struct Holder {
    group: Group,
    cache: Arc<Cache>,
    shrinker: GroupShrinker,
}

impl Holder {
    fn new(parent: &Group, name: &str) -> Holder {
        let group = parent.create(name).unwrap();
        let cache = Arc::new(Cache::default());
        let config = ShrinkerConfig::new(name).batch_bytes(PAGE);
        let shrinker = group.add_shrinker(config, Arc::clone(&cache)).unwrap();
        Holder { group, cache, shrinker }
    }

    fn fill(&self, pages: u64) {
        for _ in 0..pages {
            let Ok(page) = self.group.try_charge(PAGE) else { return };
            if self.cache.add(page) == 1 {
                self.shrinker.mark();
            }
        }
    }
}

/// The steps of one thread with its own caches, below one parent and the other.
fn churn(parents: &[Group; 2], thread: u64, state: &mut u64) -> Vec<Holder> {
    let mut made = 0;
    let mut make = |state: &mut u64| {
        made += 1;
        Holder::new(&parents[random(state, 2) as usize], &format!("t{thread}-{made}"))
    };
    let mut holders: Vec<Holder> = (0..3).map(|_| make(state)).collect();
    for _ in 0..STEPS {
        let _slot = pin_virtual(random(state, 512) as usize);
        let at = random(state, 3) as usize;
        match random(state, 8) {
            0 | 1 => holders[at].fill(1),
            // Every size has its turn.
            2 => {
                let pages = 1 << random(state, 10);
                holders[at].fill(pages);
            }
            3 | 4 => holders[at].cache.clear(),
            5 => {
                parents[random(state, 2) as usize].reclaim(random(state, 40) * PAGE, None);
            }
            _ => {
                let Holder { group, cache, shrinker } = std::mem::replace(&mut holders[at], make(state));
                cache.clear();
                drop(shrinker);
                group.remove().unwrap();
            }
        }
    }
    holders
}

fn finds_all_cached_bytes(slots: usize) {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(slots).unwrap())).unwrap();
    for round in 0..ROUNDS {
        let parents = ["/one", "/two"].map(|path| hierarchy.create(path).unwrap());
        parents.iter().for_each(|parent| parent.set_max(1000 * PAGE).unwrap());
        let holders: Vec<Vec<Holder>> = std::thread::scope(|scope| {
            let parents = &parents;
            let work = |thread| move || churn(parents, thread, &mut (round * THREADS + thread));
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for parent in &parents {
            parent.reclaim(u64::MAX, None);
        }
        for Holder { group, cache, .. } in holders.iter().flatten() {
            assert_eq!(cache.len(), 0, "pages in {} that no walk finds, in round {round}", group.path());
        }
        for Holder { group, cache, shrinker } in holders.into_iter().flatten() {
            drop((shrinker, cache));
            group.remove().unwrap();
        }
        assert_eq!((hierarchy.dying().len(), hierarchy.root().usage_exact()), (0, 0), "round {round}");
        parents.iter().for_each(|parent| parent.remove().unwrap());
    }
}

#[test]
fn finds_all_cached_bytes_on_2_slots() {
    finds_all_cached_bytes(2);
}

#[test]
fn finds_all_cached_bytes_on_8_slots() {
    finds_all_cached_bytes(8);
}

#[test]
fn finds_all_cached_bytes_on_128_slots() {
    finds_all_cached_bytes(128);
}

#[test]
fn finds_all_cached_bytes_on_512_slots() {
    finds_all_cached_bytes(512);
}
