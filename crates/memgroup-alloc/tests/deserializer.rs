//! A checked deserializer yields the same values as the one within, and ends where the group is
//! over its limit.
#![cfg(not(memgroup_loom))]

use std::collections::BTreeMap;
use std::fmt;

use memgroup::{Config, Hierarchy, block, scope};
use memgroup_alloc::{Allocator, Checked, checkpoint};
use proptest::prelude::*;
use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, EnumAccess, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Unit;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Wrapper(u32);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Pair(i8, String);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Choice {
    Plain,
    Wraps(Box<Option<Choice>>),
    Tuple(u8, char),
    Struct { name: String, rest: Vec<Choice> },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(i64),
    Text(String),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Flat {
    #[serde(flatten)]
    more: BTreeMap<String, u8>,
    left: Option<bool>,
}

/// A value of each type of serde's data model that TOML can write.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Model {
    flag: bool,
    signed: (i8, i16, i32, i64, i128),
    unsigned: (u8, u16, u32, u64, u128),
    floats: (f32, f64),
    letter: char,
    text: String,
    bytes: Vec<u8>,
    some: Option<u8>,
    none: Option<u8>,
    wrapper: Wrapper,
    pair: Pair,
    tuple: (u8, String),
    choices: Vec<Choice>,
    either: (Untagged, Untagged),
    flat: Flat,
    map: BTreeMap<String, Vec<Wrapper>>,
}

fn model() -> Model {
    let inner = Choice::Struct { name: "inner".into(), rest: vec![Choice::Plain, Choice::Tuple(1, 'ß')] };
    Model {
        flag: true,
        signed: (i8::MIN, i16::MIN, i32::MIN, i64::MIN, -1),
        unsigned: (u8::MAX, u16::MAX, u32::MAX, 1 << 62, 1),
        floats: (0.5, -1e300),
        letter: '\u{1F980}',
        text: "a \"text\"\n".into(),
        bytes: vec![0, 255],
        some: Some(3),
        none: None,
        wrapper: Wrapper(4),
        pair: Pair(-5, "five".into()),
        tuple: (6, "six".into()),
        choices: vec![Choice::Wraps(Box::new(Some(inner))), Choice::Plain],
        either: (Untagged::Number(-7), Untagged::Text("seven".into())),
        flat: Flat { more: [("a".into(), 1), ("b".into(), 2)].into(), left: Some(false) },
        map: [("empty".into(), vec![]), ("one".into(), vec![Wrapper(8)])].into(),
    }
}

fn from_json<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = T::deserialize(Checked::new(&mut json))?;
    json.end().map(|()| value)
}

#[test]
fn each_type_of_the_data_model_comes_through() {
    let json = serde_json::to_string(&model()).unwrap();
    assert_eq!(from_json::<Model>(&json).unwrap(), model());
    let toml = toml::to_string(&model()).unwrap();
    let table = toml::Deserializer::parse(&toml).unwrap();
    assert_eq!(Model::deserialize(Checked::new(table)).unwrap(), model());
}

#[test]
fn types_that_only_json_writes_come_through() {
    let wide = (u128::MAX, i128::MIN, (), Unit, Choice::Wraps(Box::new(None)));
    let json = serde_json::to_string(&wide).unwrap();
    assert_eq!(from_json::<(u128, i128, (), Unit, Choice)>(&json).unwrap(), wide);
    let text = "[\"borrowed\", \"too\"]";
    let (first, _): (&str, &str) = from_json(text).unwrap();
    assert!(text.as_bytes().as_ptr_range().contains(&first.as_ptr()));
}

fn assert_same<T: DeserializeOwned + fmt::Debug + PartialEq>(text: &str) {
    let outcome = |value: Result<T, serde_json::Error>| value.map_err(|error| error.to_string());
    assert_eq!(outcome(from_json(text)), outcome(serde_json::from_str(text)), "{text}");
}

#[test]
fn errors_of_the_format_come_through() {
    for text in ["", "[1, 2", "{\"flag\": 3}", "{\"Tuple\": [1]}", "{\"Other\": 1}", "[1] 2", "\"Plain\""] {
        assert_same::<Value>(text);
        assert_same::<Model>(text);
        assert_same::<Choice>(text);
    }
}

fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z\\\\\"]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map("[a-z]{0,4}", inner, 0..6)
                .prop_map(|map| map.into_iter().collect::<Value>()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_document_comes_through(document in document()) {
        let text = document.to_string();
        prop_assert_eq!(from_json::<Value>(&text).unwrap(), document);
    }
}

/// Reports which method of a visitor was called, and with which value.
#[derive(Clone, Copy)]
struct Tells;

macro_rules! tell {
    ($($method:ident($type:ty))*) => {$(
        fn $method<E>(self, value: $type) -> Result<String, E> {
            Ok(format!("{} {value:?}", stringify!($method)))
        }
    )*};
}

impl<'de> Visitor<'de> for Tells {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    tell! {
        visit_bool(bool) visit_i8(i8) visit_i16(i16) visit_i32(i32) visit_i64(i64) visit_i128(i128)
        visit_u8(u8) visit_u16(u16) visit_u32(u32) visit_u64(u64) visit_u128(u128)
        visit_f32(f32) visit_f64(f64) visit_char(char)
        visit_str(&str) visit_borrowed_str(&'de str) visit_string(String)
        visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8]) visit_byte_buf(Vec<u8>)
    }

    fn visit_none<E>(self) -> Result<String, E> {
        Ok("visit_none".into())
    }

    fn visit_unit<E>(self) -> Result<String, E> {
        Ok("visit_unit".into())
    }

    fn visit_some<D: Deserializer<'de>>(self, within: D) -> Result<String, D::Error> {
        Ok(format!("visit_some, {}", within.deserialize_i8(self)?))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, within: D) -> Result<String, D::Error> {
        Ok(format!("visit_newtype_struct, {}", within.deserialize_any(self)?))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<String, A::Error> {
        Ok(format!("visit_seq of {:?}", access.size_hint()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<String, A::Error> {
        let hint = access.size_hint();
        Ok(format!("visit_map of {hint:?}, {:?}", access.next_entry::<u8, u8>()?))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<String, A::Error> {
        Ok(format!("visit_enum of {}", access.variant::<String>()?.0))
    }
}

/// Answers each call with a value of its own, or with an error that repeats the arguments.
struct Echo;

macro_rules! answer {
    ($($method:ident => $visit:ident($value:expr))*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit($value)
        }
    )*};
}

macro_rules! repeat {
    ($($method:ident($($argument:ident: $type:ty),*))*) => {$(
        fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, Error> {
            Err(Error::custom(format!("{} {:?} for {}", stringify!($method), ($($argument,)*), &visitor as &dyn serde::de::Expected)))
        }
    )*};
}

impl<'de> Deserializer<'de> for Echo {
    type Error = Error;

    answer! {
        deserialize_bool => visit_bool(true)
        deserialize_i8 => visit_i8(1)
        deserialize_i16 => visit_i16(2)
        deserialize_i32 => visit_i32(3)
        deserialize_i64 => visit_i64(4)
        deserialize_i128 => visit_i128(i128::MIN)
        deserialize_u8 => visit_u8(6)
        deserialize_u16 => visit_u16(7)
        deserialize_u32 => visit_u32(8)
        deserialize_u64 => visit_u64(9)
        deserialize_u128 => visit_u128(u128::MAX)
        deserialize_f32 => visit_f32(1.5)
        deserialize_f64 => visit_f64(2.5)
        deserialize_char => visit_char('c')
        deserialize_str => visit_str("text")
        deserialize_string => visit_string("string".into())
        deserialize_bytes => visit_bytes(b"bytes")
        deserialize_byte_buf => visit_byte_buf(b"buffer".to_vec())
        deserialize_option => visit_some(Echo)
        deserialize_identifier => visit_borrowed_str("borrowed")
        deserialize_ignored_any => visit_borrowed_bytes(b"borrowed")
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_none()
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        assert_eq!(name, "Name");
        visitor.visit_newtype_struct(Echo)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(SeqDeserializer::new([1_u8, 2].into_iter()))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(MapDeserializer::new([(1_u8, 2_u8)].into_iter()))
    }

    repeat! {
        deserialize_unit_struct(name: &'static str)
        deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

#[test]
fn each_hint_and_each_answer_comes_through() {
    macro_rules! assert_equal {
        ($($method:ident($($argument:expr),*))*) => {$(
            let (plain, checked) = (Echo.$method($($argument,)* Tells), Checked::new(Echo).$method($($argument,)* Tells));
            assert_eq!(checked, plain, "{}", stringify!($method));
        )*};
    }
    assert_equal! {
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64()
        deserialize_i128() deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_u128()
        deserialize_f32() deserialize_f64() deserialize_char() deserialize_str() deserialize_string()
        deserialize_bytes() deserialize_byte_buf() deserialize_option() deserialize_unit()
        deserialize_unit_struct("Name") deserialize_newtype_struct("Name") deserialize_seq() deserialize_tuple(2)
        deserialize_tuple_struct("Name", 3) deserialize_map() deserialize_struct("Name", &["field"])
        deserialize_enum("Name", &["Variant"]) deserialize_identifier() deserialize_ignored_any()
    }
    assert!(!Checked::new(Echo).is_human_readable());
    assert!(Checked::new(&mut serde_json::Deserializer::from_str("")).is_human_readable());
}

const LIMIT: u64 = 1_500_000;

/// A document without large blocks exceeds the limit by at most as much.
const NEAR: u64 = 16 << 10;

/// Builds a `T` from a document in a group with [`LIMIT`]. The document must need more; returns the
/// bytes charged above the limit.
fn bytes_above_the_limit<T: DeserializeOwned>(text: &str) -> u64 {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/tenants").unwrap().create("tenant").unwrap();
    let unlimited = {
        let _scope = scope::enter(&group);
        let value = from_json::<T>(text).unwrap();
        let charged = group.usage_exact();
        drop(value);
        charged
    };
    assert!(unlimited > 4 * LIMIT, "the document needs {unlimited} bytes");
    assert_eq!(group.usage_exact(), 0);
    group.drain();
    group.set_max(LIMIT).unwrap();
    let mut peak = group.peak_reader();
    peak.reset();
    let error = {
        let _scope = scope::enter(&group);
        let error = from_json::<T>(text).err().expect("the document is refused");
        assert!(block::is_over());
        let text = error.to_string();
        drop(error);
        checkpoint().unwrap();
        text
    };
    assert!(error.contains("stop at a checkpoint") && error.contains("/tenants/tenant"), "{error}");
    drop(error);
    assert_eq!(group.usage_exact(), 0);
    let above = peak.read().checked_sub(LIMIT).expect("the limit is reached");
    println!("{}: {above} bytes above", std::any::type_name::<T>());
    above
}

#[test]
fn a_document_of_small_values_is_ended_close_to_the_limit() {
    let deep = |depth: usize| format!("{}0{}", "[".repeat(depth), "]".repeat(depth));
    let nested = format!("[{}]", vec![deep(100); 1000].join(","));
    assert!(bytes_above_the_limit::<Value>(&nested) < NEAR);
    let objects = format!("[{}]", vec![r#"{"a":{"b":{"c":{}}}}"#; 20_000].join(","));
    assert!(bytes_above_the_limit::<Value>(&objects) < NEAR);
    let choice = "{\"Wraps\":".repeat(60) + "\"Plain\"" + &"}".repeat(60);
    let choices = format!("[{}]", vec![choice; 3000].join(","));
    assert!(bytes_above_the_limit::<Vec<Choice>>(&choices) < NEAR);
    let keys: Vec<_> = (0..100_000).map(|key| format!("\"key {key}\":{{}}")).collect();
    assert!(bytes_above_the_limit::<Value>(&format!("{{{}}}", keys.join(","))) < NEAR);
}

#[test]
fn a_flat_document_exceeds_the_limit_by_one_growth_of_its_collection() {
    let numbers = format!("[{}]", vec!["0"; 1_000_000].join(","));
    assert!(bytes_above_the_limit::<Value>(&numbers) < LIMIT);
    assert!(bytes_above_the_limit::<Vec<u64>>(&numbers) < LIMIT);
    let texts = format!("[{}]", vec!["\"a text\""; 300_000].join(","));
    assert!(bytes_above_the_limit::<Vec<String>>(&texts) < LIMIT);
}

#[derive(Deserialize)]
struct Newtype(#[expect(dead_code, reason = "built only")] Vec<u64>);

#[derive(Deserialize)]
#[expect(dead_code, reason = "built only")]
enum Holds {
    Newtype(Vec<u64>),
    Tuple(u8, Vec<u64>),
    Struct { within: Vec<u64> },
}

#[test]
fn values_are_checked_within_each_kind_of_container() {
    let numbers = format!("[{}]", vec!["0"; 1_000_000].join(","));
    assert!(bytes_above_the_limit::<Option<Vec<u64>>>(&numbers) < LIMIT);
    assert!(bytes_above_the_limit::<Newtype>(&numbers) < LIMIT);
    assert!(bytes_above_the_limit::<(Vec<u64>,)>(&format!("[{numbers}]")) < LIMIT);
    assert!(bytes_above_the_limit::<BTreeMap<u8, Vec<u64>>>(&format!("{{\"1\":{numbers}}}")) < LIMIT);
    assert!(bytes_above_the_limit::<Holds>(&format!("{{\"Newtype\":{numbers}}}")) < LIMIT);
    assert!(bytes_above_the_limit::<Holds>(&format!("{{\"Tuple\":[1,{numbers}]}}")) < LIMIT);
    assert!(bytes_above_the_limit::<Holds>(&format!("{{\"Struct\":{{\"within\":{numbers}}}}}")) < LIMIT);
}

#[test]
fn values_are_checked_within_a_key() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    group.set_max(LIMIT).unwrap();
    let map = [(vec![0_u64; LIMIT as usize], 0_u8)].into_iter();
    let _scope = scope::enter(&group);
    let built = BTreeMap::<Vec<u64>, u8>::deserialize(Checked::new(MapDeserializer::<_, Error>::new(map)));
    assert!(built.unwrap_err().to_string().contains("stop at a checkpoint"));
    assert!(group.peak() < 2 * LIMIT, "the key itself is not built to its end");
}

#[test]
fn a_serializer_ends_where_its_text_is_over_the_limit() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    group.set_max(LIMIT).unwrap();
    let _scope = scope::enter(&group);
    let mut text = Vec::new();
    let error = serde_json::to_writer(Checked::new(&mut text), &[0_u8; LIMIT as usize][..]).unwrap_err();
    assert_eq!(error.io_error_kind(), Some(std::io::ErrorKind::OutOfMemory));
    assert!(text.len() as u64 > LIMIT / 2 && text.capacity() as u64 <= 2 * LIMIT);
    drop((text, error));
    assert_eq!(group.usage_exact(), 0);
}
