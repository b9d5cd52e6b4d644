//! The memory of the mount is charged to no tenant, although a thread in a tenant's scope mounts.
#![cfg(target_os = "linux")]

use std::process::Command;

use memgroup::{Config, Hierarchy, scope};
use memgroup_alloc::Allocator;
use memgroup_fuse::{Options, mount};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

#[test]
fn charges_no_request_to_a_tenant() {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let tenant = hierarchy.create("/tenant").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let scope = scope::enter(&tenant);
    let mounted = mount(&hierarchy, folder.path(), Options::new());
    drop(scope);
    let mounted = match mounted {
        Ok(mounted) => mounted,
        Err(error) => return println!("skipped: {error}"),
    };
    // The handle and the thread that the caller started are the caller's.
    let charged = tenant.usage_exact();
    assert!(charged < 4096, "{charged}");
    // Descriptors, texts, listings, owners, waiting polls and groups; all at once, and with the
    // tenant at its limit.
    tenant.set_max(charged).unwrap();
    let lines = "
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
            mkdir -m 0700 $i && chmod 0600 $i/memory.max && cat $i/memory.stat tenant/memory.stat >/dev/null || exit 1
        done
        exec 3<tenant/memory.events 4<>tenant/memory.peak 5<>tenant/memory.pressure
        echo 1 >&4 && echo some 150000 1000000 >&5 && cat <&3 >/dev/null && ls tenant && cat tenant/memory.current";
    let output = Command::new("sh").args(["-c", lines]).current_dir(folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.ends_with(&format!("\n{charged}\n")), "{output:?}");
    assert_eq!((tenant.usage_exact(), tenant.refusals()), (charged, 0));
    drop(mounted);
    assert!(tenant.usage_exact() <= charged);
}
