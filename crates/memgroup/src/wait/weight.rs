//! Weight: whose waiting charges come first.

use core::fmt;

use memgroup_sync::atomic::Ordering;

use crate::group::Group;

/// What a group has unless told otherwise.
pub(super) const DEFAULT: u32 = 100;
const LARGEST: u32 = 10_000;

/// A weight that no group can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightError {
    /// The group that was to have it.
    pub group: String,
    /// What was asked for.
    pub asked: u32,
}

impl fmt::Display for WeightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "give group {} the weight {}: allowed are 1 to {LARGEST}", self.group, self.asked)
    }
}

impl std::error::Error for WeightError {}

impl Group {
    /// Sets the weight, 1 to 10,000; 100 unless told otherwise, as `cpu.weight` has it. Of charges that wait at the same group those of heavier groups are served
    /// first, whatever their number; it is the group's own and says nothing of the groups below. Those that wait now change places at once.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// assert_eq!(tenant.weight(), 100);
    /// tenant.set_weight(500).unwrap();
    /// assert!(tenant.set_weight(0).unwrap_err().to_string().contains("/tenant the weight 0: allowed are 1 to 10000"));
    /// assert_eq!(tenant.weight(), 500);
    /// ```
    ///
    /// # Errors
    /// It is 0, or more than 10,000; the group keeps the one it has.
    pub fn set_weight(&self, weight: u32) -> Result<(), WeightError> {
        if !(1..=LARGEST).contains(&weight) {
            return Err(WeightError { group: self.path(), asked: weight });
        }
        let node = self.node();
        // Stored under the lock: who comes to the line finds it there, or is in the line already.
        let mut line = node.shared.waits.line.lock();
        // ORDERING: Relaxed; under the lock of the line, or a number for people.
        node.control.waiting.weight.store(weight, Ordering::Relaxed);
        line.reorder(node, weight);
        Ok(())
    }

    /// The [weight](Group::set_weight).
    pub fn weight(&self) -> u32 {
        self.node().control.waiting.weight()
    }
}
