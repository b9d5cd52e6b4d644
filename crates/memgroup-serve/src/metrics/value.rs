//! Value: a number of a series.

use std::fmt;

use prometheus_client::encoding::{
    CounterValueEncoder, EncodeCounterValue, EncodeGaugeValue, GaugeValueEncoder,
};

/// A number of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Whole(u64),
    Signed(i64),
    Seconds(f64),
}

impl Value {
    /// Microseconds as seconds.
    pub(super) fn micros(micros: u64) -> Value {
        Value::Seconds(micros as f64 / 1e6)
    }

    pub(super) fn plus(self, other: Value) -> Value {
        match (self, other) {
            (Value::Whole(one), Value::Whole(other)) => Value::Whole(one.saturating_add(other)),
            (Value::Signed(one), Value::Signed(other)) => Value::Signed(one.saturating_add(other)),
            (one, other) => Value::Seconds(one.as_f64() + other.as_f64()),
        }
    }

    pub(super) fn as_f64(self) -> f64 {
        match self {
            Value::Whole(number) => number as f64,
            Value::Signed(number) => number as f64,
            Value::Seconds(number) => number,
        }
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Value::Whole(number) => EncodeGaugeValue::encode(number, encoder),
            Value::Signed(number) => EncodeGaugeValue::encode(number, encoder),
            Value::Seconds(number) => EncodeGaugeValue::encode(number, encoder),
        }
    }
}

impl EncodeCounterValue for Value {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Value::Whole(number) => EncodeCounterValue::encode(number, encoder),
            // A sum that has wrapped.
            Value::Signed(number) => EncodeCounterValue::encode(&(*number).max(0).unsigned_abs(), encoder),
            Value::Seconds(number) => EncodeCounterValue::encode(number, encoder),
        }
    }
}
