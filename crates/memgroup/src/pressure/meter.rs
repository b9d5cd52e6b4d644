//! Meter: who is stalled in one group and below, and whether anybody there gets on.
//!
//! A stall begins and ends at each level from its group to the root, under a short lock of the level. While a level has a stall its meter keeps a
//! **witness**: the record of a thread that is at work there. As long as there is one the level is not full.
//!
//! ```text
//!   begin:  stalled + 1, look for a witness   ── finds the deepest worker of the chain in one scan of the records, often in one look
//!   end:    stalled - 1; who ends and is in a scope here is the witness
//!   scope left by the witness while a stall lasts: look for another         scope entered where there is none: that thread
//! ```
//!
//! - I1. `stalled` is the sum of the `own` of the group and all below it, at rest.
//! - I2. What a stall has begun is ended once: by its end, or when its group is released, whoever is first under the group's lock.
//! - I3. While a stall lasts that is watched, and no change of scope is under way: a meter with a stall has a witness exactly if a thread is at work there,
//!   and that thread is.
//! - E1. look ↔ a change of scope: each writes, fences and reads what the other writes (`witness`, the record). So either the look sees the record's change, or the
//!   change sees the witness that was looked for. Loom: `e1_...`.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicU32, Ordering, fence};
use memgroup_sync::{AtomicRef, Mutex, interleave};

use super::record::{self, Record};
use super::report::Pressure;
use super::tally::{Seen, Tally};
use super::trigger::Watch;
use crate::mutation::{self, Mutation};
use crate::node::Node;

/// How often a look begins anew because what it found has changed meanwhile.
const LOOKS_MOST: u32 = 8;

/// See the module.
pub(crate) struct Meter {
    state: Mutex<State>,
    /// As in the state, for a look without the lock.
    stalled: AtomicU32,
    witness: AtomicRef<Record>,
    /// How many triggers there are.
    watches: AtomicU32,
    triggers: Mutex<Vec<Arc<Watch>>>,
}

struct State {
    tally: Tally,
    /// Threads stalled in the group and below.
    stalled: u32,
    /// Of them, those stalled in the group itself.
    own: u32,
}

/// The thread at work that has most levels of a chain in common, and the depth of the lowest of them.
#[derive(Clone, Copy)]
pub(super) struct Worker {
    record: &'static Record,
    depth: u32,
}

impl Worker {
    fn of(found: Option<Worker>, level: &'static Node) -> Option<&'static Record> {
        found.filter(|worker| level.depth() <= worker.depth).map(|worker| worker.record)
    }
}

/// The group and all above it, the root whether or not it is charged.
pub(super) fn chain(node: &'static Node) -> impl Iterator<Item = &'static Node> {
    std::iter::successors(Some(node), |level| level.parent())
}

/// The depth of the lowest level that is above both, or one of them.
fn depth_in_common(mut one: &'static Node, mut other: &'static Node) -> Option<u32> {
    while !std::ptr::eq(one, other) {
        if one.depth() >= other.depth() {
            one = one.parent()?;
        } else {
            other = other.parent()?;
        }
    }
    Some(one.depth())
}

/// Who is at work as deep in the chain of `node` as anybody.
pub(super) fn deepest_worker(node: &'static Node) -> Option<Worker> {
    // ORDERING: Acquire; as in `Meter::witness`.
    if let Some(record) = node.control.pressure.witness.load(Ordering::Acquire)
        && record.works_in(node)
    {
        return Some(Worker { record, depth: node.depth() });
    }
    let mut deepest: Option<Worker> = None;
    for record in record::all() {
        let depth = record.at_work().and_then(|at| depth_in_common(at, node));
        if let Some(depth) = depth
            && deepest.is_none_or(|deepest| deepest.depth < depth)
        {
            deepest = Some(Worker { record, depth });
            if depth == node.depth() {
                break;
            }
        }
    }
    deepest
}

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter {
            state: Mutex::new(State { tally: Tally::new(), stalled: 0, own: 0 }),
            stalled: AtomicU32::new(0),
            witness: AtomicRef::none(),
            watches: AtomicU32::new(0),
            triggers: Mutex::new(Vec::new()),
        }
    }

    /// For a new group in the place.
    pub(crate) fn reset(&self) {
        let mut state = self.state.lock();
        *state = State { tally: Tally::new(), stalled: 0, own: 0 };
        // ORDERING: Relaxed, both; nobody has a handle yet.
        self.stalled.store(0, Ordering::Relaxed);
        // ORDERING: as above.
        self.witness.store(None, Ordering::Relaxed);
    }

    /// Whether a stall is on, without the lock.
    fn is_stalled(&self) -> bool {
        // ORDERING: Relaxed; a change of scope fences before it (E1).
        self.stalled.load(Ordering::Relaxed) != 0
    }

    fn witness(&self) -> Option<&'static Record> {
        // ORDERING: Relaxed; a record is good whoever has it, and what it says is read with orders of its own. The fences are E1's.
        self.witness.load(Ordering::Relaxed)
    }

    fn set_witness(&self, witness: Option<&'static Record>) {
        // ORDERING: Relaxed; as in `witness`.
        self.witness.store(witness, Ordering::Relaxed);
    }

    /// Applies what the state and the witness say from `now` on. The caller has changed nothing in the tally.
    fn apply(&self, state: &mut State, now: u64) {
        // ORDERING: Relaxed; written under the lock, and E1 has the fences.
        self.stalled.store(state.stalled, Ordering::Relaxed);
        let is_some = state.stalled > 0;
        state.tally.change(now, is_some, is_some && self.witness().is_none());
    }

    /// Looks who is at work, beginning with `found`, until what it has found still holds after it said so.
    fn look(&self, level: &'static Node, mut found: Option<&'static Record>) {
        for _ in 0..LOOKS_MOST {
            self.set_witness(found);
            interleave::point();
            if !mutation::active(Mutation::LookWithoutFence) {
                // ORDERING: SeqCst; pairs with the fence in `stall::moved` (E1).
                fence(Ordering::SeqCst);
            }
            let other = match found {
                Some(record)
                    if record.works_in(level) || mutation::active(Mutation::WitnessIsTakenAtItsWord) =>
                {
                    return;
                }
                Some(_) => None,
                None => record::all().find(|record| record.works_in(level)),
            };
            if found.is_none() && other.is_none() {
                return;
            }
            found = other;
        }
    }

    /// A thread is stalled from `now` on in `level` or below; `is_own`: in itself.
    pub(super) fn begin(
        &self,
        level: &'static Node,
        now: u64,
        is_own: bool,
        found: Option<Worker>,
        watched: bool,
    ) {
        let mut state = self.state.lock();
        state.stalled += 1;
        state.own += u32::from(is_own);
        // ORDERING: Relaxed; before the fence in `look`, for whoever enters a scope then (E1).
        self.stalled.store(state.stalled, Ordering::Relaxed);
        let found = Worker::of(found, level);
        if watched {
            self.look(level, found)
        } else {
            self.set_witness(found)
        }
        self.apply(&mut state, now);
        drop(state);
        self.tell(now);
    }

    /// A thread's stall in the group itself ends at `now`, if it has not ended with a group that was here before; whether it does.
    pub(super) fn end_own(
        &self,
        level: &'static Node,
        generation: u32,
        now: u64,
        worker: Option<&'static Record>,
    ) -> bool {
        let mut state = self.state.lock();
        if level.generation() != generation || state.own == 0 {
            return false;
        }
        state.own -= 1;
        self.end_in(state, 1, now, worker);
        true
    }

    /// A thread's stall below ends at `now`.
    pub(super) fn end(&self, now: u64, worker: Option<&'static Record>) {
        self.end_in(self.state.lock(), 1, now, worker);
    }

    /// So many stalls end; `worker`: who had one, if it is at work here from now on.
    fn end_in(
        &self,
        mut state: memgroup_sync::MutexGuard<'_, State>,
        stalls: u32,
        now: u64,
        worker: Option<&'static Record>,
    ) {
        state.stalled = state.stalled.saturating_sub(stalls);
        if worker.is_some() {
            self.set_witness(worker);
        }
        self.apply(&mut state, now);
        drop(state);
        self.tell(now);
    }

    /// The group is released: its stalls that nobody has ended end here. How many.
    pub(super) fn abandon(&self, now: u64) -> u32 {
        let mut state = self.state.lock();
        let own = std::mem::take(&mut state.own);
        self.end_in(state, own, now, None);
        own
    }

    /// So many stalls of a group below that is released end at `now`.
    pub(super) fn end_abandoned(&self, stalls: u32, now: u64) {
        self.end_in(self.state.lock(), stalls, now, None);
    }

    /// Somebody else may be at work now.
    pub(super) fn look_again(&self, level: &'static Node, found: Option<&'static Record>) {
        let now = level.shared.nanos();
        let mut state = self.state.lock();
        if state.stalled > 0 {
            self.look(level, found);
            self.apply(&mut state, now);
        }
        drop(state);
        self.tell(now);
    }

    /// The thread of `record`, which was at work here, is no more.
    pub(super) fn loses(&self, level: &'static Node, record: &'static Record) {
        if self.is_stalled() && self.witness().is_some_and(|witness| std::ptr::eq(witness, record)) {
            self.look_again(level, None);
        }
    }

    /// The thread of `record` is at work here.
    pub(super) fn gains(&self, level: &'static Node, record: &'static Record) {
        if self.is_stalled() && self.witness().is_none() {
            self.look_again(level, Some(record));
        }
    }

    /// The totals now. Who asks looks for a witness too: a stall may be on that nobody watches.
    pub(super) fn seen(&self, level: &'static Node) -> Seen {
        self.look_again(level, self.witness());
        self.state.lock().tally.seen(level.shared.nanos())
    }

    pub(super) fn report(&self, level: &'static Node) -> Pressure {
        self.look_again(level, self.witness());
        self.state.lock().tally.report(level.shared.nanos())
    }

    /// Tells the triggers what the lines have come to.
    #[inline]
    fn tell(&self, now: u64) {
        // ORDERING: Relaxed; who adds a trigger looks at the lines afterwards, under the lock that this thread has let go.
        if self.watches.load(Ordering::Relaxed) != 0 {
            self.tell_triggers(now);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_triggers(&self, now: u64) {
        let triggers = self.triggers.lock();
        let seen = self.state.lock().tally.seen(now);
        triggers.iter().for_each(|watch| watch.see(&seen));
    }

    pub(super) fn add(&self, watch: Arc<Watch>) {
        self.triggers.lock().push(watch);
        // ORDERING: Relaxed; see `tell`.
        self.watches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, watch: &Arc<Watch>) {
        let mut triggers = self.triggers.lock();
        let gone =
            triggers.iter().position(|other| Arc::ptr_eq(other, watch)).map(|at| triggers.swap_remove(at));
        drop(triggers);
        if gone.is_some() {
            // ORDERING: Relaxed; see `tell`.
            self.watches.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[cfg(all(test, not(memgroup_loom)))]
    pub(super) fn counts(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.stalled, state.own)
    }

    #[cfg(all(test, memgroup_loom))]
    pub(super) fn has_witness(&self) -> bool {
        self.witness().is_some()
    }

    #[cfg(all(test, memgroup_loom))]
    pub(super) fn is_full(&self) -> bool {
        self.state.lock().tally.seen(0).full.is_on
    }
}
