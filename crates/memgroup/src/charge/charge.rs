//! Charge: the proof that bytes are accounted for.

use core::fmt;
use core::mem::ManuallyDrop;

use crate::base::deadline::Deadline;
use crate::base::effort::{Effort, Means};
use crate::base::id::GroupId;
use crate::charge::slow::{Ask, charge_slow_path};
use crate::charge::wait::charge_until;
use crate::control::{aftermath, fault_injection, high, over_limit, waiters};
use crate::counter::chain::{self, Until};
use crate::state::stats::builtin::memory;
use crate::stats::update::count;
use crate::stock::Stock;
use crate::tree::error::ChargeError;
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// Bytes charged to a group and all its ancestors; dropping it uncharges them.
///
/// A charge is two words, `Send` and `Sync`, and bound to no lifetime, so it can be stored beside
/// the memory it accounts for. It keeps its group's counters, even after the group was removed,
/// and costs no reference count.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let (a, b) = (hierarchy.create("/a").unwrap(), hierarchy.create("/b").unwrap());
/// let mut charge = a.try_charge(1000).unwrap();
/// charge.try_grow(500).unwrap();
/// let part = charge.split(300);
/// assert_eq!((charge.bytes(), part.bytes()), (1200, 300));
/// charge.try_move_to(&b).unwrap();
/// assert_eq!((a.usage_exact(), b.usage_exact()), (300, 1200));
/// assert_eq!(hierarchy.root().usage_exact(), 1500);
/// ```
#[must_use = "dropping a charge uncharges its bytes"]
pub struct Charge {
    node: &'static Node,
    bytes: u64,
}

/// The methods that most programs need.
impl Charge {
    /// Charges `bytes` more, as [`Group::try_charge`] does.
    ///
    /// # Errors
    /// The same as those of [`Group::try_charge`]. This charge stays as it was.
    #[inline]
    pub fn try_grow(&mut self, bytes: u64) -> Result<(), ChargeError> {
        self.grow_by(bytes, Node::charge)
    }

    /// Charges `bytes` more, as [`Group::try_charge_by`] does.
    ///
    /// # Errors
    /// The same as those of [`Group::try_charge_by`]. This charge stays as it was.
    #[inline]
    pub fn try_grow_by(&mut self, bytes: u64, effort: Effort) -> Result<(), ChargeError> {
        self.grow_by(bytes, |node, bytes| node.charge_by(bytes, Means::with(effort)))
    }

    /// Uncharges `bytes` of this charge.
    ///
    /// # Panics
    /// If it has fewer bytes. Nothing is uncharged then.
    #[inline]
    pub fn shrink(&mut self, bytes: u64) {
        self.part_with(bytes, "shrink");
        self.node.uncharge(bytes);
    }
}

/// Bytes and group, read.
impl Charge {
    /// Returns the bytes that it accounts for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the group that the bytes are charged to.
    pub fn group(&self) -> Group {
        Group::pinned(self.node)
    }
}

/// Growth at any limit, parts and moves.
impl Charge {
    /// Charges `bytes` more at any limit, as [`Group::charge_forced`] does.
    ///
    /// # Errors
    /// The same as those of [`Group::charge_forced`]. This charge stays as it was.
    pub fn grow_forced(&mut self, bytes: u64) -> Result<(), ChargeError> {
        self.grow_by(bytes, Charge::forced)
    }

    /// Charges `bytes` more, and waits for room until `deadline`, as [`Group::charge_until`] does.
    /// The charge keeps its bytes while it waits, so several charges that grow may wait for each
    /// other until their deadlines.
    ///
    /// # Errors
    /// The same as those of [`Group::charge_until`]. This charge stays as it was.
    pub fn grow_until(&mut self, bytes: u64, deadline: impl Into<Deadline>) -> Result<(), ChargeError> {
        let deadline = deadline.into().instant_or_far();
        self.grow_by(bytes, |node, bytes| charge_until(node, bytes, deadline))
    }

    /// Splits `bytes` off into a charge of their own, without counting anything again.
    ///
    /// # Panics
    /// If it has fewer bytes.
    pub fn split(&mut self, bytes: u64) -> Charge {
        self.part_with(bytes, "split");
        Charge { node: self.node, bytes }
    }

    /// Takes over all bytes of another charge of the same group, without counting anything again.
    ///
    /// # Errors
    /// Returns `other` if it belongs to another group.
    pub fn merge(&mut self, other: Charge) -> Result<(), Charge> {
        if !std::ptr::eq(self.node, other.node) {
            return Err(other);
        }
        self.add(ManuallyDrop::new(other).bytes);
        Ok(())
    }

    /// Moves the bytes to another group of the same hierarchy. They are counted at every moment,
    /// because the target's own levels are charged before the source's are uncharged. The levels
    /// above both groups are not touched, so fair shares and reservations there don't change
    /// either.
    ///
    /// # Errors
    /// A level of the target refuses, or the target was removed. This charge stays as it
    /// was.
    ///
    /// # Panics
    /// If the target belongs to another hierarchy.
    pub fn try_move_to(&mut self, target: &Group) -> Result<(), ChargeError> {
        let (from, to) = (self.node, target.node());
        assert!(
            std::ptr::eq(from.shared(), to.shared()),
            "cannot move a charge to a group of another hierarchy"
        );
        if std::ptr::eq(from, to) {
            return Ok(());
        }
        if self.bytes == 0 {
            to.charge(0)?;
            self.node = to;
            drop(Group::adopted(from));
            return Ok(());
        }
        fault_injection::draw(to, self.bytes)?;
        let common = chain::lowest_common(from, to);
        let until = common.map_or(Until::Top, Until::Below);
        if common.is_none_or(|common| !std::ptr::eq(common, to)) {
            charge_slow_path(to, Ask::exact(self.bytes, until))?;
        } else if to.counter.is_offline() {
            return Err(ChargeError::of(to, to.counter.read(), self.bytes));
        }
        self.node = to;
        if common.is_none_or(|common| !std::ptr::eq(common, from)) {
            aftermath::uncharge(from, until, self.bytes);
        }
        // A level above both may keep fewer bytes free now, although nothing was uncharged there.
        common.into_iter().flat_map(chain::levels).for_each(|level| _ = waiters::serve(level));
        Ok(())
    }

    /// Gives up the bytes without uncharging them, for a memory block that stores the two numbers
    /// and passes them to [`Hierarchy::uncharge`](crate::Hierarchy::uncharge) later.
    #[inline]
    pub fn into_parts(self) -> (GroupId, u64) {
        let kept = ManuallyDrop::new(self);
        let parts = (kept.node.group_id(), kept.bytes);
        if kept.bytes == 0 {
            drop(Group::adopted(kept.node));
        }
        parts
    }
}

/// For the crate's own use.
impl Charge {
    /// Owns bytes that are already charged. For zero bytes, the caller must have taken a count on
    /// the node.
    #[inline(always)]
    pub(crate) fn owning(node: &'static Node, bytes: u64) -> Charge {
        Charge { node, bytes }
    }

    /// Zero bytes of a group. They keep it as a handle does.
    pub(crate) fn empty(group: &Group) -> Charge {
        group.node().pin();
        Charge { node: group.node(), bytes: 0 }
    }

    /// Charges `bytes` at any limit: from prepaid bytes if possible, or else as a debt of the
    /// levels that exceed their limits by it.
    pub(crate) fn forced(node: &'static Node, bytes: u64) -> Result<(), ChargeError> {
        if bytes == 0 {
            node.pin();
            return Ok(());
        }
        let stock = node.stocks(bytes).then(|| Stock::of(node, node.shared().source.current())).flatten();
        if stock.is_some_and(|stock| stock.spend(bytes)) {
            count(node, memory::CHARGES, 1);
            return Ok(());
        }
        let refused = match aftermath::charge_forced(node, bytes, u64::MAX, false) {
            Ok(()) => {
                count(node, memory::FORCED, 1);
                over_limit::mark_levels(node);
                high::after_forced_charge(node, bytes);
                return Ok(());
            }
            Err(refused) => refused,
        };
        if !refused.seen.offline {
            return Err(ChargeError::of(refused.node, refused.seen, bytes));
        }
        // In a removed group, usage rises only under the tree lock (`node` I3).
        let tree = node.shared().tree.lock();
        aftermath::charge_forced(node, bytes, u64::MAX, true)
            .map_err(|refused| ChargeError::of(refused.node, refused.seen_online(), bytes))?;
        drop(tree);
        count(node, memory::FORCED, 1);
        over_limit::mark_levels(node);
        Ok(())
    }

    /// Has `charge` make a charge of `bytes` for this charge's group, and adds them to this
    /// charge.
    #[inline]
    pub(crate) fn grow_by(
        &mut self,
        bytes: u64,
        charge: impl FnOnce(&'static Node, u64) -> Result<(), ChargeError>,
    ) -> Result<(), ChargeError> {
        if bytes > 0 {
            charge(self.node, bytes)?;
            self.add(bytes);
        }
        Ok(())
    }

    /// Takes over what another charge of the group owned. If that has no bytes, it owns a count on
    /// the node.
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64) {
        let one_is_empty = self.bytes == 0 || bytes == 0;
        self.bytes += bytes;
        if one_is_empty {
            drop(Group::adopted(self.node));
        }
    }

    /// Gives up what a charge of `bytes` owns, so that the caller can take it over.
    #[inline]
    fn part_with(&mut self, bytes: u64, verb: &str) {
        assert!(bytes <= self.bytes, "cannot {verb} {bytes} bytes off a charge of {}", self.bytes);
        self.bytes -= bytes;
        if self.bytes == 0 || bytes == 0 {
            self.node.pin();
        }
    }
}

impl Drop for Charge {
    #[inline(always)]
    fn drop(&mut self) {
        self.node.uncharge(self.bytes);
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge").field("group", &self.group().path()).field("bytes", &self.bytes).finish()
    }
}
