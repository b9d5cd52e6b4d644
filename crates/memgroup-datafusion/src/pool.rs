//! The pool of one query: each growth is a charge to the query's group.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{DataFusionError, Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, human_readable_size,
};
use memgroup::{BYTES_MAX, Charge, ChargeError, Effort, Group, GroupId, Hierarchy};

use crate::consumers::{ConsumerReport, Consumers, Place};

/// Consumers that an error names.
const NAMED: usize = 3;

/// A DataFusion [`MemoryPool`] that charges all its bytes to a group.
///
/// # Concurrency
/// A growth or shrinkage is the engine's charge or uncharge and an atomic addition to the consumer's own figures. It takes no lock and runs no
/// foreign code: no shrinker, no kill hook ([`Effort::Count`]). A growth at a limit also lists the consumers, with a lock.
///
/// # Panics
/// [`MemoryPool::grow`] panics where the bytes of a group would exceed [`BYTES_MAX`].
pub struct GroupPool {
    hierarchy: Hierarchy,
    group: Group,
    id: GroupId,
    consumers: Consumers,
    /// Bytes up to which a consumer that can spill grows without a look at the others: half a share, as it was at the last look.
    line: AtomicUsize,
}

impl GroupPool {
    /// A pool that charges `group` of `hierarchy`.
    ///
    /// # Panics
    /// The group is not of this hierarchy.
    pub fn new(hierarchy: &Hierarchy, group: &Group) -> GroupPool {
        let id = group.id();
        assert!(
            hierarchy.group(id).is_some_and(|found| found.path() == group.path()),
            "a pool of group {}: it is not of this hierarchy",
            group.path()
        );
        GroupPool {
            hierarchy: hierarchy.clone(),
            group: group.clone(),
            id,
            consumers: Consumers::new(),
            line: AtomicUsize::new(0),
        }
    }

    /// The group that is charged.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The consumers that are registered now, in the order of their registration.
    pub fn consumers(&self) -> Vec<ConsumerReport> {
        self.consumers.list()
    }

    /// Bytes that the query could hold in all now, at every level of the tree; `None` where no limit holds.
    fn most(&self, reserved: usize) -> Option<usize> {
        let headroom = self.group.headroom();
        // Without a limit the headroom is the room of a counter.
        let is_limited = headroom < BYTES_MAX / 2;
        is_limited.then_some(reserved.saturating_add(headroom as usize))
    }

    /// The even share of each consumer that can spill, of all that those that cannot spill do not hold.
    #[cold]
    fn share(&self) -> usize {
        let list = self.consumers.list();
        let reserved = list.iter().map(|consumer| consumer.held).sum();
        let Some(most) = self.most(reserved) else {
            return usize::MAX;
        };
        let kept: usize =
            list.iter().filter(|consumer| !consumer.can_spill).map(|consumer| consumer.held).sum();
        let sharing = list.iter().filter(|consumer| consumer.can_spill).count();
        most.saturating_sub(kept) / sharing.max(1)
    }

    /// Whether a consumer that can spill has more to write to disk than it asks for, and would hold more than its share.
    ///
    /// One with less has just begun, or has spilled: refused, it would fail.
    #[inline]
    fn spills(&self, held: usize, additional: usize) -> bool {
        let after = held.saturating_add(additional);
        // ORDERING: Relaxed, here and below; a hint by itself.
        if held <= additional || after <= self.line.load(Ordering::Relaxed) {
            return false;
        }
        let share = self.share();
        self.line.store(share / 2, Ordering::Relaxed);
        after > share
    }

    #[inline]
    fn keep(&self, place: Option<&Place>, charge: Charge, bytes: usize) {
        // The bytes are uncharged by the group's id.
        charge.into_parts();
        if let Some(place) = place {
            place.add(bytes);
        }
    }

    /// The error of a refused growth, in DataFusion's words.
    #[cold]
    fn refusal(
        &self,
        reservation: &MemoryReservation,
        additional: usize,
        by: Option<&ChargeError>,
    ) -> DataFusionError {
        // ORDERING: Relaxed; a hint by itself. Memory is scarce now: the next growth looks at all.
        self.line.store(0, Ordering::Relaxed);
        let mut list = self.consumers();
        let reserved: usize = list.iter().map(|consumer| consumer.held).sum();
        let consumer = reservation.consumer();
        let held = list.iter().find(|known| known.id == consumer.id()).map_or(0, |known| known.held);
        let left = self.most(reserved).map_or_else(
            || "without a limit".to_owned(),
            |most| format!("{} left", human_readable_size(most.saturating_sub(reserved))),
        );
        let reason = by.map_or_else(
            || {
                format!(
                    "it can spill, and would hold more than its even share in group {}",
                    self.group.path()
                )
            },
            ToString::to_string,
        );
        list.sort_by_key(|known| std::cmp::Reverse(known.held));
        let top: Vec<String> = list
            .iter()
            .take(NAMED)
            .map(|known| {
                let can = if known.can_spill { "can spill" } else { "cannot spill" };
                format!(
                    "{}#{} ({can}) holds {}, at most {}",
                    known.name,
                    known.id,
                    human_readable_size(known.held),
                    human_readable_size(known.most)
                )
            })
            .collect();
        resources_datafusion_err!(
            "Failed to allocate additional {} for {} with {} already allocated by it, {left}: {reason}. Top memory consumers: {}",
            human_readable_size(additional),
            consumer.name(),
            human_readable_size(held),
            top.join("; ")
        )
    }
}

impl MemoryPool for GroupPool {
    fn name(&self) -> &str {
        "memgroup"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.consumers.enter(consumer);
        // ORDERING: Relaxed; a hint by itself. The next growth looks at the new consumer.
        self.line.store(0, Ordering::Relaxed);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.consumers.leave(consumer);
        // ORDERING: as above.
        self.line.store(0, Ordering::Relaxed);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        let place = self.consumers.place(reservation.consumer().id());
        match self.group.charge_forced(additional as u64) {
            Ok(charge) => self.keep(place, charge, additional),
            Err(error) => panic!("failed to {error}"),
        }
    }

    #[inline]
    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        if let Some(place) = self.consumers.place(reservation.consumer().id()) {
            place.take(shrink);
        }
        let charge = self.hierarchy.charge_from_parts(self.id, shrink as u64);
        drop(charge.expect("the pool's handle keeps the group, a removed one too"));
    }

    #[inline]
    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer();
        let place = self.consumers.place(consumer.id());
        if consumer.can_spill() && place.is_some_and(|place| self.spills(place.held(), additional)) {
            return Err(self.refusal(reservation, additional, None));
        }
        match self.group.try_charge_by(additional as u64, Effort::Count) {
            Ok(charge) => {
                self.keep(place, charge, additional);
                Ok(())
            }
            Err(error) => Err(self.refusal(reservation, additional, Some(&error))),
        }
    }

    fn reserved(&self) -> usize {
        self.consumers.list().iter().map(|consumer| consumer.held).sum()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.most(self.reserved()).map_or(MemoryLimit::Infinite, MemoryLimit::Finite)
    }
}

impl fmt::Display for GroupPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memgroup(group: {}, used: {})", self.group.path(), human_readable_size(self.reserved()))
    }
}

impl fmt::Debug for GroupPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupPool")
            .field("group", &self.group.path())
            .field("consumers", &self.consumers())
            .finish()
    }
}
