//! `memgroup run`: several tenants' SQL or HTTP requests in one process, each in its own group.
//!
//! With SQLite:
//!
//! ```text
//!   SPEC ─▶ data (a file per tenant) ─▶ backend (groups under SQLite) ─▶ work (threads) ─▶ report ─▶ table, JSON
//! ```
//!
//! Each folder imports only folders above it in this list; `xtask/layers.txt` has that order, and a test checks it.
//!
//! | folder | contents |
//! |---|---|
//! | `base` | errors, processes, progress lines, units |
//! | `spec` | the SPEC |
//! | `data` | databases and statements |
//! | `backend` | groups or heap limit, and the connections |
//! | `report` | the model behind table and JSON |
//! | `serve` | the groups of a run on a socket |
//! | `work` | threads that use the clients of either engine |
//! | `output` | table and JSON |
//! | `sqlite` | the engine `sqlite`: statements in this process, and its comparison |
//! | `http` | the engine `http`: a server in a child process, and its clients |

mod backend;
mod base;
mod data;
mod http;
mod output;
mod report;
mod serve;
mod spec;
mod sqlite;
mod work;

use std::net::SocketAddr;
use std::path::{self, PathBuf};

use base::OrFail;
pub(crate) use base::RunError;
use base::process::{self, EXIT_INTERRUPTED, Stop};
use base::progress::Progress;
use data::Job;
use report::Report;
use spec::{Engine, Spec};

/// Exit code after a failure.
pub(crate) const EXIT_FAILURE: u8 = 1;

/// Options of `memgroup run`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Options {
    /// TOML file with the tenants, their work and their limits; without it the built-in scenario
    /// runs
    ///
    /// --print-spec prints the built-in SPEC as a first example. crates/memgroup-cli/README.md
    /// describes the keys under "SPEC".
    #[arg(value_name = "SPEC.toml")]
    spec: Option<PathBuf>,

    /// Print the built-in SPEC of the engine and run nothing
    #[arg(
        long,
        conflicts_with_all = ["spec", "seconds", "seed", "no_reclaim", "baseline", "json", "data", "turn", "serve", "server"]
    )]
    print_spec: bool,

    /// Engine that does the tenants' work [default: from the SPEC, or else sqlite]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<Engine>,

    /// Run time in seconds [default: from the SPEC; the built-in ones have 20, or 10 for http]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = spec::parse_seconds)]
    seconds: Option<f64>,

    /// Seed of the keys that statements ask for [default: from the SPEC, or else 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = spec::parse_seed)]
    seed: Option<u64>,

    /// Refuse charges that do not fit at once, without reclaiming caches [default: from the SPEC]
    #[arg(long)]
    no_reclaim: bool,

    /// Also run the same work without memgroup, under SQLite's heap limit of the whole process, and
    /// compare
    ///
    /// With --engine http, the server without memgroup has the same bound of its process.
    #[arg(long)]
    baseline: bool,

    /// Also write the report to FILE as JSON; - is standard output, and the table then goes to
    /// standard error
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Directory of the databases, which are built once and reused [default: memgroup/tpch in the
    /// user's cache directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Serve a page of all groups, metrics and control files at this loopback address while
    /// statements run
    ///
    /// The page's address is printed with the token that it needs. Port 0 stands for any free port.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = loopback, conflicts_with = "baseline")]
    serve: Option<SocketAddr>,

    /// Run one turn of a comparison, with an order from standard input, and print its result
    /// as JSON
    #[arg(long, hide = true, conflicts_with_all = ["baseline", "json"])]
    turn: bool,

    /// Serve the tenants' requests, with an order from standard input, and print the port
    #[arg(long, hide = true, exclusive = true)]
    server: bool,
}

impl Options {
    /// Fails if an option has no meaning with the `engine`.
    fn check(&self, engine: Engine) -> Result<(), RunError> {
        let given = [
            (self.no_reclaim, "--no-reclaim", engine != Engine::Sqlite),
            (self.serve.is_some(), "--serve", engine != Engine::Sqlite),
            (self.data.is_some(), "--data", engine == Engine::Http),
        ];
        given.iter().find(|(is_given, _, is_wrong)| *is_given && *is_wrong).map_or(
            Ok(()),
            |(_, option, _)| {
                let engine = engine.name();
                Err(RunError::Usage(format!(
                    "{option} has no meaning with the engine `{engine}`; leave it out"
                )))
            },
        )
    }

    /// Returns the directory of the tenants' data. It's absolute, because SQLite takes a name that
    /// begins with "file:" for a URI.
    fn directory(&self) -> Result<PathBuf, RunError> {
        let directory = self.data.clone().unwrap_or_else(data::default_directory);
        path::absolute(&directory).map_err(|error| {
            RunError::Usage(format!("--data {directory:?} names no directory: {error}; allowed: a path"))
        })
    }
}

/// Runs the tenants, reports, and returns the exit code.
pub(crate) fn run(options: &Options) -> Result<u8, RunError> {
    if options.print_spec {
        let engine = options.engine.unwrap_or(Engine::Sqlite);
        return output::print(engine.built_in()).map(|()| 0);
    }
    if options.server {
        return http::serve();
    }
    if options.turn {
        return run_turn(options);
    }
    let mut spec = Spec::read(options.spec.as_deref(), options.engine)?;
    spec.seconds = options.seconds.unwrap_or(spec.seconds);
    spec.seed = options.seed.unwrap_or(spec.seed);
    spec.reclaim &= !options.no_reclaim;
    let json = options.json.as_deref();
    json.map_or(Ok(()), output::check)?;
    options.check(spec.engine)?;
    let directory = options.directory()?;
    let (stop, progress) = (Stop::default(), Progress::on_stderr());
    stop.on_ctrl_c().or_fail("listen for Ctrl-C")?;
    let job = Job { spec: &spec, directory: &directory, progress: &progress, stop: &stop };
    spec.notes().iter().for_each(|note| progress.line(note));
    let (report, has_failed) = if spec.engine == Engine::Http {
        let (report, has_died) = http::run(&job, options.baseline)?;
        (Some(report), has_died)
    } else {
        progress.line(&format!("data: {}", directory.display()));
        if options.baseline {
            sqlite::compare(&job)?
        } else {
            let report = sqlite::run(&job, true, options.serve)?;
            (report.map(|memgroup| Report { memgroup, baseline: None }), false)
        }
    };
    if let Some(report) = report {
        output::publish(&report, json)?;
    } else if !has_failed {
        progress.line("ended by Ctrl-C before the first statement; there is nothing to report");
    }
    Ok(if has_failed { EXIT_FAILURE } else { exit_code(&stop) })
}

/// Runs one turn of a comparison, as the parent process orders, and prints its result.
fn run_turn(options: &Options) -> Result<u8, RunError> {
    let order = process::order().or_fail("read the SPEC of a turn from standard input");
    let (has_groups, spec): (bool, Spec) = order?;
    let directory = options.directory()?;
    let (stop, progress) = (Stop::default(), Progress::on_stderr());
    stop.on_ctrl_c().or_fail("listen for Ctrl-C")?;
    let parent = stop.clone();
    process::on_end_of_input(move || {
        parent.request();
    });
    let job = Job { spec: &spec, directory: &directory, progress: &progress, stop: &stop };
    let report = sqlite::run(&job, has_groups, None)?;
    report.map_or(Ok(()), |report| output::print(&output::json(&report)?))?;
    Ok(exit_code(&stop))
}

/// Reads an address that no other machine reaches.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse().ok().filter(|address: &SocketAddr| address.ip().is_loopback());
    address.ok_or_else(|| "not a loopback address with a port, such as 127.0.0.1:9191".to_owned())
}

fn exit_code(stop: &Stop) -> u8 {
    if stop.requested() { EXIT_INTERRUPTED } else { 0 }
}
