//! Meter: the memory that the process uses now, read from files that stay open.

use procfs_core::process::StatM;

use crate::cgroup::{Cgroup, Figures};
use crate::files::{self, Files, Kept, ProcessError};
use crate::limit::LimitSource;
use crate::system;

/// The files that show how much of its limit the process uses.
#[derive(Debug)]
pub(crate) enum Meter {
    /// Those of its cgroup, or of one above it.
    Cgroup(Figures),
    /// Its own resident memory, and the pressure of the machine.
    Process { statm: Kept, pressure: Kept, page: u64 },
}

impl Meter {
    /// Makes the meter for a limit of this source.
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

    /// Returns how many bytes of its limit the process uses.
    pub(crate) fn used(&mut self) -> Result<u64, ProcessError> {
        match self {
            Meter::Cgroup(figures) => figures.used(),
            Meter::Process { statm, page, .. } => {
                let (path, text) = statm.text()?;
                Ok(files::parse_text::<StatM>(path, text)?.resident * *page)
            }
        }
    }

    /// Returns the share of the last ten seconds, in percent, in which threads waited for memory.
    /// Returns `None` if the kernel doesn't report it: for a cgroup of version 1, and without its
    /// option for pressure.
    pub(crate) fn pressure(&mut self) -> Option<f32> {
        let (Meter::Cgroup(Figures { pressure, .. }) | Meter::Process { pressure, .. }) = self;
        // procfs-core's parser panics on a line that is too short.
        let (_, text) = pressure.text().ok()?;
        let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
        let percent = some.split(' ').find_map(|figure| figure.strip_prefix("avg10="))?.parse().ok();
        percent.filter(|percent| (0.0..=100.0).contains(percent))
    }
}
