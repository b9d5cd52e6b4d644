//! Reclaim: has shrinkers give back memory, from the whole subtree of the group that is full.
//!
//! A round goes through the priorities from 12 to 0. At each it visits the largest caches first, and asks each in proportion to its
//! size, until enough is uncharged. A charge that was refused does that on its own thread, keeps the freed bytes (`credit`), and tries again.
//! A round that freed nothing while no other thread scanned anything is the last one. So is the seventeenth in a row after which the charge
//! lacks as much as before, unless another thread is moving a mark: a full cache may have none
//! then. So is the one that ends after the time that one charge has for all its rounds
//! ([`Config::reclaim_patience`](crate::Config::reclaim_patience)). If another level refuses then,
//! room is made in that one. The first rounds spare bytes that `low` protects; all rounds spare
//! those that `min` protects.
//!
//! One round in 16 first explores: it asks a few of the smallest caches, and of those that gave little (`backoff`), before it goes through
//! the priorities. Otherwise nobody would notice that such a cache has something to give, as long as others give enough.
//!
//! - I1. Reclaim does not begin within reclaim. A refused charge of a callback draws on the reserve
//!   ([`Config::reclaim_reserve_bytes`](crate::Config::reclaim_reserve_bytes)), or stays refused.
//! - B1. When another group turns out to refuse, higher up, the bytes kept for the first group are uncharged. Any thread may take them then.

use std::time::Instant;

use crate::counter::protect::Sparing;
use crate::reclaim::bitmap::CLASSES;
use crate::reclaim::credit::{Purpose, ReclaimCredit};
use crate::reclaim::due::{EXPLORED, PRIORITIES, least_class};
use crate::reclaim::group::{GroupShrinkers, Rotation};
use crate::reclaim::walk::Walk;
use crate::tree::node::Node;

/// The result of a reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Bytes that this thread uncharged in the group and below.
    pub bytes: u64,
    /// Times that a shrinker was asked to give back.
    pub scans: u64,
    /// Times that a shrinker could not go on, could not tell how much it holds, or that another thread was scanning.
    pub busy: u64,
}

/// Scans of a round while it explores.
const EXPLORED_MOST: u64 = 16;

/// The task of a reclaim, the step that it is at, and its results.
pub(crate) struct ScanControl<'a> {
    /// The reclaim ends when the credit has freed so much.
    pub(crate) bytes: u64,
    /// The deadline that callbacks are told.
    pub(crate) deadline: Option<Instant>,
    /// When it ends at the latest, but for the call that runs then.
    pub(crate) end: Option<Instant>,
    /// Whether callbacks may wait.
    pub(crate) may_wait: bool,
    pub(crate) credit: &'a ReclaimCredit,
    pub(crate) sparing: Sparing,
    /// The charging group, if its thread waits for slots that others scan (`queue`). It does so at the last priority.
    pub(crate) waiter: Option<&'static Node>,
    pub(crate) priority: u32,
    pub(crate) class: usize,
    /// The round explores: it asks some of the smallest caches, and of those that gave little.
    pub(crate) explores: bool,
    /// Caches that gave little are asked as any other.
    pub(crate) ignores_backoff: bool,
    pub(crate) rotation: Rotation,
    pub(crate) stats: ScanStats,
}

/// The results of a reclaim.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScanStats {
    pub(crate) scanned: u64,
    /// Slots that another thread scans, for no longer than a call may take, and slots with a shrinker that could not go on or
    /// could not tell how much it holds.
    pub(crate) busy: u64,
    /// All waits of the group were ended while its thread waited for a slot.
    pub(crate) is_called_off: bool,
    /// Bytes were spared that `low` protects.
    pub(crate) spared_low: bool,
    /// Marks moved meanwhile, so the round may have missed a cache.
    pub(crate) marks_moved: bool,
    /// A cache was emptied by others between its count and its scan. It may be full again.
    pub(crate) was_emptied: bool,
}

impl<'a> ScanControl<'a> {
    /// For a reclaim in `top`, at the last priority.
    pub(crate) fn new(
        top: &'static Node,
        credit: &'a ReclaimCredit,
        bytes: u64,
        spares_low: bool,
    ) -> ScanControl<'a> {
        ScanControl {
            bytes,
            deadline: None,
            end: None,
            may_wait: credit.may_wait(),
            credit,
            sparing: Sparing::new(top, credit.requester(), spares_low),
            waiter: None,
            priority: 0,
            class: 0,
            explores: false,
            ignores_backoff: false,
            rotation: Rotation::default(),
            stats: ScanStats::default(),
        }
    }

    /// Whether enough is freed.
    pub(crate) fn is_done(&self) -> bool {
        self.credit.freed() >= self.bytes
    }

    /// Returns whether the walk goes on after a scan.
    pub(crate) fn goes_on(&self) -> bool {
        !self.is_done() && (!self.explores || self.stats.scanned < EXPLORED_MOST)
    }

    /// Whether it is to end. Read after a step that may have taken long.
    #[inline(always)]
    pub(crate) fn is_late(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    pub(crate) fn reclaimed(&self) -> Reclaimed {
        Reclaimed { bytes: self.credit.freed(), scans: self.stats.scanned, busy: self.stats.busy }
    }
}

/// Whether a shrinker may have anything in `top` or below.
pub(crate) fn is_any(top: &'static Node) -> bool {
    let registry = top.shared().shrinkers();
    let is_any = |shrinkers: &GroupShrinkers| {
        let seen = registry.marks_now();
        (0..CLASSES).any(|class| shrinkers.is_any(class)) || !registry.is_unmoved(seen)
    };
    registry.is_any() && top.shrinkers().is_some_and(is_any)
}

/// Makes one round in `top`: all priorities, until enough is freed. Returns the control with its results.
pub(crate) fn round<'c>(top: &'static Node, mut control: ScanControl<'c>) -> ScanControl<'c> {
    control.rotation = top.shrinkers().map_or_else(Rotation::default, GroupShrinkers::next_rotation);
    let registry = top.shared().shrinkers();
    let mut walk = Walk::new(control);
    if walk.control.rotation.explores() {
        walk.control.explores = true;
        let _ = (0..CLASSES).all(|class| walk.pass(top, EXPLORED, class));
        walk.control.explores = false;
        if walk.control.is_done() || walk.control.is_late() {
            return walk.control;
        }
    }
    for priority in (0..=PRIORITIES).rev() {
        // The last priority asks every cache, so it is the one that must miss none.
        let seen = registry.marks_now();
        if !(least_class(priority)..CLASSES).rev().all(|class| walk.pass(top, priority, class)) {
            return walk.control;
        }
        walk.control.stats.marks_moved = !registry.is_unmoved(seen);
    }
    walk.control
}

/// Has shrinkers in `top` and below give back `bytes`, or as much as they have until the deadline.
pub(crate) fn reclaim(
    top: &'static Node,
    purpose: Purpose,
    bytes: u64,
    deadline: Option<Instant>,
) -> Reclaimed {
    if bytes == 0 || !is_any(top) {
        return Reclaimed::default();
    }
    let Some(credit) = ReclaimCredit::begin(top, purpose) else { return Reclaimed::default() };
    let control = ScanControl { deadline, end: deadline, ..ScanControl::new(top, &credit, bytes, true) };
    let mut control = round(top, control);
    if control.stats.spared_low && !control.is_done() && !control.is_late() {
        control.sparing = Sparing::new(top, credit.requester(), false);
        control = round(top, control);
    }
    control.reclaimed()
}
