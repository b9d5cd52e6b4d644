//! Listed: how a flush of the statistics learns of the charges that stocks served.
//!
//! A hit counts its attempt in the addition that it makes anyway, and does nothing else. So it cannot mark its group for the next flush.
//! The first attempt on a word that is not LISTED takes the slow path instead, marks the group, and sets LISTED. A flush that takes the
//! attempts clears LISTED again.
//!
//! - I1. Attempts in a word that is LISTED were marked since a flush last took attempts out of it. A thread that finds a word without it,
//!   marks.
//! - E1. mark → list, take → unlist: LISTED is set by a compare-and-swap against a word that was seen, with attempts in it, before the
//!   look at the mark. A flush in between took the attempts, so the word is another. Loom: `flushes_or_marks_each_hit`.
//! - B1. If other threads then make the same attempts with the same outcome, the word looks the same. Each of them found it not LISTED, and
//!   marks. So nothing is lost, but a flush in that instant may come too early for one of them.
//! - B2. Only a flush takes attempts while their group lives. There are two exceptions: a word that is full of them, and a word that the
//!   budget's clock spares. The taking thread then counts them, and a flush in between comes too early for them.

use memgroup_sync::interleave;

use crate::base::mutation::{self, Mutation};
use crate::state::stats::builtin::MEMORY;
use crate::stock::{Stock, update};
use crate::tree::node::Node;

/// After an attempt that found the word not LISTED.
pub(crate) fn list(stock: &Stock) {
    let entry = stock.node.find_entry(MEMORY);
    stock.update(|word| {
        // A model that counts nothing has no mark.
        if let Some(entry) = entry
            && !entry.mark().is_set(stock.slot)
            && !mutation::active(Mutation::HitNeverMarks)
        {
            entry.mark().set(stock.slot);
        }
        interleave::point();
        // With no attempts a flush has taken ours.
        (!word.is_listed() && word.attempts() > 0).then(|| word.listed())
    });
}

/// Takes the attempts on the stock of one slot, for a flush; its mark was cleared before. `None` if the group has no word there.
pub(crate) fn harvest(node: &'static Node, slot: usize) -> Option<u64> {
    let keeps_listed = mutation::active(Mutation::HarvestLeavesListed);
    let cell = node.stock.get(slot)?;
    // An RMW also where it changes nothing: an attempt that comes too late follows it, and finds the mark cleared (E1).
    let found = update(cell, |word| Some(if keeps_listed { word.harvested() } else { word.flushed() }));
    found.map(|word| word.attempts())
}
