//! Everything the lab asks of the CPU and the kernel directly: ticks, pinning, switch counts,
//! mappings.
//!
//! Unsafe code of the lab is in this file and `sqlite.rs`; each function is safe to call.
//!
//! - I1. A [`Mapping`] owns exactly the pages it mapped, and unmaps them once.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::Error;
use crate::error::Result;

/// Bytes of a page.
pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Time-stamp counter, where the machine has one that user space may read.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn ticks() -> Option<u64> {
    // SAFETY: rdtsc is part of x86_64 and has no operand.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

/// Time-stamp counter, read only once everything before it is done, and before anything after it
/// starts.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn ticks_ordered() -> Option<u64> {
    let fence = || {
        // SAFETY: lfence is part of SSE2, which every x86_64 has.
        unsafe { core::arch::x86_64::_mm_lfence() }
    };
    fence();
    let now = ticks();
    fence();
    now
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> Option<u64> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks_ordered() -> Option<u64> {
    None
}

/// CPUs this thread may run on, ascending.
pub(crate) fn allowed_cpus() -> Result<Vec<usize>> {
    let refused = Error::system("read the CPUs this process may use");
    let set = sched_getaffinity(None).map_err(|error| refused(error.into()))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Pins the calling thread to one CPU.
pub(crate) fn pin_to(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// How often the kernel has switched the calling thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadUsage {
    /// All of them: it waited, or it was taken off its CPU.
    pub(crate) switches: u64,
    /// It was taken off its CPU.
    pub(crate) switches_involuntary: u64,
}

impl ThreadUsage {
    pub(crate) fn now() -> ThreadUsage {
        // SAFETY: a rusage is a struct of integers, for which all-zero bytes are a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is a live rusage; RUSAGE_THREAD asks for the calling thread only.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        let switches_involuntary = usage.ru_nivcsw as u64;
        ThreadUsage { switches: usage.ru_nvcsw as u64 + switches_involuntary, switches_involuntary }
    }

    /// Whether the kernel has not taken the thread off its CPU since.
    pub(crate) fn is_undisturbed(self) -> bool {
        ThreadUsage::now().switches_involuntary == self.switches_involuntary
    }
}

/// Resident bytes of the process that belong to no file. Pages of the program's code become
/// resident when they are first executed, so they would count as the memory of what runs first.
pub(crate) fn resident_bytes() -> Result<u64> {
    const STATUS: &str = "read /proc/self/status";
    let text = std::fs::read_to_string("/proc/self/status").map_err(Error::system(STATUS))?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"));
    let kib = line.and_then(|kib| kib.trim().parse::<u64>().ok());
    Ok(kib.ok_or_else(|| Error::system(STATUS)(io::Error::other("no line RssAnon")))? * 1024)
}

/// Bytes of the heap that are in use, with the allocator's own overhead; none where it cannot be
/// asked.
pub(crate) fn heap_bytes() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallinfo2 has no arguments, and reads the allocator's counts under its locks.
        let counts = unsafe { libc::mallinfo2() };
        Some((counts.uordblks + counts.hblkhd) as u64)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Nanoseconds of CPU time that the calling thread has had.
pub(crate) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs `code` in a copy of this process that the kernel kills at its first system call, and
/// returns whether there was one; none where the system has no such mode. `code` must return true.
pub(crate) fn makes_system_call(code: impl FnOnce() -> bool) -> Result<Option<bool>> {
    const NO_MODE: i32 = 2;
    // SAFETY: the copy runs `code` on the only thread that it has, and ends without a return.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the mode takes no pointer.
        let refused = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) } != 0;
        let code = if refused { NO_MODE } else { i32::from(!code()) };
        // SAFETY: ends the thread, with which the copy ends; the mode allows this call.
        unsafe { libc::syscall(libc::SYS_exit, code) };
    }
    let mut status = 0;
    // SAFETY: `status` is written; the child is this process's own and was not waited for.
    if child < 0 || unsafe { libc::waitpid(child, &mut status, 0) } != child {
        return Err(system("run a copy of the process"));
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status), libc::WTERMSIG(status)) {
        (true, 0, _) => Ok(Some(false)),
        (true, NO_MODE, _) => Ok(None),
        (false, _, libc::SIGKILL) => Ok(Some(true)),
        _ => Err(Error::Wrong(format!("traced code ended with status {status:#x}"))),
    }
}

/// Fresh anonymous pages, unmapped on drop.
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes` private anonymous bytes; no page is backed yet.
    pub(crate) fn new(bytes: usize) -> Result<Mapping> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: no address is asked for, so no mapping of ours can be replaced.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(system(&format!("map {bytes} bytes")));
        }
        Ok(Mapping { start: start.cast(), bytes })
    }

    /// Writes one byte at `offset`, which backs its page.
    ///
    /// # Panics
    /// When `offset` lies beyond the mapping.
    #[inline]
    pub(crate) fn touch(&self, offset: usize) {
        assert!(offset < self.bytes, "offset {offset} of a mapping of {} bytes", self.bytes);
        // SAFETY: `offset` is inside the mapping (checked), which lives as long as self (I1).
        let byte = unsafe { self.start.add(offset) };
        // SAFETY: `byte` is a mapped, writable byte (I1); AtomicU8 has the layout of u8.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        // ORDERING: Relaxed; no thread reads it; the write is there for its page fault.
        byte.store(1, Ordering::Relaxed);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped, and once (I1).
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

// SAFETY: the pages belong to the Mapping, not to a thread; they are touched by atomics.
unsafe impl Send for Mapping {}
// SAFETY: `touch` writes by an atomic, and nothing reads the pages.
unsafe impl Sync for Mapping {}

pub(crate) fn system(what: &str) -> Error {
    Error::system(what)(io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_a_system_call_and_none_in_arithmetic() {
        // SAFETY: getppid takes nothing and cannot fail.
        let calls = || unsafe { libc::syscall(libc::SYS_getppid) } > 0;
        let none = makes_system_call(|| (0..1000_u64).sum::<u64>() == 499_500).unwrap();
        assert!(matches!(none, Some(false) | None), "{none:?}");
        assert_eq!(makes_system_call(calls).unwrap(), none.map(|_| true));
        assert!(none.is_none() || makes_system_call(|| false).is_err(), "a wrong result");
        assert!(calls(), "calls pass in this process");
    }

    #[test]
    fn counts_a_switch_of_a_thread_that_waits() {
        let before = ThreadUsage::now();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(ThreadUsage::now().switches > before.switches);
    }

    #[test]
    #[should_panic(expected = "offset 4096 of a mapping of 4096 bytes")]
    fn panics_at_a_touch_beyond_the_mapping() {
        Mapping::new(4096).unwrap().touch(4096);
    }

    #[test]
    fn pins_a_thread_to_each_cpu_it_may_use() {
        for cpu in allowed_cpus().unwrap() {
            std::thread::spawn(move || {
                pin_to(cpu).unwrap();
                assert_eq!(allowed_cpus().unwrap(), [cpu]);
            })
            .join()
            .unwrap();
        }
    }

    #[test]
    fn refuses_to_pin_to_a_cpu_that_cannot_exist() {
        assert!(pin_to(CpuSet::MAX_CPU).is_err());
    }
}
