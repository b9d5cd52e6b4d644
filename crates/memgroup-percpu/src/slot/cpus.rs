//! The number of CPUs, and the CPU that this thread is on, as the operating system reports them.

#![allow(unsafe_code)]

#[cfg(all(target_os = "linux", not(miri), not(memgroup_loom)))]
mod imp {
    /// The CPU as the C library reads it, from the rseq area or the vDSO; `u32::MAX` for an error.
    #[inline]
    pub(crate) fn getcpu_library() -> u32 {
        // SAFETY: sched_getcpu has no arguments and touches no memory of ours.
        unsafe { libc::sched_getcpu() }.cast_unsigned()
    }

    /// The CPU as the system call itself reports it, independently of the source that it is
    /// compared to.
    pub(crate) fn getcpu_kernel() -> Option<u32> {
        let mut cpu = u32::MAX;
        let no_node = core::ptr::null_mut::<u32>();
        let no_cache = core::ptr::null_mut::<u8>();
        // SAFETY: the call writes one u32 to `cpu`, which lives, and nothing through the null
        // pointers.
        let answer = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, no_node, no_cache) };
        (answer == 0).then_some(cpu)
    }

    /// The CPUs this thread may run on, if the system reports them.
    fn allowed_set() -> Option<libc::cpu_set_t> {
        // SAFETY: a CPU set is an array of words, for which zero bytes are a value.
        let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
        // SAFETY: the call writes at most the given size into `set`.
        let answer = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
        (answer == 0).then_some(set)
    }

    /// How many CPUs this thread may run on; 0 if the system cannot tell.
    pub(crate) fn allowed() -> usize {
        // SAFETY: CPU_COUNT reads the set, which lives.
        allowed_set().map_or(0, |set| unsafe { libc::CPU_COUNT(&set) }.cast_unsigned() as usize)
    }

    /// Keeps this thread off `cpu` from now on, if there is another for it and the system lets us.
    pub(crate) fn keep_off(cpu: u32) {
        let Some(mut set) = allowed_set() else { return };
        if cpu >= libc::CPU_SETSIZE.cast_unsigned() {
            return;
        }
        // SAFETY: the index is below the set's size.
        unsafe { libc::CPU_CLR(cpu as usize, &mut set) };
        // SAFETY: the call reads `set`, which lives, at its own size. An empty set is refused, and
        // changes nothing.
        unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    }

    pub(super) fn configured() -> usize {
        // SAFETY: sysconf reads no memory of ours; an unknown name gives -1.
        let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok();
        let listed = listed.and_then(|list| super::highest_of_list(&list)).map_or(0, |highest| highest + 1);
        usize::try_from(configured).unwrap_or(0).max(listed)
    }
}

#[cfg(not(all(target_os = "linux", not(miri), not(memgroup_loom))))]
mod imp {
    pub(crate) fn getcpu_library() -> u32 {
        u32::MAX
    }

    pub(super) fn configured() -> usize {
        0
    }
}

use std::sync::OnceLock;

pub(crate) use imp::getcpu_library;
#[cfg(all(target_os = "linux", not(miri), not(memgroup_loom)))]
pub(crate) use imp::{allowed, getcpu_kernel, keep_off};

/// One more than the highest CPU number that this machine can ever have, at least 1. Computed
/// once.
pub(crate) fn possible() -> usize {
    static POSSIBLE: OnceLock<usize> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let running = std::thread::available_parallelism().map_or(1, usize::from);
        imp::configured().max(running)
    })
}

/// The highest number in a list of CPUs such as `0-3,8-11`.
#[cfg_attr(any(miri, memgroup_loom, not(target_os = "linux")), allow(dead_code))]
fn highest_of_list(list: &str) -> Option<usize> {
    list.trim().split(',').filter_map(|range| range.rsplit('-').next()?.trim().parse().ok()).max()
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn finds_the_highest_cpu_of_any_list() {
        assert_eq!(highest_of_list("0-1\n"), Some(1));
        assert_eq!(highest_of_list("0\n"), Some(0));
        assert_eq!(highest_of_list("0-3,8-11,5\n"), Some(11));
        assert_eq!(highest_of_list("\n"), None);
    }

    #[test]
    fn there_is_at_least_the_cpu_this_runs_on() {
        assert!(possible() >= 1);
        #[cfg(all(target_os = "linux", not(miri)))]
        if let Some(cpu) = getcpu_kernel() {
            assert!((cpu as usize) < possible(), "on CPU {cpu} of {}", possible());
        }
    }
}
