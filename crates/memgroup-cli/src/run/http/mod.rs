//! Engine `http`: an HTTP server in a process of its own, and the tenants' requests to it.
//!
//! ```text
//!   SPEC ─▶ bound ─▶ server (child process: groups, handlers) ◀─ requests ─ client (threads) ─▶ report
//! ```
//!
//! The server is a process, so the client's memory is not the server's, and a server that dies is
//! seen. With `--baseline` a second server runs the same handlers without memgroup, under a bound
//! of the same size.

mod bound;
mod client;
mod load;
mod server;
mod work;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
pub(crate) use server::serve;

use crate::blocks;
use crate::run::base::child::{self, Child};
use crate::run::base::error::{OrFail, RunError};
use crate::run::base::progress::Progress;
use crate::run::base::stop::Stop;
use crate::run::report::{RegimeReport, Report, Server};
use crate::run::spec::Spec;
use bound::Bound;
use server::Order;

/// Time that a server has to tell its figures. One that never answers is an error, and is ended.
const FIGURES_WITHIN: Duration = Duration::from_secs(5);

/// Runs the tenants of `spec` with memgroup; with `compares` also without. Returns the report, and
/// whether memgroup's own server died.
pub(crate) fn run(
    spec: &Spec,
    compares: bool,
    progress: &Progress,
    stop: &Stop,
) -> Result<(Report, bool), RunError> {
    if compares && spec.process_max_bytes.is_none() {
        return Err(RunError::Usage(
            "--baseline needs a bound of the server: give the SPEC a top-level key `process_max`, such as process_max = \"192M\""
                .to_owned(),
        ));
    }
    let bound = spec.process_max_bytes.map(Bound::make);
    let turn = |title: &str, has_groups| {
        let mut server = Process::start(spec, has_groups, bound.as_ref())?;
        progress.line(&format!(
            "running {title} for {} s, server: process {}",
            spec.seconds,
            server.child.id()
        ));
        turn(spec, has_groups, &mut server, stop)
    };
    let compared = turn("with memgroup", true).and_then(|own| {
        let baseline =
            (compares && !stop.requested()).then(|| turn("without memgroup", false)).transpose()?;
        Ok(Report { memgroup: own, baseline })
    });
    bound.as_ref().into_iter().for_each(Bound::remove);
    let report = compared?;
    let has_died = report.memgroup.server.as_ref().is_some_and(|server| server.died_seconds.is_some());
    Ok((report, has_died))
}

/// Sends all requests to a server, and reports.
fn turn(spec: &Spec, has_groups: bool, server: &mut Process, stop: &Stop) -> Result<RegimeReport, RunError> {
    let address = server.address;
    let started = Instant::now();
    let (elapsed, tallies) = load::run(spec, stop, address, || server.look(started))?;
    let asked = has_groups.then(|| server.figures());
    server.look(started);
    let seconds = elapsed.as_secs_f64();
    let mut report = match asked {
        Some(figures) if server.died.is_none() => figures?,
        // The figures of its groups died with it.
        _ => RegimeReport::of_groups(None, spec, seconds),
    };
    for (tenant, (tally, latencies)) in report.tenants.iter_mut().zip(tallies) {
        tenant.set(tally, &latencies);
    }
    report.seconds = seconds;
    report.interrupted = stop.requested();
    report.server = Some(server.report());
    Ok(report)
}

/// The server's process. Dropping it ends the process.
struct Process {
    child: Child,
    bound: Option<Bound>,
    address: SocketAddr,
    resident_peak: u64,
    died: Option<(Duration, String)>,
}

impl Process {
    fn start(spec: &Spec, has_groups: bool, bound: Option<&Bound>) -> Result<Process, RunError> {
        let action = "start the server";
        let order = Order { spec: spec.clone(), has_groups, bound: bound.cloned() };
        let environment = |command: &mut Command| {
            // Each arena of the system's allocator reserves 64M of the address space, and keeps memory that
            // was freed.
            command.env_remove(blocks::CHARGED).env("MALLOC_ARENA_MAX", "2");
            if has_groups {
                command.env(blocks::CHARGED, "1");
            }
        };
        let (child, output) = Child::start(&["--server"], environment, &order).or_fail(action)?;
        let mut port = String::new();
        BufReader::new(output).read_line(&mut port).or_fail(action)?;
        let port = port.trim().parse().map_err(|_| "it told no port").or_fail(action)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Process { child, bound: order.bound, address, resident_peak: 0, died: None })
    }

    /// Notes the server's memory, and whether it lives.
    fn look(&mut self, started: Instant) {
        if self.died.is_some() {
            return;
        }
        if let Ok(Some(status)) = self.child.status() {
            self.died = Some((started.elapsed(), status.to_string()));
        }
        let resident = child::proc_bytes(&self.child.id().to_string(), "VmHWM");
        self.resident_peak = self.resident_peak.max(resident.unwrap_or(0));
    }

    /// Asks the server for the figures of its groups.
    fn figures(&self) -> Result<RegimeReport, RunError> {
        let action = "ask the server for its figures";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().or_fail(action)?;
        let ask = async {
            let stream = tokio::net::TcpStream::connect(self.address).await?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let request = hyper::Request::get("/").header("host", "localhost").body(Empty::<Bytes>::new())?;
            let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
            Ok::<_, Box<dyn std::error::Error>>(serde_json::from_slice(&body)?)
        };
        let asked = runtime.block_on(async { tokio::time::timeout(FIGURES_WITHIN, ask).await });
        asked
            .map_err(|_| format!("no answer within {} s", FIGURES_WITHIN.as_secs()))
            .or_fail(action)?
            .or_fail(action)
    }

    fn report(&self) -> Server {
        Server {
            bound: self.bound.as_ref().map(Bound::title),
            max: self.bound.as_ref().map(Bound::bytes),
            resident_peak: self.resident_peak,
            died_seconds: self.died.as_ref().map(|(after, _)| after.as_secs_f64()),
            died_of: self.died.as_ref().map(|(_, status)| status.clone()),
        }
    }
}
