//! Why SQLite was last denied memory on this thread.
//!
//! SQLite's allocator can only answer "no". The reason is left here, and [`TenantError`](crate::TenantError) picks it
//! up when SQLite's error code arrives at the top.
//!
//! - I1. The cell holds a `Copy` value without a destructor: it can be read and written at any moment of a thread's
//!   life, also while its other thread-local values are torn down.
//! - B1. SQLite goes on without some allocations (it calls them benign), so a shortage may be noted and no error
//!   follow. What is reported beside an error is the *last* shortage since the connection was entered.

use std::cell::Cell;
use std::fmt;

use memgroup::{ChargeError, scope};

/// Why the allocator said no.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Shortage {
    /// A group refused the charge: the one that pays, or one above it.
    Refused(ChargeError),
    /// Every group agreed, but the system had no memory for a block of this many bytes.
    System {
        /// Bytes asked from the system.
        asked_bytes: u64,
    },
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shortage::Refused(refusal) => write!(f, "failed to {refusal}"),
            Shortage::System { asked_bytes } => {
                write!(f, "failed to get {asked_bytes} bytes from the system")
            }
        }
    }
}

thread_local! {
    static LAST: Cell<Option<Shortage>> = const { Cell::new(None) };
    /// Bytes charged to the group in force when the last one was noted, whichever use that was in.
    static USAGE: Cell<u64> = const { Cell::new(0) };
}

/// Remembers why the allocator is about to say no.
#[cold]
pub(crate) fn note(shortage: Shortage) {
    LAST.set(Some(shortage));
    USAGE.set(scope::current().map_or(0, |group| group.usage()));
}

/// The last shortage on this thread since [`set_aside`].
pub(crate) fn last() -> Option<Shortage> {
    LAST.get()
}

/// Bytes charged to the group in force when this thread was last denied memory.
pub(crate) fn usage() -> u64 {
    USAGE.get()
}

/// Forgets the last shortage for as long as the guard lives, and then puts back what was there: uses nest.
#[inline]
pub(crate) fn set_aside() -> SetAside {
    SetAside { outer: if is_noted() { LAST.take() } else { None } }
}

/// Whether a shortage is noted: one byte read, where [`last`] copies the whole of it.
#[inline]
fn is_noted() -> bool {
    LAST.get().is_some()
}

/// See [`set_aside`].
pub(crate) struct SetAside {
    outer: Option<Shortage>,
}

impl Drop for SetAside {
    #[inline]
    fn drop(&mut self) {
        if self.outer.is_some() || is_noted() {
            LAST.set(self.outer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Option<u64> {
        last().map(|shortage| match shortage {
            Shortage::System { asked_bytes } => asked_bytes,
            Shortage::Refused(refusal) => refusal.asked(),
        })
    }

    #[test]
    fn an_inner_use_neither_sees_nor_loses_the_outer_shortage() {
        let _outermost = set_aside();
        note(Shortage::System { asked_bytes: 1 });
        {
            let _inner = set_aside();
            assert_eq!(asked(), None);
            note(Shortage::System { asked_bytes: 2 });
            assert_eq!(asked(), Some(2));
        }
        assert_eq!(asked(), Some(1));
    }

    #[test]
    fn another_thread_has_its_own() {
        let _outermost = set_aside();
        note(Shortage::System { asked_bytes: 1 });
        std::thread::spawn(|| assert_eq!(asked(), None)).join().expect("the other thread saw ours");
    }
}
