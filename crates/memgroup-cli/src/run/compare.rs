//! Comparison: the same work with memgroup, without limits, and under SQLite's heap limit.
//!
//! ```text
//!   memgroup, unlimited, heap limit, memgroup without retries, heap limit without retries      twice, each for half of the seconds
//! ```
//!
//! The regimes take turns, so a change of the machine's speed affects all three. SQLite's allocator is chosen once per process, so
//! each turn is a process of its own: this program with a hidden option. It prints its result as JSON.
//!
//! - I1. The turns run one after the other, on the same files, with the same seconds and seed.
//! - I2. A failed turn costs only its own regime. Without memgroup's own result there is no comparison.
//! - I3. A child ends when its standard input ends, so it does not outlive this process. The first line of its input is its regime
//!   and SPEC as JSON.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::run::backend::Regime;
use crate::run::base::error::{OrFail, RunError};
use crate::run::base::stop::{CTRL_C, EXIT_INTERRUPTED};
use crate::run::data::{Job, files};
use crate::run::report::{RegimeReport, Report, TenantReport, Turn, WithoutRetries};
use crate::run::spec::{SECONDS_MIN, Spec};

/// Time between two polls of a child.
const POLL_EVERY: Duration = Duration::from_millis(20);
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
    if job.spec.max_bytes.is_none() {
        return Err(RunError::Usage(
            "--baseline needs a number to compare with: give the SPEC a top-level key `max`, such as max = \"128M\""
                .to_owned(),
        ));
    }
    if files::prepare(job, None)?.is_none() {
        return Ok((None, false));
    }
    let mut turns = Turns::default();
    let has_retries = job.spec.tenants.iter().any(|tenant| !tenant.patience.is_zero());
    let round: Vec<usize> = (0..ROUND.len()).filter(|&at| ROUND[at].1 || has_retries).collect();
    for (number, at) in (1..).zip(round.repeat(ROUNDS)) {
        if turns.has_failed[at] {
            continue;
        }
        let (regime, retries) = ROUND[at];
        let title = regime.title().to_owned() + if retries { "" } else { ", without retries" };
        job.progress.line(&format!("{number} of {}: {title}", ROUNDS * round.len()));
        let result = turn(regime, retries, job).or_fail(format_args!("run the work {title}"));
        if let Err(error) = turns.add(at, result) {
            job.progress.line(&format!("memgroup: {error}"));
        }
        if job.stop.requested() || turns.sums[0].is_none() {
            break;
        }
    }
    Ok(turns.compared())
}

/// Results so far, in the order of [`ROUND`].
#[derive(Default)]
struct Turns {
    sums: [Option<Turn>; ROUND.len()],
    has_failed: [bool; ROUND.len()],
}

impl Turns {
    /// Adds the result of a turn. A failure keeps the earlier result of the regime (I2).
    fn add(&mut self, at: usize, result: Result<Option<Turn>, RunError>) -> Result<(), RunError> {
        self.has_failed[at] |= result.is_err();
        match (&mut self.sums[at], result?) {
            (Some(sum), Some(later)) => sum.add(later),
            (sum, turn) => *sum = sum.take().or(turn),
        }
        Ok(())
    }

    fn compared(self) -> (Option<Report>, bool) {
        let [memgroup, unlimited, baseline, memgroup_once, baseline_once] =
            self.sums.map(|turn| turn.map(|turn| turn.report));
        let with = |report: Option<RegimeReport>, once: Option<RegimeReport>| {
            let without_retries = once.map(|once| WithoutRetries {
                failed: once.sum(TenantReport::is_well_behaved, TenantReport::failed),
                failing: once.sum(TenantReport::is_well_behaved, |tenant| u64::from(tenant.failed() > 0)),
            });
            report.map(|report| RegimeReport { without_retries, ..report })
        };
        let (memgroup, baseline) = (with(memgroup, memgroup_once), with(baseline, baseline_once));
        let report = memgroup.map(|memgroup| Report { memgroup, unlimited, baseline });
        (report, self.has_failed.contains(&true))
    }
}

/// Runs one turn in a process of its own. The result is none if the turn was stopped before it had one.
fn turn(regime: Regime, retries: bool, job: &Job<'_>) -> Result<Option<Turn>, Box<dyn Error>> {
    let seconds = (job.spec.seconds / ROUNDS as f64).max(SECONDS_MIN);
    let spec = if retries { job.spec.clone() } else { job.spec.without_retries() };
    let line = serde_json::to_string(&(regime, Spec { seconds, ..spec }))? + "\n";
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["run", "--turn", "--data"]).arg(job.directory);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let reader = child.stdout.take().map(|output| thread::spawn(move || io::read_to_string(output)));
    // A child that ended early has printed its error.
    let mut input = child.stdin.take().filter(|mut input| input.write_all(line.as_bytes()).is_ok());
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if job.stop.requested() {
            // The end of its input ends the child (I3).
            input = None;
        }
        thread::sleep(POLL_EVERY);
    };
    drop(input);
    let output = reader.and_then(|reader| reader.join().ok()).unwrap_or_else(|| Ok(String::new()))?;
    if status.code() == Some(EXIT_INTERRUPTED.into()) {
        job.stop.request(CTRL_C);
        if output.is_empty() {
            return Ok(None);
        }
    } else if !status.success() {
        return Err(format!("it ended with {status}").into());
    }
    Ok(Some(serde_json::from_str(&output)?))
}

/// Reads the regime and the SPEC of a turn from the parent process (I3).
pub(crate) fn order_of_parent() -> Result<(Regime, Spec), RunError> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line).map_err(serde_json::Error::io);
    read.and_then(|_| serde_json::from_str(&line)).or_fail("read the SPEC of a turn from standard input")
}

#[cfg(test)]
mod tests {
    use super::Turns;
    use crate::run::base::error::RunError;
    use crate::run::measure::latencies::Latencies;
    use crate::run::report::tests::report;
    use crate::run::report::{RegimeReport, Turn, WithoutRetries};
    use crate::run::spec::Spec;

    fn turn(refused: u64) -> Turn {
        let latencies = vec![Latencies::default(); 2];
        Turn { report: report(refused), latencies }
    }

    fn failed() -> Result<Option<Turn>, RunError> {
        Err(RunError::Failure("on purpose".to_owned()))
    }

    #[test]
    fn sends_a_spec_as_one_line() {
        let spec = Spec::read(None, None).expect("a valid SPEC");
        for spec in [spec.without_limits(), spec] {
            let line = serde_json::to_string(&spec).expect("JSON");
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Spec>(&line).expect("readable JSON"), spec);
            serde_json::from_str::<Spec>(&line[..line.len() - 1]).expect_err("a cut line");
        }
    }

    #[test]
    fn keeps_earlier_results_after_a_failure() {
        let mut turns = Turns::default();
        turns.add(0, Ok(Some(turn(1)))).expect("a result");
        turns.add(1, failed()).expect_err("a failure");
        turns.add(2, Ok(Some(turn(3)))).expect("a result");
        turns.add(4, Ok(Some(turn(7)))).expect("a result");
        turns.add(0, Ok(Some(turn(1)))).expect("the same tenants");
        turns.add(2, failed()).expect_err("a failure");
        turns.add(4, Ok(Some(turn(6)))).expect("a result");
        assert_eq!(turns.has_failed, [false, true, true, false, false]);
        let (report, has_failed) = turns.compared();
        let report = report.expect("a report");
        let refused = |report: &RegimeReport| report.tenants[0].refused;
        assert_eq!(refused(&report.memgroup), 2);
        assert!(report.unlimited.is_none() && has_failed);
        assert_eq!(report.baseline.as_ref().map(refused), Some(3));
        assert_eq!(report.memgroup.without_retries, None);
        let once = report.baseline.expect("the first turn's").without_retries;
        assert_eq!(once, Some(WithoutRetries { failed: 13, failing: 1 }));
    }

    #[test]
    fn has_no_report_without_memgroups_own_result() {
        let mut turns = Turns::default();
        turns.add(0, failed()).expect_err("a failure");
        assert_eq!(turns.compared(), (None, true));
        let mut turns = Turns::default();
        turns.add(0, Ok(None)).expect("a stop");
        assert_eq!(turns.compared(), (None, false));
    }
}
