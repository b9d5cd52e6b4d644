//! The command line, its man page, and its shell completions.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory as _, Parser};
use clap_complete::Shell;

use crate::text::{Error, OrFail as _};
use crate::view::Sort;

/// Seconds of the longest time that an option takes.
const YEAR: f64 = 31_536_000.0;

/// Shows the memory groups of a running program, live
///
/// The program must serve its groups with the library memgroup-serve. Without SOCKET, the only such
/// program of this user is shown. If there are several, they are listed.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Option<Sub>,
    /// The program: the path of its Unix socket, its process number, or http://127.0.0.1:PORT
    #[arg(value_name = "SOCKET|PID|URL")]
    pub(crate) target: Option<String>,
    #[command(flatten)]
    pub(crate) ask: Ask,
    #[command(flatten)]
    pub(crate) show: Show,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Sub {
    /// Record the groups of programs in a new file until Ctrl-C
    Record(Record),
    /// Show a recording on the same screen
    Replay(Replay),
    /// Print the man page
    #[command(hide = true)]
    Man,
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions { shell: Shell },
}

/// How a program is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Ask {
    /// Token for reading by TCP [default: the variable MEMGROUP_TOKEN, which doesn't appear in
    /// lists of processes]
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// Send the token to another machine even though HTTP does not encrypt it
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Seconds between two snapshots, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = |text: &str| within(text, 0.1, 3_600.0))]
    pub(crate) interval: Duration,
}

/// How snapshots are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// Print one snapshot and exit; of a recording, the last one
    #[arg(long)]
    pub(crate) once: bool,
    /// Print snapshots as JSON, one a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Order of the groups below the same parent
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: Sort,
    /// Show only groups with this text in their path, and the groups above those
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Record {
    /// The file; it must not exist
    pub(crate) file: PathBuf,
    /// Programs, each by its socket, process number or URL [default: the only one that is found]
    #[arg(value_name = "SOCKET|PID|URL")]
    pub(crate) targets: Vec<String>,
    #[command(flatten)]
    pub(crate) ask: Ask,
    /// Stop after this many seconds, 0.1 to 31536000
    #[arg(long, value_parser = |text: &str| within(text, 0.1, YEAR))]
    pub(crate) seconds: Option<Duration>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    /// The recording
    pub(crate) file: PathBuf,
    /// The program to show, if the recording has several
    #[arg(long, value_name = "SOCKET")]
    pub(crate) of: Option<String>,
    /// Begin this many seconds after the first snapshot; with --once, show that moment
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| within(text, 0.0, YEAR))]
    pub(crate) at: Option<Duration>,
    #[command(flatten)]
    pub(crate) show: Show,
}

fn within(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (least..=most).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("not a number from {least} to {most}"))
}

/// Prints the man page of the program, followed by those of its commands.
pub(crate) fn man() -> Result<(), Error> {
    let mut command = Options::command();
    command.build();
    let mut page = Vec::new();
    let commands = command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help");
    for one in [&command].into_iter().chain(commands) {
        clap_mangen::Man::new(one.clone()).render(&mut page).or_fail("write the man page")?;
    }
    print(&page)
}

/// Prints the completions of `shell`.
pub(crate) fn completions(shell: Shell) -> Result<(), Error> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "memgroup-top", &mut text);
    print(&text)
}

fn print(text: &[u8]) -> Result<(), Error> {
    match io::stdout().lock().write_all(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.or_fail("print to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Options;

    #[test]
    fn defines_a_consistent_command_line() {
        Options::command().debug_assert();
    }
}
