//! Calls of the C library.

#![allow(unsafe_code)]

/// Has the allocator of the C library, which is Rust's [`System`](std::alloc::System), give freed memory back: `malloc_trim(0)` of glibc. Elsewhere it
/// does nothing.
///
/// It takes the locks of all arenas in turn, and milliseconds for each GiB. Returns whether any memory went back.
pub fn trim_malloc() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointer, and may be made on any thread at any time.
    return unsafe { libc::malloc_trim(0) } == 1;
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

/// The smallest and the largest block that [`return_large_blocks`] has given back at once. glibc accepts no larger one.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: std::ops::RangeInclusive<u64> = 128 << 10..=32 << 20;

/// Has the allocator of the C library give a block back to the system when it is freed, if the block is larger than a 65,536th of `limit_bytes`, and at
/// least 128 KiB. Returns whether it will: `false` without glibc, and where the environment sets glibc's limits of its own (`MALLOC_MMAP_THRESHOLD_`,
/// `GLIBC_TUNABLES`).
///
/// glibc maps such blocks to begin with. But the first one that is freed raises its threshold to the block's size, up to 32 MiB. From then on
/// it keeps freed blocks, in up to eight arenas a processor. No other arena uses them, so a process may keep several times the memory
/// that it ever used at once.
pub(crate) fn return_large_blocks(limit_bytes: u64) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        if ["MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"].iter().any(|name| std::env::var_os(name).is_some()) {
            return false;
        }
        let least = (limit_bytes >> 16).clamp(*LARGE.start(), *LARGE.end()) as libc::c_int;
        // The top of an arena shrinks by as much. Its threshold may have been raised, too.
        let options = [(libc::M_MMAP_THRESHOLD, least), (libc::M_TRIM_THRESHOLD, least)];
        options.into_iter().all(|(option, bytes)| {
            // SAFETY: the call takes numbers. Under the lock of the first arena it stores a threshold, and that glibc must leave it. Each thread's
            // `free` of a mapped block stores these thresholds without a lock, and every thread reads them at any time: it may use any value
            // that it finds.
            unsafe { libc::mallopt(option, bytes) == 1 }
        })
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        _ = limit_bytes;
        false
    }
}

/// Bytes of a page of memory.
pub(crate) fn page_bytes() -> u64 {
    #[cfg(unix)]
    // SAFETY: the call takes and returns numbers.
    if let Ok(bytes) = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) {
        return bytes;
    }
    4096
}
