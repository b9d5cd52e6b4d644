//! SQLite's allocator: what stands behind `SQLITE_CONFIG_MALLOC`.
//!
//! ```text
//!   SQLite ── xMalloc ──▶ charge the group in force ──▶ malloc ──▶ header { owner, size }
//!          ── xRealloc ─▶ charge or uncharge the difference, to the owner in the header
//!          ── xFree ────▶ uncharge the owner in the header, whoever calls ──▶ free
//! ```
//!
//! - I1. Bytes charged through this file == Σ `charged_bytes` over the live blocks, for each group. A charge is made
//!   before memory is asked for and given back when there is none; it is returned before the block is freed.
//! - I2. The owner of a block never changes.
//! - I3. Nothing here throttles, or allocates through Rust's allocator: the thread may hold SQLite's mutexes or a file
//!   lock. A charge that fits waits for nobody. One that meets a full counter takes the hierarchy's tree lock, whose
//!   holders run bounded steps of the engine, never user code, SQLite or I/O; so it waits for a step, not for memory.
//!   If it still does not fit it is refused, and SQLite gets a null pointer: SQLITE_NOMEM. Hooks that stop other statements
//!   for it run here, and keep to this, too; a use that was told to stop is told again here, and at its end one allocation that nobody needs is refused (kill.rs).
//! - I4. No panic leaves this file: every path returns, and `extern "C"` turns what is left (a broken engine
//!   invariant) into an abort instead of unwinding through C.
//!
//! Who synchronises with whom: nothing is shared here but [`ACCOUNT`], written once before SQLite is initialised.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use memgroup::{Charge, ChargeError, Group, Hierarchy, Statistics, scope};
use rusqlite::ffi;

use crate::block::{self, Header};
use crate::freed;
use crate::kill;
use crate::shortage::{self, Shortage};

/// Whom SQLite's memory is charged to. Set once, before SQLite can allocate, and never unset.
pub(crate) static ACCOUNT: OnceLock<Account> = OnceLock::new();

/// The hierarchy all owners belong to, and the group that pays where none is in force.
pub(crate) struct Account {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) unattributed: Group,
    pub(crate) memory: Statistics,
    pub(crate) io: Statistics,
}

/// The table SQLite copies at `SQLITE_CONFIG_MALLOC`.
pub(crate) fn methods() -> ffi::sqlite3_mem_methods {
    ffi::sqlite3_mem_methods {
        xMalloc: Some(x_malloc),
        xFree: Some(x_free),
        xRealloc: Some(x_realloc),
        xSize: Some(x_size),
        xRoundup: Some(x_roundup),
        xInit: Some(x_init),
        xShutdown: Some(x_shutdown),
        pAppData: ptr::null_mut(),
    }
}

/// Charges `bytes` to the group in force on this thread, or, if none of this hierarchy is, to the unattributed one.
#[inline]
fn charge(account: &Account, bytes: u64) -> Result<Charge, ChargeError> {
    match account.hierarchy.try_charge_current(bytes) {
        Some(charged) => charged,
        None => account.unattributed.try_charge(bytes),
    }
}

/// Notes why there is no memory, and is what is given instead.
#[cold]
fn denied(shortage: Shortage) -> Option<NonNull<c_void>> {
    shortage::note(shortage);
    #[cfg(all(test, not(memgroup_loom)))]
    crate::pcache::refused();
    None
}

/// A block of at least `asked` bytes, charged to the group in force. None when that one, or the system, has none to give; the
/// reason is noted.
#[inline]
pub(crate) fn allocate(asked: c_int) -> Option<NonNull<c_void>> {
    let (account, size) = (ACCOUNT.get()?, block::rounded_size(asked)?);
    if !kill::look() {
        return None;
    }
    let bytes = block::charged_bytes(size);
    let charge = match charge(account, bytes) {
        Ok(charge) => charge,
        Err(refusal) => return denied(Shortage::Refused(refusal)),
    };
    let Some(block) = block::allocate(size) else {
        return denied(Shortage::System { asked_bytes: bytes });
    };
    let (owner, _) = charge.into_parts();
    // SAFETY: the block is fresh from `allocate(size)` and nobody else has it.
    unsafe { block::write_header(block, Header::new(owner, size)) };
    Some(block)
}

/// Returns `block` to the system and its bytes to whoever paid for them.
///
/// # Safety
///
/// `block` came from [`allocate`], or SQLite got it from the methods below; it is live, and nobody uses it any more.
#[inline]
pub(crate) unsafe fn release(block: NonNull<c_void>) {
    let Some(account) = ACCOUNT.get() else { return };
    // SAFETY: a live block of ours has its header written (block.rs, I1), and the caller gives it up.
    let header = unsafe { block::header(block) };
    account.hierarchy.uncharge(header.owner(), header.charged_bytes());
    freed::note(header);
    // SAFETY: as above; nobody uses it any more.
    unsafe { block::release(block) };
}

/// Whether the group that [`allocate`] would charge now has paid for `block`. With a group of another hierarchy in force
/// the answer may be wrong.
///
/// # Safety
///
/// `block` is live and came from [`allocate`].
pub(crate) unsafe fn is_paid_by_current(block: NonNull<c_void>) -> bool {
    // SAFETY: a live block of ours has its header written (block.rs, I1), which never changes owner (I2).
    let owner = unsafe { block::header(block) }.owner();
    match scope::current_id() {
        Some(current) => owner == current,
        None => ACCOUNT.get().is_some_and(|account| owner == account.unattributed.id()),
    }
}

/// [`allocate`] for SQLite, which wants null for none.
unsafe extern "C" fn x_malloc(asked: c_int) -> *mut c_void {
    allocate(asked).map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// [`release`] for SQLite, which may free null.
unsafe extern "C" fn x_free(block: *mut c_void) {
    if let Some(block) = NonNull::new(block) {
        // SAFETY: SQLite passes a live block of ours and gives it up.
        unsafe { release(block) };
    }
}

/// `block` with at least `asked` bytes, perhaps elsewhere; or null, and then `block` is as it was.
unsafe extern "C" fn x_realloc(block: *mut c_void, asked: c_int) -> *mut c_void {
    let Some(block) = NonNull::new(block) else {
        // SAFETY: `x_malloc` has no precondition; realloc of nothing is malloc.
        return unsafe { x_malloc(asked) };
    };
    let (Some(account), Some(size)) = (ACCOUNT.get(), block::rounded_size(asked)) else {
        return ptr::null_mut();
    };
    // SAFETY: SQLite passes a live block of ours, with its header written (block.rs, I1).
    let header = unsafe { block::header(block) };
    // The charge of the block, in hand while its size changes; `into_parts` lays it down again.
    let mut charge = account.hierarchy.charge_from_parts(header.owner(), header.charged_bytes());
    let grown_bytes = u64::from(size.saturating_sub(header.size()));
    if grown_bytes > 0
        && let Err(refusal) = charge.try_grow(grown_bytes)
    {
        charge.into_parts();
        shortage::note(Shortage::Refused(refusal));
        return ptr::null_mut();
    }
    // SAFETY: as above, and SQLite lets no other thread near a block that it resizes.
    let Some(moved) = (unsafe { block::resize(block, size) }) else {
        charge.shrink(grown_bytes);
        charge.into_parts();
        shortage::note(Shortage::System { asked_bytes: block::charged_bytes(size) });
        return ptr::null_mut();
    };
    charge.shrink(u64::from(header.size().saturating_sub(size)));
    let (owner, _) = charge.into_parts();
    // SAFETY: `moved` came from `resize(.., size)`, and SQLite does not have it yet.
    unsafe { block::write_header(moved, Header::new(owner, size)) };
    moved.as_ptr()
}

/// The bytes SQLite may use in `block`.
unsafe extern "C" fn x_size(block: *mut c_void) -> c_int {
    let Some(block) = NonNull::new(block) else {
        return 0;
    };
    // SAFETY: SQLite passes a live block of ours, with its header written (block.rs, I1). The size fits (I2 there).
    unsafe { block::header(block) }.size() as c_int
}

/// The size of the block SQLite would get for `asked` bytes.
unsafe extern "C" fn x_roundup(asked: c_int) -> c_int {
    block::rounded_size(asked).map_or(asked, |size| size as c_int)
}

/// SQLite is being initialised: the account is open already.
unsafe extern "C" fn x_init(_app_data: *mut c_void) -> c_int {
    if ACCOUNT.get().is_some() { ffi::SQLITE_OK } else { ffi::SQLITE_MISUSE }
}

/// SQLite is being shut down: blocks it forgot stay charged, there is nothing else to undo.
unsafe extern "C" fn x_shutdown(_app_data: *mut c_void) {}
