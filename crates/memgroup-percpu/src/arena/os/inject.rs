//! Requests to the system that fail on purpose.

use std::cell::Cell;
use std::marker::PhantomData;

use super::Call;

std::thread_local! {
    static PLANNED: Cell<Option<(Call, u64)>> = const { Cell::new(None) };
}

/// While it lives, requests of one kind fail on this thread.
#[derive(Debug)]
#[must_use = "requests fail only while the guard lives"]
pub struct Guard {
    before: Option<(Call, u64)>,
    thread: PhantomData<*const ()>,
}

/// Lets the next `after` requests of this kind through, on this thread, and makes all later ones fail until the guard is
/// dropped.
pub fn fail(call: Call, after: u64) -> Guard {
    Guard { before: PLANNED.replace(Some((call, after))), thread: PhantomData }
}

impl Drop for Guard {
    fn drop(&mut self) {
        PLANNED.set(self.before);
    }
}

/// Whether this request fails.
pub(super) fn strikes(call: Call) -> bool {
    match PLANNED.get() {
        Some((planned, 0)) => planned == call,
        Some((planned, after)) if planned == call => {
            PLANNED.set(Some((planned, after - 1)));
            false
        }
        _ => false,
    }
}
