//! Modes of a thread: blocks that are counted elsewhere, and blocks that may fail.

use core::cell::Cell;
use core::marker::PhantomData;

use memgroup::ChargeError;
use memgroup::block::Owner;

std::thread_local! {
    static UNCOUNTED: Cell<u32> = const { Cell::new(0) };
    static FALLIBLE: Cell<u32> = const { Cell::new(0) };
    // The refusal of the last block that might fail, if it was refused.
    static REFUSAL: Cell<Option<ChargeError>> = const { Cell::new(None) };
}

/// Whether an [`Uncounted`] token lives on this thread: blocks that it allocates are charged to no group.
#[inline(always)]
pub fn is_uncounted() -> bool {
    UNCOUNTED.get() > 0
}

/// Whether a large block may fail. Not so while the thread panics: a report of the panic, or a destructor, could not handle it.
pub(crate) fn is_fallible() -> bool {
    FALLIBLE.get() > 0 && !std::thread::panicking()
}

/// Charges for a block that may fail.
pub(crate) fn try_charge(owner: Owner, bytes: u64) -> Option<Owner> {
    noted(owner.try_charge(bytes))
}

/// Charges for a block that may fail to grow. Whether it could.
pub(crate) fn try_grow(owner: Owner, bytes: u64) -> bool {
    noted(owner.try_grow(bytes)).is_some()
}

fn noted<T>(outcome: Result<T, ChargeError>) -> Option<T> {
    REFUSAL.set(outcome.as_ref().err().copied());
    outcome.ok()
}

/// The refusal of this thread's last block that might fail, if it was refused.
#[cfg(feature = "nightly")]
pub(crate) fn refusal() -> Option<ChargeError> {
    REFUSAL.get()
}

/// Token: while it lives, blocks that this thread allocates are charged to no group.
///
/// It is for memory that an explicit [`Charge`](memgroup::Charge) accounts for already. It is not `Send`. Tokens nest, and may end in any order.
/// Blocks that are freed meanwhile are uncharged as always. A block keeps its owner, or none, when it grows.
#[derive(Debug)]
#[must_use = "blocks are uncounted only while the token lives"]
pub struct Uncounted(PhantomData<*const ()>);

impl Uncounted {
    /// Blocks of this thread are charged to no group from now on.
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

/// Calls `act`. The blocks that it allocates on this thread are charged to no group, because an explicit charge accounts for them.
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

/// Calls `act`. A block of more than 64 KiB that it allocates on this thread fails if its group has no room for it.
///
/// A block that fails is a null pointer. `try_reserve` returns it as an error. Code that cannot handle it, such as `Vec::push`, ends the process
/// (`alloc::handle_alloc_error`). So `act` should allocate large blocks by `try_reserve` alone. Before a block fails the engine takes
/// prepaid bytes back; it asks no shrinker and stops no victim. While the thread panics no block fails.
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
