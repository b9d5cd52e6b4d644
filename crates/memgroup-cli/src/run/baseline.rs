//! The same work twice, once with memgroup and once under SQLite's own heap limit.
//!
//! SQLite's allocator is chosen once per process, so each half runs in a process of its own: this program again,
//! with a hidden option. It prints its half of the report as JSON.
//!
//! - I1. The halves run one after the other, on the same files, with the same seconds and seed.
//! - I2. What the first half found is reported, whatever becomes of the second.
//! - I3. A child lives no longer than this process: it ends when its standard input does.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use memgroup::UNLIMITED;

use super::error::RunError;
use super::house::Regime;
use super::progress::Progress;
use super::report::{Half, Report};
use super::spec::Spec;
use super::stop::{EXIT_INTERRUPTED, Stop};
use super::{Options, data};

/// How often a child is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What came of a comparison.
pub(crate) struct Compared {
    pub(crate) report: Report,
    /// Why the second half is missing, if it failed.
    pub(crate) failure: Option<RunError>,
}

/// Runs both halves. None when a stop was asked for before the first had a report.
pub(crate) fn compare(
    options: &Options,
    spec: &Spec,
    directory: &Path,
    progress: &Progress,
    stop: &Stop,
) -> Result<Option<Compared>, RunError> {
    if spec.max_bytes == UNLIMITED {
        return Err(RunError::Usage(
            "--baseline needs a number to compare with: give the SPEC a top-level key `max`, such as max = \"128M\""
                .to_owned(),
        ));
    }
    if data::prepare(directory, spec, progress, stop, &|work| work())?.is_none() {
        return Ok(None);
    }
    progress.line(&format!("1 of 2: {}", Regime::Groups.title()));
    let Some(memgroup) = half(Regime::Groups, options, spec, directory, stop)? else { return Ok(None) };
    if stop.requested() {
        return Ok(Some(Compared { report: Report { memgroup, baseline: None }, failure: None }));
    }
    progress.line(&format!("2 of 2: {}", Regime::HeapLimit.title()));
    let (baseline, failure) = match half(Regime::HeapLimit, options, spec, directory, stop) {
        Ok(baseline) => (baseline, None),
        Err(error) => (None, Some(error)),
    };
    Ok(Some(Compared { report: Report { memgroup, baseline }, failure }))
}

/// One half, in a process of its own; none when it was stopped before it had a report.
fn half(
    regime: Regime,
    options: &Options,
    spec: &Spec,
    directory: &Path,
    stop: &Stop,
) -> Result<Option<Half>, RunError> {
    let failed = |error: String| RunError::Child { regime: regime.title(), error };
    let program = std::env::current_exe().map_err(|error| failed(format!("where am I? {error}")))?;
    let mut command = Command::new(program);
    command.arg("run").args(&options.spec).arg("--half").arg(regime.name()).arg("--data").arg(directory);
    command.arg("--seconds").arg(spec.seconds.to_string()).arg("--seed").arg(spec.seed.to_string());
    if !spec.reclaim {
        command.arg("--no-reclaim");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(format!("cannot start it: {error}")))?;
    let output = child.stdout.take().map(|output| thread::spawn(move || read(output)));
    let code = wait(&mut child, stop).map_err(|error| failed(error.to_string()))?;
    let output = match output.map(thread::JoinHandle::join) {
        Some(Ok(output)) => output.map_err(|error| failed(error.to_string()))?,
        _ => String::new(),
    };
    match code {
        Some(0) => {}
        Some(code) if code == i32::from(EXIT_INTERRUPTED) => {
            stop.request();
            if output.is_empty() {
                return Ok(None);
            }
        }
        Some(code) => return Err(failed(format!("it ended with exit code {code}"))),
        None => return Err(failed("it was killed".to_owned())),
    }
    serde_json::from_str(&output)
        .map(Some)
        .map_err(|error| failed(format!("its report is not JSON: {error}")))
}

fn read(mut output: ChildStdout) -> io::Result<String> {
    let mut text = String::new();
    output.read_to_string(&mut text)?;
    Ok(text)
}

/// Waits for the child's end, and asks for it when a stop is asked for here. Its exit code, if it had one.
fn wait(child: &mut Child, stop: &Stop) -> io::Result<Option<i32>> {
    let mut input = child.stdin.take();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if stop.requested() {
            drop(input.take());
        }
        thread::sleep(LOOK_EVERY);
    }
}
