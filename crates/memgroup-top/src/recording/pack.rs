//! Pack: turns the JSON of snapshots into rows of figures, written as differences to earlier rows.
//!
//! ```text
//! {"name":"a","usage_bytes":7,"rate":0.5}   row     shape  {"name":S,"usage_bytes":I,"rate":F}   once
//!                                                   values string 1, 7, 50                       each time, less those before
//! ```
//!
//! Each group is a row, and the rest of the snapshot is row 0. `docs/recording.md` has the order of
//! the bytes.
//!
//! - I1. Packing and unpacking gives the same text, except that numbers with a fraction are rounded
//!   to hundredths, and blanks between groups are dropped.
//! - I2. Whatever the bytes are, an unpacked text stays within a bound, and so do all strings and
//!   shapes together. Packing refuses a text that unpacking would refuse.

use std::collections::HashMap;
use std::io::Write as _;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Marks in a shape, bytes that JSON cannot have: an integer, a number with a fraction, a string,
/// the groups.
const INTEGER: u8 = 1;
const HUNDREDTHS: u8 = 2;
const STRING: u8 = 3;
const GROUPS: u8 = 4;
/// The most bytes of a text, and of the strings and shapes together.
const TEXT_MAX: usize = 160 << 20;
const TABLES_MAX: usize = 64 << 20;
/// Bytes that a string or shape counts besides its own, so that empty ones count too.
const ENTRY: usize = 32;
/// The most rows of a snapshot.
pub(super) const ROWS_MAX: usize = 1 << 20;
/// The most figures of a snapshot: 256 for each of 65,536 groups. A figure may take only a byte of
/// a body, and much less of a file, but the reader holds two snapshots in memory.
pub(super) const FIGURES_MAX: usize = 1 << 24;
/// A bound below which hundredths of a number are exact.
const FRACTION_MAX: f64 = 1e13;

/// A row: its shape, and a value for each mark.
#[derive(Debug, Default, Clone)]
struct Row {
    shape: usize,
    values: Vec<i64>,
}

/// Numbers texts in the order of their first use.
#[derive(Debug, Default)]
struct Table {
    numbers: HashMap<Vec<u8>, usize>,
    /// Texts that are not in a frame yet.
    fresh: Vec<Vec<u8>>,
}

impl Table {
    fn number(&mut self, text: &[u8]) -> usize {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.numbers.len();
        self.numbers.insert(text.to_owned(), number);
        self.fresh.push(text.to_owned());
        number
    }
}

/// The packing side of one source.
#[derive(Debug, Default)]
pub(super) struct Packer {
    strings: Table,
    shapes: Table,
    rows: Vec<Row>,
    /// Bytes of all strings and shapes, as the reader counts them.
    held: usize,
    /// Bytes of the last text when it is unpacked.
    pub(super) text: usize,
}

impl Packer {
    /// Packs a snapshot. The text must be valid JSON.
    ///
    /// # Errors
    /// A bound of the reader is exceeded (I2). Then no later snapshot can be packed.
    pub(super) fn pack(&mut self, json: &[u8]) -> Result<Vec<u8>, String> {
        self.text = json.len();
        let rows = self.rows(json);
        if rows.len() > ROWS_MAX {
            return Err(format!("a snapshot has more than {ROWS_MAX} rows"));
        }
        if rows.iter().map(|row| row.values.len()).sum::<usize>() > FIGURES_MAX {
            return Err(format!("a snapshot has more than {FIGURES_MAX} figures"));
        }
        if self.text > TEXT_MAX {
            return Err(format!("a snapshot has more than {TEXT_MAX} bytes"));
        }
        let mut bytes = Vec::new();
        for table in [&mut self.strings, &mut self.shapes] {
            put(&mut bytes, table.fresh.len() as u64);
            for text in table.fresh.drain(..) {
                self.held += text.len() + ENTRY;
                if self.held > TABLES_MAX {
                    return Err(format!("the strings of snapshots have more than {TABLES_MAX} bytes"));
                }
                put(&mut bytes, text.len() as u64);
                bytes.extend(text);
            }
        }
        put(&mut bytes, rows.len() as u64);
        rows.iter().for_each(|row| put(&mut bytes, row.shape as u64));
        // The first string of a row is the path of its group.
        let firsts = self.rows.iter().enumerate().skip(1);
        let positions: HashMap<i64, usize> =
            firsts.filter_map(|(at, row)| Some((*row.values.first()?, at))).collect();
        let mut before: Vec<Option<&Row>> = Vec::with_capacity(rows.len());
        let mut expected = 0;
        for (number, row) in rows.iter().enumerate() {
            let at = match number {
                0 => Some(0),
                _ => row.values.first().and_then(|name| positions.get(name).copied()),
            };
            let at = at.filter(|&at| self.rows.get(at).is_some_and(|old| old.shape == row.shape));
            put(&mut bytes, at.map_or(0, |at| 1 + zigzag(at as i64 - expected)));
            expected = at.map_or(expected, |at| at as i64 + 1);
            before.push(at.map(|at| &self.rows[at]));
        }
        for (marks, members) in columns(&rows) {
            for mark in 0..marks {
                for &member in &members {
                    let old = before[member].map_or(0, |old| old.values[mark]);
                    put(&mut bytes, zigzag(rows[member].values[mark].wrapping_sub(old)));
                }
            }
        }
        self.rows = rows;
        Ok(bytes)
    }

    /// Splits a text into rows. In row 0, a mark stands for the groups if there are any.
    fn rows(&mut self, json: &[u8]) -> Vec<Row> {
        // Any other JSON is one row.
        let groups = serde_json::from_slice::<Groups<'_>>(json).map_or_else(|_| Vec::new(), |all| all.groups);
        let mut outer = json.to_owned();
        if let [first, .., last] | [first @ last] = &groups[..] {
            let start = |group: &RawValue| group.get().as_ptr().addr() - json.as_ptr().addr();
            outer.splice(start(first)..start(last) + last.get().len(), [GROUPS]);
        }
        let groups = groups.iter().map(|group| group.get().as_bytes());
        [&outer[..]].into_iter().chain(groups).map(|text| self.row(text)).collect()
    }

    fn row(&mut self, text: &[u8]) -> Row {
        let (mut shape, mut values, mut at) = (Vec::new(), Vec::new(), 0);
        while let Some(&byte) = text.get(at) {
            let end = match byte {
                b'"' => string_end(text, at),
                b'-' | b'0'..=b'9' => {
                    let length = text[at..].iter().position(|byte| !b"+-.eE0123456789".contains(byte));
                    length.map_or(text.len(), |length| at + length)
                }
                _ => at + 1,
            };
            let part = &text[at..end];
            match byte {
                b'"' if text.get(end) != Some(&b':') => {
                    shape.push(STRING);
                    values.push(self.strings.number(&part[1..part.len() - 1]) as i64);
                }
                b'-' | b'0'..=b'9' => {
                    number(part, &mut shape, &mut values);
                    if shape.last() == Some(&HUNDREDTHS) {
                        self.text += hundredths(values.last().copied().unwrap_or_default()).len();
                        self.text -= part.len();
                    }
                }
                _ => shape.extend(part),
            }
            at = end;
        }
        Row { shape: self.shapes.number(&shape), values }
    }
}

/// The groups of a snapshot as they are written.
#[derive(Deserialize)]
struct Groups<'a> {
    #[serde(borrow)]
    groups: Vec<&'a RawValue>,
}

/// Returns the end of the string that begins at `at`.
fn string_end(json: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(&byte) = json.get(end) {
        match byte {
            b'"' => return end + 1,
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
    json.len()
}

/// Adds a number as a mark and a value, or as text if it fits neither kind of value.
fn number(text: &[u8], shape: &mut Vec<u8>, values: &mut Vec<i64>) {
    let parsed = std::str::from_utf8(text).unwrap_or_default();
    if let Ok(integer) = parsed.parse::<i64>() {
        shape.push(INTEGER);
        values.push(integer);
    } else if let Some(fraction) = parsed.parse::<f64>().ok().filter(|value| value.abs() < FRACTION_MAX) {
        shape.push(HUNDREDTHS);
        values.push((fraction * 100.0).round() as i64);
    } else {
        shape.extend(text);
    }
}

/// Formats a number of hundredths as JSON.
fn hundredths(value: i64) -> String {
    let (sign, value) = (if value < 0 { "-" } else { "" }, value.unsigned_abs());
    format!("{sign}{}.{:02}", value / 100, value % 100)
}

/// Returns the number of marks and the rows of each shape, in the order of the shapes.
fn columns(rows: &[Row]) -> Vec<(usize, Vec<usize>)> {
    let mut by_shape = std::collections::BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        let (_, members) = by_shape.entry(row.shape).or_insert((row.values.len(), Vec::new()));
        members.push(at);
    }
    by_shape.into_values().collect()
}

/// The unpacking side of one source.
#[derive(Debug, Default)]
pub(super) struct Unpacker {
    strings: Vec<Vec<u8>>,
    /// Shapes with the numbers of their marks.
    shapes: Vec<(Vec<u8>, usize)>,
    rows: Vec<Row>,
    /// Bytes of all strings and shapes.
    held: usize,
}

impl Unpacker {
    /// Unpacks a snapshot. Returns its JSON if the text is wanted.
    ///
    /// # Errors
    /// No `Packer` makes these bytes. Then no later frame can be unpacked.
    pub(super) fn unpack(&mut self, mut bytes: &[u8], is_wanted: bool) -> Result<Vec<u8>, String> {
        let bytes = &mut bytes;
        for is_shape in [false, true] {
            for _ in 0..count(bytes)? {
                let length = count(bytes)?;
                let (text, rest) = bytes.split_at(length);
                *bytes = rest;
                self.held += length + ENTRY;
                if self.held > TABLES_MAX {
                    return Err(format!("its strings have more than {TABLES_MAX} bytes"));
                }
                if is_shape {
                    let marks = text.iter().filter(|byte| (INTEGER..=STRING).contains(*byte)).count();
                    self.shapes.push((text.to_owned(), marks));
                } else {
                    self.strings.push(text.to_owned());
                }
            }
        }
        let number = count(bytes)?;
        if number > ROWS_MAX {
            return Err(format!("it has more than {ROWS_MAX} rows"));
        }
        let mut rows = vec![Row::default(); number];
        let mut total = 0_usize;
        for row in &mut rows {
            row.shape = get(bytes)? as usize;
            let (_, marks) = self.shapes.get(row.shape).ok_or("it has an unknown shape")?;
            total = total.saturating_add(*marks);
        }
        let mut before = Vec::with_capacity(rows.len());
        let mut expected = 0_i64;
        for row in &rows {
            let at = get(bytes)?.checked_sub(1).map(|code| expected.wrapping_add(unzigzag(code)));
            before.push(at.map(|at| at as usize));
            expected = at.map_or(expected, |at| at.wrapping_add(1));
            let is_same = |at: i64| self.rows.get(at as usize).is_some_and(|old| old.shape == row.shape);
            if !at.is_none_or(is_same) {
                return Err("a row has no row before".to_owned());
            }
        }
        if total > bytes.len() {
            return Err("it has too few figures".to_owned());
        }
        if total > FIGURES_MAX {
            return Err(format!("it has more than {FIGURES_MAX} figures"));
        }
        for row in &mut rows {
            row.values = vec![0; self.shapes[row.shape].1];
        }
        for (marks, members) in columns(&rows) {
            for mark in 0..marks {
                for &member in &members {
                    let old = before[member].map_or(0, |at| self.rows[at].values[mark]);
                    rows[member].values[mark] = old.wrapping_add(unzigzag(get(bytes)?));
                }
            }
        }
        self.rows = rows;
        if is_wanted { self.text() } else { Ok(Vec::new()) }
    }

    fn text(&self) -> Result<Vec<u8>, String> {
        let mut text = Vec::new();
        if let Some(row) = self.rows.first() {
            self.write(row, true, &mut text)?;
        }
        Ok(text)
    }

    /// Writes a row. All other rows follow where it has the mark of the groups.
    fn write(&self, row: &Row, is_outer: bool, text: &mut Vec<u8>) -> Result<(), String> {
        let mut values = row.values.iter();
        let mut is_first = is_outer;
        for &byte in &self.shapes[row.shape].0 {
            if text.len() > TEXT_MAX {
                return Err(format!("its text has more than {TEXT_MAX} bytes"));
            }
            if byte == GROUPS {
                let groups = if std::mem::take(&mut is_first) { &self.rows[1..] } else { &[] };
                for (number, group) in groups.iter().enumerate() {
                    text.extend(if number > 0 { &b","[..] } else { b"" });
                    self.write(group, false, text)?;
                }
                continue;
            }
            let Some(&value) = (INTEGER..=STRING).contains(&byte).then(|| values.next()).flatten() else {
                text.push(byte);
                continue;
            };
            // Writing to memory does not fail.
            let _ = match byte {
                INTEGER => write!(text, "{value}"),
                HUNDREDTHS => text.write_all(hundredths(value).as_bytes()),
                _ => {
                    let string = usize::try_from(value).ok().and_then(|at| self.strings.get(at));
                    let string = string.ok_or("it has an unknown string")?;
                    write!(text, "\"").and_then(|()| text.write_all(string)).and_then(|()| write!(text, "\""))
                }
            };
        }
        Ok(())
    }
}

/// Maps differences near 0 to small numbers: 0, -1, 1, -2 and 2 to 0, 1, 2, 3 and 4.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(code: u64) -> i64 {
    (code >> 1) as i64 ^ -((code & 1) as i64)
}

/// Appends a number, seven bits a byte, the low ones first; the top bit says that more follow.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn get(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("it is too short")?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err("a number is too long".to_owned())
}

/// Reads a number of things, each of which takes at least a byte.
fn count(bytes: &mut &[u8]) -> Result<usize, String> {
    let number = get(bytes)?;
    usize::try_from(number)
        .ok()
        .filter(|&number| number <= bytes.len())
        .ok_or_else(|| "it is too short".to_owned())
}
