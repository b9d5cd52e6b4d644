//! The figures of the tenants on one executor.

use memgroup::Hierarchy;
use serde::{Deserialize, Serialize};

use crate::tenants::TENANTS;

/// The figures of one tenant on one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantUsage {
    /// The name of the tenant's group.
    pub tenant: String,
    /// Bytes that its sessions hold.
    pub usage_bytes: u64,
    /// The most bytes at one time. Prepaid bytes are a part.
    pub peak_bytes: u64,
    /// The tenant's limit on this executor; `None` for none.
    pub max_bytes: Option<u64>,
    /// Charges that the tenant's limit refused.
    pub refusals: u64,
    /// Sessions with a runtime on this executor.
    pub sessions: usize,
}

/// The figures of all tenants on one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorUsage {
    /// The tenants, in the order of their names.
    pub tenants: Vec<TenantUsage>,
}

impl ExecutorUsage {
    /// The figures of the tenants below [`TENANTS`] now.
    pub fn of(hierarchy: &Hierarchy) -> ExecutorUsage {
        let snapshot = hierarchy.snapshot();
        let parent = snapshot.groups.iter().position(|group| group.path == TENANTS);
        let tenants = parent.into_iter().flat_map(|parent| snapshot.children(parent));
        let of_group = |group: &memgroup::GroupSnapshot| TenantUsage {
            tenant: group.name.clone(),
            usage_bytes: group.usage_exact_bytes,
            peak_bytes: group.peak_bytes,
            max_bytes: group.limits.max_bytes,
            refusals: group.refusals,
            sessions: group.descendants,
        };
        ExecutorUsage { tenants: tenants.filter(|group| group.online).map(of_group).collect() }
    }

    /// The figures of one tenant.
    pub fn tenant(&self, name: &str) -> Option<&TenantUsage> {
        self.tenants.iter().find(|tenant| tenant.tenant == name)
    }
}
