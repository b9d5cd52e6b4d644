//! What the controller costs who charges where there is room: the pair with only `max`, and with all there is set beside it.
//!
//! - I1. A variant is what its name says: at the end all settings are in force, who waits for events waits still, and nothing has
//!   happened that any of them is about.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use memgroup::{
    Config, EventSubscription, Events, Group, KillHook, Killed, Killing, PeakReader, PressureLine, Trigger,
};

use crate::Error;
use crate::harness::Lab;
use crate::harness::crew::spin_until;
use crate::harness::report::{Check, params, ratio};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, figure_or_dash, spread};
use crate::harness::tree::Tree;
use crate::harness::window::{Variant, Work};

const DEPTH: usize = 3;
const PAGE: u64 = 4096;
/// High enough for what is charged here with all that is prepaid, and a limit nevertheless.
const HIGH_BYTES: u64 = 1 << 46;
const LOW_BYTES: u64 = 2 << 20;
const MIN_BYTES: u64 = 1 << 20;
const WEIGHT: u32 = 500;

/// How many threads, and in which groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crowd {
    One,
    SameGroup,
    GroupEach,
}

impl Crowd {
    const ALL: [Crowd; 3] = [Crowd::One, Crowd::SameGroup, Crowd::GroupEach];

    fn name(self, threads: usize) -> String {
        match self {
            Crowd::One => "1 thread".to_owned(),
            Crowd::SameGroup => format!("{threads} threads, same group"),
            Crowd::GroupEach => format!("{threads} threads, a group each"),
        }
    }

    fn threads(self, threads: usize) -> usize {
        if self == Crowd::One { 1 } else { threads }
    }
}

/// All there is beside `max`, at every level of a tree.
struct Everything {
    peaks: Vec<PeakReader>,
    triggers: Vec<Trigger>,
    hooks: Vec<KillHook>,
    subscriptions: Vec<EventSubscription>,
    waiter: Option<JoinHandle<Option<Events>>>,
    groups: Vec<Group>,
    waited: Group,
}

impl Everything {
    fn set(tree: &Tree) -> Result<Everything, Error> {
        let groups = tree.hierarchy.groups();
        let (mut peaks, mut triggers, mut hooks, mut subscriptions) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for group in &groups {
            let failed = |why: &dyn std::fmt::Display| Error::setup(group.path(), why);
            group.set_high(HIGH_BYTES).map_err(|why| failed(&why))?;
            group.set_low(LOW_BYTES).map_err(|why| failed(&why))?;
            group.set_min(MIN_BYTES).map_err(|why| failed(&why))?;
            group.set_weight(WEIGHT).map_err(|why| failed(&why))?;
            let mut peak = group.peak_reader();
            peak.reset();
            peaks.push(peak);
            triggers.push(group.add_pressure_trigger("some 150000 1000000").map_err(|why| failed(&why))?);
            hooks.push(group.set_kill_hook(|_: &Killing<'_>| Killed::Refused).map_err(|why| failed(&why))?);
            subscriptions.push(group.on_events(|_, _| ()));
        }
        let waited = tree.leaves[0].clone();
        let (waiting, begun) = (waited.clone(), Arc::new(AtomicBool::new(false)));
        let begins = Arc::clone(&begun);
        let waiter = std::thread::Builder::new()
            .name("waits for events".to_owned())
            .spawn(move || {
                let seen = waiting.events();
                // ORDERING: Relaxed; it says nothing but itself.
                begins.store(true, Ordering::Relaxed);
                waiting.wait_events(&seen, None)
            })
            .map_err(|source| Error::System { what: "start a thread that waits".to_owned(), source })?;
        // ORDERING: Relaxed; as above.
        spin_until(|| begun.load(Ordering::Relaxed).then_some(()));
        let waiter = Some(waiter);
        Ok(Everything { peaks, triggers, hooks, subscriptions, waiter, groups, waited })
    }

    /// All is in force still, and nothing has happened (I1).
    fn check(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Wrong(text));
        for group in &self.groups {
            let set = (group.high(), group.low(), group.min(), group.weight());
            if set != (HIGH_BYTES, LOW_BYTES, MIN_BYTES, WEIGHT) {
                return wrong(format!("high, low, min and weight of {} are {set:?}", group.path()));
            }
            if group.events() != Events::default() || group.pressure().some != PressureLine::default() {
                return wrong(format!(
                    "{} had events or pressure, although there was room: {:?}, {:?}",
                    group.path(),
                    group.events(),
                    group.pressure().some
                ));
            }
        }
        if self.waiter.as_ref().is_none_or(JoinHandle::is_finished) {
            return wrong(format!("nobody waits for events of {} any more", self.waited.path()));
        }
        let told: u64 = self.subscriptions.iter().map(|one| one.report().calls).sum();
        let aside = self.hooks.iter().filter(|hook| hook.is_set_aside()).count();
        let is_there = [self.peaks.len(), self.triggers.len(), self.hooks.len()];
        if told > 0 || aside > 0 || is_there != [self.groups.len(); 3] {
            return wrong(format!(
                "{told} callbacks were told, {aside} kill hooks set aside, of {is_there:?}"
            ));
        }
        if self.peaks.iter().any(|peak| peak.read() < PAGE) {
            return wrong("a peak reader saw none of the charges".to_owned());
        }
        Ok(())
    }
}

impl Drop for Everything {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        if self.waited.remove().is_err() {
            return; // Removed by nobody else, so this is never so; the thread would be waited for in vain.
        }
        // It cannot have panicked but with what its wait says, and nothing hangs on that here.
        let _ = waiter.join();
    }
}

/// Pairs of each thread in its group.
struct Pairs {
    everything: Option<Everything>,
    tree: Tree,
    same: bool,
    stock: bool,
}

impl Pairs {
    fn build(
        lab: &Lab<'_>,
        everything: bool,
        crowd: Crowd,
        stock: bool,
        threads: usize,
    ) -> Result<Pairs, Error> {
        let config = Config::with_slots(lab.slots);
        let config = if stock { config } else { config.stock_cap_bytes(0) };
        let tree = Tree::grow(config, DEPTH, if crowd == Crowd::GroupEach { threads } else { 1 })?;
        let everything = if everything { Some(Everything::set(&tree)?) } else { None };
        Ok(Pairs { everything, tree, same: crowd != Crowd::GroupEach, stock })
    }

    fn check(&self) -> Result<(), Error> {
        self.tree.check_stock(self.stock, "the pair")?;
        if let Some(everything) = &self.everything {
            everything.check()?;
        }
        self.tree.check_empty()
    }
}

impl Work for Pairs {
    fn batch(&self, thread: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        let group = &self.tree.leaves[if self.same { 0 } else { thread }];
        for _ in 0..count {
            let charge = group.try_charge(PAGE);
            drop(charge.map_err(|error| Error::Wrong(format!("a charge far below the limit: {error}")))?);
        }
        Ok(count)
    }
}

/// Houses of each variant: where the lines of one lie in the caches is a matter of luck, and is evened out over some.
const HOUSES: usize = 4;

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let threads = lab.args.threads();
    let crowds: Vec<Crowd> =
        Crowd::ALL.into_iter().filter(|&crowd| crowd == Crowd::One || threads > 1).collect();
    for stock in [true, false] {
        let title = if stock {
            format!("a charge and its uncharge, depth {DEPTH}, served by the stock: ns, median (min..p90)")
        } else {
            format!("the same without stock, each to the counters of all {DEPTH} levels")
        };
        let names = crowds.iter().map(|crowd| crowd.name(threads));
        let mut table = Table::new(title, ["threads", "max (control)", "everything set", "x"]);
        for (crowd, name) in crowds.iter().zip(names) {
            let [control, all] = measure(lab, *crowd, stock)?;
            let clock = lab.clock;
            for (variant, ns) in [("max (control)", control), ("everything", all)] {
                let params = params([
                    ("crowd", name.as_str().into()),
                    ("stock", stock.into()),
                    ("depth", DEPTH.into()),
                ]);
                lab.report.add_time(&clock, variant, params, "pair", ns);
            }
            let times = ratio(all.map(|ns| ns.median), control.map(|ns| ns.median));
            table.row(vec![name.clone(), spread(control), spread(all), figure_or_dash(times)]);
            if stock {
                let check = format!("a pair, everything set over max alone, {name}");
                lab.report.checks.push(Check::at_most(check, times, super::PAIR_MOST, "x"));
            }
        }
        if stock {
            table.note(format!(
                "everything: high, low, min, a weight, a pressure trigger, a peak reader that was reset, a subscription to events and a kill hook at each level, and a thread that waits for events. Medians of {HOUSES} hierarchies each"
            ));
        } else {
            table.note("no goal: usage is below min and low here, so each charge and uncharge changes what is used of both, which is kept up to date at every level: the dearest case");
        }
        lab.print(&table)?;
    }
    Ok(())
}

/// The control and everything, interleaved, in several hierarchies each.
fn measure(lab: &mut Lab<'_>, crowd: Crowd, stock: bool) -> Result<[Option<Summary>; 2], Error> {
    let threads = crowd.threads(lab.args.threads());
    let build = |everything| Pairs::build(lab, everything, crowd, stock, threads).map(Arc::new);
    let houses = (0..2 * HOUSES).map(|house| build(house % 2 == 1)).collect::<Result<Vec<_>, Error>>()?;
    let variants: Vec<Variant> = houses.iter().map(|pairs| Variant::of(pairs.clone(), threads)).collect();
    let measured = lab.interleave(&variants)?;
    houses.iter().try_for_each(|pairs| pairs.check())?;
    Ok([0, 1].map(|variant| {
        let of: Vec<Summary> = measured.iter().skip(variant).step_by(2).filter_map(|one| one.ns).collect();
        let middle = |part: fn(&Summary) -> f64| {
            Summary::of(&of.iter().map(part).collect::<Vec<_>>()).map(|parts| parts.median)
        };
        Some(Summary {
            median: middle(|ns| ns.median)?,
            min: of.iter().map(|ns| ns.min).reduce(f64::min)?,
            p90: middle(|ns| ns.p90)?,
            count: of.iter().map(|ns| ns.count).sum(),
        })
    }))
}
