//! A case is measured beside the others of its table, and said once: it becomes a row of the table
//! and of the JSON, and its account is checked at the end.

use serde_json::Value;

use super::prelude::*;

/// A row: its work, and the check of what the work has done.
pub(crate) struct Case<'w> {
    /// The metric in the JSON, and the begin of the row's name.
    pub(crate) name: String,
    /// The variant in the JSON, and the second cell. A control has "(control)" in it.
    pub(crate) by: &'static str,
    /// The rest of the row's name: its threads, for example.
    pub(crate) what: String,
    pub(crate) params: Value,
    pub(crate) threads: usize,
    pub(crate) work: Box<Work<'w>>,
    pub(crate) beside: Option<Beside<'w>>,
    pub(crate) end: End<'w>,
}

/// The check of a case.
pub(crate) type End<'w> = Box<dyn FnOnce(&Measured) -> Result<()> + 'w>;

impl<'w> Case<'w> {
    /// Work of one thread that is alone and has no account.
    pub(crate) fn new(
        name: impl Into<String>,
        by: &'static str,
        what: impl Into<String>,
        work: impl Fn(usize, &mut usize, u64) -> Result<u64> + Sync + 'w,
    ) -> Case<'w> {
        let (name, what, work) = (name.into(), what.into(), Box::new(work));
        Case { name, by, what, params: json!({}), threads: 1, work, beside: None, end: Box::new(|_| Ok(())) }
    }
}

impl<'w> Case<'w> {
    /// The same work on one thread, and on `threads` if that is more.
    pub(crate) fn scaled(
        threads: usize,
        name: &'static str,
        by: &'static str,
        params: &Value,
        work: impl Fn(usize, &mut usize, u64) -> Result<u64> + Copy + Sync + 'w,
    ) -> impl Iterator<Item = Case<'w>> {
        [1, threads].into_iter().take(threads.min(2)).map(move |threads| {
            let mut params = params.clone();
            params["threads"] = threads.into();
            Case { threads, params, ..Case::new(name, by, counted(threads as u64, "thread"), work) }
        })
    }
}

/// The figures of the cases of one table, by name, variant and the rest of the name.
pub(crate) struct Found(Vec<([String; 3], Measured)>);

impl Found {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &([String; 3], Measured)> {
        self.0.iter()
    }

    pub(crate) fn of(&self, name: &str, by: &str, what: &str) -> Option<Measured> {
        self.0.iter().find(|(cells, _)| *cells == [name, by, what]).map(|(_, of)| *of)
    }

    /// The median of the same in nanoseconds.
    pub(crate) fn ns(&self, name: &str, by: &str, what: &str) -> Option<f64> {
        self.of(name, by, what).and_then(|of| median(of.ns))
    }

    /// The same of work that was [scaled](Case::scaled): on one thread, and on all.
    pub(crate) fn scale(&self, threads: usize, name: &str, by: &str) -> [Option<f64>; 2] {
        [1, threads].map(|threads| self.ns(name, by, &counted(threads as u64, "thread")))
    }
}

impl Lab<'_> {
    /// Measures cases, interleaved, checks each, records its time, and prints the table. Each time
    /// is compared with that of the first case of the same row name.
    ///
    /// `cells` returns what the further columns have for a case: from its figures, and the median
    /// of that first one.
    pub(crate) fn measure<const N: usize>(
        &mut self,
        [title, note]: [&str; 2],
        plan: Plan,
        cases: Vec<Case<'_>>,
        columns: [&str; N],
        cells: impl Fn(&Case<'_>, &Measured, Option<f64>) -> [String; N],
    ) -> Result<Found> {
        let variants = cases.iter().map(|case| Variant {
            work: &*case.work,
            threads: case.threads,
            beside: case.beside,
        });
        let variants: Vec<_> = variants.collect();
        let measured = self.interleave_by(plan, &variants)?;
        let first = ["", "by", "ns: median (min..p90)", "over", "cycles"];
        let mut table = Table::new(title, first.into_iter().chain(columns));
        let mut found = Found(Vec::new());
        for (case, one) in cases.into_iter().zip(&measured) {
            let mut earlier = found.0.iter();
            let first = earlier.find(|([name, _, what], _)| (name, what) == (&case.name, &case.what));
            let first = median(first.map_or(one.ns, |(_, first)| first.ns));
            let ns = self.record(case.by, case.params.clone()).time(&case.name, one.ns);
            let cycles = figure_or_dash(median(one.ns).and_then(|ns| self.clock.cycles(ns)));
            let row = [case.by.to_owned(), ns, times(ratio(median(one.ns), first)), cycles];
            let name = [&*case.name, &case.what].join(if case.what.is_empty() { "" } else { ", " });
            table.row(name, row.into_iter().chain(cells(&case, one, first)));
            (case.end)(one)?;
            found.0.push(([case.name, case.by.to_owned(), case.what], *one));
        }
        note_windows(&mut table, &measured);
        table.note(note);
        self.print(&table)?;
        Ok(found)
    }
}
