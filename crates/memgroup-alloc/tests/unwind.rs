//! Blocks that are refused within `fallible` unwind, with the refusal.
#![cfg(not(memgroup_loom))]

use std::collections::HashMap;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::{env, thread};

use memgroup::{ChargeError, ChargeErrorKind, Config, Group, Hierarchy, scope};
use memgroup_alloc::{Allocator, checkpoint, fallible, unwind_on_refusal};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

const LIMIT: u64 = 1 << 20;

fn tenant() -> (Hierarchy, Group) {
    unwind_on_refusal();
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let tenant = hierarchy.create("/tenant").unwrap();
    tenant.set_max(LIMIT).unwrap();
    (hierarchy, tenant)
}

/// The refusal with which `act` unwinds.
fn refusal<T>(act: impl FnOnce() -> T) -> ChargeError {
    let unwound = catch_unwind(AssertUnwindSafe(|| fallible(act))).err().expect("a block is refused");
    *unwound.downcast().expect("the payload is the refusal")
}

/// `act` unwinds in the group with a refusal of that group, which reads 0 then.
fn assert_unwinds<T>(act: impl FnOnce() -> T) {
    let (_hierarchy, tenant) = tenant();
    let scope = scope::enter(&tenant);
    let refusal = refusal(act);
    assert_eq!((refusal.kind(), refusal.group()), (ChargeErrorKind::Refused, tenant.id()));
    assert!(refusal.asked() > 64 << 10 && tenant.peak() <= LIMIT);
    checkpoint().unwrap();
    drop(scope);
    assert_eq!(tenant.usage_exact(), 0);
}

#[test]
fn collections_unwind_when_they_are_refused_a_block() {
    assert_unwinds(|| black_box(vec![1_u8; 2 << 20]));
    assert_unwinds(|| (0_u64..).map_while(Some).collect::<Box<[u64]>>());
    assert_unwinds(|| "text".repeat(1 << 20));
    assert_unwinds(|| (0..1_000_000).map(|key| (key, key)).collect::<HashMap<u64, u64>>());
    assert_unwinds(|| std::iter::repeat('x').map_while(Some).collect::<String>());
    let document = format!("[{}]", vec!["0"; 1_000_000].join(","));
    assert_unwinds(|| serde_json::from_str::<serde_json::Value>(&document));
}

#[test]
fn a_collection_that_cannot_grow_keeps_its_items() {
    let (_hierarchy, tenant) = tenant();
    let other = tenant.parent().unwrap().create("other").unwrap();
    let scope = scope::enter(&tenant);
    let mut numbers: Vec<u64> = (0..1000).collect();
    let inner = scope::enter(&other);
    let refusal = refusal(|| numbers.extend((1000..).map_while(Some)));
    assert_eq!(refusal.group(), tenant.id(), "the block's own group refuses its growth");
    let len = numbers.len() as u64;
    assert!(numbers.iter().copied().eq(0..len) && len > 1000);
    drop((inner, numbers, scope));
    assert_eq!((tenant.usage_exact(), other.usage_exact()), (0, 0));
}

#[test]
fn a_destructor_may_allocate_while_a_refusal_unwinds() {
    struct Late;
    impl Drop for Late {
        fn drop(&mut self) {
            drop(black_box(vec![1_u8; 4 << 20]));
        }
    }
    let (_hierarchy, tenant) = tenant();
    let _scope = scope::enter(&tenant);
    let act = || {
        let _late = Late;
        black_box(vec![1_u8; 2 << 20])
    };
    refusal(act);
    refusal(act);
    assert_eq!(tenant.usage_exact(), 0);
}

#[test]
fn a_refusal_ends_a_thread_and_no_other() {
    let (_hierarchy, tenant) = tenant();
    thread::scope(|threads| {
        let [refused, served] = [2_usize, 1].map(|halves| {
            let tenant = &tenant;
            threads.spawn(move || {
                let _scope = scope::enter(tenant);
                fallible(|| vec![1_u8; halves << 19]).len()
            })
        });
        refused.join().unwrap_err().downcast::<ChargeError>().unwrap();
        assert_eq!(served.join().unwrap(), 1 << 19);
    });
    assert_eq!(tenant.usage_exact(), 0);
}

#[test]
fn outside_of_fallible_a_block_is_charged_at_any_limit() {
    let (_hierarchy, tenant) = tenant();
    let _scope = scope::enter(&tenant);
    fallible(|| Vec::<u8>::new().try_reserve(2 << 20)).unwrap_err();
    drop(black_box(vec![1_u8; 2 << 20]));
    assert!(tenant.peak() > 2 * LIMIT);
}

#[test]
fn a_block_that_no_limit_refused_ends_the_process_as_before() {
    const CHILD: &str = "MEMGROUP_UNWIND_CHILD";
    let name = "a_block_that_no_limit_refused_ends_the_process_as_before";
    if env::var_os(CHILD).is_some() {
        let (_hierarchy, tenant) = tenant();
        let _scope = scope::enter(&tenant);
        _ = fallible(|| {
            // A refusal that was handled is not the reason of the next failure.
            Vec::<u8>::new().try_reserve(2 << 20).unwrap_err();
            tenant.set_max(None).unwrap();
            catch_unwind(|| black_box(Vec::<u8>::with_capacity(1 << 47)).len())
        });
        return;
    }
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{text}");
    assert!(text.contains("memory allocation of 140737488355328 bytes failed"), "{text}");
}
