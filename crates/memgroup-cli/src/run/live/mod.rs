//! Live view of a run: its progress on standard error, and its groups by a server.

mod serve;

use std::time::Duration;

use crate::run::base::progress::Bar;
use crate::run::base::units;
use crate::run::data::Job;
pub(crate) use serve::serve;

/// Counts of a tenant while the run lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts<'a> {
    pub(crate) name: &'a str,
    /// Statements done.
    pub(crate) done: u64,
    /// Statements refused.
    pub(crate) refused: u64,
    /// Statements stopped to free memory.
    pub(crate) stopped: u64,
    /// Its work is over.
    pub(crate) is_idle: bool,
}

/// Progress of the running statements.
pub(crate) struct Live<'a> {
    bar: Bar<'a>,
    seconds: f64,
}

impl<'a> Live<'a> {
    /// Starts to show the progress of a run.
    pub(crate) fn start(job: &Job<'a>) -> Live<'a> {
        let seconds = job.spec.seconds;
        let first = format!("running for {seconds} s");
        Live { bar: job.progress.bar((seconds * 1_000.0) as u64, "{bar:8} {wide_msg}", &first), seconds }
    }

    /// Shows the tenants after `elapsed`.
    pub(crate) fn update(&mut self, elapsed: Duration, tenants: &[Counts<'_>]) {
        let time = elapsed.as_secs_f64().min(self.seconds);
        let time = format!("{time:.0} of {} s", self.seconds);
        let message = || format!("{time}  {}", line(tenants));
        let plain = || format!("running {time}: {}", line(tenants));
        self.bar.update(elapsed.as_millis() as u64, message, plain);
    }
}

/// All tenants on one line; counts of 0 are left out.
fn line(tenants: &[Counts<'_>]) -> String {
    let each = tenants.iter().map(|&Counts { name, done, refused, stopped, is_idle }| {
        let counts = [(done, ""), (refused, " refused"), (stopped, " stopped")];
        let counts = counts.into_iter().filter(|&(count, _)| count > 0);
        let parts: Vec<_> = counts.map(|(count, kind)| units::count(count) + kind).collect();
        let text = if parts.is_empty() { "0".to_owned() } else { parts.join(" + ") };
        format!("{name} {text}{}", if is_idle { ", idle" } else { "" })
    });
    each.collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::{Counts, line};

    #[test]
    fn leaves_out_counts_of_zero() {
        let counts = |name, done, refused, stopped, is_idle| Counts { name, done, refused, stopped, is_idle };
        let text = line(&[
            counts("a", 12_345, 0, 0, false),
            counts("b", 3, 1_000, 0, true),
            counts("c", 0, 7, 2, false),
            counts("d", 0, 0, 0, false),
            counts("e", 0, 0, 4, false),
        ]);
        assert_eq!(text, "a 12,345  b 3 + 1,000 refused, idle  c 7 refused + 2 stopped  d 0  e 4 stopped");
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
