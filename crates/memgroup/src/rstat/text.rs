//! Text: values in the form of cgroup v2's files.

use core::fmt::Write;

use super::builtin;
use super::stat::Stat;

/// Stands where cgroup v2 has a device's numbers: a process has no devices of its own.
const ALL_DEVICES: &str = "all";

/// The values of the subsystem of this number. `io` in the nested form, `device key=value ...`; all others in the flat one, a line for each key.
pub(crate) fn render(subsystem: usize, stats: &[Stat], values: &[i64]) -> String {
    let pairs = stats.iter().zip(values);
    let mut text = String::new();
    // Writing to a string does not fail.
    if subsystem == builtin::IO {
        text.push_str(ALL_DEVICES);
        for (stat, value) in pairs {
            let _ = write!(text, " {}={value}", stat.name());
        }
        text.push('\n');
    } else {
        for (stat, value) in pairs {
            let _ = writeln!(text, "{} {value}", stat.name());
        }
    }
    text
}
