//! Reading the rseq area that the kernel keeps up to date for each thread.
//!
//!   fs:0 ── thread pointer ── + offset ──▶ struct rseq
//!     { cpu_id_start, cpu_id @4, rseq_cs, flags, node_id, mm_cid @24 }
//!
//! glibc (2.35 and newer) registers the area for every thread that it starts. The symbols
//! `__rseq_offset` and `__rseq_size` name its place; they are resolved at run time, so that older
//! libraries still link. The auxiliary vector has the number of bytes that the kernel fills.
//!
//! Fields are only read, and no restartable section is ever begun.
//!
//! - I1. A [`Field`] exists only if both symbols were found and the library has registered the
//!   area. The field lies within the bytes that library and kernel both cover. Every thread with a
//!   thread control block of that library then has those bytes at that offset for its whole life,
//!   registered or not.

#![allow(unsafe_code)]

use core::num::NonZeroI32;

use crate::slot::error::SlotError;

/// One 32-bit field of the current thread's rseq area, as an offset from the thread pointer (I1).
///
/// The offset isn't 0, because the thread pointer itself points to no rseq area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) offset: NonZeroI32,
}

pub(crate) const MM_CID: &str = "mm_cid";
pub(crate) const CPU_ID: &str = "cpu_id";

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri), not(memgroup_loom)))]
mod imp {
    use core::arch::asm;
    use core::ffi::{CStr, c_uint};

    use super::{CPU_ID, Field, MM_CID, NonZeroI32, SlotError};

    const CPU_ID_AT: isize = 4;
    const MM_CID_AT: isize = 24;
    /// The size of the first version of the structure, without node_id and mm_cid.
    const SIZE_FIRST: c_uint = 20;
    /// The kernel fills mm_cid if it fills this many bytes.
    const FEATURES_MM_CID: u64 = 28;
    const AT_RSEQ_FEATURE_SIZE: u64 = 27;

    pub(crate) fn cpu_id() -> Result<Field, SlotError> {
        field(CPU_ID, CPU_ID_AT)
    }

    pub(crate) fn mm_cid() -> Result<Field, SlotError> {
        // SAFETY: getauxval reads a table that the loader keeps for the process's life; an unknown
        // tag gives 0.
        let features = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) };
        if features < FEATURES_MM_CID {
            let reason = format!(
                "the kernel fills {features} bytes of the rseq area, and mm_cid needs {FEATURES_MM_CID} \
                 (Linux 6.3 or newer)"
            );
            return Err(SlotError::unavailable(MM_CID, reason));
        }
        field(MM_CID, MM_CID_AT)
    }

    fn field(kind: &'static str, at: isize) -> Result<Field, SlotError> {
        let missing =
            || SlotError::unavailable(kind, "the C library has no rseq area (glibc 2.35 or newer has one)");
        let offset = symbol(c"__rseq_offset").ok_or_else(missing)?.cast::<isize>();
        let size = symbol(c"__rseq_size").ok_or_else(missing)?.cast::<c_uint>();
        // SAFETY: glibc's ABI declares the symbol as a `const ptrdiff_t`, set before any code of
        // the program runs.
        let offset = unsafe { offset.read() };
        // SAFETY: as above, an `unsigned int`. Zero says "not registered". 20 says that the first
        // version's fields are in use, in an area that is 32 bytes long in every version. A larger
        // value counts the fields itself.
        let size = unsafe { size.read() };
        if size < SIZE_FIRST {
            let reason =
                "the C library did not register its rseq area (kernel, valgrind or a tunable forbids it)";
            return Err(SlotError::unavailable(kind, reason));
        }
        let field = |at| {
            let offset = i32::try_from(offset + at).ok().and_then(NonZeroI32::new);
            let far =
                || SlotError::unavailable(kind, "the rseq area lies out of reach of the thread pointer");
            Ok(Field { offset: offset.ok_or_else(far)? })
        };
        // An unregistered thread holds -1 or -2 in cpu_id.
        if field(CPU_ID_AT)?.read() > i32::MAX as u32 {
            let reason = "this thread's rseq area is not registered with the kernel";
            return Err(SlotError::unavailable(kind, reason));
        }
        field(at)
    }

    fn symbol(name: &CStr) -> Option<*const u8> {
        // SAFETY: the name ends in a zero byte, and RTLD_DEFAULT is a handle that dlsym accepts.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found.cast_const().cast())
    }

    impl Field {
        #[inline]
        pub(crate) fn read(self) -> u32 {
            let value: u32;
            // SAFETY: the four bytes at fs:[offset] belong to this thread's rseq area (I1). The
            // kernel may change them between any two instructions, and this is one aligned load,
            // which sees the old or the new value.
            unsafe {
                asm!(
                    "mov {value:e}, dword ptr fs:[{offset}]",
                    value = lateout(reg) value,
                    offset = in(reg) self.offset.get() as isize,
                    options(nostack, preserves_flags, readonly),
                );
            }
            value
        }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", not(miri), not(memgroup_loom))))]
mod imp {
    use super::{CPU_ID, Field, MM_CID, SlotError};

    const REASON: &str = "the rseq area is read on x86_64 Linux only, and not under Miri or loom";

    pub(crate) fn cpu_id() -> Result<Field, SlotError> {
        Err(SlotError::unavailable(CPU_ID, REASON))
    }

    pub(crate) fn mm_cid() -> Result<Field, SlotError> {
        Err(SlotError::unavailable(MM_CID, REASON))
    }

    impl Field {
        pub(crate) fn read(self) -> u32 {
            unreachable!("no field exists in this build, yet one at {} is read", self.offset)
        }
    }
}

pub(crate) use imp::{cpu_id, mm_cid};
