//! Counts: a group's own additive counters, one word for each slot.
//!
//! An addition is one atomic addition to this thread's slot; the sum is taken when it is asked for. The words are in the group's
//! record, which may move or be folded into one copy while they are added to (`residence`); `memgroup_percpu::additive` says why
//! nothing is lost then.
//!
//! - I1. At every moment a count is the sum of the words of the record and of the cold record. Both change places under
//!   the tree lock, which a reader of the sum holds.

use memgroup_percpu::additive;
use memgroup_sync::{grace, interleave};

use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::residence;

/// Where the counters begin in a record; the stock word lies before them.
pub(crate) const FIRST: usize = 1;

/// Adds to a counter of a group.
#[inline]
pub(crate) fn add(node: &'static Node, counter: u32, delta: i64) {
    let index = FIRST + counter as usize;
    // Nothing is called on the way, as in `Node::charge`.
    if let Some((_, word)) = node.record.glance(&node.source, index) {
        interleave::point();
        if additive::add(&word, delta) {
            return;
        }
    }
    add_slow(node, index, delta);
}

#[cold]
#[inline(never)]
fn add_slow(node: &'static Node, index: usize, delta: i64) {
    let slot = node.source.current();
    let counters = node.shared.config.counters;
    assert!(
        index < FIRST + counters as usize,
        "a group has {counters} counters (`Config::counters`), none of number {}",
        index - FIRST
    );
    residence::make_word(node, slot);
    loop {
        let moved = [(&node.record, slot), (&node.cold, 0)]
            .into_iter()
            .any(|(record, slot)| record.access(slot, index).is_some_and(|word| additive::add(&word, delta)));
        if moved {
            return;
        }
        residence::touch(node, slot);
        assert!(
            !is_out_of_range(node, slot, index),
            "counter {} of a group has left its range, -2^61 to 2^61, in one slot",
            index - FIRST
        );
    }
}

/// Whether a word that is linked reads as one that was left behind, which under the lock it cannot be: it holds too much.
fn is_out_of_range(node: &'static Node, slot: usize, index: usize) -> bool {
    let _tree = node.shared.tree.lock();
    let section = grace::enter();
    let words = [node.record.word(&section, slot, index), node.cold.word(&section, 0, index)];
    words.into_iter().flatten().any(|word| !additive::add(word, 0))
}

/// The sum of one counter over all slots.
pub(crate) fn sum(node: &'static Node, counter: u32) -> i64 {
    let counters = node.shared.config.counters;
    assert!(
        counter < counters,
        "a group has {counters} counters (`Config::counters`), none of number {counter}"
    );
    let _tree = (!mutation::active(Mutation::SumIgnoresMoves)).then(|| node.shared.tree.lock());
    let index = FIRST + counter as usize;
    let section = grace::enter();
    let hot: i64 = node
        .shared
        .memory
        .admitted()
        .filter_map(|slot| node.record.word(&section, slot, index))
        .map(additive::read)
        .sum();
    hot + node.cold.word(&section, 0, index).map_or(0, additive::read)
}

/// All counters are zero again; the place is free and nobody adds to them.
pub(crate) fn forget(node: &'static Node) {
    let section = grace::enter();
    for slot in node.shared.memory.admitted() {
        // Published with the group, by the tree lock.
        node.record.clear_from(&section, slot, FIRST);
    }
}
