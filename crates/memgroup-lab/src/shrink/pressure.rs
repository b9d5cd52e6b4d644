//! Tenants under memory pressure, which Morton and Rapoport asked for in the thread: a few are busy
//! at a time, the others are idle. Together they would cache twice as much as the limit allows. A
//! tenant in its turn uses its whole data, so it would cache all of it.
//!
//! - *A common limit* is the engine as it is meant to be used: room is made from the caches of
//!   tenants after their turn. *Fixed shares* are the control: each cache has its own bound, and
//!   nothing is ever reclaimed.
//! - In one case the data are SQLite databases in files that the system caches too, so a page that
//!   had to go costs little to have again: a read of 4 KiB from memory. In the other they are
//!   values that a tenant computes, of 4 KB each, in a `memgroup-cache`: one that had to go is
//!   dear.
//! - A turn is long, so that a tenant uses each of its pages several times, or short, so that it
//!   uses half of them once. Sharing can pay in the first case only: in the second a tenant's pages
//!   are gone when its next turn comes.
//!
//! - I1. Each answer is right, no limit is ever exceeded, no charge is refused; the bytes that the
//!   engine counts as reclaimed are those that the caches say they gave and those that were
//!   uncharged meanwhile; and when all is closed nothing is charged.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use memgroup::{Freshness, Group, Hierarchy, Reach, stats};
use memgroup_cache::{CacheConfig, QuickCache};

use crate::harness::prelude::*;

/// Bytes of a share that are left beside SQLite's pages: the connection's own blocks grow a little
/// while it works.
const BESIDE_PAGES: u64 = 64 << 10;
const VALUE_BYTES: usize = 4_000;
/// Steps to compute a value, of about 2 ns each.
const VALUE_STEPS: u64 = 10_000;

/// What keeps a tenant's cache within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Bounds {
    Shares,
    Common,
}

const BOUNDS: [(Bounds, &str); 2] =
    [(Bounds::Shares, "fixed shares (control)"), (Bounds::Common, "a common limit")];

/// A tenant's data and its cache, used by one thread at a time.
trait Data: Send + Sized {
    /// The name of the case, in tables and in the JSON, and what a miss costs.
    const NAME: &'static str;
    const MISS: &'static str;

    /// Opens data of so many rows, with a cache that is bounded to a share by itself, or for all
    /// rows.
    fn open(
        group: &Group,
        directory: &Directory,
        at: usize,
        rows: i64,
        share: Option<(Needs, u64)>,
    ) -> Result<Self>;
    /// One statement or look-up, whose answer is checked.
    fn use_one(&mut self, random: u64) -> Result<()>;
    /// Uses every row.
    fn use_all(&mut self) -> Result<()>;
    /// Leaves next to nothing in the cache.
    fn forget(&mut self) -> Result<()>;
    /// How often something had to be read or computed so far.
    fn misses(&self, hierarchy: &Hierarchy) -> u64;
    fn close(self) -> Result<()>;
}

/// A tenant's bytes with next to nothing in its cache, and with all of its rows.
#[derive(Debug, Clone, Copy)]
struct Needs {
    bare_bytes: u64,
    all_bytes: u64,
    rows: u64,
}

impl Needs {
    fn measure<D: Data>(hierarchy: &Hierarchy, rows: i64) -> Result<Needs> {
        let (directory, group) = (Directory::make()?, child(&hierarchy.root(), &unique("alone"))?);
        let mut data = D::open(&group, &directory, 0, rows, None)?;
        (0..64).try_for_each(|random| data.use_one(random))?;
        data.forget()?;
        let bare_bytes = group.usage_exact();
        data.use_all()?;
        let needs = Needs { bare_bytes, all_bytes: group.usage_exact(), rows: rows as u64 };
        data.close()?;
        remove_tree(&group)?;
        let is_cached = needs.all_bytes >= needs.bare_bytes + needs.rows * VALUE_BYTES as u64;
        ensure(is_cached, || format!("{rows} rows are all cached, and {needs:?}"))?;
        Ok(needs)
    }
}

impl Data for Tenant {
    const NAME: &'static str = "SQLite";
    const MISS: &'static str = "a read of 4 KiB from the system's memory";

    fn open(
        group: &Group,
        directory: &Directory,
        at: usize,
        rows: i64,
        share: Option<(Needs, u64)>,
    ) -> Result<Self> {
        let pages = share.map(|(needs, bytes)| {
            let page_bytes = (needs.all_bytes - needs.bare_bytes).div_ceil(needs.rows);
            bytes.saturating_sub(needs.bare_bytes + BESIDE_PAGES) / page_bytes
        });
        Tenant::open(group, &directory.file(at), rows, pages)
    }

    /// Most are look-ups; one in 16 changes a row, one in 64 sums some.
    fn use_one(&mut self, random: u64) -> Result<()> {
        let id = (random >> 8) as i64 % self.rows() + 1;
        match random % 64 {
            0 => self.sum(id),
            kind if kind % 16 == 1 => self.update(id),
            _ => self.look_up(id),
        }
    }

    fn use_all(&mut self) -> Result<()> {
        self.check_all()
    }

    fn forget(&mut self) -> Result<()> {
        self.connection.execute_batch("PRAGMA shrink_memory").or_wrong(STATEMENT)
    }

    fn misses(&self, hierarchy: &Hierarchy) -> u64 {
        hierarchy.io().get(self.connection.group(), stats::io::RIOS, Reach::Subtree, Freshness::Fresh) as u64
    }

    fn close(self) -> Result<()> {
        self.close()
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
        let mut value = vec![0; VALUE_BYTES];
        value[..8].copy_from_slice(&last.to_le_bytes());
        value[8..16].copy_from_slice(&key.to_le_bytes());
        value
    }
}

impl Data for Computed {
    const NAME: &'static str = "computed values";
    const MISS: &'static str = "some 20 us of CPU time";

    fn open(group: &Group, _: &Directory, _: usize, rows: i64, share: Option<(Needs, u64)>) -> Result<Self> {
        // Each shard of the cache has a part of its capacity, and keys are not spread evenly: without a
        // share, there is room for all. In a share there must be room for a value that is charged
        // before another is evicted.
        let value = VALUE_BYTES as u64;
        let bytes = share.map_or(rows as u64 * value * 4, |(_, bytes)| bytes.saturating_sub(4 * value));
        let cache =
            QuickCache::new(group, CacheConfig::new(bytes), |_: &u64, value: &Value| value.len() as u64);
        Ok(Computed { cache: cache.set_up("a cache")?, rows: rows as u64, misses: 0 })
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

    fn forget(&mut self) -> Result<()> {
        self.cache.clear();
        Ok(())
    }

    fn misses(&self, _: &Hierarchy) -> u64 {
        self.misses
    }

    fn close(self) -> Result<()> {
        Ok(())
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

/// Tenants below a parent, kept within bounds in one way.
struct Tenants<D> {
    bounds: Bounds,
    tenants: Vec<Mutex<D>>,
    parent: Group,
    hierarchy: Hierarchy,
    _directory: Directory,
}

impl<D: Data> Tenants<D> {
    /// The tenants may have half of the bytes that they would cache.
    fn build(hierarchy: &Hierarchy, bounds: Bounds, needs: Needs, size: Size) -> Result<Tenants<D>> {
        let (directory, share_bytes) = (Directory::make()?, needs.all_bytes / 2);
        let parent = child(&hierarchy.root(), &unique("pressure"))?;
        limit(&parent, share_bytes * size.tenants as u64)?;
        let share = (bounds == Bounds::Shares).then_some((needs, share_bytes));
        let open = |at: usize| {
            let group = child(&parent, &format!("t{at}"))?;
            if bounds == Bounds::Shares {
                limit(&group, share_bytes)?;
            }
            D::open(&group, &directory, at, size.rows, share).map(Mutex::new)
        };
        let tenants = (0..size.tenants).map(open).collect::<Result<Vec<_>>>()?;
        Ok(Tenants { bounds, tenants, parent, hierarchy: hierarchy.clone(), _directory: directory })
    }

    /// One window, in which each tenant has its turns of so many uses: the times of the uses,
    /// nanoseconds of the threads together, and misses.
    fn window(
        &self,
        lab: &Lab<'_>,
        threads: usize,
        uses: u64,
        rounds: u64,
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
        let [reclaimed, claimed, freed, misses, refused] =
            [0, 1, 2, 3, 4].map(|at| self.figures()[at] - before[at]);
        let name = self.bounds;
        // No other tenants were busy.
        ensure(reclaimed == claimed && freed == claimed, || {
            format!(
                "{name:?}: caches say they gave {claimed} bytes, {freed} were uncharged in their calls, and {reclaimed} were counted as reclaimed"
            )
        })?;
        ensure((name == Bounds::Shares) == (reclaimed == 0), || {
            format!("{name:?}: {reclaimed} bytes were reclaimed")
        })?;
        expect(format_args!("{name:?}: charges refused while caches are full"), refused, 0)?;
        self.check_bounds()?;
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
            // SQLite's own too: it goes on without a page that is refused, and no answer would show it.
            get(stats::memory::REFUSALS),
        ]
    }

    /// Everything is within its limits, and always was.
    fn check_bounds(&self) -> Result<()> {
        for group in std::iter::once(self.parent.clone()).chain(self.parent.children()) {
            let (peak, (usage, max)) = (group.peak(), group.usage_and_max());
            let max = max.unwrap_or(u64::MAX);
            ensure(usage.max(peak) <= max, || {
                format!("{} has {usage} bytes, had {peak}, and may have {max}", group.path())
            })?;
        }
        Ok(())
    }

    /// Uses every row once more, closes all and removes the groups: nothing is charged any more.
    fn end(self) -> Result<()> {
        for tenant in self.tenants {
            let mut tenant = tenant.into_inner().unwrap_or_else(PoisonError::into_inner);
            tenant.use_all()?;
            tenant.close()?;
        }
        remove_empty(&self.parent)
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let full = Size { tenants: 8, rows: 1_000, turns: [8_000, 500], windows: 10 };
    let tiny = Size { tenants: 4, rows: 400, turns: [300, 20], windows: 1 };
    let size = lab.pick(tiny, Size { windows: 3, ..full }, full);
    let sqlite = Sqlite::take(lab.slots)?;
    measure::<Tenant>(lab, &sqlite.hierarchy, size)?;
    drop(sqlite);
    // Values are dear, so half of the windows take as long.
    let size = Size { windows: size.windows.div_ceil(2), ..size };
    measure::<Computed>(lab, &hierarchy(memgroup::Config::with_slots(lab.slots))?, size)
}

fn measure<D: Data>(lab: &mut Lab<'_>, hierarchy: &Hierarchy, size: Size) -> Result<()> {
    let needs = Needs::measure::<D>(hierarchy, size.rows)?;
    let all = BOUNDS.map(|(bounds, _)| Tenants::<D>::build(hierarchy, bounds, needs, size));
    let all = all.into_iter().collect::<Result<Vec<_>>>()?;
    let mut cases: Vec<(usize, u64)> = [1, lab.args.threads().min(size.tenants)]
        .into_iter()
        .flat_map(|threads| size.turns.map(|uses| (threads, uses)))
        .collect();
    cases.dedup();
    let mut found = BTreeMap::<(usize, u64, Bounds), (Samples, Blocks)>::new();
    for tenant in all.iter().flat_map(|tenants| &tenants.tenants) {
        lock(tenant).use_all()?;
    }
    // All caches are full now. The first round gives them the tenants' pattern, and counts for nothing.
    for round in 0..=size.windows {
        lab.in_turns(1, cases.len() * all.len(), |lab, case| {
            let ((threads, uses), tenants) = (cases[case / all.len()], &all[case % all.len()]);
            let (rounds, seed) = ((size.turns[0] / uses / 4).max(1), lab.random.next());
            let (times, ns, misses) = tenants.window(lab, threads, uses, rounds, seed)?;
            if round > 0 {
                let (samples, blocks) = found.entry((threads, uses, tenants.bounds)).or_default();
                samples.push("uses", times.len() as f64 * threads as f64 / ns * 1e9);
                samples.push("misses a use", misses as f64 / times.len() as f64);
                blocks.push(times);
            }
            Ok(())
        })?;
    }
    all.into_iter().try_for_each(Tenants::end)?;
    let title = format!(
        "tenants under pressure, {}: a miss costs {}; {} tenants of {} rows, {} MiB for all, half of what they would cache",
        D::NAME,
        D::MISS,
        size.tenants,
        count(size.rows as u64),
        figure((needs.all_bytes / 2 * size.tenants as u64) as f64 / f64::from(1 << 20))
    );
    let columns = ["threads; turn; caches within", "uses/s", "misses each", "us a use: p50", "p99", "max"];
    let mut table = Table::new(title, columns);
    for ((threads, uses, bounds), (samples, times)) in &found {
        let name = BOUNDS[*bounds as usize].1;
        let mut row = lab.record(name, json!({"data": D::NAME, "threads": threads, "turn": uses}));
        let cells = row.medians(samples, [("uses", "1/s"), ("misses a use", "")]);
        let times = row.blocks(times);
        table.row(format!("{threads}; {}; {name}", count(*uses)), cells.into_iter().chain(times));
    }
    table.note("uses a second: of the threads together, by the clock; each answer is checked. A turn is so many uses of one tenant's rows at random, then it is idle until all others have had theirs");
    lab.print(&table)?;
    for (threads, uses) in cases {
        let speed = |bounds| found.get(&(threads, uses, bounds)).and_then(|one| one.0.median("uses"));
        let name = format!(
            "{}, {}, turns of {}: common limit over shares",
            D::NAME,
            counted(threads as u64, "thread"),
            count(uses)
        );
        lab.at_least(name, ratio(speed(Bounds::Common), speed(Bounds::Shares)), 1.0, "x");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, SlotSource};

    use super::*;

    fn tenants(bounds: Bounds) -> Tenants<Computed> {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let hierarchy = hierarchy(Config::with_slots(slots)).unwrap();
        let size = Size { tenants: 2, rows: 50, turns: [100, 10], windows: 1 };
        let needs = Needs::measure::<Computed>(&hierarchy, size.rows).unwrap();
        Tenants::build(&hierarchy, bounds, needs, size).unwrap()
    }

    #[test]
    fn fails_when_bytes_are_above_a_limit() {
        let tenants = tenants(Bounds::Common);
        tenants.check_bounds().unwrap();
        let forced = tenants.parent.children()[0].charge_forced(1 << 40);
        let error = tenants.check_bounds().unwrap_err();
        assert!(matches!(&error, Error::Wrong(text) if text.contains("may have")), "{error}");
        drop(forced);
    }

    #[test]
    fn computes_a_value_again_after_it_had_to_go() {
        let tenants = tenants(Bounds::Common);
        for tenant in &tenants.tenants {
            lock(tenant).use_all().unwrap();
        }
        let before = lock(&tenants.tenants[0]).misses;
        lock(&tenants.tenants[0]).use_all().unwrap();
        assert!(lock(&tenants.tenants[0]).misses > before, "the other tenant took of its cache");
        tenants.end().unwrap();
    }
}
