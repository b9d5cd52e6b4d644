//! Calls of the C library.

#![allow(unsafe_code)]

/// Makes the allocator of the C library, which is Rust's [`System`](std::alloc::System), return
/// freed memory, by `malloc_trim(0)` of glibc. With other C libraries it does nothing.
///
/// It takes the locks of all arenas one after the other, and needs milliseconds for each GiB.
/// Returns whether any memory was returned.
pub fn trim_malloc() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointer, and may be made on any thread at any time.
    return unsafe { libc::malloc_trim(0) } == 1;
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

/// The range of the threshold that [`return_large_blocks`] sets. glibc accepts no larger one.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: std::ops::RangeInclusive<u64> = 128 << 10..=32 << 20;

/// Makes the allocator of the C library return a block to the system when it is freed, if the block
/// is larger than a 65,536th of `limit_bytes`, and at least 128 KiB. Returns whether it will. This
/// is `false` without glibc, and if the environment sets glibc's limits itself
/// (`MALLOC_MMAP_THRESHOLD_`, `GLIBC_TUNABLES`).
///
/// At first glibc maps such blocks. But the first one that is freed raises its threshold to the
/// block's size, up to 32 MiB, and from then on it keeps freed blocks, in up to eight arenas for
/// each processor. No other arena uses them, so a process may keep several times the memory that it
/// ever used at once.
pub(crate) fn return_large_blocks(limit_bytes: u64) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        if ["MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"].iter().any(|name| std::env::var_os(name).is_some()) {
            return false;
        }
        let least = (limit_bytes >> 16).clamp(*LARGE.start(), *LARGE.end()) as libc::c_int;
        // The second option is for the top of an arena, whose threshold may have been raised as
        // well.
        let options = [(libc::M_MMAP_THRESHOLD, least), (libc::M_TRIM_THRESHOLD, least)];
        options.into_iter().all(|(option, bytes)| {
            // SAFETY: the call takes numbers only. Under the lock of the first arena it stores a
            // threshold, and a flag that makes glibc leave the threshold alone. This races only
            // with accesses that glibc itself makes without a lock: `free` of a mapped block stores
            // these thresholds on any thread, and every thread reads them at any time and may use
            // any value that it finds.
            unsafe { libc::mallopt(option, bytes) == 1 }
        })
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        _ = limit_bytes;
        false
    }
}

/// Returns the size of a page of memory, in bytes.
pub(crate) fn page_bytes() -> u64 {
    #[cfg(unix)]
    // SAFETY: the call takes and returns numbers only.
    if let Ok(bytes) = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) {
        return bytes;
    }
    4096
}
