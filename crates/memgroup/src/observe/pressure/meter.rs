//! Meter: counts the stalled threads of one group and below, and knows whether a thread there is
//! at work.
//!
//! A stall begins and ends at each level from its group to the root, under a short lock of the
//! level. While a level has a stall, its meter keeps a **witness**: the record of a thread that is
//! at work there. As long as it has one, the level is not full.
//!
//! ```text
//!   begin:  stalled + 1, look for a witness: the one of the level below, else the last one, else one scan of the records
//!   end:    stalled - 1; if the thread is in a scope here, it is the witness
//!   the witness leaves its scope: look for another        a thread enters where there is none: it is the witness
//! ```
//!
//! - I1. At rest `stalled` is the sum of the `own` of the group and all below it.
//! - I2. A stall ends once: by its own end or by the release of its group, whichever comes first
//!   under the group's lock.
//! - I3. While no change of scope is under way, a meter with a stall has a witness exactly if a
//!   thread is at work in its group. The witness is at work there.
//! - E1. `find_witness` ↔ a change of scope: each writes, fences, and reads the other's word
//!   (`witness`, the record). So either the look sees the record's change, or the change sees the
//!   witness. Loom: `e1_...`.

use std::sync::Arc;

use memgroup_sync::atomic::{Ordering, fence};
use memgroup_sync::grace::Lent;
use memgroup_sync::{Mutex, MutexGuard, interleave};

use crate::base::mutation::{self, Mutation};
use crate::observe::pressure::record::{self, Record};
use crate::observe::pressure::report::Pressure;
use crate::observe::pressure::tally::{Seen, Tally};
use crate::observe::pressure::trigger::TriggerState;
use crate::state::stalls::Stalls;
use crate::tree::node::Node;
use crate::tree::parts::{Key, NodePart, Part};

/// How often a look is repeated because the thread that it found has changed its scope meanwhile.
const LOOKS_MOST: u32 = 8;

/// The meter of one group; see the top of this file. Its words are in the node.
#[derive(Clone, Copy)]
pub(crate) struct Meter {
    node: &'static Node,
    stalls: &'static Stalls,
}

/// The triggers of one group.
struct Triggers(Mutex<Vec<Arc<TriggerState>>>);

impl Part for Triggers {}

static TRIGGERS: Key<NodePart, Triggers> = Key::new(NodePart::Triggers, || Triggers(Mutex::new(Vec::new())));

/// A copy of the words that change under the lock, and the lock.
struct State {
    _lock: MutexGuard<'static, ()>,
    tally: Tally,
    /// Threads stalled in the group and below.
    stalled: u32,
    /// Threads stalled in the group itself.
    own: u32,
}

impl Meter {
    fn lock(&self) -> State {
        let lock = self.node.shared().stall_lock(self.node.id());
        // ORDERING: Relaxed, both; under the lock.
        let stalled = self.stalls.stalled.load(Ordering::Relaxed);
        // ORDERING: as above.
        let own = self.stalls.own.load(Ordering::Relaxed);
        State { _lock: lock, tally: Tally::of(self.stalls.tally()), stalled, own }
    }

    /// Returns whether a stall is on. It takes no lock.
    pub(crate) fn is_stalled(&self) -> bool {
        // ORDERING: Relaxed; a change of scope fences before it (E1). A release follows the ends of
        // all other guards.
        self.stalls.stalled.load(Ordering::Relaxed) != 0
    }

    fn witness(&self) -> Option<&'static Record> {
        // ORDERING: Relaxed; a record is valid whichever thread has it, and its words are read with
        // orders of their own. E1 has the fences.
        record::numbered(self.stalls.witness.load(Ordering::Relaxed))
    }

    fn set_witness(&self, witness: Option<&'static Record>) {
        // ORDERING: Relaxed; as in `witness`.
        self.stalls.witness.store(witness.map_or(0, Record::number), Ordering::Relaxed);
    }

    /// Sets the two lines to the state and the witness from `now` on, and tells the triggers.
    fn apply(&self, mut state: State, now: u64) {
        // ORDERING: Relaxed, both; written under the lock, and E1 has the fences.
        self.stalls.stalled.store(state.stalled, Ordering::Relaxed);
        // ORDERING: as above.
        self.stalls.own.store(state.own, Ordering::Relaxed);
        let is_some = state.stalled > 0;
        state.tally.change(now, is_some, is_some && self.witness().is_none());
        self.stalls.set_tally(state.tally.words());
        drop(state);
        // ORDERING: Relaxed; a thread that adds a trigger looks at the lines afterwards, under the
        // lock that this thread has released.
        if self.stalls.watches.load(Ordering::Relaxed) != 0 {
            self.tell_triggers(now);
        }
    }

    /// Makes a thread at work the witness, `found` if it is one, and returns it. The thread is at
    /// work after it was made the witness.
    fn find_witness(&self, mut found: Option<&'static Record>) -> Option<&'static Record> {
        for _ in 0..LOOKS_MOST {
            self.set_witness(found);
            interleave::point();
            if !mutation::active(Mutation::LookWithoutFence) {
                // ORDERING: SeqCst; pairs with the fence in `stall::after_scope_change` (E1).
                fence(Ordering::SeqCst);
            }
            found = match found {
                Some(record) if record.works_in(self.node) => return found,
                Some(_) if mutation::active(Mutation::WitnessIsTakenAtItsWord) => return found,
                Some(_) => None,
                None => Some(record::all().find(|record| record.works_in(self.node))?),
            };
        }
        self.witness()
    }

    /// Counts a thread that is stalled from `now` on here or below; with `is_own`, in the group
    /// itself. `found` is a thread at work below, if one is known. Returns one that is at work
    /// here.
    pub(crate) fn begin(
        &self,
        now: u64,
        is_own: bool,
        found: Option<&'static Record>,
    ) -> Option<&'static Record> {
        let mut state = self.lock();
        state.stalled += 1;
        state.own += u32::from(is_own);
        // ORDERING: Relaxed; before the fence in `find_witness`, for a thread that enters a scope
        // then (E1).
        self.stalls.stalled.store(state.stalled, Ordering::Relaxed);
        let found = self.find_witness(found.or(self.witness()));
        self.apply(state, now);
        found
    }

    /// Ends a stall in the group itself at `now`, unless it has ended with a group that had the
    /// node before. Returns whether it did.
    pub(crate) fn end_own(&self, generation: u64, now: u64, worker: Option<&'static Record>) -> bool {
        let mut state = self.lock();
        if self.node.generation() != generation || state.own == 0 {
            return false;
        }
        state.own -= 1;
        self.end_in(state, 1, now, worker);
        true
    }

    /// Ends `stalls` stalls below at `now`. `worker` is the thread that had one, if it is at work
    /// here from now on.
    pub(crate) fn end(&self, stalls: u32, now: u64, worker: Option<&'static Record>) {
        self.end_in(self.lock(), stalls, now, worker);
    }

    fn end_in(&self, mut state: State, stalls: u32, now: u64, worker: Option<&'static Record>) {
        state.stalled = state.stalled.saturating_sub(stalls);
        if worker.is_some() {
            self.set_witness(worker);
        }
        self.apply(state, now);
    }

    /// Ends the group's own stalls when it is released. Returns how many there were.
    pub(crate) fn abandon(&self, now: u64) -> u32 {
        let mut state = self.lock();
        let own = std::mem::take(&mut state.own);
        self.end_in(state, own, now, None);
        own
    }

    /// Looks for a witness again, beginning with `found`.
    fn update_witness(&self, found: Option<&'static Record>) {
        let now = self.node.shared().nanos();
        let state = self.lock();
        if state.stalled > 0 {
            self.find_witness(found);
            self.apply(state, now);
        }
    }

    /// The thread of `record` is no longer at work here.
    pub(crate) fn after_leave(&self, record: &'static Record) {
        if self.is_stalled() && self.witness().is_some_and(|witness| std::ptr::eq(witness, record)) {
            self.update_witness(None);
        }
    }

    /// The thread of `record` is at work here from now on.
    pub(crate) fn after_enter(&self, record: &'static Record) {
        if self.is_stalled() && self.witness().is_none() {
            self.update_witness(Some(record));
        }
    }

    /// Returns the tally and the time. It looks for a witness first, because a change of scope
    /// beside the beginning of a stall may have been missed (`record::is_watched`).
    fn look(&self) -> (Tally, u64) {
        self.update_witness(self.witness());
        (self.lock().tally, self.node.shared().nanos())
    }

    /// Returns the totals now.
    pub(crate) fn seen(&self) -> Seen {
        let (tally, now) = self.look();
        tally.seen(now)
    }

    pub(crate) fn report(&self) -> Pressure {
        let (tally, now) = self.look();
        tally.report(now)
    }

    #[cold]
    #[inline(never)]
    fn tell_triggers(&self, now: u64) {
        let Some(triggers) = self.node.find_part(&TRIGGERS) else { return };
        let triggers = triggers.0.lock();
        let seen = self.lock().tally.seen(now);
        for trigger in triggers.iter().filter(|trigger| trigger.see(&seen)) {
            self.node.shared().waits().wake_armed(|_, target| target == trigger.target());
        }
    }

    fn triggers(&self) -> Lent<'static, Triggers> {
        self.node.part(&TRIGGERS)
    }

    pub(crate) fn add(&self, trigger: Arc<TriggerState>) {
        self.triggers().0.lock().push(trigger);
        // ORDERING: Relaxed; see `apply`.
        self.stalls.watches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, trigger: &Arc<TriggerState>) {
        self.triggers().0.lock().retain(|other| !Arc::ptr_eq(other, trigger));
        // ORDERING: Relaxed; see `apply`.
        self.stalls.watches.fetch_sub(1, Ordering::Relaxed);
    }

    #[cfg(all(test, not(memgroup_loom)))]
    pub(crate) fn counts(&self) -> (u32, u32) {
        let state = self.lock();
        (state.stalled, state.own)
    }

    #[cfg(all(test, memgroup_loom))]
    pub(crate) fn has_witness(&self) -> bool {
        self.witness().is_some()
    }

    #[cfg(all(test, memgroup_loom))]
    pub(crate) fn is_full(&self) -> bool {
        self.lock().tally.seen(0).full.is_on
    }
}

impl Node {
    /// The pressure on the group.
    pub(crate) fn pressure(&'static self) -> Meter {
        Meter { node: self, stalls: &self.rare().stalls }
    }
}
