//! Queries that give memory for others, and queries that wait for it.

mod admission;
mod asks;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use memgroup::{Config, Group, Hierarchy, SlotSource};
use memgroup_datafusion::GroupPool;

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

struct Database {
    hierarchy: Hierarchy,
    tenants: Group,
}

impl Database {
    /// Tenants below a limit of 100 MiB, without prepaid bytes.
    fn new() -> Database {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let hierarchy = Hierarchy::new(Config::with_slots(slots).stock_cap_bytes(0)).unwrap();
        let tenants = hierarchy.create("/tenants").unwrap();
        tenants.set_max(100 << 20).unwrap();
        Database { hierarchy, tenants }
    }

    /// A pool of a query of this tenant.
    fn pool(&self, tenant: &str, query: &str) -> Arc<GroupPool> {
        Arc::new(self.pool_of(&format!("/tenants/{tenant}/{query}")))
    }

    fn pool_of(&self, path: &str) -> GroupPool {
        let group = self.hierarchy.get_or_create(path).unwrap();
        GroupPool::new(&self.hierarchy, &group)
    }

    /// Memory of a hog that leaves 10 MiB.
    fn hog(&self) -> MemoryReservation {
        let sort = consumer(&self.pool("hog", "1"), "sort", true);
        sort.try_grow(90 * MIB).unwrap();
        sort
    }

    /// The pool of a query with growths that wait.
    fn patient(&self, patience: Duration) -> Arc<GroupPool> {
        Arc::new(self.pool_of("/tenants/small/1").patience(patience))
    }
}

fn consumer(pool: &Arc<GroupPool>, name: &str, can_spill: bool) -> MemoryReservation {
    let pool: Arc<dyn MemoryPool> = Arc::clone(pool) as _;
    MemoryConsumer::new(name).with_can_spill(can_spill).register(&pool)
}

fn text_of(error: &DataFusionError) -> String {
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error:?}");
    error.strip_backtrace()
}
