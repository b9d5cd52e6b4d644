//! The controller's cost for a thread that charges where there is room: the pair with only `max`, and with every other setting beside it.
//!
//! - I1. A variant is true to its name: at the end all settings are in force, the waiter for events still waits, and nothing has
//!   happened that any of them is about.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::harness::prelude::*;
use memgroup::{
    Config, EventSubscription, Events, Group, KillAnswer, KillRegistration, KillRequest, PeakReader,
    PressureLine, PressureWatch,
};

const DEPTH: usize = 3;
const PAGE: u64 = 4096;
/// Above all that is charged here with everything prepaid, and a limit nevertheless.
const HIGH_BYTES: u64 = 1 << 46;
const LOW_BYTES: u64 = 2 << 20;
const MIN_BYTES: u64 = 1 << 20;
const WEIGHT: u32 = 500;
/// Hierarchies of each variant: the place of a variant's lines in the caches is chance, which several hierarchies even out.
const HIERARCHIES: usize = 4;

/// The settings of one group beside `max`.
struct Settings {
    group: Group,
    peak: PeakReader,
    _pressure: PressureWatch,
    hook: KillRegistration,
    subscription: EventSubscription,
}

impl Settings {
    fn set(group: Group) -> Result<Settings> {
        let path = group.path();
        group.set_high(HIGH_BYTES).set_up(&path)?;
        group.set_low(LOW_BYTES).set_up(&path)?;
        group.set_min(MIN_BYTES).set_up(&path)?;
        group.set_weight(WEIGHT).set_up(&path)?;
        let mut peak = group.peak_reader();
        peak.reset();
        let trigger = "some 150000 1000000".parse().set_up(&path)?;
        let pressure = group.add_pressure_trigger(trigger);
        let hook = group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused).set_up(&path)?;
        let subscription = group.on_events(|_, _| ());
        Ok(Settings { group, peak, _pressure: pressure, hook, subscription })
    }

    /// All is in force still, and nothing has happened (I1).
    fn check(&self) -> Result<()> {
        let (group, path) = (&self.group, self.group.path());
        let set = (group.high(), group.low(), group.min(), group.weight());
        let right = (Some(HIGH_BYTES), LOW_BYTES, MIN_BYTES, WEIGHT);
        expect(format_args!("high, low, min and weight of {path}"), set, right)?;
        let (events, pressure) = (group.events(), group.pressure().some);
        let quiet = (Events::default(), PressureLine::default());
        expect(format_args!("events and pressure of {path}"), (events, pressure), quiet)?;
        let called = (self.subscription.report().calls, self.hook.is_set_aside());
        expect(format_args!("calls of {path}'s callback, kill hook set aside"), called, (0, false))?;
        ensure(self.peak.read() >= PAGE, || format!("the peak reader of {path} saw none of the charges"))
    }
}

/// Settings at every level, and a thread that waits for events of one group.
struct Everything {
    settings: Vec<Settings>,
    waited: Group,
    waiter: Option<JoinHandle<Option<Events>>>,
}

impl Everything {
    fn set(fixture: &Fixture) -> Result<Everything> {
        let settings: Result<_> = fixture.hierarchy.groups().into_iter().map(Settings::set).collect();
        let waited = fixture.leaves[0].clone();
        let (waiting, begun) = (waited.clone(), Arc::new(AtomicBool::new(false)));
        let begins = Arc::clone(&begun);
        let waiter = spawn("waits for events", move || {
            let seen = waiting.events();
            // ORDERING: Relaxed; it publishes nothing but itself.
            begins.store(true, Ordering::Relaxed);
            waiting.wait_events(&seen, None)
        })?;
        // ORDERING: Relaxed; as above.
        spin_until(|| begun.load(Ordering::Relaxed).then_some(()));
        Ok(Everything { settings: settings?, waited, waiter: Some(waiter) })
    }

    fn check(&self) -> Result<()> {
        self.settings.iter().try_for_each(Settings::check)?;
        let waits = self.waiter.as_ref().is_some_and(|waiter| !waiter.is_finished());
        ensure(waits, || format!("no thread waits for events of {} any more", self.waited.path()))
    }
}

impl Drop for Everything {
    fn drop(&mut self) {
        // The removal of its group ends the wait.
        if let Some(waiter) = self.waiter.take()
            && self.waited.remove().is_ok()
        {
            let _ = waiter.join();
        }
    }
}

/// Groups to charge; with everything set, or with `max` alone.
struct Pairs {
    everything: Option<Everything>,
    fixture: Fixture,
}

impl Pairs {
    fn build(lab: &Lab<'_>, everything: bool, stock: bool, leaves: usize) -> Result<Pairs> {
        let config = Config::with_slots(lab.slots);
        let config = if stock { config } else { config.stock_cap_bytes(0) };
        let fixture = Fixture::chain(config, DEPTH, leaves)?;
        let everything = everything.then(|| Everything::set(&fixture)).transpose()?;
        Ok(Pairs { everything, fixture })
    }

    fn make(&self, thread: usize, count: u64) -> Result<u64> {
        let group = &self.fixture.leaves[thread.min(self.fixture.leaves.len() - 1)];
        for _ in 0..count {
            drop(group.try_charge(PAGE).or_wrong("a charge far below the limit")?);
        }
        Ok(count)
    }

    fn check(&self, stock: bool) -> Result<()> {
        self.fixture.check_stock(stock, "the pair")?;
        self.everything.as_ref().map_or(Ok(()), Everything::check)?;
        self.fixture.check_empty()
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let threads = lab.args.threads();
    for stock in [true, false] {
        let title = if stock {
            format!("a charge and its uncharge, depth {DEPTH}, served by the stock: ns, median (min..p90)")
        } else {
            format!("the same without stock, each to the counters of all {DEPTH} levels")
        };
        let mut table = Table::new(title, ["threads", "max (control)", "everything set", "x"]);
        for crowd in Crowd::ALL.into_iter().filter(|&crowd| crowd == Crowd::One || threads > 1) {
            let (name, [control, all]) = (crowd.heading(threads), measure(lab, crowd, stock)?);
            let params = json!({"crowd": name, "stock": stock, "depth": DEPTH});
            let cells = [("max (control)", control), ("everything", all)]
                .map(|(variant, ns)| lab.record(variant, params.clone()).time("pair", ns));
            let times = ratio(median(all), median(control));
            table.row(&name, cells.into_iter().chain([figure_or_dash(times)]));
            if stock {
                let goal = format!("a pair, everything set over max alone, {name}");
                lab.at_most(goal, times, super::PAIR_MOST, "x");
            }
        }
        table.note(if stock {
            format!("everything: high, low, min, a weight, a pressure trigger, a peak reader that was reset, a subscription to events and a kill hook at each level, and a thread that waits for events. Medians of {HIERARCHIES} hierarchies each")
        } else {
            "no goal: usage is below min and low here, so each charge and uncharge updates the protected usage at every level: the most expensive case".to_owned()
        });
        lab.print(&table)?;
    }
    Ok(())
}

/// The control and everything, interleaved, in several hierarchies each.
fn measure(lab: &mut Lab<'_>, crowd: Crowd, stock: bool) -> Result<[Option<Summary>; 2]> {
    let threads = crowd.threads(lab.args.threads());
    let leaves = if crowd == Crowd::GroupEach { threads } else { 1 };
    let build = |number| Pairs::build(lab, number % 2 == 1, stock, leaves);
    let built = (0..2 * HIERARCHIES).map(build).collect::<Result<Vec<_>>>()?;
    let works: Vec<_> =
        built.iter().map(|pairs| |thread, _: &mut usize, count| pairs.make(thread, count)).collect();
    let variants: Vec<Variant<'_>> = works.iter().map(|work| Variant::of(work, threads)).collect();
    let measured = lab.interleave(&variants)?;
    built.iter().try_for_each(|pairs| pairs.check(stock))?;
    Ok([0, 1].map(|variant| {
        let of = || measured.iter().skip(variant).step_by(2).filter_map(|one| one.ns);
        let (median, p90) = (median_of(of().map(|ns| ns.median))?, median_of(of().map(|ns| ns.p90))?);
        let min = of().map(|ns| ns.min).reduce(f64::min)?;
        Some(Summary { median, min, p90, count: of().map(|ns| ns.count).sum() })
    }))
}
