//! What a walk takes for each shrinker that it visits, by how shrinkers are kept from going away meanwhile.
//!
//! A visit is a call of `count` that answers at once that it cannot tell, and all that is done to get there: finding the shrinker by its
//! mark, protecting it, calling it, letting it go.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::control::{Plain, Scheme};
use super::house::{House, PRIORITIES, Shape};
use super::seed;
use crate::Error;
use crate::harness::Lab;
use crate::harness::report::{Check, params, ratio};
use crate::harness::table::{Table, count, figure, figure_or_dash, spread};
use crate::harness::window::{Measured, Plan, Variant, Work};

pub(super) const ENGINE: &str = "the engine's whole walk";

/// Shrinkers in one group.
const IN_ONE: [usize; 3] = [64, 1_000, 4_000];

/// About what a visit takes at most, to choose the length of a window.
const VISIT_NS: u64 = 75;

/// Medians by shape and variant, for one thread and for all.
struct Line {
    shape: Shape,
    by_variant: BTreeMap<&'static str, [Option<f64>; 2]>,
}

impl Line {
    fn of(&self, name: &str, all: bool) -> Option<f64> {
        self.by_variant.get(name).and_then(|both| both[usize::from(all)])
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let groups =
        lab.args.groups.map_or_else(|| vec![seed::GROUPS, seed::GROUPS_LATER], |groups| vec![groups]);
    let fewer = |number: usize| if lab.args.tiny { number.min(70) } else { number };
    let storms =
        groups.iter().map(|&groups| Shape { groups: fewer(groups), each: 1, is_one_shrinker: false });
    let one_shrinker =
        groups.last().map(|&groups| Shape { groups: fewer(groups), each: 1, is_one_shrinker: true });
    let in_one = IN_ONE.iter().map(|&each| Shape { groups: 1, each: fewer(each), is_one_shrinker: false });
    let mut shapes: Vec<Shape> = storms.chain(one_shrinker).chain(in_one).collect();
    shapes.dedup();
    let mut lines = Vec::new();
    for shape in shapes {
        lines.push(measure(lab, shape)?);
    }
    check(lab, &lines);
    Ok(())
}

/// The shape in words.
fn name(shape: Shape) -> String {
    let groups = count(shape.groups as u64);
    match (shape.groups, shape.is_one_shrinker) {
        (1, _) => format!("{} shrinkers in one group", count(shape.each as u64)),
        (_, false) => format!("{groups} groups below one parent, each with a shrinker"),
        (_, true) => format!("{groups} groups below one parent, each with a seat of the same shrinker"),
    }
}

fn measure(lab: &mut Lab<'_>, shape: Shape) -> Result<Line, Error> {
    let threads = lab.args.threads();
    let plain = |scheme: Scheme| -> (&'static str, Arc<dyn Work>) {
        (scheme.name(), Arc::new(Plain::build(scheme, shape, threads)))
    };
    let mut works: Vec<_> = Scheme::ALL.into_iter().map(plain).collect();
    works.push((ENGINE, Arc::new(House::build(lab.slots, shape)?)));
    let variants: Vec<Variant> = works
        .iter()
        .flat_map(|(_, work)| [1, threads].map(|threads| Variant::of(Arc::clone(work), threads)))
        .collect();
    // A window has several reclaims, so that those of two threads end together.
    let reclaim_us = PRIORITIES * shape.shrinkers() * VISIT_NS / 1000;
    let plan =
        Plan { rounds: lab.effort.rounds.div_ceil(3), window_us: lab.effort.window_us.max(reclaim_us * 2) };
    let measured = lab.interleave_by(plan, &variants)?;
    show(lab, shape, &works, &measured)
}

fn show(
    lab: &mut Lab<'_>,
    shape: Shape,
    works: &[(&'static str, Arc<dyn Work>)],
    measured: &[Measured],
) -> Result<Line, Error> {
    let threads = lab.args.threads();
    let mut table = Table::new(
        format!("{}: ns of a thread for a shrinker visited, median (min..p90)", name(shape)),
        ["how it is kept", "1 thread", &format!("{threads} threads"), "", "over none, 1 thread"],
    );
    let mut line = Line { shape, by_variant: BTreeMap::new() };
    let clock = lab.clock;
    let floor = measured[0].ns.map(|ns| ns.median);
    for ((name, _), both) in works.iter().zip(measured.chunks_exact(2)) {
        let medians = [0, 1].map(|index| both[index].ns.map(|ns| ns.median));
        let change = ratio(medians[1], medians[0]);
        let above = medians[0].zip(floor).map(|(ns, floor)| ns - floor);
        table.row(vec![
            (*name).to_owned(),
            spread(both[0].ns),
            spread(both[1].ns),
            change.map_or_else(String::new, |change| format!("x{}", figure(change))),
            figure_or_dash(above),
        ]);
        line.by_variant.insert(name, medians);
        for (threads, one) in [1, threads].into_iter().zip(both) {
            let what = params([
                ("threads", threads.into()),
                ("groups", shape.groups.into()),
                ("each", shape.each.into()),
                ("one shrinker", shape.is_one_shrinker.into()),
            ]);
            lab.report.add_time(&clock, name, what, "visit", one.ns);
        }
    }
    let (tried, counted) = measured
        .iter()
        .fold((0, 0), |(tried, counted), one| (tried + one.tried, counted + one.ns.map_or(0, |ns| ns.count)));
    table.note(format!("{counted} of {tried} windows counted"));
    lab.print(&table)?;
    Ok(line)
}

fn check(lab: &mut Lab<'_>, lines: &[Line]) {
    let are_many = lab.args.threads() > 1;
    let checks = &mut lab.report.checks;
    for line in lines.iter().filter(|line| line.shape.groups == 1) {
        let each = count(line.shape.each as u64);
        let (one, all) = (line.of(ENGINE, false), line.of(ENGINE, true));
        checks.push(Check::at_most(
            format!("a visit with a call of count, {each} shrinkers in one group"),
            one,
            2.0,
            "ns",
        ));
        let name = format!("a visit, {each} shrinkers in one group, all threads over 1");
        if are_many {
            checks.push(Check::at_most(name, ratio(all, one), 1.25, "x"));
        }
    }
    let storms = lines.iter().filter(|line| line.shape.groups > 1 && !line.shape.is_one_shrinker);
    for line in storms.filter(|_| are_many) {
        let groups = count(line.shape.groups as u64);
        let all = |name: &str| line.of(name, true);
        let over = |name: &str| ratio(all(Scheme::Lock.name()), all(name));
        checks.push(Check::at_most(
            format!("a visit, {groups} groups, all threads over 1"),
            ratio(all(ENGINE), line.of(ENGINE, false)),
            1.25,
            "x",
        ));
        checks.push(Check::at_least(
            format!("read-write lock over the engine, {groups} groups, all threads"),
            over(ENGINE),
            10.0,
            "x",
        ));
        checks.push(Check::at_least(
            format!("read-write lock over hazard records, {groups} groups, all threads"),
            over(Scheme::Pins.name()),
            10.0,
            "x",
        ));
    }
}
