//! Costs: the pair, a miss and a refusal with shares over without, and a tenant's stock beside a storm of refusals by a share.
//!
//! - I1. A runaway alone gets 8/9 of the limit: to the byte without stock, and with it to a 128th of the limit.

use memgroup::{Charge, Config};

use super::{CAPS, FACTOR, MIB};
use crate::harness::prelude::*;

const PAGE: u64 = 4096;
const MAX: u64 = 90 * MIB;
/// Hierarchies of each variant: the place of a variant's lines in the caches is chance, which several even out.
const HIERARCHIES: usize = 4;
const PAIR_MOST: f64 = 1.02;
const MISS_MOST: f64 = 1.1;
const REFUSAL_MOST: f64 = 1.2;
const HITS_LEAST: f64 = 95.0;

/// Bytes that the tenants hold while one operation is measured.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    /// Each pair takes a tenant from no bytes to some and back.
    Nothing,
    /// A page each.
    Page,
    /// The first all that it can get, and the others nothing.
    All,
}

/// Two tenants below a parent of 90 MiB.
struct Pair {
    fixture: Fixture,
    held: Vec<Charge>,
}

impl Pair {
    fn build(lab: &Lab<'_>, share: bool, stock: bool, holds: Holds) -> Result<Pair> {
        let config = Config::with_slots(lab.slots);
        let config = if stock { config } else { config.stock_cap_bytes(0) };
        let fixture = Fixture::chain(config, 3, 2)?;
        limit(&fixture.parent, MAX)?;
        if share {
            fixture.parent.set_share(FACTOR).set_up("the shares")?;
        }
        let held: Vec<Charge> = match holds {
            Holds::Nothing => Vec::new(),
            Holds::Page => fixture.leaves.iter().map_while(|leaf| leaf.try_charge(PAGE).ok()).collect(),
            Holds::All => std::iter::from_fn(|| fixture.leaves[0].try_charge(PAGE).ok()).collect(),
        };
        if holds == Holds::All {
            let (held, factor) = (held.len() as u64 * PAGE, u64::from(FACTOR));
            let right = if share { MAX * factor / (factor + 1) } else { MAX };
            let caps = if stock { (MAX as f64 * CAPS) as u64 } else { 0 };
            ensure(held.abs_diff(right) <= caps, || {
                format!("a runaway alone holds {held} bytes, it should hold {right}, {caps} more or less")
            })?;
        }
        Ok(Pair { fixture, held })
    }

    fn pairs(&self, leaf: usize, count: u64) -> Result<u64> {
        let group = &self.fixture.leaves[leaf];
        for _ in 0..count {
            drop(group.try_charge(PAGE).or_wrong("a charge far below the limit")?);
        }
        Ok(count)
    }

    fn refusals(&self, count: u64) -> Result<u64> {
        let share = self.fixture.parent.share().is_some();
        for _ in 0..count {
            let by_share = self.fixture.leaves[0].try_charge(MIB).map_err(|error| error.is_by_share());
            ensure(by_share.is_err_and(|by_share| by_share == share), || {
                "a runaway was not refused, or not by its share".to_owned()
            })?;
        }
        Ok(count)
    }

    fn end(self) -> Result<()> {
        drop(self.held);
        self.fixture.check_empty()
    }
}

/// One operation without shares and with them, interleaved, in several hierarchies each: a row, and a goal.
fn over(
    lab: &mut Lab<'_>,
    table: &mut Table,
    name: &str,
    threads: usize,
    most: f64,
    (stock, holds): (bool, Holds),
) -> Result<()> {
    let build = |number| Pair::build(lab, number % 2 == 1, stock, holds);
    let built = (0..2 * HIERARCHIES).map(build).collect::<Result<Vec<_>>>()?;
    let works: Vec<_> = built
        .iter()
        .map(|pair| {
            move |thread: usize, _: &mut usize, count| {
                if holds == Holds::All { pair.refusals(count) } else { pair.pairs(thread % 2, count) }
            }
        })
        .collect();
    let variants: Vec<Variant<'_>> = works.iter().map(|work| Variant::of(work, threads)).collect();
    let measured = lab.interleave(&variants)?;
    built.into_iter().try_for_each(Pair::end)?;
    let ns = [0, 1].map(|variant| {
        let medians = measured.iter().skip(variant).step_by(2).filter_map(|one| median(one.ns));
        Summary::of(medians.collect::<Vec<_>>())
    });
    let row = format!("{name}, {}", counted(threads as u64, "thread"));
    let cells = [("no share (control)", ns[0]), ("share", ns[1])].map(|(variant, ns)| {
        lab.record(variant, json!({"operation": name, "threads": threads})).time("operation", ns)
    });
    let times = ratio(median(ns[1]), median(ns[0]));
    table.row(&row, cells.into_iter().chain([figure_or_dash(times)]));
    lab.at_most(format!("{row}, share over none"), times, most, "x");
    Ok(())
}

/// A sibling's pairs beside a storm of refusals by a share, and its hits.
fn beside(lab: &mut Lab<'_>) -> Result<()> {
    let pair = Pair::build(lab, true, true, Holds::All)?;
    let seen = || {
        let stock = pair.fixture.leaves[1].stock();
        [stock.hits, stock.misses]
    };
    let storm = |thread: usize, _: &mut usize, count: u64| {
        if thread == 0 { pair.pairs(1, count) } else { pair.refusals(1) }
    };
    let spin = |thread: usize, _: &mut usize, count: u64| {
        if thread == 0 {
            return pair.pairs(1, count);
        }
        (0..64).for_each(|_| std::hint::spin_loop());
        Ok(1)
    };
    let beside = |work| Variant { work, threads: 2, counted: 1 };
    let [spinning] = lab.interleave(&[beside(&spin)])?[..] else { unreachable!("one variant") };
    let before = seen();
    let [storming] = lab.interleave(&[beside(&storm)])?[..] else { unreachable!("one variant") };
    let [hits, misses] = [0, 1].map(|at| (seen()[at] - before[at]) as f64);
    let hits = ratio(Some(hits), Some(hits + misses)).map(|part| part * 100.0);
    pair.end()?;
    let mut table = Table::new(
        "a sibling's pairs of 4 KiB while the runaway is refused by its share in a loop: ns",
        ["beside a spinning thread", "beside the refusals", "", "hits %"],
    );
    let mut record = lab.record("beside refusals by a share", json!({}));
    let cells = [
        record.time("pair", storming.ns),
        times(ratio(median(storming.ns), median(spinning.ns))),
        record.value("hits", "%", hits),
    ];
    table.row(spread(spinning.ns), cells);
    lab.at_least("hits of a sibling's stock beside refusals by a share", hits, HITS_LEAST, "%");
    lab.print(&table)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let mut table = Table::new(
        "costs: ns, median of the medians of hierarchies (min..p90)",
        ["operation", "no share (control)", "share", "x"],
    );
    for threads in lab.one_and_all() {
        over(lab, &mut table, "a charge and its uncharge", threads, PAIR_MOST, (true, Holds::Nothing))?;
    }
    over(lab, &mut table, "without stock, of a group that holds bytes", 1, MISS_MOST, (false, Holds::Page))?;
    over(lab, &mut table, "without stock, of an empty group", 1, MISS_MOST, (false, Holds::Nothing))?;
    over(lab, &mut table, "a refusal", 1, REFUSAL_MOST, (true, Holds::All))?;
    table.note(format!(
        "{HIERARCHIES} hierarchies of each, three levels, two tenants below a parent; several threads have a tenant each. A pair of an empty group makes it one of those that hold bytes, and ends that. A refusal: of a runaway that fills the parent, or its share of it. It holds {FACTOR}/{} of the limit then",
        FACTOR + 1
    ));
    lab.print(&table)?;
    beside(lab)
}
