//! Slot sources as text, for the environment variable, options and reports.
//!
//! - I1. The text of a source is parsed as the same source.

use core::fmt;
use core::str::FromStr;

use crate::slot::error::SlotError;
use crate::slot::source::SlotSource;

impl fmt::Display for SlotSource {
    /// The form that [`FromStr`] reads: `mm_cid`, `cpu_id`, `getcpu`, `hash:N`, `virtual:N`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            name @ ("hash" | "virtual") => write!(f, "{name}:{}", self.slots()),
            name => f.write_str(name),
        }
    }
}

impl FromStr for SlotSource {
    type Err = SlotError;

    /// Reads `mm_cid`, `cpu_id`, `getcpu`, `hash` (as many slots as possible CPUs), `hash:N` or
    /// `virtual:N`.
    fn from_str(spec: &str) -> Result<Self, SlotError> {
        let count = |kind, digits: &str, make: fn(usize) -> Result<Self, SlotError>| {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let number = if plain { digits.parse().ok() } else { None };
            number.map_or_else(|| Err(SlotError::Count { kind, asked: digits.to_owned() }), make)
        };
        match spec.split_once(':') {
            None if spec == "mm_cid" => Self::mm_cid(),
            None if spec == "cpu_id" => Self::cpu_id(),
            None if spec == "getcpu" => Self::getcpu(),
            None if spec == "hash" => Ok(Self::hash_of_cpus()),
            Some(("hash", digits)) => count("hash", digits, Self::thread_hash),
            Some(("virtual", digits)) => count("virtual", digits, Self::virtual_slots),
            _ => Err(SlotError::Unknown { spec: spec.to_owned() }),
        }
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn parses_its_own_text() {
        for source in crate::slot::source::tests::all_that_work_here() {
            assert_eq!(source.to_string().parse(), Ok(source));
        }
        assert_eq!("virtual:512".parse::<SlotSource>().unwrap().to_string(), "virtual:512");
    }

    #[test]
    fn refuses_an_unknown_text_with_the_allowed_ones() {
        for spec in ["", "cpu", "mm_cid:2", "virtual", "virtual:2:3x", "getcpu ", "VIRTUAL:2"] {
            let error = spec.parse::<SlotSource>().unwrap_err().to_string();
            assert!(error.contains(&format!("{spec:?}")) || error.contains("expected a number"), "{error}");
            assert!(error.contains("expected"), "{error}");
        }
        let error = "cpu".parse::<SlotSource>().unwrap_err().to_string();
        for allowed in ["mm_cid", "cpu_id", "getcpu", "hash", "hash:N", "virtual:N", "1 to 4096"] {
            assert!(error.contains(allowed), "{allowed} in {error}");
        }
    }

    #[test]
    fn a_number_of_slots_out_of_range_is_refused_with_the_range() {
        for spec in [
            "virtual:0",
            "hash:0",
            "virtual:4097",
            "hash:99999999999999999999",
            "hash:",
            "virtual:+2",
            "hash:-1",
        ] {
            let error = spec.parse::<SlotSource>().unwrap_err().to_string();
            assert!(error.contains("1 to 4096"), "{spec}: {error}");
        }
        assert_eq!(
            SlotSource::virtual_slots(0).unwrap_err(),
            SlotError::Count { kind: "virtual", asked: "0".to_owned() }
        );
    }
}
