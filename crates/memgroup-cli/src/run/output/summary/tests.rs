use super::{Emphasis, of_report, wrapped};
use crate::run::report::tests::{idle, kills, report, tenant};
use crate::run::report::{RegimeReport, Report, WithoutRetries};
use crate::run::spec::Kind;

fn shown(memgroup: RegimeReport) -> String {
    of_report(&Report::of(memgroup), false, Emphasis(false))
}

/// A report of the built-in scenario with wide figures.
fn built_in() -> RegimeReport {
    let mut report = report(12_345);
    report.seconds = 86_400.0;
    report.tenants.insert(1, tenant("dashboards", Kind::Dashboards, 1_234_567, 12_345));
    report.tenants.insert(2, idle(tenant("archive", Kind::Dashboards, 45, 0), 1023 << 20, 1023 << 20));
    report.tenants.insert(3, tenant("etl", Kind::Etl, 12, 4_567));
    let requesters = ["dashboards", "etl", "lookups"];
    report.kills = Some(requesters.map(|requester| kills("runaway", requester, vec![20_400; 1_000])).into());
    for tenant in &mut report.tenants {
        tenant.killed = if tenant.is_greedy() { 54_321 } else { 0 };
        (tenant.retried, tenant.held.peak) = (98_765, Some(1023 << 20));
        tenant.figures.statistics.as_mut().expect("statistics").memory.set("gained", 1023 << 20);
    }
    report.tenants[3].would_refuse = Some(1_234_567);
    report.tenants[4].would_refuse = Some(1_234_567);
    report
}

fn three() -> Report {
    let mut unlimited = RegimeReport { guard: Some(11 << 30), ..built_in() };
    unlimited.all.max = None;
    let mut baseline = RegimeReport { reclaim: None, ..built_in() };
    baseline.tenants[2].idle.as_mut().expect("idle").reclaimed = None;
    Report { unlimited: Some(unlimited), baseline: Some(baseline), ..Report::of(built_in()) }
}

#[test]
fn prints_the_tenants_and_the_outcome() {
    let expected = "\
2 tenants, 20.0 s of statements, seed 1

tenant            done  refused  stopped  retried      p50     p99   peak   max
-------------------------------------------------------------------------------
lookups      1,234,567        0        0        0  12.5 us  2.5 ms  16.0M   16M
runaway              0      120        0        0        -       -  16.0M   16M
-------------------------------------------------------------------------------
all tenants  1,234,567      120        0        0        -       -  32.0M  128M

Only statements of `runaway` (120 refused) failed for lack of memory.
Page cache freed to make room for a tenant, its own included, each time counted: `lookups` (1.0M)
  and `runaway` (1.0M).
With --details: tables of memory, reclaim, time and limits
";
    assert_eq!(shown(report(0)), expected);
}

#[test]
fn fits_24_lines_of_100_columns() {
    for (report, cut) in [(Report::of(built_in()), 1), (three(), 1)] {
        let text = of_report(&report, false, Emphasis(false));
        assert!(text.lines().count() <= 24, "{} lines: {text}", text.lines().count());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.ends_with(&format!("and more sentences ({cut})\n")), "{text}");
    }
}

#[test]
fn fits_100_columns_with_details() {
    let text = of_report(&three(), true, Emphasis(false));
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for part in [
        "page cache",
        "freed",
        "throttled",
        "protected",
        "\nwith SQLite's heap limit\ntenant",
        "First refusal of `runaway`",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("--details"), "{text}");
}

#[test]
fn compares_regimes_in_one_table() {
    let mut unlimited = RegimeReport { guard: Some(11 << 30), ..report(0) };
    unlimited.all.max = None;
    unlimited.tenants[1].refused = 0;
    let mut memgroup = report(0);
    memgroup.tenants[0].p99_us = Some(3_000.0);
    memgroup.without_retries = Some(WithoutRetries { failed: 2, failing: 1 });
    let compared = Report { unlimited: Some(unlimited), baseline: Some(report(3)), ..Report::of(memgroup) };
    let expected = "\
2 tenants, 20.0 s of statements, seed 1

                    with memgroup  without limits  with SQLite's heap limit
---------------------------------------------------------------------------
most memory held    32.0M of 128M           32.0M             32.0M of 128M
well-behaved: done      1,234,567       1,234,567                 1,234,567
well-behaved: failed            0               0                         3
well-behaved: retried           0               0                         0
tenants that fail if not retried  1 of 1               -                         -
runaway: failed               120               0                       120
";
    let text = of_report(&compared, false, Emphasis(false));
    for (line, expected) in text.lines().zip(expected.lines()) {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(line.starts_with("---") || words(line) == words(expected), "{text}");
    }
    for sentence in [
        "\nWith memgroup, only statements of `runaway` failed.\n",
        "\nWithout limits, no statement failed; the guard of 11.0G was not reached.\n",
        "\nWith memgroup, the p99 is 1.20 times (`lookups`) that without limits.\n",
    ] {
        assert!(text.contains(sentence), "{text}");
    }
    let heap =
        "With SQLite's heap limit, statements of `runaway` failed, and also of `lookups` (3 of 1,234,570).";
    assert!(text.replace("\n  ", " ").contains(heap), "{text}");
    assert!(!text.contains("page cache") && text.matches("lookups: p50, p99").count() == 1, "{text}");
}

#[test]
fn says_that_the_guard_was_reached() {
    let unlimited = RegimeReport { guard: Some(11 << 30), ..report(0) };
    let compared = Report { unlimited: Some(unlimited), ..Report::of(report(0)) };
    let text = of_report(&compared, false, Emphasis(false)).replace("\n  ", " ");
    assert!(text.contains("only statements of `runaway` failed; the guard of 11.0G was reached."), "{text}");
}

#[test]
fn says_that_ctrl_c_ended_an_interrupted_run() {
    assert!(shown(report(0)).starts_with("2 tenants, 20.0 s of statements, seed 1\n"));
    let early = RegimeReport { interrupted: true, ..report(0) };
    assert!(shown(early).starts_with("2 tenants, 20.0 s of statements, seed 1, ended by Ctrl-C\n"));
}

#[test]
fn says_one_tenant_and_without_reclaim_in_the_head() {
    let mut alone = report(0);
    alone.tenants.truncate(1);
    assert!(shown(alone).starts_with("1 tenant, 20.0 s of statements, seed 1\n"));
    let off = RegimeReport { reclaim: Some(false), ..report(0) };
    assert!(shown(off).starts_with("2 tenants, 20.0 s of statements, seed 1, without reclaim\n"));
}

#[test]
fn omits_a_first_refusal_without_details() {
    let mut baseline = report(3);
    baseline.tenants[0].first_refusal = Some("out of memory".to_owned());
    let compared = Report { baseline: Some(baseline), ..Report::of(report(0)) };
    let text = of_report(&compared, true, Emphasis(false));
    assert!(!text.contains("First refusal of `lookups`"), "{text}");
    assert!(text.contains("First refusal of `runaway` with SQLite's heap limit: /tenants"), "{text}");
}

#[test]
fn emphasises_failures_of_well_behaved_tenants_only() {
    let compared = Report { baseline: Some(report(3)), ..Report::of(report(3)) };
    let emphatic = of_report(&compared, true, Emphasis(true));
    let mut plain = emphatic.clone();
    for code in ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m"] {
        plain = plain.replace(code, "");
    }
    assert_eq!(plain, of_report(&compared, true, Emphasis(false)));
    assert!(emphatic.contains("\x1b[31m3\x1b[0m") && !emphatic.contains("\x1b[31m120"), "{emphatic}");
}

#[test]
fn wraps_sentences_between_words() {
    let text = wrapped(&"word ".repeat(50));
    assert_eq!(text.split_whitespace().count(), 50);
    assert!(text.lines().all(|line| line.len() <= 100) && text.lines().count() == 3, "{text}");
    assert!(text.lines().skip(1).all(|line| line.starts_with("  word")));
    assert_eq!(wrapped("short"), "short\n");
}
