//! Numbers as people read them.

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
    use super::{bytes, count, limit, rough_bytes};

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
