//! Tables of settings: keys with plain values, read from any format of serde, with errors that
//! name the key and the allowed values.

use core::fmt;
use core::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::base::limit::parse_bytes;

/// A value as it was written.
pub(super) enum Value {
    Truth(bool),
    Integer(i128),
    Text(String),
    /// Something else, as an error repeats it.
    Other(String),
}

/// A key of a table of settings.
pub(super) struct Key<T> {
    pub(super) name: &'static str,
    /// The allowed values, as errors describe them.
    pub(super) allowed: &'static str,
    /// Sets the value; `None` if it is not allowed.
    pub(super) set: fn(&mut T, &Value) -> Option<()>,
}

impl Value {
    pub(super) fn truth(&self) -> Option<bool> {
        if let Value::Truth(truth) = self { Some(*truth) } else { None }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn number<N: TryFrom<i128>>(&self) -> Option<N> {
        if let Value::Integer(integer) = self { N::try_from(*integer).ok() } else { None }
    }

    /// Bytes; an inner `None` for the text `max`.
    pub(super) fn limit(&self) -> Option<Option<u64>> {
        match self {
            Value::Integer(integer) => parse_bytes(&integer.to_string()).ok(),
            Value::Text(text) => parse_bytes(text).ok(),
            Value::Truth(_) | Value::Other(_) => None,
        }
    }

    pub(super) fn bytes(&self) -> Option<u64> {
        self.limit()?
    }

    /// A text such as `500ms`.
    pub(super) fn time(&self) -> Option<Duration> {
        let text = self.text()?;
        let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let number: u64 = digits.parse().ok()?;
        match unit {
            "us" => Some(Duration::from_micros(number)),
            "ms" => Some(Duration::from_millis(number)),
            "s" => Some(Duration::from_secs(number)),
            "min" => number.checked_mul(60).map(Duration::from_secs),
            "h" => number.checked_mul(3600).map(Duration::from_secs),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Truth(truth) => truth.fmt(f),
            Value::Integer(integer) => integer.fmt(f),
            Value::Text(text) => write!(f, "{text:?}"),
            Value::Other(other) => other.fmt(f),
        }
    }
}

/// Reads any value, so that the error about a wrong one can name its key.
struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a setting")
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Truth(truth))
    }

    fn visit_i64<E>(self, integer: i64) -> Result<Value, E> {
        Ok(Value::Integer(integer.into()))
    }

    fn visit_u64<E>(self, integer: u64) -> Result<Value, E> {
        Ok(Value::Integer(integer.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Other(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Other("null".to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Other("a list".to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Value, A::Error> {
        while table.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Other("a table".to_owned()))
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
        from.deserialize_any(AnyValue)
    }
}

/// Sets `key` of `into`, from the value that follows in `table`. `owner` is the subject of errors:
/// `group /a`. `others` are further keys of the table.
pub(super) fn set<'de, T, A: MapAccess<'de>>(
    keys: &'static [Key<T>],
    others: &[&'static str],
    key: &str,
    table: &mut A,
    owner: &str,
    into: &mut T,
) -> Result<(), A::Error> {
    let Some(known) = keys.iter().find(|known| known.name == key) else {
        let names: Vec<_> = keys.iter().map(|known| known.name).chain(others.iter().copied()).collect();
        return Err(Error::custom(format!(
            "key `{key}` of {owner} is unknown; allowed: {}",
            names.join(", ")
        )));
    };
    let value: Value = table.next_value()?;
    (known.set)(into, &value).ok_or_else(|| {
        Error::custom(format!("key `{key}` of {owner} is {value}; allowed: {}", known.allowed))
    })
}

/// The keys of one table so far: each may stand there once.
pub(super) struct Seen(Vec<String>);

impl Seen {
    pub(super) fn new() -> Seen {
        Seen(Vec::new())
    }

    /// The next key; `None` after the last.
    pub(super) fn next<'de, A: MapAccess<'de>>(
        &mut self,
        table: &mut A,
        owner: &str,
    ) -> Result<Option<String>, A::Error> {
        let Some(key) = table.next_key::<String>()? else { return Ok(None) };
        if self.0.contains(&key) {
            return Err(Error::custom(format!("key `{key}` of {owner} stands twice; allowed: once")));
        }
        self.0.push(key.clone());
        Ok(Some(key))
    }
}
