//! Release: a shrinker gives up its slot in a group, the owner of a scan releases one, a walk
//! takes a stale mark.
//!
//! - I1. A slot that was given up is returned to its group, and the handle on the group dropped,
//!   once: `slot` I2.
//! - E1. A mark in a class that is not the slot's: unmark → check whether it is by now; set the
//!   class → mark. Loom: `marks_the_slot_in_its_class`.

use memgroup_sync::atomic::{Ordering, fence};
use memgroup_sync::hazard::Place;
use memgroup_sync::interleave;

use crate::base::mutation::{self, Mutation};
use crate::reclaim::bitmap::CLASSES;
use crate::reclaim::entry::{ShrinkerEntry, domain};
use crate::reclaim::slot::SlotState;
use crate::reclaim::{group, queue};
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// A slot, as a walk found it.
#[derive(Clone, Copy)]
pub(crate) struct SlotRef {
    pub(crate) node: &'static Node,
    /// The node's, when the walk found it in its subtree.
    pub(crate) generation: u64,
    /// The slot's, in the group.
    pub(crate) number: u32,
    pub(crate) state: &'static SlotState,
}

impl SlotRef {
    /// A slot of a group that the caller holds.
    pub(crate) fn of(node: &'static Node, place: &'static Place<ShrinkerEntry>) -> Option<SlotRef> {
        let (number, state) = node.shrinkers()?.slot_of(place)?;
        Some(SlotRef { node, generation: node.generation(), number, state })
    }

    /// Returns whether the slot is still the shrinker's, and in the group in which it was found.
    pub(crate) fn is_still(&self, place: &'static Place<ShrinkerEntry>) -> bool {
        self.state.is_of(place) && self.node.generation() == self.generation
    }

    /// Gives up a slot of a group that the caller holds. Its deferred bytes go to the shrinker's
    /// next slot above.
    pub(crate) fn give_up(&self) {
        let &SlotRef { node, number, state, .. } = self;
        // For as long as a scan of the slot runs; `return_to_group` lets go.
        node.pin();
        state.vacate();
        let mark_move = node.shared().shrinkers().begin_mark_move();
        // A mark in another class than the slot's may be there, too (`slot` I1).
        let slots = &node.shrinkers().expect("a group with a slot has shrinkers").slots;
        let marked = (0..CLASSES).filter(|&class| slots.is_marked(number, class));
        marked.for_each(|class| group::unmark(node, number, class));
        drop(mark_move);
        if mutation::active(Mutation::LeaverHandsOnFirst) {
            self.bequeath();
        }
        if state.give_up() {
            self.return_to_group();
        }
    }

    /// Releases a slot that the caller has seized: to the thread that has waited longest, if there
    /// is one. Returns the slot if it was given up meanwhile.
    pub(crate) fn release(&self) {
        let &SlotRef { node, state, .. } = self;
        // A seized slot is not given to another shrinker (`slot` I2).
        let place = state.shrinker().or_else(|| state.left_by());
        let ended = queue::release(node.shared(), state);
        if ended.was_noted
            && let Some(place) = place
            && let Some(entry) = domain().lease().pin(place)
        {
            entry.end_overdue_call();
        }
        if ended.is_given_up {
            self.return_to_group();
        }
    }

    /// Makes a slot that was given up free for another shrinker, and lets go of its group.
    fn return_to_group(&self) {
        // No thread has the slot any more, so no more bytes are deferred there.
        if !mutation::active(Mutation::LeaverHandsOnFirst) {
            self.bequeath();
        }
        self.node.shrinkers().expect("a group with a slot has shrinkers").slots.give_back(self.number);
        drop(Group::adopted(self.node));
    }

    /// Defers the deferred bytes of a slot that was given up at the shrinker's nearest slot above,
    /// if there is one.
    fn bequeath(&self) {
        let (Some(place), bytes @ 1..) = (self.state.left_by(), self.state.take_deferred()) else { return };
        let above = std::iter::successors(self.node.parent(), |level| level.parent());
        if let Some((_, heir)) = above.filter_map(Node::shrinkers).find_map(|group| group.slot_of(place)) {
            // The heir caps them when it's asked, and so at its own size.
            heir.defer(bytes, u64::MAX);
            heir.backoff.ask_always();
        }
    }

    /// Takes a stale mark, and checks whether its class is the slot's by now. The shrinker's owner
    /// may have marked the slot there meanwhile, and relied on the mark. The caller has announced
    /// that the mark moves. A walk that finds the mark in the class that it was moved to takes
    /// that one in turn.
    pub(crate) fn take_stale_mark(&self, class: usize) {
        let &SlotRef { node, number, state, .. } = self;
        interleave::point();
        group::unmark(node, number, class);
        // ORDERING: SeqCst; pairs with the fence in `SummaryBitmap::mark` (E1), as in
        // `Call::found_empty`.
        fence(Ordering::SeqCst);
        let is_right = state.shrinker().is_some() && state.class() == class;
        if is_right && !mutation::active(Mutation::LeftOverIsTakenBlindly) {
            group::mark(node, number, class);
        }
    }
}
