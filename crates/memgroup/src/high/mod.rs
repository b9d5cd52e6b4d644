#![doc = include_str!("../../docs/high.md")]

mod debt;
mod delay;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod notice;
mod throttle;

pub(crate) use notice::{charged, forced};

pub use throttle::{Throttle, ThrottleEnd, Throttled};

use memgroup_sync::atomic::{AtomicU64, Ordering, fence};
use memgroup_sync::grace;

use crate::group::Group;
use crate::limit::{LimitError, UNLIMITED};
use crate::node::Node;
use crate::shrink::roster::Standing;
use crate::shrink::{keep, reclaim};
use crate::stock::drain;
use debt::Debt;

/// Tries in a row to get below a limit that leave usage no lower than it was, after which it stays where it is.
const FRUITLESS_MOST: u32 = 16;

/// What a group keeps because of `high`, besides the limit itself (`counter`).
pub(crate) struct Owing {
    pub(crate) debt: Debt,
    /// Usage at which caches gave nothing when they were last asked because of this group's `high`.
    fruitless_at: AtomicU64,
}

impl Owing {
    pub(crate) fn new() -> Owing {
        Owing { debt: Debt::new(), fruitless_at: AtomicU64::new(NEVER) }
    }

    /// For a new group in the place; the caller holds the tree lock.
    pub(crate) fn reset(&self) {
        self.debt.forgive();
        self.ask_again();
    }

    /// Whether caches are to be asked at this usage: not where they gave nothing, until it is another one.
    fn is_fruitful(&self, usage: u64) -> bool {
        // ORDERING: Relaxed; a hint, of which one may be lost.
        let at = self.fruitless_at.load(Ordering::Relaxed);
        at == NEVER || usage.abs_diff(at) >= notice::SLACK_BYTES
    }

    fn was_fruitless(&self, usage: u64) {
        // ORDERING: Relaxed; as in `is_fruitful`.
        self.fruitless_at.store(usage, Ordering::Relaxed);
    }

    fn ask_again(&self) {
        // ORDERING: Relaxed; as in `is_fruitful`.
        self.fruitless_at.store(NEVER, Ordering::Relaxed);
    }
}

/// In `fruitless_at`: no usage.
const NEVER: u64 = u64::MAX;

/// Usage of one level, and what it is measured by.
#[derive(Clone, Copy, Debug)]
struct Level {
    usage: u64,
    limit: u64,
}

impl Level {
    /// Against `high` alone.
    fn of_high(node: &Node) -> Level {
        Level { usage: node.counter.usage(), limit: node.counter.high() }
    }

    /// Against the lower of `high` and `max`: forced charges go above both.
    fn of_both(node: &Node) -> Level {
        let seen = node.counter.read();
        // A limit that only measures slows nobody down.
        let max = if seen.measured { UNLIMITED } else { seen.max };
        Level { usage: seen.usage, limit: max.min(node.counter.high()) }
    }

    fn above(self) -> u64 {
        self.usage.saturating_sub(self.limit)
    }
}

/// The group and every level that is charged with it.
fn levels(node: &'static Node) -> impl Iterator<Item = &'static Node> {
    std::iter::successors(Some(node), |level| level.up())
}

/// Returns what is prepaid in the subtree to the counters: that is nobody's memory yet.
fn drain_stocks(top: &'static Node) {
    if top.shared.has_stock() {
        let drained = drain::counted_in(&top.shared.tree.lock(), top);
        if let Some(roster) = top.roster() {
            roster.drained(drained.stocks);
        }
    }
}

/// Whether the thread may not wait: it is in a shrinker's call, or in a read section, which others wait for.
fn is_inside() -> bool {
    keep::is_reclaiming() || grace::inside()
}

/// Has caches of the subtree give back what is above `high`, waiting for them where they let it. Ends when usage is within the limit, when nothing more is to be had,
/// when the group is removed, or when others charge as fast as it is given back.
fn bring_down(node: &'static Node) {
    if is_inside() {
        return;
    }
    let (mut least, mut fruitless) = (u64::MAX, 0);
    while fruitless < FRUITLESS_MOST && !node.counter.is_offline() {
        if Level::of_high(node).above() > 0 {
            drain_stocks(node);
        }
        let above = Level::of_high(node).above();
        if above == 0 {
            return;
        }
        let given = reclaim::bring_down(node, above, None, true);
        if given.bytes == 0 && given.busy == 0 {
            return;
        }
        fruitless = if above < least { 0 } else { fruitless + 1 };
        least = least.min(above);
    }
}

impl Group {
    /// The soft limit, in bytes; [`UNLIMITED`](crate::UNLIMITED) if there is none: `memory.high`.
    pub fn high(&self) -> u64 {
        self.node().counter.high()
    }

    /// Puts a soft limit in force, under load too, and has caches of the group and of those below it give back what is above it, as a write to `memory.high` does.
    /// A charge never fails because of it: from now on, one that takes the group above `high` has caches give back on its own
    /// thread, and what stays above is a [debt](Group::owed) of the group that charged.
    ///
    /// The limit is in force before anything is asked for. Then it may wait, as [`reclaim`](Group::reclaim) does; from within a shrinker's call or a read section it does not, and nothing is asked for. It
    /// returns with usage still above the limit where nothing more is to be had, or others charge as fast as it is given back. A charge that is
    /// under way meanwhile may go unnoticed; the next one is not.
    ///
    /// # Errors
    /// The limit is more than a counter holds (256 TiB) and not [`UNLIMITED`](crate::UNLIMITED).
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, UNLIMITED};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let etl = hierarchy.create("/etl").unwrap();
    /// assert_eq!(etl.high(), UNLIMITED);
    /// etl.set_high(1 << 20).unwrap();
    /// let pinned = etl.try_charge(2 << 20).unwrap();
    /// assert_eq!((etl.events().high, etl.owed()), (1, 1 << 20));
    /// # drop(pinned);
    /// ```
    pub fn set_high(&self, bytes: u64) -> Result<(), LimitError> {
        let (high, node) = (LimitError::check(bytes)?, self.node());
        node.counter.set_high(high);
        if high == UNLIMITED {
            return Ok(());
        }
        node.shared.highs.get_or_init(|| ());
        node.control.high.ask_again();
        // ORDERING: SeqCst; the new limit precedes the look at usage as far as it can: a charge is missed only if it was under way (B2).
        fence(Ordering::SeqCst);
        bring_down(node);
        Ok(())
    }

    /// Bytes that charges of this group, not of those below it, took while a level of it was above its `high`, or above its `max` by force, and that were not
    /// given back: what [`throttle`](Group::throttle) and [`take_throttle`](Group::take_throttle) make it pay for.
    pub fn owed(&self) -> u64 {
        self.node().control.high.debt.bytes()
    }
}
