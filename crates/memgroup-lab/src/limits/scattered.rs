//! Pairs in one of many groups, drawn at random for each.

use super::cases::{Case, Figures, Kept, Load, Tally, columns, measure_apart};
use super::ledger::{Kind, Ledger, Shape};
use super::{MIB, PAGE};
use crate::harness::prelude::*;

/// The pair over the CAS tree, by groups.
const OVER_CAS_MOST: [(usize, f64); 2] = [(4_096, 1.2), (65_536, 1.5)];
/// "Never more than no stock"; two equal figures differ by so much.
const OVER_NO_STOCK_MOST: f64 = 1.05;
const HITS_LEAST: f64 = 95.0;
/// The hot groups of the skewed rows, and the part of the pairs that they get.
const HOT: u64 = 64;
const HOT_OF_100: u64 = 80;
const BUDGET_LARGE: u64 = 256 * MIB;
/// Four pages for each of 65,536 groups.
const BUDGET_AMPLE: u64 = 1024 * MIB;
/// The budget holds groups where it has so many bytes for each.
const HELD_BYTES: u64 = 2 * PAGE;
/// Prepaid bytes that the default budget has for each slot.
const BUDGET: u64 = 8 * MIB;
/// Long enough that the first pairs of a window, with lines in no cache, weigh little.
const WINDOW_US: u64 = 2_000;

/// Pairs of a page in a random group.
#[derive(Clone)]
struct Scattered {
    groups: u64,
    is_skewed: bool,
}

impl Load for Scattered {
    fn prepare<L: Ledger>(&self, ledger: &L, _: &mut Kept<L::Held>) {
        (0..self.groups as usize)
            .filter_map(|leaf| ledger.charge(leaf, PAGE))
            .for_each(|held| ledger.free(held));
    }

    #[inline(always)]
    fn run<L: Ledger>(&self, ledger: &L, kept: &mut Kept<L::Held>, count: u64, tally: &mut Tally) -> u64 {
        let (random, groups) = (&mut kept.random, self.groups);
        for _ in 0..count {
            let drawn = random.next();
            let is_hot = self.is_skewed && (drawn >> 32) % 100 < HOT_OF_100;
            // A power of two each.
            let leaf = (drawn & 0xffff_ffff) & (if is_hot { HOT } else { groups } - 1);
            match ledger.charge(leaf as usize, PAGE) {
                Some(held) => ledger.free(held),
                None => tally.refused += 1,
            }
        }
        tally.asked += count;
        count
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (few, many) = (vec![(64, false, None)], vec![(4_096, true, None), (65_536, true, None)]);
    let kinds = match lab.args.tiny {
        true => [few, vec![(128, true, None)]].concat(),
        false => [
            few,
            vec![(1_024, false, None), (4_096, false, None), (65_536, false, None)],
            vec![(4_096, false, Some(BUDGET_LARGE)), (65_536, false, Some(BUDGET_LARGE))],
            vec![(65_536, false, Some(BUDGET_AMPLE))],
            many,
        ]
        .concat(),
    };
    let mut cases = Vec::new();
    for (groups, is_skewed, budget) in kinds {
        let skewed = if is_skewed { ", 80 % on 64" } else { "" };
        let large = budget.map_or_else(String::new, |budget| format!(", budget {} MiB", count(budget / MIB)));
        let name = format!("{}{skewed}{large}", count(groups as u64));
        for threads in lab.one_and_all() {
            let shape = Shape { budget, ..Shape::leaves(groups) };
            let load = Scattered { groups: groups as u64, is_skewed };
            cases.push(Case::new(name.clone(), threads, shape, load));
        }
    }
    let title = "pairs of 4 KiB in groups drawn at random; ns";
    let mut table = Table::new(title, columns("groups; threads"));
    let plan = Plan { rounds: lab.pick(1, 6, 40), window_us: lab.pick(100, WINDOW_US, WINDOW_US) };
    let (mut found, mut windows) = (Vec::new(), Vec::new());
    // One after the other: the accounts of one case alone share the machine's caches.
    for case in &cases {
        let (of, measured) =
            measure_apart(lab, &mut table, "scattered pair", plan, std::slice::from_ref(case))?;
        found.extend(of);
        windows.extend(measured);
    }
    note_windows(&mut table, &windows);
    cases.iter().zip(&found).for_each(|(case, of)| goals(lab, case, of));
    let prepaid = cases.iter().zip(&found).filter(|(case, _)| case.threads == 1);
    let prepaid: Vec<_> = prepaid
        .map(|(case, of)| format!("{}: {}", case.name, figure(of.prepaid_bytes as f64 / MIB as f64)))
        .collect();
    table.note("every group is charged once on each thread before the first window; hits are of all pairs after that");
    table.note(format!("prepaid at the end on 1 thread, MiB: {}", prepaid.join("; ")));
    lab.print(&table)
}

fn goals(lab: &mut Lab<'_>, case: &Case<Scattered>, of: &Figures) {
    let (name, threads) = (&case.name, counted(case.threads as u64, "thread"));
    let budget = case.shape.budget.unwrap_or(BUDGET);
    let pair = |what| format!("groups at random: {name}; {threads}: {what}");
    if case.load.groups * HELD_BYTES <= budget {
        lab.at_least(pair("hits"), of.hit_share.map(|share| share * 100.0), HITS_LEAST, "%");
    }
    lab.at_most(pair("over stock off"), of.over(Kind::Engine, Kind::NoStock), OVER_NO_STOCK_MOST, "x");
    if case.load.is_skewed || case.shape.budget.is_some() {
        return;
    }
    let most = OVER_CAS_MOST.into_iter().find(|&(groups, _)| groups as u64 == case.load.groups);
    if let Some((_, most)) = most {
        lab.at_most(pair("over the CAS tree"), of.over(Kind::Engine, Kind::Cas), most, "x");
    }
}
