//! Report: a group's pressure, and its text as the kernel prints it.

use core::fmt;

/// The share of time in which threads were stalled for memory, in a group and those below it:
/// `memory.pressure`.
///
/// It prints as that file does: two lines, each with its end.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
/// assert_eq!(hierarchy.root().pressure().to_string(), text);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Pressure {
    /// At least one thread was stalled.
    pub some: PressureLine,
    /// At least one thread was stalled, and none in a [`scope`](crate::scope) of the group or
    /// below was at work.
    pub full: PressureLine,
}

/// One line of a [`Pressure`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct PressureLine {
    /// The average over the last ten seconds, in percent; older time counts less.
    #[cfg_attr(feature = "serde", serde(rename = "avg10_percent"))]
    pub avg10: f64,
    /// The average over the last minute, in percent.
    #[cfg_attr(feature = "serde", serde(rename = "avg60_percent"))]
    pub avg60: f64,
    /// The average over the last five minutes, in percent.
    #[cfg_attr(feature = "serde", serde(rename = "avg300_percent"))]
    pub avg300: f64,
    /// The time since the group was created, in microseconds.
    #[cfg_attr(feature = "serde", serde(rename = "total_us"))]
    pub total: u64,
}

/// A percentage, cut off after two digits as the kernel does.
struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An average that has been 100 for long is 99.99..9. So a number within a millionth of the
        // next digit counts as that.
        let hundredths = (self.0 * 100.0 + 1e-6) as u64;
        write!(f, "{}.{:02}", hundredths / 100, hundredths % 100)
    }
}

impl fmt::Display for PressureLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [avg10, avg60, avg300] = [self.avg10, self.avg60, self.avg300].map(Percent);
        write!(f, "avg10={avg10} avg60={avg60} avg300={avg300} total={}", self.total)
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "some {}", self.some)?;
        writeln!(f, "full {}", self.full)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::observe::pressure::report::*;

    #[test]
    fn cuts_a_percentage_off_after_two_digits() {
        let cases = [
            (0.0, "0.00"),
            (0.009, "0.00"),
            (0.019, "0.01"),
            (1.239, "1.23"),
            (99.999, "99.99"),
            (100.0, "100.00"),
        ];
        for (percent, text) in cases {
            assert_eq!(Percent(percent).to_string(), text);
        }
        assert_eq!(Percent(100.0 * (1.0 - 1e-15)).to_string(), "100.00", "rounding has left that");
    }

    #[test]
    fn prints_as_the_file_of_the_kernel() {
        let some = PressureLine { avg10: 12.3456, avg60: 2.5, avg300: 0.1, total: 123_456 };
        let full = PressureLine { avg10: 100.0, avg60: 0.05, avg300: 0.0, total: 7 };
        let text = "some avg10=12.34 avg60=2.50 avg300=0.10 total=123456\nfull avg10=100.00 avg60=0.05 avg300=0.00 total=7\n";
        assert_eq!(Pressure { some, full }.to_string(), text);
    }
}
