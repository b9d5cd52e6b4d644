//! Merge: several runs of the same work as one report.
//!
//! - I1. Counts and times are added. Quantiles are those of all statements together.
//! - I2. A peak is the highest of all runs.
//! - I3. The state at the end of a run (usage, memory by kind, page caches, idle tenants) is that of the last run.

use super::{RegimeReport, TenantReport, Turn};
use crate::run::base::error::RunError;
use crate::run::measure::Held;
use crate::run::measure::control::Events;
use crate::run::measure::kills;
use crate::run::measure::shrinkers::Shrinker;
use crate::run::measure::statistics::{Io, Memory, Statistics};

impl Turn {
    /// Adds a `later` turn of the same SPEC in the same regime.
    pub(crate) fn add(&mut self, later: Turn) -> Result<(), RunError> {
        for (sum, more) in self.latencies.iter_mut().zip(&later.latencies) {
            sum.add(more)?;
        }
        self.report.add(later.report);
        for (tenant, latencies) in self.report.tenants.iter_mut().zip(&self.latencies) {
            tenant.p50_us = latencies.quantile_us(0.50);
            tenant.p99_us = latencies.quantile_us(0.99);
        }
        Ok(())
    }
}

impl RegimeReport {
    fn add(&mut self, later: RegimeReport) {
        self.seconds += later.seconds;
        self.interrupted |= later.interrupted;
        self.guard = self.guard.into_iter().chain(later.guard).min();
        for (sum, more) in self.tenants.iter_mut().zip(later.tenants) {
            sum.add(more, self.seconds);
        }
        if let Some(kills) = &mut self.kills {
            later.kills.into_iter().flatten().for_each(|more| kills::add(kills, more));
        }
        let seconds = self.seconds;
        self.all = add_held(self.all, later.all);
        self.events = both(self.events.take(), later.events, Events::add);
        self.pressure = both(self.pressure, later.pressure, |before, now| before.add(now, seconds));
        self.unattributed = both(self.unattributed, later.unattributed, add_held);
        self.statistics = both(self.statistics, later.statistics, add_statistics);
        self.percpu = later.percpu;
    }
}

impl TenantReport {
    /// Adds a `later` run; both together took that many `seconds`. The caller sets the quantiles.
    fn add(&mut self, later: TenantReport, seconds: f64) {
        let charges = |tenant: &TenantReport| tenant.statistics.map_or(0, |all| all.memory.charges);
        let before = std::mem::replace(self, later);
        self.hit_rate = mean([(before.hit_rate, charges(&before)), (self.hit_rate, charges(self))]);
        self.done += before.done;
        self.refused += before.refused;
        self.killed += before.killed;
        self.retried += before.retried;
        self.interrupted += before.interrupted;
        self.peak = self.peak.max(before.peak);
        self.events = both(before.events, self.events.take(), Events::add);
        self.pressure = both(before.pressure, self.pressure, |before, now| before.add(now, seconds));
        self.throttled_us = both(before.throttled_us, self.throttled_us, u64::saturating_add);
        self.would_refuse = both(before.would_refuse, self.would_refuse, u64::saturating_add);
        self.first_refusal = before.first_refusal.or(self.first_refusal.take());
        self.statistics = both(before.statistics, self.statistics, add_statistics);
        for (sum, before) in self.shrinkers.iter_mut().flatten().zip(before.shrinkers.iter().flatten()) {
            add_shrinker(sum, before);
        }
    }
}

/// Adds two values. Turns of one regime either both have a value or both have none.
fn both<T>(before: Option<T>, now: Option<T>, add: impl FnOnce(T, T) -> T) -> Option<T> {
    before.zip(now).map(|(before, now)| add(before, now))
}

/// Mean of the known shares by their weights.
fn mean(shares: [(Option<f64>, u64); 2]) -> Option<f64> {
    let known = || shares.into_iter().filter_map(|(share, weight)| Some((share?, weight as f64)));
    let weight: f64 = known().map(|(_, weight)| weight).sum();
    match known().next() {
        Some(_) if weight > 0.0 => Some(known().map(|(share, of)| share * of).sum::<f64>() / weight),
        first => first.map(|(share, _)| share),
    }
}

fn add_held(before: Held, later: Held) -> Held {
    Held { peak: before.peak.max(later.peak), hit_rate: later.hit_rate.or(before.hit_rate), ..later }
}

fn add_statistics(all: Statistics, later: Statistics) -> Statistics {
    let (before, now) = (all.memory, later.memory);
    Statistics {
        memory: Memory {
            charges: before.charges + now.charges,
            stock_misses: before.stock_misses + now.stock_misses,
            reclaims: before.reclaims + now.reclaims,
            reclaimed: before.reclaimed + now.reclaimed,
            gained: before.gained + now.gained,
            throttles: before.throttles + now.throttles,
            throttled_us: before.throttled_us + now.throttled_us,
            ..now
        },
        io: Io {
            rbytes: all.io.rbytes + later.io.rbytes,
            wbytes: all.io.wbytes + later.io.wbytes,
            rios: all.io.rios + later.io.rios,
            wios: all.io.wios + later.io.wios,
        },
        scope_us: all.scope_us + later.scope_us,
    }
}

/// Each run opens a tenant's connections, and so its caches, in the same order.
fn add_shrinker(sum: &mut Shrinker, before: &Shrinker) {
    sum.scans += before.scans;
    sum.asked += before.asked;
    sum.claimed += before.claimed;
    sum.freed += before.freed;
    sum.time_ns += before.time_ns;
    sum.stopped += before.stopped;
    sum.panics += before.panics;
    sum.overruns += before.overruns;
    sum.quarantine = sum.quarantine.take().or_else(|| before.quarantine.clone());
}

#[cfg(test)]
mod tests {
    use super::{Turn, mean};
    use crate::run::measure::latencies::Latencies;
    use crate::run::report::tests::{idle, kills, report, tenant};

    /// A turn in which every statement of the two tenants took `ns`.
    fn turn(refused: u64, ns: u64) -> Turn {
        let latencies = || {
            let mut latencies = Latencies::new().expect("a histogram");
            (0..100).for_each(|_| latencies.record(ns));
            latencies
        };
        Turn { report: report(refused), latencies: vec![latencies(), latencies()] }
    }

    #[test]
    fn adds_counts_keeps_peaks_and_takes_the_last_state() {
        let (mut sum, mut later) = (turn(1, 1_000_000), turn(2, 3_000_000));
        later.report.interrupted = true;
        later.report.tenants[0].usage = Some(7);
        later.report.tenants[0].peak = Some(5);
        later.report.all.peak += 1;
        later.report.tenants[1].first_refusal = Some("later".to_owned());
        sum.report.guard = Some(100);
        later.report.guard = Some(90);
        let archive = || idle(tenant("archive", "dashboards", 1, 0), 30 << 20, 10 << 20);
        for (run, since) in [(&mut sum, 1.0), (&mut later, 2.0)] {
            run.report.tenants.push(archive());
            run.latencies.push(Latencies::new().expect("a histogram"));
            run.report.tenants[2].idle.as_mut().expect("an idle tenant").since_seconds = since;
        }
        sum.add(later).expect("the same tenants");
        let report = sum.report;
        assert_eq!((report.seconds, report.interrupted, report.guard), (40.0, true, Some(90)));
        let [lookups, runaway, archive] = &report.tenants[..] else { panic!("three: {report:?}") };
        assert_eq!((lookups.done, lookups.refused, lookups.interrupted), (2 * 1_234_567, 3, 2));
        assert_eq!((lookups.usage, lookups.peak, report.all.peak), (Some(7), Some(16 << 20), (32 << 20) + 1));
        let (p50, p99) = (lookups.p50_us.expect("some"), lookups.p99_us.expect("some"));
        assert!((999.0..1_001.0).contains(&p50) && (2_998.0..3_002.0).contains(&p99), "{p50} {p99}");
        assert_eq!(runaway.first_refusal.as_deref(), Some("/tenants/runaway is full"));
        assert_eq!((archive.idle.expect("an idle tenant").since_seconds, archive.p50_us), (2.0, None));
        let statistics = lookups.statistics.expect("there are some");
        assert_eq!((statistics.memory.file, statistics.memory.reclaimed), (14 << 20, 4 << 20));
        assert_eq!((statistics.io.rios, statistics.scope_us), (2 * 786_432, 39_000_000));
        let [cache] = &lookups.shrinkers.as_ref().expect("known")[..] else { panic!("one: {lookups:?}") };
        assert_eq!((cache.scans, cache.asked, cache.holds), (10, 6 << 20, Some(13 << 20)));
    }

    #[test]
    fn adds_kills_by_name_and_shares_by_total_time() {
        let (mut sum, mut later) = (turn(0, 1), turn(0, 1));
        sum.report.kills = Some(vec![kills("runaway", "etl", vec![5])]);
        later.report.kills =
            Some(vec![kills("runaway", "lookups", vec![7]), kills("runaway", "etl", vec![6, 1])]);
        later.report.tenants[1].killed = 3;
        for (report, retried) in [(&mut sum.report, 2), (&mut later.report, 5)] {
            report.tenants[1].retried = retried;
            report.tenants[1].would_refuse = Some(10 * retried);
        }
        sum.add(later).expect("the same tenants");
        let expected = vec![kills("runaway", "etl", vec![5, 6, 1]), kills("runaway", "lookups", vec![7])];
        assert_eq!(sum.report.kills, Some(expected));
        let runaway = &sum.report.tenants[1];
        assert_eq!((runaway.killed, runaway.throttled_us), (3, Some(3_000_000)));
        assert_eq!((runaway.retried, runaway.would_refuse), (7, Some(70)));
        let some = runaway.pressure.expect("known").some;
        assert_eq!((some.total_us, some.share), (80_000, 0.002));
        assert_eq!(runaway.events.as_ref().expect("known").get("max"), 240);
    }

    #[test]
    fn weighs_hit_rates_by_charges() {
        assert_eq!(mean([(Some(0.5), 300), (Some(1.0), 100)]), Some(0.625));
        assert_eq!(mean([(None, 300), (Some(1.0), 100)]), Some(1.0));
        assert_eq!(mean([(Some(0.5), 0), (None, 0)]), Some(0.5));
        assert_eq!(mean([(None, 1), (None, 1)]), None);
    }
}
