//! High: a limit that slows a group down. See [`guide::high`](crate::guide::high).

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

/// How many rounds in a row may leave usage no lower before `set_high` stops asking shrinkers.
const FRUITLESS_MOST: u32 = 16;

/// The usage of one level, and the limit that it's compared with.
#[derive(Clone, Copy, Debug)]
struct Level {
    usage: u64,
    limit: u64,
}

impl Level {
    /// The level compared with `high` alone.
    fn of_high(node: &Node) -> Level {
        Level { usage: node.counter.usage(), limit: node.counter.high() }
    }

    /// The level compared with the lower of `high` and `max`, because forced charges exceed both.
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

/// Returns as many prepaid bytes of the subtree to the counters as are above the limit, because no
/// group uses them yet.
fn drain_stocks(top: &'static Node) {
    freeze::drain(top, Level::of_high(top).above());
}

/// Returns whether the thread must not wait because it is in a shrinker's call, or in a read
/// section that other threads wait for.
fn must_not_wait() -> bool {
    credit::is_reclaiming() || grace::inside()
}

/// Has shrinkers of the subtree free the bytes above `high`, and waits for them if they allow it.
/// Ends when usage is within the limit, when shrinkers release nothing more, when the group is
/// removed, or when other threads charge as fast as bytes are freed.
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
    /// Returns the soft limit in bytes, or `None` if there is none. This is `memory.high` of
    /// cgroup v2.
    pub fn high(&self) -> Option<u64> {
        limit::given(self.node().counter.high())
    }

    /// Sets the soft limit, and has shrinkers of the group's subtree free the bytes above it, as a
    /// write to `memory.high` does. `None` removes the limit.
    ///
    /// No charge fails because of it. From now on a charge that takes the group above `high` has
    /// shrinkers free memory on its own thread. The bytes that stay above are a
    /// [debt](Group::owed) of the group that charged.
    ///
    /// The limit is in force before any shrinker is asked, and may be set under load. Then the
    /// call may wait, as [`reclaim`](Group::reclaim) does. Within a shrinker's call or a read
    /// section it asks no shrinker. It returns although usage is above the limit if shrinkers
    /// release nothing more, or if others charge as fast as bytes are freed. A charge under
    /// way at that moment may go unnoticed, but the next one doesn't.
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
        node.rare().high.set_fruitful();
        // ORDERING: SeqCst fence, between the new limit and the reads of usage. It has no partner:
        // a charge that misses the new limit was under way (B2). Without it, usage could be read
        // before the limit is visible, and charges made between the two would be missed by both.
        fence(Ordering::SeqCst);
        if !must_not_wait() {
            bring_down(node);
        }
        Ok(())
    }

    /// Returns the group's debt: the unpaid bytes that its charges took while one of its levels
    /// was above its `high`, or above its `max` by force. Up to 64 KiB a slot are owed as soon
    /// as they are prepaid, and a drain takes those that it finds off the debt.
    /// [`throttle`](Group::throttle) and [`take_throttle`](Group::take_throttle) pay for the debt.
    /// Each group below has a debt of its own.
    pub fn owed(&self) -> u64 {
        self.node().rare().high.debt.bytes()
    }
}
