//! Deserializer: a safe point before each value that serde builds.
//!
//! - I1. Each value that the inner format yields, at each depth, is built by a call of a
//!   [`Checked`] deserializer, and each such call begins with a checkpoint. For that, visitors,
//!   seeds and accesses are wrapped on their way in and out.
//! - I2. Everything else reaches the format and the visitor unchanged: hints, names, sizes,
//!   borrowed text.

use core::fmt;

use memgroup::Deadline;
use serde_core::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use crate::checked::Checked;

/// A visitor, a seed or an access of a checked deserializer, with the deadline of its checkpoints.
struct Nested<T>(T, Option<Deadline>);

macro_rules! check_and_forward {
    ($($method:ident($($argument:ident: $type:ty),*))*) => {$(
        fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.check().map_err(Error::custom)?;
            self.inner.$method($($argument,)* Nested(visitor, self.deadline))
        }
    )*};
}

/// A deserializer with a [`checkpoint`](crate::checkpoint()) before each value, each key and each
/// field, at every depth.
///
/// Above the limit it ends with the format's own error, with the text of an
/// [`OverLimit`](crate::OverLimit). The values built so far are freed.
/// [`block::is_over`](memgroup::block::is_over) distinguishes such an error from others, until the
/// thread's next checkpoint.
///
/// There is no checkpoint within one string, nor within one step of a growing collection. serde
/// buffers the content of untagged and internally tagged enums and of flattened fields: filling
/// the buffer has checkpoints, and building the value from it has none. A format that parses the
/// whole text before the first value, as `toml` does, parses without checkpoints.
///
/// An extractor of axum that answers 413 if a value takes more memory than the request's group may
/// use:
///
/// ```
/// use axum::body::Bytes;
/// use axum::extract::{FromRequest, Request};
/// use axum::http::StatusCode;
/// use memgroup::block;
/// use memgroup_alloc::Checked;
/// use serde::de::DeserializeOwned;
///
/// struct Json<T>(T);
///
/// impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
///     type Rejection = (StatusCode, String);
///
///     async fn from_request(request: Request, state: &S) -> Result<Json<T>, Self::Rejection> {
///         let body = Bytes::from_request(request, state).await.map_err(|error| (error.status(), error.body_text()))?;
///         let mut json = serde_json::Deserializer::from_slice(&body);
///         let value = T::deserialize(Checked::new(&mut json)).and_then(|value| json.end().map(|()| value));
///         let status = if block::is_over() { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
///         value.map(Json).map_err(|error| (status, error.to_string()))
///     }
/// }
/// ```
impl<'de, D: Deserializer<'de>> Deserializer<'de> for Checked<D> {
    type Error = D::Error;

    check_and_forward! {
        deserialize_any()
        deserialize_bool()
        deserialize_i8()
        deserialize_i16()
        deserialize_i32()
        deserialize_i64()
        deserialize_i128()
        deserialize_u8()
        deserialize_u16()
        deserialize_u32()
        deserialize_u64()
        deserialize_u128()
        deserialize_f32()
        deserialize_f64()
        deserialize_char()
        deserialize_str()
        deserialize_string()
        deserialize_bytes()
        deserialize_byte_buf()
        deserialize_option()
        deserialize_unit()
        deserialize_unit_struct(name: &'static str)
        deserialize_newtype_struct(name: &'static str)
        deserialize_seq()
        deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_map()
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
        deserialize_identifier()
        deserialize_ignored_any()
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Nested<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Checked::by(deserializer, self.1))
    }
}

macro_rules! forward {
    ($($method:ident($type:ty))*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.0.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Nested<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    forward! {
        visit_bool(bool)
        visit_i8(i8)
        visit_i16(i16)
        visit_i32(i32)
        visit_i64(i64)
        visit_i128(i128)
        visit_u8(u8)
        visit_u16(u16)
        visit_u32(u32)
        visit_u64(u64)
        visit_u128(u128)
        visit_f32(f32)
        visit_f64(f64)
        visit_char(char)
        visit_str(&str)
        visit_borrowed_str(&'de str)
        visit_string(String)
        visit_bytes(&[u8])
        visit_borrowed_bytes(&'de [u8])
        visit_byte_buf(Vec<u8>)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Checked::by(deserializer, self.1))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Checked::by(deserializer, self.1))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Nested(access, self.1))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Nested(access, self.1))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Nested(access, self.1))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Nested<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Nested(seed, self.1))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Nested<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(Nested(seed, self.1))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Nested(seed, self.1))
    }

    fn next_entry_seed<K: DeserializeSeed<'de>, S: DeserializeSeed<'de>>(
        &mut self,
        key: K,
        value: S,
    ) -> Result<Option<(K::Value, S::Value)>, A::Error> {
        self.0.next_entry_seed(Nested(key, self.1), Nested(value, self.1))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Nested<A> {
    type Error = A::Error;
    type Variant = Nested<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        self.0.variant_seed(Nested(seed, self.1)).map(|(variant, content)| (variant, Nested(content, self.1)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Nested<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Nested(seed, self.1))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, Nested(visitor, self.1))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Nested(visitor, self.1))
    }
}
