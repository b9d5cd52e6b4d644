//! `memgroup run`: several tenants' SQL in one process, each held in its own group.
//!
//!   SPEC ─▶ data (a file per tenant) ─▶ house (groups, SQLite on top) ─▶ tenants (threads) ─▶ report ─▶ table, JSON

mod baseline;
mod control;
mod data;
mod error;
mod fresh;
mod guard;
mod house;
mod keys;
mod kills;
mod latencies;
mod merge;
mod output;
mod progress;
mod report;
mod session;
mod shrinkers;
mod spec;
mod statistics;
mod stop;
mod table;
mod tenant;
mod tpch;
mod units;
mod watch;
mod workload;

use std::path::{self, Path, PathBuf};

pub(crate) use error::RunError;
pub(crate) use stop::EXIT_INTERRUPTED;

use house::{House, Regime};
use output::Destination;
use progress::Progress;
use report::{Measured, Report};
use spec::{Spec, Text};
use stop::Stop;

/// Options of `memgroup run`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Options {
    /// What to run, a TOML file: the tenants, their work and their limits; without it the built-in one
    ///
    /// --print-spec shows the built-in SPEC: a file to begin with. Its keys are described in crates/memgroup-cli/README.md,
    /// under "SPEC".
    #[arg(value_name = "SPEC.toml")]
    spec: Option<PathBuf>,

    /// Print the built-in SPEC and run nothing
    #[arg(long, exclusive = true)]
    print_spec: bool,

    /// How long statements run [default: what the SPEC says, 20]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seconds: Option<f64>,

    /// Decides which rows are asked for [default: what the SPEC says, 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Refuse at once what does not fit, and leave caches what they hold [default: what the SPEC says]
    #[arg(long)]
    no_reclaim: bool,

    /// Run the same work also without any limit and under SQLite's own process-wide heap limit, in turns, and compare
    #[arg(long)]
    baseline: bool,

    /// Show all groups live while statements run, on standard output
    ///
    /// On a terminal q ends the run with the report so far and exit code 130, as Ctrl-C does; arrow keys, page up and down, home and
    /// end scroll.
    #[arg(
        long, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "auto",
        conflicts_with = "baseline"
    )]
    watch: Option<watch::Form>,

    /// Also write the report to FILE as JSON; - is standard output, the table then goes to standard error
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Where the databases are built, kept and reused [default: memgroup/tpch in the user's cache directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Run one turn of a comparison and print its report as JSON
    #[arg(long, value_name = "REGIME", hide = true, conflicts_with_all = ["baseline", "json", "watch"])]
    half: Option<Regime>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself.
    Done,
    /// Early: by Ctrl-C, or q.
    Interrupted,
}

/// Runs the tenants and reports.
pub(crate) fn run(options: &Options) -> Result<End, RunError> {
    if options.print_spec {
        return output::print(&Text::built_in().text).map(|()| End::Done);
    }
    let text = match (&options.spec, options.half) {
        (_, Some(_)) => baseline::text_of_parent()?,
        (Some(file), None) => Text::read(file)?,
        (None, None) => Text::built_in(),
    };
    let mut spec = Spec::parse(&text.name, &text.text)?;
    if let Some(seconds) = options.seconds {
        spec.seconds = spec::check_seconds(seconds)
            .map_err(|allowed| RunError::Usage(format!("--seconds {seconds} is out of range; {allowed}")))?;
    }
    spec.seed = options.seed.unwrap_or(spec.seed);
    spec.reclaim &= !options.no_reclaim;
    let destination = Destination::of(options.json.as_deref())?;
    if options.watch.is_some() && destination == Destination::Stdout {
        return Err(RunError::Usage(
            "--watch and --json - both want standard output; give --json the name of a file".to_owned(),
        ));
    }
    // Absolute, because SQLite takes a name that begins with "file:" for a URI.
    let directory = options.data.clone().unwrap_or_else(data::default_directory);
    let directory = path::absolute(&directory).map_err(|error| {
        RunError::Usage(format!("--data {directory:?} names no directory: {error}; allowed: a path"))
    })?;
    let stop = Stop::default();
    stop.on_ctrl_c().map_err(RunError::Signal)?;
    let progress = Progress::on_stderr().watching(options.watch);
    if let Some(regime) = options.half {
        stop.on_end_of_input();
        if let Some(measured) = one(regime, &spec, &directory, &progress, &stop)? {
            output::print(&json(&measured)?)?;
        }
        return Ok(end(&stop));
    }
    spec.contradictions().iter().for_each(|note| progress.line(note));
    progress.line(&format!("data: {}", directory.display()));
    let mut failure = None;
    let report = if options.baseline {
        let compared = baseline::compare(&text, &spec, &directory, &progress, &stop)?;
        compared.map(|compared| {
            failure = compared.failure;
            compared.report
        })
    } else {
        one(Regime::Groups, &spec, &directory, &progress, &stop)?.map(|measured| Report::of(measured.half))
    };
    let published = match report {
        Some(report) => {
            output::publish(&report, stop.by(), &destination, options.watch == Some(watch::Form::Json))
        }
        None => {
            progress.line("ended by Ctrl-C before any statement ran; there is nothing to report");
            Ok(())
        }
    };
    match (published, failure) {
        (Ok(()), None) => Ok(end(&stop)),
        (Err(error), None) | (Ok(()), Some(error)) => Err(error),
        (Err(error), Some(failure)) => {
            progress.line(&failure.to_string());
            Err(error)
        }
    }
}

fn end(stop: &Stop) -> End {
    if stop.requested() { End::Interrupted } else { End::Done }
}

/// One run in this process; none when a stop was asked for before statements ran.
fn one(
    regime: Regime,
    spec: &Spec,
    directory: &Path,
    progress: &Progress,
    stop: &Stop,
) -> Result<Option<Measured>, RunError> {
    let house = House::build(regime, spec)?;
    let loader = house.loader()?;
    let databases = data::prepare(directory, spec, progress, stop, &|work| loader.around(work))?;
    let Some(databases) = databases else { return Ok(None) };
    data::read_through(&databases)?;
    house.loaded(loader)?;
    let ran = tenant::run_all(&house, spec, &databases, progress, stop)?;
    let measured = Measured::of(&house, spec, &databases, &ran, stop.requested());
    drop(ran.sessions);
    house.check_vacated(spec)?;
    Ok(Some(measured))
}

fn json(report: &impl serde::Serialize) -> Result<String, RunError> {
    serde_json::to_string_pretty(report)
        .map(|text| text + "\n")
        .map_err(|error| RunError::engine("write the report as JSON", error))
}
