//! What a run without limits must not exceed, so that the machine survives it: half of the memory that is available.
//!
//! Available is what the kernel estimates (`MemAvailable` of /proc/meminfo), and in a container no more than its limit leaves.

use std::fs;

use super::error::RunError;

const MEMINFO: &str = "/proc/meminfo";
/// There in a container with a limit of its own.
const CONTAINER: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"];

/// The guard as things are now, in bytes.
pub(crate) fn bytes() -> Result<u64, RunError> {
    let failed = |error: String| RunError::engine("find out what memory is available", error);
    let text = fs::read_to_string(MEMINFO).map_err(|error| failed(format!("{MEMINFO}: {error}")))?;
    let system =
        available(&text).ok_or_else(|| failed(format!("{MEMINFO} has no line `MemAvailable: N kB`")))?;
    let [max, current] = CONTAINER.map(|file| fs::read_to_string(file).ok());
    let container = max.zip(current).and_then(|(max, current)| left(&max, &current));
    Ok(guard(system, container))
}

/// Half of what both have left.
fn guard(system: u64, container: Option<u64>) -> u64 {
    container.unwrap_or(u64::MAX).min(system) / 2
}

/// What /proc/meminfo says is available, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

/// What a container may still take; none if it has no limit.
fn left(max: &str, current: &str) -> Option<u64> {
    let [max, current] = [max, current].map(|text| text.trim().parse::<u64>().ok());
    Some(max?.saturating_sub(current?))
}

#[cfg(test)]
mod tests {
    use super::{available, bytes, guard, left};

    #[test]
    fn what_is_available_is_read_from_its_line() {
        let text = "MemTotal:       24684096 kB\nMemFree:  1 kB\nMemAvailable:   1000 kB\nBuffers:  2 kB\n";
        assert_eq!(available(text), Some(1_024_000));
        for text in ["", "MemFree: 1 kB", "MemAvailable: many kB", "MemAvailable: 7"] {
            assert_eq!(available(text), None, "{text}");
        }
    }

    #[test]
    fn a_container_has_left_what_its_limit_leaves() {
        assert_eq!(left("1000\n", "400\n"), Some(600));
        assert_eq!(left("1000\n", "1400\n"), Some(0));
        assert_eq!(left("max\n", "400\n"), None);
    }

    #[test]
    fn it_is_half_of_what_the_narrower_of_both_has_left() {
        assert_eq!([guard(1000, None), guard(1000, Some(400)), guard(1000, Some(4000))], [500, 200, 500]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_some() {
        assert!(bytes().expect("the system says it") > 0);
    }
}
