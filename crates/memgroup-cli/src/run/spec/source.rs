//! Source: a TOML text whose values know their lines, so that errors can name them.
//!
//! - I1. A key is read at most once. A key that `finish` finds unread is unknown, and an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use toml::de::{DeTable, DeValue};

/// Error in a SPEC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpecError {
    file: String,
    /// Counted from 1; none if the error concerns the whole file.
    line: Option<usize>,
    text: String,
}

impl SpecError {
    /// An error that concerns the whole file.
    pub(crate) fn whole_file(file: &str, text: String) -> SpecError {
        SpecError { file: file.to_owned(), line: None, text }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.text),
            None => write!(f, "{}: {}", self.file, self.text),
        }
    }
}

impl std::error::Error for SpecError {}

/// A text and the name of its file.
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl<'a> Source<'a> {
    /// Parses the whole document into a table.
    pub(super) fn parse(&'a self) -> Result<Table<'a>, SpecError> {
        match DeTable::parse(self.text) {
            Ok(document) => Ok(Table::new(self, String::new(), 0, document.into_inner())),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                Err(self.error(at, format!("not TOML: {}", error.message())))
            }
        }
    }

    fn error(&self, at: usize, text: String) -> SpecError {
        SpecError { file: self.file.to_owned(), line: Some(self.line(at)), text }
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().iter().take(at);
        1 + before.filter(|&&byte| byte == b'\n').count()
    }
}

/// A value and its place.
pub(super) struct Found<'a, T> {
    pub(super) value: T,
    source: &'a Source<'a>,
    at: usize,
    /// "key `max` of tenant `etl`".
    subject: String,
    /// The value as written.
    shown: String,
}

impl<T> Found<'_, T> {
    /// Error: the value is not allowed. `allowed` says what is.
    pub(super) fn wrong(&self, allowed: &str) -> SpecError {
        self.source.error(self.at, format!("{} is {}; {allowed}", self.subject, self.shown))
    }
}

/// Names line and value, for an error about two places.
impl<T> fmt::Display for Found<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} says {}", self.source.line(self.at), self.shown)
    }
}

/// A TOML table that is read key by key.
pub(super) struct Table<'a> {
    source: &'a Source<'a>,
    /// " of tenant `etl`"; empty for the document.
    owner: String,
    /// Place of its header.
    at: usize,
    /// Keys that were asked for, for the error about an unknown one.
    known: BTreeSet<&'static str>,
    /// Unread keys: place of the key, place of the value, value.
    unread: BTreeMap<String, (usize, usize, DeValue<'a>)>,
}

impl<'a> Table<'a> {
    fn new(source: &'a Source<'a>, owner: String, at: usize, entries: DeTable<'a>) -> Table<'a> {
        let entry = |(key, value): (toml::Spanned<std::borrow::Cow<'_, str>>, toml::Spanned<DeValue<'a>>)| {
            let (key_at, value_at) = (key.span().start, value.span().start);
            (key.into_inner().into_owned(), (key_at, value_at, value.into_inner()))
        };
        let unread = entries.into_iter().map(entry).collect();
        Table { source, owner, at, known: BTreeSet::new(), unread }
    }

    /// Uses the tenant's `name` in later errors.
    pub(super) fn set_name(&mut self, name: &str) {
        self.owner = format!(" of tenant `{name}`");
    }

    /// Text under `key`.
    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<Found<'a, String>>, SpecError> {
        self.take(key, "a text in quotes", |value| match value {
            DeValue::String(text) => Some(text.to_string()),
            _ => None,
        })
    }

    /// Whole number under `key`.
    pub(super) fn integer(&mut self, key: &'static str) -> Result<Option<Found<'a, i128>>, SpecError> {
        self.take(key, "an integer", whole)
    }

    /// Whole number under `key` within `allowed` `unit`s; `unset` without the key.
    pub(super) fn within(
        &mut self,
        key: &'static str,
        unset: i128,
        allowed: RangeInclusive<i128>,
        unit: &str,
    ) -> Result<i128, SpecError> {
        match self.integer(key)? {
            None => Ok(unset),
            Some(found) if allowed.contains(&found.value) => Ok(found.value),
            Some(found) => {
                Err(found.wrong(&format!("allowed: {} to {}{unit}", allowed.start(), allowed.end())))
            }
        }
    }

    /// Number under `key`, with or without a fraction.
    pub(super) fn number(&mut self, key: &'static str) -> Result<Option<Found<'a, f64>>, SpecError> {
        self.take(key, "a number", |value| match value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            other => whole(other).map(|integer| integer as f64),
        })
    }

    /// `true` or `false` under `key`.
    pub(super) fn truth(&mut self, key: &'static str) -> Result<Option<Found<'a, bool>>, SpecError> {
        self.take(key, "true or false", |value| match value {
            DeValue::Boolean(truth) => Some(*truth),
            _ => None,
        })
    }

    /// Number of bytes under `key`: an integer, or a text such as "64M". None for "max".
    pub(super) fn bytes(
        &mut self,
        key: &'static str,
        allowed: &str,
    ) -> Result<Option<Found<'a, Option<u64>>>, SpecError> {
        self.take(key, allowed, |value| {
            let text = match value {
                DeValue::String(text) => text.to_string(),
                other => whole(other)?.to_string(),
            };
            memgroup::parse_bytes(&text).ok()
        })
    }

    /// Error: `key` is missing. `allowed` says what should stand there.
    pub(super) fn lacks(&self, key: &str, allowed: &str) -> SpecError {
        self.wrong(format!("key `{key}`{} is missing; allowed: {allowed}", self.owner))
    }

    /// The table `[key]`, if it exists.
    pub(super) fn table(&mut self, key: &'static str) -> Result<Option<Table<'a>>, SpecError> {
        self.known.insert(key);
        match self.unread.remove(key) {
            None => Ok(None),
            Some((_, at, DeValue::Table(entries))) => {
                Ok(Some(Table::new(self.source, format!(" of [{key}]"), at, entries)))
            }
            Some((at, ..)) => {
                Err(self.source.error(at, format!("key `{key}` is not a table; allowed: [{key}]")))
            }
        }
    }

    /// The tables `[[key]]`; none without such a key.
    pub(super) fn tables(&mut self, key: &'static str) -> Result<Vec<Table<'a>>, SpecError> {
        self.known.insert(key);
        let Some((at, _, value)) = self.unread.remove(key) else { return Ok(Vec::new()) };
        let wrong =
            || self.source.error(at, format!("key `{key}` is not a list of tables; allowed: [[{key}]]"));
        let DeValue::Array(items) = value else { return Err(wrong()) };
        let table = |(number, item): (usize, toml::Spanned<DeValue<'a>>)| {
            let place = item.span().start;
            match item.into_inner() {
                DeValue::Table(entries) => {
                    Ok(Table::new(self.source, format!(" of {key} {number}"), place, entries))
                }
                _ => Err(wrong()),
            }
        };
        (1..).zip(items).map(table).collect()
    }

    /// Ends reading: a key that is left is unknown.
    pub(super) fn finish(&self) -> Result<(), SpecError> {
        let first = self.unread.iter().min_by_key(|(_, (at, ..))| *at);
        let Some((key, (at, ..))) = first else { return Ok(()) };
        let stem = |key: &str| key.trim_end_matches('s').to_ascii_lowercase();
        let meant = self.known.iter().find(|known| stem(known) == stem(key));
        let hint = meant.map(|meant| format!(" (is `{meant}` meant?)")).unwrap_or_default();
        let known = self.known.iter().copied().collect::<Vec<_>>().join(", ");
        Err(self.source.error(*at, format!("key `{key}`{} is unknown{hint}; allowed: {known}", self.owner)))
    }

    /// Error: the table should not be there. `text` says why.
    pub(super) fn wrong(&self, text: String) -> SpecError {
        self.source.error(self.at, text)
    }

    fn take<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        read: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Result<Option<Found<'a, T>>, SpecError> {
        self.known.insert(key);
        let Some((_, at, value)) = self.unread.remove(key) else { return Ok(None) };
        let (subject, shown) = (format!("key `{key}`{}", self.owner), shown(&value));
        match read(&value) {
            Some(value) => Ok(Some(Found { value, source: self.source, at, subject, shown })),
            None => Err(self.source.error(at, format!("{subject} is {shown}; allowed: {allowed}"))),
        }
    }
}

fn whole(value: &DeValue<'_>) -> Option<i128> {
    match value {
        DeValue::Integer(integer) => i128::from_str_radix(integer.as_str(), integer.radix()).ok(),
        _ => None,
    }
}

/// The value as an error repeats it.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(integer) => integer.to_string(),
        DeValue::Float(float) => float.to_string(),
        DeValue::Boolean(boolean) => boolean.to_string(),
        DeValue::Datetime(datetime) => datetime.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
