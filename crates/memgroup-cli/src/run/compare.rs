//! Comparison: the same statements with memgroup, and without it under SQLite's heap limit.
//!
//! - I1. SQLite's allocator is chosen once per process, so each regime runs in a process of its
//!   own: this program with the option `--turn`. It prints its result as JSON.
//! - I2. The turns run one after the other, on the same files, with the same seconds and seed.
//! - I3. A failed turn costs only its own regime. Without memgroup's own result there is no
//!   comparison.
//! - I4. The order of a child is its regime and SPEC.

use std::error::Error;
use std::io;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::run::backend::Regime;
use crate::run::base::child::{self, Child};
use crate::run::base::error::{OrFail, RunError};
use crate::run::base::stop::EXIT_INTERRUPTED;
use crate::run::data::{Job, files};
use crate::run::report::{RegimeReport, Report};
use crate::run::spec::Spec;

/// Time between two polls of a child.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Runs the turns of both regimes. Returns the report, if memgroup's own turn had a result, and
/// whether a turn failed.
pub(crate) fn compare(job: &Job<'_>) -> Result<(Option<Report>, bool), RunError> {
    if job.spec.max_bytes.is_none() {
        let text = "--baseline needs a number to compare with: give the SPEC a top-level key `max`, such as max = \"128M\"";
        return Err(RunError::Usage(text.to_owned()));
    }
    if files::prepare(job, None)?.is_none() {
        return Ok((None, false));
    }
    let mut has_failed = false;
    let mut turn = |number: u32, regime: Regime| {
        let title = regime.title();
        job.progress.line(&format!("{number} of 2: {title}"));
        let result = turn(job, regime).or_fail(format_args!("run the work {title}"));
        result.unwrap_or_else(|error| {
            has_failed = true;
            job.progress.line(&format!("memgroup: {error}"));
            None
        })
    };
    let Some(memgroup) = turn(1, Regime::Groups) else { return Ok((None, has_failed)) };
    let baseline = if job.stop.requested() { None } else { turn(2, Regime::HeapLimit) };
    Ok((Some(Report { memgroup, baseline }), has_failed))
}

/// Runs one turn in a process of its own. The result is none if the turn was stopped before it had
/// one.
fn turn(job: &Job<'_>, regime: Regime) -> Result<Option<RegimeReport>, Box<dyn Error>> {
    let data = |command: &mut Command| {
        command.arg("--data").arg(job.directory);
    };
    let (mut child, output) = Child::start(&["--turn"], data, &(regime, job.spec))?;
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

/// Reads the regime and the SPEC of a turn from the parent process (I4).
pub(crate) fn order_of_parent() -> Result<(Regime, Spec), RunError> {
    child::order().or_fail("read the SPEC of a turn from standard input")
}

#[cfg(test)]
mod tests {
    use crate::run::spec::Spec;

    #[test]
    fn sends_a_spec_as_one_line() {
        let spec = Spec::read(None, None).expect("a valid SPEC");
        let line = serde_json::to_string(&spec).expect("JSON");
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Spec>(&line).expect("readable JSON"), spec);
        serde_json::from_str::<Spec>(&line[..line.len() - 1]).expect_err("a cut line");
    }
}
