//! Charges that are exact, refused, above a limit, or scattered over many groups.
//!
//! - I1. Both sides of a row run the same loop, compiled for each, in windows that take turns.
//! - I2. A loop counts on its outcome: a pair that is refused, or a refusal that is not, is a wrong
//!   result.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use memgroup::{Config, KillAnswer, KillRequest};

use super::{LEVELS, MIB, PAGE};
use crate::harness::case::Found;
use crate::harness::ledger::{CasTree, Engine, Ledger, Shape};
use crate::harness::prelude::*;

const HELD: u64 = 64 * MIB;
const ENGINE: &str = "memgroup";
const CAS: &str = "CAS tree (control)";
const TOO_MUCH: &str = "a charge below every limit";
/// Hierarchies of each side where a few percent count: where a hierarchy's lines lie in the caches
/// is chance.
const COPIES: usize = 4;

/// One side of a row. If it has several accounts, they take turns by the clock, so that all threads
/// are in the same one.
fn side<L: Ledger>(
    by: &'static str,
    accounts: impl Into<Arc<[L]>>,
    work: impl Fn(&L, usize, &mut usize, u64) -> Result<u64> + Send + Sync + 'static,
) -> Case<'static> {
    let accounts = accounts.into();
    let own = Arc::clone(&accounts);
    let work = move |thread: usize, cursor: &mut usize, count| {
        work(&own[(clock::now() >> 18) as usize % own.len()], thread, cursor, count)
    };
    let end = move |_: &Measured| accounts.iter().try_for_each(Ledger::end);
    Case { end: Box::new(end), ..Case::new("", by, "", work) }
}

/// Does something more before the check at the end.
fn before_end(case: Case<'static>, first: impl FnOnce() + 'static) -> Case<'static> {
    let end = move |measured: &Measured| {
        first();
        (case.end)(measured)
    };
    Case { end: Box::new(end), ..case }
}

/// Pairs of a charge and its end in leaf 0.
fn pairs<L: Ledger>(by: &'static str, accounts: Vec<L>) -> Case<'static> {
    side(by, accounts, |ledger, _, _, count| {
        for _ in 0..count {
            ledger.free(ledger.charge(0, PAGE).ok_or("refused").or_wrong(TOO_MUCH)?);
        }
        Ok(count)
    })
}

/// Pairs in leaves drawn at random; their number is a power of two. Each was charged once before.
fn scattered<L: Ledger>(by: &'static str, accounts: Vec<L>, leaves: usize) -> Case<'static> {
    for ledger in &accounts {
        (0..leaves).for_each(|leaf| ledger.charge(leaf, PAGE).into_iter().for_each(|held| ledger.free(held)));
    }
    side(by, accounts, move |ledger, thread, cursor, count| {
        let mut random = Random::new((*cursor + thread) as u64);
        for _ in 0..count {
            let leaf = random.next() as usize & (leaves - 1);
            ledger.free(ledger.charge(leaf, PAGE).ok_or("refused").or_wrong(TOO_MUCH)?);
        }
        *cursor = random.next() as usize;
        Ok(count)
    })
}

/// Charges that leaf 0 or its parent refuses.
fn refusals<L: Ledger>(by: &'static str, accounts: Vec<L>, bytes: u64) -> Case<'static> {
    side(by, accounts, move |ledger, _, _, count| {
        for _ in 0..count {
            let refused = ledger.charge(0, bytes).is_none();
            ensure(refused, || format!("{bytes} bytes fit above the limit"))?;
        }
        Ok(count)
    })
}

/// Inserts of a page into a cache that fills leaf 0: each is refused, frees the oldest page, and
/// asks again.
fn evictions<L: Ledger>(by: &'static str, ledger: L) -> Result<Case<'static>> {
    let filled: VecDeque<_> = std::iter::from_fn(|| ledger.charge(0, PAGE)).collect();
    expect("pages that fit into 1 MiB", filled.len() as u64, MIB / PAGE)?;
    let (pages, accounts) = (Arc::new(Mutex::new(filled)), Arc::from([ledger]));
    let (own, at_end) = (Arc::clone(&pages), Arc::clone(&accounts));
    let case = side(by, accounts, move |ledger: &L, _, _, count| {
        let mut pages = lock(&own);
        for _ in 0..count {
            ensure(ledger.charge(0, PAGE).is_none(), || "a page fits into a full group".to_owned())?;
            ledger.free(pages.pop_front().ok_or("none").or_wrong("the oldest page")?);
            pages.push_back(ledger.charge(0, PAGE).ok_or("refused").or_wrong("a page for a page")?);
        }
        Ok(count)
    });
    Ok(before_end(case, move || lock(&pages).drain(..).for_each(|page| at_end[0].free(page))))
}

/// Bursts of 256 pages above `high`, charged and then freed; an operation is a page.
fn bursts(by: &'static str, engine: Engine, high: u64) -> Result<Case<'static>> {
    const PAGES: usize = 256;
    engine.fixture.leaves[0].set_high(high).set_up("high")?;
    Ok(side(by, [engine], |engine, _, _, count| {
        let mut done = 0;
        while done < count {
            let held: Vec<_> = (0..PAGES).map_while(|_| engine.charge(0, PAGE)).collect();
            expect("pages of a burst above high", held.len(), PAGES)?;
            done += PAGES as u64;
        }
        Ok(done)
    }))
}

/// Forced pairs, which no limit refuses: an allocator that cannot fail makes these.
fn forced(by: &'static str, engine: Engine) -> Case<'static> {
    side(by, [engine], |engine, _, _, count| {
        for _ in 0..count {
            drop(engine.fixture.leaves[0].charge_forced(PAGE).or_wrong("a forced charge")?);
        }
        Ok(count)
    })
}

/// The rows of the table, and the most that the engine may take over each one's control.
#[derive(Default)]
struct Rows {
    cases: Vec<Case<'static>>,
    goals: Vec<(String, String, &'static str, f64)>,
}

impl Rows {
    fn add(
        &mut self,
        name: &str,
        threads: usize,
        most: impl Into<Option<f64>>,
        [ours, control]: [Case<'static>; 2],
    ) {
        let (what, params) = (counted(threads as u64, "thread"), json!({"threads": threads}));
        self.goals.extend(most.into().map(|most| (name.to_owned(), what.clone(), control.by, most)));
        for case in [control, ours] {
            let (name, what, params) = (name.to_owned(), what.clone(), params.clone());
            self.cases.push(Case { name, what, params, threads, ..case });
        }
    }

    /// Measures the rows, interleaved with each other only, and compares them with their goals.
    fn measure(self, lab: &mut Lab<'_>, text: [&str; 2]) -> Result<Found> {
        let found = lab.measure(text, lab.effort.windows, self.cases, [], |_, _, _| [])?;
        for (name, what, control, most) in self.goals {
            let over = ratio(found.ns(&name, ENGINE, &what), found.ns(&name, control, &what));
            lab.at_most(
                format!("{name}, {what}, over {}", control.replace(" (control)", "")),
                over,
                most,
                "x",
            );
        }
        Ok(found)
    }
}

fn copies<L>(build: impl Fn() -> Result<L>) -> Result<Vec<L>> {
    (0..COPIES).map(|_| build()).collect()
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (config, open, mut rows) = (Config::with_slots(lab.slots), Shape::leaves(1), Rows::default());
    let (engine, cas) = (
        |shape| Ok::<_, Error>(vec![Engine::build(config, shape)?]),
        |shape| Ok(vec![CasTree::build(shape)?]),
    );
    let sharing =
        |config, shape, by, share| Ok::<_, Error>(pairs(by, copies(|| sharing(config, shape, share))?));
    let own = Shape { leaf_max: HELD, held: HELD, ..open };
    for threads in lab.one_and_all() {
        let exact = pairs(ENGINE, vec![Engine::build(config.stock_cap_bytes(0), open)?]);
        let most = if threads == 1 { 1.4 } else { 1.1 };
        rows.add("a pair on the exact path", threads, most, [exact, pairs(CAS, cas(open)?)]);
        let sides = [refusals(ENGINE, engine(own)?, PAGE), refusals(CAS, cas(own)?, PAGE)];
        rows.add("a refusal by the own limit", threads, None, sides);
        let [above, below] = [own, open].map(|shape| Engine::build(config, shape));
        let sides = [forced(ENGINE, above?), forced("below max (control)", below?)];
        rows.add("a forced pair above max", threads, None, sides);
        let burst = |by, high| bursts(by, Engine::build(config, Shape { held: HELD, ..open })?, high);
        let sides = [burst(ENGINE, HELD)?, burst("below high (control)", FAR_BYTES)?];
        rows.add("a page of a burst of 256 above high", threads, 1.3, sides);
        let plain = copies(|| Engine::build(config, open))?;
        let used = copies(|| Engine::build(config, open))?;
        let groups = used.iter().flat_map(|engine| engine.fixture.hierarchy.groups());
        let settings = groups.map(|group| everything(&group)).collect::<Result<Vec<_>>>()?;
        let used = before_end(pairs(ENGINE, used), move || drop(settings));
        let sides = [used, pairs("max alone (control)", plain)];
        rows.add("a pair with every setting in use", threads, 1.03, sides);
        let sides = [(ENGINE, true), ("no shares (control)", false)];
        let [ours, control] = sides.map(|(by, share)| sharing(config, open, by, share));
        rows.add("a pair below a parent that shares", threads, 1.02, [ours?, control?]);
    }
    let shape = Shape { leaf_max: MIB, ..open };
    let sides = [evictions(ENGINE, Engine::build(config, shape)?)?, evictions(CAS, CasTree::build(shape)?)?];
    rows.add("an insert that evicts when refused", 1, 5.0, sides);
    let by_parents = [
        (1, "a refusal by a parent of 1 group", 0.25),
        (1_000, "a refusal by a parent of 1,000 groups", 0.4),
        (10_000, "a refusal by a parent of 10,000 groups", 0.4),
    ];
    for (leaves, name, _) in by_parents {
        let leaves = lab.pick(leaves.min(10), leaves, leaves);
        let shape = Shape { parent_max: HELD, held: HELD, ..Shape::leaves(leaves) };
        rows.add(name, 1, None, [refusals(ENGINE, engine(shape)?, PAGE), refusals(CAS, cas(shape)?, PAGE)]);
    }
    let sides = [(ENGINE, true), ("no shares (control)", false)];
    let (exact, held) = (config.stock_cap_bytes(0), Shape { held: PAGE, ..open });
    let [ours, control] = sides.map(|(by, share)| sharing(exact, held, by, share));
    rows.add("an exact pair below a parent that shares", 1, 1.1, [ours?, control?]);
    let sides = [(ENGINE, true), ("by the limit (control)", false)];
    let [ours, control] = sides.map(|(by, share)| full(config, by, share));
    rows.add("a refusal by a share", 1, 1.2, [ours?, control?]);

    let title = format!("costs away from the best case, {LEVELS} levels");
    let note = "the exact path: no stock, every level each time. Every setting: high, low, min, a weight, a pressure trigger, a peak reader that was reset and a kill hook at each level. A refusal by the own limit has a goal on one thread only, that of a parent of one group";
    let found = rows.measure(lab, [&title, note])?;
    for (_, name, us) in by_parents {
        lab.at_most(name, found.ns(name, ENGINE, "1 thread").map(|ns| ns / 1e3), us, "us");
    }
    // Each by itself, because what else is measured would take the groups' lines out of the caches.
    for (leaves, name, most) in
        [(4_096, "a pair in 4,096 groups at random", 1.2), (65_536, "a pair in 65,536 groups at random", 1.5)]
    {
        let (leaves, mut rows) = (lab.pick(16, leaves, leaves), Rows::default());
        let shape = Shape::leaves(leaves);
        for threads in lab.one_and_all() {
            let sides = [scattered(ENGINE, engine(shape)?, leaves), scattered(CAS, cas(shape)?, leaves)];
            rows.add(name, threads, most, sides);
        }
        rows.measure(lab, ["many groups", "each group was charged once before"])?;
    }
    Ok(())
}

/// Refusals below a full parent: by the share, or by the limit.
fn full(config: Config, by: &'static str, share: bool) -> Result<Case<'static>> {
    let accounts = copies(|| sharing(config, Shape { parent_max: HELD, ..Shape::leaves(1) }, share))?;
    let mut held = Vec::new();
    for engine in &accounts {
        held.extend(std::iter::from_fn(|| engine.charge(0, PAGE)));
        let by_share = engine.fixture.leaves[0].try_charge(MIB).map_err(|error| error.is_by_share());
        expect("refused by a share", by_share.err(), Some(share))?;
    }
    Ok(before_end(refusals(by, accounts, MIB), move || drop(held)))
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
    Ok((peak, pressure, hook))
}
