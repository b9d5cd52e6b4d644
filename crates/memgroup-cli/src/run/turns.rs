//! Turns: the same work in several regimes, in processes that take turns.
//!
//! The regimes take turns, so a change of the machine's speed affects all of them. Each turn is a process of its own: this program with the option
//! `--turn`. It prints its result as JSON.
//!
//! - I1. The turns run one after the other, on the same files, with the same seconds and seed.
//! - I2. A failed turn costs only its own regime. Without the result of the first regime, which is memgroup's own, there is no comparison.
//! - I3. The order of a child is its regime and SPEC.

use std::error::Error;
use std::io;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::run::backend::Regime;
use crate::run::base::child::{self, Child};
use crate::run::base::error::{OrFail, RunError};
use crate::run::base::stop::EXIT_INTERRUPTED;
use crate::run::data::Job;
use crate::run::report::{RegimeReport, Turn};
use crate::run::spec::{SECONDS_MIN, Spec};

/// Time between two polls of a child.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// The work of one regime, with the name that messages give it.
pub(crate) struct Entry {
    pub(crate) regime: Regime,
    pub(crate) spec: Spec,
    pub(crate) title: String,
}

/// Results of the turns, in the order of the regimes.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    pub(crate) reports: Vec<Option<RegimeReport>>,
    pub(crate) has_failed: bool,
}

/// Runs that many `rounds`, with a turn of each regime in each round. All turns of a regime together take the seconds of its SPEC.
pub(crate) fn run(job: &Job<'_>, entries: &[Entry], rounds: usize) -> Turns {
    let mut sums = Sums::of(entries.len());
    for (number, at) in (1..).zip((0..entries.len()).collect::<Vec<_>>().repeat(rounds)) {
        if sums.has_failed[at] {
            continue;
        }
        let entry = &entries[at];
        let title = &entry.title;
        let seconds = (entry.spec.seconds / rounds as f64).max(SECONDS_MIN);
        job.progress.line(&match rounds * entries.len() {
            1 => format!("running {title} for {seconds} s"),
            all => format!("{number} of {all}: {title}"),
        });
        let order = (&entry.regime, Spec { seconds, ..entry.spec.clone() });
        let result = turn(job, &order).or_fail(format_args!("run the work {title}"));
        if let Err(error) = sums.add(at, result) {
            job.progress.line(&format!("memgroup: {error}"));
        }
        if job.stop.requested() || sums.turns[0].is_none() {
            break;
        }
    }
    sums.turns()
}

/// Results so far.
struct Sums {
    turns: Vec<Option<Turn>>,
    has_failed: Vec<bool>,
}

impl Sums {
    fn of(entries: usize) -> Sums {
        Sums { turns: (0..entries).map(|_| None).collect(), has_failed: vec![false; entries] }
    }

    /// Adds the result of a turn. A failure keeps the earlier result of the regime (I2).
    fn add(&mut self, at: usize, result: Result<Option<Turn>, RunError>) -> Result<(), RunError> {
        self.has_failed[at] |= result.is_err();
        match (&mut self.turns[at], result?) {
            (Some(sum), Some(later)) => sum.add(later),
            (sum, turn) => *sum = sum.take().or(turn),
        }
        Ok(())
    }

    fn turns(self) -> Turns {
        let reports = self.turns.into_iter().map(|turn| turn.map(|turn| turn.report));
        Turns { reports: reports.collect(), has_failed: self.has_failed.contains(&true) }
    }
}

/// Runs one turn in a process of its own. The result is none if the turn was stopped before it had one.
fn turn(job: &Job<'_>, order: &impl Serialize) -> Result<Option<Turn>, Box<dyn Error>> {
    let data = |command: &mut Command| {
        command.arg("--data").arg(job.directory);
    };
    let (mut child, output) = Child::start(&["--turn"], data, order)?;
    let reader = thread::spawn(move || io::read_to_string(output));
    let status = loop {
        if let Some(status) = child.status()? {
            break status;
        }
        if job.stop.requested() {
            child.end_input();
        }
        thread::sleep(POLL_EVERY);
    };
    let output = reader.join().unwrap_or_else(|_| Ok(String::new()))?;
    if status.code() == Some(EXIT_INTERRUPTED.into()) {
        job.stop.request();
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
    child::order().or_fail("read the SPEC of a turn from standard input")
}

#[cfg(test)]
mod tests {
    use super::Sums;
    use crate::run::base::error::RunError;
    use crate::run::measure::latencies::Latencies;
    use crate::run::report::tests::report;
    use crate::run::report::{RegimeReport, Turn};
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
        let mut sums = Sums::of(3);
        sums.add(0, Ok(Some(turn(1)))).expect("a result");
        sums.add(1, failed()).expect_err("a failure");
        sums.add(2, Ok(Some(turn(3)))).expect("a result");
        sums.add(0, Ok(Some(turn(1)))).expect("the same tenants");
        sums.add(2, failed()).expect_err("a failure");
        assert_eq!(sums.has_failed, [false, true, true]);
        let turns = sums.turns();
        let refused = |report: &Option<RegimeReport>| Some(report.as_ref()?.tenants[0].refused);
        assert_eq!(turns.reports.iter().map(refused).collect::<Vec<_>>(), [Some(2), None, Some(3)]);
        assert!(turns.has_failed);
    }

    #[test]
    fn has_no_result_of_a_stopped_turn() {
        let mut sums = Sums::of(1);
        sums.add(0, Ok(None)).expect("a stop");
        let turns = sums.turns();
        assert_eq!((turns.reports, turns.has_failed), (vec![None], false));
    }
}
