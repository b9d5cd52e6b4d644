//! Several runs of the same work as one report.
//!
//! - I1. What was counted or took time is added up; quantiles are those of all statements together.
//! - I2. The most at any moment is the most of any run.
//! - I3. What stands at the end of a run (usage, memory by kind, page caches, when a tenant became idle) is that of the last one.

use super::control::Events;
use super::error::RunError;
use super::house::Held;
use super::kills;
use super::report::{Half, Measured, TenantReport};
use super::shrinkers::Shrinker;
use super::statistics::{Io, Memory, Statistics};

impl Measured {
    /// Adds a `later` run of the same SPEC under the same regime.
    ///
    /// # Errors
    /// Its tenants are others.
    pub(crate) fn add(&mut self, later: Measured) -> Result<(), RunError> {
        let names = |half: &Half| half.tenants.iter().map(|tenant| tenant.name.clone()).collect::<Vec<_>>();
        let (before, now) = (names(&self.half), names(&later.half));
        if before != now {
            return Err(RunError::engine(
                "add up two runs of the same work",
                format!(
                    "the tenants were {} and then {}; leave the SPEC as it is until all have run",
                    before.join(", "),
                    now.join(", ")
                ),
            ));
        }
        for (sum, more) in self.latencies.iter_mut().zip(&later.latencies) {
            sum.add(more)?;
        }
        self.half.add(later.half);
        for (tenant, latencies) in self.half.tenants.iter_mut().zip(&self.latencies) {
            tenant.p50_us = latencies.quantile_us(0.50);
            tenant.p99_us = latencies.quantile_us(0.99);
        }
        Ok(())
    }
}

impl Half {
    fn add(&mut self, later: Half) {
        self.seconds += later.seconds;
        self.interrupted |= later.interrupted;
        self.guard = self.guard.into_iter().chain(later.guard).min();
        for (sum, more) in self.tenants.iter_mut().zip(later.tenants) {
            sum.add(more, self.seconds);
        }
        if let Some(kills) = &mut self.kills {
            later.kills.into_iter().flatten().for_each(|more| kills::add(kills, more));
        }
        self.all = self.all.then(later.all);
        self.events = both(self.events, later.events, Events::then);
        let seconds = self.seconds;
        self.pressure = both(self.pressure, later.pressure, |before, now| before.then(now, seconds));
        self.unattributed = both(self.unattributed, later.unattributed, Held::then);
        self.statistics = both(self.statistics, later.statistics, Statistics::then);
        self.percpu = later.percpu.or(self.percpu);
    }
}

impl TenantReport {
    /// Adds a `later` run; both together took so many `seconds`. `p50_us` and `p99_us` are not its business: they need every latency.
    fn add(&mut self, later: TenantReport, seconds: f64) {
        let charges = |tenant: &TenantReport| tenant.statistics.map_or(0, |all| all.memory.charges);
        self.hit_rate = mean([(self.hit_rate, charges(self)), (later.hit_rate, charges(&later))]);
        self.done += later.done;
        self.refused += later.refused;
        self.killed += later.killed;
        self.retried += later.retried;
        self.interrupted += later.interrupted;
        self.usage = later.usage;
        self.peak = self.peak.max(later.peak);
        self.max = later.max;
        self.events = both(self.events, later.events, Events::then);
        self.pressure = both(self.pressure, later.pressure, |before, now| before.then(now, seconds));
        self.throttled_us = both(self.throttled_us, later.throttled_us, u64::saturating_add);
        self.would_refuse = both(self.would_refuse, later.would_refuse, u64::saturating_add);
        self.database = later.database;
        self.first_refusal = self.first_refusal.take().or(later.first_refusal);
        self.statistics = both(self.statistics, later.statistics, Statistics::then);
        self.page_cache = later.page_cache;
        self.idle = later.idle;
        self.shrinkers = match (self.shrinkers.take(), later.shrinkers) {
            (Some(before), Some(now)) => Some(add_shrinkers(&before, now)),
            (before, now) => now.or(before),
        };
    }
}

/// Of what both runs know, `then`; else what one of them knows.
fn both<T>(before: Option<T>, now: Option<T>, then: impl FnOnce(T, T) -> T) -> Option<T> {
    match (before, now) {
        (Some(before), Some(now)) => Some(then(before, now)),
        (before, now) => now.or(before),
    }
}

/// The mean of shares by their weights; those that nobody knows do not count.
fn mean(shares: [(Option<f64>, u64); 2]) -> Option<f64> {
    let known = || shares.into_iter().filter_map(|(share, weight)| Some((share?, weight as f64)));
    let weight: f64 = known().map(|(_, weight)| weight).sum();
    match known().count() {
        0 => None,
        _ if weight == 0.0 => known().next().map(|(share, _)| share),
        _ => Some(known().map(|(share, of)| share * of).sum::<f64>() / weight),
    }
}

impl Held {
    /// Of a group whose hit rate is not known to any more than this, the later one's.
    fn then(self, later: Held) -> Held {
        Held { peak: self.peak.max(later.peak), hit_rate: later.hit_rate.or(self.hit_rate), ..later }
    }
}

impl Statistics {
    fn then(self, later: Statistics) -> Statistics {
        let (before, now) = (self.memory, later.memory);
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
                rbytes: self.io.rbytes + later.io.rbytes,
                wbytes: self.io.wbytes + later.io.wbytes,
                rios: self.io.rios + later.io.rios,
                wios: self.io.wios + later.io.wios,
            },
            scope_us: self.scope_us + later.scope_us,
        }
    }
}

/// A tenant's connections, and so its caches, are opened in the same order in each run.
fn add_shrinkers(before: &[Shrinker], now: Vec<Shrinker>) -> Vec<Shrinker> {
    let mut sum = now;
    for (sum, before) in sum.iter_mut().zip(before) {
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
    sum
}

#[cfg(test)]
mod tests {
    use super::{Measured, mean};
    use crate::run::latencies::Latencies;
    use crate::run::report::tests::{half, idle, kills, tenant};

    /// A run in which each of the two tenants' statements took `ns`.
    fn measured(refused: u64, ns: u64) -> Measured {
        let latencies = || {
            let mut latencies = Latencies::new().expect("a histogram");
            (0..100).for_each(|_| latencies.record(ns));
            latencies
        };
        Measured { half: half(refused), latencies: vec![latencies(), latencies()] }
    }

    #[test]
    fn counts_add_up_peaks_are_the_most_and_what_is_left_is_the_last_runs() {
        let (mut sum, mut later) = (measured(1, 1_000_000), measured(2, 3_000_000));
        later.half.interrupted = true;
        later.half.tenants[0].usage = Some(7);
        later.half.tenants[0].peak = Some(5);
        later.half.all.peak += 1;
        later.half.tenants[1].first_refusal = Some("later".to_owned());
        sum.half.guard = Some(100);
        later.half.guard = Some(90);
        let archive = || idle(tenant("archive", "dashboards", 1, 0), 30 << 20, 10 << 20);
        for (run, since) in [(&mut sum, 1.0), (&mut later, 2.0)] {
            run.half.tenants.push(archive());
            run.latencies.push(Latencies::new().expect("a histogram"));
            run.half.tenants[2].idle.as_mut().expect("it is idle").since_seconds = since;
        }
        sum.add(later).expect("the same tenants");
        let half = sum.half;
        assert_eq!((half.seconds, half.interrupted, half.guard), (40.0, true, Some(90)));
        let [lookups, runaway, archive] = &half.tenants[..] else { panic!("three: {half:?}") };
        assert_eq!((lookups.done, lookups.refused, lookups.interrupted), (2 * 1_234_567, 3, 2));
        assert_eq!((lookups.usage, lookups.peak, half.all.peak), (Some(7), Some(16 << 20), (32 << 20) + 1));
        let (p50, p99) = (lookups.p50_us.expect("some"), lookups.p99_us.expect("some"));
        assert!((999.0..1_001.0).contains(&p50) && (2_998.0..3_002.0).contains(&p99), "{p50} {p99}");
        assert_eq!(runaway.first_refusal.as_deref(), Some("/tenants/runaway is full"));
        assert_eq!((archive.idle.expect("it is idle").since_seconds, archive.p50_us), (2.0, None));
        let statistics = lookups.statistics.expect("there are some");
        assert_eq!((statistics.memory.file, statistics.memory.reclaimed), (14 << 20, 4 << 20));
        assert_eq!((statistics.io.rios, statistics.scope_us), (2 * 786_432, 39_000_000));
        let [cache] = &lookups.shrinkers.as_ref().expect("known")[..] else { panic!("one: {lookups:?}") };
        assert_eq!((cache.scans, cache.asked, cache.holds), (10, 6 << 20, Some(13 << 20)));
    }

    #[test]
    fn kills_of_the_same_for_the_same_add_up_and_shares_of_time_are_of_all_runs() {
        let (mut sum, mut later) = (measured(0, 1), measured(0, 1));
        sum.half.kills = Some(vec![kills("runaway", "etl", vec![5])]);
        later.half.kills =
            Some(vec![kills("runaway", "lookups", vec![7]), kills("runaway", "etl", vec![6, 1])]);
        later.half.tenants[1].killed = 3;
        for (half, retried) in [(&mut sum.half, 2), (&mut later.half, 5)] {
            half.tenants[1].retried = retried;
            half.tenants[1].would_refuse = Some(10 * retried);
        }
        sum.add(later).expect("the same tenants");
        let expected = vec![kills("runaway", "etl", vec![5, 6, 1]), kills("runaway", "lookups", vec![7])];
        assert_eq!(sum.half.kills, Some(expected));
        let runaway = &sum.half.tenants[1];
        assert_eq!((runaway.killed, runaway.throttled_us), (3, Some(3_000_000)));
        assert_eq!((runaway.retried, runaway.would_refuse), (7, Some(70)));
        let some = runaway.pressure.expect("known").some;
        assert_eq!((some.total_us, some.share), (80_000, 0.002));
        assert_eq!(runaway.events.expect("known").max, 240);
    }

    #[test]
    fn runs_of_other_tenants_are_no_runs_of_the_same_work() {
        let (mut sum, mut later) = (measured(0, 1), measured(0, 1));
        later.half.tenants[1].name = "etl".to_owned();
        let error = sum.add(later).expect_err("another tenant").to_string();
        assert!(error.contains("lookups, runaway") && error.contains("lookups, etl"), "{error}");
    }

    #[test]
    fn hit_rates_are_weighed_by_what_was_charged() {
        assert_eq!(mean([(Some(0.5), 300), (Some(1.0), 100)]), Some(0.625));
        assert_eq!(mean([(None, 300), (Some(1.0), 100)]), Some(1.0));
        assert_eq!(mean([(Some(0.5), 0), (None, 0)]), Some(0.5));
        assert_eq!(mean([(None, 1), (None, 1)]), None);
    }
}
