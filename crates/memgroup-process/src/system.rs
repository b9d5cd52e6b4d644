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

/// Bytes of a page of memory.
pub(crate) fn page_bytes() -> u64 {
    #[cfg(unix)]
    // SAFETY: the call takes and returns numbers.
    if let Ok(bytes) = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) {
        return bytes;
    }
    4096
}
