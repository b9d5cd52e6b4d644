//! The tenants of one executor, and the runtimes of their sessions.
//!
//! ```text
//!   /tenants            all sessions together        limits from the file that all executors have
//!     /alice            one tenant                   limits from the same file
//!       /session-1      one runtime: one session     a pool; removed with the runtime
//!       /session-2
//! ```

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ballista_core::RuntimeProducer;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::SessionConfig;
use memgroup::{Group, Hierarchy, OwnedGroup, TreeSpec};
use memgroup_datafusion::GroupPool;

use crate::error::TenantError;
use crate::options::TenantOptions;

/// The group that holds the tenants' groups.
pub const TENANTS: &str = "/tenants";

/// Reads a tree of groups from a file: JSON if its name ends with `.json`, otherwise TOML.
///
/// # Errors
/// The file cannot be read, or is not a tree of groups.
pub fn read_tree(path: impl AsRef<Path>) -> Result<TreeSpec, TenantError> {
    let path = path.as_ref();
    let text =
        fs::read_to_string(path).map_err(|error| TenantError::Read { path: path.to_owned(), error })?;
    let tree = if path.extension().is_some_and(|extension| extension == "json") {
        serde_json::from_str(&text).map_err(|error| error.to_string())
    } else {
        toml::from_str(&text).map_err(|error| error.to_string())
    };
    tree.map_err(|reason| TenantError::Parse { path: path.to_owned(), reason })
}

/// The tenants of one executor. A clone has the same tenants.
#[derive(Clone)]
pub struct Tenants {
    hierarchy: Hierarchy,
    parent: Group,
    default: Option<String>,
    sessions: Arc<AtomicU64>,
}

impl Tenants {
    /// Applies `tree` to the hierarchy. Each group below [`TENANTS`] is a tenant.
    ///
    /// # Errors
    /// The tree cannot be applied, or has no group [`TENANTS`].
    pub fn new(hierarchy: &Hierarchy, tree: &TreeSpec) -> Result<Tenants, TenantError> {
        hierarchy.apply(tree)?;
        let parent = hierarchy
            .lookup(TENANTS)
            .map_err(|error| TenantError::NoGroup { path: TENANTS.to_owned(), error })?;
        Ok(Tenants { hierarchy: hierarchy.clone(), parent, default: None, sessions: Arc::default() })
    }

    /// Sets the tenant of sessions that name none. A session that names an unknown tenant still
    /// fails.
    ///
    /// # Errors
    /// The tree has no group for this tenant.
    pub fn with_default(self, tenant: &str) -> Result<Tenants, TenantError> {
        let (path, found) = self.find(tenant);
        found.map_err(|error| TenantError::NoGroup { path, error })?;
        Ok(Tenants { default: Some(tenant.to_owned()), ..self })
    }

    /// The hierarchy that holds the tenants.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// The group that holds the tenants' groups.
    pub fn parent(&self) -> &Group {
        &self.parent
    }

    fn find(&self, tenant: &str) -> (String, Result<Group, memgroup::GroupError>) {
        let path = format!("{TENANTS}/{tenant}");
        // A name with a slash would name a session's group.
        let found = if tenant.contains('/') {
            Err(memgroup::GroupError::InvalidName {
                name: tenant.to_owned(),
                reason: "a tenant's name has no slash",
            })
        } else {
            self.hierarchy.lookup(&path)
        };
        (path, found)
    }

    /// Makes the pool of a new session, in a group of its own below the tenant that `config` names.
    ///
    /// # Errors
    /// The session names no tenant and there is no default, or it names an unknown one, or the
    /// hierarchy is full.
    pub fn begin_session(&self, config: &SessionConfig) -> Result<Arc<SessionPool>, TenantError> {
        let tenant =
            TenantOptions::tenant_of(config).or(self.default.as_deref()).ok_or(TenantError::NoTenant)?;
        let group = self.find(tenant).1.map_err(|error| TenantError::UnknownTenant {
            tenant: tenant.to_owned(),
            parent: TENANTS.to_owned(),
            error,
        })?;
        // ORDERING: Relaxed, because the number publishes nothing else.
        let number = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let group = group
            .create_owned(&format!("session-{number}"))
            .map_err(|error| TenantError::Create { tenant: tenant.to_owned(), error })?;
        Ok(Arc::new(SessionPool::new(&self.hierarchy, group)))
    }

    /// Returns a producer of runtimes. Each runtime is that of `base`, with a pool of its session's
    /// tenant.
    pub fn runtimes(&self, base: RuntimeProducer) -> RuntimeProducer {
        let tenants = self.clone();
        Arc::new(move |config: &SessionConfig| -> Result<Arc<RuntimeEnv>> {
            // Ballista sends errors to the client in their debug form, in which a text stays
            // readable.
            let pool = tenants
                .begin_session(config)
                .map_err(|error| DataFusionError::Configuration(error.to_string()))?;
            RuntimeEnvBuilder::from_runtime_env(&*base(config)?)
                .with_memory_pool(pool as Arc<dyn MemoryPool>)
                .build_arc()
        })
    }
}

/// A [`GroupPool`] that owns its session's group. Dropping the pool removes the group; the last
/// reservation is gone by then.
#[derive(Debug)]
pub struct SessionPool {
    // The order matters: the pool's handle must be dropped before the group's owner.
    pool: GroupPool,
    _group: OwnedGroup,
}

impl SessionPool {
    pub(crate) fn new(hierarchy: &Hierarchy, group: OwnedGroup) -> SessionPool {
        SessionPool { pool: GroupPool::new(hierarchy, &group), _group: group }
    }

    /// Returns the lowest limit of its group and those above, in bytes, or `None` if none has one.
    pub(crate) fn limit(&self) -> Option<usize> {
        let levels = std::iter::successors(Some(self.pool.group().clone()), Group::parent);
        levels.filter_map(|level| level.max()).min().and_then(|bytes| usize::try_from(bytes).ok())
    }

    /// Returns the pool itself.
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
