//! Backend: groups that bound each tenant's memory, or one SQLite heap limit for the whole process.
//!
//! - I1. SQLite's allocator is chosen once per process, so a process builds one `Backend`, before it uses SQLite.
//! - I2. Both backends open connections in the same (serialized) mode with the same settings. They differ only in their limits.

#![allow(unsafe_code)]

mod guard;
pub(crate) mod session;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memgroup::{Config, Group, Hierarchy};
use memgroup_sqlite::TenantConnection;
use rusqlite::{Connection, OpenFlags, ffi};
use serde::{Deserialize, Serialize};

use crate::run::base::error::{OrFail, RunError};
use crate::run::measure::Held;
use crate::run::measure::kills::{KillLog, Kills};
use crate::run::spec::{Settings, Spec, TenantSpec};
use session::{Session, settings};

/// Name of the parent of all tenants' groups.
const PARENT: &str = "tenants";
/// Name of the group that is charged while data is loaded.
const LOADER: &str = "loader";

/// Kind of limits in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Regime {
    /// A group for each tenant.
    Groups,
    /// The same groups without limits and other settings. The root has a guard.
    Unlimited,
    /// SQLite's hard heap limit for the whole process.
    HeapLimit,
}

impl Regime {
    /// All regimes, in the order of a comparison.
    pub(crate) const ALL: [Regime; 3] = [Regime::Groups, Regime::Unlimited, Regime::HeapLimit];

    /// Its name in the report.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Regime::Groups => "with memgroup",
            Regime::Unlimited => "without limits",
            Regime::HeapLimit => "with SQLite's heap limit",
        }
    }
}

/// The limits of a run, with a place for each tenant of a SPEC.
pub(crate) enum Backend {
    Groups(Groups),
    HeapLimit(HeapLimit),
}

/// A group for each tenant.
pub(crate) struct Groups {
    pub(crate) hierarchy: Hierarchy,
    /// Group of the memory that SQLite takes for no tenant.
    pub(crate) unattributed: Group,
    /// Parent of all tenants.
    pub(crate) parent: Group,
    /// In the order of the SPEC.
    pub(crate) tenants: Vec<Group>,
    /// Whether caches are reclaimed.
    pub(crate) reclaim: bool,
    /// Limit of the root in a run without limits.
    pub(crate) guard_bytes: Option<u64>,
    kills: Mutex<KillLog>,
}

/// One heap for all tenants.
pub(crate) struct HeapLimit {
    limit_bytes: u64,
    /// Applies the settings of the process, and keeps SQLite initialised between the other connections.
    settings: Mutex<Connection>,
}

impl Backend {
    /// Builds the backend of `regime` for the tenants of `spec`.
    pub(crate) fn build(regime: Regime, spec: &Spec) -> Result<Backend, RunError> {
        match regime {
            Regime::Groups => Groups::install(spec, None).map(Backend::Groups),
            Regime::Unlimited => {
                Groups::install(&spec.without_limits(), Some(guard::bytes()?)).map(Backend::Groups)
            }
            Regime::HeapLimit => {
                let settings = Connection::open_in_memory().or_fail("open SQLite in memory")?;
                Ok(Backend::HeapLimit(HeapLimit { limit_bytes: spec.max_bytes, settings: settings.into() }))
            }
        }
    }

    /// The groups, if there are any.
    pub(crate) fn groups(&self) -> Option<&Groups> {
        match self {
            Backend::Groups(groups) => Some(groups),
            Backend::HeapLimit(_) => None,
        }
    }

    /// Creates the group that is charged while data is loaded, so that no tenant is. None without groups.
    pub(crate) fn create_loader(&self) -> Result<Option<Group>, RunError> {
        let create = |groups: &Groups| groups.hierarchy.root().create(LOADER);
        self.groups().map(create).transpose().or_fail("create /loader")
    }

    /// Ends loading: removes the loader's group, which frees it with its last handle, and applies the heap limit.
    pub(crate) fn end_loading(&self, loader: Option<Group>) -> Result<(), RunError> {
        loader.map_or(Ok(()), |group| group.remove()).or_fail("remove /loader")?;
        match self {
            Backend::Groups(_) => Ok(()),
            Backend::HeapLimit(heap) => heap.apply(),
        }
    }

    /// Opens a connection of the tenant with that `index`.
    pub(crate) fn open(&self, index: usize, tenant: &TenantSpec, path: &Path) -> Result<Session, RunError> {
        let action = format!("open a connection of tenant `{}`", tenant.name);
        let session = match self {
            Backend::Groups(groups) => {
                Session::Group(TenantConnection::open(&groups.tenants[index], path).or_fail(&action)?)
            }
            Backend::HeapLimit(_) => {
                let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_FULL_MUTEX;
                Session::Plain(Connection::open_with_flags(path, flags).or_fail(&action)?)
            }
        };
        session.run(|connection| connection.execute_batch(&settings(tenant))).or_fail(action)?;
        Ok(session)
    }

    /// Memory of SQLite's heap under its limit; unknown with groups.
    pub(crate) fn held_by_heap(&self) -> Held {
        match self {
            Backend::Groups(_) => Held::default(),
            Backend::HeapLimit(heap) => heap.held(),
        }
    }

    /// Fails if a tenant of `spec` still has charged bytes, except prepaid ones. The caller has closed all connections.
    pub(crate) fn check_empty(&self, spec: &Spec) -> Result<(), RunError> {
        let groups = self.groups().into_iter().flat_map(|groups| &groups.tenants);
        for (tenant, group) in spec.tenants.iter().zip(groups) {
            let bytes = group.usage_exact();
            if bytes > 0 {
                return Err(RunError::Failure(format!(
                    "failed to account for all memory: {bytes} bytes are charged to tenant `{}` after all its connections \
                     were closed",
                    tenant.name
                )));
            }
        }
        Ok(())
    }
}

impl Groups {
    /// Puts memgroup under SQLite and creates the groups of `spec`, with `guard_bytes` as the limit of the root.
    fn install(spec: &Spec, guard_bytes: Option<u64>) -> Result<Groups, RunError> {
        let config = Config::new().reclaim(spec.reclaim).oom(spec.reclaim && spec.oom);
        let hierarchy = Hierarchy::new(config).or_fail("set up the hierarchy")?;
        let installed = memgroup_sqlite::install(&hierarchy).or_fail("put memgroup under SQLite")?;
        let groups = Groups::create(&hierarchy, installed.unattributed().clone(), spec)?;
        if let Some(bytes) = guard_bytes {
            hierarchy.root().set_max(bytes).or_fail("set the guard over all groups")?;
        }
        Ok(Groups { guard_bytes, ..groups })
    }

    fn create(hierarchy: &Hierarchy, unattributed: Group, spec: &Spec) -> Result<Groups, RunError> {
        let create = |parent: &Group, name: &str, max: u64| {
            let group = parent.create(name).or_fail("create a group")?;
            group.set_max(max).or_fail("limit a group")?;
            Ok::<Group, RunError>(group)
        };
        let parent = create(&hierarchy.root(), PARENT, spec.max_bytes)?;
        let mut tenants = Vec::new();
        for tenant in &spec.tenants {
            let group = create(&parent, &tenant.name, tenant.max_bytes)?;
            apply(&group, &tenant.settings)?;
            tenants.push(group);
        }
        Ok(Groups {
            hierarchy: hierarchy.clone(),
            unattributed,
            parent,
            tenants,
            reclaim: spec.reclaim,
            guard_bytes: None,
            kills: Mutex::default(),
        })
    }

    /// Counts the kills since the last poll.
    pub(crate) fn poll_kills(&self) {
        self.kill_log().poll(&self.hierarchy, &format!("/{PARENT}/"));
    }

    /// All kills so far.
    pub(crate) fn kills(&self) -> Vec<Kills> {
        self.poll_kills();
        self.kill_log().sums()
    }

    fn kill_log(&self) -> MutexGuard<'_, KillLog> {
        self.kills.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Applies the settings besides `max`.
fn apply(group: &Group, settings: &Settings) -> Result<(), RunError> {
    let action = "set up a group";
    let &Settings { min_bytes, low_bytes, high_bytes, oom_score, oom_group, weight, enforced } = settings;
    group.set_min(min_bytes).or_fail(action)?;
    group.set_low(low_bytes).or_fail(action)?;
    group.set_high(high_bytes).or_fail(action)?;
    group.set_oom_score(oom_score).or_fail(action)?;
    group.set_weight(weight).or_fail(action)?;
    group.set_oom_group(oom_group);
    group.set_enforced(enforced);
    Ok(())
}

impl HeapLimit {
    /// Applies the limit, and restarts SQLite's high-water mark.
    fn apply(&self) -> Result<(), RunError> {
        let action = "limit SQLite's heap";
        let wanted = i64::try_from(self.limit_bytes).unwrap_or(i64::MAX);
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let now: i64 = settings
            .query_row(&format!("PRAGMA hard_heap_limit = {wanted}"), [], |row| row.get(0))
            .or_fail(action)?;
        if now != wanted {
            return Err(format!("requested {wanted} bytes, got {now}")).or_fail(action);
        }
        // SAFETY: the call has no precondition; 1 resets the mark to the current usage.
        let _mark = unsafe { ffi::sqlite3_memory_highwater(1) };
        Ok(())
    }

    fn held(&self) -> Held {
        // SAFETY: the call has no precondition.
        let usage = unsafe { ffi::sqlite3_memory_used() };
        // SAFETY: the call has no precondition; 0 keeps the mark.
        let peak = unsafe { ffi::sqlite3_memory_highwater(0) };
        let bytes = |number: i64| u64::try_from(number).ok();
        Held { usage: bytes(usage), peak: bytes(peak), max: Some(self.limit_bytes), hit_rate: None }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use memgroup::{Config, Hierarchy, scope};

    use super::{Backend, Groups};
    use crate::run::spec::Spec;

    #[test]
    fn fails_when_a_byte_stays_charged_to_a_tenant() {
        let spec = Spec::read(None).expect("a valid SPEC");
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let groups = Groups::create(&hierarchy, hierarchy.root(), &spec).expect("groups");
        let last = groups.tenants.len() - 1;
        let charge = groups.tenants[last].try_charge(1).expect("room");
        let backend = Backend::Groups(groups);
        let error = backend.check_empty(&spec).expect_err("a byte is charged").to_string();
        assert!(error.contains(&format!(": 1 bytes are charged to tenant `{}`", spec.tenants[last].name)));
        drop(charge);
        backend.check_empty(&spec).expect("only prepaid bytes are left");
    }

    #[test]
    fn removes_the_group_of_the_loader() {
        let spec = Spec::read(None).expect("a valid SPEC");
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let groups = Groups::create(&hierarchy, hierarchy.root(), &spec).expect("groups");
        let backend = Backend::Groups(groups);
        let loader = backend.create_loader().expect("a group");
        thread::scope(|threads| {
            let loading = || {
                let group = loader.as_ref().expect("a group");
                assert_eq!(group.path(), "/loader");
                let _scope = scope::enter(group);
                drop(group.try_charge(1 << 20).expect("no limit"));
            };
            threads.spawn(loading);
            threads.spawn(loading);
        });
        let count = || hierarchy.snapshot().groups.len();
        let before = count();
        backend.end_loading(loader).expect("loading ends");
        assert_eq!(count(), before - 1);
        assert_eq!(hierarchy.snapshot().dying().count(), 0);
    }
}
