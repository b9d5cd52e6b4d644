//! A storm of refusals: what a refused charge costs, and what it costs others under the same root.
//!
//! A refusal is dearer than a charge on purpose: before it is given, every stock of the refusing subtree is swept
//! by the refuser itself, so that nobody is refused while there is unused credit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Charge, Config, Group};
use memgroup_percpu::SlotSource;

use super::pair::{GroupPairs, refused};
use super::pairs::{PAGE_BYTES, cell, note_windows};
use crate::Error;
use crate::harness::machine::virtual_slots;
use crate::harness::report::params;
use crate::harness::table::{Table, count, figure_or_dash};
use crate::harness::tree::{Tree, child, expect_bytes, limit};
use crate::harness::window::{Measured, Plan, Variant, Work};
use crate::harness::{Effort, Lab};

const FULL_BYTES: u64 = 1 << 20;
const MANY_LEAVES: usize = 1_000;
/// With that many leaves a refusal takes a tenth of a millisecond and more. A thread's window ends with an operation, so windows are
/// as many times longer, or those of several threads would end too far apart to count.
const MANY_LEAVES_WINDOW: u64 = 20;
/// And there are as many times fewer.
const MANY_LEAVES_ROUNDS_PART: usize = 5;

/// Charges to a group that is full: all are refused.
struct Storm {
    full: Group,
    refused: AtomicU64,
}

impl Work for Storm {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            if self.full.try_charge(PAGE_BYTES).is_ok() {
                return Err(Error::Wrong(format!("{} took a charge beyond its limit", self.full.path())));
            }
        }
        // ORDERING: Relaxed; a count, read when the windows are over.
        self.refused.fetch_add(count, Ordering::Relaxed);
        Ok(count)
    }
}

/// Thread 0 makes pairs in a group of its own, all others storm.
struct Bystander {
    pairs: GroupPairs,
    storm: Option<Arc<Storm>>,
}

impl Work for Bystander {
    fn batch(&self, thread: usize, cursor: &mut usize, count: u64) -> Result<u64, Error> {
        match &self.storm {
            Some(storm) if thread > 0 => storm.batch(thread, cursor, 1),
            _ => self.pairs.batch(thread, cursor, count),
        }
    }
}

/// A full group below the root, the charge that fills it, and a group beside it.
struct Scene {
    tree: Tree,
    filling: Charge,
    storm: Arc<Storm>,
    refusing: Group,
    bystander: Group,
}

impl Scene {
    /// root ── parent ── leaves, the limit at one leaf or at the parent of all; the bystander is a child of the root.
    fn set(slots: SlotSource, limit_at_parent: bool, leaves: usize) -> Result<Scene, Error> {
        let tree = Tree::grow(Config::new().slots(slots), 3, leaves)?;
        let leaf = tree.leaves[0].clone();
        let refusing = if limit_at_parent { tree.parent.clone() } else { leaf.clone() };
        limit(&refusing, FULL_BYTES)?;
        let filling = leaf.try_charge(FULL_BYTES).map_err(refused)?;
        let bystander = child(&tree.hierarchy.root(), "bystander")?;
        let storm = Arc::new(Storm { full: leaf, refused: AtomicU64::new(0) });
        Ok(Scene { tree, filling, storm, refusing, bystander })
    }

    fn beside(&self, slots: SlotSource, storming: bool) -> Arc<Bystander> {
        let pairs = GroupPairs::new(vec![vec![self.bystander.clone()]], PAGE_BYTES, slots);
        Arc::new(Bystander { pairs, storm: storming.then(|| Arc::clone(&self.storm)) })
    }

    /// The group is as full as it was, every refusal was counted where it was given, and nothing is left over.
    fn check(self) -> Result<(), Error> {
        expect_bytes(&self.storm.full, "usage after the storm", self.storm.full.usage_exact(), FULL_BYTES)?;
        // ORDERING: Relaxed; the windows are over.
        let (counted, seen) = (self.refusing.refusals(), self.storm.refused.load(Ordering::Relaxed));
        if counted != seen {
            let path = self.refusing.path();
            return Err(Error::Wrong(format!("{path} counts {counted} refusals, its chargers saw {seen}")));
        }
        drop(self.filling);
        self.tree.check_empty()
    }
}

/// One row of the table, and what is measured for it.
struct Line {
    name: &'static str,
    /// What an operation is.
    metric: &'static str,
    slots: usize,
    leaves: usize,
    variant: Variant,
}

/// Measures refusals, and pairs beside them.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let many = virtual_slots(128)?;
    let (scenes, lines) = scenes(lab.args.threads(), lab.slots, many)?;
    let (slow, fast): (Vec<Line>, Vec<Line>) = lines.into_iter().partition(|line| line.leaves == MANY_LEAVES);
    let Effort { rounds, window_us, .. } = lab.effort;
    let fast = measure(lab, Plan { rounds, window_us }, fast)?;
    let fewer = rounds.div_ceil(MANY_LEAVES_ROUNDS_PART);
    let slow = measure(lab, Plan { rounds: fewer, window_us: window_us * MANY_LEAVES_WINDOW }, slow)?;
    for scene in scenes {
        scene.check()?;
    }
    show(lab, &[fast, slow].concat())
}

/// The scenes, and the rows that are measured in them.
fn scenes(threads: usize, slots: SlotSource, many: SlotSource) -> Result<(Vec<Scene>, Vec<Line>), Error> {
    let (mut scenes, mut lines) = (Vec::new(), Vec::new());
    let wanted = [(slots, false, 1), (slots, true, 1), (many, true, 1), (slots, true, MANY_LEAVES)];
    for (slots, at_parent, leaves) in wanted {
        let scene = Scene::set(slots, at_parent, leaves)?;
        let line = |name, metric, variant| Line { name, metric, slots: slots.slots(), leaves, variant };
        let place = if at_parent { "refused by the parent" } else { "refused by the leaf" };
        for crowd in if threads > 1 { vec![1, threads] } else { vec![1] } {
            lines.push(line(place, "refusal", Variant::of(scene.storm.clone(), crowd)));
        }
        if at_parent && leaves == 1 {
            let alone = Variant::of(scene.beside(slots, false), 1);
            lines.push(line("bystander alone", "pair", alone));
            if threads > 1 {
                let beside = Variant { counted: 1, ..Variant::of(scene.beside(slots, true), threads) };
                lines.push(line("bystander beside the storm", "pair", beside));
            }
        }
        scenes.push(scene);
    }
    Ok((scenes, lines))
}

/// A row with what was measured for it.
#[derive(Clone, Copy)]
struct Shown {
    name: &'static str,
    metric: &'static str,
    threads: usize,
    slots: usize,
    leaves: usize,
    measured: Measured,
}

fn measure(lab: &mut Lab<'_>, plan: Plan, lines: Vec<Line>) -> Result<Vec<Shown>, Error> {
    let (lines, variants): (Vec<_>, Vec<Variant>) = lines
        .into_iter()
        .map(|Line { name, metric, slots, leaves, variant }| ((name, metric, slots, leaves), variant))
        .unzip();
    let measured = lab.interleave_by(plan, &variants)?;
    let shown = lines.into_iter().zip(&variants).zip(measured);
    Ok(shown
        .map(|(((name, metric, slots, leaves), variant), measured)| Shown {
            name,
            metric,
            threads: variant.threads,
            slots,
            leaves,
            measured,
        })
        .collect())
}

fn show(lab: &mut Lab<'_>, rows: &[Shown]) -> Result<(), Error> {
    let columns = ["ns: median (min..p90)", "of a", "threads", "slots", "leaves", "ns", "TSC cycles"];
    let mut table = Table::new("a storm of refusals, depth 3", columns);
    let clock = lab.clock;
    for &Shown { name, metric, threads, slots, leaves, measured } in rows {
        let cycles = measured.ns.and_then(|ns| clock.cycles(ns.median));
        table.row(vec![
            name.to_owned(),
            metric.to_owned(),
            threads.to_string(),
            count(slots as u64),
            count(leaves as u64),
            cell(measured.ns),
            figure_or_dash(cycles),
        ]);
        let params = params([
            ("threads", threads.into()),
            ("slots", slots.into()),
            ("leaves", leaves.into()),
            ("depth", 3.into()),
        ]);
        lab.report.add_time(&clock, name, params, metric, measured.ns);
    }
    note_windows(&mut table, rows.iter().map(|row| &row.measured));
    table.note(format!(
        "leaves: groups below the parent; one that refuses sweeps all that are below it, idle ones too. With {} of them a window is {MANY_LEAVES_WINDOW} times as long, and there are fewer",
        count(MANY_LEAVES as u64)
    ));
    table.note("the bystander charges a sibling of the full subtree, under the same root; its row counts its own pairs only");
    lab.print(&table)
}
