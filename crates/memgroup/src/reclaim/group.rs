//! Group: which shrinkers have something to give back in a group, and in which of the groups below
//! it any has.
//!
//! ```text
//!   group ── slots ────── a slot for each shrinker that may hold memory of the group ── marked: it may hold some now
//!         └─ children ─── the groups below that have shrinkers ──────────────────────── marked: so may a slot there or below
//! ```
//!
//! A walk from any group downwards visits marked slots and nothing else: ten thousand groups
//! without a mark are a few words. A group has no `GroupShrinkers` if no shrinker was ever
//! attached to it or below it.
//!
//! - I1. `bitmap` I1 through all levels. When the call that marks a slot has returned, and no
//!   thread is unmarking, a walk from any group above finds the slot.
//! - I2. A number among the children belongs to a group from the first shrinker in it or below it
//!   until the group is released.
//! - I3. A slot holds a handle on its group. So the group and those above it are not released. A
//!   walk that marks or unmarks may be late, and a number may belong to another group by then. It
//!   restores every bit it clears. A bit may be set although nothing is there; never the reverse.
//! - E1. As in `bitmap`, from level to level. Loom: `finds_every_mark_from_above`.

use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::hazard::Place;
use memgroup_sync::interleave;

use crate::base::id::NodeId;
use crate::base::mutation::{self, Mutation};
use crate::reclaim::bitmap::{CLASSES, SummaryBitmap, Unmarked};
use crate::reclaim::entry::ShrinkerEntry;
use crate::reclaim::slot::SlotState;
use crate::tree::node::Node;
use crate::tree::parts::{Key, Part, PlacePart};

/// In `number`: the group has none.
const NONE: u32 = u32::MAX;

/// The shrinkers of a group and of the groups below it.
pub(crate) struct GroupShrinkers {
    pub(crate) slots: SummaryBitmap<SlotState>,
    /// The ids of groups right below.
    pub(crate) children: SummaryBitmap<AtomicU32>,
    /// Its number among its parent's children, or `NONE`.
    pub(crate) number: AtomicU32,
    /// Rounds of reclaim that began here.
    pub(crate) rounds: AtomicU32,
}

/// The number of a round of reclaim among those of its group. It decides with which child the
/// round begins, and whether it explores.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rotation(u32);

/// One round in this many explores.
const EXPLORING: u32 = 16;

impl Rotation {
    /// Returns whether the round first asks caches that gave little or hold little.
    pub(crate) fn explores(self) -> bool {
        self.0 % EXPLORING == EXPLORING - 1
    }
}

/// The golden section of 2<sup>32</sup>.
const GOLDEN: u32 = 0x9E37_79B9;

impl GroupShrinkers {
    pub(crate) fn new() -> GroupShrinkers {
        GroupShrinkers {
            slots: SummaryBitmap::new(),
            children: SummaryBitmap::new(),
            number: AtomicU32::new(NONE),
            rounds: AtomicU32::new(0),
        }
    }

    /// Its number among its parent's children.
    fn number(&self) -> Option<u32> {
        // ORDERING: Acquire; pairs with the Release in `enlist`: the parent has an item for it.
        Some(self.number.load(Ordering::Acquire)).filter(|&number| number != NONE)
    }

    /// Returns whether a slot, or a group below, may be marked.
    pub(crate) fn is_any(&self, class: usize) -> bool {
        self.slots.is_any(class) || self.children.is_any(class)
    }

    /// Where the next round begins: far from the one before. Else two rounds at a time would come
    /// to the same cache wherever few groups have one. Steps of the golden section fall everywhere
    /// equally often.
    pub(crate) fn next_rotation(&self) -> Rotation {
        // ORDERING: Relaxed; a number by itself.
        Rotation(self.rounds.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number of the child with which a round begins, `levels` below its top. Each
    /// level uses other bits. With the same bits only the first child of the first one, the
    /// second of the second and so on would ever be the beginning.
    #[inline]
    pub(crate) fn first_child(&self, rotation: Rotation, levels: u32) -> u32 {
        let fraction = rotation.0.wrapping_mul(GOLDEN).rotate_left(13 * levels);
        ((u64::from(fraction) * u64::from(self.children.given_out())) >> 32) as u32
    }

    /// The slot of a shrinker, and its number.
    pub(crate) fn slot_of(&self, place: &'static Place<ShrinkerEntry>) -> Option<(u32, &SlotState)> {
        let slots = (0..self.slots.given_out()).filter_map(|number| Some((number, self.slots.get(number)?)));
        slots.into_iter().find(|(_, slot)| slot.is_of(place))
    }
}

/// Marks a slot of a group.
pub(crate) fn mark(node: &'static Node, slot: u32, class: usize) {
    let slots = &of(node).slots;
    if mutation::active(Mutation::MarkReliesOnOthers) && slots.is_marked(slot, class) {
        return;
    }
    slots.mark(slot, class);
    climb(node, class);
}

/// Takes the mark of a slot. The caller checks afterwards whether that was right, and marks again
/// if not. It has announced a [`MarkMove`](crate::reclaim::registry::MarkMove), which lasts until
/// then.
pub(crate) fn unmark(node: &'static Node, slot: u32, class: usize) {
    after_unmark(node, class, of(node).slots.unmark(slot, class));
}

/// Marks a group among the children of each one above. It relies on no other thread's climb, so it
/// goes up to the root.
fn climb(node: &'static Node, class: usize) {
    let mut level = node;
    while let Some((parent, number)) = above(level) {
        of(parent).children.mark(number, class);
        level = parent;
    }
}

/// Brings the marks above a group up to date after one of its own was taken.
fn after_unmark(node: &'static Node, class: usize, unmarked: Unmarked) {
    match unmarked {
        Unmarked::OthersLeft => {}
        Unmarked::OthersCame => climb(node, class),
        Unmarked::NoneLeft => unmark_above(node, class),
    }
}

/// Takes the marks of a group of which nothing is marked any more, and of those above it of which
/// nothing is marked then. No handle holds the group for a walk: it may be released by now, and
/// its number may be another group's. So the second check goes to the group that has the number
/// now.
fn unmark_above(mut node: &'static Node, class: usize) {
    while !of(node).is_any(class) {
        let Some((parent, number)) = above(node) else { return };
        interleave::point();
        let unmarked = of(parent).children.unmark(number, class);
        let owner = if mutation::active(Mutation::TidyLooksAtTheOldGroup) {
            Some(node)
        } else {
            // ORDERING: Acquire; pairs with the Release in `enlist`. The group that has the number
            // stored its id before it marked anything. A marking thread that found the mark set,
            // and so set none, is before the fence of this `unmark` (E1).
            let id = of(parent).children.get(number).map(|id| id.load(Ordering::Acquire));
            id.and_then(|id| node.shared().node(NodeId(id)))
        };
        let owner = owner.filter(|owner| owner.shrinkers().is_some_and(|shrinkers| shrinkers.is_any(class)));
        match (owner, unmarked) {
            (Some(owner), _) if !mutation::active(Mutation::TidyDoesNotLookAgain) => {
                return climb(owner, class);
            }
            (_, Unmarked::OthersLeft) => return,
            (_, Unmarked::OthersCame) => return climb(parent, class),
            (_, Unmarked::NoneLeft) => node = parent,
        }
    }
}

/// The parent that has this group among its children, and the group's number there.
fn above(node: &'static Node) -> Option<(&'static Node, u32)> {
    Some((node.parent()?, node.shrinkers()?.number()?))
}

fn of(node: &'static Node) -> &'static GroupShrinkers {
    node.shrinkers().expect("a group with a slot, and each one above it, has shrinkers")
}

/// Gives a group, which the caller holds, and each one above it its `GroupShrinkers`. `None` if a
/// parent has too many children.
pub(crate) fn enlist(node: &'static Node) -> Option<&'static GroupShrinkers> {
    let make = |node: &'static Node| node.kept_part(&GROUP_SHRINKERS);
    let mut level = node;
    let mut shrinkers = make(level);
    while let Some(parent) = level.parent() {
        let above = make(parent);
        if shrinkers.number().is_none() {
            let number = above.children.draw(|| AtomicU32::new(0))?;
            let id = above.children.get(number)?;
            // ORDERING: Release; a thread that finds the id finds the node's parent and generation.
            id.store(level.id().0, Ordering::Release);
            // ORDERING: Release; pairs with the Acquire in `number`. Acquire where another thread
            // was faster: the same pairing.
            let set = shrinkers.number.compare_exchange(NONE, number, Ordering::Release, Ordering::Acquire);
            if set.is_err() {
                above.children.give_back(number);
            }
        }
        (level, shrinkers) = (parent, above);
    }
    node.shrinkers()
}

/// Takes a group that is released from its parent's children. The caller holds the tree lock, and
/// all slots of the group are given back.
pub(crate) fn delist(node: &'static Node) {
    let Some((parent, number)) = above(node) else { return };
    let _move = node.shared().shrinkers().begin_mark_move();
    // A walk may have left marks for a group without slots.
    for class in 0..CLASSES {
        after_unmark(parent, class, of(parent).children.unmark(number, class));
    }
    // ORDERING: Relaxed; no thread has a handle any more, and the lock of the numbers orders the
    // next use of this one.
    of(node).number.store(NONE, Ordering::Relaxed);
    of(parent).children.give_back(number);
}

/// Returns the group that has a number among the children of `parent`, its generation, and its
/// shrinkers; `None` if it was released.
#[inline(always)]
pub(crate) fn child_at(
    parent: &'static Node,
    number: u32,
    id: &AtomicU32,
) -> Option<(&'static Node, u64, &'static GroupShrinkers)> {
    // ORDERING: Acquire; pairs with the Release in `enlist`.
    let child = parent.shared().node(NodeId(id.load(Ordering::Acquire)))?;
    let generation = child.generation();
    let shrinkers = child.shrinkers()?;
    let is_child = child.is_child_of(parent) && shrinkers.number() == Some(number);
    (is_child && child.generation() == generation).then_some((child, generation, shrinkers))
}

impl Part for GroupShrinkers {
    /// For a new group in the node, whose rounds are its own.
    fn reset(&self) {
        // ORDERING: Relaxed; a number by itself.
        self.rounds.store(0, Ordering::Relaxed);
    }
}

static GROUP_SHRINKERS: Key<PlacePart, GroupShrinkers> = Key::new(PlacePart::Shrinkers, GroupShrinkers::new);

impl Node {
    /// The shrinkers of the group and of the groups below it; `None` if there never was one.
    pub(crate) fn shrinkers(&self) -> Option<&'static GroupShrinkers> {
        self.find_kept(&GROUP_SHRINKERS)
    }
}
