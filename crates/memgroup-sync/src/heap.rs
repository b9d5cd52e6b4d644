//! The heap of the process: asks the system's allocator to give free memory back.

#![allow(unsafe_code)]

/// Asks the system's allocator for the free memory that it keeps. It goes through the whole heap,
/// which takes milliseconds where that is large.
///
/// It does so with glibc, which gives memory back by itself only from the end of the heap. Other
/// allocators are left alone.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: malloc_trim takes a number and gives back free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}
