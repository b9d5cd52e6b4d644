//! Safe points that wait: a thread above its limit parks until another thread frees blocks.
#![cfg(not(memgroup_loom))]

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use memgroup::{ChargeErrorKind, Config, Deadline, Group, Hierarchy, scope};
use memgroup_alloc::{Allocator, Checked, checkpoint, checkpoint_until};
use xtask::Watchdog;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

const LIMIT: u64 = 1 << 20;

/// A number of KiB that exceeds the limit.
const MORE: u64 = LIMIT / 1000;

fn tenant() -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let tenant = hierarchy.create("/tenant").unwrap();
    tenant.set_max(LIMIT).unwrap();
    (hierarchy, tenant)
}

/// Blocks of a neighbour on the calling thread, with this many KiB in total.
fn fill(group: &Group, kib: u64) -> Vec<Vec<u8>> {
    let _scope = scope::enter(group);
    (0..kib).map(|_| vec![1_u8; 1024]).collect()
}

/// Calls `act` in the group beside a neighbour's blocks, which are freed while `act` waits.
fn parked<T>(kib: u64, act: impl FnOnce(&Group) -> T) -> T {
    let (_hierarchy, tenant) = tenant();
    let blocks = fill(&tenant, kib);
    let acted = thread::scope(|threads| {
        threads.spawn(|| {
            while tenant.waiters().now == 0 {
                thread::yield_now();
            }
            drop(blocks);
        });
        let _scope = scope::enter(&tenant);
        assert_eq!(checkpoint().is_err(), kib >= MORE);
        act(&tenant)
    });
    assert_eq!(tenant.waiters().now, 0);
    tenant.drain();
    println!("exact {} usage {}", tenant.usage_exact(), tenant.usage());
    tenant.drain();
    assert_eq!(tenant.usage(), 0, "nothing is lost");
    acted
}

#[test]
fn a_thread_goes_on_when_another_frees() {
    let _watchdog = Watchdog::over("a thread that parks at a checkpoint");
    parked(MORE, |tenant| {
        let stalled = tenant.pressure().some.total;
        checkpoint_until(Deadline::NEVER).unwrap();
        assert!(tenant.pressure().some.total > stalled, "the wait is a stall");
        checkpoint().unwrap();
    });
}

#[test]
fn a_thread_gets_the_error_at_the_deadline() {
    let (_hierarchy, tenant) = tenant();
    let blocks = fill(&tenant, MORE);
    let scope = scope::enter(&tenant);
    let deadline = Instant::now() + Duration::from_millis(20);
    let over = checkpoint_until(deadline).unwrap_err();
    assert!(Instant::now() >= deadline);
    assert_eq!((over.error().kind(), over.error().group()), (ChargeErrorKind::Deadline, tenant.id()));
    checkpoint().unwrap_err();
    drop(blocks);
    checkpoint_until(deadline).unwrap();
    drop((scope, over));
    assert_eq!((tenant.usage_exact(), tenant.waiters().now), (0, 0));
}

#[test]
fn readers_iterators_and_writers_wait() {
    let _watchdog = Watchdog::over("readers, iterators and writers that park");
    let text = parked(MORE, |_| {
        let mut text = String::new();
        Checked::new("a text".as_bytes()).waiting_until(Deadline::NEVER).read_to_string(&mut text).unwrap();
        text.len()
    });
    assert_eq!(text, 6);
    let sum = parked(MORE, |_| {
        Checked::new(1..=3).waiting_until(Deadline::NEVER).map(|number| number.unwrap()).sum::<u64>()
    });
    assert_eq!(sum, 6);
    parked(MORE, |_| {
        std::io::Write::write_all(&mut Checked::new(Vec::new()).waiting_until(Deadline::NEVER), b"text")
    })
    .unwrap();
}

#[test]
fn a_reader_waits_until_its_deadline_and_no_longer() {
    let (_hierarchy, tenant) = tenant();
    let _blocks = fill(&tenant, MORE);
    let _scope = scope::enter(&tenant);
    let deadline = Instant::now() + Duration::from_millis(20);
    let mut reader = Checked::new(std::io::repeat(b'x')).waiting_until(deadline);
    for _ in 0..3 {
        reader.read_exact(&mut [0]).unwrap_err();
        assert!(Instant::now() >= deadline);
    }
}

/// A thread beside a charge of `wanted` bytes that waits in the group. It has allocated and freed
/// small blocks, and holds bytes back. `act` gets the charge that holds the waiting one up.
fn beside_a_waiter(filled: u64, wanted: u64, act: impl FnOnce(&Group, memgroup::Charge)) {
    let (hierarchy, tenant) = tenant();
    let filling = tenant.try_charge(filled).unwrap();
    thread::scope(|threads| {
        let waits = threads.spawn(|| tenant.charge_until(wanted, Deadline::NEVER));
        while hierarchy.waits().is_empty() {
            thread::yield_now();
        }
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let group = &tenant;
        threads.spawn(move || {
            let scope = scope::enter(group);
            for _ in 0..100 {
                drop(std::hint::black_box([Box::new([1_u8; 100]), Box::new([1_u8; 100])]));
            }
            drop(scope);
            tell.send(()).unwrap();
            ended.recv().unwrap_err();
        });
        told.recv().unwrap();
        let held_back = tenant.usage() - tenant.usage_exact();
        assert!((224..=1024).contains(&held_back), "{held_back}");
        act(&tenant, filling);
        drop(waits.join().unwrap().unwrap());
        drop(end);
    });
    assert_eq!(tenant.usage_exact(), 0);
}

#[test]
fn a_thread_uses_its_own_bytes_again_beside_a_waiter_and_gives_them_back_when_they_help() {
    let _watchdog = Watchdog::over("a charge that waits beside held back bytes");
    // The waiter fits only if the thread, which does nothing any more, gives its last bytes back.
    beside_a_waiter(LIMIT - 100_000, LIMIT, |_, filling| drop(filling));
    beside_a_waiter(LIMIT - 100_000, LIMIT, |tenant, filling| {
        tenant.set_max(2 * LIMIT - 100_000).unwrap();
        drop(filling);
    });
    // Another waiter asks for less.
    beside_a_waiter(LIMIT - 1500, LIMIT / 2, |tenant, filling| {
        drop(tenant.charge_until(1500, Deadline::NEVER).unwrap());
        drop(filling);
    });
}

#[cfg(feature = "serde")]
#[test]
fn deserializers_wait_at_every_depth() {
    use serde::Deserialize;
    use serde_json::Value;

    let _watchdog = Watchdog::over("a deserializer that parks");
    let text = format!("{{\"a\":[[{}]]}}", vec!["{\"b\":[0]}"; 1000].join(","));
    // The first values fit beside the neighbour, those at the depth do not.
    let length = parked(900, |_| {
        let mut json = serde_json::Deserializer::from_str(&text);
        let value = Value::deserialize(Checked::new(&mut json).waiting_until(Deadline::NEVER)).unwrap();
        value["a"][0].as_array().map(Vec::len)
    });
    assert_eq!(length, Some(1000));
}
