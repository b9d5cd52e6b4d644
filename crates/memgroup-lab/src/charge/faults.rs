//! The seed's own loop: map 1 MiB, touch every page, unmap, on every CPU, with a charge for each page.
//!
//! The seed ran one process on each CPU. Here the threads share an address space, and wait for its lock whenever they
//! map or unmap. That wait hides the counters, so a second loop keeps its mapping and only gives the pages back.

use std::sync::Mutex;

use memgroup::{Charge, Group};

use super::{Accounting, PAGE_BYTES, REFUSED};
use crate::harness::prelude::*;

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
        if self == End::Unmap { "map, touch, unmap" } else { "touch, discard" }
    }
}

/// The loop of every thread; each continues where its last window stopped.
struct Faults {
    end: End,
    group: Option<Group>,
    threads: Vec<Mutex<Region>>,
}

/// One thread's mapping, the pages it touched and its charges for them.
#[derive(Default)]
struct Region {
    mapping: Option<Mapping>,
    touched_bytes: usize,
    charges: Vec<Charge>,
}

impl Faults {
    fn new(end: End, threads: usize, group: Option<Group>) -> Faults {
        Faults { end, group, threads: (0..threads).map(|_| Mutex::default()).collect() }
    }

    fn touch(&self, thread: usize, pages: u64) -> Result<u64> {
        let (mut region, page_bytes) = (lock(&self.threads[thread]), page_bytes());
        for _ in 0..pages {
            region.touch_next(self.end, self.group.as_ref(), page_bytes)?;
        }
        Ok(pages)
    }

    fn end_all(&self) -> Result<()> {
        self.threads.iter().try_for_each(|thread| lock(thread).end(End::Unmap))
    }
}

impl Region {
    fn end(&mut self, how: End) -> Result<()> {
        match (how, &self.mapping) {
            (End::Discard, Some(mapping)) => mapping.discard()?,
            _ => self.mapping = None,
        }
        self.charges.clear();
        self.touched_bytes = 0;
        Ok(())
    }

    fn touch_next(&mut self, end: End, group: Option<&Group>, page_bytes: usize) -> Result<()> {
        if self.touched_bytes == REGION_BYTES {
            self.end(end)?;
        }
        if let Some(group) = group {
            self.charges.push(group.try_charge(PAGE_BYTES).or_wrong(REFUSED)?);
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

/// Measures the loop on one thread and on all.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (depth, all) = (lab.args.depth(), lab.args.threads());
    let mut built = Vec::new();
    for end in [End::Unmap, End::Discard] {
        for threads in if all > 1 { vec![1, all] } else { vec![1] } {
            for accounting in Accounting::all(lab, "without accounting")? {
                let faults = Faults::new(end, threads, accounting.group());
                built.push((accounting, faults));
            }
        }
    }
    let touch = |(_, faults): &(_, Faults), thread, pages| faults.touch(thread, pages);
    let works: Vec<_> =
        built.iter().map(|one| move |thread, _: &mut usize, pages| touch(one, thread, pages)).collect();
    let threads = |faults: &Faults| faults.threads.len();
    let variants: Vec<Variant<'_>> =
        works.iter().zip(&built).map(|(work, (_, faults))| Variant::of(work, threads(faults))).collect();
    let Plan { rounds, window_us } = lab.effort.windows;
    let measured = lab.interleave_by(Plan { rounds: rounds * 2, window_us: window_us * 3 }, &variants)?;

    let title = format!("the seed's loop over 1 MiB, a charge of 4 KiB for each page touched, depth {depth}");
    let columns = ["a fault", "threads", "accounting", "ns: median (min..p90)", "faults/s, all threads"];
    let mut table = Table::new(title, columns);
    for ((accounting, faults), measured) in built.iter().zip(&measured) {
        faults.end_all()?;
        accounting.check()?;
        let (name, of, threads) = (accounting.name, faults.end.name(), threads(faults));
        let mut row = lab.record(name, json!({"loop": of, "threads": threads, "depth": depth}));
        let ns = row.time("fault", measured.ns);
        let rate = measured.ns.map(|ns| per_second(ns, threads));
        row.summary("faults", "1/s", rate);
        table.row(of, [threads.to_string(), name.to_owned(), ns, figure_or_dash(median(rate))]);
    }
    for (same, of) in built.chunks_exact(3).zip(measured.chunks_exact(3)) {
        if let [Some(none), Some(no_stock), Some(stock)] = [of[0].ns, of[1].ns, of[2].ns] {
            let faults = &same[0].1;
            note_share(lab, &mut table, faults.end, threads(faults), [none, no_stock, stock]);
        }
    }
    note_windows(&mut table, &measured);
    table.note("the seed: 18,425,800 -> 33,177,858 faults in 60 s on 8 CPUs, x1.80. A fault here costs a microsecond or more without any accounting, and few CPUs meet at the counters, so x1.80 cannot show; the share can. The seed ran a process on each CPU. Our threads share an address space and wait for each other when they map, which the second loop does not.");
    lab.print(&table)
}

/// Faults a second by all threads together; the slow end of the times is the low end of the rates.
fn per_second(ns: Summary, threads: usize) -> Summary {
    let rate = |ns: f64| threads as f64 * 1e9 / ns;
    Summary { median: rate(ns.median), min: rate(ns.p90), p90: rate(ns.min), count: ns.count }
}

fn note_share(lab: &mut Lab<'_>, table: &mut Table, end: End, threads: usize, times: [Summary; 3]) {
    let [none, no_stock, stock] = times;
    let [without, with] = [no_stock, stock].map(|kind| kind.median - none.median);
    let costs = format!("accounting costs {without:.0} ns a fault without stock, {with:.0} with");
    let percents =
        |share: Share| format!("{:.0} %, standard error {:.0} %", share.removed * 100.0, share.error * 100.0);
    let found = match share_removed(times) {
        Removal::NoCost => "the cost of accounting is lost in the noise of the faults".to_owned(),
        Removal::NoShare(share) => {
            format!("{costs}; the share that the stock removes ({}) is lost in the noise", percents(share))
        }
        Removal::Clear(share) => {
            let mut row = lab.record("stock", json!({"loop": end.name(), "threads": threads}));
            row.value("share of the accounting's cost removed", "1", Some(share.removed));
            let verb = if share.removed < 0.0 { "the stock adds to it" } else { "the stock removes a share" };
            let gain = figure_or_dash(ratio(Some(no_stock.median), Some(stock.median)));
            format!("{costs}: {verb} ({}), faults/s x{gain}", percents(share))
        }
    };
    table.note(format!("{}, {}: {found}", end.name(), counted(threads as u64, "thread")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgroup::Config;

    #[test]
    fn charges_a_page_a_touch_and_gives_all_back_at_the_end() {
        for end in [End::Unmap, End::Discard] {
            let fixture = Fixture::chain(Config::new(), 3, 1).unwrap();
            let faults = Faults::new(end, 1, Some(fixture.leaves[0].clone()));
            let pages = (REGION_BYTES / page_bytes()) as u64;
            faults.touch(0, pages).unwrap();
            assert_eq!(fixture.leaves[0].usage_exact(), pages * PAGE_BYTES);
            faults.touch(0, 1).unwrap();
            assert_eq!(fixture.leaves[0].usage_exact(), PAGE_BYTES, "the full region ended first");
            faults.end_all().unwrap();
            fixture.check_empty().unwrap();
        }
    }

    #[test]
    fn turns_the_ends_of_the_times_round_for_rates() {
        let rate = per_second(Summary { median: 1000.0, min: 500.0, p90: 2000.0, count: 3 }, 2);
        assert_eq!((rate.median, rate.min, rate.p90), (2e6, 1e6, 4e6));
    }
}
