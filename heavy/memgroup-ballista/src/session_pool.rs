//! The memory pool of one session on one executor.

use std::fmt;

use datafusion::common::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use memgroup::{Group, Hierarchy, OwnedGroup};
use memgroup_datafusion::GroupPool;

/// A [`GroupPool`] that owns its session's group. Dropping the pool removes the group. The last reservation is gone by then.
#[derive(Debug)]
pub struct SessionPool {
    // The order matters: the pool's handle goes before the group's owner.
    pool: GroupPool,
    _group: OwnedGroup,
}

impl SessionPool {
    pub(crate) fn new(hierarchy: &Hierarchy, group: OwnedGroup) -> SessionPool {
        SessionPool { pool: GroupPool::new(hierarchy, &group), _group: group }
    }

    /// The least limit of its group and those above, in bytes; `None` where none has one.
    pub(crate) fn limit(&self) -> Option<usize> {
        let levels = std::iter::successors(Some(self.pool.group().clone()), Group::parent);
        levels.filter_map(|level| level.max()).min().and_then(|bytes| usize::try_from(bytes).ok())
    }

    /// The pool itself.
    pub fn pool(&self) -> &GroupPool {
        &self.pool
    }
}

impl MemoryPool for SessionPool {
    fn name(&self) -> &str {
        self.pool.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.pool.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.pool.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.pool.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}

impl fmt::Display for SessionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}
