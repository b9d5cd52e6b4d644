//! Walk: from a group down to every marked slot of a class, and the visit to one.
//!
//! ```text
//!   due at this priority? ─ class as marked? ─ pinned? ─ still its slot? ─ quarantined, or busy? ─▶ count ─▶ scan
//! ```
//!
//! No lock and no read section is held, neither on the way nor while a callback runs. The way down
//! is read from tables that stay where they are. The generation of a group tells whether it is
//! still the one that was found. It is checked when the shrinker is pinned, and once more when the
//! slot is seized: from there on the group cannot be released.
//!
//! A slot that is skipped costs one read of its line, and nothing is announced. The last
//! priorities count every cache whatever the last count was, or growth since then would never be
//! seen.
//!
//! - I1. A slot that is scanned is in the subtree of the walk's group, in a group that is not
//!   released until the scan ends. A slot that is only counted may be in another group, if its
//!   group was released meanwhile. The token is the counted slot's own all the same.
//! - I2. At each level rounds take turns to begin with another child, far from the one before. So
//!   two rounds at a time come to different caches, and of several children at a level not always
//!   the same one gives first.
//! - E1. A stale mark: unmark → check again (`release` E1).

use std::time::Duration;

use memgroup_sync::hazard::{Lease, Place};
use memgroup_sync::interleave;

use crate::counter::protect::Protection;
use crate::observe::wait::{self, WaitKind};
use crate::reclaim::control::ScanControl;
use crate::reclaim::due::SERIOUS;
use crate::reclaim::entry::{ShrinkerEntry, domain};
use crate::reclaim::group::{GroupShrinkers, child_at};
use crate::reclaim::release::SlotRef;
use crate::reclaim::scan::Call;
use crate::reclaim::shrinker::Count;
use crate::reclaim::slot::SlotState;
use crate::reclaim::{group, queue};
use crate::tree::node::Node;
use crate::tree::topology::ROOT;

/// The levels below which a walk goes on by a call of its own: a frame for each level would need
/// more stack than some threads have.
const LEVELS: usize = 32;

/// A group on the way of a walk, whose children are visited. The walk begins with another child in
/// each round, and goes around.
#[derive(Clone, Copy)]
struct Level {
    node: &'static Node,
    protected: Protection,
    shrinkers: &'static GroupShrinkers,
    /// The numbers of the child with which it begins, and of the next.
    first: u32,
    next: u32,
    /// It has come to the last child, and goes on with number 0.
    has_turned: bool,
}

/// The result of a visit to a group, or to the children of one.
enum Visited {
    /// The walk has freed enough.
    Enough,
    /// It goes on, and nothing is left to visit there.
    Done,
    /// It goes on with the groups below.
    Inner(Level),
}

/// A walk at one priority, in one class. Its functions return whether it goes on.
pub(crate) struct Walk<'c> {
    pub(crate) control: ScanControl<'c>,
    lease: Lease,
}

impl<'c> Walk<'c> {
    pub(crate) fn new(control: ScanControl<'c>) -> Walk<'c> {
        Walk { control, lease: domain().lease() }
    }

    /// Visits every slot in `top` and below that is marked in a class and due at a priority, until
    /// enough is freed.
    pub(crate) fn pass(&mut self, top: &'static Node, priority: u32, class: usize) -> bool {
        let control = &mut self.control;
        (control.priority, control.class) = (priority, class);
        // Who reclaims by hand wants it to be asked although it gave nothing.
        control.ignores_backoff = control.explores || (priority <= SERIOUS && control.credit.is_by_hand());
        self.subtree(top) && self.control.goes_on()
    }

    fn subtree(&mut self, top: &'static Node) -> bool {
        let Some(shrinkers) = top.shrinkers() else { return true };
        // A root that is not accounted counts for itself: bytes freed below make no room for its
        // charges.
        let is_alone =
            top.id() == ROOT && !top.shared().config.account_root() && !self.control.credit.is_by_hand();
        self.slots(top, top.generation(), shrinkers)
            && (is_alone || self.below(self.level(top, Protection::NONE, shrinkers, 0), 0))
    }

    /// Visits the slots of a group. Returns the group as a level of the walk, if any child of it
    /// is marked.
    fn group(
        &mut self,
        (node, generation, shrinkers): (&'static Node, u64, &'static GroupShrinkers),
        protected: Protection,
        depth: u32,
    ) -> Visited {
        // Mostly nothing is protected, and the group above gives no shares.
        if !protected.is_none() || node.up().is_some_and(|above| above.marks.is_shared()) {
            let takeable = self.control.sparing.of(node, protected, 0);
            if takeable.bytes == 0 && (takeable.spares_low || !protected.is_none()) {
                // All groups below are protected too.
                self.control.stats.spared_low |= takeable.spares_low;
                return Visited::Done;
            }
        }
        // Most groups have none below.
        let has_children = shrinkers.children.is_any(self.control.class);
        match self.slots(node, generation, shrinkers) {
            false => Visited::Enough,
            true if has_children => Visited::Inner(self.level(node, protected, shrinkers, depth)),
            true => Visited::Done,
        }
    }

    fn slots(&mut self, node: &'static Node, generation: u64, shrinkers: &'static GroupShrinkers) -> bool {
        let class = self.control.class;
        // The first check stands here, because most visits end with it.
        let visit = move |number, state| {
            !is_due(state, &self.control) || self.visit(SlotRef { node, generation, number, state })
        };
        shrinkers.slots.each_marked(class, 0..u32::MAX, visit)
    }

    /// A group that is `depth` levels below the top, before any of its children is visited.
    fn level(
        &self,
        node: &'static Node,
        protected: Protection,
        shrinkers: &'static GroupShrinkers,
        depth: u32,
    ) -> Level {
        let first = shrinkers.first_child(self.control.rotation, depth);
        Level { node, protected, shrinkers, first, next: first, has_turned: false }
    }

    /// Visits the children of a group that is `depth` levels below the top, up to the next one
    /// that has marked children of its own. Most groups have none, so their visits stay in one
    /// loop.
    fn children(&mut self, level: &mut Level, depth: u32) -> Visited {
        let Level { node: above, protected, shrinkers, .. } = *level;
        loop {
            let numbers = level.next..if level.has_turned { level.first } else { u32::MAX };
            let mut visited = Visited::Done;
            shrinkers.children.each_marked(self.control.class, numbers, |number, id| {
                let Some(child) = child_at(above, number, id) else { return true };
                let protected = self.control.sparing.below(above, protected, child.0);
                level.next = number + 1;
                visited = self.group(child, protected, depth + 1);
                matches!(visited, Visited::Done)
            });
            if level.has_turned || !matches!(visited, Visited::Done) {
                return visited;
            }
            (level.has_turned, level.next) = (true, 0);
        }
    }

    /// Visits all groups below a group that is `depth` levels below the top.
    fn below(&mut self, mut level: Level, depth: u32) -> bool {
        match self.children(&mut level, depth) {
            Visited::Enough => false,
            Visited::Done => true,
            Visited::Inner(inner) => self.levels(level, inner, depth),
        }
    }

    /// Goes on with `inner`, a child of `level`, which is `depth` levels below the top. Then
    /// visits the rest.
    #[inline(never)]
    fn levels(&mut self, level: Level, inner: Level, depth: u32) -> bool {
        let mut levels = [level; LEVELS];
        let mut at = 1;
        levels[at] = inner;
        loop {
            let below = depth + at as u32;
            match self.children(&mut levels[at], below) {
                Visited::Enough => return false,
                Visited::Done if at == 0 => return true,
                Visited::Done => at -= 1,
                Visited::Inner(inner) if at + 1 < LEVELS => {
                    at += 1;
                    levels[at] = inner;
                }
                Visited::Inner(inner) => {
                    if !self.below(inner, below + 1) {
                        return false;
                    }
                }
            }
        }
    }

    /// Visits a slot that is marked in the walk's class and due at its priority.
    #[inline(always)]
    pub(crate) fn visit(&mut self, slot: SlotRef) -> bool {
        let (state, control) = (slot.state, &mut self.control);
        let Some(place) = state.shrinker().filter(|_| state.class() == control.class) else {
            forget(&slot, control.class);
            return true;
        };
        let Some(entry) = self.lease.pin(place) else { return true };
        interleave::point();
        if !state.is_of(place) {
            return true;
        }
        if state.is_busy() || entry.is_out() {
            let waiter = control.waiter.filter(|_| control.priority == 0 && !entry.is_out());
            let patience = entry.config.patience;
            skip_busy(&slot, &entry, waiter.is_some(), control);
            drop(entry);
            return waiter.is_none_or(|waiter| self.wait_for(waiter, slot, place, patience));
        }
        let count = entry.count(state.token());
        // Here, because a shrinker that cannot tell costs the walk little then.
        if count == Count::Unknown {
            control.stats.busy += u64::from(control.priority == 0);
            return !control.is_late();
        }
        Call { slot, place, entry: &entry }.counted(count, control) && !control.is_late()
    }

    /// Waits for a slot behind the threads that came earlier, and scans it if they have left too
    /// little. The shrinker is not pinned meanwhile: a removal waits for calls, not for threads
    /// that are about to make one.
    #[cold]
    #[inline(never)]
    fn wait_for(
        &mut self,
        waiter: &'static Node,
        slot: SlotRef,
        place: &'static Place<ShrinkerEntry>,
        patience: Duration,
    ) -> bool {
        let (node, state, control) = (slot.node, slot.state, &mut self.control);
        let credit = control.credit;
        let deadline = wait::after(patience);
        let listed = wait::list::begin_at(waiter, node, WaitKind::Shrinker, credit.lacks(), deadline);
        let is_mine = queue::seize(node.shared(), state, &listed, patience, control.end);
        control.stats.is_called_off |= listed.is_called_off();
        drop(listed);
        if !is_mine {
            control.stats.busy += 1;
            return true;
        }
        let (entry, lacks) = (self.lease.pin(place), credit.lacks());
        match entry.as_ref().filter(|entry| !entry.is_out() && lacks > 0) {
            Some(entry) => {
                control.bytes = credit.freed() + lacks;
                Call { slot, place, entry }.demand_seized(node.shared().nanos(), control);
            }
            None => {
                // Others have freed enough, and others still may take that.
                control.stats.busy += 1;
                slot.release();
            }
        }
        credit.lacks() > 0
    }
}

/// Returns whether anything may be due of a slot. A stale mark is found at the last priorities.
#[inline(always)]
pub(crate) fn is_due(state: &SlotState, control: &ScanControl<'_>) -> bool {
    state.backoff.is_due(control.priority, control.ignores_backoff)
}

/// Takes a stale mark.
#[cold]
#[inline(never)]
pub(crate) fn forget(slot: &SlotRef, class: usize) {
    let _move = slot.node.shared().shrinkers().begin_mark_move();
    let own = slot.state.class();
    // First in its own class: a look that begins after this finds it there.
    if slot.state.shrinker().is_some() && own != class {
        group::mark(slot.node, slot.number, own);
    }
    slot.take_stale_mark(class);
}

/// Skips a slot if another thread scans it, or its shrinker is not to be called. It counts as busy
/// unless the walk waits for it, or the call lasts too long.
#[cold]
#[inline(never)]
fn skip_busy(slot: &SlotRef, entry: &ShrinkerEntry, waits: bool, control: &mut ScanControl<'_>) {
    let Some(since) = slot.state.busy_since() else {
        // Released since the walk looked: another round finds it.
        control.stats.busy += u64::from(!waits && !entry.is_out());
        return;
    };
    if !entry.is_overrun(slot.node.shared().nanos().saturating_sub(since)) {
        control.stats.busy += u64::from(!waits);
    } else if slot.state.note(since) {
        entry.begin_overdue_call();
    }
}
