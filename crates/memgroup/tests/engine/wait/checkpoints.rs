//! Checkpoints that wait: a thread above its limit parks until others free.

use std::time::{Duration, Instant};

use memgroup::block::{self, Owner};
use memgroup::{ChargeError, ChargeErrorKind, Deadline, Group, WaitKind, scope};
use memgroup_sync::depth;

use super::{PAGE, far, in_ms, parent, until_in_line, until_waiting};

/// Charges so many pages for blocks, at any limit.
fn charge_blocks(group: &Group, pages: u64) -> Owner {
    let _scope = scope::enter(group);
    let owner = block::current().unwrap();
    assert_eq!(owner.charge(pages * PAGE, 0).unwrap().bytes, pages * PAGE);
    owner
}

fn checkpoint_until(group: &Group, deadline: impl Into<Deadline>) -> Result<(), ChargeError> {
    let _scope = scope::enter(group);
    block::checkpoint_until(deadline)
}

#[test]
fn parks_until_other_threads_have_freed_enough() {
    let (hierarchy, tenants) = parent(2, 4);
    let alice = tenants.create("alice").unwrap();
    std::thread::scope(|scope| {
        let (owner, deadline) = (charge_blocks(&alice, 7), far());
        assert!(block::is_over());
        scope.spawn(move || {
            until_in_line(&hierarchy, 1);
            let waits = hierarchy.waits();
            assert_eq!((waits[0].group.as_str(), waits[0].kind), ("/tenants/alice", WaitKind::Charge));
            // At the limit there is no room for one byte.
            for pages in [1, 2] {
                owner.uncharge(pages * PAGE);
                assert_eq!(hierarchy.waits().len(), 1, "{pages}");
            }
            owner.uncharge(1);
        });
        checkpoint_until(&alice, deadline).unwrap();
        assert!(Instant::now() < deadline && !block::is_over());
        assert_eq!(tenants.usage_exact(), 4 * PAGE - 1, "the checkpoint itself keeps nothing");
        owner.uncharge(4 * PAGE - 1);
    });
    assert_eq!((tenants.usage_exact(), tenants.waiters().now), (0, 0));
}

#[test]
fn parks_until_a_limit_is_raised() {
    let (_hierarchy, tenants) = parent(2, 4);
    let owner = charge_blocks(&tenants, 5);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until_waiting(&tenants, 1);
            tenants.set_max(6 * PAGE).unwrap();
        });
        checkpoint_until(&tenants, Deadline::NEVER).unwrap();
    });
    owner.uncharge(5 * PAGE);
    assert_eq!(tenants.usage_exact(), 0);
}

#[test]
fn tells_of_the_limit_at_the_deadline_and_loses_nothing() {
    let (hierarchy, tenants) = parent(2, 4);
    let owner = charge_blocks(&tenants, 5);
    let stalled_before = tenants.pressure().some.total;
    let deadline = in_ms(20);
    let began = Instant::now();
    let over = checkpoint_until(&tenants, deadline).unwrap_err();
    let ended = Instant::now();
    assert_eq!(
        (over.kind(), over.group(), over.usage()),
        (ChargeErrorKind::Deadline, tenants.id(), 5 * PAGE)
    );
    assert!(ended >= deadline && over.waited() > Duration::ZERO && over.waited() <= ended - began);
    let stalled = Duration::from_micros(tenants.pressure().some.total - stalled_before);
    assert!(stalled > Duration::ZERO && stalled <= ended - began, "{stalled:?}");
    assert!(hierarchy.waits().is_empty() && block::is_over());
    assert_eq!(tenants.usage_exact(), 5 * PAGE);
    owner.uncharge(PAGE);
    checkpoint_until(&tenants, in_ms(5)).unwrap_err();
    owner.uncharge(PAGE);
    checkpoint_until(&tenants, in_ms(5)).unwrap();
    owner.uncharge(3 * PAGE);
    assert_eq!(tenants.usage_exact(), 0);
}

#[test]
fn waits_neither_within_the_engine_nor_for_a_removed_group() {
    let (_hierarchy, tenants) = parent(2, 4);
    let owner = charge_blocks(&tenants, 5);
    let inside = depth::enter();
    let refused = checkpoint_until(&tenants, Deadline::NEVER).unwrap_err();
    drop(inside);
    assert_eq!((refused.kind(), refused.waited()), (ChargeErrorKind::Refused, Duration::ZERO));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until_waiting(&tenants, 1);
            tenants.remove().unwrap();
        });
        let removed = checkpoint_until(&tenants, Deadline::NEVER).unwrap_err();
        assert_eq!(removed.kind(), ChargeErrorKind::Offline);
    });
    owner.uncharge(5 * PAGE);
    assert_eq!(tenants.usage(), 0);
}
