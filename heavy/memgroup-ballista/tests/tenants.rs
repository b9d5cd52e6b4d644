//! The groups of sessions on one executor, without a cluster.

use std::sync::Arc;

use ballista_core::RuntimeProducer;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::SessionConfig;
use memgroup::{Config, Hierarchy};
use memgroup_ballista::{ExecutorUsage, TenantError, TenantOptions, Tenants, read_tree};

const TOML: &str = "['/tenants'.groups.alice]\nmax = '1M'\n['/tenants'.groups.guest]\nmax = '64K'\n";

fn tenants(hierarchy: &Hierarchy) -> Tenants {
    Tenants::new(hierarchy, &toml::from_str(TOML).unwrap()).unwrap()
}

fn hierarchy() -> Hierarchy {
    Hierarchy::new(Config::new()).unwrap()
}

fn session(tenant: &str) -> SessionConfig {
    SessionConfig::new().with_option_extension(TenantOptions::of(tenant))
}

fn base() -> RuntimeProducer {
    Arc::new(|_| RuntimeEnvBuilder::new().build_arc())
}

#[test]
fn removes_the_group_of_a_session_with_its_runtime() {
    let hierarchy = hierarchy();
    let runtimes = tenants(&hierarchy).runtimes(base());
    let runtime = runtimes(&session("alice")).unwrap();
    let other = runtimes(&session("alice")).unwrap();
    let reservation = MemoryConsumer::new("table").register(&runtime.memory_pool);
    reservation.try_grow(600 << 10).unwrap();
    assert_eq!(hierarchy.lookup("/tenants/alice/session-1").unwrap().usage_exact(), 600 << 10);
    let of_other = MemoryConsumer::new("table").register(&other.memory_pool);
    let error = of_other.try_grow(600 << 10).unwrap_err().to_string();
    assert!(error.contains("refused by group /tenants/alice"), "{error}");

    drop(runtime);
    assert!(hierarchy.lookup("/tenants/alice/session-1").is_ok(), "a reservation keeps the group");
    drop(reservation);
    assert!(hierarchy.lookup("/tenants/alice/session-1").is_err());
    of_other.try_grow(600 << 10).unwrap();
    drop((of_other, other));
    assert_eq!(hierarchy.lookup("/tenants/alice").unwrap().usage_exact(), 0);
    assert_eq!(ExecutorUsage::of(&hierarchy).tenant("alice").unwrap().sessions, 0);
}

#[test]
fn keeps_the_base_runtime_but_its_pool() {
    let hierarchy = hierarchy();
    let own = RuntimeEnvBuilder::new().build_arc().unwrap();
    let of_base = Arc::clone(&own);
    let runtime =
        tenants(&hierarchy).runtimes(Arc::new(move |_| Ok(Arc::clone(&of_base))))(&session("alice"));
    let runtime = runtime.unwrap();
    assert!(Arc::ptr_eq(&runtime.disk_manager, &own.disk_manager));
    assert!(!Arc::ptr_eq(&runtime.memory_pool, &own.memory_pool));
}

#[test]
fn refuses_a_session_without_a_tenant_unless_there_is_a_default() {
    let hierarchy = hierarchy();
    let tenants = tenants(&hierarchy);
    let error = tenants.begin_session(&SessionConfig::new()).unwrap_err();
    assert!(matches!(error, TenantError::NoTenant), "{error}");
    let tenants = tenants.with_default("guest").unwrap();
    let pool = tenants.begin_session(&SessionConfig::new()).unwrap();
    assert_eq!(pool.pool().group().path(), "/tenants/guest/session-1");
    // A name that is misspelt is no way to the default.
    let error = tenants.begin_session(&session("alise")).unwrap_err();
    assert!(matches!(error, TenantError::UnknownTenant { .. }), "{error}");
    let error = tenants.with_default("eve").err().unwrap();
    assert!(error.to_string().contains("/tenants/eve"), "{error}");
}

#[test]
fn refuses_names_that_lead_to_other_groups() {
    let hierarchy = hierarchy();
    let tenants = tenants(&hierarchy);
    let _session = tenants.begin_session(&session("alice")).unwrap();
    for name in ["alice/session-1", "../tenants/alice", "alice/", "/"] {
        let error = tenants.begin_session(&session(name)).unwrap_err();
        assert!(matches!(error, TenantError::UnknownTenant { .. }), "{name}: {error}");
    }
}

#[test]
fn reads_the_same_tree_from_toml_and_json() {
    let dir = tempfile::tempdir().unwrap();
    let (toml, json) = (dir.path().join("tree.toml"), dir.path().join("tree.json"));
    std::fs::write(&toml, TOML).unwrap();
    let text = r#"{"/tenants": {"groups": {"alice": {"max": "1M"}, "guest": {"max": "64K"}}}}"#;
    std::fs::write(&json, text).unwrap();
    assert_eq!(read_tree(&toml).unwrap(), read_tree(&json).unwrap());

    std::fs::write(&toml, "['/tenants']\nmaximum = '1M'").unwrap();
    let error = read_tree(&toml).unwrap_err().to_string();
    assert!(error.contains("tree.toml") && error.contains("maximum"), "{error}");
    let error = read_tree(dir.path().join("none.toml")).unwrap_err().to_string();
    assert!(error.contains("none.toml"), "{error}");
    let error = Tenants::new(&hierarchy(), &memgroup::TreeSpec::default()).err().unwrap().to_string();
    assert!(error.contains("no /tenants") && error.contains(r#"["/tenants/alice"]"#), "{error}");
}
