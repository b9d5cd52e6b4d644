//! A second installation in one process.

#![allow(unsafe_code)]

use memgroup::{Config, Hierarchy};
use memgroup_sqlite::{
    InstallError, TenantConnection, TenantError, install, install_unchecked, install_with, installed,
};

#[test]
fn keeps_the_first_installation() {
    let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
    let other = Hierarchy::new(Config::new()).expect("the default configuration");
    let group = hierarchy.create("/tenant").expect("a group");
    assert!(installed().is_none());
    assert!(matches!(TenantConnection::open_in_memory(&group), Err(TenantError::NotInstalled)));

    let misplaced = install_with(&hierarchy, &other.root()).expect_err("a group of another hierarchy");
    assert!(matches!(&misplaced, InstallError::ForeignGroup { path } if path == "/"), "{misplaced}");

    // SAFETY: this is the only test of its process, and the thread that runs it does not use
    // SQLite.
    let first = unsafe { install_unchecked(&hierarchy, None) }.expect("nothing used SQLite before");
    let again = install(&hierarchy).expect("the same hierarchy");
    assert_eq!(first.unattributed(), again.unattributed());
    assert_eq!(again.hierarchy().root(), hierarchy.root());
    install_with(&hierarchy, first.unattributed()).expect("the same hierarchy and group");

    let refused = install_with(&hierarchy, &group).expect_err("another group for unattributed memory");
    assert!(
        matches!(&refused, InstallError::OtherUnattributed { path } if path == "/unattributed"),
        "{refused}"
    );
    let refused = install(&other).expect_err("another hierarchy");
    assert!(matches!(refused, InstallError::OtherHierarchy), "{refused}");
    assert!(other.lookup("/unattributed").is_err(), "a refused installation left a group behind");

    let foreign = other.create("/foreign").expect("a group");
    let refused = TenantConnection::open_in_memory(&foreign).expect_err("a group of another hierarchy");
    assert!(matches!(&refused, TenantError::ForeignGroup { group } if group == "/foreign"), "{refused}");
    assert_eq!(installed().expect("installed").unattributed(), first.unattributed());
    TenantConnection::open_in_memory(&group).expect("a group of the installed hierarchy");
}
