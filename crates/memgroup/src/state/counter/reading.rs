//! Reading: the state of a counter as a charge saw it.

use crate::base::limit::BYTES_MAX;
use crate::state::counter::{OFFLINE, OVER, usage_of};

/// The state of a counter at one instant: usage and the limit in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) usage: u64,
    pub(crate) max: u64,
    pub(crate) offline: bool,
    pub(crate) over: bool,
    /// The bytes that the charge must leave free for groups within their protection
    /// (`protect::reserve`).
    pub(crate) reserved: u64,
    /// Whether the limit is a dry run. Set if the charge does not fit, and by `read`.
    pub(crate) is_dry_run: bool,
    /// Whether the limit is the group's fair share of the one above (`counter::share`).
    pub(crate) is_share: bool,
    /// The most bytes of the usage that are prepaid (I7). Set by a refusal; exact about the
    /// instant of a final one.
    pub(crate) prepaid_most: u64,
}

impl Reading {
    pub(super) fn of(word: u64, max: u64) -> Reading {
        let (offline, over) = (word & OFFLINE != 0, word & OVER != 0);
        Reading {
            usage: usage_of(word),
            max,
            offline,
            over,
            reserved: 0,
            is_dry_run: false,
            is_share: false,
            prepaid_most: 0,
        }
    }

    /// Returns the highest usage that the charge may reach.
    pub(crate) fn most(self) -> u64 {
        self.max.min(BYTES_MAX).saturating_sub(self.reserved)
    }

    /// Returns whether only a dry run stands in the way of a charge.
    pub(crate) fn is_only_dry_run(self, bytes: u64) -> bool {
        self.is_dry_run && !self.offline && bytes <= BYTES_MAX - self.usage
    }

    /// Returns whether such a charge passes because no stock is left that could serve it.
    pub(crate) fn lets_pass(self, bytes: u64) -> bool {
        self.over && self.is_only_dry_run(bytes)
    }

    /// Returns whether a charge would not fit even if every prepaid byte went back to the
    /// counters.
    pub(crate) fn is_beyond_stocks(self, bytes: u64) -> bool {
        self.offline
            || self.usage.saturating_sub(self.prepaid_most) > self.most().saturating_sub(bytes)
            || bytes > self.most()
    }

    /// Returns the number of bytes that could still be charged.
    pub(crate) fn headroom(self) -> u64 {
        if self.offline { 0 } else { self.most().saturating_sub(self.usage) }
    }

    /// Returns the usage at which a level that is marked OVER has stocks again (`control::dry_run`
    /// B2).
    pub(crate) fn reopens_at(self) -> u64 {
        if self.is_dry_run { self.max - self.max / 64 } else { self.max }
    }
}
