//! Output: the JSON to its file or standard output, the table to the reader.
//!
//! - I1. A regular file has either its old content or the whole JSON, because the JSON is written
//!   under another name and then renamed. It's written in place only if the directory takes no new
//!   file.
//! - I2. The JSON is written before the table, so it isn't lost if a reader closes its pipe.
//! - I3. A closed pipe is no error.

mod text;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::run::base::{OrFail, RunError, beside};
use crate::run::report::Report;

/// Name of standard output as a destination of the JSON.
pub(crate) const STDOUT: &str = "-";

/// Checks before the run that the JSON can be written. The content of the file stays.
pub(crate) fn check(file: &Path) -> Result<(), RunError> {
    let checked = match fs::metadata(file) {
        _ if file == Path::new(STDOUT) => Ok(()),
        Ok(metadata) if metadata.is_file() || metadata.is_dir() => {
            File::options().append(true).open(file).map(drop)
        }
        // Opening a pipe would wait for its reader, and closing it would end the reader's input.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => beside(file, ".new").map(drop),
        Err(error) => Err(error),
    };
    let allowed =
        |error| format!("{error}; --json takes a file that can be written, or - for standard output");
    checked.map_err(allowed).or_fail(format_args!("write the report to {}", file.display()))
}

/// Replaces `file` by a new file with `text` (I1). A device, a pipe, and a file in a directory that
/// takes no new file are written in place.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    // With the canonical path, a link stays a link.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let old = fs::metadata(&target).ok();
    let is_regular = old.as_ref().is_none_or(fs::Metadata::is_file);
    let Some(mut new) = is_regular.then(|| beside(&target, ".new").ok()).flatten() else {
        return fs::write(file, text);
    };
    new.write_all(text.as_bytes())?;
    old.map_or(Ok(()), |old| new.as_file().set_permissions(old.permissions()))?;
    new.persist(target).map(drop).map_err(|failed| failed.error)
}

/// Formats the report for a reader: a line about the run, the table, and a sentence for each
/// tenant.
fn text(report: &Report) -> String {
    let own = &report.memgroup;
    let mut head = match own.tenants.len() {
        1 => "1 tenant".to_owned(),
        many => format!("{many} tenants"),
    };
    let work = if own.server.is_some() { "requests" } else { "statements" };
    head += &format!(", {:.1} s of {work}, seed {}", own.seconds, own.seed);
    if own.reclaim == Some(false) {
        head += ", without reclaim";
    }
    if let Some(bound) = own.server.as_ref().and_then(|server| server.bound.as_ref()) {
        head += &format!(", server under {bound}");
    }
    if own.interrupted || report.baseline.as_ref().is_some_and(|other| other.interrupted) {
        head += ", ended by Ctrl-C";
    }
    format!("{head}\n\n{}\n{}", text::table(report), text::sentences(report))
}

/// Writes the JSON to its file, if it has one, then the table to standard output, or to standard
/// error if the JSON is on standard output.
pub(crate) fn publish(report: &Report, file: Option<&Path>) -> Result<(), RunError> {
    let is_stdout = file == Some(Path::new(STDOUT));
    let written = file.map_or(Ok(()), |file| {
        let text = json(report)?;
        if is_stdout {
            return print(&text);
        }
        replace(file, &text).or_fail(format_args!("write the report to {}", file.display()))
    });
    if is_stdout {
        // Standard error may be closed; the JSON matters more.
        let _ = io::stderr().lock().write_all(text(report).as_bytes());
        return written;
    }
    // The table is printed even if the JSON could not be written.
    let printed = print(&text(report));
    written.and(printed)
}

/// Formats a report as JSON.
pub(crate) fn json(report: &impl serde::Serialize) -> Result<String, RunError> {
    serde_json::to_string_pretty(report).map(|text| text + "\n").or_fail("write the report as JSON")
}

/// Prints `text` to standard output. A closed pipe is no error (I3).
pub(crate) fn print(text: &str) -> Result<(), RunError> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.or_fail("write the report to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use memgroup::{Config, Hierarchy};

    use super::{check, replace, text};
    use crate::run::report::{Held, Idle, RegimeReport, Report, Server, Tally, TenantReport};
    use crate::run::spec::Kind;

    fn tenant(name: &str, workload: Kind, tally: Tally) -> TenantReport {
        let us = (tally.done > 0).then_some(12.5);
        let held = Held { usage: Some(15 << 20), peak: Some(16 << 20), max: Some(24 << 20) };
        let name = name.to_owned();
        TenantReport {
            name,
            workload,
            tally,
            p50_us: us,
            p99_us: us.map(|us| us * 200.0),
            held,
            ..TenantReport::default()
        }
    }

    /// Three tenants: one that works, one that is refused, and one that is idle.
    fn report() -> RegimeReport {
        let done = |done| Tally { done, ..Tally::default() };
        let archive = tenant("archive", Kind::Dashboards, done(22));
        let idle = Idle { since_seconds: 2.0, page_cache: 30 << 20 };
        RegimeReport {
            seconds: 20.0,
            seed: 1,
            reclaim: Some(true),
            tenants: vec![
                tenant("lookups", Kind::Lookups, done(1_234_567)),
                tenant("runaway", Kind::Runaway, Tally { refused: 1_185, killed: 2, ..Tally::default() }),
                TenantReport { idle: Some(idle), page_cache: 8 << 20, ..archive },
            ],
            all: Held { usage: Some(45 << 20), peak: Some(48 << 20), max: Some(100 << 20) },
            ..RegimeReport::default()
        }
    }

    #[test]
    fn prints_a_table_and_a_sentence_for_each_tenant() {
        let expected = "\
3 tenants, 20.0 s of statements, seed 1

 tenant             done   refused   stopped   retried       p50      p99    peak    max
-----------------------------------------------------------------------------------------
 lookups       1,234,567         0         0         0   12.5 us   2.5 ms   16.0M    24M
 runaway               0     1,185         2         0         -        -   16.0M    24M
 archive              22         0         0         0   12.5 us   2.5 ms   16.0M    24M
 all tenants   1,234,589     1,185         2         0         -        -   48.0M   100M

`lookups`: no statement failed.
`runaway`: all statements failed for lack of memory (1,185 refused, 2 stopped).
`archive`: no statement failed; it was idle from second 2.0, and kept 8.0M of 30.0M in its page
  cache.
";
        assert_eq!(text(&Report { memgroup: report(), baseline: None }), expected);
    }

    #[test]
    fn compares_each_tenant_on_one_screen() {
        let mut without = report();
        without.tenants[0].tally.refused = 1_000_000;
        (without.tenants[1].tally, without.interrupted) = (Tally::default(), true);
        let text = text(&Report { memgroup: report(), baseline: Some(without) });
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with(", seed 1, ended by Ctrl-C"), "{text}");
        assert!(lines[4].starts_with(" lookups ") && lines[5].starts_with("   without memgroup "), "{text}");
        assert!(lines.len() <= 24 && lines.iter().all(|line| line.chars().count() <= 100), "{text}");
        let text = text.replace("\n  ", " ");
        let said = "`lookups`: no statement failed; without memgroup 1,000,000 of 2,234,567 statements";
        assert!(text.contains(said), "{text}");
        assert!(text.contains("without memgroup no statement began before the run ended"), "{text}");
    }

    #[test]
    fn tells_of_statements_that_only_went_on_after_retries() {
        let mut report = report();
        report.tenants[0].tally.retried = 87;
        report.tenants[1].tally = Tally { retried: 641, ..Tally::default() };
        let text = text(&Report { memgroup: report, baseline: None });
        assert!(text.contains("`lookups`: no statement failed, after 87 tries that lacked memory"), "{text}");
        assert!(text.contains("`runaway`: no statement ended: all 641 tries lacked memory"), "{text}");
    }

    #[test]
    fn tells_how_a_server_ended() {
        let server = |died_seconds: Option<f64>| Server {
            bound: Some("RLIMIT_AS".to_owned()),
            max: Some(64 << 20),
            resident_peak: 30 << 20,
            died_seconds,
            died_of: died_seconds.map(|_| "signal: 9 (SIGKILL)".to_owned()),
        };
        let mut own = RegimeReport { server: Some(server(None)), ..report() };
        own.tenants[0].workload = Kind::Requests;
        let mut without = RegimeReport { server: Some(server(Some(1.5))), ..report() };
        without.tenants[0].workload = Kind::Requests;
        without.tenants[0].tally.lost = 3;
        let text = text(&Report { memgroup: own, baseline: Some(without) }).replace("\n  ", " ");
        for part in [
            "3 tenants, 20.0 s of requests, seed 1, server under RLIMIT_AS\n",
            " lost ",
            "\nWith memgroup the server lived; at most 30.0M of it were in memory.\n",
            "\nWithout memgroup the server died after 1.50 s (signal: 9 (SIGKILL)); at most 30.0M",
            "`lookups`: no request failed; without memgroup 3 of 1,234,570 requests failed for lack of memory (3 lost).",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("retried"), "{text}");
    }

    #[test]
    fn tells_what_the_engine_did_for_a_tenant() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a hierarchy");
        let group = hierarchy.create("/tenants").and_then(|all| all.create("lookups")).expect("a group");
        group.set_max(10).expect("a limit");
        group.set_enforced(false);
        let _held = group.try_charge(20).expect("it only counts");
        let own = RegimeReport { groups: Some(hierarchy.snapshot()), ..report() };
        let text = text(&Report { memgroup: own, baseline: None });
        let said =
            "`lookups`: no statement failed; its limit is not enforced, and would have refused 1 charge.";
        assert!(text.contains(said), "{text}");
    }

    #[test]
    fn keeps_the_old_file_until_the_new_one_is_complete() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("a.json");
        let count = || fs::read_dir(directory.path()).expect("a directory").count();
        check(&file).expect("writable");
        assert_eq!(count(), 0, "the check leaves no file");
        replace(&file, "first").expect("it is written");
        check(&file).expect("writable");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "first");
        replace(&file, "second").expect("it is written");
        assert_eq!((fs::read_to_string(&file).expect("a file").as_str(), count()), ("second", 1));
    }

    #[cfg(unix)]
    #[test]
    fn keeps_links_and_devices() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, link) = (directory.path().join("a.json"), directory.path().join("link"));
        fs::write(&file, "old").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        check(&link).expect("writable");
        replace(&link, "new").expect("it is written");
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        assert_eq!(fs::read_to_string(&file).expect("a file"), "new");
        let null = Path::new("/dev/null");
        check(null).expect("writable");
        replace(null, "new").expect("it is written");
        assert!(!fs::metadata(null).expect("a device").is_file());
    }

    #[test]
    fn refuses_a_directory_before_the_run() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = check(directory.path()).expect_err("a directory").to_string();
        assert!(error.contains(&directory.path().display().to_string()), "{error}");
    }
}
