//! Sentences: the result of a run in words, the most important first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::run::backend::Regime;
use crate::run::base::units;
use crate::run::measure::kills::Kills;
use crate::run::measure::{Held, Idle, PerCpu};
use crate::run::report::{RegimeReport, TenantReport};

/// Columns of a sentence.
pub(super) const WIDTH: usize = 100;
/// Sentences of a report without details.
pub(super) const SENTENCES_MAX: usize = 5;

/// The whole text of SQLite's own refusal. It adds nothing to the report.
const PLAIN_REFUSAL: &str = "out of memory";

/// The tenants with failed statements; shorter in a comparison, with its `regime`. The caller adds the full stop.
pub(super) fn outcome(regime: Option<Regime>, report: &RegimeReport) -> String {
    begin(regime, &outcome_of(("statement", "statements"), regime.is_some(), report))
}

/// The same about one and several units of work, as the end of a sentence; shorter in a comparison.
pub(super) fn outcome_of((one, many): (&str, &str), is_comparison: bool, report: &RegimeReport) -> String {
    let failed = if is_comparison { "failed" } else { "failed for lack of memory" };
    let with_failures = |greedy: bool| -> Vec<&TenantReport> {
        let tenants = report.tenants.iter();
        tenants.filter(|tenant| tenant.failed() > 0 && tenant.is_greedy() == greedy).collect()
    };
    let greedy = list(with_failures(true), |tenant| {
        if is_comparison {
            return format!("`{}`", tenant.name);
        }
        let counts =
            [(tenant.refused, "refused"), (tenant.killed, "stopped"), (tenant.lost.unwrap_or(0), "lost")];
        let counts = counts.into_iter().filter(|&(count, _)| count > 0);
        let counts: Vec<_> = counts.map(|(count, verb)| format!("{} {verb}", units::count(count))).collect();
        format!("`{}` ({})", tenant.name, counts.join(", "))
    });
    let others = list(with_failures(false), |tenant| {
        let all = tenant.done + tenant.failed();
        format!("`{}` ({} of {})", tenant.name, units::count(tenant.failed()), units::count(all))
    });
    match (greedy.is_empty(), others.is_empty()) {
        (true, true) => format!("no {one} {failed}"),
        (false, true) => format!("only {many} of {greedy} {failed}"),
        (true, false) => format!("{many} of {others} {failed}"),
        (false, false) => format!("{many} of {greedy} {failed}, and also of {others}"),
    }
}

/// Sentences about memgroup's own run, besides the outcome.
pub(super) fn of_run(report: &RegimeReport) -> Vec<String> {
    let sentences = never_began(None, report).into_iter().chain(shares(report));
    let sentences = sentences.chain(stopped(report)).chain(not_enforced(report));
    sentences.chain(idle(None, report)).chain(reclaimed(report)).collect()
}

/// Sentences that compare regimes.
pub(super) fn of_comparison(regimes: &[(Regime, &RegimeReport)]) -> Vec<String> {
    let outcome = |&(regime, report): &(Regime, &RegimeReport)| {
        let outcome = outcome(Some(regime), report);
        let Some(guard) = report.guard else { return outcome + "." };
        let was_reached = report.sum(|_| true, TenantReport::failed) > 0;
        let reached = if was_reached { "reached" } else { "not reached" };
        format!("{outcome}; the guard of {} was {reached}.", units::bytes(guard))
    };
    let mut sentences: Vec<String> = regimes.iter().map(outcome).collect();
    sentences.extend(slower(regimes));
    for &(regime, report) in regimes.iter().skip(1) {
        sentences.extend(never_began(Some(regime), report));
        sentences.extend(idle(Some(regime), report));
    }
    sentences
}

/// Sentences that are only part of the details.
pub(super) fn details(regimes: &[(Regime, &RegimeReport)]) -> Vec<String> {
    let mut sentences = Vec::new();
    for (regime, report) in regimes {
        let place = if regimes.len() > 1 { format!(" {}", regime.title()) } else { String::new() };
        for tenant in &report.tenants {
            let refusal = tenant.first_refusal.as_deref().filter(|&text| text != PLAIN_REFUSAL);
            sentences.extend(
                refusal.map(|refusal| format!("First refusal of `{}`{place}: {refusal}", tenant.name)),
            );
        }
    }
    let own = regimes[0].1;
    if let Some(Held { usage: Some(usage), peak: Some(peak), .. }) = own.unattributed {
        sentences.push(format!("Memory that belongs to no tenant: {usage} bytes, at most {peak}."));
    }
    if let Some(PerCpu { populated, live, slots }) = own.percpu {
        let populated = units::bytes(populated);
        sentences.push(format!(
            "Per-CPU memory of the groups: {live} bytes in use on {slots} CPU slots, {populated} backed by the system."
        ));
    }
    sentences
}

/// The tenants that had no turn, because the tenant before them worked to the end.
fn never_began(regime: Option<Regime>, report: &RegimeReport) -> Option<String> {
    let has_begun = |tenant: &&TenantReport| tenant.done + tenant.failed() + tenant.interrupted > 0;
    let tenants: Vec<_> = report.tenants.iter().filter(|tenant| !has_begun(tenant)).collect();
    let names = list(tenants, |tenant| format!("`{}`", tenant.name));
    let text = format!("no statement of {names} began before the run ended");
    (!names.is_empty()).then(|| begin(regime, &text) + ".")
}

/// The least even share.
fn shares(report: &RegimeReport) -> Option<String> {
    let even = report.tenants.iter().filter_map(|tenant| Some(tenant.share.as_ref()?.even)).min()?;
    let (even, all) = (units::bytes(even), units::limit(report.all.max));
    Some(format!("The even share of each tenant in the {all} was {even} or more at the end."))
}

/// One sentence for each stopped tenant: for which others, and the time until its memory was free.
fn stopped(report: &RegimeReport) -> Vec<String> {
    let mut victims: BTreeMap<&str, Vec<&Kills>> = BTreeMap::new();
    for kills in report.kills.iter().flatten().filter(|kills| kills.stopped() > 0) {
        victims.entry(&kills.victim).or_default().push(kills);
    }
    let times = |count| if count == 1 { "once".to_owned() } else { format!("{} times", units::count(count)) };
    let sentence = |(victim, kills): (&str, Vec<&Kills>)| {
        let mut requesters: BTreeMap<&str, u64> = BTreeMap::new();
        kills.iter().for_each(|kills| *requesters.entry(&kills.requester).or_default() += kills.stopped());
        let all = times(requesters.values().sum());
        let mut requesters: Vec<(&str, u64)> = requesters.into_iter().collect();
        requesters.sort_by_key(|&(_, count)| Reverse(count));
        let requesters = list(requesters, |(name, count)| format!("`{name}` ({})", units::count(count)));
        let mut took: Vec<u64> = kills.iter().flat_map(|kills| &kills.took_us).copied().collect();
        took.sort_unstable();
        let [median, most] = [took.get(took.len() / 2), took.last()]
            .map(|us| us.map_or_else(String::new, |&us| units::duration_us(us as f64)));
        let free = match took.len() {
            0 => String::new(),
            1 => format!("; half of its memory was free after {most}"),
            _ => format!("; half of its memory was free after {median} (median), {most} at most"),
        };
        let overdue = match kills.iter().map(|kills| kills.counts.get("overdue")).sum() {
            0 => String::new(),
            count => format!("; {} it was too slow", times(count)),
        };
        format!("`{victim}` was stopped {all} to free memory for {requesters}{free}{overdue}.")
    };
    victims.into_iter().map(sentence).collect()
}

/// One sentence for each limit that is not enforced, with the charges that it would have refused.
fn not_enforced(report: &RegimeReport) -> Vec<String> {
    let would = report.tenants.iter().filter_map(|tenant| Some((&tenant.name, tenant.would_refuse?)));
    let sentence = |(name, count): (&String, u64)| {
        let charges =
            if count == 1 { "1 charge".to_owned() } else { format!("{} charges", units::count(count)) };
        format!("The limit of `{name}` is not enforced: it would have refused {charges}.")
    };
    would.filter(|&(_, count)| count > 0).map(sentence).collect()
}

/// One sentence for each idle tenant: the part of its page cache that was reclaimed, or was kept where no cache is reclaimed.
fn idle(regime: Option<Regime>, report: &RegimeReport) -> Vec<String> {
    let idle = report.tenants.iter().filter_map(|tenant| Some((tenant, tenant.idle?)));
    let sentence = |(tenant, idle): (&TenantReport, Idle)| {
        let since = format!("`{}`, idle since second {:.1}", tenant.name, idle.since_seconds);
        let (then, now) = (units::bytes(idle.page_cache), units::bytes(tenant.page_cache));
        let text = match (idle.reclaimed, report.reclaim) {
            (Some(bytes), Some(true)) if bytes > 0 => format!(
                "from {since}, {} were reclaimed for other tenants (page cache: {then} then, {now} at the end)",
                units::bytes(bytes)
            ),
            (_, Some(true)) => return None,
            _ => format!("{since}, kept {now} of {then} in its page cache"),
        };
        Some(begin(regime, &text) + ".")
    };
    idle.filter_map(sentence).collect()
}

/// The tenants for which caches were reclaimed, the largest sum first.
fn reclaimed(report: &RegimeReport) -> Option<String> {
    let gained = |tenant: &TenantReport| tenant.figures.memory("gained");
    let mut gainers: Vec<_> = report.tenants.iter().filter(|tenant| gained(tenant) > 0).collect();
    gainers.sort_by_key(|tenant| Reverse(gained(tenant)));
    let each = list(gainers, |tenant| format!("`{}` ({})", tenant.name, units::bytes(gained(tenant))));
    (!each.is_empty()).then(|| {
        format!("Page cache freed to make room for a tenant, its own included, each time counted: {each}.")
    })
}

/// The p99 of protected tenants, compared with the run without limits.
fn slower(regimes: &[(Regime, &RegimeReport)]) -> Option<String> {
    let [(Regime::Groups, own), (Regime::Unlimited, free), ..] = regimes else { return None };
    let ratio = |(limited, free): (&TenantReport, &TenantReport)| {
        let (with, without) = (limited.p99_us?, free.p99_us.filter(|&us| us > 0.0)?);
        limited.protected.then(|| format!("{:.2} times (`{}`)", with / without, limited.name))
    };
    let ratios = list(own.tenants.iter().zip(&free.tenants).filter_map(ratio).collect(), |ratio| ratio);
    (!ratios.is_empty()).then(|| format!("With memgroup, the p99 is {ratios} that without limits."))
}

/// `regime` and `text` as the beginning of a sentence.
fn begin(regime: Option<Regime>, text: &str) -> String {
    let mut sentence = regime.map_or_else(|| text.to_owned(), |regime| format!("{}, {text}", regime.title()));
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    sentence
}

/// "a, b and c".
fn list<T>(items: Vec<T>, show: impl Fn(T) -> String) -> String {
    let mut items: Vec<String> = items.into_iter().map(show).collect();
    match items.pop() {
        Some(last) if !items.is_empty() => format!("{} and {last}", items.join(", ")),
        only => only.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::{idle, never_began, not_enforced, outcome, reclaimed, stopped};
    use crate::run::backend::Regime;
    use crate::run::measure::kills::Kills;
    use crate::run::report::RegimeReport;
    use crate::run::report::tests::{self, kills, report, tenant};
    use crate::run::spec::Kind;

    /// A report in which `archive` was idle and lost `reclaimed` of its 30M.
    fn with_archive(reclaimed: u64) -> RegimeReport {
        let mut report = report(0);
        report.tenants.push(tests::idle(tenant("archive", Kind::Dashboards, 10, 0), 30 << 20, reclaimed));
        report
    }

    #[test]
    fn names_an_idle_tenant_with_a_reclaimed_cache() {
        let expected = "From `archive`, idle since second 5.0, 10.0M were reclaimed for other tenants (page cache: 30.0M \
                        then, 20.0M at the end).";
        assert_eq!(idle(None, &with_archive(10 << 20)), [expected]);
    }

    #[test]
    fn says_nothing_about_reclaim_without_any() {
        assert_eq!(idle(None, &with_archive(0)), [""; 0]);
        let mut report = report(0);
        assert_eq!(idle(None, &report), [""; 0], "no tenant was idle");
        for tenant in &mut report.tenants {
            tenant.figures.statistics = None;
        }
        assert_eq!(reclaimed(&report), None);
    }

    #[test]
    fn names_the_kept_cache_of_an_idle_tenant_without_reclaim() {
        let mut off = with_archive(0);
        off.reclaim = Some(false);
        let kept = "`archive`, idle since second 5.0, kept 30.0M of 30.0M in its page cache.";
        assert_eq!(idle(None, &off), [kept]);
        off.reclaim = None;
        assert_eq!(idle(Some(Regime::HeapLimit), &off), [format!("With SQLite's heap limit, {kept}")]);
    }

    #[test]
    fn sorts_the_tenants_that_gained_memory() {
        let mut report = with_archive(0);
        for (tenant, gained) in report.tenants.iter_mut().zip([1 << 20, 7 << 20, 0]) {
            tenant.figures.statistics.as_mut().expect("statistics").memory.set("gained", gained);
        }
        let expected = "Page cache freed to make room for a tenant, its own included, each time counted: `runaway` (7.0M) and `lookups` (1.0M).";
        assert_eq!(reclaimed(&report).as_deref(), Some(expected));
    }

    fn with(counts: &[(&str, u64)], mut kills: Kills) -> Kills {
        counts.iter().for_each(|&(key, count)| kills.counts.set(key, count));
        kills
    }

    #[test]
    fn names_stopped_tenants_with_requesters_and_times() {
        let mut report = report(0);
        report.kills = Some(vec![
            kills("runaway", "dashboards", vec![8_000, 1_000]),
            Kills { full: "/".to_owned(), ..kills("runaway", "etl", vec![31_000]) },
            kills("runaway", "etl", vec![9_000, 2_000, 8_500]),
            with(&[("died", 0), ("refused", 70)], kills("runaway", "runaway", vec![])),
        ]);
        assert_eq!(
            stopped(&report),
            [
                "`runaway` was stopped 6 times to free memory for `etl` (4) and `dashboards` (2); half of its memory was free \
              after 8.5 ms (median), 31.0 ms at most."
            ]
        );
        report.kills = Some(vec![
            with(&[("died", 0), ("overdue", 1)], kills("hog", "etl", vec![1_200_000])),
            with(&[("idle", 4)], kills("archive", "etl", vec![])),
        ]);
        assert_eq!(
            stopped(&report),
            [
                "`hog` was stopped once to free memory for `etl` (1); half of its memory was free after 1.20 s; once it was too \
              slow."
            ]
        );
        report.kills = None;
        assert_eq!(stopped(&report), [""; 0]);
    }

    #[test]
    fn counts_the_charges_that_a_limit_would_have_refused() {
        let mut report = report(0);
        assert_eq!(not_enforced(&report), [""; 0]);
        report.tenants[1].would_refuse = Some(1_200);
        let expected = "The limit of `runaway` is not enforced: it would have refused 1,200 charges.";
        assert_eq!(not_enforced(&report), [expected]);
    }

    #[test]
    fn names_tenants_that_never_began() {
        let mut report = report(0);
        assert_eq!(never_began(None, &report), None);
        (report.tenants[0].done, report.tenants[0].interrupted) = (0, 0);
        let expected = "With memgroup, no statement of `lookups` began before the run ended.";
        assert_eq!(never_began(Some(Regime::Groups), &report).as_deref(), Some(expected));
    }

    #[test]
    fn separates_runaways_from_other_failures() {
        let of = |refused, killed, other| {
            let mut report = report(0);
            (report.tenants[1].refused, report.tenants[1].killed) = (refused, killed);
            report.tenants[0].killed = other;
            outcome(None, &report)
        };
        assert_eq!(of(0, 0, 0), "No statement failed for lack of memory");
        assert_eq!(of(9, 0, 0), "Only statements of `runaway` (9 refused) failed for lack of memory");
        assert_eq!(
            of(9, 1, 0),
            "Only statements of `runaway` (9 refused, 1 stopped) failed for lack of memory"
        );
        let other = "`lookups` (2 of 1,234,569)";
        assert_eq!(of(0, 0, 2), format!("Statements of {other} failed for lack of memory"));
        let expected = "Statements of `runaway` (9 refused) failed for lack of memory, and also of";
        assert_eq!(of(9, 0, 2), format!("{expected} {other}"));
        let short = "With memgroup, only statements of `runaway` failed";
        assert_eq!(outcome(Some(Regime::Groups), &report(0)), short);
    }
}
