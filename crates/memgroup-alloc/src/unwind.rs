//! Unwind: a refused block ends the call that asked for it. For nightly compilers.

use std::alloc::{Layout, set_alloc_error_hook, take_alloc_error_hook};
use std::panic::resume_unwind;
use std::sync::OnceLock;

use crate::block::Whole;
use crate::mode;
use crate::slots::UNITS_MOST;

/// The hook before ours.
static BEFORE: OnceLock<fn(Layout)> = OnceLock::new();

/// Makes a block that fails within [`fallible`](crate::fallible) unwind, if the code that asked for
/// it cannot handle the failure.
///
/// [`catch_unwind`](std::panic::catch_unwind) returns the refusal, a
/// [`ChargeError`](memgroup::ChargeError). No panic hook is called, and no message is printed. A
/// block that fails for another reason ends the process, as without this call. This sets the hook
/// of the process (`alloc_error_hook`), which calls the previous one. Further calls do nothing.
///
/// Only blocks of more than 64 KiB fail. A structure of small blocks, such as a list of short
/// texts, still needs a [`checkpoint`](crate::checkpoint()).
///
/// ```
/// use std::panic::catch_unwind;
///
/// use memgroup::{ChargeError, Config, Hierarchy, scope};
/// use memgroup_alloc::{Allocator, fallible, unwind_on_refusal};
///
/// #[global_allocator]
/// static ALLOCATOR: Allocator = Allocator::system();
///
/// unwind_on_refusal();
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// tenant.set_max(1 << 20).unwrap();
/// let _scope = scope::enter(&tenant);
/// let unwound = catch_unwind(|| fallible(|| (0..1_000_000).collect::<Vec<u64>>())).unwrap_err();
/// assert_eq!(unwound.downcast::<ChargeError>().unwrap().max(), Some(1 << 20));
/// ```
pub fn unwind_on_refusal() {
    BEFORE.get_or_init(|| {
        let before = take_alloc_error_hook();
        set_alloc_error_hook(hook);
        before
    });
}

fn hook(layout: Layout) {
    // Such a block was charged by `mode::try_charge`, and no other block was charged since.
    let may_be_refused =
        mode::is_fallible() && Whole::of(layout).is_some_and(|whole| whole.units() > UNITS_MOST);
    if let Some(refusal) = mode::refusal().filter(|_| may_be_refused) {
        resume_unwind(Box::new(refusal));
    }
    if let Some(before) = BEFORE.get() {
        before(layout);
    }
}
