//! The seed's own loop: map 1 MiB, touch every page, unmap, on every CPU - with a charge for each page.
//!
//! The seed ran one process on each CPU; here the threads share an address space, and meet at its lock whenever they
//! map or unmap. That wait hides the counters, so a second loop keeps its mapping and only gives the pages back.

use std::sync::{Arc, Mutex};

use memgroup::{Charge, Group};

use super::pair::{Mechanism, config, refused};
use super::pairs::{PAGE_BYTES, cell, note_windows};
use crate::Error;
use crate::harness::Lab;
use crate::harness::os::{Mapping, page_bytes};
use crate::harness::report::{params, ratio};
use crate::harness::stats::{Removal, Share, Summary, share_removed};
use crate::harness::table::{Table, figure_or_dash};
use crate::harness::tree::Tree;
use crate::harness::window::{Plan, Variant, Work};

const REGION_BYTES: usize = 1 << 20;

/// How a region ends, once every page of it was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is unmapped, as in the seed.
    Unmap,
    /// Its pages are given back, the mapping stays.
    Discard,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            End::Unmap => "map, touch, unmap",
            End::Discard => "touch, discard",
        }
    }
}

/// The loop of every thread; each continues where its last window stopped.
struct Faults {
    end: End,
    group: Option<Group>,
    threads: Vec<Mutex<Region>>,
}

/// One thread's mapping, the pages it touched and what it charged for them.
struct Region {
    mapping: Option<Mapping>,
    touched_bytes: usize,
    charges: Vec<Charge>,
}

impl Faults {
    fn new(end: End, threads: usize, group: Option<Group>) -> Faults {
        let region = || {
            let charges = Vec::with_capacity(REGION_BYTES / page_bytes());
            Mutex::new(Region { mapping: None, touched_bytes: 0, charges })
        };
        Faults { end, group, threads: (0..threads).map(|_| region()).collect() }
    }

    fn end_all(&self) -> Result<(), Error> {
        self.threads.iter().try_for_each(|thread| thread.lock().expect("no window panicked").end(End::Unmap))
    }
}

impl Region {
    fn end(&mut self, how: End) -> Result<(), Error> {
        match (how, &self.mapping) {
            (End::Discard, Some(mapping)) => mapping.discard()?,
            _ => self.mapping = None,
        }
        self.charges.clear();
        self.touched_bytes = 0;
        Ok(())
    }

    fn touch_next(&mut self, end: End, group: Option<&Group>, page_bytes: usize) -> Result<(), Error> {
        if self.touched_bytes == REGION_BYTES {
            self.end(end)?;
        }
        if let Some(group) = group {
            self.charges.push(group.try_charge(PAGE_BYTES).map_err(refused)?);
        }
        let mapping = match &self.mapping {
            Some(mapping) => mapping,
            None => self.mapping.insert(Mapping::new(REGION_BYTES)?),
        };
        mapping.touch(self.touched_bytes);
        self.touched_bytes += page_bytes;
        Ok(())
    }
}

impl Work for Faults {
    fn batch(&self, thread: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        let mut region = self.threads[thread].lock().expect("no window panicked");
        let page_bytes = page_bytes();
        for _ in 0..count {
            region.touch_next(self.end, self.group.as_ref(), page_bytes)?;
        }
        Ok(count)
    }
}

const KINDS: [(&str, Option<Mechanism>); 3] =
    [("without accounting", None), ("no stock", Some(Mechanism::NoStock)), ("stock", Some(Mechanism::Stock))];

/// Measures the loop on one thread and on all, prints what it shows and what it cannot.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let depth = lab.args.depth.unwrap_or(3);
    let crowds: Vec<usize> = if lab.args.threads() > 1 { vec![1, lab.args.threads()] } else { vec![1] };
    let mut built = Vec::new();
    for end in [End::Unmap, End::Discard] {
        for &threads in &crowds {
            for (name, mechanism) in KINDS {
                let tree = mechanism
                    .map(|kind| Tree::grow(config(kind == Mechanism::Stock, depth, lab.slots), depth, 1))
                    .transpose()?;
                let group = tree.as_ref().map(|tree| tree.leaves[0].clone());
                built.push((name, threads, tree, Arc::new(Faults::new(end, threads, group))));
            }
        }
    }
    let variants: Vec<Variant> =
        built.iter().map(|(_, threads, _, work)| Variant::of(work.clone(), *threads)).collect();
    let plan = Plan { rounds: lab.effort.rounds * 2, window_us: lab.effort.window_us * 3 };
    let measured = lab.interleave_by(plan, &variants)?;

    let title = format!("the seed's loop over 1 MiB, a charge of 4 KiB for each page touched, depth {depth}");
    let columns = ["a fault", "threads", "accounting", "ns: median (min..p90)", "faults/s, all threads"];
    let mut table = Table::new(title, columns);
    let clock = lab.clock;
    for ((name, threads, tree, work), measured) in built.iter().zip(&measured) {
        work.end_all()?;
        if let Some(tree) = tree {
            tree.check_stock(*name == "stock", name)?;
            tree.check_empty()?;
        }
        let rate = measured.ns.map(|ns| per_second(ns, *threads));
        table.row(vec![
            work.end.name().to_owned(),
            threads.to_string(),
            (*name).to_owned(),
            cell(measured.ns),
            figure_or_dash(rate.map(|rate| rate.median)),
        ]);
        let params = params([
            ("loop", work.end.name().into()),
            ("threads", (*threads).into()),
            ("depth", depth.into()),
        ]);
        lab.report.add_time(&clock, name, params.clone(), "fault", measured.ns);
        if let Some(rate) = rate {
            lab.report.add(name, params, "faults", "1/s", rate);
        }
    }
    for (first, of) in built.chunks(KINDS.len()).map(|same| &same[0]).zip(measured.chunks(KINDS.len())) {
        let times: Vec<Option<Summary>> = of.iter().map(|one| one.ns).collect();
        note_share(lab, &mut table, first.3.end, first.1, &times);
    }
    note_windows(&mut table, &measured);
    table.note("the seed: 18,425,800 -> 33,177,858 faults in 60 s on 8 CPUs, x1.80. A fault here costs a microsecond or more without any accounting, and few CPUs meet at the counters, so x1.80 cannot show; the share can. The seed ran a process on each CPU; our threads share an address space and wait for each other when they map, which the second loop does not.");
    lab.print(&table)
}

/// Faults a second by all threads together; the slow end of the times is the low end of the rates.
fn per_second(ns: Summary, threads: usize) -> Summary {
    let rate = |ns: f64| threads as f64 * 1e9 / ns;
    Summary { median: rate(ns.median), min: rate(ns.p90), p90: rate(ns.min), count: ns.count }
}

fn note_share(lab: &mut Lab<'_>, table: &mut Table, end: End, threads: usize, times: &[Option<Summary>]) {
    let [Some(none), Some(no_stock), Some(stock)] = *times else { return };
    let gain = figure_or_dash(ratio(Some(no_stock.median), Some(stock.median)));
    let loop_and_threads = format!("{}, {threads} thread{}", end.name(), if threads == 1 { "" } else { "s" });
    let [without, with] = [no_stock, stock].map(|kind| kind.median - none.median);
    let costs = format!("accounting costs {without:.0} ns a fault without stock, {with:.0} with");
    let percents =
        |share: Share| format!("{:.0} %, standard error {:.0} %", share.removed * 100.0, share.error * 100.0);
    let found = match share_removed(none, no_stock, stock) {
        Removal::NoCost => "the cost of accounting is lost in the noise of the faults".to_owned(),
        Removal::NoShare(share) => {
            format!("{costs}; what the stock removes ({}) is lost in the noise", percents(share))
        }
        Removal::Clear(share) => {
            let params = params([("loop", end.name().into()), ("threads", threads.into())]);
            let metric = "share of the accounting's cost removed";
            lab.report.add_count("stock", params, metric, "1", share.removed);
            let verb = if share.removed < 0.0 { "the stock adds to it" } else { "the stock removes a share" };
            format!("{costs}: {verb} ({}), faults/s x{gain}", percents(share))
        }
    };
    table.note(format!("{loop_and_threads}: {found}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgroup::Config;

    #[test]
    fn a_region_charges_a_page_a_touch_and_gives_all_back_at_its_end() {
        for end in [End::Unmap, End::Discard] {
            let tree = Tree::grow(Config::new(), 3, 1).unwrap();
            let work = Faults::new(end, 1, Some(tree.leaves[0].clone()));
            let pages = (REGION_BYTES / page_bytes()) as u64;
            work.batch(0, &mut 0, pages).unwrap();
            assert_eq!(tree.leaves[0].usage_exact(), pages * PAGE_BYTES);
            work.batch(0, &mut 0, 1).unwrap();
            assert_eq!(tree.leaves[0].usage_exact(), PAGE_BYTES, "the full region ended first");
            work.end_all().unwrap();
            tree.check_empty().unwrap();
        }
    }

    #[test]
    fn rates_turn_the_ends_of_the_times_round() {
        let rate = per_second(Summary { median: 1000.0, min: 500.0, p90: 2000.0, count: 3 }, 2);
        assert_eq!((rate.median, rate.min, rate.p90), (2e6, 1e6, 4e6));
    }
}
