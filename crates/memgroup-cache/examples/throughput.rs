//! The time of look-ups and insertions: `quick_cache` and `moka` bare, and charged to a group that
//! gives memory back.
//!
//! ```text
//! cargo run --release -p memgroup-cache --all-features --example throughput
//! ```
//!
//! Three caches take turns. The bare one has a fixed capacity. The charged one has the same
//! capacity, and its group has no limit: the shrinker is never called. The third has twice the
//! capacity, and a limit evicts instead. All have the same hasher, keys and values. The bare ones
//! hold values in an `Arc`, the charged ones in an `Entry`, so that a look-up copies none. A line
//! has the median of all turns, and the median of the ratios to the bare turn before.

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use memgroup::{Config, Hierarchy};
use memgroup_cache::{CacheConfig, MokaCache, QuickCache};

const CAPACITY: u64 = 8 << 20;
const VALUE_BYTES: usize = 872;
/// The weight of a value, with the bytes of its entry.
const WEIGHT: u64 = 1000;
/// About three quarters of these fit.
const KEYS: u64 = 11_000;
const STEPS: u64 = 50_000;
const TURNS: usize = 15;

type Value = [u8; VALUE_BYTES];

/// Looks a key up, or inserts one.
type Op = Box<dyn Fn(u64) + Sync>;

/// The two operations of one cache.
struct Arm {
    name: &'static str,
    get: Op,
    insert: Op,
}

fn value() -> Value {
    [1; VALUE_BYTES]
}

fn bare_quick() -> Arm {
    #[derive(Clone)]
    struct Weigh;
    impl quick_cache::Weighter<u64, Arc<Value>> for Weigh {
        fn weight(&self, _: &u64, _: &Arc<Value>) -> u64 {
            WEIGHT
        }
    }
    let cache = Arc::new(quick_cache::sync::Cache::<_, _, _, RandomState>::with(
        KEYS as usize,
        CAPACITY,
        Weigh,
        RandomState::new(),
        quick_cache::sync::DefaultLifecycle::default(),
    ));
    let other = Arc::clone(&cache);
    Arm {
        name: "bare",
        get: Box::new(move |key| _ = black_box(cache.get(&key))),
        insert: Box::new(move |key| other.insert(key, Arc::new(value()))),
    }
}

fn bare_moka() -> Arm {
    let builder = moka::sync::Cache::builder().max_capacity(CAPACITY);
    let cache = builder.weigher(|_: &u64, _: &Arc<Value>| WEIGHT as u32).build();
    let other = cache.clone();
    Arm {
        name: "bare",
        get: Box::new(move |key| _ = black_box(cache.get(&key))),
        insert: Box::new(move |key| other.insert(key, Arc::new(value()))),
    }
}

/// A charged cache below a limit, if there is one.
macro_rules! charged {
    ($cache:ident, $name:expr, $hierarchy:expr, $limit:expr) => {{
        let limit: Option<u64> = $limit;
        let group = $hierarchy.create(&format!("/{}-{}", stringify!($cache), limit.is_some()))?;
        group.set_max(limit)?;
        let capacity = limit.map_or(CAPACITY, |limit| 2 * limit);
        let config = CacheConfig::new(capacity).entries(KEYS as usize).entry_bytes(0);
        let cache = Arc::new($cache::new(&group, config, |_: &u64, _: &Value| WEIGHT)?);
        let other = Arc::clone(&cache);
        Arm {
            name: $name,
            get: Box::new(move |key| _ = black_box(cache.get(&key))),
            insert: Box::new(move |key| _ = black_box(other.insert(key, value()).is_ok())),
        }
    }};
}

/// Nanoseconds that this thread has run, so that other programs count less; or that have passed, if
/// the system doesn't report that.
fn nanos_of_thread(begin: Instant) -> f64 {
    let run = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let run = run.and_then(|text| text.split(' ').next()?.parse().ok());
    run.unwrap_or(begin.elapsed().as_nanos() as f64)
}

/// Nanoseconds of one operation on each of this many threads.
fn nanos(threads: u64, op: &Op) -> f64 {
    let work = |thread: u64| {
        let begin = Instant::now();
        let before = nanos_of_thread(begin);
        let mut random = 0x9E37_79B9_7F4A_7C15_u64 + thread;
        for _ in 0..STEPS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            op(random % KEYS);
        }
        nanos_of_thread(begin) - before
    };
    let sum: f64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no operation panics")).sum()
    });
    sum / (threads * STEPS) as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(name: &str, arms: &[Arm]) {
    for threads in [1, 2] {
        for (what, op) in [("get", (|arm| &arm.get) as fn(&Arm) -> &Op), ("insert", |arm| &arm.insert)] {
            let turns: Vec<Vec<f64>> =
                (0..TURNS).map(|_| arms.iter().map(|arm| nanos(threads, op(arm))).collect()).collect();
            for (index, arm) in arms.iter().enumerate() {
                let time = median(turns.iter().map(|turn| turn[index]).collect());
                let ratio = median(turns.iter().map(|turn| turn[index] / turn[0]).collect());
                println!("{name:<12} {threads:>7} {what:<7} {:<18} {time:>8.0} {ratio:>6.2}", arm.name);
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let hierarchy = Hierarchy::new(Config::new())?;
    println!("{:<12} {:>7} {:<7} {:<18} {:>8} {:>6}", "cache", "threads", "", "", "ns", "ratio");
    let quick = [
        bare_quick(),
        charged!(QuickCache, "charged", hierarchy, None),
        charged!(QuickCache, "charged, at limit", hierarchy, Some(CAPACITY)),
    ];
    let moka = [
        bare_moka(),
        charged!(MokaCache, "charged", hierarchy, None),
        charged!(MokaCache, "charged, at limit", hierarchy, Some(CAPACITY)),
    ];
    for (name, arms) in [("quick_cache", &quick), ("moka", &moka)] {
        for key in 0..2 * KEYS {
            arms.iter().for_each(|arm| (arm.insert)(key % KEYS));
        }
        compare(name, arms);
    }
    Ok(())
}
