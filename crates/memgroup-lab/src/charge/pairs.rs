//! The tables of pairs: which variants are measured, and how they are laid out.

use std::collections::BTreeMap;

use super::pair::{Crowd, Mechanism, Spec};
use crate::Error;
use crate::harness::Lab;
use crate::harness::report::{Check, Params, params, ratio};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, counted, figure, figure_or_dash};
use crate::harness::window::{Measured, Variant};

pub(super) const PAGE_BYTES: u64 = 4096;
const OBJECT_BYTES: u64 = 64;
const GROUPS_IN_TURN: [usize; 4] = [1, 8, 64, 1024];

/// The lines of one table: a name for each, and its variant (the crowd is the column).
struct Section {
    title: String,
    lines: Vec<(String, Spec)>,
    notes: &'static [&'static str],
}

type Results = BTreeMap<Spec, Measured>;

/// Measures all pairs in one interleaving, prints the tables and adds rows and checks.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let threads = lab.args.threads();
    let base = Spec {
        mechanism: Mechanism::Stock,
        crowd: Crowd::One,
        depth: lab.args.depth.unwrap_or(3),
        groups: 1,
        bytes: PAGE_BYTES,
        statistics: false,
        root_accounted: true,
    };
    let depths = lab.args.depth.map_or_else(|| vec![1, 3, 8], |depth| vec![depth]);
    let sections = sections(base, &depths);
    let results = measure(lab, &sections, threads)?;
    for (index, section) in sections.iter().enumerate() {
        let mut table = table(lab, section, &results, threads);
        if index == 0 {
            note_floor(&mut table, base, &results);
        }
        lab.print(&table)?;
    }
    add_rows(lab, &results, threads);
    add_checks(lab, base, &results);
    Ok(())
}

fn sections(base: Spec, depths: &[usize]) -> Vec<Section> {
    let all = |spec: Spec, label: &dyn Fn(&Spec) -> String| -> Vec<(String, Spec)> {
        Mechanism::ALL
            .iter()
            .map(|&mechanism| {
                let spec = Spec { mechanism, ..spec };
                (label(&spec), spec)
            })
            .collect()
    };
    let name = |spec: &Spec| spec.mechanism.name().to_owned();
    let depth = base.depth;
    let mut first = all(base, &name);
    first.push((Mechanism::BareSwaps.name().to_owned(), Spec { mechanism: Mechanism::BareSwaps, ..base }));
    let statistics = Spec { statistics: true, ..base };
    let mut with_statistics = all(statistics, &|spec| format!("{} + statistics", spec.mechanism.name()));
    with_statistics
        .push(("statistics alone".to_owned(), Spec { mechanism: Mechanism::Nothing, ..statistics }));
    let by_depth = |label: &dyn Fn(&Spec) -> String| {
        depths.iter().flat_map(|&depth| all(Spec { depth, ..base }, label)).collect::<Vec<_>>()
    };
    let in_turn = |label: &dyn Fn(&Spec) -> String| {
        let with = |groups| all(Spec { groups, ..base }, label);
        GROUPS_IN_TURN.into_iter().filter(|_| depth > 1).flat_map(with).collect::<Vec<_>>()
    };
    let unaccounted = [true, false].into_iter().flat_map(|root_accounted| {
        [Mechanism::NoStock, Mechanism::Stock].map(|mechanism| {
            let root = if root_accounted { "root accounted" } else { "root unaccounted" };
            (format!("{}, {root}", mechanism.name()), Spec { mechanism, root_accounted, ..base })
        })
    });
    vec![
        Section {
            title: format!("pair of a page ({} bytes), depth {depth}", base.bytes),
            lines: first,
            notes: &[
                "depth counts counters, the root's included; every counter has a limit that is far away",
            ],
        },
        Section {
            title: format!("pair of an object ({OBJECT_BYTES} bytes), depth {depth}"),
            lines: all(Spec { bytes: OBJECT_BYTES, ..base }, &name),
            notes: &[],
        },
        Section {
            title: "pair of a page, by depth".to_owned(),
            lines: by_depth(&|spec| format!("{}, depth {}", spec.mechanism.name(), spec.depth))
                .into_iter()
                .filter(|(_, spec)| spec.mechanism != Mechanism::FlatAtomic)
                .collect(),
            notes: &["depth 1 is the root itself, which has no siblings"],
        },
        Section {
            title: format!("pair of a page, depth {depth}, groups in turn"),
            lines: in_turn(&|spec| {
                format!("{}, {}", spec.mechanism.name(), counted(spec.groups as u64, "group"))
            })
            .into_iter()
            .filter(|(_, spec)| spec.mechanism != Mechanism::FlatAtomic)
            .collect(),
            notes: &["each thread goes round its groups, one pair in each; the flat counter knows no groups"],
        },
        Section {
            title: format!(
                "pair of a page, depth {depth}, with two statistics updates (the seed's mod_state)"
            ),
            lines: with_statistics,
            notes: &[],
        },
        Section {
            title: format!("pair of a page, depth {depth}, root accounted or not (the seed's first remark)"),
            lines: unaccounted.collect(),
            notes: &[],
        },
    ]
}

fn measure(lab: &mut Lab<'_>, sections: &[Section], threads: usize) -> Result<Results, Error> {
    let mut specs: Vec<Spec> = sections
        .iter()
        .flat_map(|section| &section.lines)
        .flat_map(|(_, spec)| Crowd::ALL.map(|crowd| Spec { crowd, ..*spec }))
        .filter(|spec| spec.exists(threads))
        .collect();
    specs.sort_unstable();
    specs.dedup();
    let built = specs.iter().map(|spec| spec.build(threads, lab.slots)).collect::<Result<Vec<_>, Error>>()?;
    let variants: Vec<Variant> = specs
        .iter()
        .zip(&built)
        .map(|(spec, built)| {
            Variant::of(built.work.clone(), if spec.crowd == Crowd::One { 1 } else { threads })
        })
        .collect();
    let measured = lab.interleave(&variants)?;
    for (built, measured) in built.iter().zip(&measured) {
        (built.check)(measured.ops)?;
    }
    Ok(specs.into_iter().zip(measured).collect())
}

fn table(lab: &Lab<'_>, section: &Section, results: &Results, threads: usize) -> Table {
    let many = format!("{threads} threads, same group");
    let each = format!("{threads} threads, a group each");
    let columns = ["ns: median (min..p90)", "1 thread", "cycles", &many, &each];
    let mut windows = Vec::new();
    let mut table = Table::new(section.title.clone(), columns);
    for (name, spec) in &section.lines {
        let of = |crowd| results.get(&Spec { crowd, ..*spec });
        let ns = |crowd| of(crowd).and_then(|measured| measured.ns);
        let cycles = ns(Crowd::One).and_then(|ns| lab.clock.cycles(ns.median));
        table.row(vec![
            name.clone(),
            cell(ns(Crowd::One)),
            figure_or_dash(cycles),
            cell(ns(Crowd::SameGroup)),
            cell(ns(Crowd::GroupEach)),
        ]);
        windows.extend(Crowd::ALL.iter().filter_map(|&crowd| of(crowd)));
    }
    note_windows(&mut table, windows);
    for note in section.notes {
        table.note(*note);
    }
    table
}

/// What the machine itself takes for a pair, and how far the stock is from it.
fn note_floor(table: &mut Table, base: Spec, results: &Results) {
    let median = |mechanism| Some(results.get(&Spec { mechanism, ..base })?.ns?.median);
    let over = |mechanism| ratio(median(Mechanism::Stock), median(mechanism));
    if let (Some(swaps), Some(additions)) = (over(Mechanism::BareSwaps), over(Mechanism::FlatAtomic)) {
        table.note(format!(
            "on one thread the stock takes x{} of two bare compare-and-swaps, x{} of the two additions of the flat atomic",
            figure(swaps),
            figure(additions)
        ));
    }
}

/// A time as its median with the smallest and the ninetieth percentile.
pub(super) fn cell(ns: Option<Summary>) -> String {
    match ns {
        Some(ns) => format!("{} ({}..{})", figure(ns.median), figure(ns.min), figure(ns.p90)),
        None => "-".to_owned(),
    }
}

/// How many windows are behind the figures of a table, of how many tried, and why some figures have none.
pub(super) fn note_windows<'m>(table: &mut Table, measured: impl IntoIterator<Item = &'m Measured>) {
    let measured: Vec<&Measured> = measured.into_iter().collect();
    let range = |of: &dyn Fn(&Measured) -> usize| {
        let (min, max) = (measured.iter().map(|one| of(one)).min(), measured.iter().map(|one| of(one)).max());
        match (min.unwrap_or(0), max.unwrap_or(0)) {
            (min, max) if min < max => format!("{min} to {max}"),
            (min, _) => min.to_string(),
        }
    };
    let counted = range(&|one| one.ns.map_or(0, |ns| ns.count));
    table.note(format!("windows counted for each figure: {counted} of {} tried", range(&|one| one.tried)));
    let missing = || measured.iter().filter(|one| one.ns.is_none());
    if missing().next().is_some() {
        let (tried, switched) =
            missing().fold((0, 0), |(tried, switched), one| (tried + one.tried, switched + one.switched));
        table.note(format!(
            "measured, but shown as a dash: no window counted; of {tried} in {switched} the kernel took a thread off its CPU, in the others the threads' windows overlapped too little"
        ));
    }
}

fn add_rows(lab: &mut Lab<'_>, results: &Results, threads: usize) {
    let clock = lab.clock;
    for (spec, measured) in results {
        let params = spec_params(spec, threads);
        lab.report.add_time(&clock, spec.mechanism.name(), params, "pair", measured.ns);
    }
}

fn spec_params(spec: &Spec, threads: usize) -> Params {
    params([
        ("threads", if spec.crowd == Crowd::One { 1 } else { threads }.into()),
        ("crowd", spec.crowd.name().into()),
        ("depth", spec.depth.into()),
        ("groups", spec.groups.into()),
        ("bytes", spec.bytes.into()),
        ("statistics", spec.statistics.into()),
        ("root_accounted", spec.root_accounted.into()),
    ])
}

fn add_checks(lab: &mut Lab<'_>, base: Spec, results: &Results) {
    let median = |spec: Spec| results.get(&spec).and_then(|measured| measured.ns).map(|ns| ns.median);
    let ns = |crowd, mechanism, groups| median(Spec { crowd, mechanism, groups, ..base });
    let (one, same, each) = (Crowd::One, Crowd::SameGroup, Crowd::GroupEach);
    let (stock, none) = (Mechanism::Stock, Mechanism::NoStock);
    let depth = base.depth;
    let alone = ns(one, stock, 1);
    let checks = &mut lab.report.checks;
    checks.push(Check::at_most(format!("pair, depth {depth}, 1 thread"), alone, 6.0, "ns"));
    if lab.args.threads() > 1 {
        let n = lab.args.threads();
        for crowd in [same, each].into_iter().filter(|_| depth > 1) {
            let name = format!("pair, {n} threads, {}, over 1 thread", crowd.name());
            checks.push(Check::at_most(name, ratio(ns(crowd, stock, 1), alone), 1.25, "x"));
        }
        for (crowd, least) in [(same, 40.0), (each, 15.0)].into_iter().filter(|_| depth > 1) {
            let gain = ratio(ns(crowd, none, 1), ns(crowd, stock, 1));
            checks.push(Check::at_least(
                format!("no stock over stock, {n} threads, {}", crowd.name()),
                gain,
                least,
                "x",
            ));
        }
    }
    for crowd in Crowd::ALL.into_iter().filter(|&crowd| depth > 1 && (crowd == one || lab.args.threads() > 1))
    {
        let spread = ratio(ns(crowd, stock, 1024), ns(crowd, stock, 1));
        checks.push(Check::at_most(
            format!("1,024 groups in turn over 1, {}", crowd.name()),
            spread,
            1.25,
            "x",
        ));
    }
}
