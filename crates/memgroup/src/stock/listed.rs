//! Listed: how a flush of the statistics comes by the charges that stocks served.
//!
//! A hit counts its attempt in the addition that it makes anyway, and does nothing else; so it cannot mark its group for the next flush.
//! The first attempt on a word that is not LISTED takes the slow path instead, marks, and sets LISTED; a flush that takes the
//! attempts clears LISTED again.
//!
//! - I1. Attempts in a word that is LISTED were marked since a flush last took attempts out of it. Who finds a word that is not, marks.
//! - E1. mark → list, take → unlist: LISTED is set by a compare-and-swap against a word that was seen, with attempts in it, before the
//!   mark was looked at. A flush in between took the attempts, so the word is another. Loom: `a_hit_is_flushed_or_marked`.
//! - B1. If others then make the same attempts with the same outcome, the word looks the same; each of them found it not LISTED, and
//!   marks. So nothing is lost, but a flush in that instant may come too early for one of them.
//! - B2. Only a flush takes attempts while their group goes on, but for a word that is full of them, one that the budget's clock spares, and
//!   words that are left behind (`residence`). Who takes them then counts them, and a flush in between comes too early for them.

use memgroup_sync::atomic::Ordering;
use memgroup_sync::grace::Section;
use memgroup_sync::interleave;

use super::word::Word;
use super::{Stock, WORD};
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::rstat::builtin::MEMORY;

/// After an attempt that found the word not LISTED.
pub(super) fn list(stock: &Stock) {
    let entry = stock.node.stats[MEMORY].get();
    loop {
        let word = stock.look();
        interleave::point();
        // A model that counts nothing has no mark.
        if let Some(entry) = entry
            && !entry.mark.is_set(stock.slot)
            && !mutation::active(Mutation::HitNeverMarks)
        {
            entry.mark.set(stock.slot);
        }
        interleave::point();
        // With no attempts a flush has taken ours.
        let next = word.listed();
        if word.is_listed() || word.attempts() == 0 || stock.change(word, next).is_ok() {
            return;
        }
    }
}

/// Takes the attempts on the stock of one slot, for a flush; its mark was cleared before. `None` if it has none.
pub(crate) fn harvest(node: &'static Node, section: &Section, slot: usize) -> Option<u64> {
    let cell = node.record.word(section, slot, WORD)?;
    // ORDERING: Relaxed; the compare-and-swap decides.
    let mut word = Word(cell.load(Ordering::Relaxed));
    loop {
        let keeps_listed = mutation::active(Mutation::HarvestLeavesListed);
        let next = if keeps_listed { word.harvested() } else { word.flushed() };
        // ORDERING: AcqRel, also where it changes nothing: an attempt that comes too late follows this RMW, and finds the mark
        // cleared (E1).
        match cell.compare_exchange(word.0, next.0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(word.attempts()),
            Err(newer) => word = Word(newer),
        }
    }
}
