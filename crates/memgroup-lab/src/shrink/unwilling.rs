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

use memgroup::{Ask, Count, Scan, Shrinker, SlotSource};

use super::OURS;
use super::groups::{BATCH, Groups, PAGE, Pages, Registered};
use crate::harness::prelude::*;

/// Tenants whose caches give, and the bytes of each cache, those of the unwilling ones included.
const GIVERS: usize = 100;
const CACHE_BYTES: u64 = 1 << 20;
const CONTROL: &str = "as the kernel visits (control)";
/// The tenants beside those that give: their number, and of how many bytes that are asked for they
/// give one, none for 0. Without that their caches are empty.
const BESIDE: [(&str, usize, Option<u64>); 4] = [
    ("alone", 0, None),
    ("empty caches", 10_000, None),
    ("caches that give nothing", 1_000, Some(0)),
    ("caches that give 1/16", 1_000, Some(16)),
];

/// A cache that gives one of so many bytes that it is asked for; none for 0.
struct Cache {
    pages: Pages,
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

/// A cache, registered with the engine, and what the control keeps of it.
struct Visited {
    registered: Registered,
    cache: Arc<Cache>,
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
    visited: Vec<Visited>,
    /// Those that have pages, which are filled again after each reclaim.
    filled: usize,
    turn: Cell<usize>,
    calls: Arc<AtomicU64>,
    groups: Groups<Cache>,
}

impl Tenants {
    fn build(number: usize, one_of: Option<u64>, settle: usize, slots: SlotSource) -> Result<Tenants> {
        let (groups, calls) =
            (Groups::build(slots, None, GIVERS + number, None)?, Arc::<AtomicU64>::default());
        let visited = |group| {
            let one_of = if group < GIVERS { 1 } else { one_of.unwrap_or(0) };
            let cache = Arc::new(Cache { pages: Pages::default(), one_of, calls: Arc::clone(&calls) });
            let registered = groups.register(group, &cache)?;
            registered.mark();
            Ok(Visited { registered, cache, is_marked: Cell::new(true), deferred: Cell::new(0) })
        };
        let visited = (0..GIVERS + number).map(visited).collect::<Result<_>>()?;
        let filled = if one_of.is_some() { GIVERS + number } else { GIVERS };
        let tenants = Tenants { visited, filled, turn: Cell::new(0), calls, groups };
        // The first walks find out which caches are empty, and which give nothing.
        tenants.times(None, settle, false)?;
        tenants.times(None, settle, true)?;
        Ok(tenants)
    }

    fn fill(&self) -> Result<()> {
        for (group, visited) in self.visited[..self.filled].iter().enumerate() {
            let pages = &visited.cache.pages;
            let missing = CACHE_BYTES.saturating_sub(pages.bytes()) / PAGE;
            let filled = (0..missing).all(|_| self.groups.insert(group, pages, &visited.registered));
            ensure(filled, || "a page was refused where there is room".to_owned())?;
        }
        Ok(())
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

    /// Makes so many reclaims by the engine, or by the control, and fills the caches again after
    /// each. Returns the nanoseconds of each, if a watch is given, and the calls of one.
    fn times(&self, watch: Option<Stopwatch>, reclaims: usize, plainly: bool) -> Result<(Vec<f64>, f64)> {
        let (mut times, mut calls) = (Vec::new(), 0);
        let reclaim =
            || if plainly { self.reclaim_plainly() } else { self.groups.parent.reclaim(BATCH, None).bytes };
        // ORDERING: Relaxed; this thread makes all calls.
        let made = || self.calls.load(Ordering::Relaxed);
        for _ in 0..reclaims {
            self.fill()?;
            let before = made();
            let (ns, freed) = watch.map_or_else(|| (0.0, reclaim()), |watch| watch.time(reclaim));
            calls += made() - before;
            times.push(ns);
            ensure(freed >= BATCH, || format!("{freed} bytes were given back of caches that hold plenty"))?;
        }
        self.groups.check(self.visited.iter().map(|visited| &visited.cache.pages))?;
        Ok((times, calls as f64 / reclaims as f64))
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (blocks, reclaims, settle) = lab.pick((1, 3, 3), (5, 50, 300), (15, 100, 1_000));
    let number = |number: usize| if lab.args.tiny { number / 100 } else { number };
    let beside = BESIDE.map(|(name, of, one_of)| (name, number(of), one_of));
    let built = beside.map(|(_, number, one_of)| Tenants::build(number, one_of, settle, lab.slots));
    let built = built.into_iter().collect::<Result<Vec<_>>>()?;
    let found = lab.sample(blocks, 2 * BESIDE.len(), |lab, index, found| {
        let watch = lab.clock.stopwatch();
        let (times, calls) = built[index / 2].times(Some(watch), reclaims, index % 2 == 1)?;
        found.block("reclaim", times, 1e3);
        found.push("calls a reclaim", calls);
        Ok(())
    })?;
    let rows = found.iter().enumerate().map(|(index, found)| {
        let ((name, number, _), variant) = (beside[index / 2], [OURS, CONTROL][index % 2]);
        let shown = if number == 0 { String::new() } else { format!("{} ", count(number as u64)) };
        (format!("{shown}{name}, {variant}"), variant, json!({"beside": name, "number": number}), found)
    });
    let note = format!(
        "the caches' own work is in it: at least 16 pages are uncharged. Calls: of count and scan, for a reclaim. The last two count 1 MiB each. Each case was reclaimed from {settle} times before. The kernel's visits are the control. It looks at every group at every priority and counts the marked ones; it pins nothing and remembers only what it deferred"
    );
    let columns =
        [("reclaim p50", "us"), ("reclaim p99", "us"), ("reclaim max", "us"), ("calls a reclaim", "")];
    let title = format!("a reclaim of 64 KiB from {GIVERS} caches of 1 MiB, beside others");
    lab.show(title, &columns, rows, note)?;
    for (at, (name, ..)) in BESIDE.into_iter().enumerate().skip(1) {
        let (ours, control) = (&found[2 * at], &found[2 * at + 1]);
        let over = |of: &Samples, below: &Samples| of.over(below, "reclaim p50");
        lab.at_most(format!("a reclaim beside {name}, over alone"), over(ours, &found[0]), 1.05, "x");
        let gain = over(control, ours);
        lab.at_least(format!("a reclaim beside {name}: the kernel's visits over ours"), gain, 1.0, "x");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_the_wanted_bytes_by_both_walks_beside_each_kind() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        for (name, _, one_of) in BESIDE {
            let tenants = Tenants::build(30, one_of, 3, slots).unwrap();
            for plainly in [false, true] {
                let (times, calls) = tenants.times(None, 2, plainly).unwrap();
                assert!(times.len() == 2 && calls >= 1.0, "{name}");
            }
        }
    }

    #[test]
    fn defers_what_is_less_than_a_batch() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let tenants = Tenants::build(1, Some(0), 3, slots).unwrap();
        tenants.fill().unwrap();
        let unwilling = &tenants.visited[GIVERS];
        unwilling.deferred.set(0);
        // 2 MiB by 2^6 are half a batch: the second visit asks for a whole one.
        assert_eq!(
            [6, 6].map(|priority| (unwilling.shrink(priority), unwilling.deferred.get())),
            [(0, BATCH / 2), (0, 0)]
        );
    }
}
