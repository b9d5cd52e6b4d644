//! The same work in three ways: with memgroup, without any limit, and under SQLite's own heap limit.
//!
//! ```text
//!   memgroup, unlimited, heap limit, memgroup, unlimited, heap limit      each for half of the seconds
//! ```
//!
//! In turns, because a machine is not the same from one minute to the next: what changes in it meets all three. SQLite's allocator is chosen once per
//! process, so each turn runs in a process of its own: this program again, with a hidden option. It prints what it measured as JSON.
//!
//! - I1. Turns run one after the other, on the same files, with the same seconds and seed.
//! - I2. What ran is reported, whatever becomes of the rest; without memgroup's own run there is nothing to compare.
//! - I3. A child lives no longer than this process: it ends when its standard input does. The SPEC's text, which was read once, comes first in that: its length in eight bytes, the
//!   lowest first, and the bytes.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use memgroup::UNLIMITED;

use super::data;
use super::error::RunError;
use super::house::Regime;
use super::progress::Progress;
use super::report::{Measured, Report};
use super::spec::{SECONDS_LEAST, Spec, Text};
use super::stop::{EXIT_INTERRUPTED, Stop};

/// How often a child is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often each regime has its turn.
const ROUNDS: usize = 2;
/// Who has a turn in each round, in this order.
const REGIMES: [Regime; 3] = [Regime::Groups, Regime::Unlimited, Regime::HeapLimit];

/// What came of a comparison.
pub(crate) struct Compared {
    pub(crate) report: Report,
    /// Why some of it is missing, if a turn failed: the first that did.
    pub(crate) failure: Option<RunError>,
}

/// Gives each regime its turns. None when a stop was asked for before memgroup's own had a report.
pub(crate) fn compare(
    text: &Text,
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
    let mut turns = Turns::default();
    for number in 0..ROUNDS * REGIMES.len() {
        let place = number % REGIMES.len();
        if turns.failed[place] {
            continue;
        }
        let regime = REGIMES[place];
        progress.line(&format!("{} of {}: {}", number + 1, ROUNDS * REGIMES.len(), regime.title()));
        turns.note(place, turn(regime, text, spec, directory, stop), progress);
        // There is nothing to compare others with.
        if stop.requested() || turns.of[0].is_none() {
            break;
        }
    }
    turns.compared()
}

/// What the regimes' turns came to, each in the place that it has in `REGIMES`.
#[derive(Default)]
struct Turns {
    of: [Option<Measured>; REGIMES.len()],
    failed: [bool; REGIMES.len()],
    failure: Option<RunError>,
}

impl Turns {
    /// A regime of which a turn failed has no other; what it found before stays.
    fn note(&mut self, place: usize, came: Result<Option<Measured>, RunError>, progress: &Progress) {
        let noted = came.and_then(|measured| match (&mut self.of[place], measured) {
            (_, None) => Ok(()),
            (Some(sum), Some(later)) => sum.add(later),
            (none, first) => {
                *none = first;
                Ok(())
            }
        });
        let Err(error) = noted else { return };
        self.failed[place] = true;
        if self.failure.is_none() {
            self.failure = Some(error);
        } else {
            progress.line(&error.to_string());
        }
    }

    fn compared(self) -> Result<Option<Compared>, RunError> {
        let [memgroup, unlimited, baseline] = self.of.map(|measured| measured.map(|measured| measured.half));
        match (memgroup, self.failure) {
            (Some(memgroup), failure) => {
                Ok(Some(Compared { report: Report { memgroup, unlimited, baseline }, failure }))
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }
}

/// One turn, in a process of its own; none when it was stopped before it had a report.
fn turn(
    regime: Regime,
    text: &Text,
    spec: &Spec,
    directory: &Path,
    stop: &Stop,
) -> Result<Option<Measured>, RunError> {
    let failed = |error: String| RunError::Child { regime: regime.title(), error };
    let program = std::env::current_exe().map_err(|error| failed(format!("where am I? {error}")))?;
    let seconds = (spec.seconds / ROUNDS as f64).max(SECONDS_LEAST);
    let mut command = Command::new(program);
    command.arg("run").arg("--half").arg(regime.name()).arg("--data").arg(directory);
    command.arg("--seconds").arg(seconds.to_string()).arg("--seed").arg(spec.seed.to_string());
    if !spec.reclaim {
        command.arg("--no-reclaim");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(format!("cannot start it: {error}")))?;
    let output = child.stdout.take().map(|output| thread::spawn(move || read(output)));
    let input = child.stdin.take();
    // A child that has ended by now has said why.
    let input = input.and_then(|mut input| hand_over(&text.text, &mut input).ok().map(|()| input));
    let code = wait(&mut child, input, stop).map_err(|error| failed(error.to_string()))?;
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

fn hand_over(text: &str, input: &mut impl Write) -> io::Result<()> {
    input.write_all(&(text.len() as u64).to_le_bytes())?;
    input.write_all(text.as_bytes())?;
    input.flush()
}

/// What the parent of a turn has handed over (I3).
pub(crate) fn text_of_parent() -> Result<Text, RunError> {
    let text = received(&mut io::stdin().lock());
    let text =
        text.map_err(|error| RunError::engine("read the SPEC from standard input", error.to_string()))?;
    Ok(Text { name: "the SPEC".to_owned(), text })
}

fn received(input: &mut impl Read) -> io::Result<String> {
    let mut length = [0; 8];
    input.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let mut text = String::new();
    let read = input.take(length).read_to_string(&mut text)?;
    if read as u64 == length { Ok(text) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) }
}

fn read(mut output: ChildStdout) -> io::Result<String> {
    let mut text = String::new();
    output.read_to_string(&mut text)?;
    Ok(text)
}

/// Waits for the child's end, and asks for it when a stop is asked for here. Its exit code, if it had one.
fn wait(child: &mut Child, mut input: Option<ChildStdin>, stop: &Stop) -> io::Result<Option<i32>> {
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

#[cfg(test)]
mod tests {
    use super::Turns;
    use crate::run::error::RunError;
    use crate::run::latencies::Latencies;
    use crate::run::progress::Progress;
    use crate::run::report::Measured;
    use crate::run::report::tests::half;

    fn measured(refused: u64) -> Measured {
        let latencies = vec![Latencies::new().expect("a histogram"); 2];
        Measured { half: half(refused), latencies }
    }

    fn failed(error: &str) -> Result<Option<Measured>, RunError> {
        Err(RunError::Child { regime: "somehow", error: error.to_owned() })
    }

    #[test]
    fn a_turn_is_handed_the_whole_text_and_notices_when_it_is_cut_off() {
        let text = "max = \"8M\"\n# ü\n".repeat(10_000);
        let mut pipe = Vec::new();
        super::hand_over(&text, &mut pipe).expect("a vector takes all");
        pipe.extend(b"what comes later");
        assert_eq!(super::received(&mut &pipe[..]).expect("it is there"), text);
        for cut in [0, 7, 8, 100] {
            let error = super::received(&mut &pipe[..cut]).expect_err("it is cut off");
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_failure_costs_what_was_to_come_and_nothing_that_was_found() {
        let progress = Progress::on_stderr();
        let mut turns = Turns::default();
        turns.note(0, Ok(Some(measured(1))), &progress);
        turns.note(1, failed("first"), &progress);
        turns.note(2, Ok(Some(measured(3))), &progress);
        turns.note(0, Ok(Some(measured(1))), &progress);
        turns.note(2, failed("second"), &progress);
        assert_eq!(turns.failed, [false, true, true]);
        let compared = turns.compared().expect("there is a report").expect("there is a report");
        let refused = |half: &crate::run::report::Half| half.tenants[0].refused;
        assert_eq!(refused(&compared.report.memgroup), 2);
        assert!(compared.report.unlimited.is_none());
        assert_eq!(compared.report.baseline.as_ref().map(refused), Some(3));
        assert!(compared.failure.expect("one failed").to_string().ends_with("first"));
    }

    #[test]
    fn without_memgroups_own_run_the_failure_is_all_there_is() {
        let progress = Progress::on_stderr();
        let mut turns = Turns::default();
        turns.note(0, failed("at once"), &progress);
        assert!(turns.compared().is_err());
        let mut turns = Turns::default();
        turns.note(0, Ok(None), &progress);
        assert!(turns.compared().expect("it was stopped").is_none());
    }
}
