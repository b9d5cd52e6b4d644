//! Live view of a run: progress on standard error, or the watched groups on standard output.

mod frame;
mod screen;
pub(crate) mod watch;

use std::time::Duration;

use crate::run::backend::Backend;
use crate::run::base::progress::{Bar, Progress};
use crate::run::base::stop::Stop;
use crate::run::base::units;
pub(crate) use screen::restore;
use watch::{Form, Watch};

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

/// View of the running statements. Dropping it restores the terminal.
pub(crate) enum Live<'a> {
    Watch(Watch<'a>),
    Progress { bar: Bar<'a>, seconds: f64 },
}

impl<'a> Live<'a> {
    /// Starts the view of a run of that many `seconds`: the groups of `backend` in `form`, otherwise progress. A key can request
    /// the `stop`.
    pub(crate) fn start(
        form: Option<Form>,
        seconds: f64,
        backend: &'a Backend,
        progress: &'a Progress,
        stop: &'a Stop,
    ) -> Live<'a> {
        if let Some(form) = form {
            return Live::Watch(Watch::start(form, backend, stop, seconds));
        }
        let length_ms = (seconds * 1_000.0) as u64;
        let bar = progress.bar(length_ms, "{bar:8} {wide_msg}", &format!("running for {seconds} s"));
        Live::Progress { bar, seconds }
    }

    /// Shows the tenants after `elapsed`.
    pub(crate) fn update(&mut self, elapsed: Duration, tenants: &[Counts<'_>]) {
        match self {
            Live::Watch(watch) => watch.update(elapsed, tenants),
            Live::Progress { bar, seconds } => {
                let time = elapsed.as_secs_f64().min(*seconds);
                let message = || format!("{time:.0} of {seconds} s  {}", line(tenants));
                let text = || format!("running {time:.0} of {seconds} s: {}", line(tenants));
                bar.update(elapsed.as_millis() as u64, message, text);
            }
        }
    }
}

/// All tenants on one line; counts of 0 are left out.
fn line(tenants: &[Counts<'_>]) -> String {
    let each = tenants.iter().map(|&Counts { name, done, refused, stopped, is_idle }| {
        let counts = [(done, ""), (refused, " refused"), (stopped, " stopped")];
        let mut parts: Vec<String> = counts
            .into_iter()
            .filter(|&(count, _)| count > 0)
            .map(|(count, suffix)| format!("{}{suffix}", units::count(count)))
            .collect();
        if parts.is_empty() {
            parts.push("0".to_owned());
        }
        format!("{name} {}{}", parts.join(" + "), if is_idle { ", idle" } else { "" })
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
