//! The rows of one table: each case is run on the four accounts, interleaved with all others of the table.
//!
//! - I1. All accounts run the same [`Load`], compiled for each.
//! - I2. A case names the refusals that it may see: none, all, or some. Any other count is a wrong result.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::ledger::{CasTree, Engine, Kind, Ledger, MutexTree, Served, Shape};
use crate::harness::prelude::*;

/// State of one thread, from one window to the next.
pub(super) struct Kept<H> {
    pub(super) queue: VecDeque<H>,
    pub(super) random: Random,
}

/// Counts of a load.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) asked: u64,
    pub(super) refused: u64,
    /// Charges that the load freed because another was refused.
    pub(super) evicted: u64,
}

/// The operations of a case, on any account.
pub(super) trait Load: Clone + Send + Sync + 'static {
    /// Charges before the first window, which count for nothing; on each thread.
    fn prepare<L: Ledger>(&self, _ledger: &L, _kept: &mut Kept<L::Held>) {}

    /// Does about `count` operations and returns how many it did.
    fn run<L: Ledger>(&self, ledger: &L, kept: &mut Kept<L::Held>, count: u64, tally: &mut Tally) -> u64;
}

/// Refusals that a case may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusals {
    None,
    All,
    Some,
}

/// One row.
#[derive(Clone)]
pub(super) struct Case<D> {
    pub(super) name: String,
    /// Settings beside the name, for the JSON.
    pub(super) params: Value,
    pub(super) threads: usize,
    pub(super) shape: Shape,
    pub(super) load: D,
    pub(super) refusals: Refusals,
}

impl<D: Load> Case<D> {
    /// A case without refusals.
    pub(super) fn new(name: impl Into<String>, threads: usize, shape: Shape, load: D) -> Case<D> {
        let (name, refusals) = (name.into(), Refusals::None);
        Case { name, params: json!({}), threads, shape, load, refusals }
    }

    fn title(&self) -> String {
        format!("{}; {}", self.name, self.threads)
    }
}

/// The figures of one case.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    ns: [Option<Summary>; 4],
    /// Share of the engine's charges that the stock served.
    pub(super) hit_share: Option<f64>,
    /// Of the engine.
    pub(super) prepaid_bytes: u64,
    pub(super) tally: Tally,
}

impl Figures {
    /// The median of one account.
    pub(super) fn of(&self, kind: Kind) -> Option<f64> {
        median(self.ns[kind as usize])
    }

    /// One account's median over another's.
    pub(super) fn over(&self, kind: Kind, control: Kind) -> Option<f64> {
        ratio(self.of(kind), self.of(control))
    }
}

/// One account of one case, ready to be measured.
struct Subject {
    work: Box<Work<'static>>,
    /// Frees all and checks it; the counts.
    end: Box<dyn FnOnce() -> Result<(Tally, Served)>>,
}

#[derive(Default)]
struct Tallies {
    asked: AtomicU64,
    refused: AtomicU64,
    evicted: AtomicU64,
}

impl Tallies {
    fn add(&self, of: Tally) {
        for (sum, more) in [(&self.asked, of.asked), (&self.refused, of.refused), (&self.evicted, of.evicted)]
        {
            // ORDERING: Relaxed; counts, read when the windows are over.
            sum.fetch_add(more, Ordering::Relaxed);
        }
    }

    fn sums(&self) -> Tally {
        // ORDERING: Relaxed; the windows are over.
        let [asked, refused, evicted] =
            [&self.asked, &self.refused, &self.evicted].map(|sum| sum.load(Ordering::Relaxed));
        Tally { asked, refused, evicted }
    }
}

/// A thread's state on lines of its own.
#[repr(align(128))]
struct Own<H>(Mutex<Kept<H>>);

fn subject<L: Ledger, D: Load>(lab: &Lab<'_>, case: &Case<D>, ledger: L) -> Result<Subject> {
    let own = |thread| {
        Own(Mutex::new(Kept { queue: VecDeque::new(), random: Random::new(0x9e37 + 77 * thread as u64) }))
    };
    let kept: Vec<Own<L::Held>> = (0..case.threads).map(own).collect();
    lab.workers.run(case.threads, |thread| case.load.prepare(&ledger, &mut lock(&kept[thread].0)));
    let (before, load) = (ledger.served(), case.load.clone());
    let state = Arc::new((ledger, kept, Tallies::default()));
    let own = Arc::clone(&state);
    let work = move |thread: usize, _: &mut usize, count| {
        let (ledger, kept, tallies) = &*own;
        let mut tally = Tally::default();
        let done = load.run(ledger, &mut lock(&kept[thread].0), count, &mut tally);
        tallies.add(tally);
        Ok(done)
    };
    let end = move || {
        let (ledger, kept, tallies) = &*state;
        let served = ledger.served();
        for held in kept.iter().flat_map(|own| std::mem::take(&mut lock(&own.0).queue)) {
            ledger.free(held);
        }
        ledger.end()?;
        let since = Served {
            hits: served.hits - before.hits,
            charges: served.charges - before.charges,
            prepaid_bytes: served.prepaid_bytes,
        };
        Ok((tallies.sums(), since))
    };
    Ok(Subject { work: Box::new(work), end: Box::new(end) })
}

fn subjects<D: Load>(lab: &Lab<'_>, case: &Case<D>) -> Result<[Subject; 4]> {
    let engine = |stock| subject(lab, case, Engine::build(case.shape, stock, lab.slots)?);
    let (cas, mutex) = (CasTree::build(case.shape)?, MutexTree::build(case.shape)?);
    Ok([engine(true)?, engine(false)?, subject(lab, case, cas)?, subject(lab, case, mutex)?])
}

/// Measures all cases, interleaved, adds a row for each to the table, and records the figures as `metric`.
///
/// The table's columns are those of [`columns`].
pub(super) fn measure<D: Load>(
    lab: &mut Lab<'_>,
    table: &mut Table,
    metric: &'static str,
    plan: Plan,
    cases: &[Case<D>],
) -> Result<Vec<Figures>> {
    let (figures, measured) = measure_apart(lab, table, metric, plan, cases)?;
    note_windows(table, &measured);
    Ok(figures)
}

/// The same without the note of windows, for tables with cases that are measured one after the other; the windows too.
pub(super) fn measure_apart<D: Load>(
    lab: &mut Lab<'_>,
    table: &mut Table,
    metric: &'static str,
    plan: Plan,
    cases: &[Case<D>],
) -> Result<(Vec<Figures>, Vec<Measured>)> {
    let built = cases.iter().map(|case| subjects(lab, case)).collect::<Result<Vec<_>>>()?;
    let variants: Vec<Variant<'_>> = cases
        .iter()
        .zip(&built)
        .flat_map(|(case, of)| of.iter().map(|one| Variant::of(&*one.work, case.threads)))
        .collect();
    let measured = lab.interleave_by(plan, &variants)?;
    drop(variants);
    let mut figures = Vec::new();
    for ((case, subjects), of) in cases.iter().zip(built).zip(measured.chunks_exact(4)) {
        let mut one = Figures::default();
        for ((kind, subject), measured) in Kind::ALL.into_iter().zip(subjects).zip(of) {
            let (tally, served) = (subject.end)()?;
            case.check(kind, tally)?;
            one.ns[kind as usize] = measured.ns;
            if kind == Kind::Engine {
                one.hit_share = ratio(Some(served.hits as f64), Some(served.charges as f64));
                (one.prepaid_bytes, one.tally) = (served.prepaid_bytes, tally);
            } else {
                expect(format_args!("hits of {}, {}", case.title(), kind.name()), served.hits, 0)?;
            }
        }
        record(lab, table, metric, case, &one);
        figures.push(one);
    }
    Ok((figures, measured))
}

impl<D: Load> Case<D> {
    /// The refusals are those that the case is about (I2).
    fn check(&self, kind: Kind, Tally { asked, refused, .. }: Tally) -> Result<()> {
        let right = match self.refusals {
            Refusals::None => refused == 0,
            Refusals::All => refused == asked && asked > 0,
            Refusals::Some => true,
        };
        ensure(right, || {
            let (title, name) = (self.title(), kind.name());
            format!("{title}: of {asked} charges of \"{name}\" {refused} were refused")
        })
    }
}

/// The columns of a table of cases; the first names the case and its threads.
pub(super) fn columns(first: &'static str) -> [&'static str; 8] {
    [first, "memgroup", "over CAS", "hits", "refused", "stock off", "CAS tree", "mutex"]
}

fn record<D: Load>(lab: &mut Lab<'_>, table: &mut Table, metric: &'static str, case: &Case<D>, of: &Figures) {
    let mut params = case.params.clone();
    params["case"] = case.name.as_str().into();
    params["threads"] = case.threads.into();
    for kind in Kind::ALL {
        lab.record(kind.name(), params.clone()).time(metric, of.ns[kind as usize]);
    }
    let refused = ratio(Some(of.tally.refused as f64), Some(of.tally.asked as f64));
    let mut engine = lab.record(Kind::Engine.name(), params);
    for (metric, unit, value) in [
        ("hits", "", of.hit_share),
        ("refused", "", refused),
        ("prepaid", "bytes", Some(of.prepaid_bytes as f64)),
    ] {
        engine.value(metric, unit, value);
    }
    let ns = |kind| figure_or_dash(of.of(kind));
    let over = times(of.over(Kind::Engine, Kind::Cas));
    let cells = [over, percent(of.hit_share), percent(refused)];
    let controls = [Kind::NoStock, Kind::Cas, Kind::Mutex].map(ns);
    table.row(case.title(), [ns(Kind::Engine)].into_iter().chain(cells).chain(controls));
}

/// A share in percent: "97.3 %".
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(dash, |share| format!("{:.1} %", share * 100.0))
}
