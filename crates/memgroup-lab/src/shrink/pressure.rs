//! Tenants under memory pressure, which Morton and Rapoport asked for in the thread: a few are busy
//! at a time, the others are idle. Together they would cache twice as much as the limit allows. A
//! tenant in its turn uses its whole data, so it would cache all of it.
//!
//! - *A common limit* is the engine as it is meant to be used: room is made from the caches of
//!   tenants after their turn. *Fixed shares* are the control: each cache is bounded to half of its
//!   tenant's rows, and nothing is ever reclaimed. The common limit is what these caches take when
//!   they are full.
//! - In one case the data are SQLite databases in files that the system caches too, so an
//!   evicted page is cheap to read again: 4 KiB from memory. In the other they are values that a
//!   tenant computes, of 4 KB each, in a `memgroup-cache`: an evicted one is expensive.
//! - A turn is long, so that a tenant uses each of its pages several times, or short, so that it
//!   uses half of them once. Sharing can pay in the first case only: in the second a tenant's pages
//!   are gone when its next turn comes.
//!
//! - I1. Each answer is right, no limit is ever exceeded, no charge is refused; the bytes that the
//!   engine counts as reclaimed are those that the caches say they gave and those that were
//!   uncharged meanwhile; and when all is closed nothing is charged.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use memgroup::{Freshness, Group, Hierarchy, Reach, stats};
use memgroup_cache::{CacheConfig, QuickCache};
use tempfile::TempDir;

use crate::harness::prelude::*;

const VALUE_BYTES: u64 = 4_000;
/// Steps to compute a value, of about 2 ns each.
const VALUE_STEPS: u64 = 10_000;
/// What keeps the tenants' caches within bounds.
const BOUNDS: [&str; 2] = ["fixed shares (control)", "a common limit"];

/// A tenant's data and its cache, used by one thread at a time.
trait Data: Send + Sized {
    /// The name of the case, in tables and in the JSON, and what a miss costs.
    const NAME: &'static str;
    const MISS: &'static str;

    /// Opens data of so many rows, with a cache that is bounded to half of them by itself, or for
    /// all.
    fn open(group: &Group, directory: &Path, rows: i64, is_half: bool) -> Result<Self>;
    /// One statement or look-up, whose answer is checked.
    fn use_one(&mut self, random: u64) -> Result<()>;
    /// Uses every row.
    fn use_all(&mut self) -> Result<()>;
    /// How often something had to be read or computed so far.
    fn misses(&self, hierarchy: &Hierarchy) -> u64;
}

impl Data for Tenant {
    const NAME: &'static str = "SQLite";
    const MISS: &'static str = "a read of 4 KiB from the system's memory";

    fn open(group: &Group, directory: &Path, rows: i64, is_half: bool) -> Result<Self> {
        let pages = if is_half { rows / 2 } else { rows * 2 };
        Tenant::open(group, &directory.join(group.name()), rows, pages)
    }

    fn use_one(&mut self, random: u64) -> Result<()> {
        self.use_one(random)
    }

    fn use_all(&mut self) -> Result<()> {
        self.check_all()
    }

    fn misses(&self, hierarchy: &Hierarchy) -> u64 {
        hierarchy.io().get(self.connection.group(), stats::io::RIOS, Reach::Subtree, Freshness::Fresh) as u64
    }
}

type Value = Vec<u8>;

/// Values that are computed when they are missing.
struct Computed {
    cache: QuickCache<u64, Value>,
    rows: u64,
    misses: u64,
}

impl Computed {
    fn compute(key: u64) -> Value {
        let mut random = Random::new(key);
        // Each step needs the one before, so that none can be left out.
        let last = (0..VALUE_STEPS).fold(key, |last, _| last.rotate_left(5) ^ random.next());
        let mut value = vec![0; VALUE_BYTES as usize];
        value[..8].copy_from_slice(&last.to_le_bytes());
        value[8..16].copy_from_slice(&key.to_le_bytes());
        value
    }
}

impl Data for Computed {
    const NAME: &'static str = "computed values";
    const MISS: &'static str = "some 20 us of CPU time";

    fn open(group: &Group, _: &Path, rows: i64, is_half: bool) -> Result<Self> {
        // Each shard of the cache has a part of its capacity, and keys are not spread evenly: four
        // times the bytes are room for all.
        let (rows, weight) = (rows as u64, |_: &u64, value: &Value| value.len() as u64);
        let bytes = if is_half { rows / 2 * VALUE_BYTES } else { rows * VALUE_BYTES * 4 };
        let cache = QuickCache::new(group, CacheConfig::new(bytes), weight).set_up("a cache")?;
        Ok(Computed { cache, rows, misses: 0 })
    }

    fn use_one(&mut self, random: u64) -> Result<()> {
        let (key, misses) = ((random >> 8) % self.rows, &mut self.misses);
        let found = self.cache.get_or_insert_with(key, |&key| {
            *misses += 1;
            Computed::compute(key)
        });
        let value = found.map_err(|refused| refused.reason().to_string()).or_wrong("a value was refused")?;
        expect("the key in a cached value", &value[8..16], &key.to_le_bytes()[..])
    }

    fn use_all(&mut self) -> Result<()> {
        (0..self.rows).try_for_each(|key| self.use_one(key << 8))
    }

    fn misses(&self, _: &Hierarchy) -> u64 {
        self.misses
    }
}

/// How many tenants there are, and how long they run.
#[derive(Debug, Clone, Copy)]
struct Size {
    tenants: usize,
    rows: i64,
    /// The uses of a long turn and of a short one.
    turns: [u64; 2],
    /// Windows that count, of each case.
    windows: usize,
}

/// Tenants below a parent, with a limit for all or with a bound for each cache.
struct Tenants<D> {
    limit_bytes: Option<u64>,
    tenants: Vec<Mutex<D>>,
    parent: Group,
    hierarchy: Hierarchy,
    _directory: TempDir,
}

impl<D: Data> Tenants<D> {
    /// Opens all and fills their caches.
    fn build(hierarchy: &Hierarchy, limit_bytes: Option<u64>, size: Size) -> Result<Tenants<D>> {
        let (directory, is_half) = (directory()?, limit_bytes.is_none());
        let parent = child(&hierarchy.root(), if is_half { "shares" } else { "common" })?;
        limit(&parent, limit_bytes)?;
        let open = |at: usize| {
            let group = child(&parent, &format!("t{at}"))?;
            let mut data = D::open(&group, directory.path(), size.rows, is_half)?;
            data.use_all().map(|()| Mutex::new(data))
        };
        let tenants = (0..size.tenants).map(open).collect::<Result<Vec<_>>>()?;
        Ok(Tenants { limit_bytes, tenants, parent, hierarchy: hierarchy.clone(), _directory: directory })
    }

    /// One window, in which each tenant has its turns of so many uses: the times of the uses,
    /// nanoseconds of the threads together, and misses.
    fn window(
        &self,
        lab: &Lab<'_>,
        [threads, uses, rounds]: [usize; 3],
        seed: u64,
    ) -> Result<(Vec<f64>, f64, u64)> {
        let (before, clock) = (self.figures(), lab.clock);
        let parts = lab.workers.run_together(threads, clock.ticks_per_us() * 10, |thread, _| {
            let mut own: Vec<usize> = (thread..self.tenants.len()).step_by(threads).collect();
            let (mut random, mut times, begin) =
                (Random::new(seed ^ (thread as u64) << 32), Vec::new(), clock::now());
            for _ in 0..rounds {
                random.shuffle(&mut own);
                for &at in &own {
                    let mut tenant = lock(&self.tenants[at]);
                    for _ in 0..uses {
                        let before = clock::now();
                        tenant.use_one(random.next())?;
                        times.push(clock.ns((clock::now() - before) as f64));
                    }
                }
            }
            Ok((times, clock.ns((clock::now() - begin) as f64)))
        })?;
        let after = self.figures();
        let [reclaimed, claimed, freed, misses, refused] = [0, 1, 2, 3, 4].map(|at| after[at] - before[at]);
        // No other tenants were busy.
        let is_reclaimed =
            reclaimed == claimed && freed == claimed && (reclaimed > 0) == self.limit_bytes.is_some();
        ensure(is_reclaimed && refused == 0, || {
            format!(
                "caches within {:?} bytes say they gave {claimed}, {freed} were uncharged in their calls, and {reclaimed} were counted as reclaimed; {refused} charges were refused",
                self.limit_bytes
            )
        })?;
        self.check_limit()?;
        let ns: f64 = parts.iter().map(|part| part.1).sum();
        Ok((parts.into_iter().flat_map(|part| part.0).collect(), ns, misses))
    }

    /// Bytes that the engine counts as reclaimed, that caches say they gave, and that were
    /// uncharged in their calls; misses; refusals.
    fn figures(&self) -> [u64; 5] {
        let (memory, shrinkers) = (self.hierarchy.memory(), self.hierarchy.shrinkers());
        let get = |stat| memory.get(&self.parent, stat, Reach::Subtree, Freshness::Fresh) as u64;
        [
            get(stats::memory::RECLAIMED),
            shrinkers.iter().map(|shrinker| shrinker.claimed_bytes).sum(),
            shrinkers.iter().map(|shrinker| shrinker.freed_bytes).sum(),
            self.tenants.iter().map(|tenant| lock(tenant).misses(&self.hierarchy)).sum(),
            // SQLite's own too: it goes on without a page that is refused, and no answer would show
            // it.
            get(stats::memory::REFUSALS),
        ]
    }

    /// Everything is within the limit, and always was.
    fn check_limit(&self) -> Result<()> {
        let (most, max) = (self.parent.peak().max(self.parent.usage()), self.limit_bytes.unwrap_or(u64::MAX));
        ensure(most <= max, || format!("{} had {most} bytes, and may have {max}", self.parent.path()))
    }

    /// Uses every row once more, closes all and removes the groups: nothing is charged any more.
    fn end(self) -> Result<()> {
        for tenant in self.tenants {
            tenant.into_inner().unwrap_or_else(PoisonError::into_inner).use_all()?;
        }
        remove_empty(&self.parent)
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let full = Size { tenants: 8, rows: 1_000, turns: [8_000, 500], windows: 10 };
    let tiny = Size { tenants: 4, rows: 400, turns: [300, 20], windows: 1 };
    let size = lab.pick(tiny, Size { windows: 3, ..full }, full);
    let config = memgroup::Config::with_slots(lab.slots);
    let sqlite = Sqlite::take(config)?;
    measure::<Tenant>(lab, &sqlite.hierarchy, size)?;
    drop(sqlite);
    // A value is expensive to compute, so half as many windows take about as long.
    let size = Size { windows: size.windows.div_ceil(2), ..size };
    measure::<Computed>(lab, &hierarchy(config)?, size)
}

fn measure<D: Data>(lab: &mut Lab<'_>, hierarchy: &Hierarchy, size: Size) -> Result<()> {
    let shares = Tenants::<D>::build(hierarchy, None, size)?;
    let limit_bytes = shares.parent.peak();
    let all = [shares, Tenants::build(hierarchy, Some(limit_bytes), size)?];
    let mut cases: Vec<(usize, u64)> = [1, lab.args.threads().min(size.tenants)]
        .into_iter()
        .flat_map(|threads| size.turns.map(|uses| (threads, uses)))
        .collect();
    cases.dedup();
    let mut window = |lab: &mut Lab<'_>, index: usize, found: &mut Samples| {
        let (threads, uses) = cases[index / 2];
        let (rounds, seed) = ((size.turns[0] / uses / 4).max(1), lab.random.next());
        let settings = [threads, uses as usize, rounds as usize];
        let (times, ns, misses) = all[index % 2].window(lab, settings, seed)?;
        found.push("uses", times.len() as f64 * threads as f64 / ns * 1e9);
        found.push("misses a use", misses as f64 / times.len() as f64);
        found.block("use", times, 1e3);
        Ok(())
    };
    // The first round gives the caches the tenants' pattern, and counts for nothing.
    lab.sample(1, 2 * cases.len(), &mut window)?;
    let found = lab.sample(size.windows, 2 * cases.len(), window)?;
    all.into_iter().try_for_each(Tenants::end)?;
    let title = format!(
        "tenants under pressure, {}: a miss costs {}; {} tenants of {} rows, {} MiB for all, half of what they would cache",
        D::NAME,
        D::MISS,
        size.tenants,
        count(size.rows as u64),
        figure(limit_bytes as f64 / f64::from(1 << 20))
    );
    let rows = found.iter().enumerate().map(|(index, found)| {
        let ((threads, uses), bounds) = (cases[index / 2], BOUNDS[index % 2]);
        let name = format!("{}, turns of {}, {bounds}", counted(threads as u64, "thread"), count(uses));
        (name, bounds, json!({"data": D::NAME, "threads": threads, "turn": uses}), found)
    });
    let columns =
        [("uses", "1/s"), ("misses a use", ""), ("use p50", "us"), ("use p99", "us"), ("use max", "us")];
    lab.show(title, &columns, rows, "uses a second: of the threads together, by the clock; each answer is checked. A turn is so many uses of one tenant's rows at random, then it is idle until all others have had theirs")?;
    for ((threads, uses), found) in cases.iter().zip(found.chunks_exact(2)) {
        let (threads, uses) = (counted(*threads as u64, "thread"), count(*uses));
        let name = format!("{}, {threads}, turns of {uses}: common limit over shares", D::NAME);
        lab.at_least(name, found[1].over(&found[0], "uses"), 1.0, "x");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, SlotSource};

    use super::*;

    fn tenants(limit_bytes: Option<u64>) -> Tenants<Computed> {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let hierarchy = hierarchy(Config::with_slots(slots)).unwrap();
        let size = Size { tenants: 2, rows: 50, turns: [100, 10], windows: 1 };
        Tenants::build(&hierarchy, limit_bytes, size).unwrap()
    }

    #[test]
    fn fails_when_bytes_are_above_a_limit() {
        let tenants = tenants(Some(50 * VALUE_BYTES));
        tenants.check_limit().unwrap();
        let forced = tenants.parent.children()[0].charge_forced(1 << 40);
        let error = tenants.check_limit().unwrap_err();
        assert!(matches!(&error, Error::Wrong(text) if text.contains("may have")), "{error}");
        drop(forced);
    }

    #[test]
    fn computes_a_value_again_after_it_had_to_go() {
        let tenants = tenants(Some(60 * VALUE_BYTES));
        for tenant in &tenants.tenants {
            lock(tenant).use_all().unwrap();
        }
        let before = lock(&tenants.tenants[0]).misses;
        lock(&tenants.tenants[0]).use_all().unwrap();
        assert!(lock(&tenants.tenants[0]).misses > before, "the other tenant took of its cache");
        tenants.end().unwrap();
    }
}
