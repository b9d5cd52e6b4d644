//! Source: a TOML text as tables that are read key by key, with errors that name file, line and
//! key.
//!
//! - I1. A key is read at most once. A key that `finish` finds unread is unknown, and an error.
//! - I2. An error repeats at most `REPEATED_MAX` characters of each part of the text.

use std::collections::BTreeSet;
use std::fmt::Display;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::run::base::RunError;

/// The most characters of a key, a value or a line that an error repeats.
const REPEATED_MAX: usize = 80;

/// A text and the name of its file.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl<'a> Source<'a> {
    /// Parses the whole document into a table.
    pub(super) fn parse(self) -> Result<Table<'a>, RunError> {
        let document = DeTable::parse(self.text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = self.text.lines().nth(self.line(at) - 1).unwrap_or_default();
            let (message, line) = (cut(error.message()), cut(line.trim()));
            self.error(at, format_args!("not TOML: {message}, in `{line}`"))
        })?;
        Ok(Table::new(self, String::new(), 0, document.into_inner()))
    }

    fn error(self, at: usize, text: impl Display) -> RunError {
        let text = plain(&text.to_string());
        RunError::Usage(format!("{}:{}: {text}", self.file, self.line(at)))
    }

    fn line(self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|&byte| byte == b'\n').count()
    }
}

/// The values that a key may have: as errors describe them, and their reader.
pub(super) struct Values<'v, T>(pub(super) &'v str, pub(super) &'v dyn Fn(&DeValue<'_>) -> Option<T>);

/// A value and its place.
pub(super) struct Found<'a, T> {
    pub(super) value: T,
    source: Source<'a>,
    at: usize,
    /// "key `max` of tenant `etl`".
    subject: String,
    /// The value as an error repeats it.
    shown: String,
}

impl<T> Found<'_, T> {
    /// Error: the value is not allowed. `reason` says why, and which values are.
    pub(super) fn wrong(&self, reason: impl Display) -> RunError {
        self.source.error(self.at, format_args!("{} is {}; {reason}", self.subject, self.shown))
    }

    /// Line and value, for an error about two places.
    pub(super) fn place(&self) -> String {
        format!("line {} says {}", self.source.line(self.at), self.shown)
    }
}

/// A TOML table that is read key by key.
pub(super) struct Table<'a> {
    source: Source<'a>,
    /// " of tenant `etl`"; empty for the document.
    owner: String,
    /// Place of its header.
    at: usize,
    /// Keys that were asked for, for the error about an unknown one.
    known: BTreeSet<&'static str>,
    unread: DeTable<'a>,
}

impl<'a> Table<'a> {
    fn new(source: Source<'a>, owner: String, at: usize, unread: DeTable<'a>) -> Table<'a> {
        Table { source, owner, at, known: BTreeSet::new(), unread }
    }

    /// Uses the tenant's `name` in later errors.
    pub(super) fn set_name(&mut self, name: &str) {
        self.owner = format!(" of tenant `{name}`");
    }

    /// The value under `key`; none without the key.
    pub(super) fn find<T>(
        &mut self,
        key: &'static str,
        values: &Values<'_, T>,
    ) -> Result<Option<Found<'a, T>>, RunError> {
        let Some(raw) = self.take(key) else { return Ok(None) };
        let (subject, shown) = (format!("key `{key}`{}", self.owner), shown(raw.get_ref()));
        let (source, at) = (self.source, raw.span().start);
        let wrong = || source.error(at, format_args!("{subject} is {shown}; allowed: {}", values.0));
        let value = values.1(raw.get_ref()).ok_or_else(wrong)?;
        Ok(Some(Found { value, source, at, subject, shown }))
    }

    /// The value under `key`; `unset` without the key.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        unset: T,
        values: &Values<'_, T>,
    ) -> Result<T, RunError> {
        Ok(self.find(key, values)?.map_or(unset, |found| found.value))
    }

    /// The value under `key`, which must be there.
    pub(super) fn need<T>(
        &mut self,
        key: &'static str,
        values: &Values<'_, T>,
    ) -> Result<Found<'a, T>, RunError> {
        let missing = format!("key `{key}`{} is missing; allowed: {}", self.owner, values.0);
        self.find(key, values)?.ok_or_else(|| self.wrong(missing))
    }

    /// The table `[key]`, if it exists.
    pub(super) fn table(&mut self, key: &'static str) -> Result<Option<Table<'a>>, RunError> {
        let wrong = format!("key `{key}` is not a table; allowed: [{key}]");
        self.take(key).map(|value| self.inner(value, format!(" of [{key}]"), &wrong)).transpose()
    }

    /// The tables `[[key]]`; none without such a key.
    pub(super) fn tables(&mut self, key: &'static str) -> Result<Vec<Table<'a>>, RunError> {
        let wrong = format!("key `{key}` is not a list of tables; allowed: [[{key}]]");
        let Some(value) = self.take(key) else { return Ok(Vec::new()) };
        let at = value.span().start;
        let DeValue::Array(items) = value.into_inner() else { return Err(self.source.error(at, wrong)) };
        let items = (1..).zip(items);
        items.map(|(number, item)| self.inner(item, format!(" of {key} {number}"), &wrong)).collect()
    }

    /// Ends reading: a key that is left is unknown.
    pub(super) fn finish(self) -> Result<(), RunError> {
        let Some(key) = self.unread.keys().min_by_key(|key| key.span().start) else { return Ok(()) };
        let stem = |key: &str| key.trim_end_matches('s').to_ascii_lowercase();
        let meant = self.known.iter().find(|known| stem(known) == stem(key.get_ref()));
        let hint = meant.map(|meant| format!(" (is `{meant}` meant?)")).unwrap_or_default();
        let known = Vec::from_iter(self.known.iter().copied()).join(", ");
        let text = format!("key `{}`{} is unknown{hint}; allowed: {known}", cut(key.get_ref()), self.owner);
        Err(self.source.error(key.span().start, text))
    }

    /// Error: the table is wrong as a whole. `text` says why.
    pub(super) fn wrong(&self, text: impl Display) -> RunError {
        self.source.error(self.at, text)
    }

    fn take(&mut self, key: &'static str) -> Option<Spanned<DeValue<'a>>> {
        self.known.insert(key);
        self.unread.remove(key)
    }

    fn inner(&self, value: Spanned<DeValue<'a>>, owner: String, wrong: &str) -> Result<Table<'a>, RunError> {
        let at = value.span().start;
        match value.into_inner() {
            DeValue::Table(entries) => Ok(Table::new(self.source, owner, at, entries)),
            _ => Err(self.source.error(at, wrong)),
        }
    }
}

/// A whole number.
pub(super) fn integer(value: &DeValue<'_>) -> Option<i128> {
    let integer = value.as_integer()?;
    i128::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// A number with or without a fraction.
pub(super) fn number(value: &DeValue<'_>) -> Option<f64> {
    let float = || value.as_float()?.as_str().parse().ok();
    integer(value).map(|integer| integer as f64).or_else(float)
}

/// A number of bytes: an integer, or a text such as "64M"; an inner none for "max".
pub(super) fn bytes(value: &DeValue<'_>) -> Option<Option<u64>> {
    let integer = integer(value).map(|integer| integer.to_string());
    memgroup::parse_bytes(value.as_str().or(integer.as_deref())?).ok()
}

/// The variant with the name that `value` is.
pub(super) fn variant<T: DeserializeOwned>(value: &DeValue<'_>) -> Option<T> {
    let name: StrDeserializer<'_, Error> = value.as_str()?.into_deserializer();
    T::deserialize(name).ok()
}

/// Returns `text` with a replacement for each character that a terminal would obey.
fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// `text`, its end as an ellipsis if it is long (I2).
fn cut(text: &str) -> String {
    match text.char_indices().nth(REPEATED_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The value as it is written, with a bound; a table by its kind.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", cut(text)),
        DeValue::Integer(integer) => cut(&integer.to_string()),
        DeValue::Float(float) => cut(&float.to_string()),
        DeValue::Boolean(boolean) => boolean.to_string(),
        DeValue::Datetime(datetime) => datetime.to_string(),
        DeValue::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| shown(item.get_ref())).collect();
            cut(&format!("[{}]", items.join(", ")))
        }
        DeValue::Table(_) => "a table".to_owned(),
    }
}
