//! Requests to the system that fail on purpose.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use super::Call;

/// Requests of one kind, counted from 1, of which those from `first` to `last` fail.
#[derive(Clone, Copy, Debug)]
struct Plan {
    call: Call,
    first: u64,
    last: u64,
    seen: u64,
}

std::thread_local! {
    static PLANNED: Cell<Option<Plan>> = const { Cell::new(None) };
}

/// While it lives, requests of one kind fail on this thread.
#[derive(Debug)]
#[must_use = "requests fail only while the guard lives"]
pub struct Guard {
    before: Option<Plan>,
    thread: PhantomData<*const ()>,
}

/// Lets the next `after` requests of this kind through, on this thread, and makes all later ones
/// fail until the guard is dropped.
pub fn fail(call: Call, after: u64) -> Guard {
    fail_at(call, after + 1..=u64::MAX)
}

/// Makes requests of this kind fail on this thread whose number is in the range, until the guard
/// is dropped. The next request has the number 1.
pub fn fail_at(call: Call, requests: RangeInclusive<u64>) -> Guard {
    let (first, last) = requests.into_inner();
    let plan = Plan { call, first, last, seen: 0 };
    Guard { before: PLANNED.replace(Some(plan)), thread: PhantomData }
}

impl Guard {
    /// The requests of this kind so far, failed or not. It must be the newest guard of its thread.
    pub fn requests(&self) -> u64 {
        PLANNED.get().map_or(0, |plan| plan.seen)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        PLANNED.set(self.before);
    }
}

/// Returns whether this request fails.
pub(super) fn strikes(call: Call) -> bool {
    let Some(mut plan) = PLANNED.get().filter(|plan| plan.call == call) else { return false };
    plan.seen += 1;
    PLANNED.set(Some(plan));
    (plan.first..=plan.last).contains(&plan.seen)
}
