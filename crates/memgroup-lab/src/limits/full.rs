//! A cache at its limit: each insert has to make room.

use super::cases::{Case, Kept, Load, Refusals, Tally, columns, measure};
use super::ledger::{Kind, Ledger, Shape};
use super::{MIB, PAGE};
use crate::harness::cache::Tenant;
use crate::harness::prelude::*;
use memgroup::Config;

/// An insert that evicts when it is refused, over the CAS tree.
const EVICT_MOST: f64 = 5.0;
/// Bytes of the cache of each thread.
const CACHE_BYTES: u64 = MIB;

/// Fills the cache of a thread with pages.
fn fill<L: Ledger>(ledger: &L, kept: &mut Kept<L::Held>) {
    kept.queue.extend((0..CACHE_BYTES / PAGE).map_while(|_| ledger.charge(0, PAGE)));
}

/// Frees the oldest page, then charges one.
#[derive(Clone)]
struct FreeOldest;

impl Load for FreeOldest {
    fn prepare<L: Ledger>(&self, ledger: &L, kept: &mut Kept<L::Held>) {
        fill(ledger, kept);
    }

    fn run<L: Ledger>(&self, ledger: &L, kept: &mut Kept<L::Held>, count: u64, tally: &mut Tally) -> u64 {
        for _ in 0..count {
            if let Some(oldest) = kept.queue.pop_front() {
                ledger.free(oldest);
            }
            match ledger.charge(0, PAGE) {
                Some(page) => kept.queue.push_back(page),
                None => tally.refused += 1,
            }
        }
        tally.asked += count;
        count
    }
}

/// Charges an entry. As long as that is refused, it frees the oldest one and asks again.
#[derive(Clone)]
struct EvictWhenRefused {
    is_random: bool,
}

impl Load for EvictWhenRefused {
    fn prepare<L: Ledger>(&self, ledger: &L, kept: &mut Kept<L::Held>) {
        fill(ledger, kept);
    }

    fn run<L: Ledger>(&self, ledger: &L, kept: &mut Kept<L::Held>, count: u64, tally: &mut Tally) -> u64 {
        for _ in 0..count {
            let bytes = if self.is_random { 64 + kept.random.next() % (2 * PAGE - 64) } else { PAGE };
            loop {
                tally.asked += 1;
                if let Some(entry) = ledger.charge(0, bytes) {
                    kept.queue.push_back(entry);
                    break;
                }
                tally.refused += 1;
                // Without an entry of its own this thread waits for the other's next eviction: the insert fails.
                let Some(oldest) = kept.queue.pop_front() else { break };
                ledger.free(oldest);
                tally.evicted += 1;
            }
        }
        count
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    at_own_limit(lab)?;
    at_parents_limit(lab)?;
    by_shrinker(lab)
}

/// Caches of so many threads fill leaf 0.
fn full_leaf(threads: usize) -> Shape {
    Shape { leaf_max: threads as u64 * CACHE_BYTES, ..Shape::leaves(1) }
}

fn at_own_limit(lab: &mut Lab<'_>) -> Result<()> {
    let mut table = Table::new(
        "a cache of 1 MiB a thread fills its group's limit; ns an insert",
        columns("insert; threads, same group"),
    );
    let of = |threads| {
        let name = "free the oldest, charge 4 KiB";
        Case::new(name, threads, full_leaf(threads), FreeOldest)
    };
    let oldest: Vec<_> = lab.one_and_all().into_iter().map(of).collect();
    measure(lab, &mut table, "insert, oldest freed", lab.effort.windows, &oldest)?;
    let mut cases = Vec::new();
    for (name, is_random) in
        [("evict when refused, 4 KiB", false), ("evict when refused, 64 B to 8 KiB", true)]
    {
        for threads in lab.one_and_all() {
            let mut case = Case::new(name, threads, full_leaf(threads), EvictWhenRefused { is_random });
            case.refusals = Refusals::Some;
            cases.push(case);
        }
    }
    let found = measure(lab, &mut table, "insert, evicted", lab.effort.windows, &cases)?;
    for (case, of) in cases.iter().zip(&found) {
        let refused = of.tally.refused > 0 && of.tally.evicted > 0;
        ensure(refused, || format!("{}: no insert was refused, so none evicted", case.name))?;
        if !case.load.is_random && case.threads == 1 {
            let name = "an insert of 4 KiB that evicts when refused, over the CAS tree";
            lab.at_most(name, of.over(Kind::Engine, Kind::Cas), EVICT_MOST, "x");
        }
    }
    table.note("refused: of all charges; 50 % of them where each insert of 4 KiB is refused once. Each thread evicts its own entries. Where it has none left, the insert fails and counts");
    lab.print(&table)
}

fn at_parents_limit(lab: &mut Lab<'_>) -> Result<()> {
    let case = |groups| {
        let shape = Shape { parent_max: CACHE_BYTES, ..Shape::leaves(groups) };
        let load = EvictWhenRefused { is_random: false };
        let name = format!("{} below", counted(groups as u64, "group"));
        Case { refusals: Refusals::Some, ..Case::new(name, 1, shape, load) }
    };
    let numbers = if lab.args.tiny { [2, 3, 5, 10] } else { [10, 100, 1_000, 10_000] };
    let mut table = Table::new(
        "the same where the parent is full: evict when refused, 4 KiB; the other groups hold nothing; ns an insert",
        columns("groups; threads"),
    );
    measure(lab, &mut table, "insert, full parent", lab.effort.windows, &numbers.map(case))?;
    lab.print(&table)
}

/// A cache that memgroup shrinks, at `max` or at `high`.
struct Shrunk {
    tenant: Tenant,
    inserts: Tallied,
}

/// Inserts done and refused.
#[derive(Default)]
struct Tallied {
    done: std::sync::atomic::AtomicU64,
    refused: std::sync::atomic::AtomicU64,
}

impl Shrunk {
    fn build(lab: &Lab<'_>, is_high: bool) -> Result<Shrunk> {
        let hierarchy = hierarchy(Config::with_slots(lab.slots))?;
        let level = child(&child(&hierarchy.root(), "level1")?, "level2")?;
        let tenant = Tenant::new(&level, "cache", |pages| pages)?;
        match is_high {
            true => tenant.group.set_high(CACHE_BYTES).set_up("high")?,
            false => limit(&tenant.group, CACHE_BYTES)?,
        }
        tenant.fill(CACHE_BYTES)?;
        Ok(Shrunk { tenant, inserts: Tallied::default() })
    }

    fn insert(&self, count: u64) -> Result<u64> {
        use std::sync::atomic::Ordering;
        let refused = (0..count).filter(|_| self.tenant.add_page().is_err()).count() as u64;
        // ORDERING: Relaxed, both; counts, read when the windows are over.
        self.inserts.done.fetch_add(count, Ordering::Relaxed);
        self.inserts.refused.fetch_add(refused, Ordering::Relaxed);
        Ok(count)
    }

    /// The share of refused inserts, and pages that were given back for each.
    fn end(self) -> Result<[Option<f64>; 2]> {
        use std::sync::atomic::Ordering;
        let held = self.tenant.pages.bytes();
        expect_bytes(&self.tenant.group, "usage", self.tenant.group.usage_exact(), held)?;
        // ORDERING: Relaxed, both; the windows are over.
        let (done, refused) =
            (self.inserts.done.load(Ordering::Relaxed), self.inserts.refused.load(Ordering::Relaxed));
        let given = CACHE_BYTES / PAGE + done - refused - held / PAGE;
        self.tenant.pages.clear();
        expect_bytes(&self.tenant.group, "usage at the end", self.tenant.group.usage_exact(), 0)?;
        Ok([refused, given].map(|part| ratio(Some(part as f64), Some(done as f64))))
    }
}

fn by_shrinker(lab: &mut Lab<'_>) -> Result<()> {
    let mut rows = Vec::new();
    for (name, is_high) in [("at max", false), ("at high", true)] {
        for threads in lab.one_and_all() {
            rows.push((name, threads, Shrunk::build(lab, is_high)?));
        }
    }
    let works: Vec<_> =
        rows.iter().map(|(.., shrunk)| |_: usize, _: &mut usize, count| shrunk.insert(count)).collect();
    let variants: Vec<Variant<'_>> =
        rows.iter().zip(&works).map(|((_, threads, _), work)| Variant::of(work, *threads)).collect();
    let measured = lab.interleave(&variants)?;
    drop(variants);
    drop(works);
    let mut table = Table::new(
        "the same cache as a memgroup shrinker that is asked for up to 64 KiB a call; ns an insert of 4 KiB",
        ["limit; threads", "median (min..p90)", "pages given back an insert", "refused"],
    );
    for ((name, threads, shrunk), of) in rows.into_iter().zip(&measured) {
        let [refused, given] = shrunk.end()?;
        let mut record = lab.record(format!("shrinker {name}"), json!({"threads": threads}));
        let ns = record.time("insert", of.ns);
        record.value("given back", "pages", given);
        record.value("refused", "", refused);
        ensure(given > Some(0.0), || format!("{name}: {given:?} pages an insert were given back"))?;
        let cells = [ns, figure_or_dash(given), super::cases::percent(refused)];
        table.row(format!("{name}; {threads}"), cells);
    }
    table.note("its controls are the inserts above that evict when refused. On several threads an insert is refused where another thread has the cache");
    note_windows(&mut table, &measured);
    lab.print(&table)
}
