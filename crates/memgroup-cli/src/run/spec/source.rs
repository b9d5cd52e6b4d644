//! Source: the tables of a TOML text, which are read key by key, with errors that name the file,
//! the line and the key.
//!
//! - I1. A key is read at most once. A key that is still unread in `finish` is unknown, which is an
//!   error.
//! - I2. An error quotes at most `REPEATED_MAX` characters of each part of the text.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::Range;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::run::base::RunError;

/// The most characters of a key, a value or a line that an error quotes.
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

/// The values that a key may have: a description for errors, and a function that reads one.
pub(super) struct Values<'v, T>(pub(super) &'v str, pub(super) &'v dyn Fn(&DeValue<'_>) -> Option<T>);

/// A value, and where it stands.
pub(super) struct Found<'a, T> {
    pub(super) value: T,
    source: Source<'a>,
    span: Range<usize>,
    /// "key `max` of tenant `etl`".
    subject: String,
}

impl<T> Found<'_, T> {
    /// Returns the error that the value isn't allowed. `reason` says why, and which values are.
    pub(super) fn wrong(&self, reason: impl Display) -> RunError {
        self.source.error(self.span.start, format_args!("{} is {}; {reason}", self.subject, self.shown()))
    }

    /// Returns the value as it's written.
    fn shown(&self) -> String {
        cut(self.source.text.get(self.span.clone()).unwrap_or_default())
    }
}

/// A TOML table that is read key by key.
pub(super) struct Table<'a> {
    source: Source<'a>,
    /// " of tenant `etl`"; empty for the document.
    owner: String,
    /// Position of its header.
    at: usize,
    /// Keys that were asked for, which an error about an unknown one lists.
    known: BTreeSet<&'static str>,
    unread: DeTable<'a>,
    /// Another table in which each key may stand.
    other: Option<Box<Table<'a>>>,
}

impl<'a> Table<'a> {
    fn new(source: Source<'a>, owner: String, at: usize, unread: DeTable<'a>) -> Table<'a> {
        Table { source, owner, at, known: BTreeSet::new(), unread, other: None }
    }

    /// Uses the tenant's `name` in later errors.
    pub(super) fn set_name(&mut self, name: &str) {
        self.owner = format!(" of tenant `{name}`");
    }

    /// Also takes keys from the table `[key]`, if it exists. A key may stand in both if it has the
    /// same value.
    pub(super) fn take_in(&mut self, key: &'static str) -> Result<(), RunError> {
        let wrong = format!("key `{key}` is not a table; allowed: [{key}]");
        let other = self.take(key).map(|value| self.inner(value, format!(" of [{key}]"), &wrong));
        self.other = other.transpose()?.map(Box::new);
        Ok(())
    }

    /// Returns the value under `key`; none without the key.
    pub(super) fn find<T: PartialEq>(
        &mut self,
        key: &'static str,
        values: &Values<'_, T>,
    ) -> Result<Option<Found<'a, T>>, RunError> {
        let other = self.other.as_mut().map_or(Ok(None), |other| other.find(key, values))?;
        let Some(raw) = self.take(key) else { return Ok(other) };
        let (source, span, subject) = (self.source, raw.span(), format!("key `{key}`{}", self.owner));
        let Some(value) = values.1(raw.get_ref()) else {
            let found = Found { value: (), source, span, subject };
            return Err(found.wrong(format_args!("allowed: {}", values.0)));
        };
        let found = Found { value, source, span, subject };
        match other.filter(|other| other.value != found.value) {
            Some(other) => {
                let (line, shown) = (source.line(found.span.start), found.shown());
                Err(other.wrong(format_args!(
                    "line {line} says {shown} outside of [run]; allowed: to say it in one place"
                )))
            }
            None => Ok(Some(found)),
        }
    }

    /// Returns the value under `key`; `unset` without the key.
    pub(super) fn get<T: PartialEq>(
        &mut self,
        key: &'static str,
        unset: T,
        values: &Values<'_, T>,
    ) -> Result<T, RunError> {
        Ok(self.find(key, values)?.map_or(unset, |found| found.value))
    }

    /// Returns the value under `key`, which must be there.
    pub(super) fn need<T: PartialEq>(
        &mut self,
        key: &'static str,
        values: &Values<'_, T>,
    ) -> Result<Found<'a, T>, RunError> {
        let missing = format!("key `{key}`{} is missing; allowed: {}", self.owner, values.0);
        self.find(key, values)?.ok_or_else(|| self.wrong(missing))
    }

    /// Returns the tables `[[key]]`; none without such a key.
    pub(super) fn tables(&mut self, key: &'static str) -> Result<Vec<Table<'a>>, RunError> {
        let wrong = format!("key `{key}` is not a list of tables; allowed: [[{key}]]");
        let Some(value) = self.take(key) else { return Ok(Vec::new()) };
        let at = value.span().start;
        let DeValue::Array(items) = value.into_inner() else { return Err(self.source.error(at, wrong)) };
        let items = (1..).zip(items);
        items.map(|(number, item)| self.inner(item, format!(" of {key} {number}"), &wrong)).collect()
    }

    /// Ends reading. Fails if a key is left, because it's unknown.
    pub(super) fn finish(mut self) -> Result<(), RunError> {
        self.other.take().map_or(Ok(()), |other| other.finish())?;
        let Some(key) = self.unread.keys().min_by_key(|key| key.span().start) else { return Ok(()) };
        let stem = |key: &str| key.trim_end_matches('s').to_ascii_lowercase();
        let meant = self.known.iter().find(|known| stem(known) == stem(key.get_ref()));
        let hint = meant.map(|meant| format!(" (is `{meant}` meant?)")).unwrap_or_default();
        let known = Vec::from_iter(self.known.iter().copied()).join(", ");
        let text = format!("key `{}`{} is unknown{hint}; allowed: {known}", cut(key.get_ref()), self.owner);
        Err(self.source.error(key.span().start, text))
    }

    /// Returns the error that the table is wrong as a whole. `text` says why.
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

/// Reads a whole number.
pub(super) fn integer(value: &DeValue<'_>) -> Option<i128> {
    let integer = value.as_integer()?;
    i128::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// Reads a number with or without a fraction.
pub(super) fn number(value: &DeValue<'_>) -> Option<f64> {
    let float = || value.as_float()?.as_str().parse().ok();
    integer(value).map(|integer| integer as f64).or_else(float)
}

/// Reads a number of bytes: an integer, or a text such as "64M". The inner result is none for
/// "max".
pub(super) fn bytes(value: &DeValue<'_>) -> Option<Option<u64>> {
    let integer = integer(value).map(|integer| integer.to_string());
    memgroup::parse_bytes(value.as_str().or(integer.as_deref())?).ok()
}

/// Reads the name of a variant.
pub(super) fn variant<T: DeserializeOwned>(value: &DeValue<'_>) -> Option<T> {
    let name: StrDeserializer<'_, Error> = value.as_str()?.into_deserializer();
    T::deserialize(name).ok()
}

/// Replaces each character of `text` that a terminal would obey.
fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Cuts a long `text`, and adds an ellipsis (I2).
fn cut(text: &str) -> String {
    match text.char_indices().nth(REPEATED_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
