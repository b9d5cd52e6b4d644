//! Scan control: what a reclaim is to free, where its walk is, and what it has done so far.

use std::time::Instant;

use crate::counter::protect::Sparing;
use crate::reclaim::credit::ReclaimCredit;
use crate::reclaim::group::Rotation;
use crate::tree::node::Node;

/// The result of a reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Bytes that this thread uncharged in the group and below.
    pub bytes: u64,
    /// Times that a shrinker was asked to give back.
    pub scans: u64,
    /// Times that a shrinker could not go on, could not tell how much it holds, or that another
    /// thread was scanning.
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
    /// The charging group, if its thread waits for slots that others scan (`queue`). It does so at
    /// the last priority.
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
    /// Slots that another thread scans, for no longer than a call may take, and slots with a
    /// shrinker that could not go on or could not tell how much it holds.
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

    /// Returns whether enough is freed.
    pub(crate) fn is_done(&self) -> bool {
        self.credit.freed() >= self.bytes
    }

    /// Returns whether the walk goes on after a scan.
    pub(crate) fn goes_on(&self) -> bool {
        !self.is_done() && (!self.explores || self.stats.scanned < EXPLORED_MOST)
    }

    /// Returns whether it is to end. Read after a step that may have taken long.
    #[inline(always)]
    pub(crate) fn is_late(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    pub(crate) fn reclaimed(&self) -> Reclaimed {
        Reclaimed { bytes: self.credit.freed(), scans: self.stats.scanned, busy: self.stats.busy }
    }
}
