//! Text: errors and other lines on standard error, and names and numbers as a terminal shows them.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

/// The reason why the program ends. It names the program or file that failed, and says how to
/// correct it where the user can.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// The command line is wrong.
    Usage(String),
    /// A step failed.
    Failure(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Error::Usage(text) | Error::Failure(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Error {}

/// Turns the error of a step into an [`Error`] that names the step.
pub(crate) trait OrFail<T> {
    /// The step `action` failed.
    fn or_fail(self, action: impl fmt::Display) -> Result<T, Error>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, action: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|error| Error::Failure(format!("failed to {action}: {error}")))
    }
}

/// Prints a line to standard error.
pub(crate) fn say(line: &str) {
    // Snapshots matter even if standard error is closed.
    let _ = writeln!(io::stderr().lock(), "memgroup-top: {line}");
}

/// Prints a line to standard error unless the last one was the same.
pub(crate) fn say_once(said: &mut String, line: String) {
    if *said != line {
        say(&line);
        *said = line;
    }
}

/// Replaces the characters of `text` that a terminal obeys, and those that change the direction of
/// text, so that a terminal only shows it.
pub(crate) fn plain(text: &str) -> String {
    text.replace(is_obeyed, "\u{fffd}")
}

/// Returns whether a terminal obeys this character instead of showing it, or turns the direction of
/// text.
fn is_obeyed(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

/// Escapes the characters of `json` that a terminal obeys as `\u`, so the JSON means the same. Only
/// strings can have them. Those of ASCII, except the last one, are escaped in any JSON.
pub(crate) fn escaped(json: &str) -> String {
    let is_escaped = |c: char| c >= '\u{7f}' && is_obeyed(c);
    if !json.contains(is_escaped) {
        return json.to_owned();
    }
    let mut text = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_escaped(c) {
            // All of them are in the first plane. Writing to memory doesn't fail.
            let _ = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    text
}

/// Returns `1,234,567` for 1234567.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Returns bytes in powers of two with one decimal: `15.9M`.
pub(crate) fn bytes(bytes: u64) -> String {
    const SUFFIXES: [&str; 5] = ["", "K", "M", "G", "T"];
    let mut value = bytes as f64;
    let mut suffix = 0;
    // 1,023.95 and more would be printed as 1024.0.
    while value >= 1_023.95 && suffix + 1 < SUFFIXES.len() {
        value /= 1_024.0;
        suffix += 1;
    }
    if suffix == 0 { bytes.to_string() } else { format!("{value:.1}{}", SUFFIXES[suffix]) }
}

/// Like [`bytes`], in at most five columns.
pub(crate) fn rough_bytes(count: u64) -> String {
    let text = bytes(count);
    match text.split_once('.') {
        Some((whole, _)) if text.len() > 5 => format!("{whole}{}", &text[text.len() - 1..]),
        _ => text,
    }
}

/// Returns a limit in the largest unit that divides it, or `max` without one.
pub(crate) fn limit(limit: Option<u64>) -> String {
    let Some(limit) = limit else { return "max".to_owned() };
    for (shift, suffix) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if limit > 0 && limit.trailing_zeros() >= shift {
            return format!("{}{suffix}", limit >> shift);
        }
    }
    bytes(limit)
}

#[cfg(test)]
mod tests {
    use super::{bytes, count, escaped, is_obeyed, limit, rough_bytes};

    #[test]
    fn json_has_escapes_for_characters_that_a_terminal_obeys() {
        let names = "a\u{9b}2J b\u{85} c\u{7f} d\u{202e}txt e\u{e9} \u{1f600}";
        let json = serde_json::json!({ "groups": [{ "name": names }] }).to_string();
        let text = escaped(&json);
        assert!(!text.contains(is_obeyed), "{text:?}");
        assert!(text.contains(r"a\u009b2J b\u0085 c\u007f d\u202etxt") && text.contains('\u{e9}'), "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["groups"][0]["name"], names);
        assert_eq!(escaped("{\t}"), "{\t}");
    }

    #[test]
    fn separates_thousands() {
        let numbers = [0, 999, 1_000, 123_456, 1_234_567].map(count);
        assert_eq!(numbers, ["0", "999", "1,000", "123,456", "1,234,567"]);
    }

    #[test]
    fn prints_bytes_in_powers_of_two() {
        let texts = [0, 1_023, 1_024, 16 << 20, (16 << 20) - 1, 5 << 40, 1_048_575].map(bytes);
        assert_eq!(texts, ["0", "1023", "1.0K", "16.0M", "16.0M", "5.0T", "1.0M"]);
        assert_eq!([1_023, 900 << 10, 9 << 20].map(rough_bytes), ["1023", "900K", "9.0M"]);
    }

    #[test]
    fn prints_limits_as_they_were_written() {
        let texts = [Some(24 << 20), Some(1 << 30), Some(1_536 << 10), Some(1_000_000), None].map(limit);
        assert_eq!(texts, ["24M", "1G", "1536K", "976.6K", "max"]);
    }
}
