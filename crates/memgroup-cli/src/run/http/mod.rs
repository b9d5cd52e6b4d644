//! Engine `http`: an HTTP server in a process of its own, and the tenants' requests to it.
//!
//! ```text
//!   SPEC ─▶ bound ─▶ server (child process: groups, handlers) ◀─ requests ─ client (threads) ─▶ report
//! ```
//!
//! The server is a process of its own, so that its memory doesn't include the clients', and so that
//! it may die. With `--baseline` a second server runs the same handlers without memgroup, under a
//! bound of the same size.

mod bound;
mod client;
mod server;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
pub(crate) use server::serve;

use crate::blocks;
use crate::run::base::process::{self, Child};
use crate::run::base::{OrFail, RunError};
use crate::run::data::Job;
use crate::run::report::{RegimeReport, Report, Server};
use crate::run::spec::Spec;
use crate::run::work;
use bound::Bound;
use client::Client;
use server::Order;

/// Time within which a server must tell its figures. One that never answers is an error, and is
/// ended.
const FIGURES_WITHIN: Duration = Duration::from_secs(5);

/// Runs the tenants of `job` with memgroup; with `compares` also without. Returns the report, and
/// whether memgroup's own server died.
pub(crate) fn run(job: &Job<'_>, compares: bool) -> Result<(Report, bool), RunError> {
    let spec = job.spec;
    if compares && spec.process_max_bytes.is_none() {
        return Err(RunError::Usage(
            "--baseline needs a bound of the server: give the SPEC a top-level key `process_max`, such as process_max = \"192M\""
                .to_owned(),
        ));
    }
    let bound = spec.process_max_bytes.map(Bound::make);
    let compared = turn(job, bound.as_ref(), true).and_then(|memgroup| {
        let compares = compares && !job.stop.requested();
        let baseline = compares.then(|| turn(job, bound.as_ref(), false)).transpose()?;
        Ok(Report { memgroup, baseline })
    });
    bound.as_ref().into_iter().for_each(Bound::remove);
    let report = compared?;
    let has_died = report.memgroup.server.as_ref().is_some_and(|server| server.died_seconds.is_some());
    Ok((report, has_died))
}

/// Starts a server, sends all requests to it, and reports.
fn turn(job: &Job<'_>, bound: Option<&Bound>, has_groups: bool) -> Result<RegimeReport, RunError> {
    let spec = job.spec;
    let mut process = Process::start(spec, has_groups, bound)?;
    let mut clients = Vec::new();
    for (index, tenant) in spec.tenants.iter().enumerate() {
        for number in 0..tenant.threads {
            clients.push((index, Client::new(spec.seed, tenant, number, process.address)?));
        }
    }
    let (title, id) = (if has_groups { "with" } else { "without" }, process.child.process.id());
    let first = format!("running {title} memgroup for {} s, server: process {id}", spec.seconds);
    let started = Instant::now();
    let (elapsed, results, _) = work::run(job, clients, &first, || process.look(started), |_| {})?;
    let asked = has_groups.then(|| process.figures());
    process.look(started);
    let seconds = elapsed.as_secs_f64();
    let mut report = match asked {
        Some(figures) if process.server.died_seconds.is_none() => figures?,
        // If the server died, the figures of its groups are lost.
        _ => RegimeReport::of_groups(None, spec, seconds),
    };
    report.tenants.iter_mut().zip(results).for_each(|(tenant, results)| results.report(tenant));
    report.seconds = seconds;
    report.interrupted = job.stop.requested();
    report.server = Some(process.server.clone());
    Ok(report)
}

/// The server's process. Dropping it ends the process.
struct Process {
    child: Child,
    address: SocketAddr,
    server: Server,
}

impl Process {
    fn start(spec: &Spec, has_groups: bool, bound: Option<&Bound>) -> Result<Process, RunError> {
        let action = "start the server";
        let order = Order { spec: spec.clone(), has_groups, bound: bound.cloned() };
        let environment = |command: &mut Command| {
            // Each arena of the system's allocator reserves 64M of the address space, and holds on
            // to memory that was freed.
            command.env_remove(blocks::CHARGED).env("MALLOC_ARENA_MAX", "2");
            if has_groups {
                command.env(blocks::CHARGED, "1");
            }
        };
        let (child, output) = Child::start(&["--server"], environment, &order).or_fail(action)?;
        let mut port = String::new();
        BufReader::new(output).read_line(&mut port).or_fail(action)?;
        let port = port.trim().parse().map_err(|_| "it told no port").or_fail(action)?;
        let server =
            Server { bound: bound.map(Bound::title), max: bound.map(Bound::bytes), ..Server::default() };
        Ok(Process { child, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)), server })
    }

    /// Records the server's memory, and whether it lives.
    fn look(&mut self, started: Instant) {
        let Process { child, server, .. } = self;
        if server.died_seconds.is_some() {
            return;
        }
        if let Ok(Some(status)) = child.process.try_wait() {
            server.died_seconds = Some(started.elapsed().as_secs_f64());
            server.died_of = Some(status.to_string());
        }
        let resident = process::proc_bytes(&child.process.id().to_string(), "VmHWM");
        server.resident_peak = server.resident_peak.max(resident.unwrap_or(0));
    }

    /// Asks the server for the figures of its groups.
    fn figures(&self) -> Result<RegimeReport, RunError> {
        let action = "ask the server for its figures";
        let ask = async {
            let mut sender = client::connect(self.address).await?;
            let request = hyper::Request::get("/")
                .header("host", "localhost")
                .body(client::Content::Left(Default::default()))?;
            let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
            Ok::<_, client::Failed>(serde_json::from_slice(&body)?)
        };
        client::runtime()?
            .block_on(async { tokio::time::timeout(FIGURES_WITHIN, ask).await })
            .map_err(|_| format!("no answer within {} s", FIGURES_WITHIN.as_secs()))
            .or_fail(action)?
            .or_fail(action)
    }
}
