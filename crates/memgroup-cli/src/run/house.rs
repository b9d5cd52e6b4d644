//! The house all tenants live in: memgroup's groups, or one SQLite heap with a limit over everybody.
//!
//! - I1. SQLite's allocator is chosen once per process, so a process builds one `House`, before it uses SQLite.
//! - I2. Both houses open connections in the same mode (serialized) and with the same settings: what differs is who
//!   bounds the memory.

#![allow(unsafe_code)]

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memgroup::{Config, Group, Hierarchy, Snapshot, UNLIMITED, scope};
use memgroup_sqlite::TenantConnection;
use rusqlite::{Connection, OpenFlags, ffi};
use serde::{Deserialize, Serialize};

use super::control::Control;
use super::error::RunError;
use super::guard;
use super::kills::{KillLog, Kills};
use super::session::{Session, settings};
use super::shrinkers::Shrinker;
use super::spec::{Settings, Spec, TenantSpec};
use super::statistics::Statistics;

/// Name, under the root, of the parent of all tenants' groups.
const PARENT: &str = "tenants";
/// Name, under the root, of the group that pays for loading data.
const LOADER: &str = "loader";

/// Who bounds the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Regime {
    /// A group for each tenant.
    Groups,
    /// The same groups, none of them with a limit or any other setting; the root has a guard.
    Unlimited,
    /// SQLite's hard heap limit for the whole process.
    HeapLimit,
}

impl Regime {
    /// As it is called on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Regime::Groups => "groups",
            Regime::Unlimited => "unlimited",
            Regime::HeapLimit => "heap-limit",
        }
    }

    /// As the report calls it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Regime::Groups => "with memgroup",
            Regime::Unlimited => "without limits",
            Regime::HeapLimit => "with SQLite's heap limit",
        }
    }
}

/// Bytes that a group holds, or everybody together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Now; prepaid bytes included.
    pub(crate) usage: u64,
    /// The most it ever was.
    pub(crate) peak: u64,
    /// None: unlimited.
    pub(crate) max: Option<u64>,
    /// The share of charges that the stock served alone.
    pub(crate) hit_rate: Option<f64>,
}

/// The groups' own per-CPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PerCpu {
    /// Bytes that the system backs with memory.
    pub(crate) populated: u64,
    /// Bytes of groups' records among them, over all slots that are used.
    pub(crate) live: u64,
    /// Slots that are used.
    pub(crate) slots: usize,
}

impl Held {
    fn of(group: &Group) -> Held {
        Held {
            usage: group.usage(),
            peak: group.peak(),
            max: Some(group.max()).filter(|&max| max != UNLIMITED),
            hit_rate: group.stock().hit_rate(),
        }
    }
}

/// The house, with a place for each tenant of a SPEC, in the SPEC's order.
pub(crate) enum House {
    Groups(GroupHouse),
    HeapLimit(HeapHouse),
}

/// A group for each tenant.
pub(crate) struct GroupHouse {
    hierarchy: Hierarchy,
    unattributed: Group,
    parent: Group,
    tenants: Vec<Group>,
    /// Whether the hierarchy has caches give way.
    reclaims: bool,
    /// The limit of the root, if it has one.
    guard_bytes: Option<u64>,
    kills: Mutex<KillLog>,
}

/// Who pays for loading data. A group that is removed stays as long as anybody has a handle to it; this one goes with its loader.
pub(crate) struct Loader {
    /// None where nobody pays.
    group: Option<Group>,
}

impl Loader {
    /// Runs `work`, which loads data, on this thread.
    pub(crate) fn around(&self, work: &mut dyn FnMut()) {
        let _scope = self.group.as_ref().map(scope::enter);
        work();
    }
}

/// One heap for all.
pub(crate) struct HeapHouse {
    limit_bytes: u64,
    /// Takes the process-wide settings, and keeps SQLite initialised from the first to the last.
    keeper: Mutex<Connection>,
}

impl House {
    /// Builds the house of `regime` for the tenants of `spec`.
    pub(crate) fn build(regime: Regime, spec: &Spec) -> Result<House, RunError> {
        match regime {
            Regime::Groups => GroupHouse::build(spec, None).map(House::Groups),
            Regime::Unlimited => {
                GroupHouse::build(&spec.without_limits(), Some(guard::bytes()?)).map(House::Groups)
            }
            Regime::HeapLimit => HeapHouse::build(spec).map(House::HeapLimit),
        }
    }

    /// Who pays for loading data, so that no tenant does.
    pub(crate) fn loader(&self) -> Result<Loader, RunError> {
        let House::Groups(house) = self else { return Ok(Loader { group: None }) };
        let group = house.hierarchy.root().create(LOADER);
        let group = group.map_err(|error| RunError::engine("create /loader", error))?;
        Ok(Loader { group: Some(group) })
    }

    /// Loading is over: its group goes, and limits hold from here.
    pub(crate) fn loaded(&self, loader: Loader) -> Result<(), RunError> {
        if let Some(group) = loader.group {
            group.remove().map_err(|error| RunError::engine("remove /loader", error))?;
        }
        match self {
            House::Groups(_) => Ok(()),
            House::HeapLimit(house) => house.limit(),
        }
    }

    /// Opens a connection of the tenant with that `index`.
    pub(crate) fn open(&self, index: usize, tenant: &TenantSpec, path: &Path) -> Result<Session, RunError> {
        let failed = |error: String| RunError::Open { tenant: tenant.name.clone(), error };
        let session = match self {
            House::Groups(house) => TenantConnection::open(&house.tenants[index], path)
                .map(Session::Group)
                .map_err(|error| failed(error.to_string()))?,
            House::HeapLimit(_) => {
                let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_FULL_MUTEX;
                Connection::open_with_flags(path, flags)
                    .map(Session::Plain)
                    .map_err(|error| failed(error.to_string()))?
            }
        };
        session
            .run(|connection| connection.execute_batch(&settings(tenant)))
            .map_err(|failure| failed(failure.to_string()))?;
        Ok(session)
    }

    /// All groups as they are now; none where there are none.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        let House::Groups(house) = self else { return None };
        Some(house.hierarchy.snapshot())
    }

    /// What the tenant with that `index` holds; none where nobody can tell.
    pub(crate) fn held(&self, index: usize) -> Option<Held> {
        match self {
            House::Groups(house) => Some(Held::of(&house.tenants[index])),
            House::HeapLimit(_) => None,
        }
    }

    /// What all tenants hold together.
    pub(crate) fn held_by_all(&self) -> Held {
        match self {
            // The parent is charged through its children only, so it has no hits of its own.
            House::Groups(house) => Held { hit_rate: None, ..Held::of(&house.parent) },
            House::HeapLimit(house) => house.held(),
        }
    }

    /// What is charged to no tenant; none where everything is.
    pub(crate) fn held_by_nobody(&self) -> Option<Held> {
        match self {
            House::Groups(house) => Some(Held::of(&house.unattributed)),
            House::HeapLimit(_) => None,
        }
    }

    /// The statistics of the tenant with that `index`; none where nobody keeps any.
    pub(crate) fn statistics(&self, index: usize) -> Option<Statistics> {
        let House::Groups(house) = self else { return None };
        Some(Statistics::of(&house.hierarchy, &house.tenants[index]))
    }

    /// Those of all tenants together.
    pub(crate) fn statistics_of_all(&self) -> Option<Statistics> {
        let House::Groups(house) = self else { return None };
        Some(Statistics::of(&house.hierarchy, &house.parent))
    }

    /// The limit over everything that keeps a run without limits from taking the whole machine; none in other runs.
    pub(crate) fn guard_bytes(&self) -> Option<u64> {
        let House::Groups(house) = self else { return None };
        house.guard_bytes
    }

    /// Whether caches give way before a tenant is refused; none where nobody could have them do so.
    pub(crate) fn reclaims(&self) -> Option<bool> {
        let House::Groups(house) = self else { return None };
        Some(house.reclaims)
    }

    /// The caches that give way, for each tenant; none where nobody knows them.
    pub(crate) fn shrinkers(&self) -> Option<Vec<Vec<Shrinker>>> {
        let House::Groups(house) = self else { return None };
        let all = Shrinker::all(&house.hierarchy);
        let of = |path: String| all.iter().filter(|shrinker| shrinker.group == path).cloned().collect();
        Some(house.tenants.iter().map(|group| of(group.path())).collect())
    }

    /// What the limits of the tenant with that `index`, and those above, did to it in a run of so many `seconds`; none where there are none.
    pub(crate) fn control(&self, index: usize, seconds: f64) -> Option<Control> {
        let House::Groups(house) = self else { return None };
        Some(Control::of(&house.tenants[index], seconds))
    }

    /// The same of all tenants together.
    pub(crate) fn control_of_all(&self, seconds: f64) -> Option<Control> {
        let House::Groups(house) = self else { return None };
        Some(Control::of(&house.parent, seconds))
    }

    /// Ends all waits of tenants for memory, and all delays.
    pub(crate) fn wake_waiters(&self) {
        if let House::Groups(house) = self {
            house.parent.wake_waiters();
        }
    }

    /// Looks who was stopped since the last look.
    pub(crate) fn look_for_kills(&self) {
        if let House::Groups(house) = self {
            house.kills().look(&house.hierarchy, &format!("/{PARENT}/"));
        }
    }

    /// Who was stopped for whom; none where there are no groups.
    pub(crate) fn kills(&self) -> Option<Vec<Kills>> {
        self.look_for_kills();
        let House::Groups(house) = self else { return None };
        Some(house.kills().sums())
    }

    /// The memory that accounting itself takes on the CPUs; none where nobody accounts.
    pub(crate) fn percpu(&self) -> Option<PerCpu> {
        let House::Groups(house) = self else { return None };
        let stats = house.hierarchy.percpu();
        Some(PerCpu { populated: stats.populated_bytes, live: stats.live_bytes, slots: stats.slots })
    }

    /// Makes sure that no tenant of `spec` is charged for anything, prepaid bytes aside, once all its connections are
    /// closed.
    pub(crate) fn check_vacated(&self, spec: &Spec) -> Result<(), RunError> {
        let House::Groups(house) = self else { return Ok(()) };
        for (tenant, group) in spec.tenants.iter().zip(&house.tenants) {
            let bytes = group.usage_exact();
            if bytes > 0 {
                return Err(RunError::LeftBehind { tenant: tenant.name.clone(), bytes });
            }
        }
        Ok(())
    }
}

impl GroupHouse {
    fn kills(&self) -> MutexGuard<'_, KillLog> {
        self.kills.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With all that `spec` sets, and a limit of `guard_bytes` over everything.
    fn build(spec: &Spec, guard_bytes: Option<u64>) -> Result<GroupHouse, RunError> {
        let hierarchy = Hierarchy::new(Config::new().reclaim(spec.reclaim).oom(spec.reclaim && spec.oom))
            .map_err(|error| RunError::engine("set up the hierarchy", error))?;
        let installed = memgroup_sqlite::install(&hierarchy)
            .map_err(|error| RunError::engine("put memgroup under SQLite", error))?;
        let house = GroupHouse::furnish(&hierarchy, installed.unattributed().clone(), spec)?;
        if let Some(bytes) = guard_bytes {
            let root = hierarchy.root();
            root.set_max(bytes).map_err(|error| RunError::engine("set the guard over all groups", error))?;
        }
        Ok(GroupHouse { guard_bytes, ..house })
    }

    /// Makes the groups.
    fn furnish(hierarchy: &Hierarchy, unattributed: Group, spec: &Spec) -> Result<GroupHouse, RunError> {
        let root = hierarchy.root();
        let make = |parent: &Group, name: &str, max: u64| {
            let group = parent.create(name).map_err(|error| RunError::engine("create a group", error))?;
            group.set_max(max).map_err(|error| RunError::engine("limit a group", error))?;
            Ok::<Group, RunError>(group)
        };
        let parent = make(&root, PARENT, spec.max_bytes)?;
        let mut tenants = Vec::new();
        for tenant in &spec.tenants {
            let group = make(&parent, &tenant.name, tenant.max_bytes)?;
            set(&group, &tenant.settings)?;
            tenants.push(group);
        }
        Ok(GroupHouse {
            hierarchy: hierarchy.clone(),
            unattributed,
            parent,
            tenants,
            reclaims: spec.reclaim,
            guard_bytes: None,
            kills: Mutex::default(),
        })
    }
}

/// Sets what a group has besides `max`.
fn set(group: &Group, settings: &Settings) -> Result<(), RunError> {
    let failed = |error: &dyn fmt::Display| RunError::engine("set up a group", error);
    let &Settings { min_bytes, low_bytes, high_bytes, oom_score, oom_group, weight, enforced } = settings;
    group.set_min(min_bytes).map_err(|error| failed(&error))?;
    group.set_low(low_bytes).map_err(|error| failed(&error))?;
    group.set_high(high_bytes).map_err(|error| failed(&error))?;
    group.set_oom_score(oom_score).map_err(|error| failed(&error))?;
    group.set_weight(weight).map_err(|error| failed(&error))?;
    group.set_oom_group(oom_group);
    group.set_enforced(enforced);
    Ok(())
}

impl HeapHouse {
    fn build(spec: &Spec) -> Result<HeapHouse, RunError> {
        let keeper =
            Connection::open_in_memory().map_err(|error| RunError::engine("open SQLite in memory", error))?;
        Ok(HeapHouse { limit_bytes: spec.max_bytes, keeper: Mutex::new(keeper) })
    }

    /// Sets the limit, and starts the high-water mark from here.
    fn limit(&self) -> Result<(), RunError> {
        let wanted = i64::try_from(self.limit_bytes).unwrap_or(i64::MAX);
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        let now: i64 = keeper
            .query_row(&format!("PRAGMA hard_heap_limit = {wanted}"), [], |row| row.get(0))
            .map_err(|error| RunError::engine("limit SQLite's heap", error))?;
        if now != wanted {
            return Err(RunError::engine(
                "limit SQLite's heap",
                format!("asked for {wanted} bytes, got {now}"),
            ));
        }
        // SAFETY: no precondition; 1 resets the mark to what is in use.
        let _mark = unsafe { ffi::sqlite3_memory_highwater(1) };
        Ok(())
    }

    fn held(&self) -> Held {
        // SAFETY: no precondition.
        let usage = unsafe { ffi::sqlite3_memory_used() };
        // SAFETY: no precondition; 0 leaves the mark where it is.
        let peak = unsafe { ffi::sqlite3_memory_highwater(0) };
        let bytes = |number: i64| u64::try_from(number).unwrap_or(0);
        Held { usage: bytes(usage), peak: bytes(peak), max: Some(self.limit_bytes), hit_rate: None }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use memgroup::{Config, Hierarchy, scope};

    use super::{GroupHouse, Held, House};
    use crate::run::error::RunError;
    use crate::run::spec::Spec;

    #[test]
    fn a_byte_that_stays_charged_to_a_tenant_is_an_error() {
        let spec = Spec::built_in().expect("it is sound");
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let house = GroupHouse::furnish(&hierarchy, hierarchy.root(), &spec).expect("groups");
        let last = house.tenants.len() - 1;
        let charge = house.tenants[last].try_charge(1).expect("there is room");
        let house = House::Groups(house);
        match house.check_vacated(&spec) {
            Err(RunError::LeftBehind { tenant, bytes: 1 }) => assert_eq!(tenant, spec.tenants[last].name),
            other => panic!("{other:?}"),
        }
        drop(charge);
        house.check_vacated(&spec).expect("nothing is charged, and what is prepaid does not count");
    }

    #[test]
    fn of_the_group_that_pays_for_loading_nothing_is_left_when_that_is_over() {
        let spec = Spec::built_in().expect("it is sound");
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let house = GroupHouse::furnish(&hierarchy, hierarchy.root(), &spec).expect("groups");
        let house = House::Groups(house);
        let loader = house.loader().expect("a group");
        thread::scope(|threads| {
            let loading = || {
                loader.around(&mut || {
                    let group = scope::current().expect("a group pays");
                    assert_eq!(group.path(), "/loader");
                    drop(group.try_charge(1 << 20).expect("no limit"));
                });
            };
            threads.spawn(loading);
            threads.spawn(loading);
        });
        let count = || hierarchy.snapshot().groups.len();
        let before = count();
        house.loaded(loader).expect("it is over");
        assert_eq!(count(), before - 1);
        assert_eq!(hierarchy.snapshot().dying().count(), 0);
    }

    #[test]
    fn the_hit_rate_is_that_of_the_stock() {
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let group = hierarchy.root().create("a").expect("a group");
        assert_eq!(Held::of(&group).hit_rate, None);
        let charges: Vec<_> = (0..100).map(|_| group.try_charge(100).expect("no limit")).collect();
        let stock = group.stock();
        let expected = stock.hits as f64 / (stock.hits + stock.misses) as f64;
        assert!(0.0 < expected && expected < 1.0, "{stock:?}");
        assert_eq!(Held::of(&group).hit_rate, Some(expected));
        drop(charges);
    }
}
