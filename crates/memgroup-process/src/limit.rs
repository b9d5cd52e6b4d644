//! The most memory that the process may use, and the root's limit that follows from it.

use std::path::PathBuf;

use memgroup::Hierarchy;
use procfs_core::Meminfo;

use crate::cgroup::Cgroup;
use crate::files::{Files, ProcessError};

/// Without a margin, [`limit_from_cgroup`] leaves one part in this many of the process's limit
/// free.
const MARGIN_PART: u64 = 8;

/// The most memory that this process may use before the system reclaims it or kills the process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessLimit {
    /// In bytes.
    pub bytes: u64,
    /// The source of the limit.
    pub source: LimitSource,
}

/// The source of a process's limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitSource {
    /// The cgroup in this directory, which is that of the process or one above it.
    Cgroup(PathBuf),
    /// The memory of the machine. No cgroup has a lower limit.
    Machine,
    /// The program ([`ProcessLimit::of_bytes`]).
    Program,
}

impl ProcessLimit {
    /// A limit that the program sets itself, for its resident memory.
    #[must_use]
    pub fn of_bytes(bytes: u64) -> ProcessLimit {
        ProcessLimit { bytes, source: LimitSource::Program }
    }

    /// Reads the lowest limit of the process's cgroups, of version 1 or 2, or the machine's memory
    /// if that is less.
    ///
    /// ```
    /// # #[cfg(target_os = "linux")] {
    /// let limit = memgroup_process::ProcessLimit::read()?;
    /// println!("{} bytes, set by {:?}", limit.bytes, limit.source);
    /// # }
    /// # Ok::<(), memgroup_process::ProcessError>(())
    /// ```
    ///
    /// # Errors
    /// A file of `/proc` or of a cgroup is missing or malformed, as on systems other than Linux.
    pub fn read() -> Result<ProcessLimit, ProcessError> {
        ProcessLimit::read_below(&Files::of_system())
    }

    pub(crate) fn read_below(files: &Files) -> Result<ProcessLimit, ProcessError> {
        let machine = files.parse::<Meminfo>("/proc/meminfo")?.mem_total;
        let cgroup = Cgroup::of_process(files)?;
        let limit = cgroup.as_ref().map(Cgroup::limit).transpose()?.flatten();
        Ok(match limit.filter(|(bytes, _)| *bytes <= machine) {
            Some((bytes, level)) => ProcessLimit { bytes, source: LimitSource::Cgroup(level.to_owned()) },
            None => ProcessLimit { bytes: machine, source: LimitSource::Machine },
        })
    }
}

/// A root limit that [`limit_from_cgroup`] has put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// The root's new `max`, in bytes: the process's limit less the margin.
    pub max: u64,
    /// The process's limit.
    pub limit: ProcessLimit,
}

/// Limits the root of `hierarchy` to the memory that the process may use minus `margin` bytes, or
/// minus an eighth without a margin.
///
/// The margin is for memory that is not charged: code, stacks, buffers of libraries, and freed
/// memory that the allocator keeps. A [`Watcher`](crate::Watcher) lowers the limit further when
/// that memory grows.
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// use memgroup::{Config, Hierarchy};
/// use memgroup_process::limit_from_cgroup;
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let applied = limit_from_cgroup(&hierarchy, 64 << 20)?;
/// assert_eq!(hierarchy.root().max(), Some(applied.limit.bytes - (64 << 20)));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The limit cannot be read ([`ProcessLimit::read`]), the margin is as large as the limit, or the
/// root is not accounted. The root keeps its limit.
pub fn limit_from_cgroup(
    hierarchy: &Hierarchy,
    margin: impl Into<Option<u64>>,
) -> Result<Applied, ProcessError> {
    apply(hierarchy, ProcessLimit::read()?, margin.into())
}

pub(crate) fn apply(
    hierarchy: &Hierarchy,
    limit: ProcessLimit,
    margin: Option<u64>,
) -> Result<Applied, ProcessError> {
    let margin = margin.unwrap_or(limit.bytes / MARGIN_PART);
    if !hierarchy.config().accounts_root() {
        return Err(ProcessError::RootNotAccounted);
    }
    if margin >= limit.bytes {
        return Err(ProcessError::MarginTooLarge { margin, limit: limit.bytes });
    }
    let max = limit.bytes - margin;
    hierarchy.root().set_max(max)?;
    Ok(Applied { max, limit })
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::{LimitSource, ProcessLimit, apply};
    use crate::files::Files;

    fn limit(bytes: u64) -> ProcessLimit {
        ProcessLimit::of_bytes(bytes)
    }

    #[test]
    fn an_eighth_is_left_free_unless_told_otherwise() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        assert_eq!(apply(&hierarchy, limit(8000), None).unwrap().max, 7000);
        assert_eq!(apply(&hierarchy, limit(8000), Some(10)).unwrap().max, 7990);
        assert_eq!(hierarchy.root().max(), Some(7990));
        let error = apply(&hierarchy, limit(8000), Some(8000)).unwrap_err();
        let said = "leave a margin of 8000 bytes below the process's limit of 8000: give less than the limit";
        assert_eq!((error.to_string().as_str(), hierarchy.root().max()), (said, Some(7990)));
    }

    #[test]
    fn a_root_that_is_not_accounted_is_refused() {
        let hierarchy = Hierarchy::new(Config::new().account_root(false)).unwrap();
        let error = apply(&hierarchy, limit(8000), None).unwrap_err();
        assert!(error.to_string().contains("does not account the root"), "{error}");
    }

    #[test]
    fn a_limit_above_the_memory_of_the_machine_does_not_bind() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/app\n");
        write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        if meminfo.is_empty() {
            return;
        }
        write("proc/meminfo", &meminfo);
        write("sys/fs/cgroup/app/memory.max", "4611686018427387903\n");
        let files = Files::below(root.path());
        assert_eq!(ProcessLimit::read_below(&files).unwrap().source, LimitSource::Machine);
        write("sys/fs/cgroup/app/memory.max", "1048576\n");
        let level = root.path().join("sys/fs/cgroup/app");
        let expected = ProcessLimit { bytes: 1 << 20, source: LimitSource::Cgroup(level) };
        assert_eq!(ProcessLimit::read_below(&files).unwrap(), expected);
    }
}
