//! What tenants that have nothing cost those that reclaim: Gushchin's question whether it is not the long lists that should go.
//!
//! The control visits as the kernel does: at each priority every group is looked at, every marked cache is counted, and what the
//! kernel's arithmetic makes of its size is asked for; a cache that says that it is empty loses its mark.
//!
//! - I1. After each reclaim the caches' pages are the parent's usage, and at least what was asked for was given back.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memgroup::{Config, Group, Hierarchy, SlotSource};

use super::cache::{BATCH, PAGE, Pages, Tenant};
use crate::Error;
use crate::harness::quantiles::Times;
use crate::harness::report::{Check, params, ratio};
use crate::harness::table::{Table, count, figure, figure_or_dash, spread};
use crate::harness::tree::child;
use crate::harness::{Lab, clock};

/// Tenants whose caches are not empty.
const FULL: usize = 100;
/// What each of them has.
const FULL_BYTES: u64 = 1 << 20;
/// What the large cache beside tiny ones has.
const LARGE_BYTES: u64 = 64 << 20;
/// Tenants whose caches have a page.
const TINY: usize = 4_000;

/// Who is beside those that have something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nobody,
    /// Caches that were marked, and found empty.
    Empty(usize),
    /// Groups without a shrinker.
    Bare(usize),
}

/// Which caches there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Full(Beside),
    /// A large one, and so many of a page.
    Large(usize),
}

/// Cases of [`Case::Full`], which come first, the one to compare with before the others.
const FULL_CASES: usize = 4;

impl Case {
    fn givers(self) -> &'static str {
        match self {
            Case::Full(_) => "100 caches",
            Case::Large(_) => "one cache",
        }
    }

    fn name(self) -> String {
        match self {
            Case::Full(Beside::Nobody) => format!("{FULL} caches of 1 MiB alone"),
            Case::Full(Beside::Empty(number)) => format!("and {} empty ones", count(number as u64)),
            Case::Full(Beside::Bare(number)) => format!("and {} groups without", count(number as u64)),
            Case::Large(0) => "a cache of 64 MiB alone".to_owned(),
            Case::Large(tiny) => format!("and {} of a page each", count(tiny as u64)),
        }
    }
}

/// Tenants below a parent that has room for all.
struct House {
    /// Those that give; they are filled again.
    givers: Vec<Tenant>,
    giver_bytes: u64,
    others: Vec<Tenant>,
    /// What the kernel's walk looks at, in the order of the groups.
    marked: Vec<(Option<Arc<Pages>>, AtomicBool)>,
    turn: Cell<usize>,
    parent: Group,
    _bare: Vec<Group>,
    _hierarchy: Hierarchy,
}

impl House {
    fn build(case: Case, slots: SlotSource) -> Result<House, Error> {
        let (givers, giver_bytes, others, bare) = match case {
            Case::Full(Beside::Nobody) => (FULL, FULL_BYTES, 0, 0),
            Case::Full(Beside::Empty(number)) => (FULL, FULL_BYTES, number, 0),
            Case::Full(Beside::Bare(number)) => (FULL, FULL_BYTES, 0, number),
            Case::Large(tiny) => (1, LARGE_BYTES, tiny, 0),
        };
        let config = Config::with_slots(slots).groups_max((givers + others + bare) as u32 + 3);
        let hierarchy = Hierarchy::new(config).map_err(|error| Error::setup("the hierarchy", error))?;
        let parent = child(&hierarchy.root(), "parent")?;
        let tenants = |kind: &str, number| {
            let tenant = |at| Tenant::new(&parent, &format!("{kind}{at}"), |pages| pages);
            (0..number).map(tenant).collect::<Result<Vec<Tenant>, Error>>()
        };
        let (givers, others) = (tenants("full", givers)?, tenants("other", others)?);
        let bare = (0..bare).map(|at| child(&parent, &format!("bare{at}"))).collect::<Result<Vec<_>, _>>()?;
        let caches = givers.iter().chain(&others).map(|tenant| Some(Arc::clone(&tenant.pages)));
        let marked =
            caches.chain(bare.iter().map(|_| None)).map(|pages| (pages, AtomicBool::new(true))).collect();
        let mut house = House {
            givers,
            giver_bytes,
            others,
            marked,
            turn: Cell::new(0),
            parent,
            _bare: bare,
            _hierarchy: hierarchy,
        };
        house.settle(case)?;
        Ok(house)
    }

    /// Gives the caches what they have, and lets the first walks find out.
    fn settle(&mut self, case: Case) -> Result<(), Error> {
        self.refill()?;
        for other in &self.others {
            match case {
                Case::Large(_) => other.fill(PAGE)?,
                Case::Full(_) => other.mark(),
            }
        }
        for _ in 0..3 {
            self.reclaim()?;
            self.refill()?;
            self.reclaim_plainly()?;
            self.refill()?;
        }
        Ok(())
    }

    fn refill(&self) -> Result<(), Error> {
        self.givers.iter().try_for_each(|tenant| tenant.fill(self.giver_bytes))
    }

    /// One reclaim of the engine's.
    fn reclaim(&self) -> Result<(), Error> {
        let reclaimed = self.parent.reclaim(BATCH, None);
        self.expect_enough(reclaimed.bytes)
    }

    /// One reclaim of the control's.
    fn reclaim_plainly(&self) -> Result<(), Error> {
        let (groups, mut freed) = (self.marked.len(), 0);
        // The next reclaim begins with the next group, as the kernel's does.
        let begin = self.turn.replace((self.turn.get() + 1) % groups);
        'all: for priority in (0..=12).rev() {
            for (pages, is_marked) in self.marked[begin..].iter().chain(&self.marked[..begin]) {
                // ORDERING: Relaxed; used by one thread.
                if !is_marked.load(Ordering::Relaxed) {
                    continue;
                }
                let bytes = pages.as_ref().map_or(0, |pages| pages.bytes());
                let Some(pages) = pages.as_ref().filter(|_| bytes > 0) else {
                    // ORDERING: as above.
                    is_marked.store(false, Ordering::Relaxed);
                    continue;
                };
                // Of the usual cost, with nothing deferred.
                let mut work = ((bytes << 1) >> priority).min(2 * bytes);
                while work > 0 && (work >= BATCH || work >= bytes) {
                    let given = pages.give_back(work.min(BATCH)).unwrap_or(0);
                    (freed, work) = (freed + given, work.saturating_sub(given.max(PAGE)));
                    if freed >= BATCH {
                        break 'all;
                    }
                }
            }
        }
        self.expect_enough(freed)
    }

    fn expect_enough(&self, freed: u64) -> Result<(), Error> {
        if freed >= BATCH {
            return Ok(());
        }
        Err(Error::Wrong(format!(
            "{freed} bytes were given back of caches that hold plenty, {BATCH} were asked for"
        )))
    }

    /// What is charged is what the caches have.
    fn check(&self) -> Result<(), Error> {
        let cached: u64 = self.givers.iter().chain(&self.others).map(|tenant| tenant.pages.bytes()).sum();
        let usage = self.parent.usage_exact();
        if usage == cached {
            return Ok(());
        }
        Err(Error::Wrong(format!("the parent's usage is {usage} bytes, its caches hold {cached}")))
    }

    /// Nanoseconds of each of some reclaims, the caches filled again after each.
    fn times(&self, clock: clock::Clock, calls: usize, plainly: bool) -> Result<Vec<f64>, Error> {
        let reading = clock::reading_ticks();
        let mut times = Vec::with_capacity(calls);
        for _ in 0..calls {
            let begin = clock::now_ordered();
            if plainly {
                self.reclaim_plainly()?
            } else {
                self.reclaim()?
            }
            times.push(clock.ns((clock::now_ordered() - begin).saturating_sub(reading) as f64));
            self.refill()?;
        }
        self.check()?;
        Ok(times)
    }
}

struct Line {
    case: Case,
    ours: Times,
    control: Times,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let fewer = |number: usize| if lab.args.tiny { number / 100 } else { number };
    let full: [Beside; FULL_CASES] = [
        Beside::Nobody,
        Beside::Empty(fewer(1_000)),
        Beside::Empty(fewer(10_000)),
        Beside::Bare(fewer(10_000)),
    ];
    let cases = full.map(Case::Full).into_iter().chain([Case::Large(0), Case::Large(fewer(TINY))]);
    let mut lines: Vec<Line> =
        cases.map(|case| Line { case, ours: Times::default(), control: Times::default() }).collect();
    let (blocks, calls) = match (lab.args.tiny, lab.args.quick) {
        (true, _) => (1, 3),
        (_, true) => (5, 100),
        (_, false) => (21, 100),
    };
    let houses =
        lines.iter().map(|line| House::build(line.case, lab.slots)).collect::<Result<Vec<_>, _>>()?;
    let mut order: Vec<usize> = (0..lines.len()).collect();
    for _ in 0..blocks {
        lab.random.shuffle(&mut order);
        for &index in &order {
            lines[index].ours.push(houses[index].times(lab.clock, calls, false)?);
            lines[index].control.push(houses[index].times(lab.clock, calls, true)?);
        }
    }
    show(lab, &lines)?;
    check(lab, &lines);
    Ok(())
}

fn show(lab: &mut Lab<'_>, lines: &[Line]) -> Result<(), Error> {
    let mut table = Table::new(
        "a reclaim of 64 KiB from caches beside others that have next to nothing: us of its thread, median (min..p90) of blocks' medians",
        ["caches", "shrinkers", "p99", "as the kernel visits (control)", "p99", ""],
    );
    for line in lines {
        let p50 = [&line.ours, &line.control].map(Times::p50);
        let p99 = [&line.ours, &line.control].map(|times| times.p99().map(|ns| ns.median / 1e3));
        let gain = ratio(p50[1].map(|ns| ns.median), p50[0].map(|ns| ns.median));
        table.row(vec![
            line.case.name(),
            spread(p50[0].map(|ns| ns.scaled(1e-3))),
            figure_or_dash(p99[0]),
            spread(p50[1].map(|ns| ns.scaled(1e-3))),
            figure_or_dash(p99[1]),
            gain.map_or_else(String::new, |gain| format!("x{}", figure(gain))),
        ]);
        for (variant, ns) in [("shrinkers", p50[0]), ("as the kernel visits (control)", p50[1])] {
            if let Some(ns) = ns {
                lab.report.add(variant, params([("caches", line.case.name().into())]), "reclaim", "ns", ns);
            }
        }
    }
    table.note("the caches' work is in it: 16 pages are uncharged. The control looks at every group at every priority and counts what is marked; it keeps no classes and no last counts, and pins nothing");
    lab.print(&table)
}

fn check(lab: &mut Lab<'_>, lines: &[Line]) {
    let over = |line: &Line, alone: &Line| {
        let p50 = |line: &Line| line.ours.p50().map(|ns| ns.median);
        let name = format!("a reclaim from {} {} over alone", alone.case.givers(), line.case.name());
        Check::at_most(name, ratio(p50(line), p50(alone)), 1.05, "x")
    };
    let (full, large) = lines.split_at(FULL_CASES);
    let checks =
        [full, large].into_iter().flat_map(|lines| lines[1..].iter().map(|line| over(line, &lines[0])));
    lab.report.checks.extend(checks);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_walks_give_back_what_is_asked_for_and_leave_the_books_right() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        for case in [Case::Full(Beside::Empty(30)), Case::Full(Beside::Bare(30)), Case::Large(30)] {
            let house = House::build(case, slots).unwrap();
            house.check().unwrap();
            house.reclaim().unwrap();
            house.reclaim_plainly().unwrap();
            house.check().unwrap();
            let tiny: u64 = house.others.iter().map(|tenant| tenant.pages.bytes()).sum();
            assert_eq!(tiny, if case == Case::Large(30) { 30 * PAGE } else { 0 }, "tiny caches are spared");
        }
    }
}
