//! Engine `sqlite`: the tenants' statements in this process, and the comparison with SQLite's heap
//! limit.
//!
//! - I1. SQLite's allocator is chosen once per process, so each turn of a comparison runs in a
//!   process of its own: this program with the option `--turn`. It prints its result as JSON.
//! - I2. The turns run one after the other, on the same files, with the same seconds and seed.
//! - I3. A failed turn costs only its own result. Without memgroup's own result there is no
//!   comparison.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::run::backend::Backend;
use crate::run::backend::session::Session;
use crate::run::base::process::{Child, EXIT_INTERRUPTED};
use crate::run::base::{Failure, OrFail, RunError};
use crate::run::data::workload::Workload;
use crate::run::data::{self, Job};
use crate::run::report::{Held, RegimeReport, Report};
use crate::run::serve;
use crate::run::spec::{Kind, TenantSpec};
use crate::run::work::{self, Run, Step};

/// Time between two polls of a child.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// A connection of a tenant, and its statements.
struct Client<'a> {
    tenant: &'a TenantSpec,
    session: Session,
    workload: Workload,
}

impl work::Client for Client<'_> {
    fn next(&mut self, run: Run<'_>) -> Step {
        let (deadline, mut tries) = (Instant::now() + self.tenant.patience, 0);
        let work = self.workload.next();
        let result = self.session.run_until(deadline, run.ending, |connection| {
            tries += 1;
            work.run(connection, || !run.is_over())
        });
        let sql = || work.sql.split_whitespace().collect::<Vec<_>>().join(" ");
        let result = match result {
            Ok(0) => Err(Failure::Other(format!("a row that exists was not found: {}", sql()))),
            Ok(_) => Ok(()),
            // The end of the run ended the wait for memory.
            Err(Failure::Refused(_)) if !self.tenant.patience.is_zero() && run.is_ending() => {
                Err(Failure::Interrupted)
            }
            Err(Failure::Other(error)) => Err(Failure::Other(format!("{error}: {}", sql()))),
            Err(failure) => Err(failure),
        };
        // A hoard takes as long as its tenant works.
        let is_timed = result.is_ok() && self.tenant.workload != Kind::Hoarder;
        Step { result, retries: u64::max(tries, 1) - 1, is_timed }
    }

    fn page_cache_bytes(&self) -> u64 {
        self.session.page_cache_bytes()
    }
}

/// Runs the tenants in this process, with groups or under SQLite's heap limit, and serves the
/// groups, also at `address`. The result is none if a stop was requested before the first
/// statement.
pub(crate) fn run(
    job: &Job<'_>,
    has_groups: bool,
    address: Option<SocketAddr>,
) -> Result<Option<RegimeReport>, RunError> {
    let spec = job.spec;
    let backend = Backend::build(has_groups, spec)?;
    let groups = backend.groups();
    let _server = groups.map(|groups| serve::serve(&groups.hierarchy, address, job.progress)).transpose()?;
    let loader = backend.create_loader()?;
    let Some(databases) = data::prepare(job, loader.as_ref())? else { return Ok(None) };
    data::read_through(&databases)?;
    backend.end_loading(loader)?;
    let mut clients = Vec::new();
    for (index, (tenant, database)) in spec.tenants.iter().zip(&databases).enumerate() {
        for number in 0..tenant.threads {
            let session = backend.open(index, tenant, &database.path)?;
            let workload = Workload::new(tenant.workload, tenant.scale, spec.seed, &tenant.name, number);
            clients.push((index, Client { tenant, session, workload }));
        }
    }
    let interrupters: Vec<_> = clients.iter().map(|(_, client)| client.session.interrupter()).collect();
    let interrupt = |number: usize| {
        interrupters[number].interrupt();
        if let Some(groups) = groups {
            groups.parent.wake_waiters();
        }
    };
    let first = format!("running for {} s", spec.seconds);
    let (elapsed, results, clients) = work::run(job, clients, &first, || {}, interrupt)?;
    // The memory is that of the end, before the connections are closed.
    let mut report = RegimeReport::of_groups(groups, spec, elapsed.as_secs_f64());
    if let Some([usage, peak, max]) = backend.heap() {
        report.all = Held { usage, peak, max };
    }
    drop(clients);
    report.interrupted = job.stop.requested();
    for ((tenant, results), database) in report.tenants.iter_mut().zip(results).zip(databases) {
        results.report(tenant);
        tenant.database = database.bytes;
    }
    backend.check_empty(spec)?;
    Ok(Some(report))
}

/// Runs a turn with memgroup and one without. Returns the report, if memgroup's own turn had a
/// result, and whether a turn failed.
pub(crate) fn compare(job: &Job<'_>) -> Result<(Option<Report>, bool), RunError> {
    if job.spec.max_bytes.is_none() {
        let text = "--baseline needs a number to compare with: give the SPEC a top-level key `max`, such as max = \"128M\"";
        return Err(RunError::Usage(text.to_owned()));
    }
    if data::prepare(job, None)?.is_none() {
        return Ok((None, false));
    }
    let mut has_failed = false;
    let mut turn = |number: u32, title: &str| {
        job.progress.line(&format!("{number} of 2: {title}"));
        let result = turn(job, number == 1).or_fail(format_args!("run the work {title}"));
        result.unwrap_or_else(|error| {
            has_failed = true;
            job.progress.line(&format!("memgroup: {error}"));
            None
        })
    };
    let Some(memgroup) = turn(1, "with memgroup") else { return Ok((None, has_failed)) };
    let baseline = (!job.stop.requested()).then(|| turn(2, "without memgroup, under SQLite's heap limit"));
    Ok((Some(Report { memgroup, baseline: baseline.flatten() }), has_failed))
}

/// Runs one turn in a process of its own. The result is none if the turn was stopped before it had
/// one.
fn turn(job: &Job<'_>, has_groups: bool) -> Result<Option<RegimeReport>, Box<dyn Error>> {
    let data = |command: &mut Command| {
        command.arg("--data").arg(job.directory);
    };
    let (mut child, output) = Child::start(&["--turn"], data, &(has_groups, job.spec))?;
    let reader = thread::spawn(move || io::read_to_string(output));
    let status = loop {
        if let Some(status) = child.process.try_wait()? {
            break status;
        }
        if job.stop.requested() {
            child.input = None;
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
