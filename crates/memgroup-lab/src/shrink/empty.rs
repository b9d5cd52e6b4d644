//! The cost of tenants that have nothing for those that reclaim: Gushchin's question whether the long lists should not go instead.
//!
//! The control visits as the kernel does: at each priority every group is looked at, every marked cache is counted, and the kernel's
//! arithmetic of its size is asked for; a cache that says that it is empty loses its mark.
//!
//! - I1. After each reclaim the caches' pages are the parent's usage, and at least the asked bytes were given back.

use std::cell::Cell;
use std::sync::Arc;

use memgroup::{Config, Group, Hierarchy, SlotSource};

use crate::harness::cache::{BATCH, PAGE, Pages, Tenant};
use crate::harness::prelude::*;

/// Tenants with caches that are not empty, and the bytes of each.
const FULL: usize = 100;
const FULL_BYTES: u64 = 1 << 20;
/// Bytes of the large cache beside tiny ones.
const LARGE_BYTES: u64 = 64 << 20;
/// Tenants with a page in their cache.
const TINY: usize = 4_000;

/// The caches that give, and the tenants beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// [`FULL`] caches alone; the four cases with them come first.
    Full,
    /// Beside so many caches that were marked, and found empty.
    FullAndEmpty(usize),
    /// Beside so many groups without a shrinker.
    FullAndBare(usize),
    /// A large one, and so many of a page.
    Large(usize),
}

impl Case {
    fn name(self) -> String {
        let count = |number: usize| count(number as u64);
        match self {
            Case::Full => format!("{FULL} caches of 1 MiB alone"),
            Case::FullAndEmpty(number) => format!("and {} empty ones", count(number)),
            Case::FullAndBare(number) => format!("and {} groups without", count(number)),
            Case::Large(0) => "a cache of 64 MiB alone".to_owned(),
            Case::Large(tiny) => format!("and {} of a page each", count(tiny)),
        }
    }
}

/// Tenants below a parent that has room for all.
struct Tenants {
    /// The caches that give; they are filled again.
    givers: Vec<Tenant>,
    giver_bytes: u64,
    others: Vec<Tenant>,
    /// The caches of the kernel's walk in the order of the groups, and their marks.
    marked: Vec<(Option<Arc<Pages>>, Cell<bool>)>,
    turn: Cell<usize>,
    parent: Group,
    _bare: Vec<Group>,
    _hierarchy: Hierarchy,
}

impl Tenants {
    fn build(case: Case, slots: SlotSource) -> Result<Tenants> {
        let (givers, giver_bytes, others, bare) = match case {
            Case::Full => (FULL, FULL_BYTES, 0, 0),
            Case::FullAndEmpty(number) => (FULL, FULL_BYTES, number, 0),
            Case::FullAndBare(number) => (FULL, FULL_BYTES, 0, number),
            Case::Large(tiny) => (1, LARGE_BYTES, tiny, 0),
        };
        let config = Config::with_slots(slots).groups_max((givers + others + bare) as u32 + 3);
        let (_hierarchy, parent) = limited_parent(config, None)?;
        let tenants = |kind: &str, number| {
            let tenant = |at| Tenant::new(&parent, &format!("{kind}{at}"), |pages| pages);
            (0..number).map(tenant).collect::<Result<Vec<Tenant>>>()
        };
        let (givers, others) = (tenants("full", givers)?, tenants("other", others)?);
        let bare = children(&parent, "bare", bare)?;
        let caches = givers.iter().chain(&others).map(|tenant| Some(Arc::clone(&tenant.pages)));
        let caches = caches.chain(bare.iter().map(|_| None));
        let marked = caches.map(|pages| (pages, Cell::new(true))).collect();
        let (turn, _bare) = (Cell::new(0), bare);
        let tenants = Tenants { givers, giver_bytes, others, marked, turn, parent, _bare, _hierarchy };
        tenants.settle(case)?;
        Ok(tenants)
    }

    /// Fills the caches, and lets the first walks find the empty ones.
    fn settle(&self, case: Case) -> Result<()> {
        self.refill()?;
        for other in &self.others {
            match case {
                Case::Large(_) => other.fill(PAGE)?,
                _ => other.mark(),
            }
        }
        [false, true].repeat(3).into_iter().try_for_each(|plainly| {
            self.reclaim(plainly)?;
            self.refill()
        })
    }

    fn refill(&self) -> Result<()> {
        self.givers.iter().try_for_each(|tenant| tenant.fill(self.giver_bytes))
    }

    /// One reclaim, of the engine's or the control's.
    fn reclaim(&self, plainly: bool) -> Result<()> {
        let freed = if plainly { self.reclaim_plainly() } else { self.parent.reclaim(BATCH, None).bytes };
        ensure(freed >= BATCH, || format!("{freed} bytes were given back of caches that hold plenty"))
    }

    /// The bytes of one reclaim of the control's.
    fn reclaim_plainly(&self) -> u64 {
        let (groups, mut freed) = (self.marked.len(), 0);
        // The next reclaim begins with the next group, as the kernel's does.
        let begin = self.turn.replace((self.turn.get() + 1) % groups);
        for priority in (0..=12).rev() {
            let in_turn = self.marked[begin..].iter().chain(&self.marked[..begin]);
            for (pages, is_marked) in in_turn.filter(|(_, is_marked)| is_marked.get()) {
                let bytes = pages.as_ref().map_or(0, |pages| pages.bytes());
                let Some(pages) = pages.as_ref().filter(|_| bytes > 0) else {
                    is_marked.set(false);
                    continue;
                };
                // Of the usual cost, with nothing deferred.
                let mut work = ((bytes << 1) >> priority).min(2 * bytes);
                while work > 0 && (work >= BATCH || work >= bytes) {
                    let given = pages.give_back(work.min(BATCH)).unwrap_or(0);
                    (freed, work) = (freed + given, work.saturating_sub(given.max(PAGE)));
                    if freed >= BATCH {
                        return freed;
                    }
                }
            }
        }
        freed
    }

    /// The usage is the caches' bytes.
    fn check(&self) -> Result<()> {
        let cached: u64 = self.givers.iter().chain(&self.others).map(|tenant| tenant.pages.bytes()).sum();
        expect("the parent's usage, by its caches", self.parent.usage_exact(), cached)
    }

    /// Nanoseconds of each of some reclaims, the caches filled again after each.
    fn times(&self, watch: Stopwatch, calls: usize, plainly: bool) -> Result<Vec<f64>> {
        let mut times = Vec::with_capacity(calls);
        for _ in 0..calls {
            let (ns, done) = watch.time(|| self.reclaim(plainly));
            done?;
            times.push(ns);
            self.refill()?;
        }
        self.check()?;
        Ok(times)
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let fewer = |number: usize| if lab.args.tiny { number / 100 } else { number };
    let cases = [
        Case::Full,
        Case::FullAndEmpty(fewer(1_000)),
        Case::FullAndEmpty(fewer(10_000)),
        Case::FullAndBare(fewer(10_000)),
        Case::Large(0),
        Case::Large(fewer(TINY)),
    ];
    let (blocks, calls) = lab.pick((1, 3), (5, 100), (21, 100));
    let build = |case| Ok((case, Tenants::build(case, lab.slots)?, <[Blocks; 2]>::default()));
    let mut built = cases.into_iter().map(build).collect::<Result<Vec<_>>>()?;
    lab.in_turns(blocks, cases.len(), |lab, index| {
        let (_, tenants, found) = &mut built[index];
        for (plainly, found) in [false, true].into_iter().zip(found) {
            found.push(tenants.times(lab.clock.stopwatch(), calls, plainly)?);
        }
        Ok(())
    })?;
    let mut table = Table::new(
        "a reclaim of 64 KiB from caches beside others that have next to nothing: us of its thread, median (min..p90) of blocks' medians",
        ["caches", "shrinkers", "p99", "as the kernel visits (control)", "p99", ""],
    );
    let mut alone = None;
    for (case, _, found) in &built {
        let mut cells = Vec::new();
        for (variant, found) in ["shrinkers", "as the kernel visits (control)"].into_iter().zip(found) {
            lab.record(variant, json!({"caches": case.name()})).summary("reclaim", "ns", found.p50());
            let p99 = median(found.p99()).map(|ns| ns / 1e3);
            cells.extend([spread(found.p50().map(|ns| ns.scaled(1e-3))), figure_or_dash(p99)]);
        }
        let [ours, control] = [0, 1].map(|index: usize| median(found[index].p50()));
        cells.push(times(ratio(control, ours)));
        table.row(case.name(), cells);
        let givers = if matches!(case, Case::Large(_)) { "one cache" } else { "100 caches" };
        if matches!(case, Case::Full | Case::Large(0)) {
            alone = ours;
        } else {
            let name = format!("a reclaim from {givers} {} over alone", case.name());
            lab.at_most(name, ratio(ours, alone), 1.05, "x");
        }
    }
    table.note("the caches' work is in it: 16 pages are uncharged. The control looks at every group at every priority and counts the marked ones; it keeps no classes and no last counts, and pins nothing");
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_the_asked_bytes_by_both_walks() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        for case in [Case::FullAndEmpty(30), Case::FullAndBare(30), Case::Large(30)] {
            let tenants = Tenants::build(case, slots).unwrap();
            tenants.check().unwrap();
            tenants.reclaim(false).unwrap();
            tenants.reclaim(true).unwrap();
            tenants.check().unwrap();
            let tiny: u64 = tenants.others.iter().map(|tenant| tenant.pages.bytes()).sum();
            assert_eq!(tiny, if case == Case::Large(30) { 30 * PAGE } else { 0 }, "tiny caches are spared");
        }
    }
}
