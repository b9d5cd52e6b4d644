//! A TOML text whose every value knows its line, so that an error can say where it is.
//!
//! - I1. A key is read at most once; what `finish` finds unread is unknown, hence an error.

use std::collections::BTreeMap;
use std::fmt;

use toml::de::{DeTable, DeValue};

/// A SPEC that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpecError {
    file: String,
    /// Counted from 1; none where the file as a whole is wrong.
    line: Option<usize>,
    what: String,
}

impl SpecError {
    /// The file as a whole is wrong.
    pub(crate) fn whole_file(file: &str, what: String) -> SpecError {
        SpecError { file: file.to_owned(), line: None, what }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

impl std::error::Error for SpecError {}

/// A text and the name of its file.
pub(super) struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl<'a> Source<'a> {
    pub(super) fn new(file: &'a str, text: &'a str) -> Source<'a> {
        Source { file, text }
    }

    /// The table that is the whole document.
    pub(super) fn parse(&'a self) -> Result<Table<'a>, SpecError> {
        match DeTable::parse(self.text) {
            Ok(document) => Ok(Table::new(self, String::new(), 0, document.into_inner())),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                Err(self.error(at, format!("not TOML: {}", error.message())))
            }
        }
    }

    /// The document lacks `key`.
    pub(super) fn missing(&self, key: &str, allowed: &str) -> SpecError {
        SpecError::whole_file(self.file, format!("key `{key}` is missing; allowed: {allowed}"))
    }

    fn error(&self, at: usize, what: String) -> SpecError {
        SpecError { file: self.file.to_owned(), line: Some(self.line(at)), what }
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().iter().take(at);
        1 + before.filter(|&&byte| byte == b'\n').count()
    }
}

/// A value, and where it stands.
pub(super) struct Found<'a, T> {
    pub(super) value: T,
    source: &'a Source<'a>,
    at: usize,
    /// "key `max` of tenant `etl`".
    subject: String,
    /// "12".
    shown: String,
}

impl<T> Found<'_, T> {
    /// The value is not allowed; `what` says what is.
    pub(super) fn wrong(&self, what: String) -> SpecError {
        self.source.error(self.at, format!("{} is {}; {what}", self.subject, self.shown))
    }
}

/// What was found, and where, as the second place in an error about two.
impl<T> fmt::Display for Found<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} says {}", self.source.line(self.at), self.shown)
    }
}

/// A TOML table that is being read key by key.
pub(super) struct Table<'a> {
    source: &'a Source<'a>,
    /// " of tenant `etl`"; empty for the document itself.
    owner: String,
    /// Where its header stands.
    at: usize,
    /// What is not read yet: the key's place, its value's place, its value.
    unread: BTreeMap<String, (usize, usize, DeValue<'a>)>,
}

impl<'a> Table<'a> {
    fn new(source: &'a Source<'a>, owner: String, at: usize, entries: DeTable<'a>) -> Table<'a> {
        let mut unread = BTreeMap::new();
        for (key, value) in entries {
            let places = (key.span().start, value.span().start);
            unread.insert(key.into_inner().into_owned(), (places.0, places.1, value.into_inner()));
        }
        Table { source, owner, at, unread }
    }

    /// From here on errors call this tenant by `name`.
    pub(super) fn call(&mut self, name: &str) {
        self.owner = format!(" of tenant `{name}`");
    }

    /// Text under `key`.
    pub(super) fn text(&mut self, key: &str) -> Result<Option<Found<'a, String>>, SpecError> {
        self.take(key, "a text in quotes", |value| match value {
            DeValue::String(text) => Some(text.to_string()),
            _ => None,
        })
    }

    /// A whole number under `key`.
    pub(super) fn integer(&mut self, key: &str) -> Result<Option<Found<'a, i128>>, SpecError> {
        self.take(key, "an integer", whole)
    }

    /// A number under `key`, with or without a fraction.
    pub(super) fn number(&mut self, key: &str) -> Result<Option<Found<'a, f64>>, SpecError> {
        self.take(key, "a number", |value| match value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            other => whole(other).map(|integer| integer as f64),
        })
    }

    /// `true` or `false` under `key`.
    pub(super) fn truth(&mut self, key: &str) -> Result<Option<Found<'a, bool>>, SpecError> {
        self.take(key, "true or false", |value| match value {
            DeValue::Boolean(truth) => Some(*truth),
            _ => None,
        })
    }

    /// A number of bytes under `key`: an integer, or a text such as "64M" or "max".
    pub(super) fn bytes(&mut self, key: &str, allowed: &str) -> Result<Option<Found<'a, u64>>, SpecError> {
        self.take(key, allowed, |value| {
            let text = match value {
                DeValue::String(text) => text.to_string(),
                other => whole(other)?.to_string(),
            };
            memgroup::parse_bytes(&text).ok()
        })
    }

    /// Text that must be there.
    pub(super) fn required_text(&mut self, key: &str, allowed: &str) -> Result<Found<'a, String>, SpecError> {
        self.text(key)?.ok_or_else(|| self.lacks(key, allowed))
    }

    /// A number that must be there.
    pub(super) fn required_number(&mut self, key: &str, allowed: &str) -> Result<Found<'a, f64>, SpecError> {
        self.number(key)?.ok_or_else(|| self.lacks(key, allowed))
    }

    /// The table `[key]`, if there is one.
    pub(super) fn table(&mut self, key: &str) -> Result<Option<Table<'a>>, SpecError> {
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

    /// The tables `[[key]]`, none where there is no such key.
    pub(super) fn tables(&mut self, key: &str) -> Result<Vec<Table<'a>>, SpecError> {
        let wrong = |source: &Source<'_>, at| {
            Err(source.error(at, format!("key `{key}` is not a list of tables; allowed: [[{key}]]")))
        };
        match self.unread.remove(key) {
            None => Ok(Vec::new()),
            Some((at, _, DeValue::Array(items))) => {
                let mut tables = Vec::new();
                for (number, item) in (1..).zip(items) {
                    let place = item.span().start;
                    match item.into_inner() {
                        DeValue::Table(entries) => {
                            tables.push(Table::new(
                                self.source,
                                format!(" of {key} {number}"),
                                place,
                                entries,
                            ));
                        }
                        _ => return wrong(self.source, at),
                    }
                }
                Ok(tables)
            }
            Some((at, ..)) => wrong(self.source, at),
        }
    }

    /// All that is allowed was read; whatever is left is unknown.
    pub(super) fn finish(&self, allowed: &[&str]) -> Result<(), SpecError> {
        let first = self.unread.iter().min_by_key(|(_, (at, ..))| *at);
        match first {
            None => Ok(()),
            Some((key, (at, ..))) => {
                let stem = |key: &str| key.trim_end_matches('s').to_ascii_lowercase();
                let meant = allowed.iter().find(|allowed| stem(allowed) == stem(key));
                let hint = meant.map(|meant| format!(" (is `{meant}` meant?)")).unwrap_or_default();
                let what =
                    format!("key `{key}`{} is unknown{hint}; allowed: {}", self.owner, allowed.join(", "));
                Err(self.source.error(*at, what))
            }
        }
    }

    /// The table should not be there; `what` says why.
    pub(super) fn wrong(&self, what: String) -> SpecError {
        self.source.error(self.at, what)
    }

    fn lacks(&self, key: &str, allowed: &str) -> SpecError {
        self.source.error(self.at, format!("key `{key}`{} is missing; allowed: {allowed}", self.owner))
    }

    fn take<T>(
        &mut self,
        key: &str,
        allowed: &str,
        read: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Result<Option<Found<'a, T>>, SpecError> {
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
