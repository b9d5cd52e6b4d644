//! Quiesce: a wait until every callback that runs now has returned, of whatever shrinker.
//!
//! It does the work of the kernel's `synchronize_shrinkers`, for callers that free memory that
//! callbacks of several shrinkers may use. The kernel takes the lock of all shrinkers; here the
//! waiting thread reads the announcements of calls. Calls that begin meanwhile are not waited for,
//! so the wait ends although walks go on all the time.
//!
//! - E1. The wait sees a call that began before it (`Domain::users`). When the wait ends the call
//!   is over, and its effects are seen.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use memgroup_sync::hazard::Occupant;

use crate::reclaim::credit;
use crate::reclaim::entry::domain;
use crate::reclaim::error::CallsError;
use crate::tree::shared::Shared;

/// The longest pause between two looks.
const PAUSE_MOST: Duration = Duration::from_millis(1);

/// Waits until each call of the hierarchy's shrinkers that runs now has returned, or until the
/// deadline.
pub(crate) fn wait(shared: &'static Shared, deadline: Option<Instant>) -> Result<(), CallsError> {
    if credit::is_reclaiming() {
        return Err(CallsError::FromWithin { name: None });
    }
    let mut calls = domain().users();
    if calls.is_empty() {
        return Ok(());
    }
    let places: HashSet<usize> = shared.shrinkers().places().map(|(_, place)| place.key()).collect();
    calls.retain(|call| call.is_unproven() || places.contains(&call.place()));
    // A call that runs now will have been known for longer than the time since here; one that
    // begins later, for less.
    let looked = Instant::now();
    let mut pause = Duration::from_micros(1);
    while let Some(call) = calls.first() {
        let left = deadline.map_or(PAUSE_MOST, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(blocked(shared, call));
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(PAUSE_MOST);
        let elapsed = looked.elapsed();
        // A call that a lost barrier could hide is looked for with proofs each time.
        let is_any_unproven = calls.iter().any(Occupant::is_unproven);
        let now: Vec<Occupant> = if is_any_unproven { domain().users() } else { domain().busy().collect() };
        calls = calls
            .iter()
            .filter_map(|call| now.iter().find(|now| is_same(call, now, elapsed)).cloned())
            .collect();
    }
    Ok(())
}

/// Returns whether that is the same call. A later call of the same shrinker on the same thread has
/// lasted for less time.
fn is_same(one: &Occupant, other: &Occupant, known_for: Duration) -> bool {
    let is_known = || one.place() == other.place() && other.held() >= known_for;
    one.thread_id() == other.thread_id() && (other.is_unproven() || is_known())
}

fn blocked(shared: &'static Shared, call: &Occupant) -> CallsError {
    let place = shared.shrinkers().places().find(|(_, place)| call.is_in(place));
    let name =
        place.and_then(|(_, place)| domain().lease().pin(place).map(|entry| entry.config.name.clone()));
    CallsError::blocked(name, Some(call))
}
