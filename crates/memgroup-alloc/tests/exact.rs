//! Neither a group nor a snapshot reports bytes as used that are held back for the next blocks.
#![cfg(not(memgroup_loom))]

use std::sync::mpsc;
use std::thread;

use memgroup::{Config, Group, Hierarchy, scope};
use memgroup_alloc::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

const LIVE: usize = 100_000;

/// Leaves bytes of `group` held back on this thread, and returns a block.
fn work(group: &Group) -> Vec<u8> {
    let _scope = scope::enter(group);
    (0..100).for_each(|size| drop(vec![0_u8; 100 * size]));
    vec![1; LIVE]
}

/// The bytes of a group itself that are charged, and neither prepaid nor part of a live block.
fn held_back(group: &Group, live: u64) -> u64 {
    group.usage() - group.stock().prepaid_bytes - live
}

#[track_caller]
fn check_all(hierarchy: &Hierarchy, expected: [(&str, u64); 4]) {
    let snapshot = hierarchy.snapshot();
    let json = serde_json::to_value(&snapshot).unwrap();
    for (at, (path, exact)) in expected.into_iter().enumerate() {
        let group = hierarchy.lookup(path).unwrap();
        let shown = &snapshot.groups[at];
        assert_eq!((shown.path.as_str(), shown.usage_exact_bytes, group.usage_exact()), (path, exact, exact));
        assert_eq!(json["groups"][at]["usage_exact_bytes"], exact, "{path}");
        assert!(shown.usage_bytes >= exact && shown.usage_bytes == group.usage(), "{path}");
        let populated = format!("populated {}\nfrozen 0\n", u8::from(exact > 0));
        assert_eq!(shown.is_populated(), exact > 0, "{path}");
        assert_eq!(group.read_file("cgroup.events").unwrap(), populated, "{path}");
        // A part of the tree gives the same answer as the whole.
        assert_eq!(group.snapshot().groups[0].usage_exact_bytes, exact, "{path}");
    }
}

#[test]
fn snapshots_and_groups_give_one_answer_while_bytes_are_held_back() {
    for account_root in [true, false] {
        let hierarchy = Hierarchy::new(Config::new().account_root(account_root)).unwrap();
        let a = hierarchy.get_or_create("/tenants/a").unwrap();
        let b = hierarchy.get_or_create("/tenants/b").unwrap();
        let ((worked, has_worked), (looked, has_looked)) = (mpsc::channel(), mpsc::channel::<()>());
        thread::scope(|threads| {
            threads.spawn({
                let b = &b;
                move || {
                    drop(work(b));
                    worked.send(()).unwrap();
                    has_looked.recv().unwrap_err();
                }
            });
            // The thread ends when this is dropped, even if an assertion fails.
            let _looked = looked;
            let block = work(&a);
            has_worked.recv().unwrap();
            let charged = (LIVE as u64 + 8).next_multiple_of(16);
            assert!(held_back(&a, charged) > 0 && held_back(&b, 0) > 0, "both threads hold bytes back");
            let at_root = |bytes| if account_root { bytes } else { 0 };
            let of = |bytes| {
                [("/", at_root(bytes)), ("/tenants", bytes), ("/tenants/a", bytes), ("/tenants/b", 0)]
            };
            check_all(&hierarchy, of(charged));
            drop(block);
            assert!(hierarchy.lookup("/tenants").unwrap().usage() > 0, "bytes are still held back");
            check_all(&hierarchy, of(0));
        });
    }
}
