//! Gushchin's question in the thread: are the long lists of shrinkers that give little or nothing
//! not the real cost?
//!
//! A reclaim of 64 KiB from 100 caches of a mebibyte each is timed alone, and beside tenants of
//! three kinds: whose caches are empty; that count a mebibyte and give nothing; that count a
//! mebibyte and give one page of sixteen. The control visits as the kernel does: at each priority
//! every group is looked at and every marked cache counted, the kernel's arithmetic says how much
//! to ask for, and what was not asked for is deferred to the next visit. A cache that says that it
//! is empty loses its mark.
//!
//! - I1. After each reclaim the caches' pages are the parent's usage, and at least the wanted bytes
//!   were given back.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Ask, Config, Count, Group, Hierarchy, Scan, Shrinker, SlotSource};

use super::OURS;
use crate::harness::cache::{BATCH, Pages, Tenant};
use crate::harness::prelude::*;

/// Tenants whose caches give, and the bytes of each cache, those of the unwilling ones included.
const GIVERS: usize = 100;
const CACHE_BYTES: u64 = 1 << 20;
const CONTROL: &str = "as the kernel visits (control)";

/// The tenants beside those that give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Empty,
    Nothing,
    Little,
}

impl Beside {
    const ALL: [(Beside, usize, &str); 4] = [
        (Beside::Empty, 0, "alone"),
        (Beside::Empty, 10_000, "empty caches"),
        (Beside::Nothing, 1_000, "caches that give nothing"),
        (Beside::Little, 1_000, "caches that give 1/16"),
    ];
}

/// A cache that gives all that it is asked for, or not.
struct Cache {
    pages: Arc<Pages>,
    /// Of how many bytes that are asked for it gives one; none for 0.
    one_of: u64,
    calls: Arc<AtomicU64>,
}

impl Cache {
    fn count_call(&self) {
        // ORDERING: Relaxed; a number by itself.
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn give(&self, bytes: u64) -> u64 {
        self.count_call();
        bytes.checked_div(self.one_of).and_then(|bytes| self.pages.give_back(bytes)).unwrap_or(0)
    }
}

impl Shrinker for Cache {
    fn count(&self, token: u64) -> Count {
        self.count_call();
        self.pages.count(token)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        Scan::Freed { bytes: self.give(ask.bytes()) }
    }
}

/// What the control keeps of a group.
struct Visited {
    cache: Cache,
    is_marked: Cell<bool>,
    deferred: Cell<u64>,
}

impl Visited {
    /// One visit as the kernel makes it (`do_shrink_slab`); the bytes that the cache gave.
    fn shrink(&self, priority: u32) -> u64 {
        let cache = &self.cache;
        cache.count_call();
        let size = cache.pages.bytes();
        if size == 0 {
            self.is_marked.set(false);
            return 0;
        }
        // Of the usual cost. A cache of less than a batch is asked for all that it has.
        let (mut left, mut freed) = ((self.deferred.get() + ((2 * size) >> priority)).min(2 * size), 0);
        while left >= BATCH || left >= size {
            let asked = left.min(BATCH);
            freed += cache.give(asked);
            left -= asked;
        }
        self.deferred.set(left);
        freed
    }
}

/// Tenants below a parent that has room for all.
struct Tenants {
    /// Those that give, and those beside them that have pages; all are filled again after each
    /// reclaim.
    filled: Vec<Tenant>,
    _empty: Vec<Tenant>,
    visited: Vec<Visited>,
    turn: Cell<usize>,
    calls: Arc<AtomicU64>,
    parent: Group,
    _hierarchy: Hierarchy,
}

impl Tenants {
    fn build(beside: Beside, number: usize, settle: usize, slots: SlotSource) -> Result<Tenants> {
        let config = Config::with_slots(slots).groups_max((GIVERS + number) as u32 + 3);
        let (_hierarchy, parent) = limited_parent(config, None)?;
        let (calls, mut visited) = (Arc::<AtomicU64>::default(), Vec::new());
        let mut tenant = |name: String, one_of: u64| {
            let cache =
                |pages: &Arc<Pages>| Cache { pages: Arc::clone(pages), one_of, calls: Arc::clone(&calls) };
            let tenant = Tenant::new(&parent, &name, |pages| cache(&pages))?;
            let (is_marked, deferred) = (Cell::new(true), Cell::new(0));
            visited.push(Visited { cache: cache(&tenant.pages), is_marked, deferred });
            tenant.mark();
            Ok(tenant)
        };
        let mut filled = (0..GIVERS).map(|at| tenant(format!("giver{at}"), 1)).collect::<Result<Vec<_>>>()?;
        let one_of = if beside == Beside::Little { 16 } else { 0 };
        let others =
            (0..number).map(|at| tenant(format!("other{at}"), one_of)).collect::<Result<Vec<_>>>()?;
        let mut empty = Vec::new();
        if beside == Beside::Empty { &mut empty } else { &mut filled }.extend(others);
        let tenants =
            Tenants { filled, _empty: empty, visited, turn: Cell::new(0), calls, parent, _hierarchy };
        // The first walks find out which caches are empty, and which give nothing.
        tenants.times(None, settle, false)?;
        tenants.times(None, settle, true)?;
        Ok(tenants)
    }

    /// One reclaim, by the control or by the engine.
    fn reclaim(&self, plainly: bool) -> Result<()> {
        let freed = if plainly { self.reclaim_plainly() } else { self.parent.reclaim(BATCH, None).bytes };
        ensure(freed >= BATCH, || format!("{freed} bytes were given back of caches that hold plenty"))
    }

    fn reclaim_plainly(&self) -> u64 {
        let (groups, mut freed) = (self.visited.len(), 0);
        // The next reclaim begins with the next group, as the kernel's does.
        let begin = self.turn.replace((self.turn.get() + 1) % groups);
        for priority in (0..=12).rev() {
            let in_turn = self.visited[begin..].iter().chain(&self.visited[..begin]);
            for visited in in_turn.filter(|visited| visited.is_marked.get()) {
                freed += visited.shrink(priority);
                if freed >= BATCH {
                    return freed;
                }
            }
        }
        freed
    }

    /// Makes so many reclaims, and fills the caches again after each. Returns the nanoseconds of
    /// each, if a watch is given, and the calls of one.
    fn times(&self, watch: Option<Stopwatch>, reclaims: usize, plainly: bool) -> Result<(Vec<f64>, f64)> {
        let (mut times, mut calls) = (Vec::new(), 0);
        for _ in 0..=reclaims {
            self.filled.iter().try_for_each(|tenant| tenant.fill(CACHE_BYTES))?;
            if times.len() == reclaims {
                break;
            }
            // ORDERING: Relaxed, both; this thread makes all calls.
            let before = self.calls.load(Ordering::Relaxed);
            let (ns, done) = match watch {
                Some(watch) => watch.time(|| self.reclaim(plainly)),
                None => (0.0, self.reclaim(plainly)),
            };
            done?;
            times.push(ns);
            // ORDERING: as above.
            calls += self.calls.load(Ordering::Relaxed) - before;
        }
        let cached: u64 = self.filled.iter().map(|tenant| tenant.pages.bytes()).sum();
        expect("the parent's usage, by its caches", self.parent.usage_exact(), cached)?;
        Ok((times, calls as f64 / reclaims as f64))
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let fewer = |number: usize| if lab.args.tiny { number / 100 } else { number };
    let (blocks, reclaims, settle) = lab.pick((1, 3, 3), (5, 50, 300), (15, 100, 1_000));
    let build = |(beside, number, name): (Beside, usize, &'static str)| {
        let (number, tenants) = (fewer(number), Tenants::build(beside, fewer(number), settle, lab.slots)?);
        Ok((number, name, tenants, <[(Blocks, Vec<f64>); 2]>::default()))
    };
    let mut built = Beside::ALL.into_iter().map(build).collect::<Result<Vec<_>>>()?;
    lab.in_turns(blocks, built.len(), |lab, index| {
        let (_, _, tenants, found) = &mut built[index];
        for (plainly, found) in [false, true].into_iter().zip(found) {
            let (block, calls) = tenants.times(Some(lab.clock.stopwatch()), reclaims, plainly)?;
            found.0.push(block);
            found.1.push(calls);
        }
        Ok(())
    })?;
    let title = format!("a reclaim of 64 KiB from {GIVERS} caches of 1 MiB, beside others: us of its thread");
    let columns = ["beside", "ours: p50", "p99", "calls", "the kernel's: p50", "p99", "calls", ""];
    let mut table = Table::new(title, columns);
    let mut p50s = Vec::new();
    for (number, name, _, found) in &built {
        let mut cells = Vec::new();
        for (variant, (times, calls)) in [OURS, CONTROL].into_iter().zip(found) {
            let mut row = lab.record(variant, json!({"beside": name, "number": number}));
            cells.extend(row.blocks(times).into_iter().take(2));
            cells.push(row.value("calls a reclaim", "", median_of(calls)));
        }
        let [ours, control] = [0, 1].map(|of: usize| median(found[of].0.p50()));
        cells.push(times(ratio(control, ours)));
        let shown =
            if *number == 0 { (*name).to_owned() } else { format!("{} {name}", count(*number as u64)) };
        table.row(&shown, cells);
        p50s.push((name, ours, control));
    }
    table.note(format!("the caches' own work is in it: at least 16 pages are uncharged. Calls: of count and scan, for a reclaim. The last two count 1 MiB each. Each case was reclaimed from {settle} times before. The kernel's visits are the control. It looks at every group at every priority and counts the marked ones; it pins nothing and remembers only what it deferred"));
    lab.print(&table)?;
    let alone = p50s[0].1;
    for (name, ours, control) in &p50s[1..] {
        lab.at_most(format!("a reclaim beside {name}, over alone"), ratio(*ours, alone), 1.05, "x");
        lab.at_least(
            format!("a reclaim beside {name}: the kernel's visits over ours"),
            ratio(*control, *ours),
            1.0,
            "x",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_the_wanted_bytes_by_both_walks_beside_each_kind() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        for (beside, _, name) in Beside::ALL {
            let tenants = Tenants::build(beside, 30, 3, slots).unwrap();
            for plainly in [false, true] {
                let (times, calls) = tenants.times(None, 2, plainly).unwrap();
                assert!(times.len() == 2 && calls >= 1.0, "{name}");
            }
        }
    }

    #[test]
    fn defers_what_is_less_than_a_batch() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let tenants = Tenants::build(Beside::Nothing, 1, 3, slots).unwrap();
        let unwilling = &tenants.visited[GIVERS];
        unwilling.deferred.set(0);
        // 2 MiB by 2^6 are half a batch: the second visit asks for a whole one.
        assert_eq!(
            [6, 6].map(|priority| (unwilling.shrink(priority), unwilling.deferred.get())),
            [(0, BATCH / 2), (0, 0)]
        );
    }
}
