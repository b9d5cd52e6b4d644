//! Bound of the server's process: a memory cgroup below this process's own if one can be made, or
//! else RLIMIT_AS.
//!
//! - I1. The parent makes the bound and removes it. The server enters it before it allocates for
//!   any tenant.

#![allow(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::run::base::process::proc_bytes;
use crate::run::base::units;
use crate::run::base::{OrFail, RunError};

/// The bound of a process in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Bound {
    /// The directory of a memory cgroup. The system kills the process that exceeds it.
    Cgroup(PathBuf, u64),
    /// Address space beyond that of the idle server. Allocations beyond it fail.
    AddressSpace(u64),
}

/// The files of both versions of cgroups: mount point, limit, and limit of swap.
const VERSIONS: [(&str, &str, &str); 2] = [
    ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
];

/// Name of a cgroup, before the number of the process that made it.
const PREFIX: &str = "memgroup-";

impl Bound {
    /// Makes a bound for one server.
    pub(super) fn make(bytes: u64) -> Bound {
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let made = own_cgroup(&cgroups).and_then(|(version, path)| {
            let (mount, limit, swap) = VERSIONS[version];
            let path = Path::new(mount).join(path.trim_start_matches('/'));
            remove_orphans(&path);
            let made = path.join(format!("{PREFIX}{}", std::process::id()));
            fs::create_dir(&made).ok()?;
            let swap_bytes = if version == 0 { 0 } else { bytes };
            if fs::write(made.join(limit), bytes.to_string()).is_err() {
                // If there is no such file, the parent cgroup doesn't pass the controller on.
                let _ = fs::remove_dir(&made);
                return None;
            }
            // Without swap this file doesn't exist, and nothing needs a limit.
            let _ = fs::write(made.join(swap), swap_bytes.to_string());
            Some(made)
        });
        made.map_or(Bound::AddressSpace(bytes), |made| Bound::Cgroup(made, bytes))
    }

    /// Moves this process into its cgroup.
    pub(super) fn enter(&self) -> Result<(), RunError> {
        let Bound::Cgroup(path, _) = self else { return Ok(()) };
        let moved = fs::write(path.join("cgroup.procs"), std::process::id().to_string());
        moved.or_fail(format_args!("move the server into {}", path.display()))
    }

    /// If the address space is bounded, limits that of this process to its size now plus the bound.
    pub(super) fn limit_address_space(&self) -> Result<(), RunError> {
        let Bound::AddressSpace(bytes) = *self else { return Ok(()) };
        let used = proc_bytes("self", "VmSize").ok_or("no VmSize").or_fail("read /proc/self/status")?;
        let limit = libc::rlimit { rlim_cur: used + bytes, rlim_max: used + bytes };
        // SAFETY: `limit` is a valid structure, which the call reads.
        match unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()).or_fail("limit the server's address space"),
        }
    }

    /// Removes the cgroup, which must not have a process any more.
    pub(super) fn remove(&self) {
        if let Bound::Cgroup(path, _) = self {
            // An empty cgroup that stays does no harm.
            let _ = fs::remove_dir(path);
        }
    }

    /// Returns what reports call it.
    pub(super) fn title(&self) -> String {
        match self {
            Bound::Cgroup(_, bytes) => format!("a memory cgroup of {}", units::limit(Some(*bytes))),
            Bound::AddressSpace(bytes) => format!("RLIMIT_AS, {} more than idle", units::limit(Some(*bytes))),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let (Bound::Cgroup(_, bytes) | Bound::AddressSpace(bytes)) = self;
        *bytes
    }
}

/// Removes the cgroups of runs that were killed.
fn remove_orphans(path: &Path) {
    let names = fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_orphan = |name: &String| {
        name.strip_prefix(PREFIX).is_some_and(|process| !Path::new("/proc").join(process).exists())
    };
    // A cgroup that has processes stays.
    names.filter(is_orphan).for_each(|name| drop(fs::remove_dir(path.join(name))));
}

/// Returns the index of the version that controls memory, and the path of the process's own cgroup
/// in it, from /proc/self/cgroup.
fn own_cgroup(cgroups: &str) -> Option<(usize, &str)> {
    let fields = || cgroups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let memory = fields().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let unified = || fields().find(|(controllers, _)| controllers.is_empty()).map(|(_, path)| (0, path));
    memory.map(|(_, path)| (1, path)).or_else(unified)
}

#[cfg(test)]
mod tests {
    use super::own_cgroup;

    #[test]
    fn finds_the_cgroup_that_controls_memory() {
        for (text, expected) in [
            ("0::/user.slice/a\n", Some((0, "/user.slice/a"))),
            ("9:name=systemd:/\n4:cpu,memory:/job:1\n0::/\n", Some((1, "/job:1"))),
            ("9:cpu:/a\n", None),
            ("", None),
        ] {
            assert_eq!(own_cgroup(text), expected, "{text}");
        }
    }
}
