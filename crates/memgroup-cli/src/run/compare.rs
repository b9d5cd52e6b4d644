//! Comparison: the same statements with memgroup, without limits, and under SQLite's heap limit.
//!
//! ```text
//!   memgroup, unlimited, heap limit, memgroup without retries, heap limit without retries      twice, each for half of the seconds
//! ```
//!
//! SQLite's allocator is chosen once per process, so each turn is a process of its own.

use crate::run::backend::Regime;
use crate::run::base::error::RunError;
use crate::run::data::{Job, files};
use crate::run::report::{RegimeReport, Report, TenantReport, WithoutRetries};
use crate::run::spec::Spec;
use crate::run::turns::{self, Entry, Turns};

/// Turns of each regime.
const ROUNDS: usize = 2;
/// The regimes of one round, and whether statements that find no memory are retried there. Without limits none finds no memory.
const ROUND: [(Regime, bool); 5] = [
    (Regime::Groups, true),
    (Regime::Unlimited, true),
    (Regime::HeapLimit, true),
    (Regime::Groups, false),
    (Regime::HeapLimit, false),
];

/// Runs the turns of all regimes. Returns the report, if memgroup's own turn had a result, and whether a turn failed.
pub(crate) fn compare(job: &Job<'_>) -> Result<(Option<Report>, bool), RunError> {
    check_max(job.spec)?;
    if files::prepare(job, None)?.is_none() {
        return Ok((None, false));
    }
    let has_retries = job.spec.tenants.iter().any(|tenant| !tenant.patience.is_zero());
    let entry = |&(regime, retries): &(Regime, bool)| {
        let title = regime.title().to_owned() + if retries { "" } else { ", without retries" };
        let spec = if retries { job.spec.clone() } else { job.spec.without_retries() };
        Entry { regime, spec, title }
    };
    let round = ROUND.iter().filter(|(_, retries)| *retries || has_retries);
    let entries: Vec<_> = round.map(entry).collect();
    Ok(compared(turns::run(job, &entries, ROUNDS)))
}

/// Fails if the tenants of `spec` have no limit in common that other regimes could have.
pub(crate) fn check_max(spec: &Spec) -> Result<(), RunError> {
    spec.max_bytes.map(drop).ok_or_else(|| {
        let text = "--baseline needs a number to compare with: give the SPEC a top-level key `max`, such as max = \"128M\"";
        RunError::Usage(text.to_owned())
    })
}

/// The report of turns in the order of [`ROUND`].
fn compared(turns: Turns) -> (Option<Report>, bool) {
    let mut reports = turns.reports.into_iter();
    let mut next = || reports.next().flatten();
    let (memgroup, unlimited, baseline) = (next(), next(), next());
    let mut with = |report: Option<RegimeReport>| {
        let without_retries = next().map(|once| WithoutRetries {
            failed: once.sum(TenantReport::is_well_behaved, TenantReport::failed),
            failing: once.sum(TenantReport::is_well_behaved, |tenant| u64::from(tenant.failed() > 0)),
        });
        report.map(|report| RegimeReport { without_retries, ..report })
    };
    let (memgroup, baseline) = (with(memgroup), with(baseline));
    let report = memgroup.map(|memgroup| Report { unlimited, baseline, ..Report::of(memgroup) });
    (report, turns.has_failed)
}

#[cfg(test)]
mod tests {
    use super::compared;
    use crate::run::report::tests::report;
    use crate::run::report::{RegimeReport, WithoutRetries};
    use crate::run::turns::Turns;

    #[test]
    fn tells_the_failures_without_retries() {
        let reports = vec![Some(report(2)), None, Some(report(3)), None, Some(report(13))];
        let (report, has_failed) = compared(Turns { reports, has_failed: true });
        let report = report.expect("a report");
        let refused = |report: &RegimeReport| report.tenants[0].refused;
        assert_eq!(refused(&report.memgroup), 2);
        assert!(report.unlimited.is_none() && has_failed);
        assert_eq!(report.baseline.as_ref().map(refused), Some(3));
        assert_eq!(report.memgroup.without_retries, None);
        let once = report.baseline.expect("the third").without_retries;
        assert_eq!(once, Some(WithoutRetries { failed: 13, failing: 1 }));
    }

    #[test]
    fn has_no_report_without_memgroups_own_result() {
        for has_failed in [true, false] {
            let turns = Turns { reports: vec![None; 3], has_failed };
            assert_eq!(compared(turns), (None, has_failed));
        }
    }
}
