//! The child of a fork frees and allocates, in the groups of its parent, and waits for no thread
//! that it lacks.

#![cfg(all(target_os = "linux", not(any(miri, memgroup_loom, memgroup_emulated))))]
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use memgroup::{Config, Hierarchy, scope};
use memgroup_alloc::{Allocator, checkpoint};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

/// Seconds after which a child that waits for ever is ended, so that the test fails.
const HANGS_AFTER: libc::c_uint = 60;

/// Forks. The child calls `act` and ends, with 0 if it returns `true`. Returns the child's status.
fn in_child(act: impl FnOnce() -> bool) -> libc::c_int {
    // SAFETY: the child allocates and frees, which is what is tested, and ends below.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "the system makes a child");
    if child == 0 {
        // SAFETY: a number only.
        unsafe { libc::alarm(HANGS_AFTER) };
        let code = libc::c_int::from(!act());
        // SAFETY: ends the child at once, without destructors.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is written; the child is this process's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn a_child_frees_and_allocates_beside_locks_that_nobody_releases() {
    const CHILDREN: usize = 100;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let tenant = hierarchy.create("/tenant").unwrap();
    tenant.set_max(8 << 20).unwrap();
    let ends = AtomicBool::new(false);
    let failed = thread::scope(|threads| {
        for number in 0..2 {
            let (tenant, ends) = (&tenant, &ends);
            threads.spawn(move || {
                // ORDERING: Relaxed; a sign to end.
                while !ends.load(Ordering::Relaxed) {
                    let group = tenant.create_owned(&format!("request-{number}")).unwrap();
                    let _scope = scope::enter(&group);
                    // Large blocks take the slow way, and some are above the limit.
                    drop(std::hint::black_box(vec![1_u8; 3 << 20]));
                }
            });
        }
        let _scope = scope::enter(&tenant);
        let status_of_one = || {
            let inherited: Vec<Vec<u8>> = (0..8).map(|_| vec![1_u8; 40_000]).collect();
            in_child(|| {
                let before = tenant.usage();
                drop(inherited);
                let mut more: Vec<Vec<u8>> = (0..8).map(|_| vec![1_u8; 200_000]).collect();
                more.iter_mut().for_each(|block| block.reserve_exact(400_000));
                checkpoint().is_ok() && tenant.usage() == before
            })
        };
        let failed = (0..CHILDREN).map(|_| status_of_one()).find(|status| *status != 0);
        // ORDERING: as above.
        ends.store(true, Ordering::Relaxed);
        failed
    });
    assert_eq!(failed, None, "14 is a child that waits, 256 one that charged");
}

#[test]
fn a_child_charges_the_groups_of_a_hierarchy_that_it_makes() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let tenant = hierarchy.create("/tenant").unwrap();
    let inherited = {
        let _scope = scope::enter(&tenant);
        vec![1_u8; 100]
    };
    let status = in_child(|| {
        let own = Hierarchy::new(Config::new()).unwrap();
        let group = own.create("/group").unwrap();
        let scope = scope::enter(&group);
        let block = vec![1_u8; 100];
        let charged = group.usage_exact();
        drop(inherited);
        drop((block, scope));
        charged == 112 && group.usage_exact() == 0
    });
    assert_eq!(status, 0);
}
