//! The pair: one charge and its uncharge, by the engine with and without the stock, and by the controls.
//!
//! Every variant is one [`Spec`]; each gets groups of its own, so that no variant warms another's lines.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use memgroup::Group;
use memgroup_percpu::SlotSource;

use super::accounts::{FlatAtomic, MutexTree, Statistics};
use super::{PAGE_BYTES, REFUSED, config};
use crate::harness::prelude::*;

const OBJECT_BYTES: u64 = 64;
const GROUPS_IN_TURN: [usize; 4] = [1, 8, 64, 1024];
/// Misses of a stock that has yet to grow to its cap, in all slots that the threads use.
const GROWING_MISSES: u64 = 16;

/// The ways to keep the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Mechanism {
    /// The engine with the stock's cap at zero: every level, each time.
    NoStock,
    /// The engine.
    Stock,
    /// One shared counter with a limit, without groups: the least that a hand-written account can do.
    FlatAtomic,
    /// A tree of counters behind one mutex.
    Mutex,
    /// Two bare compare-and-swaps on a word of one thread: the price of a stock that reads its word before it changes it. The
    /// engine's stock changes its word by two additions.
    BareSwaps,
    /// No account: only the statistics that the variant asks for.
    Nothing,
}

impl Mechanism {
    const ALL: [Mechanism; 4] =
        [Mechanism::NoStock, Mechanism::Stock, Mechanism::FlatAtomic, Mechanism::Mutex];

    /// The names in the order of the variants.
    fn name(self) -> &'static str {
        let words = "two bare compare-and-swaps";
        ["no stock", "stock", "flat atomic", "mutex tree", words, "statistics alone"][self as usize]
    }
}

/// One variant of the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Spec {
    mechanism: Mechanism,
    crowd: Crowd,
    depth: usize,
    /// Groups in turn, of each thread.
    groups: usize,
    bytes: u64,
    statistics: bool,
    root_accounted: bool,
}

/// A built variant: its work, and the account to check after it.
struct Built {
    work: Box<Work<'static>>,
    statistics: Arc<Statistics>,
    account: Account,
}

/// The place where the bytes of a variant are counted.
enum Account {
    Groups(Fixture),
    Word(Arc<FlatAtomic>),
    Mutex(Arc<MutexTree>),
    None,
}

impl Spec {
    /// Whether the variant can be built: the root has no sibling, and one shared counter has no groups.
    fn exists(&self, threads: usize) -> bool {
        let one_leaf = self.depth == 1 || self.mechanism == Mechanism::FlatAtomic;
        (self.crowd == Crowd::One || threads > 1)
            && (!one_leaf || (self.groups == 1 && self.crowd != Crowd::GroupEach))
            && (self.mechanism != Mechanism::Nothing || self.crowd != Crowd::GroupEach)
            && (self.mechanism != Mechanism::BareSwaps || (self.groups == 1 && self.crowd == Crowd::One))
    }

    /// Leaves of each thread, as indices, and how many there are in all.
    fn leaves(&self, threads: usize) -> (Vec<Range<usize>>, usize) {
        if self.crowd == Crowd::GroupEach {
            let of = |thread| thread * self.groups..(thread + 1) * self.groups;
            return ((0..threads).map(of).collect(), threads * self.groups);
        }
        (vec![0..self.groups; self.crowd.threads(threads)], self.groups)
    }

    fn build(&self, threads: usize, slots: SlotSource) -> Result<Built> {
        let (bytes, (leaves, leaf_count)) = (self.bytes, self.leaves(threads));
        let statistics = Arc::new(Statistics::new(self.statistics, slots));
        let counts = Arc::clone(&statistics);
        let note = move || counts.count(bytes);
        let (work, account) = match self.mechanism {
            Mechanism::NoStock | Mechanism::Stock => {
                let config = config(self.mechanism == Mechanism::Stock, self.depth, slots);
                let fixture =
                    Fixture::chain(config.account_root(self.root_accounted), self.depth, leaf_count)?;
                let own: Vec<_> = leaves.into_iter().map(|range| fixture.leaves[range].to_vec()).collect();
                let counted = self.statistics;
                let work = move |thread: usize, cursor: &mut usize, count| {
                    if counted {
                        group_pairs(&own[thread], bytes, cursor, count, &note)
                    } else {
                        group_pairs(&own[thread], bytes, cursor, count, || ())
                    }
                };
                (Box::new(work) as Box<Work<'static>>, Account::Groups(fixture))
            }
            Mechanism::FlatAtomic => {
                let word = Arc::new(FlatAtomic::new());
                let account = Account::Word(Arc::clone(&word));
                let pair = move |_| {
                    ensure(word.take(bytes), || format!("the flat counter: {REFUSED}"))?;
                    note();
                    word.give(bytes);
                    note();
                    Ok(())
                };
                (in_turn(leaves, pair), account)
            }
            Mechanism::Mutex => {
                let tree = Arc::new(MutexTree::new(self.depth, leaf_count));
                let account = Account::Mutex(Arc::clone(&tree));
                let pair = move |leaf| {
                    ensure(tree.take(leaf, bytes), || format!("the tree behind the mutex: {REFUSED}"))?;
                    note();
                    tree.give(leaf, bytes);
                    note();
                    Ok(())
                };
                (in_turn(leaves, pair), account)
            }
            Mechanism::BareSwaps => {
                let word = Arc::new(FlatAtomic::new());
                let account = Account::Word(Arc::clone(&word));
                let pair = move |_| {
                    word.swap_in(bytes);
                    word.swap_in(bytes.wrapping_neg());
                    Ok(())
                };
                (in_turn(leaves, pair), account)
            }
            Mechanism::Nothing => {
                let pair = move |_| {
                    note();
                    note();
                    Ok(())
                };
                (in_turn(leaves, pair), Account::None)
            }
        };
        Ok(Built { work, statistics, account })
    }

    /// After so many pairs the variant did the work that its name says, and its bytes add up.
    fn check(&self, built: &Built, pairs: u64) -> Result<()> {
        built.statistics.check(2 * pairs * self.bytes)?;
        let left = match &built.account {
            Account::Groups(fixture) => return self.check_groups(fixture, pairs),
            Account::Word(word) => word.usage(),
            Account::Mutex(tree) => tree.usage(),
            Account::None => 0,
        };
        expect(format_args!("bytes left by {}", self.mechanism.name()), left, 0)
    }

    fn check_groups(&self, fixture: &Fixture, pairs: u64) -> Result<()> {
        let stock = self.mechanism == Mechanism::Stock;
        let (hits, misses) = fixture.check_stock(stock, self.mechanism.name())?;
        if stock {
            expect("hits and misses of the pairs", hits + misses, pairs)?;
            let served = || format!("the stock served {hits} of {pairs} pairs in one group only");
            ensure(self.groups > 1 || misses <= pairs / 100 + GROWING_MISSES, served)?;
        }
        // A charge that is held counts in the root, unless the root is left unaccounted.
        let held = fixture.leaves[0].try_charge(self.bytes).or_wrong(REFUSED)?;
        let right = if self.root_accounted || self.depth == 1 { held.bytes() } else { 0 };
        let root = fixture.hierarchy.root();
        expect_bytes(&root, "usage without stock", root.usage_exact(), right)?;
        drop(held);
        fixture.check_empty()
    }
}

/// Pairs in each of some groups in turn, with `note` after each half.
///
/// The charge stays in this loop. Returned by a closure, it made a pair of the stock take 6.7 ns instead of 5.2.
#[inline(always)]
pub(super) fn group_pairs(
    groups: &[Group],
    bytes: u64,
    cursor: &mut usize,
    count: u64,
    note: impl Fn(),
) -> Result<u64> {
    // In a register: the addition would wait for a store of the loop's own.
    let mut at = *cursor;
    for _ in 0..count {
        let charge = groups[at].try_charge(bytes).or_wrong(REFUSED)?;
        note();
        drop(charge);
        note();
        at = if at + 1 == groups.len() { 0 } else { at + 1 };
    }
    *cursor = at;
    Ok(count)
}

/// The work of each thread on another account: a pair in each of its leaves in turn.
fn in_turn(
    leaves: Vec<Range<usize>>,
    pair: impl Fn(usize) -> Result<()> + Send + Sync + 'static,
) -> Box<Work<'static>> {
    Box::new(move |thread, cursor, count| {
        let Range { start, end } = leaves[thread];
        let mut leaf = start + *cursor;
        for _ in 0..count {
            pair(leaf)?;
            leaf = if leaf + 1 == end { start } else { leaf + 1 };
        }
        *cursor = leaf - start;
        Ok(count)
    })
}

/// One table: its title, a name and a variant for each row, and a note; the crowds are its columns.
type Section = (String, Vec<(String, Spec)>, &'static str);

type Results = BTreeMap<Spec, Measured>;

/// Measures all pairs in one interleaving, prints the tables, and adds rows and goals.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let base = Spec {
        mechanism: Mechanism::Stock,
        crowd: Crowd::One,
        depth: lab.args.depth(),
        groups: 1,
        bytes: PAGE_BYTES,
        statistics: false,
        root_accounted: true,
    };
    let depths = vec![1, 3, 8];
    let sections = sections(base, &depths);
    let results = measure(lab, &sections)?;
    for (index, section) in sections.iter().enumerate() {
        let mut table = table(lab, section, &results);
        if index == 0 {
            note_floor(&mut table, base, &results);
        }
        lab.print(&table)?;
    }
    let threads = lab.args.threads();
    for (spec, measured) in &results {
        let params = json!({
            "threads": spec.crowd.threads(threads), "crowd": spec.crowd.name(), "depth": spec.depth,
            "groups": spec.groups, "bytes": spec.bytes, "statistics": spec.statistics,
            "root_accounted": spec.root_accounted,
        });
        lab.record(spec.mechanism.name(), params).time("pair", measured.ns);
    }
    add_goals(lab, base, &results);
    Ok(())
}

fn sections(base: Spec, depths: &[usize]) -> Vec<Section> {
    use Mechanism::{BareSwaps, FlatAtomic, Mutex, NoStock, Nothing, Stock};
    let rows = |mechanisms: &[Mechanism], spec: Spec, suffix: &str| -> Vec<(String, Spec)> {
        let row =
            |&mechanism: &Mechanism| (format!("{}{suffix}", mechanism.name()), Spec { mechanism, ..spec });
        mechanisms.iter().map(row).collect()
    };
    let trees = [NoStock, Stock, Mutex];
    let by_depth = |&depth| rows(&trees, Spec { depth, ..base }, &format!(", depth {depth}"));
    let in_turn = |groups| {
        let suffix = format!(", {}", counted(groups as u64, "group"));
        rows(&trees, Spec { groups, ..base }, &suffix)
    };
    let by_root = |(root_accounted, suffix)| rows(&trees[..2], Spec { root_accounted, ..base }, suffix);
    let roots = [(true, ", root accounted"), (false, ", root unaccounted")];
    let (depth, object, statistics) =
        (base.depth, Spec { bytes: OBJECT_BYTES, ..base }, Spec { statistics: true, ..base });
    let groups_in_turn = GROUPS_IN_TURN.into_iter().filter(|_| depth > 1);
    let with_statistics = rows(&Mechanism::ALL, statistics, " + statistics");
    vec![
        (
            format!("pair of a page ({} bytes), depth {depth}", base.bytes),
            rows(&[NoStock, Stock, FlatAtomic, Mutex, BareSwaps], base, ""),
            "depth counts counters, the root's included; every counter has a limit that is never reached",
        ),
        (
            format!("pair of an object ({OBJECT_BYTES} bytes), depth {depth}"),
            rows(&Mechanism::ALL, object, ""),
            "",
        ),
        (
            "pair of a page, by depth".to_owned(),
            depths.iter().flat_map(by_depth).collect(),
            "depth 1 is the root itself, which has no siblings",
        ),
        (
            format!("pair of a page, depth {depth}, groups in turn"),
            groups_in_turn.flat_map(in_turn).collect(),
            "each thread charges its groups in turn, one pair in each; the flat counter has no groups",
        ),
        (
            format!("pair of a page, depth {depth}, with two statistics updates (the seed's mod_state)"),
            [with_statistics, rows(&[Nothing], statistics, "")].concat(),
            "",
        ),
        (
            format!("pair of a page, depth {depth}, root accounted or not (the seed's first remark)"),
            roots.into_iter().flat_map(by_root).collect(),
            "",
        ),
    ]
}

fn measure(lab: &mut Lab<'_>, sections: &[Section]) -> Result<Results> {
    let threads = lab.args.threads();
    let mut specs: Vec<Spec> = sections
        .iter()
        .flat_map(|(_, rows, _)| rows)
        .flat_map(|(_, spec)| Crowd::ALL.map(|crowd| Spec { crowd, ..*spec }))
        .filter(|spec| spec.exists(threads))
        .collect();
    specs.sort_unstable();
    specs.dedup();
    let built = specs.iter().map(|spec| spec.build(threads, lab.slots)).collect::<Result<Vec<_>>>()?;
    let variants: Vec<Variant<'_>> = specs
        .iter()
        .zip(&built)
        .map(|(spec, built)| Variant::of(&*built.work, spec.crowd.threads(threads)))
        .collect();
    let measured = lab.interleave(&variants)?;
    for ((spec, built), measured) in specs.iter().zip(&built).zip(&measured) {
        spec.check(built, measured.ops)?;
    }
    Ok(specs.into_iter().zip(measured).collect())
}

fn table(lab: &Lab<'_>, (title, rows, note): &Section, results: &Results) -> Table {
    let heading = |crowd: Crowd| crowd.heading(lab.args.threads());
    let (same, each) = (heading(Crowd::SameGroup), heading(Crowd::GroupEach));
    let mut table = Table::new(title, ["ns: median (min..p90)", "1 thread", "cycles", &same, &each]);
    let mut windows = Vec::new();
    for (name, spec) in rows {
        let of = |crowd| results.get(&Spec { crowd, ..*spec });
        let [one, same, each] = Crowd::ALL.map(|crowd| of(crowd).and_then(|measured| measured.ns));
        let cycles = one.and_then(|ns| lab.clock.cycles(ns.median));
        table.row(name, [spread(one), figure_or_dash(cycles), spread(same), spread(each)]);
        windows.extend(Crowd::ALL.into_iter().filter_map(of));
    }
    note_windows(&mut table, windows);
    if !note.is_empty() {
        table.note(*note);
    }
    table
}

/// The machine's own cost of a pair, and how far the stock is from it.
fn note_floor(table: &mut Table, base: Spec, results: &Results) {
    let of = |mechanism| results.get(&Spec { mechanism, ..base }).and_then(|measured| median(measured.ns));
    let over = |mechanism| ratio(of(Mechanism::Stock), of(mechanism));
    if let (Some(swaps), Some(additions)) = (over(Mechanism::BareSwaps), over(Mechanism::FlatAtomic)) {
        table.note(format!(
            "on one thread the stock takes x{} of two bare compare-and-swaps, x{} of the two additions of the flat atomic",
            figure(swaps),
            figure(additions)
        ));
    }
}

fn add_goals(lab: &mut Lab<'_>, base: Spec, results: &Results) {
    let ns = |crowd, mechanism, groups| {
        let measured = results.get(&Spec { crowd, mechanism, groups, ..base });
        measured.and_then(|measured| median(measured.ns))
    };
    let (stock, none, depth, threads) =
        (Mechanism::Stock, Mechanism::NoStock, base.depth, lab.args.threads());
    let alone = ns(Crowd::One, stock, 1);
    lab.at_most(format!("pair, depth {depth}, 1 thread"), alone, 6.0, "ns");
    if depth == 1 {
        return;
    }
    if threads > 1 {
        for (crowd, least) in [(Crowd::SameGroup, 40.0), (Crowd::GroupEach, 15.0)] {
            let (name, with_stock) = (crowd.name(), ns(crowd, stock, 1));
            let over_one = ratio(with_stock, alone);
            lab.at_most(format!("pair, {threads} threads, {name}, over 1 thread"), over_one, 1.25, "x");
            let gain = ratio(ns(crowd, none, 1), with_stock);
            lab.at_least(format!("no stock over stock, {threads} threads, {name}"), gain, least, "x");
        }
    }
    for crowd in Crowd::ALL.into_iter().filter(|&crowd| crowd == Crowd::One || threads > 1) {
        let spread = ratio(ns(crowd, stock, 1024), ns(crowd, stock, 1));
        lab.at_most(format!("1,024 groups in turn over 1, {}", crowd.name()), spread, 1.25, "x");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    const SPEC: Spec = Spec {
        mechanism: Mechanism::Stock,
        crowd: Crowd::GroupEach,
        depth: 3,
        groups: 4,
        bytes: 64,
        statistics: false,
        root_accounted: true,
    };

    #[test]
    fn shares_no_leaf_between_threads_in_a_group_each() {
        assert_eq!(SPEC.leaves(2), (vec![0..4, 4..8], 8));
        assert_eq!(Spec { crowd: Crowd::SameGroup, ..SPEC }.leaves(2), (vec![0..4, 0..4], 4));
        assert_eq!(Spec { crowd: Crowd::One, ..SPEC }.leaves(2), (vec![0..4; 1], 4));
    }

    #[test]
    fn builds_no_siblings_of_the_root_and_the_flat_counter() {
        assert!(!Spec { depth: 1, ..SPEC }.exists(2));
        assert!(!Spec { mechanism: Mechanism::FlatAtomic, groups: 1, ..SPEC }.exists(2));
        assert!(Spec { depth: 1, groups: 1, crowd: Crowd::SameGroup, ..SPEC }.exists(2));
        assert!(!Spec { crowd: Crowd::SameGroup, ..SPEC }.exists(1));
    }

    #[test]
    fn leaves_nothing_charged_by_any_mechanism() {
        for mechanism in Mechanism::ALL {
            let groups = if mechanism == Mechanism::FlatAtomic { 1 } else { 4 };
            let spec = Spec { mechanism, groups, crowd: Crowd::SameGroup, statistics: true, ..SPEC };
            let built = spec.build(2, SlotSource::detect()).unwrap();
            assert_eq!((built.work)(1, &mut 0, 100).unwrap(), 100);
            spec.check(&built, 100).unwrap();
        }
    }

    /// Builds and runs one variant, and checks it as another.
    fn check_as(built: Spec, named: Spec) -> Result<()> {
        let work = built.build(1, SlotSource::detect()).unwrap();
        (work.work)(0, &mut 0, 1000).unwrap();
        named.check(&work, 1000)
    }

    #[test]
    fn fails_when_a_variant_is_not_what_its_name_says() {
        let stock = Spec { groups: 1, crowd: Crowd::One, ..SPEC };
        let no_stock = Spec { mechanism: Mechanism::NoStock, ..stock };
        let unaccounted = Spec { root_accounted: false, ..stock };
        for (built, named) in
            [(stock, no_stock), (no_stock, stock), (stock, unaccounted), (unaccounted, stock)]
        {
            assert!(matches!(check_as(built, named), Err(Error::Wrong(_))), "{built:?} as {named:?}");
            check_as(built, built).unwrap();
        }
    }

    #[test]
    fn fails_when_a_pair_was_not_counted() {
        for mechanism in [Mechanism::Stock, Mechanism::FlatAtomic, Mechanism::Mutex, Mechanism::Nothing] {
            let spec = Spec { mechanism, groups: 1, crowd: Crowd::One, statistics: true, ..SPEC };
            let built = spec.build(1, SlotSource::detect()).unwrap();
            (built.work)(0, &mut 0, 100).unwrap();
            assert!(matches!(spec.check(&built, 101), Err(Error::Wrong(_))), "{mechanism:?}");
        }
        let uncounted = Statistics::new(true, SlotSource::detect());
        assert!(matches!(uncounted.check(64), Err(Error::Wrong(_))));
    }

    #[test]
    fn leaves_nothing_after_bare_pairs() {
        let spec = Spec { mechanism: Mechanism::BareSwaps, groups: 1, crowd: Crowd::One, ..SPEC };
        let built = spec.build(1, SlotSource::detect()).unwrap();
        assert_eq!((built.work)(0, &mut 0, 10).unwrap(), 10);
        spec.check(&built, 10).unwrap();
        let word = FlatAtomic::new();
        word.swap_in(7);
        assert_eq!(word.usage(), 7);
    }
}
