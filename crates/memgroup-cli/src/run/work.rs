//! Work: the clients of all tenants, a thread each, until the run ends, and their results.
//!
//! A client of SQLite runs statements on a connection, and one of the HTTP server posts requests.
//!
//! - I1. Each statement or request that begins is counted once: done, refused, stopped, lost or
//!   interrupted.
//! - I2. A tenant that becomes idle keeps its clients. Each of its threads has begun a statement,
//!   however late it started.
//! - I3. If an interrupted request has waited longer than all others of its client, its time counts
//!   as a latency, because it would have taken at least that long. So even a tenant that waits
//!   forever has one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::run::base::{Failure, OrFail, RunError, joined, units};
use crate::run::data::Job;
use crate::run::report::{Idle, Latencies, Tally, TenantReport};

/// Time between two updates of the progress.
const WATCH_EVERY: Duration = Duration::from_millis(20);
/// Time between two interruptions at the end of a run. An interruption between two statements has
/// no effect.
const INTERRUPT_EVERY: Duration = Duration::from_millis(2);
/// Time between two checks whether an earlier tenant is idle.
const TURN_EVERY: Duration = Duration::from_millis(5);
/// Pause after a lost connection.
const LOST_PAUSE: Duration = Duration::from_millis(100);

/// A connection of a tenant to its engine.
pub(crate) trait Client: Send {
    /// Runs the next statement or request. It ends soon after the run does.
    fn next(&mut self, run: Run<'_>) -> Step;

    /// Returns the bytes of its page caches.
    fn page_cache_bytes(&self) -> u64 {
        0
    }
}

/// A statement or request that has ended.
pub(crate) struct Step {
    pub(crate) result: Result<(), Failure>,
    pub(crate) retries: u64,
    /// Its time is a latency (I3).
    pub(crate) is_timed: bool,
}

/// Results of one tenant, which its threads and the watcher share.
#[derive(Debug, Default)]
pub(crate) struct Results {
    tally: Tally,
    latencies: Latencies,
    /// Bytes of the page caches at the end.
    page_cache: u64,
    /// Threads that have work left.
    busy: u32,
    /// The threads that have none left.
    idle: Idle,
}

impl Results {
    /// Counts a statement or request, the time that it `took`, and the `longest` time that one of
    /// the same client took before. The error is any failure besides lack of memory.
    fn add(&mut self, step: Step, took: Duration, longest: Duration) -> Result<(), String> {
        if step.is_timed && (step.result.is_ok() || took > longest) {
            self.latencies.record(took);
        }
        let tally = &mut self.tally;
        tally.retried += step.retries;
        let count = match step.result {
            Ok(()) => &mut tally.done,
            Err(Failure::Refused(text)) => {
                tally.first_refusal.get_or_insert(text);
                &mut tally.refused
            }
            Err(Failure::Killed) => &mut tally.killed,
            Err(Failure::Interrupted) => &mut tally.interrupted,
            Err(Failure::Lost) => &mut tally.lost,
            Err(Failure::Other(error)) => return Err(error),
        };
        *count += 1;
        Ok(())
    }

    /// Notes that a thread has no work left.
    fn rest(&mut self, page_cache: u64, since: Duration) {
        self.busy -= 1;
        self.idle.page_cache += page_cache;
        self.idle.since_seconds = self.idle.since_seconds.max(since.as_secs_f64());
    }

    fn is_idle(&self) -> bool {
        self.busy == 0
    }

    /// Writes the results into the tenant's report.
    pub(crate) fn report(self, tenant: &mut TenantReport) {
        tenant.idle = self.is_idle().then_some(self.idle);
        tenant.page_cache = self.page_cache;
        [tenant.p50_us, tenant.p99_us] = [0.50, 0.99].map(|share| self.latencies.quantile_us(share));
        tenant.tally = self.tally;
    }
}

/// A run, as its threads see it.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    job: &'a Job<'a>,
    /// In the order of the SPEC.
    results: &'a [Mutex<Results>],
    pub(crate) ending: &'a AtomicBool,
    started: Instant,
    /// The end of the tenant's work, if that comes before the end of the run.
    ends: Option<Instant>,
}

/// Runs the clients, each with the index of its tenant, until the seconds of `job` are over or a
/// stop is requested. It prints `first`, shows the progress, calls `look` now and then, and at the
/// end calls `interrupt` for each client that is still at work, until all have ended. Returns the
/// time of the run, the results in the order of the tenants, and the clients.
pub(crate) fn run<C: Client>(
    job: &Job<'_>,
    clients: Vec<(usize, C)>,
    first: &str,
    look: impl FnMut(),
    interrupt: impl Fn(usize),
) -> Result<(Duration, Vec<Results>, Vec<C>), RunError> {
    let busy = job.spec.tenants.iter().map(|tenant| tenant.threads);
    let results: Vec<_> = busy.map(|busy| Mutex::new(Results { busy, ..Results::default() })).collect();
    let ending = AtomicBool::new(false);
    let run = Run { job, results: &results, ending: &ending, started: Instant::now(), ends: None };
    let (elapsed, clients) = thread::scope(|threads| {
        let drive = |(index, client)| threads.spawn(move || run.drive(index, client));
        let handles: Vec<_> = clients.into_iter().map(drive).collect();
        run.watch(&handles, first, look);
        let elapsed = run.started.elapsed();
        run.end();
        while !handles.iter().all(ScopedJoinHandle::is_finished) {
            for (number, handle) in handles.iter().enumerate().filter(|(_, handle)| !handle.is_finished()) {
                interrupt(number);
                handle.thread().unpark();
            }
            thread::sleep(INTERRUPT_EVERY);
        }
        (elapsed, handles.into_iter().map(joined).collect::<Result<_, _>>())
    });
    let results = results.into_iter().map(|one| one.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok((elapsed, results.collect(), clients?))
}

impl Run<'_> {
    pub(crate) fn is_ending(&self) -> bool {
        // ORDERING: Relaxed, here and in `end`, because only the flag is handed over. A client that
        // sees it late runs one more statement.
        self.ending.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Returns whether the tenant's work is over.
    pub(crate) fn is_over(&self) -> bool {
        self.is_ending() || self.ends.is_some_and(|ends| Instant::now() >= ends)
    }

    fn results(&self, index: usize) -> MutexGuard<'_, Results> {
        self.results[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the progress until the time is over, a stop is requested, or a client failed.
    fn watch<T>(&self, handles: &[ScopedJoinHandle<'_, T>], first: &str, mut look: impl FnMut()) {
        let seconds = self.job.spec.seconds;
        let whole = Duration::from_secs_f64(seconds);
        let mut bar = self.job.progress.bar(whole.as_millis() as u64, "{bar:8} {wide_msg}", first);
        loop {
            let elapsed = self.started.elapsed();
            if elapsed >= whole || self.job.stop.requested() || self.is_ending() {
                return;
            }
            look();
            let tenants = self.job.spec.tenants.iter().enumerate();
            let tenants =
                || tenants.clone().map(|(index, tenant)| counts(&tenant.name, &self.results(index)));
            let line = || tenants().collect::<Vec<_>>().join("  ");
            let time = format!("{:.0} of {seconds} s", elapsed.as_secs_f64().min(seconds));
            let message = || format!("{time}  {}", line());
            bar.update(elapsed.as_millis() as u64, message, || format!("running {time}: {}", line()));
            thread::sleep(WATCH_EVERY.min(whole - elapsed));
            if handles.iter().all(ScopedJoinHandle::is_finished) {
                return;
            }
        }
    }

    /// Sleeps for `pause`, or until the run ends.
    fn pause(&self, pause: Duration) {
        let started = Instant::now();
        // This thread is unparked after the flag is set.
        while let Some(left) = pause.checked_sub(started.elapsed()).filter(|left| !left.is_zero())
            && !self.is_ending()
        {
            thread::park_timeout(left);
        }
    }

    /// Uses a client until the tenant's work is over, then waits for the end of the run. Any
    /// failure besides lack of memory ends the run.
    fn drive<C: Client>(mut self, index: usize, mut client: C) -> Result<C, RunError> {
        let tenant = &self.job.spec.tenants[index];
        while let Some(earlier) = tenant.after
            && !self.is_ending()
            && !self.results(earlier).is_idle()
        {
            self.pause(TURN_EVERY);
        }
        self.ends = tenant.work.map(|work| Instant::now() + work);
        let (mut has_begun, mut longest) = (false, Duration::ZERO);
        while !self.is_ending() {
            if has_begun && self.is_over() {
                let page_cache = client.page_cache_bytes();
                self.results(index).rest(page_cache, self.started.elapsed());
                self.pause(Duration::MAX);
                break;
            }
            has_begun = true;
            let started = Instant::now();
            let step = client.next(self);
            let took = started.elapsed();
            let pause = if matches!(step.result, Err(Failure::Lost)) { LOST_PAUSE } else { Duration::ZERO };
            if let Err(error) = self.results(index).add(step, took, longest) {
                self.end();
                return Err(error).or_fail(format_args!("do the work of tenant `{}`", tenant.name));
            }
            longest = longest.max(took);
            self.pause(pause + tenant.pause);
        }
        let page_cache = client.page_cache_bytes();
        self.results(index).page_cache += page_cache;
        Ok(client)
    }
}

/// Returns the counts of a tenant while the run lasts; those of 0 are left out.
fn counts(name: &str, results: &Results) -> String {
    let &Tally { done, refused, killed, lost, .. } = &results.tally;
    let counts = [(done, ""), (refused, " refused"), (killed, " stopped"), (lost, " lost")];
    let counts = counts.into_iter().filter(|&(count, _)| count > 0);
    let parts: Vec<_> = counts.map(|(count, kind)| units::count(count) + kind).collect();
    let text = if parts.is_empty() { "0".to_owned() } else { parts.join(" + ") };
    format!("{name} {text}{}", if results.is_idle() { ", idle" } else { "" })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::{Client, Failure, Results, Run, Step, Tally, TenantReport, counts, run};
    use crate::run::base::process::Stop;
    use crate::run::base::progress::Progress;
    use crate::run::data::Job;
    use crate::run::spec::Spec;

    #[test]
    fn leaves_out_counts_of_zero() {
        let text = |name, done, refused, killed, busy| {
            let tally = Tally { done, refused, killed, ..Tally::default() };
            counts(name, &Results { tally, busy, ..Results::default() })
        };
        let texts = [
            text("a", 12_345, 0, 0, 1),
            text("b", 3, 1_000, 0, 0),
            text("c", 0, 7, 2, 1),
            text("d", 0, 0, 0, 2),
            text("e", 0, 0, 4, 1),
        ];
        let expected =
            ["a 12,345", "b 3 + 1,000 refused, idle", "c 7 refused + 2 stopped", "d 0", "e 4 stopped"];
        assert_eq!(texts, expected);
    }

    #[test]
    fn counts_each_step_once_and_keeps_the_first_refusal() {
        let mut results = Results::default();
        let mut add = |result, is_timed, ms| {
            let step = Step { result, retries: 2, is_timed };
            results.add(step, Duration::from_millis(ms), Duration::from_millis(50))
        };
        add(Ok(()), true, 1).expect("it is done");
        add(Ok(()), false, 7_000).expect("a hoard is no latency");
        for text in ["first", "second"] {
            add(Err(Failure::Refused(text.to_owned())), false, 1).expect("a refusal");
        }
        add(Err(Failure::Killed), false, 1).expect("a kill");
        add(Err(Failure::Lost), false, 1).expect("a loss");
        add(Err(Failure::Interrupted), true, 49).expect("another took longer");
        add(Err(Failure::Interrupted), true, 3_000).expect("the longest");
        assert_eq!(add(Err(Failure::Other("bad".to_owned())), false, 1), Err("bad".to_owned()));
        let mut report = TenantReport::default();
        results.report(&mut report);
        let tally = report.tally;
        let counts = [tally.done, tally.refused, tally.killed, tally.lost, tally.interrupted, tally.retried];
        assert_eq!(counts, [2, 2, 1, 1, 2, 18]);
        assert_eq!(tally.first_refusal.as_deref(), Some("first"));
        let (half, most) = (report.p50_us.expect("a latency"), report.p99_us.expect("a latency"));
        assert!((999.0..1_001.0).contains(&half) && (2.99e6..3.01e6).contains(&most), "{half} {most}");
    }

    #[test]
    fn becomes_idle_with_the_last_thread() {
        let mut results = Results { busy: 2, ..Results::default() };
        results.rest(10, Duration::from_secs(5));
        assert!(!results.is_idle(), "a thread works");
        results.rest(10, Duration::from_secs(3));
        let mut report = TenantReport::default();
        results.report(&mut report);
        let idle = report.idle.expect("both threads are idle");
        assert_eq!((idle.since_seconds, idle.page_cache), (5.0, 20));
        Results { busy: 1, ..Results::default() }.report(&mut report);
        assert!(report.idle.is_none(), "a thread worked to the end");
    }

    /// A client whose requests take as long as the run, or fail.
    struct Fake {
        fails: bool,
    }

    impl Client for Fake {
        fn next(&mut self, run: Run<'_>) -> Step {
            while !self.fails && !run.is_ending() {
                std::thread::park();
            }
            let failure = if self.fails { Failure::Other("bad".to_owned()) } else { Failure::Interrupted };
            Step { result: Err(failure), retries: 0, is_timed: true }
        }
    }

    #[test]
    fn ends_with_its_seconds_a_stop_or_a_failure() {
        let tenant = |name| format!("[[tenant]]\nname = '{name}'\nworkload = 'etl'\nscale = 1\n");
        let text = |seconds| format!("seconds = {seconds}\n{}{}", tenant("a"), tenant("b"));
        let ended = |seconds, is_stopped, fails| {
            let spec = Spec::parse("a.toml", &text(seconds), None).expect("a valid SPEC");
            let (progress, stop) = (Progress::on_stderr(), Stop::default());
            let job = Job { spec: &spec, directory: Path::new(""), progress: &progress, stop: &stop };
            let look = || {
                let _ = is_stopped && stop.request();
            };
            let clients = vec![(0, Fake { fails: false }), (1, Fake { fails })];
            let (elapsed, results, clients) = run(&job, clients, "running", look, |_| {})?;
            let interrupted = results.iter().map(|results| results.tally.interrupted);
            assert_eq!((interrupted.sum::<u64>(), clients.len()), (2, 2));
            Ok::<_, super::RunError>(elapsed)
        };
        assert!(ended(0.2, false, false).expect("it ends") >= Duration::from_millis(200));
        assert!(ended(86_400.0, true, false).expect("it is stopped") < Duration::from_secs(86_400));
        let error = ended(86_400.0, false, true).expect_err("a failure").to_string();
        assert_eq!(error, "failed to do the work of tenant `b`: bad");
    }

    #[test]
    fn uses_valid_templates() {
        for template in
            ["  loading {msg:<14} {bar:30} {percent:>3} %  {human_pos} rows", "{bar:8} {wide_msg}"]
        {
            assert!(indicatif::ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
