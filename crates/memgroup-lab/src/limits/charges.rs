//! Charges that are exact, refused, above a limit, or scattered over many groups.
//!
//! - I1. Both sides of a row run the same loop, compiled for each, in windows that take turns.
//! - I2. A loop counts on its outcome: a pair that is refused, or a refusal that is not, is a wrong
//!   result.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use memgroup::{Config, KillAnswer, KillRequest};

use super::{LEVELS, MIB, PAGE};
use crate::harness::ledger::{CasTree, Engine, Ledger, Shape};
use crate::harness::prelude::*;

const HELD: u64 = 64 * MIB;
const ENGINE: &str = "memgroup";
const CAS: &str = "CAS tree (control)";
/// Hierarchies of each side where a few percent count: where a hierarchy's lines lie in the caches
/// is chance.
const COPIES: usize = 4;

/// One side of a row: its loop, and the check of its account at the end.
struct Side {
    name: &'static str,
    work: Box<Work<'static>>,
    end: Box<dyn FnOnce() -> Result<()>>,
}

impl Side {
    fn of<L: Ledger>(
        name: &'static str,
        ledger: L,
        work: impl Fn(&L, usize, &mut usize, u64) -> Result<u64> + Send + Sync + 'static,
    ) -> Side {
        let ledger = Arc::new(ledger);
        let own = Arc::clone(&ledger);
        let work = move |thread: usize, cursor: &mut usize, count| work(&own, thread, cursor, count);
        Side { name, work: Box::new(work), end: Box::new(move || ledger.end()) }
    }

    /// Pairs of a charge and its end in leaf 0.
    fn pairs<L: Ledger>(name: &'static str, ledger: L, bytes: u64) -> Side {
        Side::of(name, ledger, move |ledger, _, _, count| {
            for _ in 0..count {
                ledger.free(ledger.charge(0, bytes).ok_or("refused").or_wrong("a charge below every limit")?);
            }
            Ok(count)
        })
    }

    /// Charges that leaf 0 or its parent refuses.
    fn refusals<L: Ledger>(name: &'static str, ledger: L, bytes: u64) -> Side {
        Side::of(name, ledger, move |ledger, _, _, count| {
            for _ in 0..count {
                let refused = ledger.charge(0, bytes).is_none();
                ensure(refused, || format!("{bytes} bytes fit above the limit"))?;
            }
            Ok(count)
        })
    }

    /// Inserts of a page into a cache that fills leaf 0: each is refused, frees the oldest page,
    /// and asks again.
    fn evictions<L: Ledger>(name: &'static str, ledger: L) -> Result<Side> {
        let filled: VecDeque<_> = std::iter::from_fn(|| ledger.charge(0, PAGE)).collect();
        expect("pages that fit into 1 MiB", filled.len() as u64, MIB / PAGE)?;
        let (pages, ledger) = (Arc::new(Mutex::new(filled)), Arc::new(ledger));
        let own = (Arc::clone(&pages), Arc::clone(&ledger));
        let work = move |_: usize, _: &mut usize, count| {
            let (mut pages, ledger) = (lock(&own.0), &own.1);
            for _ in 0..count {
                ensure(ledger.charge(0, PAGE).is_none(), || "a page fits into a full group".to_owned())?;
                ledger.free(pages.pop_front().ok_or("none").or_wrong("the oldest page")?);
                pages.push_back(ledger.charge(0, PAGE).ok_or("refused").or_wrong("a page for a page")?);
            }
            Ok(count)
        };
        let end = move || {
            lock(&pages).drain(..).for_each(|page| ledger.free(page));
            ledger.end()
        };
        Ok(Side { name, work: Box::new(work), end: Box::new(end) })
    }

    /// Pairs in leaves drawn at random; their number is a power of two. Each was charged once
    /// before.
    fn scattered<L: Ledger>(name: &'static str, ledger: L, leaves: usize) -> Side {
        let once = |leaf| ledger.charge(leaf, PAGE).into_iter().for_each(|held| ledger.free(held));
        (0..leaves).for_each(once);
        Side::of(name, ledger, move |ledger, thread, cursor, count| {
            let mut random = Random::new((*cursor + thread) as u64);
            for _ in 0..count {
                let leaf = random.next() as usize & (leaves - 1);
                ledger
                    .free(ledger.charge(leaf, PAGE).ok_or("refused").or_wrong("a charge below every limit")?);
            }
            *cursor = random.next() as usize;
            Ok(count)
        })
    }

    /// Bursts of 256 pages, charged and then freed; an operation is a page.
    fn bursts(name: &'static str, engine: Engine) -> Side {
        const PAGES: usize = 256;
        Side::of(name, engine, |engine, _, _, count| {
            let mut done = 0;
            while done < count {
                let held: Vec<_> = (0..PAGES).map_while(|_| engine.charge(0, PAGE)).collect();
                expect("pages of a burst above high", held.len(), PAGES)?;
                done += PAGES as u64;
            }
            Ok(done)
        })
    }

    /// Forced pairs, which no limit refuses: an allocator that cannot fail makes these.
    fn forced(name: &'static str, engine: Engine) -> Side {
        Side::of(name, engine, |engine, _, _, count| {
            for _ in 0..count {
                drop(engine.fixture.leaves[0].charge_forced(PAGE).or_wrong("a forced charge")?);
            }
            Ok(count)
        })
    }

    /// Keeps something until the check at the end.
    fn keeping<T: 'static>(mut self, kept: T) -> Side {
        let end = self.end;
        self.end = Box::new(move || {
            drop(kept);
            end()
        });
        self
    }
}

/// A row: its name, its threads, the copies of each side, and the most that the first may take over
/// the second.
#[derive(Clone, Copy)]
struct Row<'n> {
    name: &'n str,
    threads: usize,
    copies: usize,
    most: Option<f64>,
}

/// Measures both sides of a row, interleaved, and returns the median of the first.
fn compare(
    lab: &mut Lab<'_>,
    table: &mut Table,
    row: Row<'_>,
    build: impl Fn() -> Result<[Side; 2]>,
) -> Result<Option<f64>> {
    let sides = (0..row.copies).map(|_| build()).collect::<Result<Vec<_>>>()?.into_iter().flatten();
    let sides: Vec<Side> = sides.collect();
    let variants: Vec<_> = sides.iter().map(|side| Variant::of(&*side.work, row.threads)).collect();
    let measured = lab.interleave(&variants)?;
    let ns = [0, 1].map(|side| {
        let of = || measured.iter().skip(side).step_by(2).filter_map(|one| one.ns);
        Some(Summary {
            median: median_of(of().map(|ns| ns.median))?,
            min: of().map(|ns| ns.min).reduce(f64::min)?,
            p90: median_of(of().map(|ns| ns.p90))?,
            count: of().map(|ns| ns.count).sum(),
        })
    });
    let names = [sides[0].name, sides[1].name];
    let [ours, control] =
        [0, 1].map(|side| lab.record(names[side], json!({"threads": row.threads})).time(row.name, ns[side]));
    sides.into_iter().try_for_each(|side| (side.end)())?;
    let over = ratio(median(ns[0]), median(ns[1]));
    let threads = counted(row.threads as u64, "thread");
    let goal = row.most.map_or_else(dash, |most| format!("x{most}"));
    table.row(format!("{}, {threads}", row.name), [ours, control, names[1].to_owned(), times(over), goal]);
    if let Some(most) = row.most {
        lab.at_most(
            format!("{}, {threads}, over {}", row.name, names[1].replace(" (control)", "")),
            over,
            most,
            "x",
        );
    }
    Ok(median(ns[0]))
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let config = Config::with_slots(lab.slots);
    let both = |shape| Ok::<_, Error>((Engine::build(config, shape)?, CasTree::build(shape)?));
    let mut table = Table::new(
        format!("costs away from the best case, {LEVELS} levels: ns, median (min..p90)"),
        ["", ENGINE, "control", "control is", "over", "goal"],
    );
    let own = Shape { leaf_max: HELD, held: HELD, ..Shape::leaves(1) };
    let open = Shape::leaves(1);
    for threads in lab.one_and_all() {
        let row = |name, most| Row { name, threads, copies: 1, most };
        let most = if threads == 1 { 1.4 } else { 1.1 };
        compare(lab, &mut table, row("a pair on the exact path", Some(most)), || {
            let engine = Engine::build(config.stock_cap_bytes(0), open)?;
            Ok([Side::pairs(ENGINE, engine, PAGE), Side::pairs(CAS, CasTree::build(open)?, PAGE)])
        })?;
        compare(lab, &mut table, row("a refusal by the own limit", None), || {
            let (engine, cas) = both(own)?;
            Ok([Side::refusals(ENGINE, engine, PAGE), Side::refusals(CAS, cas, PAGE)])
        })?;
        compare(lab, &mut table, row("a forced pair above max", None), || {
            let below = Side::forced("below max (control)", Engine::build(config, open)?);
            Ok([Side::forced(ENGINE, Engine::build(config, own)?), below])
        })?;
        compare(lab, &mut table, row("a page of a burst of 256 above high", Some(1.3)), || {
            let burst = |name, high| {
                let engine = Engine::build(config, Shape { held: HELD, ..open })?;
                engine.fixture.leaves[0].set_high(high).set_up("high")?;
                Ok(Side::bursts(name, engine))
            };
            Ok([burst(ENGINE, HELD)?, burst("below high (control)", FAR_BYTES)?])
        })?;
        for (leaves, name, most) in [
            (4_096, "a pair in 4,096 groups at random", 1.2),
            (65_536, "a pair in 65,536 groups at random", 1.5),
        ] {
            let leaves = lab.pick(16, leaves, leaves);
            compare(lab, &mut table, row(name, Some(most)), || {
                let (engine, cas) = both(Shape::leaves(leaves))?;
                Ok([Side::scattered(ENGINE, engine, leaves), Side::scattered(CAS, cas, leaves)])
            })?;
        }
        let row = |name, most| Row { name, threads, copies: COPIES, most: Some(most) };
        compare(lab, &mut table, row("a pair with every setting in use", 1.03), || {
            let engine = Engine::build(config, open)?;
            let settings =
                engine.fixture.hierarchy.groups().iter().map(everything).collect::<Result<Vec<_>>>()?;
            let side = Side::pairs(ENGINE, engine, PAGE).keeping(settings);
            Ok([side, Side::pairs("max alone (control)", Engine::build(config, open)?, PAGE)])
        })?;
        compare(lab, &mut table, row("a pair below a parent that shares", 1.02), || {
            let pair = |name, share| Ok(Side::pairs(name, sharing(config, open, share)?, PAGE));
            Ok([pair(ENGINE, true)?, pair("no shares (control)", false)?])
        })?;
    }
    let row = |name, most| Row { name, threads: 1, copies: 1, most };
    compare(lab, &mut table, row("an insert that evicts when refused", Some(5.0)), || {
        let (engine, cas) = both(Shape { leaf_max: MIB, ..open })?;
        Ok([Side::evictions(ENGINE, engine)?, Side::evictions(CAS, cas)?])
    })?;
    for (leaves, name, us) in [
        (1, "a refusal by a parent of 1 group", 0.25),
        (1_000, "a refusal by a parent of 1,000 groups", 0.4),
        (10_000, "a refusal by a parent of 10,000 groups", 0.4),
    ] {
        let leaves = lab.pick(leaves.min(10), leaves, leaves);
        let ns = compare(lab, &mut table, row(name, None), || {
            let (engine, cas) = both(Shape { parent_max: HELD, held: HELD, ..Shape::leaves(leaves) })?;
            Ok([Side::refusals(ENGINE, engine, PAGE), Side::refusals(CAS, cas, PAGE)])
        })?;
        lab.at_most(name, ns.map(|ns| ns / 1e3), us, "us");
    }
    let row = |name, most| Row { name, threads: 1, copies: COPIES, most: Some(most) };
    compare(lab, &mut table, row("an exact pair below a parent that shares", 1.1), || {
        let shape = Shape { held: PAGE, ..open };
        let pair =
            |name, share| Ok(Side::pairs(name, sharing(config.stock_cap_bytes(0), shape, share)?, PAGE));
        Ok([pair(ENGINE, true)?, pair("no shares (control)", false)?])
    })?;
    compare(lab, &mut table, row("a refusal by a share", 1.2), || {
        let full = Shape { parent_max: HELD, ..open };
        let filled = |name, share| {
            let engine = sharing(config, full, share)?;
            let held: Vec<_> = std::iter::from_fn(|| engine.charge(0, PAGE)).collect();
            let by_share = engine.fixture.leaves[0].try_charge(MIB).map_err(|error| error.is_by_share());
            expect("refused by a share", by_share.err(), Some(share))?;
            Ok(Side::refusals(name, engine, MIB).keeping(held))
        };
        Ok([filled(ENGINE, true)?, filled("by the limit (control)", false)?])
    })?;
    table.note("the exact path: no stock, every level each time. Every setting: high, low, min, a weight, a pressure trigger, a peak reader that was reset, a subscription to events and a kill hook at each level. A refusal by the own limit has a goal on one thread only, that of a parent of one group");
    lab.print(&table)
}

/// An account with shares on the parent of its leaves, or without.
fn sharing(config: Config, shape: Shape, share: bool) -> Result<Engine> {
    let engine = Engine::build(config, shape)?;
    if share {
        engine.fixture.parent.set_share(8).set_up("the shares")?;
    }
    Ok(engine)
}

/// Every setting of a group beside `max`; in force while the result lives.
fn everything(group: &memgroup::Group) -> Result<impl Sized + 'static + use<>> {
    let path = group.path();
    group.set_high(FAR_BYTES / 2).set_up(&path)?;
    group.set_low(2 * MIB).set_up(&path)?;
    group.set_min(MIB).set_up(&path)?;
    group.set_weight(500).set_up(&path)?;
    let mut peak = group.peak_reader();
    peak.reset();
    let pressure = group.add_pressure_trigger("some 150000 1000000".parse().set_up(&path)?);
    let hook = group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused).set_up(&path)?;
    Ok((peak, pressure, hook, group.on_events(|_, _| ())))
}
