//! Backend: groups that bound each tenant's memory, or one SQLite heap limit for the whole process.
//!
//! - I1. SQLite's allocator is chosen once per process, so a process builds one `Backend`, before
//!   it uses SQLite.
//! - I2. Both backends open connections in the same mode (serialized) and with the same settings.
//!   Only their limits differ.

#![allow(unsafe_code)]

pub(crate) mod session;

use std::path::Path;

use memgroup::{BYTES_MAX, Config, Group, Hierarchy};
use memgroup_sqlite::TenantConnection;
use rusqlite::{Connection, OpenFlags, ffi};

use crate::run::base::{Failure, OrFail, RunError};
use crate::run::spec::{Settings, Spec, TenantSpec};
use session::{Session, settings};

/// Name of the parent of all tenants' groups.
const PARENT: &str = "tenants";
/// Name of the group that is charged while data is loaded.
const LOADER: &str = "loader";

/// The limits of a run.
pub(crate) enum Backend {
    Groups(Groups),
    /// One heap for all tenants.
    HeapLimit {
        limit_bytes: Option<u64>,
        /// Applies the settings of the process, and keeps SQLite initialised while no other
        /// connection is open.
        settings: Connection,
    },
}

/// A group for each tenant.
pub(crate) struct Groups {
    pub(crate) hierarchy: Hierarchy,
    /// Parent of all tenants.
    pub(crate) parent: Group,
    /// In the order of the SPEC.
    pub(crate) tenants: Vec<Group>,
}

impl Backend {
    /// Builds groups, or else a heap limit, for the tenants of `spec`.
    pub(crate) fn build(has_groups: bool, spec: &Spec) -> Result<Backend, RunError> {
        if has_groups {
            return Groups::install(spec).map(Backend::Groups);
        }
        let settings = Connection::open_in_memory().or_fail("open SQLite in memory")?;
        Ok(Backend::HeapLimit { limit_bytes: spec.max_bytes, settings })
    }

    /// Returns the groups, if there are any.
    pub(crate) fn groups(&self) -> Option<&Groups> {
        match self {
            Backend::Groups(groups) => Some(groups),
            Backend::HeapLimit { .. } => None,
        }
    }

    /// Creates the group that is charged while data is loaded, so that no tenant is. Returns none
    /// without groups.
    pub(crate) fn create_loader(&self) -> Result<Option<Group>, RunError> {
        let create = |groups: &Groups| groups.hierarchy.root().create(LOADER);
        self.groups().map(create).transpose().or_fail("create /loader")
    }

    /// Ends loading: removes the loader's group, applies the heap limit, and resets SQLite's
    /// high-water mark.
    pub(crate) fn end_loading(&self, loader: Option<Group>) -> Result<(), RunError> {
        loader.map_or(Ok(()), |group| group.remove()).or_fail("remove /loader")?;
        let Backend::HeapLimit { limit_bytes, settings } = self else { return Ok(()) };
        let action = "limit SQLite's heap";
        let wanted = limit_bytes.map_or(i64::MAX, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        let set = format!("PRAGMA hard_heap_limit = {wanted}");
        let now: i64 = settings.query_row(&set, [], |row| row.get(0)).or_fail(action)?;
        if now != wanted {
            return Err(format!("requested {wanted} bytes, got {now}")).or_fail(action);
        }
        // SAFETY: the call has no precondition; 1 resets the mark to the current usage.
        let _mark = unsafe { ffi::sqlite3_memory_highwater(1) };
        Ok(())
    }

    /// Opens a connection of the tenant with that `index`.
    pub(crate) fn open(&self, index: usize, tenant: &TenantSpec, path: &Path) -> Result<Session, RunError> {
        let opened = self.connect(index, tenant, path).map_err(|failure| match failure {
            Failure::Refused(error) => {
                format!(
                    "{error}; each of its threads takes about 200 KiB of its `max` ({} threads)",
                    tenant.threads
                )
            }
            other => other.to_string(),
        });
        opened.or_fail(format_args!("open a connection of tenant `{}`", tenant.name))
    }

    fn connect(&self, index: usize, tenant: &TenantSpec, path: &Path) -> Result<Session, Failure> {
        let session = match self {
            Backend::Groups(groups) => Session::Group(TenantConnection::open(&groups.tenants[index], path)?),
            Backend::HeapLimit { .. } => {
                let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_FULL_MUTEX;
                Session::Plain(Connection::open_with_flags(path, flags)?)
            }
        };
        session.run(|connection| connection.execute_batch(&settings(tenant)))?;
        Ok(session)
    }

    /// Returns the bytes of SQLite's heap, its peak and its limit; none with groups.
    pub(crate) fn heap(&self) -> Option<[Option<u64>; 3]> {
        let Backend::HeapLimit { limit_bytes, .. } = self else { return None };
        // SAFETY: the call has no precondition.
        let usage = unsafe { ffi::sqlite3_memory_used() };
        // SAFETY: the call has no precondition; 0 leaves the mark as it is.
        let peak = unsafe { ffi::sqlite3_memory_highwater(0) };
        let [usage, peak] = [usage, peak].map(|bytes| u64::try_from(bytes).ok());
        Some([usage, peak, *limit_bytes])
    }

    /// Fails if a tenant of `spec` still has charged bytes. The caller must have closed all
    /// connections.
    pub(crate) fn check_empty(&self, spec: &Spec) -> Result<(), RunError> {
        self.groups().map_or(Ok(()), |groups| groups.check_empty(spec))
    }
}

impl Groups {
    /// Puts memgroup under SQLite and creates the groups of `spec`.
    fn install(spec: &Spec) -> Result<Groups, RunError> {
        let config = Config::new().reclaim(spec.reclaim).oom(spec.reclaim && spec.oom);
        let hierarchy = Hierarchy::new(config).or_fail("set up the hierarchy")?;
        // SAFETY: this is the first use of SQLite in the process (I1). The threads that wait for
        // signals and for the end of standard input don't use it.
        let installed = unsafe { memgroup_sqlite::install_unchecked(&hierarchy, None) };
        installed.or_fail("put memgroup under SQLite")?;
        Groups::create(hierarchy, spec)
    }

    /// Creates the groups of `spec`.
    pub(crate) fn create(hierarchy: Hierarchy, spec: &Spec) -> Result<Groups, RunError> {
        let unset = Settings::default();
        let parent = create(&hierarchy.root(), PARENT, spec.max_bytes, &unset)?;
        parent.set_share(spec.share).or_fail("share the memory of all tenants")?;
        parent.set_reserve_min(spec.reserve_min).or_fail("reserve the tenants' min")?;
        let tenant = |tenant: &TenantSpec| create(&parent, &tenant.name, tenant.max_bytes, &tenant.settings);
        let tenants = spec.tenants.iter().map(tenant).collect::<Result<_, _>>()?;
        Ok(Groups { hierarchy, parent, tenants })
    }

    /// Fails if a tenant of `spec` still has charged bytes, except prepaid ones. All of its work
    /// must have ended.
    pub(crate) fn check_empty(&self, spec: &Spec) -> Result<(), RunError> {
        for (tenant, bytes) in spec.tenants.iter().zip(self.tenants.iter().map(Group::usage_exact)) {
            if bytes > 0 {
                let name = &tenant.name;
                return Err(format!(
                    "{bytes} bytes are charged to tenant `{name}` after all its work has ended"
                ))
                .or_fail("account for all memory");
            }
        }
        Ok(())
    }
}

/// Creates a group with its settings.
fn create(
    parent: &Group,
    name: &str,
    max_bytes: Option<u64>,
    settings: &Settings,
) -> Result<Group, RunError> {
    let group = parent.create(name).or_fail("create a group")?;
    let action = format_args!("set up group `{name}`");
    group.set_max(max_bytes).or_fail(action)?;
    group.set_min(settings.min_bytes.unwrap_or(BYTES_MAX)).or_fail(action)?;
    group.set_low(settings.low_bytes.unwrap_or(BYTES_MAX)).or_fail(action)?;
    group.set_high(settings.high_bytes).or_fail(action)?;
    group.set_oom_score(settings.oom_score).or_fail(action)?;
    group.set_weight(settings.weight).or_fail(action)?;
    group.set_oom_group(settings.oom_group);
    group.set_enforced(settings.enforced);
    Ok(group)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use memgroup::{Config, Hierarchy, scope};

    use super::{Backend, Groups};
    use crate::run::spec::Spec;

    #[test]
    fn fails_when_a_byte_stays_charged_to_a_tenant() {
        let spec = Spec::read(None, None).expect("a valid SPEC");
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let groups = Groups::create(hierarchy.clone(), &spec).expect("groups");
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
        let spec = Spec::read(None, None).expect("a valid SPEC");
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let groups = Groups::create(hierarchy.clone(), &spec).expect("groups");
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
