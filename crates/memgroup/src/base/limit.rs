//! Limits, in three forms: an `Option<u64>` in the API, a word in the counters, and text as people
//! write it (`512M`, `4096`, `max`).

use core::fmt;

/// The largest reserve that can be configured. No more than this is counted of each child's unused
/// protection, so that the sum over the largest number of groups fits in a word.
pub(crate) const LARGEST_RESERVE: u64 = 1 << 39;

/// The largest number of bytes that one group can account: 256 TiB less one byte. As a `min` or a
/// `low` it protects all bytes.
pub const BYTES_MAX: u64 = (1 << 48) - 1;

/// Stands for "no limit" in the words of counters. The API uses `None` instead, and files use
/// `max`.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// Returns the word in which a counter stores `limit`, the `setting` of the group with this path.
pub(crate) fn stored(
    limit: Option<u64>,
    setting: &'static str,
    path: impl FnOnce() -> String,
) -> Result<u64, LimitError> {
    match limit {
        None => Ok(UNLIMITED),
        Some(bytes) if bytes <= BYTES_MAX => Ok(bytes),
        Some(asked) => Err(LimitError { setting, group: path(), asked }),
    }
}

/// Returns the limit that such a word stands for.
pub(crate) fn given(stored: u64) -> Option<u64> {
    (stored != UNLIMITED).then_some(stored)
}

/// A limit that no counter can hold. The previous limit stays in force. As text, it completes the
/// phrase "failed to ...".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitError {
    /// `max` or `high`.
    pub setting: &'static str,
    /// The group's path.
    pub group: String,
    /// The limit as given, in bytes.
    pub asked: u64,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitError { setting, group, asked } = self;
        write!(
            f,
            "set {setting} of group {group}: {asked} bytes are out of range; 0 to {BYTES_MAX}, or None for no limit"
        )
    }
}

impl std::error::Error for LimitError {}

/// Text that is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseBytesError {
    text: String,
    reason: &'static str,
}

impl fmt::Display for ParseBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a number of bytes: {}; write digits with an optional K, M, G or T (powers of two), or max",
            self.text, self.reason
        )
    }
}

impl std::error::Error for ParseBytesError {}

/// Reads a number of bytes: digits and an optional suffix `K`, `M`, `G` or `T` (powers of two,
/// either case). The exact word `max` means no limit (`None`). Blanks around the number are
/// allowed, because `echo` adds a newline.
///
/// The spelling is that of cgroup v2, where `page_counter_memparse` reads `memory.max`. Unlike
/// there, nothing is rounded to pages, and a number that is too large is an error.
///
/// # Errors
/// The error repeats the beginning of the text and says what is wrong: a sign, a fraction, an
/// unknown suffix, or more than a counter can hold (256 TiB).
///
/// ```
/// assert_eq!(memgroup::parse_bytes("512M"), Ok(Some(512 << 20)));
/// assert_eq!(memgroup::parse_bytes("max"), Ok(None));
/// assert!(memgroup::parse_bytes("-1").unwrap_err().to_string().contains("negative"));
/// ```
pub fn parse_bytes(text: &str) -> Result<Option<u64>, ParseBytesError> {
    let wrong = |reason| ParseBytesError { text: start(text), reason };
    let trimmed = text.trim();
    if trimmed == "max" {
        return Ok(None);
    }
    if trimmed.starts_with('-') {
        return Err(wrong("it is negative"));
    }
    let digits_end = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (digits, suffix) = trimmed.split_at(digits_end);
    if digits.is_empty() {
        return Err(wrong(if trimmed.eq_ignore_ascii_case("max") {
            "the word is max, in small letters"
        } else if trimmed.contains(|c: char| c.is_ascii_digit()) {
            "it does not begin with a digit"
        } else {
            "it has no digits"
        }));
    }
    let shift = match suffix {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ if suffix.starts_with(['.', ',']) => return Err(wrong("it has a fraction")),
        _ => return Err(wrong("its suffix is unknown")),
    };
    let too_large = "it is more than 256 TiB less a byte";
    let number: u64 = digits.parse().map_err(|_| wrong(too_large))?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes <= BYTES_MAX => Ok(Some(bytes)),
        _ => Err(wrong(too_large)),
    }
}

/// Returns the beginning of `text`, as much of it as an error repeats.
pub(crate) fn start(text: &str) -> String {
    const CHARS_MOST: usize = 64;
    match text.char_indices().nth(CHARS_MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::base::limit::{BYTES_MAX, parse_bytes};

    #[test]
    fn reads_the_forms_that_operators_write() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4k", Some(4096)),
            (" 2G\n", Some(2 << 30)),
            ("255T", Some(255 << 40)),
            ("max", None),
        ] {
            assert_eq!(parse_bytes(text).unwrap(), bytes, "{text}");
        }
        assert_eq!(parse_bytes(&BYTES_MAX.to_string()).unwrap(), Some(BYTES_MAX));
    }

    #[test]
    fn refuses_text_that_is_no_number_of_bytes_and_says_why() {
        for (text, why) in [
            ("", "no digits"),
            ("-5", "negative"),
            ("+5", "begin with a digit"),
            (".5G", "begin with a digit"),
            ("1.5G", "fraction"),
            ("5 M", "suffix"),
            ("5MB", "suffix"),
            ("MAX", "small letters"),
            ("256T", "256 TiB"),
            ("99999999999999999999", "256 TiB"),
            ("18446744073709551615", "256 TiB"),
        ] {
            let error = parse_bytes(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
