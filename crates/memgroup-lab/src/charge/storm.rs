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
use crate::harness::Lab;
use crate::harness::report::params;
use crate::harness::table::{Table, figure_or_dash};
use crate::harness::tree::{Tree, child, expect_bytes, limit};
use crate::harness::window::{Variant, Work};

const FULL_BYTES: u64 = 1 << 20;
const MANY_LEAVES: usize = 1_000;

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

/// Measures refusals, and pairs beside them.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let threads = lab.args.threads();
    let many = SlotSource::virtual_slots(128).map_err(|error| Error::setup("128 virtual slots", error))?;
    let mut scenes = Vec::new();
    let mut variants = Vec::new();
    let mut labels: Vec<(String, &'static str, usize, usize, usize)> = Vec::new();
    let scenes_wanted =
        [(lab.slots, false, 1), (lab.slots, true, 1), (lab.slots, true, MANY_LEAVES), (many, true, 1)];
    for (slots, at_parent, leaves) in scenes_wanted {
        let scene = Scene::set(slots, at_parent, leaves)?;
        let place = if at_parent { "refused by the parent" } else { "refused by the leaf" };
        for crowd in if threads > 1 { vec![1, threads] } else { vec![1] } {
            variants.push(Variant::of(scene.storm.clone(), crowd));
            labels.push((place.to_owned(), "refusal", crowd, slots.slots(), leaves));
        }
        if at_parent && leaves == 1 {
            variants.push(Variant::of(scene.beside(slots, false), 1));
            labels.push(("bystander alone".to_owned(), "pair", 1, slots.slots(), leaves));
            if threads > 1 {
                variants.push(Variant { counted: 1, ..Variant::of(scene.beside(slots, true), threads) });
                labels.push((
                    "bystander beside the storm".to_owned(),
                    "pair",
                    threads,
                    slots.slots(),
                    leaves,
                ));
            }
        }
        scenes.push(scene);
    }
    let measured = lab.interleave(&variants)?;
    for scene in scenes {
        scene.check()?;
    }

    let columns = ["ns: median (min..p90)", "of a", "threads", "slots", "leaves", "ns", "TSC cycles"];
    let mut table = Table::new("a storm of refusals, depth 3", columns);
    let clock = lab.clock;
    for ((name, metric, threads, slots, leaves), measured) in labels.iter().zip(&measured) {
        let cycles = measured.ns.and_then(|ns| clock.cycles(ns.median));
        table.row(vec![
            name.clone(),
            (*metric).to_owned(),
            threads.to_string(),
            slots.to_string(),
            leaves.to_string(),
            cell(measured.ns),
            figure_or_dash(cycles),
        ]);
        let params = params([
            ("threads", (*threads).into()),
            ("slots", (*slots).into()),
            ("leaves", (*leaves).into()),
            ("depth", 3.into()),
        ]);
        lab.report.add_time(&clock, name, params, metric, measured.ns);
    }
    note_windows(&mut table, &measured);
    table.note(
        "leaves: groups below the parent; one that refuses sweeps all that are below it, idle ones too",
    );
    table.note("the bystander charges a sibling of the full subtree, under the same root; its row counts its own pairs only");
    lab.print(&table)
}
