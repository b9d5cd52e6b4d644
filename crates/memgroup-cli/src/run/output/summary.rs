//! Summary: the report on one screen, and the details below it on request.
//!
//! - I1. No line is wider than 100 columns with names of up to 14 letters.

use super::sentences::{self, SENTENCES_MAX, WIDTH};
use super::table::{Column, DONE, Emphasis, MAX, P50, P99, PEAK, REFUSED, STOPPED, count, of_tenants};
use super::{comparison, details};
use crate::run::backend::Regime;
use crate::run::report::{RegimeReport, Report};

/// Results of the statements of each tenant, their latencies, and its memory.
const TENANTS: &[Column] =
    &[DONE, REFUSED, STOPPED, ("retried", |tenant| count(tenant.retried)), P50, P99, PEAK, MAX];

/// The whole report as text.
pub(super) fn of_report(report: &Report, details: bool, emphasis: Emphasis) -> String {
    let regimes = report.regimes();
    let own = &report.memgroup;
    let mut head = head("statements", own);
    if own.reclaim == Some(false) {
        head += ", without reclaim";
    }
    if regimes.iter().any(|(_, report)| report.interrupted) {
        head += ", ended by Ctrl-C";
    }
    let mut text = emphasis.heading(&head) + "\n\n";
    let is_comparison = regimes.len() > 1;
    if is_comparison {
        text += &comparison::table(&regimes, emphasis);
    }
    for &(regime, report) in regimes.iter().filter(|_| details || !is_comparison) {
        if is_comparison {
            text += &format!("\n{}\n", emphasis.heading(regime.title()));
        }
        text += &of_tenants(report, TENANTS, emphasis);
        if details && regime == Regime::Groups {
            text += &details::tables(report, emphasis);
        }
    }
    let mut sentences = if is_comparison {
        sentences::of_comparison(&regimes)
    } else {
        vec![sentences::outcome(None, own) + "."]
    };
    if !is_comparison || details {
        sentences.extend(sentences::of_run(own));
    }
    let mut hint = "With --details: tables of memory, reclaim, time and limits".to_owned();
    if details {
        sentences.extend(sentences::details(&regimes));
        hint.clear();
    } else if sentences.len() > SENTENCES_MAX {
        hint += &format!(", and more sentences ({})", sentences.len() - SENTENCES_MAX);
        sentences.truncate(SENTENCES_MAX);
    }
    text += "\n";
    text.extend(sentences.iter().map(|sentence| wrapped(sentence)));
    if !hint.is_empty() {
        text += &(emphasis.aside(&hint) + "\n");
    }
    text
}

/// The first line of a report: its tenants, and the seconds of their work.
pub(super) fn head(work: &str, report: &RegimeReport) -> String {
    let tenants = match report.tenants.len() {
        1 => "1 tenant".to_owned(),
        many => format!("{many} tenants"),
    };
    format!("{tenants}, {:.1} s of {work}, seed {}", report.seconds, report.seed)
}

/// Breaks `text` into lines of at most `WIDTH` columns. Later lines are indented.
pub(super) fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            lines += "\n  ";
            column = 2;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines += word;
        column += length;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests;
