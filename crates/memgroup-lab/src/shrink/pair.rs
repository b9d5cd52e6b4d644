//! What shrinkers cost those who charge where there is room: nothing.

use std::sync::Arc;

use memgroup::{Config, GroupShrinker, ShrinkerConfig};

use super::cache::{PAGE, Pages};
use crate::Error;
use crate::harness::Lab;
use crate::harness::report::{Check, params, ratio};
use crate::harness::table::{Table, spread};
use crate::harness::tree::Tree;
use crate::harness::window::{Variant, Work};

const DEPTH: usize = 3;

/// Pairs in the first leaf of a tree.
struct Pairs {
    _shrinkers: Vec<GroupShrinker>,
    tree: Tree,
}

impl Pairs {
    fn build(lab: &Lab<'_>, shrinkers: usize) -> Result<Pairs, Error> {
        let tree = Tree::grow(Config::with_slots(lab.slots), DEPTH, 2)?;
        let add = |_| {
            let config = ShrinkerConfig::new("idle");
            let shrinker = tree.leaves[1]
                .add_shrinker(config, Pages::default())
                .map_err(|error| Error::setup("a shrinker", error))?;
            // It was marked once, and found empty.
            shrinker.mark();
            tree.parent.reclaim(PAGE, None);
            Ok(shrinker)
        };
        let shrinkers = (0..shrinkers).map(add).collect::<Result<_, Error>>()?;
        Ok(Pairs { _shrinkers: shrinkers, tree })
    }
}

impl Work for Pairs {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        let group = &self.tree.leaves[0];
        for _ in 0..count {
            let charge = group.try_charge(PAGE);
            drop(charge.map_err(|error| Error::Wrong(format!("a charge far below the limit: {error}")))?);
        }
        Ok(count)
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let threads = lab.args.threads();
    let works = [("no shrinker (control)", 0), ("one idle shrinker in another group", 1)]
        .into_iter()
        .map(|(name, shrinkers)| Ok((name, Arc::new(Pairs::build(lab, shrinkers)?))))
        .collect::<Result<Vec<_>, Error>>()?;
    let of = |pairs: &Arc<Pairs>| [1, threads].map(|threads| Variant::of(pairs.clone(), threads));
    let variants: Vec<Variant> = works.iter().flat_map(|(_, pairs)| of(pairs)).collect();
    let measured = lab.interleave(&variants)?;
    let mut table = Table::new(
        format!("a charge and its uncharge where there is room, depth {DEPTH}: ns, median (min..p90)"),
        ["in the hierarchy", "1 thread", &format!("{threads} threads, same group")],
    );
    let clock = lab.clock;
    for ((name, pairs), both) in works.iter().zip(measured.chunks_exact(2)) {
        table.row(vec![(*name).to_owned(), spread(both[0].ns), spread(both[1].ns)]);
        for (threads, one) in [1, threads].into_iter().zip(both) {
            lab.report.add_time(&clock, name, params([("threads", threads.into())]), "pair", one.ns);
        }
        pairs.tree.check_empty()?;
    }
    let median = |index: usize| measured[index].ns.map(|ns| ns.median);
    for (index, threads) in [1, threads].into_iter().enumerate() {
        lab.report.checks.push(Check::at_most(
            format!("a pair, with an idle shrinker elsewhere over without, {threads} threads"),
            ratio(median(2 + index), median(index)),
            1.05,
            "x",
        ));
    }
    lab.print(&table)
}
