//! Numbers as reports print them.

/// Returns `1,234,567` for 1234567.
pub(crate) fn count(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
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

/// Returns a duration with a unit that gives it about three digits: `8.4 us`, `12.0 ms`, `1.25 s`.
pub(crate) fn duration_us(us: f64) -> String {
    match us {
        0.0 => "0".to_owned(),
        us if us < 99.95 => format!("{us:.1} us"),
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 99_950.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, count, duration_us, limit};

    #[test]
    fn separates_thousands() {
        let numbers = [0, 999, 1_000, 123_456, 1_234_567].map(count);
        assert_eq!(numbers, ["0", "999", "1,000", "123,456", "1,234,567"]);
    }

    #[test]
    fn prints_bytes_in_powers_of_two() {
        let texts = [0, 1_023, 1_024, 16 << 20, (16 << 20) - 1, 5 << 40, 1_048_575].map(bytes);
        assert_eq!(texts, ["0", "1023", "1.0K", "16.0M", "16.0M", "5.0T", "1.0M"]);
    }

    #[test]
    fn prints_limits_as_they_were_written() {
        let texts = [Some(24 << 20), Some(1 << 30), Some(1_536 << 10), Some(1_000_000), None].map(limit);
        assert_eq!(texts, ["24M", "1G", "1536K", "976.6K", "max"]);
    }

    #[test]
    fn keeps_three_digits_of_a_duration() {
        let texts = [0.0, 8.44, 99.96, 999.4, 999.6, 12_000.0, 123_456.0, 999_600.0].map(duration_us);
        assert_eq!(texts, ["0", "8.4 us", "100 us", "999 us", "1.0 ms", "12.0 ms", "123 ms", "1.00 s"]);
    }
}
