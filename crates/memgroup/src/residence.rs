//! Residence: whether a group's per-CPU words are in memory, and where.
//!
//! ```text
//!            create                 demote (idle)
//!   nothing ────────▶ record ◀──────────────────▶ cold record
//!                     │    ▲       touched
//!                     └────┘ relocate
//!   free place: keeps its record for its next group, or gives it up (vacate)
//! ```
//!
//! Each change closes the stocks of the group first, as a refusal does, so that the words that are left behind stay CLOSED: who
//! still reaches them finds no stock there and goes to the counters, which no move touches. Counters are buried word by word
//! and added up in the new place (`memgroup_percpu::additive`). What was left behind is used again only after a grace period.
//! `docs/residence.md` has it step by step, with costs and what catches which mistake.
//!
//! - I1. Records are linked and unlinked under the tree lock, which excludes drains, refusals and removal: they see one copy.
//! - I2. The stock word of a linked record is CLOSED where `overrun::may_open` says so: at `create`, when it moves, when it comes back
//!   and when a slot is admitted.
//! - I3. A group with counters has a record, a cold record, or both for a moment; so a count always has a place.
//! - E1. close, wait_settled → unlink: bytes between a word and the counters have arrived before the word is left behind. Loom:
//!   `a_move_loses_no_charge`.

use memgroup_percpu::{Fresh, OutOfMemory, Records, Unlinked, Wait, additive};
use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{grace, interleave};

use crate::counts;
use crate::group::GroupId;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::overrun;
use crate::shared::Shared;
use crate::stock::word::{CLOSED_WORD, Word};
use crate::stock::{WORD, drain};
use crate::tree::{State, Tree};

#[cfg(all(test, memgroup_loom))]
mod loom;

/// Gives the node of a new group a record, if its place has none any more; the caller holds the tree lock.
pub(crate) fn furnish(node: &'static Node) -> Result<(), OutOfMemory> {
    if !node.record.is_linked() {
        let fresh = node.shared.memory.hot.allocate(node.id.0, Wait::May)?;
        let before = node.record.link(fresh);
        debug_assert!(before.is_none());
    }
    Ok(())
}

/// Sees to a word for `node` in `slot`; `false` if there is none now, and charges are exact.
#[cold]
pub(crate) fn make_word(node: &'static Node, slot: usize) -> bool {
    (node.record.is_linked() || promote(node)) && (node.shared.memory.is_admitted(slot) || admit(node, slot))
}

/// Admits `slot`, if a record waits for it. `false`: it was admitted before, or there is no record.
#[cold]
pub(crate) fn admit(node: &'static Node, slot: usize) -> bool {
    let shared = node.shared;
    if shared.memory.is_admitted(slot) || !node.record.is_linked() {
        return false;
    }
    admit_held(shared, &shared.tree.lock(), slot);
    true
}

/// Opens the copies of a slot to its threads; before that, those of groups that may have no stock are closed.
fn admit_held(shared: &'static Shared, tree: &Tree, slot: usize) {
    let closed = |node: &'static Node| {
        tree.state(node.id) != State::Free
            && !overrun::may_open(node)
            && !mutation::active(Mutation::AdmissionOpensStocks)
    };
    shared.memory.hot.admit(slot, |early| {
        let section = grace::enter();
        for node in (0..tree.places()).filter_map(|at| shared.node(GroupId(at))) {
            if let Some(word) = early.word(&section, &node.record, WORD)
                && closed(node)
            {
                // ORDERING: Relaxed; the admission publishes it.
                word.store(CLOSED_WORD, Ordering::Relaxed);
            }
        }
    });
}

/// A count found no word: admits the slot, if that is why.
pub(crate) fn touch(node: &'static Node, slot: usize) {
    let shared = node.shared;
    let tree = shared.tree.lock();
    if node.record.is_linked() {
        admit_held(shared, &tree, slot);
    }
}

/// A group that gave its units back gets them again, if it is online. Takes nothing that could be waited for: a charge can do
/// without, and a count has a place.
fn promote(node: &'static Node) -> bool {
    let Some(tree) = node.shared.tree.try_lock() else { return false };
    // The record is to have a copy for the counters that come back.
    let Some(_) = node.shared.memory.admitted().next() else { return false };
    let _held = tree;
    node.record.is_linked() || (!node.counter.is_offline() && promote_held(node, Wait::Never).is_ok())
}

pub(crate) fn promote_held(node: &'static Node, wait: Wait) -> Result<(), OutOfMemory> {
    let memory = &node.shared.memory;
    let fresh = memory.hot.allocate(node.id.0, wait)?;
    close_if_need_be(node, &fresh);
    node.record.link(fresh);
    if let Some(cold) = node.cold.unlink() {
        fold_cold(node, &cold);
        memory.cold.retire(cold, 0);
    }
    Ok(())
}

/// Takes the record away from an online group that is idle; its counters go to the cold record.
pub(crate) fn demote_held(node: &'static Node, wait: Wait) -> Result<(), OutOfMemory> {
    let memory = &node.shared.memory;
    if memory.cold.words() > counts::FIRST && !node.cold.is_linked() {
        let fresh = memory.cold.allocate(node.id.0, wait)?;
        node.cold.link(fresh);
        // It is retired by a charge that brings the group back, or by the last uncharge of a removed one.
        memory.cold.reserve_limbo();
    }
    quiet(node);
    interleave::point();
    if let Some(old) = node.record.unlink() {
        interleave::point();
        fold_hot(node, &old, true);
        memory.hot.retire(old, tag(node));
    }
    Ok(())
}

/// Moves one record so that pages become free; returns the bytes moved, `None` when there is nothing to gain.
pub(crate) fn relocate_held(shared: &'static Shared, tree: &Tree) -> Option<u64> {
    let memory = &shared.memory;
    let relocation = memory.hot.next_move()?;
    let node = shared.node(GroupId(relocation.owner()))?;
    let is_current = relocation.is_of(&node.record);
    if !is_current || tree.state(node.id) == State::Free {
        // Unlinked meanwhile, or nobody's words: given up instead of moved.
        memory.hot.discard(relocation.into_target());
        if is_current {
            vacate(node);
        }
        return Some(0);
    }
    move_held(node, relocation.into_target());
    Some(memory.record_bytes())
}

/// The group's words are in `fresh` from now on.
fn move_held(node: &'static Node, fresh: Fresh) {
    quiet(node);
    close_if_need_be(node, &fresh);
    interleave::point();
    if let Some(old) = node.record.link(fresh) {
        interleave::point();
        fold_hot(node, &old, false);
        node.shared.memory.hot.retire(old, tag(node));
    }
}

/// Takes the records of a free place.
pub(crate) fn vacate(node: &'static Node) -> bool {
    let memory = &node.shared.memory;
    if let Some(cold) = node.cold.unlink() {
        memory.cold.retire(cold, 0);
    }
    let hot = node.record.unlink();
    let had = hot.is_some();
    if let Some(hot) = hot {
        memory.hot.retire(hot, tag(node));
    }
    had
}

/// The stocks of the group are empty and closed, and nobody is between them and the counters.
fn quiet(node: &'static Node) {
    if !mutation::active(Mutation::MoveLeavesStocksOpen) {
        drain::close(node);
        if !mutation::active(Mutation::MoveIgnoresPending) {
            drain::wait_settled(node);
        }
        drain::retire_caps(node);
    }
}

fn close_if_need_be(node: &'static Node, fresh: &Fresh) {
    if overrun::may_open(node) || mutation::active(Mutation::MoveOpensStocks) {
        return;
    }
    let hot = &node.shared.memory.hot;
    for slot in hot.admitted() {
        if let Some(word) = hot.fresh_word(fresh, slot, WORD) {
            // ORDERING: Relaxed; linking publishes it.
            word.store(CLOSED_WORD, Ordering::Relaxed);
        }
    }
}

fn counters(records: &Records) -> core::ops::Range<usize> {
    counts::FIRST..records.words()
}

/// Buries the counters of `old` and adds them up in the record that took its place, slot by slot, or in the cold record.
fn fold_hot(node: &'static Node, old: &Unlinked, cold: bool) {
    let memory = &node.shared.memory;
    let section = grace::enter();
    for slot in memory.admitted() {
        for index in counters(&memory.hot) {
            let value = memory.hot.unlinked_word(old, slot, index).map_or(0, take_out);
            if value == 0 {
                continue;
            }
            interleave::point();
            let target = if cold {
                node.cold.word(&section, 0, index)
            } else {
                node.record.word(&section, slot, index)
            };
            let kept = target.is_some_and(|word| additive::add(word, value));
            assert!(kept, "a count of {value} has a place to go under the tree lock");
        }
    }
}

fn fold_cold(node: &'static Node, cold: &Unlinked) {
    let memory = &node.shared.memory;
    let section = grace::enter();
    let slot = memory.admitted().next().expect("a group is promoted where a slot is admitted");
    for index in counters(&memory.cold) {
        let value = memory.cold.unlinked_word(cold, 0, index).map_or(0, take_out);
        let kept = node.record.word(&section, slot, index).is_some_and(|word| additive::add(word, value));
        assert!(kept, "a count of {value} has a place to go under the tree lock");
    }
}

/// The value of a count that is left behind, for good.
fn take_out(word: &AtomicU64) -> i64 {
    if mutation::active(Mutation::FoldLeavesCountsLive) { additive::read(word) } else { additive::bury(word) }
}

/// Tells in `reclaim` which group the words were of.
fn tag(node: &'static Node) -> u64 {
    u64::from(node.id.0) << 32 | u64::from(node.generation())
}

/// The last look at words that nobody reaches any more: attempts that came late are counted, and nothing else is there.
pub(crate) fn last_look(shared: &'static Shared, old: &Unlinked, tag: u64) {
    let hot = &shared.memory.hot;
    let mut attempts = 0;
    for slot in hot.admitted() {
        let Some(word) = hot.unlinked_word(old, slot, WORD) else { continue };
        // ORDERING: Relaxed; after the grace period nobody changes it any more.
        let word = Word(word.load(Ordering::Relaxed));
        assert!(
            word.bytes() == 0 && word.cap() == 0 && !word.is_pending(),
            "a stock that was left behind in slot {slot} still holds {word:?}"
        );
        attempts += word.attempts();
    }
    if attempts > 0 {
        count_late(shared, tag, attempts);
    }
}

/// Counts attempts for the group that `tag` names, if it still has its place. The lock holds off whoever gives that away.
fn count_late(shared: &'static Shared, tag: u64, attempts: u64) {
    let _tree = shared.tree.lock();
    let of_the_group = |node: &&Node| {
        node.generation() == tag as u32 || mutation::active(Mutation::LastLookIgnoresGeneration)
    };
    if let Some(node) = shared.node(GroupId((tag >> 32) as u32)).filter(of_the_group) {
        node.stats.harvest(attempts);
    }
}
