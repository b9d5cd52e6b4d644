//! Choosing the slot source at start-up.

use core::fmt;
use std::sync::OnceLock;

use crate::slot::error::{SlotError, VARIABLE};
#[cfg(all(target_os = "linux", not(miri), not(memgroup_loom)))]
use crate::slot::selftest::{cpu_id, getcpu, mm_cid};
use crate::slot::source::SlotSource;

/// The source chosen for this process, and why each better one was rejected. Printed, it is one
/// line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlotReport {
    /// The source that [`SlotSource::detect`] returns.
    pub chosen: SlotSource,
    /// Whether the environment variable chose it; else the self-test did.
    pub by_variable: bool,
    /// The rejected sources with the reason, in the order of trial. A value of the environment
    /// variable that cannot be used comes first, then the sources that failed the self-test.
    pub rejected: Vec<SlotError>,
}

impl fmt::Display for SlotReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.chosen.slots();
        let by = if self.by_variable { VARIABLE } else { "self-test" };
        write!(f, "{}, {slots} slot{}, by {by}", self.chosen.name(), if slots == 1 { "" } else { "s" })?;
        self.rejected.iter().try_for_each(|error| write!(f, "; failed to {error}"))
    }
}

impl SlotSource {
    /// The best source that works here, chosen once in a process and the same ever after.
    ///
    /// If `MEMGROUP_SLOTS` names a source that can be used, it is that one. Else `mm_cid`,
    /// `cpu_id` and `getcpu` are put to a self-test, and the first to pass is taken. If none
    /// passes, it is the thread hash over the possible CPUs. A value of the variable that
    /// cannot be used does not stop the process. [`report`](Self::report) has it. For a
    /// program that would rather stop, [`from_env`](Self::from_env) returns it as an error.
    ///
    /// # The self-test
    ///
    /// A candidate must be there at all (see its constructor) and always read a number below that
    /// of the possible CPUs. `cpu_id` and `getcpu` must agree, in 256 readings, with the `getcpu`
    /// system call wherever the thread was not moved meanwhile. For `mm_cid`, a helper thread is
    /// started for the time of the test, on another CPU than the caller's. The two threads must
    /// read different ids in seven of eight readings at which they ran on different CPUs. That
    /// cannot be seen if one CPU is allowed, or if the machine is so busy that the two hardly run
    /// together. Then `mm_cid` is not taken, and `cpu_id` serves as well. The affinity of no other
    /// thread is changed. The test takes some 0.3 ms, up to 30 ms where every CPU is busy. It
    /// gives up after a fixed number of readings.
    ///
    /// Under loom, it is two virtual slots, without a test.
    pub fn detect() -> Self {
        Self::report().chosen
    }

    /// How [`detect`](Self::detect) chose, for reports to people.
    pub fn report() -> &'static SlotReport {
        static REPORT: OnceLock<SlotReport> = OnceLock::new();
        REPORT.get_or_init(choose)
    }

    /// The source that `MEMGROUP_SLOTS` names now: `mm_cid`, `cpu_id`, `getcpu`, `hash`, `hash:N`
    /// or `virtual:N`; `None` if the variable is not set, or empty.
    ///
    /// # Errors
    ///
    /// [`SlotError::Variable`] if it names no source, one that is not available here, or a bad
    /// number of slots.
    pub fn from_env() -> Result<Option<Self>, SlotError> {
        let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let source = value.to_string_lossy().parse();
        source.map(Some).map_err(|cause| SlotError::Variable { cause: Box::new(cause) })
    }
}

fn choose() -> SlotReport {
    let mut rejected = Vec::new();
    #[cfg(memgroup_loom)]
    if let Ok(chosen) = SlotSource::virtual_slots(2) {
        return SlotReport { chosen, by_variable: false, rejected };
    }
    match SlotSource::from_env() {
        Ok(Some(chosen)) => return SlotReport { chosen, by_variable: true, rejected },
        Ok(None) => {}
        Err(error) => rejected.push(error),
    }
    #[cfg(not(all(target_os = "linux", not(miri), not(memgroup_loom))))]
    let (mm_cid, cpu_id, getcpu) = (SlotSource::mm_cid, SlotSource::cpu_id, SlotSource::getcpu);
    for candidate in [mm_cid as fn() -> _, cpu_id, getcpu] {
        match candidate() {
            Ok(chosen) => return SlotReport { chosen, by_variable: false, rejected },
            Err(error) => rejected.push(error),
        }
    }
    SlotReport { chosen: SlotSource::hash_of_cpus(), by_variable: false, rejected }
}
