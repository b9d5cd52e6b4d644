//! Meter: the memory that the process uses now, from files that stay open.

use procfs_core::MemoryPressure;
use procfs_core::process::StatM;

use crate::cgroup::{Cgroup, Figures};
use crate::error::ProcessError;
use crate::files::{self, Files, Kept};
use crate::limit::LimitSource;
use crate::system;

/// The files that tell what the process uses of its limit.
#[derive(Debug)]
pub(crate) enum Meter {
    /// Its cgroup's, or one's above it.
    Cgroup(Figures),
    /// Its own resident memory, and the pressure of the machine.
    Process { statm: Kept, pressure: Kept, page: u64 },
}

impl Meter {
    /// The meter for a limit of this source.
    pub(crate) fn new(files: &Files, source: &LimitSource) -> Result<Meter, ProcessError> {
        let cgroup = match source {
            LimitSource::Cgroup(level) => Cgroup::of_process(files)?.map(|cgroup| cgroup.figures(level)),
            LimitSource::Machine | LimitSource::Program => None,
        };
        Ok(cgroup.map_or_else(|| Meter::of_process(files), Meter::Cgroup))
    }

    fn of_process(files: &Files) -> Meter {
        let kept = |path| Kept::at(files.at(path));
        let (statm, pressure) = (kept("/proc/self/statm"), kept("/proc/pressure/memory"));
        Meter::Process { statm, pressure, page: system::page_bytes() }
    }

    /// Bytes that the process uses of its limit.
    pub(crate) fn used(&mut self) -> Result<u64, ProcessError> {
        match self {
            Meter::Cgroup(figures) => figures.used(),
            Meter::Process { statm, page, .. } => {
                let (path, text) = statm.text()?;
                Ok(files::parse_text::<StatM>(path, text)?.resident * *page)
            }
        }
    }

    /// The share of the last ten seconds, in percent, in which threads waited for memory, where the kernel tells.
    pub(crate) fn pressure(&mut self) -> Option<f32> {
        match self {
            Meter::Cgroup(figures) => figures.pressure(),
            Meter::Process { pressure, .. } => {
                let (path, text) = pressure.text().ok()?;
                Some(files::parse_text::<MemoryPressure>(path, text).ok()?.some.avg10)
            }
        }
    }
}
