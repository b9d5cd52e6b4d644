//! A panic in a tenant's scope: what the standard library keeps for the process is charged to no
//! group.

#![cfg(not(any(miri, memgroup_loom, memgroup_emulated)))]

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Mutex;

use memgroup::{Config, Group, Hierarchy, scope};
use memgroup_alloc::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

/// Set for a child, which runs the test's own part.
const CHILD: &str = "MEMGROUP_TEST_PANICS";

/// Calls `act` in a group, in a process of its own that prints backtraces. Returns the bytes
/// charged to the group then.
fn charged_in_child(test: &str, act: fn(&Group)) -> Option<u64> {
    if std::env::var_os(CHILD).is_some() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let tenant = hierarchy.create("/tenant").unwrap();
        act(&tenant);
        println!("charged: {}.", tenant.usage_exact());
        return None;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env("RUST_BACKTRACE", "1");
    let output = child.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(errors.contains("stack backtrace:"), "{errors}");
    let charged = text.split_once("charged: ").expect("the child's figure").1;
    Some(charged.split_once('.').unwrap().0.parse().unwrap())
}

fn panics_in(tenant: &Group, act: impl FnOnce()) {
    let _scope = scope::enter(tenant);
    // The payload is dropped here.
    catch_unwind(AssertUnwindSafe(act)).unwrap_err();
}

#[test]
fn the_symbols_that_a_panic_loads_are_charged_to_nobody() {
    let test = "the_symbols_that_a_panic_loads_are_charged_to_nobody";
    let charged = charged_in_child(test, |tenant| panics_in(tenant, || panic!("on purpose")));
    assert!(charged.is_none_or(|bytes| bytes < 4096), "{charged:?} bytes stay charged");
}

#[test]
fn a_hook_of_the_programs_own_is_uncounted_too() {
    let charged = charged_in_child("a_hook_of_the_programs_own_is_uncounted_too", |tenant| {
        std::panic::set_hook(Box::new(|_| {
            eprintln!("stack backtrace:\n{}", std::backtrace::Backtrace::force_capture());
        }));
        memgroup_alloc::uncounted_panic_hook();
        panics_in(tenant, || panic!("on purpose"));
    });
    assert!(charged.is_none_or(|bytes| bytes < 4096), "{charged:?} bytes stay charged");
}

/// Memory that a panicking thread has taken aside.
static ASIDE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

const BLOCK: usize = 100_000;

fn take_aside() {
    ASIDE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(vec![1; BLOCK]);
}

#[test]
fn a_panic_is_no_way_to_allocate_for_nothing() {
    struct InMessage;
    impl fmt::Display for InMessage {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            take_aside();
            f.write_str("on purpose")
        }
    }
    struct InDestructor;
    impl Drop for InDestructor {
        fn drop(&mut self) {
            take_aside();
        }
    }
    let charged = charged_in_child("a_panic_is_no_way_to_allocate_for_nothing", |tenant| {
        panics_in(tenant, || {
            let _late = InDestructor;
            panic!("{InMessage}");
        });
    });
    assert!(charged.is_none_or(|bytes| bytes > 2 * BLOCK as u64), "{charged:?}");
}
