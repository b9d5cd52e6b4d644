//! Corpus: small inputs of a parser, in files, and inputs that are made from them.
//!
//! The folder `corpus/PARSER` has a file for each input, with a name that describes it. A test
//! passes all of them to the parser, and then inputs that are made by flipping bits, cutting,
//! copying, and combining pieces of two files. `CORPUS_INPUTS=100000` makes that many.
//!
//! - I1. The inputs of a run depend only on the files and on the number of inputs, so a failure can
//!   be reproduced.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Watchdog, entries, name};

/// The most bytes of a generated input.
const INPUT_MAX: usize = 16 << 10;
/// Texts at the bounds of numbers, and those that often end a part of an input.
const TOKENS: &[&str] = &[
    "0",
    "-1",
    "1e309",
    "0.1",
    "255",
    "256",
    "65536",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "max",
    "K",
    "T",
    "\n",
    "\r\n",
    "\r\n\r\n",
    "\0",
    " ",
    "\t",
    "%",
    "%00",
    "%2f",
    "%ff",
    "/",
    "//",
    "..",
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    "=",
    ":",
    ",",
    "\u{1b}[2J",
    "\u{202e}",
    "\u{fffd}",
    "é",
];

/// Makes inputs from the files' bytes.
struct Maker {
    seeds: Vec<Vec<u8>>,
    /// State of a generator of the kind SplitMix64.
    state: u64,
}

impl Maker {
    /// Returns a number below `end`, which must be above 0.
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    /// Returns a piece of at most `length` bytes, mostly a short one.
    fn piece(&mut self, length: usize) -> Range<usize> {
        let from = self.below(length + 1);
        let most = if self.below(4) == 0 { length } else { 16 };
        from..length.min(from + self.below(most + 1))
    }

    fn seed(&mut self) -> Vec<u8> {
        let number = self.below(self.seeds.len());
        self.seeds[number].clone()
    }

    fn make(&mut self) -> Vec<u8> {
        let mut input = self.seed();
        for _ in 0..=self.below(4) {
            let at = self.piece(input.len());
            match self.below(7) {
                0 if !at.is_empty() => input[at.start] ^= 1 << self.below(8),
                1 => input.truncate(at.start),
                2 => drop(input.drain(at)),
                3 => {
                    let copy = input[at].to_vec();
                    let to = self.below(input.len() + 1);
                    input.splice(to..to, copy);
                }
                4 => {
                    let token = TOKENS[self.below(TOKENS.len())];
                    input.splice(at, token.bytes());
                }
                5 => {
                    let other = self.seed();
                    let piece = self.piece(other.len());
                    input.splice(at, other[piece].iter().copied());
                }
                _ => {
                    let other = self.seed();
                    let end = self.below(other.len() + 1);
                    input.splice(at.start.., other[end..].iter().copied());
                }
            }
        }
        input.truncate(INPUT_MAX);
        input
    }
}

/// Prints the input if a parser panics.
struct Shown<'a> {
    parser: &'a str,
    input: &'a [u8],
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", shown(self.parser, self.input));
        }
    }
}

fn shown(parser: &str, input: &[u8]) -> String {
    format!("the input, which belongs into corpus/{parser} once it is mended:\nb\"{}\"", input.escape_ascii())
}

/// Passes each input of `corpus/PARSER` to `parse`, and then `count` inputs that are made from
/// them. `parse` must panic for a wrong result. The input is printed then, and also if `parse`
/// makes no progress for a minute.
///
/// # Panics
/// The folder cannot be read or is empty, or `parse` panics.
pub fn run(parser: &str, count: u64, parse: impl FnMut(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(parser);
    let files = entries(&folder).expect("a corpus is a folder");
    let read = |path: &_| fs::read(path).unwrap_or_else(|error| panic!("read {}: {error}", name(path)));
    let count =
        std::env::var("CORPUS_INPUTS").map_or(count, |text| text.parse().expect("CORPUS_INPUTS is a number"));
    run_all(parser, files.iter().map(|path| read(path)).collect(), count, parse);
}

fn run_all(parser: &str, seeds: Vec<Vec<u8>>, count: u64, mut parse: impl FnMut(&[u8])) {
    assert!(!seeds.is_empty(), "corpus/{parser} has a file");
    let (done, current) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (progress, input, owned) = (Arc::clone(&done), Arc::clone(&current), parser.to_owned());
    let report = move || shown(&owned, &input.lock().unwrap_or_else(PoisonError::into_inner)) + "\n";
    // ORDERING: Relaxed, here and below, because the number publishes nothing else.
    let _watched = Watchdog::new(move || progress.load(Ordering::Relaxed), report);
    let mut one = |input: Vec<u8>| {
        current.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&input);
        let _shown = Shown { parser, input: &input };
        parse(&input);
        // ORDERING: Relaxed, as above.
        done.fetch_add(1, Ordering::Relaxed);
    };
    seeds.iter().cloned().for_each(&mut one);
    let mut maker = Maker { seeds, state: 0 };
    (0..count).for_each(|_| one(maker.make()));
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn inputs(seeds: &[&str], count: u64) -> Vec<Vec<u8>> {
        let mut inputs = Vec::new();
        let seeds = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
        run_all("test", seeds, count, |input| inputs.push(input.to_vec()));
        inputs
    }

    #[test]
    fn begins_with_the_files_and_repeats_itself() {
        let seeds = ["max 64M", "low 1M", "x"];
        let first = inputs(&seeds, 500);
        assert_eq!(first[..3], seeds.map(|seed| seed.as_bytes().to_vec()));
        assert_eq!((first.len(), &first), (503, &inputs(&seeds, 500)));
        assert!(HashSet::<_>::from_iter(&first).len() > 300);
    }

    #[test]
    fn makes_inputs_of_each_form() {
        let (one, two) = ("abcdefghijklmnopqrst", "ABCDEFGHIJKLMNOPQRST");
        let made = inputs(&[one, two], 4000);
        let has = |form: &str, is_it: &dyn Fn(&str) -> bool| {
            let found = made[2..].iter().filter_map(|input| str::from_utf8(input).ok()).any(is_it);
            assert!(found, "{form}");
        };
        has("a cut", &|text| text.len() < 20 && one.starts_with(text));
        has("a hole", &|text| {
            text.len() < 20 && text.starts_with('a') && text.ends_with('t') && text.is_ascii()
        });
        has("a copy", &|text| text.contains("abcabc"));
        has("a token", &|text| text.contains("%2f"));
        has("a splice", &|text| text.starts_with("abc") && text.ends_with("RST"));
        has("a flipped bit", &|text| {
            text.len() == 20 && text.bytes().zip(one.bytes()).filter(|(a, b)| a != b).count() == 1
        });
    }

    #[test]
    #[should_panic(expected = "found")]
    fn a_parser_that_panics_fails_the_run() {
        run_all("test", vec![b"max 64M".to_vec()], 4000, |input| {
            assert!(!input.starts_with(b"max \0"), "found");
        });
    }
}
