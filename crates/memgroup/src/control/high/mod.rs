//! High: a limit that slows down. See [`guide::high`](crate::guide::high).

mod delay;
mod notice;
mod throttle;

use memgroup_sync::atomic::{Ordering, fence};
use memgroup_sync::grace;
pub(crate) use notice::{after_charge, after_forced_charge};
pub use throttle::{Throttle, ThrottleEnd, Throttled};

use crate::base::limit::{self, LimitError, UNLIMITED};
use crate::control::freeze;
use crate::reclaim::{self, Purpose, credit};
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// Rounds in a row that leave usage no lower, after which `set_high` asks shrinkers no more.
const FRUITLESS_MOST: u32 = 16;

/// Usage of one level, and the limit it is compared with.
#[derive(Clone, Copy, Debug)]
struct Level {
    usage: u64,
    limit: u64,
}

impl Level {
    /// Compared with `high` alone.
    fn of_high(node: &Node) -> Level {
        Level { usage: node.counter.usage(), limit: node.counter.high() }
    }

    /// Compared with the lower of `high` and `max`: forced charges exceed both.
    fn of_both(node: &Node) -> Level {
        let seen = node.counter.read();
        // A dry run delays no thread.
        let max = if seen.is_dry_run { UNLIMITED } else { seen.max };
        Level { usage: seen.usage, limit: max.min(node.counter.high()) }
    }

    fn above(self) -> u64 {
        self.usage.saturating_sub(self.limit)
    }
}

/// Returns prepaid bytes of the subtree to the counters, as many as are above the limit: no group uses them yet.
fn drain_stocks(top: &'static Node) {
    freeze::drain(top, Level::of_high(top).above());
}

/// Whether the thread must not wait: it is in a shrinker's call, or in a read section, which other threads wait for.
fn must_not_wait() -> bool {
    credit::is_reclaiming() || grace::inside()
}

/// Has shrinkers of the subtree free the bytes above `high`, and waits for them where they allow it. It ends when usage is within the limit, or
/// shrinkers give nothing more. It also ends when the group is removed, or other threads charge as fast as bytes are freed.
fn bring_down(node: &'static Node) {
    let (mut least, mut fruitless) = (u64::MAX, 0);
    while fruitless < FRUITLESS_MOST && !node.counter.is_offline() {
        if Level::of_high(node).above() > 0 {
            drain_stocks(node);
        }
        let above = Level::of_high(node).above();
        if above == 0 {
            return;
        }
        let given = reclaim::reclaim(node, Purpose::High { may_wait: true }, above, None);
        if given.bytes == 0 && given.busy == 0 {
            return;
        }
        fruitless = if above < least { 0 } else { fruitless + 1 };
        least = least.min(above);
    }
}

/// The soft limit.
impl Group {
    /// The soft limit, in bytes; `None` if there is none: `memory.high`.
    pub fn high(&self) -> Option<u64> {
        limit::given(self.node().counter.high())
    }

    /// Sets the soft limit, and has shrinkers of the group and of those below free the bytes above it, as a write to `memory.high` does. `None`
    /// takes the limit away.
    ///
    /// No charge fails because of it. From now on a charge that takes the group above `high` has shrinkers free memory on its own thread. The bytes
    /// that stay above are a [debt](Group::owed) of the group that charged.
    ///
    /// The limit is in force before any shrinker is asked, and may be set under load. Then the call may wait, as [`reclaim`](Group::reclaim) does;
    /// within a shrinker's call or a read section it asks no shrinker. It returns with usage above the limit if shrinkers give nothing more,
    /// or if others charge as fast as bytes are freed. A charge under way at that moment may go unnoticed; the next one does not.
    ///
    /// # Errors
    /// The limit is more than a counter holds (256 TiB).
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let etl = hierarchy.create("/etl").unwrap();
    /// assert_eq!(etl.high(), None);
    /// etl.set_high(1 << 20).unwrap();
    /// let pinned = etl.try_charge(2 << 20).unwrap();
    /// assert_eq!((etl.events().high, etl.owed()), (1, 1 << 20));
    /// # drop(pinned);
    /// ```
    pub fn set_high(&self, high: impl Into<Option<u64>>) -> Result<(), LimitError> {
        let high = limit::stored(high.into(), "high", || self.path())?;
        let node = self.node();
        node.counter.set_high(high);
        if high == UNLIMITED {
            return Ok(());
        }
        node.shared().highs.get_or_init(|| ());
        node.high.set_fruitful();
        // ORDERING: SeqCst fence; puts the new limit before the look at usage, as far as it can. A charge is missed only if it was under way (B2).
        fence(Ordering::SeqCst);
        if !must_not_wait() {
            bring_down(node);
        }
        Ok(())
    }

    /// The debt of this group. These are unpaid bytes that its charges took while one of its levels was above its `high`, or its `max` by force.
    /// Up to 64 KiB a slot are owed as soon as they are prepaid; a drain takes those that it finds off the debt.
    /// [`throttle`](Group::throttle) and [`take_throttle`](Group::take_throttle) pay for them. Groups below have debts of their own.
    pub fn owed(&self) -> u64 {
        self.node().high.debt.bytes()
    }
}
