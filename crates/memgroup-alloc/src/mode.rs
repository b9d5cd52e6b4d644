//! Modes of a thread: blocks that are counted elsewhere, and blocks that may fail.
//!
//! What the panic hook allocates is charged to no group: the first panic with `RUST_BACKTRACE=1`
//! makes the standard library load the program's debug symbols and keep them for the life of the
//! process. These are some 30 MB, which would stay charged to the tenant whose panic it was.
//!
//! - I1. Only the hook is uncounted. The message of a panic is formatted before the hook is called,
//!   and values are dropped after it, so both are charged as always. Otherwise a tenant's code
//!   could allocate there for free.

use core::cell::Cell;
use core::marker::PhantomData;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

use memgroup::ChargeError;
use memgroup::block::Owner;

std::thread_local! {
    static UNCOUNTED: Cell<u32> = const { Cell::new(0) };
    static FALLIBLE: Cell<u32> = const { Cell::new(0) };
    // The refusal of the last block that might fail, if it was refused.
    static REFUSAL: Cell<Option<ChargeError>> = const { Cell::new(None) };
}

/// Returns whether an [`Uncounted`] token lives on this thread: blocks that it allocates are
/// charged to no group.
#[inline(always)]
pub fn is_uncounted() -> bool {
    UNCOUNTED.get() > 0
}

/// Returns whether a large block may fail. It may not while the thread is panicking, because the
/// report of the panic or a destructor could not handle the failure.
pub(crate) fn is_fallible() -> bool {
    FALLIBLE.get() > 0 && !std::thread::panicking()
}

/// Charges for a block that may fail.
pub(crate) fn try_charge(owner: Owner, bytes: u64) -> Option<Owner> {
    noted(owner.try_charge(bytes))
}

/// Charges for a block that may fail to grow. Returns whether it could.
pub(crate) fn try_grow(owner: Owner, bytes: u64) -> bool {
    noted(owner.try_grow(bytes)).is_some()
}

fn noted<T>(outcome: Result<T, ChargeError>) -> Option<T> {
    REFUSAL.set(outcome.as_ref().err().copied());
    outcome.ok()
}

/// Returns the refusal of this thread's last block that might fail, if it was refused.
#[cfg(feature = "nightly")]
pub(crate) fn refusal() -> Option<ChargeError> {
    REFUSAL.get()
}

/// A token. While it lives, blocks that this thread allocates are charged to no group.
///
/// It is for memory that an explicit [`Charge`](memgroup::Charge) already accounts for. It is not
/// `Send`. Tokens nest, and may end in any order. Blocks that are freed while a token lives are
/// uncharged as always. A block that grows keeps its owner, or stays without one.
#[derive(Debug)]
#[must_use = "blocks are uncounted only while the token lives"]
pub struct Uncounted(PhantomData<*const ()>);

impl Uncounted {
    /// Makes a token: from now on, blocks of this thread are charged to no group.
    pub fn begin() -> Uncounted {
        UNCOUNTED.set(UNCOUNTED.get() + 1);
        Uncounted(PhantomData)
    }
}

impl Drop for Uncounted {
    fn drop(&mut self) {
        UNCOUNTED.set(UNCOUNTED.get() - 1);
    }
}

/// Calls `act`. The blocks that it allocates on this thread are charged to no group, because an
/// explicit charge accounts for them.
///
/// ```
/// use memgroup::{Config, Hierarchy, scope};
/// use memgroup_alloc::{Allocator, uncounted};
///
/// #[global_allocator]
/// static ALLOCATOR: Allocator = Allocator::system();
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// let scope = scope::enter(&tenant);
/// let charge = tenant.try_charge(1 << 20).unwrap();
/// let page = uncounted(|| vec![0_u8; 1 << 20]);
/// # drop(scope);
/// assert_eq!(tenant.usage_exact(), 1 << 20, "the page is counted once");
/// # drop((page, charge));
/// ```
pub fn uncounted<T>(act: impl FnOnce() -> T) -> T {
    let _token = Uncounted::begin();
    act()
}

/// Calls `act`. A block of more than 64 KiB that it allocates on this thread fails if its group has
/// no room for it.
///
/// A block that fails is a null pointer. `try_reserve` returns it as an error. Code that cannot
/// handle it, such as `Vec::push`, ends the process (`alloc::handle_alloc_error`). So `act` should
/// allocate large blocks only by `try_reserve`. Before a block fails, the engine takes back prepaid
/// bytes, but calls no shrinker and stops no victim. While the thread is panicking, no block fails.
///
/// With the feature `nightly`, and after a call of `unwind_on_refusal`, such code unwinds.
///
/// ```
/// use memgroup::{Config, Hierarchy, scope};
/// use memgroup_alloc::{Allocator, fallible};
///
/// #[global_allocator]
/// static ALLOCATOR: Allocator = Allocator::system();
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// tenant.set_max(1 << 20).unwrap();
/// let _scope = scope::enter(&tenant);
/// let mut buffer = Vec::<u8>::new();
/// fallible(|| buffer.try_reserve_exact(2 << 20)).unwrap_err();
/// fallible(|| buffer.try_reserve_exact(1 << 19)).unwrap();
/// ```
pub fn fallible<T>(act: impl FnOnce() -> T) -> T {
    struct Fallible;
    impl Drop for Fallible {
        fn drop(&mut self) {
            FALLIBLE.set(FALLIBLE.get() - 1);
        }
    }
    FALLIBLE.set(FALLIBLE.get() + 1);
    let _mode = Fallible;
    act()
}

/// Makes the current panic hook's allocations uncharged.
///
/// The first [`Hierarchy::new`](memgroup::Hierarchy::new) of the process does this for the hook
/// that it finds, so a program needs this call only if it sets a hook of its own later. The hook
/// prints the message, and with `RUST_BACKTRACE=1` it loads the program's debug symbols, which the
/// standard library then keeps. These are some 30 MB, for which no tenant should pay. Other
/// allocations of a panicking thread are charged as always: those for the message, before the hook,
/// and those in destructors, after it.
///
/// # Panics
/// Panics on a panicking thread, as [`std::panic::set_hook`] does.
///
/// ```
/// use std::panic;
///
/// panic::set_hook(Box::new(|info| eprintln!("{info}\n{}", std::backtrace::Backtrace::capture())));
/// memgroup_alloc::uncounted_panic_hook();
/// ```
pub fn uncounted_panic_hook() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let _token = Uncounted::begin();
        hook(info);
    }));
}

/// Does the same once in the process. If the thread is panicking, a later call does it.
pub(crate) fn wrap_panic_hook_once() {
    static IS_WRAPPED: AtomicBool = AtomicBool::new(false);
    // ORDERING: Relaxed, because only one thread wraps the hook, and the hook has a lock of its
    // own.
    if !std::thread::panicking() && !IS_WRAPPED.swap(true, Ordering::Relaxed) {
        uncounted_panic_hook();
    }
}
