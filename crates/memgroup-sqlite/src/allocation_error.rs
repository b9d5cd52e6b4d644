//! The last reason why SQLite got no memory on this thread.
//!
//! SQLite's allocator interface can only return a null pointer. The allocator leaves the reason
//! here. [`TenantError`](crate::TenantError) takes it when SQLite's error code reaches the
//! connection.
//!
//! - I1. The cell holds a `Copy` value without a destructor, so it can be read and written at any
//!   time in a thread's life, even while other thread-local values are destroyed.
//! - B1. SQLite continues without some allocations, which it calls benign, so a recorded failure
//!   need not cause an error. An error reports the *last* failure since the connection was entered.

use std::cell::Cell;

use memgroup::{ChargeError, scope};

/// The reason why an allocation of SQLite failed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// The charged group, or one of its ancestors, refused the charge.
    #[error("failed to {0}")]
    Refused(ChargeError),
    /// The charge succeeded, but the system had no memory for a block of this size.
    #[error("failed to get {asked_bytes} bytes from the system")]
    System {
        /// Bytes requested from the system.
        asked_bytes: u64,
    },
}

thread_local! {
    /// The last failure, and the usage of the current group at that time.
    static LAST: Cell<Option<(AllocationError, u64)>> = const { Cell::new(None) };
}

/// Records why an allocation fails. Returns `None`, for the caller to return.
#[cold]
pub(crate) fn record<T>(error: AllocationError) -> Option<T> {
    LAST.set(Some((error, scope::current().map_or(0, |group| group.usage()))));
    None
}

/// The last failure on this thread since [`set_aside`], and the bytes that were charged to the
/// current group then.
pub(crate) fn last() -> Option<(AllocationError, u64)> {
    LAST.get()
}

/// Clears the last failure while the guard lives. Dropping the guard restores it: runs of
/// connections nest.
#[inline]
pub(crate) fn set_aside() -> SetAside {
    // The check reads one byte; `take` copies the whole value.
    SetAside { outer: if LAST.get().is_some() { LAST.take() } else { None } }
}

/// Guard of [`set_aside`].
pub(crate) struct SetAside {
    outer: Option<(AllocationError, u64)>,
}

impl Drop for SetAside {
    #[inline]
    fn drop(&mut self) {
        if self.outer.is_some() || LAST.get().is_some() {
            LAST.set(self.outer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Option<u64> {
        last().map(|(error, _)| match error {
            AllocationError::System { asked_bytes } => asked_bytes,
            AllocationError::Refused(refusal) => refusal.asked(),
        })
    }

    #[test]
    fn hides_the_outer_error_in_an_inner_run_and_restores_it() {
        let _outermost = set_aside();
        record::<()>(AllocationError::System { asked_bytes: 1 });
        {
            let _inner = set_aside();
            assert_eq!(asked(), None);
            record::<()>(AllocationError::System { asked_bytes: 2 });
            assert_eq!(asked(), Some(2));
        }
        assert_eq!(asked(), Some(1));
    }

    #[test]
    fn keeps_one_error_for_each_thread() {
        let _outermost = set_aside();
        record::<()>(AllocationError::System { asked_bytes: 1 });
        std::thread::spawn(|| assert_eq!(asked(), None)).join().expect("the other thread sees no error");
    }
}
