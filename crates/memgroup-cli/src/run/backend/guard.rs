//! Guard: the limit of a run without limits, half of the available memory. It protects the machine.
//!
//! Available memory is `MemAvailable` of /proc/meminfo; in a container it is at most the rest of the container's limit.

use std::fs;

use crate::run::base::error::{OrFail, RunError};

const MEMINFO: &str = "/proc/meminfo";
/// These files exist in a container.
const CONTAINER: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"];

/// The guard now, in bytes.
pub(crate) fn bytes() -> Result<u64, RunError> {
    let text = fs::read_to_string(MEMINFO).or_fail(format_args!("read {MEMINFO}"))?;
    let system = available(&text).ok_or("it has no line `MemAvailable: N kB`");
    let system = system.or_fail(format_args!("find the available memory in {MEMINFO}"))?;
    let [max, current] = CONTAINER.map(|file| fs::read_to_string(file).ok());
    let container = max.zip(current).and_then(|(max, current)| rest(&max, &current));
    Ok(guard(system, container))
}

/// Half of the smaller of both.
fn guard(system: u64, container: Option<u64>) -> u64 {
    container.unwrap_or(u64::MAX).min(system) / 2
}

/// `MemAvailable` of /proc/meminfo, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

/// The rest of a container's limit; none without a limit.
fn rest(max: &str, current: &str) -> Option<u64> {
    let [max, current] = [max, current].map(|text| text.trim().parse::<u64>().ok());
    Some(max?.saturating_sub(current?))
}

#[cfg(test)]
mod tests {
    use super::{available, bytes, guard, rest};

    #[test]
    fn reads_the_available_memory_from_its_line() {
        let text = "MemTotal:       24684096 kB\nMemFree:  1 kB\nMemAvailable:   1000 kB\nBuffers:  2 kB\n";
        assert_eq!(available(text), Some(1_024_000));
        for text in ["", "MemFree: 1 kB", "MemAvailable: many kB", "MemAvailable: 7"] {
            assert_eq!(available(text), None, "{text}");
        }
    }

    #[test]
    fn subtracts_the_usage_of_a_container_from_its_limit() {
        assert_eq!(rest("1000\n", "400\n"), Some(600));
        assert_eq!(rest("1000\n", "1400\n"), Some(0));
        assert_eq!(rest("max\n", "400\n"), None);
    }

    #[test]
    fn takes_half_of_the_smaller_rest() {
        assert_eq!([guard(1000, None), guard(1000, Some(400)), guard(1000, Some(4000))], [500, 200, 500]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn finds_available_memory_on_linux() {
        assert!(bytes().expect("a guard") > 0);
    }
}
