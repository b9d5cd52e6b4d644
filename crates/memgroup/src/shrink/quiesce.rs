//! Calls: a wait until every callback that runs has returned, whoseever it is.
//!
//! What `synchronize_shrinkers` does in the kernel, for who frees what callbacks of several shrinkers may be using: there by the lock of all, here by a
//! look at who has announced what. Calls that begin meanwhile are not waited for, so the wait ends although walks go on all the time.
//!
//! - E1. A call that began before the wait is seen by it (`Domain::users`), and what it did is over and seen when the wait ends.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use memgroup_sync::hazard::Occupant;

use super::entry::domain;
use super::error::CallsError;
use super::keep;
use crate::shared::Shared;

/// The longest pause between two looks.
const PAUSE_MOST: Duration = Duration::from_millis(1);

/// Waits until each call of the hierarchy's shrinkers that is on has returned, or until the deadline.
pub(crate) fn wait(shared: &'static Shared, deadline: Option<Instant>) -> Result<(), CallsError> {
    if keep::is_reclaiming() {
        return Err(CallsError::FromWithin);
    }
    let mut on = domain().users();
    if on.is_empty() {
        return Ok(());
    }
    let registry = &shared.shrinkers;
    let places: HashSet<usize> =
        (0..registry.numbers()).filter_map(|number| Some(registry.place(number)?.key())).collect();
    on.retain(|occupant| occupant.is_unproven() || places.contains(&occupant.place()));
    // From now on a call that is on has been known for longer than this, and one that begins for less.
    let looked = Instant::now();
    let mut pause = Duration::from_micros(1);
    while let Some(blocker) = on.first() {
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(blocked(shared, blocker));
        }
        let left = deadline.map_or(PAUSE_MOST, |deadline| deadline - now);
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(PAUSE_MOST);
        let elapsed = looked.elapsed();
        // Who could hide behind a lost barrier is looked for with proofs each time.
        let now_on: Vec<Occupant> =
            if on.iter().any(Occupant::is_unproven) { domain().users() } else { domain().busy().collect() };
        on.retain_mut(|one| {
            let still = now_on.iter().find(|other| is_same(one, other, elapsed));
            still.is_some_and(|still| {
                one.clone_from(still);
                true
            })
        });
    }
    Ok(())
}

/// Whether that is the same call, and not a later one of the same shrinker on the same thread: one of which the time was noted before.
fn is_same(one: &Occupant, other: &Occupant, known_for: Duration) -> bool {
    let same = one.thread_id() == other.thread_id();
    same && (other.is_unproven() || (one.place() == other.place() && other.held() >= known_for))
}

fn blocked(shared: &'static Shared, blocker: &Occupant) -> CallsError {
    let registry = &shared.shrinkers;
    let place = (0..registry.numbers())
        .filter_map(|number| registry.place(number))
        .find(|place| blocker.is_in(place));
    let name = place.and_then(|place| domain().lease().pin(place).map(|entry| entry.config.name.clone()));
    let thread = blocker.thread_name().unwrap_or_else(|| "a thread without a name".to_owned());
    CallsError::Blocked { name, thread: (blocker.thread_id(), thread), held: blocker.held() }
}
