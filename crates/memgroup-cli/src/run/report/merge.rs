//! Merge: several runs of the same work as one report.
//!
//! - I1. Counts and times are added. Quantiles are those of all statements together.
//! - I2. A peak is the highest of all runs.
//! - I3. The state at the end of a run (usage, memory by kind, page caches, idle tenants) is that of the last run.

use super::{RegimeReport, TenantReport, Turn};
use crate::run::measure::{Held, Share, both, kills};

impl Turn {
    /// Adds a `later` turn of the same SPEC in the same regime.
    pub(crate) fn add(&mut self, later: Turn) {
        self.report.add(later.report);
        let tenants = self.report.tenants.iter_mut().zip(&mut self.latencies);
        for ((tenant, latencies), more) in tenants.zip(&later.latencies) {
            latencies.add(more);
            tenant.p50_us = latencies.quantile_us(0.50);
            tenant.p99_us = latencies.quantile_us(0.99);
        }
    }
}

impl RegimeReport {
    fn add(&mut self, later: RegimeReport) {
        let before = std::mem::replace(self, later);
        self.seconds += before.seconds;
        self.interrupted |= before.interrupted;
        self.guard = both(self.guard, before.guard, u64::min);
        for (sum, before) in self.tenants.iter_mut().zip(before.tenants) {
            sum.add(before, self.seconds);
        }
        self.kills = both(before.kills, self.kills.take(), |mut sums, later| {
            later.into_iter().for_each(|more| kills::add(&mut sums, more));
            sums
        });
        self.all = before.all.add(self.all);
        self.unattributed = both(before.unattributed, self.unattributed, Held::add);
        self.figures = before.figures.add(std::mem::take(&mut self.figures), self.seconds);
    }
}

impl TenantReport {
    /// Adds the run `before`; both together took that many `seconds`. The caller sets the quantiles.
    fn add(&mut self, before: TenantReport, seconds: f64) {
        let rate = |tenant: &TenantReport| (tenant.held.hit_rate, tenant.figures.memory("charges"));
        let hit_rate = mean([rate(&before), rate(self)]);
        self.held = Held { hit_rate, ..before.held.add(self.held) };
        self.done += before.done;
        self.refused += before.refused;
        self.killed += before.killed;
        self.retried += before.retried;
        self.interrupted += before.interrupted;
        self.throttled_us = both(before.throttled_us, self.throttled_us, u64::saturating_add);
        self.would_refuse = both(before.would_refuse, self.would_refuse, u64::saturating_add);
        self.first_refusal = before.first_refusal.or(self.first_refusal.take());
        self.figures = before.figures.add(std::mem::take(&mut self.figures), seconds);
        self.share = both(before.share, self.share.take(), Share::add);
        let caches = self.shrinkers.iter_mut().flatten().zip(before.shrinkers.into_iter().flatten());
        caches.for_each(|(cache, before)| cache.add(before));
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::{RegimeReport, Turn, mean};
    use crate::run::measure::latencies::Latencies;
    use crate::run::measure::statistics::KINDS;
    use crate::run::report::tests::{idle, kills, report, tenant};
    use crate::run::spec::Kind;

    /// A turn in which every statement of the two tenants took `ns`.
    fn turn(refused: u64, ns: u64) -> Turn {
        let latencies = || {
            let mut latencies = Latencies::default();
            (0..100).for_each(|_| latencies.record(ns));
            latencies
        };
        Turn { report: report(refused), latencies: vec![latencies(), latencies()] }
    }

    #[test]
    fn adds_counts_keeps_peaks_and_takes_the_last_state() {
        let (mut sum, mut later) = (turn(1, 1_000_000), turn(2, 3_000_000));
        later.report.interrupted = true;
        later.report.tenants[0].held.usage = Some(7);
        later.report.tenants[0].held.peak = Some(5);
        later.report.all.peak = later.report.all.peak.map(|peak| peak + 1);
        later.report.tenants[1].first_refusal = Some("later".to_owned());
        sum.report.guard = Some(100);
        later.report.guard = Some(90);
        let archive = || idle(tenant("archive", Kind::Dashboards, 1, 0), 30 << 20, 10 << 20);
        for (run, since) in [(&mut sum, 1.0), (&mut later, 2.0)] {
            run.report.tenants.push(archive());
            run.latencies.push(Latencies::default());
            run.report.tenants[2].idle.as_mut().expect("an idle tenant").since_seconds = since;
        }
        sum.add(later);
        let report = sum.report;
        assert_eq!((report.seconds, report.interrupted, report.guard), (40.0, true, Some(90)));
        let [lookups, runaway, archive] = &report.tenants[..] else { panic!("three: {report:?}") };
        assert_eq!((lookups.done, lookups.refused, lookups.interrupted), (2 * 1_234_567, 3, 2));
        assert_eq!(
            (lookups.held.usage, lookups.held.peak, report.all.peak),
            (Some(7), Some(16 << 20), Some((32 << 20) + 1))
        );
        let (p50, p99) = (lookups.p50_us.expect("some"), lookups.p99_us.expect("some"));
        assert!((999.0..1_001.0).contains(&p50) && (2_998.0..3_002.0).contains(&p99), "{p50} {p99}");
        assert_eq!(runaway.first_refusal.as_deref(), Some("/tenants/runaway is full"));
        assert_eq!((archive.idle.expect("an idle tenant").since_seconds, archive.p50_us), (2.0, None));
        let memory = ["file", "reclaimed"].map(|key| lookups.figures.memory(key));
        assert_eq!(memory, [14 << 20, 4 << 20]);
        assert_eq!((lookups.figures.io("rios"), lookups.figures.memory("throttles")), (2 * 786_432, 6));
        let [cache] = &lookups.shrinkers.as_ref().expect("known")[..] else { panic!("one: {lookups:?}") };
        assert_eq!(["scans", "asked", "last_freed"].map(|key| cache.counts.get(key)), [10, 6 << 20, 4_096]);
        assert_eq!(cache.holds, Some(13 << 20));
    }

    /// Calls `act` with each number below `value`, and with the names that lead to it.
    fn each_number(value: &mut Value, path: &str, act: &mut impl FnMut(&str, &mut Value)) {
        match value {
            Value::Number(_) => act(path, value),
            Value::Array(items) => {
                (0..).zip(items).for_each(|(at, item)| each_number(item, &format!("{path}/{at}"), act));
            }
            Value::Object(fields) => {
                fields.iter_mut().for_each(|(key, field)| each_number(field, &format!("{path}/{key}"), act));
            }
            Value::Null | Value::Bool(_) | Value::String(_) => {}
        }
    }

    /// A turn with all figures but quantiles. No two numbers of it are equal, and the least is `first`.
    fn numbered(first: u64) -> Turn {
        let mut all = RegimeReport {
            guard: Some(0),
            kills: Some(vec![kills("runaway", "lookups", Vec::new())]),
            ..report(1)
        };
        all.tenants.push(idle(tenant("archive", Kind::Dashboards, 1, 0), 30 << 20, 10 << 20));
        all.tenants.iter_mut().for_each(|tenant| (tenant.p50_us, tenant.p99_us) = (None, None));
        let (mut json, mut next) = (serde_json::to_value(all).expect("JSON"), first..);
        each_number(&mut json, "", &mut |_, number| *number = next.next().into());
        let latencies = vec![Latencies::default(); 3];
        Turn { report: serde_json::from_value(json).expect("readable JSON"), latencies }
    }

    fn numbers(report: &RegimeReport) -> BTreeMap<String, f64> {
        let (mut json, mut found) = (serde_json::to_value(report).expect("JSON"), BTreeMap::new());
        each_number(&mut json, "", &mut |path, number| {
            found.insert(path.to_owned(), number.as_f64().expect("a number"));
        });
        found
    }

    #[test]
    fn merges_each_number_by_its_name() {
        const ENDS: [&str; 14] = [
            "avg10",
            "avg300",
            "avg60",
            "database",
            "holds",
            "last_freed",
            "live",
            "max",
            "page_cache",
            "populated",
            "seed",
            "slots",
            "threads",
            "usage",
        ];
        for (first, second) in [(10_000, 1_000), (1_000, 10_000)] {
            let (mut sum, mut more) = (numbered(first), numbered(second));
            let [earlier, later] = [&sum.report, &more.report].map(numbers);
            (sum.report.interrupted, more.report.interrupted) = (first > second, first < second);
            sum.add(more);
            assert!(sum.report.interrupted, "one of the turns is");
            let found = numbers(&sum.report);
            assert!(later.len() > 200, "{} numbers", later.len());
            for (path, &last) in &later {
                let (parent, key) = path.rsplit_once('/').expect("a name");
                let beside = |numbers: &BTreeMap<String, f64>, key: &str| numbers[&format!("{parent}/{key}")];
                let before = earlier[path];
                let is_end = ENDS.contains(&key) && !parent.ends_with("/events")
                    || KINDS.contains(&key)
                    || parent.ends_with("/idle");
                let expected = match key {
                    "guard" => last.min(before),
                    "peak" => last.max(before),
                    "share" => beside(&found, "total_us") / 1e6 / found["/seconds"],
                    "hit_rate" => {
                        let weight = |numbers| beside(numbers, "statistics/memory/charges");
                        let both = weight(&earlier) + weight(&later);
                        (before * weight(&earlier) + last * weight(&later)) / both
                    }
                    _ if is_end => last,
                    _ => last + before,
                };
                assert!(
                    (found[path] - expected).abs() < 1e-6,
                    "{path}: {before} and {last} are {}",
                    found[path]
                );
            }
        }
    }

    #[test]
    fn keeps_the_last_reason_of_a_quarantine() {
        for (earlier, later, expected) in
            [(None, Some("b"), "b"), (Some("a"), None, "a"), (Some("a"), Some("b"), "b")]
        {
            let of = |why: Option<&str>| {
                let mut turn = turn(0, 1);
                turn.report.tenants[0].shrinkers.as_mut().expect("known")[0].quarantine =
                    why.map(str::to_owned);
                turn
            };
            let mut sum = of(earlier);
            sum.add(of(later));
            let caches = sum.report.tenants[0].shrinkers.as_ref().expect("known");
            assert_eq!(caches[0].quarantine.as_deref(), Some(expected));
        }
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
        sum.add(later);
        let expected = vec![kills("runaway", "etl", vec![5, 6, 1]), kills("runaway", "lookups", vec![7])];
        assert_eq!(sum.report.kills, Some(expected));
        let runaway = &sum.report.tenants[1];
        assert_eq!((runaway.killed, runaway.throttled_us), (3, Some(3_000_000)));
        assert_eq!((runaway.retried, runaway.would_refuse), (7, Some(70)));
        let some = runaway.figures.pressure.expect("known").some;
        assert_eq!((some.total_us, some.share), (80_000, 0.002));
        assert_eq!(runaway.figures.event("max"), 240);
    }

    #[test]
    fn weighs_hit_rates_by_charges() {
        assert_eq!(mean([(Some(0.5), 300), (Some(1.0), 100)]), Some(0.625));
        assert_eq!(mean([(None, 300), (Some(1.0), 100)]), Some(1.0));
        assert_eq!(mean([(Some(0.5), 0), (None, 0)]), Some(0.5));
        assert_eq!(mean([(None, 1), (None, 1)]), None);
    }
}
