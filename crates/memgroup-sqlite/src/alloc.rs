//! SQLite's allocator: the methods for `SQLITE_CONFIG_MALLOC`.
//!
//! ```text
//!   SQLite ── xMalloc ──▶ charge the current group ──▶ malloc ──▶ header { owner, size }
//!          ── xRealloc ─▶ charge or uncharge the difference, to the owner in the header
//!          ── xFree ────▶ uncharge the owner in the header, on any thread ──▶ free
//! ```
//!
//! - I1. For each group, the bytes charged through this file == Σ `charged_bytes` over its live
//!   blocks. A block is charged before it is requested from the system, and uncharged if the system
//!   has none. A block is uncharged before it is freed.
//! - I2. The owner of a block never changes.
//! - I3. No method sleeps for a throttle or waits for memory that is in use: the thread may hold
//!   SQLite's mutexes or a file lock. A charge that fits calls no shrinker and no hook. A charge
//!   that meets a full counter may take the engine's locks and wait for another thread's shrinker
//!   call. In this case the engine may allocate, and run shrinkers and kill hooks on this thread. A
//!   charge that still does not fit is refused, and SQLite gets a null pointer (SQLITE_NOMEM).
//! - I4. No panic leaves this file: every path returns, and `extern "C"` turns a broken engine
//!   invariant into an abort instead of unwinding through C.
//!
//! Synchronisation: this file shares only [`ACCOUNT`], which is written once before SQLite is
//! initialised.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use memgroup::{raw, scope};
use rusqlite::ffi;

use crate::account::ACCOUNT;
use crate::allocation_error::{self, AllocationError};
use crate::block::{self, Header};
use crate::kill_target;

/// The table that SQLite copies at `SQLITE_CONFIG_MALLOC`.
pub(crate) fn methods() -> ffi::sqlite3_mem_methods {
    ffi::sqlite3_mem_methods {
        xMalloc: Some(x_malloc),
        xFree: Some(x_free),
        xRealloc: Some(x_realloc),
        xSize: Some(x_size),
        xRoundup: Some(x_roundup),
        xInit: Some(x_init),
        // Blocks that SQLite leaks stay charged.
        xShutdown: None,
        pAppData: ptr::null_mut(),
    }
}

/// Allocates a block of at least `asked` bytes, charged to the current group. If the group refuses
/// or the system has no memory, records the reason and returns `None`.
#[inline]
pub(crate) fn allocate(asked: c_int) -> Option<NonNull<c_void>> {
    let (account, size) = (ACCOUNT.get()?, block::rounded_size(asked)?);
    if !kill_target::may_allocate() {
        return None;
    }
    let bytes = block::charged_bytes(size);
    let charge = match account.charge(bytes) {
        Ok(charge) => charge,
        Err(refusal) => return allocation_error::record(AllocationError::Refused(refusal)),
    };
    let Some(block) = block::allocate(size) else {
        return allocation_error::record(AllocationError::System { asked_bytes: bytes });
    };
    let (owner, _) = charge.into_parts();
    // SAFETY: the block is fresh from `allocate(size)` and only this thread has it.
    unsafe { block::write_header(block, Header { owner: owner.node(), size }) };
    Some(block)
}

/// Returns `block` to the system and its bytes to its owner.
///
/// # Safety
///
/// `block` came from [`allocate`], or SQLite got it from the methods below. It is live, and is not
/// used after this.
#[inline]
pub(crate) unsafe fn release(block: NonNull<c_void>) {
    let Some(account) = ACCOUNT.get() else { return };
    // SAFETY: a live block has its header written (block.rs, I1), and the caller gives the block
    // up.
    let header = unsafe { block::header(block) };
    drop(raw::charge_of_node(&account.hierarchy, header.owner, header.charged_bytes()));
    block::count_freed(header);
    // SAFETY: a live block has its header written (block.rs, I1), and the caller gives the block
    // up.
    unsafe { block::release(block) };
}

/// Returns whether [`allocate`] would charge the owner of `block` now. Within a scope of another
/// hierarchy the answer may be wrong.
///
/// # Safety
///
/// `block` is live and came from [`allocate`].
pub(crate) unsafe fn is_owned_by_current(block: NonNull<c_void>) -> bool {
    // SAFETY: a live block has its header written (block.rs, I1), and its owner never changes (I2).
    let owner = unsafe { block::header(block) }.owner;
    let current = scope::current_id().or_else(|| ACCOUNT.get().map(|account| account.unattributed.id()));
    current.is_some_and(|current| current.node() == owner)
}

/// [`allocate`] for SQLite, which expects null on failure.
unsafe extern "C" fn x_malloc(asked: c_int) -> *mut c_void {
    allocate(asked).map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// [`release`] for SQLite, which may free null.
unsafe extern "C" fn x_free(block: *mut c_void) {
    if let Some(block) = NonNull::new(block) {
        // SAFETY: SQLite passes a live block of this allocator and gives it up.
        unsafe { release(block) };
    }
}

/// Resizes `block` to at least `asked` bytes, and may move it. On failure it returns null and
/// leaves `block` as it was.
unsafe extern "C" fn x_realloc(block: *mut c_void, asked: c_int) -> *mut c_void {
    let Some(block) = NonNull::new(block) else {
        // SAFETY: `x_malloc` has no precondition; realloc of null is malloc.
        return unsafe { x_malloc(asked) };
    };
    let (Some(account), Some(size)) = (ACCOUNT.get(), block::rounded_size(asked)) else {
        return ptr::null_mut();
    };
    // SAFETY: SQLite passes a live block of this allocator, with its header written (block.rs, I1).
    let header = unsafe { block::header(block) };
    // The charge of the block, taken up while its size changes; `into_parts` puts it back.
    let mut charge = raw::charge_of_node(&account.hierarchy, header.owner, header.charged_bytes());
    let grown_bytes = u64::from(size.saturating_sub(header.size));
    // Growing by zero bytes succeeds, so a block can shrink even if its group was removed.
    let grown = charge.try_grow(grown_bytes);
    let resized = grown.map_err(AllocationError::Refused).and_then(|()| {
        // SAFETY: SQLite passes a live block, and lets no other thread use a block that it resizes.
        unsafe { block::resize(block, size) }.ok_or_else(|| {
            charge.shrink(grown_bytes);
            AllocationError::System { asked_bytes: block::charged_bytes(size) }
        })
    });
    match resized {
        Ok(moved) => {
            charge.shrink(u64::from(header.size.saturating_sub(size)));
            let (owner, _) = charge.into_parts();
            // SAFETY: `moved` came from `resize(.., size)`, and SQLite does not have it yet.
            unsafe { block::write_header(moved, Header { owner: owner.node(), size }) };
            moved.as_ptr()
        }
        Err(error) => {
            charge.into_parts();
            allocation_error::record(error).unwrap_or(ptr::null_mut())
        }
    }
}

/// The bytes that SQLite may use in `block`.
unsafe extern "C" fn x_size(block: *mut c_void) -> c_int {
    // SAFETY: SQLite passes a live block of this allocator, with its header written (block.rs, I1).
    // The size fits an int (I2 there).
    NonNull::new(block).map_or(0, |block| unsafe { block::header(block) }.size as c_int)
}

/// The size of the block that SQLite would get for `asked` bytes.
unsafe extern "C" fn x_roundup(asked: c_int) -> c_int {
    block::rounded_size(asked).map_or(asked, |size| size as c_int)
}

/// Starts SQLite's use of the allocator, or of the page cache. The account must be set.
pub(crate) unsafe extern "C" fn x_init(_app_data: *mut c_void) -> c_int {
    if ACCOUNT.get().is_some() { ffi::SQLITE_OK } else { ffi::SQLITE_MISUSE }
}
