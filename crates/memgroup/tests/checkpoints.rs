//! Checkpoints of a group within its even share, or within its `min`, pass beside siblings that
//! are above theirs. They charge blocks themselves, as a global allocator does, so they don't run
//! under one.
#![cfg(not(memgroup_loom))]

#[path = "engine/protect/cache.rs"]
#[allow(dead_code, reason = "the tests of protection use the rest")]
mod cache;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::block::{self, Owner};
use memgroup::{
    ChargeError, ChargeErrorKind, Group, Hierarchy, KillAnswer, KillRegistration, KillRequest, scope,
};

use cache::{MIB, exact};

const ROUNDS: usize = 200;

/// Blocks that were charged to a group at any limit, as an allocator charges them.
struct Blocks {
    owner: Owner,
    bytes: u64,
}

impl Blocks {
    fn of(group: &Group, bytes: u64) -> Blocks {
        let _scope = scope::enter(group);
        let owner = block::current().unwrap();
        assert_eq!(owner.charge(bytes, 0).unwrap().bytes, bytes);
        Blocks { owner, bytes }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.owner.uncharge(self.bytes);
    }
}

/// A checkpoint of a thread that was charged beyond a limit.
fn checkpoint(group: &Group, patience: Option<Duration>) -> Result<(), ChargeError> {
    let _scope = scope::enter(group);
    assert!(block::is_over());
    let outcome = patience.map_or_else(block::checkpoint, block::checkpoint_until);
    assert_eq!(block::is_over(), outcome.is_err());
    outcome
}

/// A request of a tenant: told to stop, it goes on.
struct Request {
    _blocks: Blocks,
    _hook: KillRegistration,
}

/// 64 MiB for tenants, of which one has forced its usage far above its share by requests that do
/// not stop at once.
struct House {
    _hierarchy: Hierarchy,
    tenants: Group,
    hog: Group,
    small: Group,
    stopped: Arc<Mutex<Vec<String>>>,
    requests: Vec<Request>,
}

impl House {
    fn new(share: Option<u32>) -> House {
        let hierarchy = exact();
        let tenants = hierarchy.create("/tenants").unwrap();
        tenants.set_max(64 * MIB).unwrap();
        tenants.set_share(share).unwrap();
        let [hog, small] = ["hog", "small"].map(|name| tenants.create(name).unwrap());
        let mut house = House {
            _hierarchy: hierarchy,
            tenants,
            hog,
            small,
            stopped: Arc::default(),
            requests: Vec::new(),
        };
        (0..16).for_each(|number| house.begin_request(number));
        house
    }

    fn begin_request(&mut self, number: usize) {
        let group = self.hog.create(&format!("request-{number}")).unwrap();
        let (stopped, path) = (Arc::clone(&self.stopped), group.path());
        let hook = move |_: &KillRequest<'_>| {
            stopped.lock().unwrap().push(path.clone());
            KillAnswer::Dying
        };
        let hook = group.set_kill_hook(hook).unwrap();
        self.requests.push(Request { _blocks: Blocks::of(&group, 4 * MIB), _hook: hook });
    }
}

#[test]
fn none_of_200_is_refused_within_the_even_share_beside_a_hog_that_does_not_stop() {
    for patience in [None, Some(Duration::from_secs(3600))] {
        let mut house = House::new(Some(8));
        let request = house.small.create("request").unwrap();
        let blocks = (0..20).map(|_| Blocks::of(&request, MIB)).collect::<Vec<_>>();
        assert!(house.tenants.usage_exact() > 64 * MIB);
        let refused = (0..ROUNDS)
            .filter(|&round| {
                if round % 50 == 49 {
                    // One of the hog's requests has ended, and the next has begun.
                    house.requests.remove(0);
                    house.begin_request(16 + round);
                }
                let more = Blocks::of(&request, MIB);
                let outcome = checkpoint(&request, patience);
                drop(more);
                outcome.is_err()
            })
            .count();
        assert_eq!(refused, 0);
        let stopped = house.stopped.lock().unwrap().clone();
        assert!(!stopped.is_empty(), "the hog's work was told to stop");
        drop(blocks);
    }
}

#[test]
fn a_group_above_its_even_share_is_refused() {
    let house = House::new(Some(8));
    let blocks = Blocks::of(&house.small, 31 * MIB);
    let error = checkpoint(&house.small, None).unwrap_err();
    assert!(error.is_by_share() && error.group() == house.small.id(), "{error}");
    drop(blocks);
    let more = Blocks::of(&house.hog, MIB);
    let error = checkpoint(&house.hog, None).unwrap_err();
    assert!(error.is_by_share() && error.group() == house.hog.id(), "{error}");
    drop(more);
}

#[test]
fn its_own_limit_and_those_of_its_requests_refuse_it() {
    let house = House::new(Some(8));
    let request = house.small.create("request").unwrap();
    let _blocks = Blocks::of(&request, 10 * MIB);
    for group in [&house.small, &request] {
        group.set_max(9 * MIB).unwrap();
        let error = checkpoint(&request, None).unwrap_err();
        assert_eq!((error.group(), error.kind()), (group.id(), ChargeErrorKind::Refused));
        group.set_max(None).unwrap();
    }
    assert!(checkpoint(&request, None).is_ok());
}

#[test]
fn without_shares_only_a_group_within_its_min_passes() {
    let house = House::new(None);
    let blocks = Blocks::of(&house.small, 10 * MIB);
    let error = checkpoint(&house.small, None).unwrap_err();
    assert_eq!(error.group(), house.tenants.id());
    house.small.set_min(10 * MIB).unwrap();
    checkpoint(&house.small, None).unwrap();
    let more = Blocks::of(&house.small, 1);
    assert_eq!(checkpoint(&house.small, None).unwrap_err().group(), house.tenants.id());
    drop((more, blocks));
}

#[test]
fn a_large_min_below_a_limit_is_no_way_past_it() {
    for share in [None, Some(8)] {
        let hierarchy = exact();
        let tenant = hierarchy.create("/tenant").unwrap();
        tenant.set_max(64 * MIB).unwrap();
        share.into_iter().for_each(|share| tenant.set_share(share).unwrap());
        // One group with more than there is, and then ten that have too much together.
        for (groups, min, used) in [(1, 1 << 40, 65), (10, 60 * MIB, 59)] {
            let below: Vec<Group> = (0..groups).map(|at| tenant.create(&format!("{at}")).unwrap()).collect();
            let blocks: Vec<Blocks> = below
                .iter()
                .map(|group| {
                    group.set_min(min).unwrap();
                    Blocks::of(group, used * MIB)
                })
                .collect();
            for group in &below {
                let error = checkpoint(group, None).unwrap_err();
                assert!(error.group() == tenant.id() || error.is_by_share(), "{error}");
            }
            drop(blocks);
            below.into_iter().for_each(|group| group.remove().unwrap());
        }
    }
}

#[test]
fn a_level_above_that_is_full_of_its_own_excess_refuses_it() {
    let house = House::new(Some(8));
    let root = house.tenants.parent().unwrap();
    root.set_max(60 * MIB).unwrap();
    let _blocks = Blocks::of(&house.small, MIB);
    // Right below the root it is all tenants together that are above.
    assert_eq!(checkpoint(&house.small, None).unwrap_err().group(), root.id());
    root.set_share(8).unwrap();
    let error = checkpoint(&house.small, None).unwrap_err();
    assert_eq!(error.group(), house.tenants.id(), "{error}");
}

#[test]
fn a_checkpoint_that_waits_charges_nothing() {
    let house = House::new(None);
    let blocks = Blocks::of(&house.small, 10 * MIB);
    let hog = Mutex::new(house.requests);
    let waits = || house.tenants.waiters().now;
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while waits() == 0 {
                std::thread::yield_now();
            }
            hog.lock().unwrap().clear();
        });
        checkpoint_of(&house.small, Instant::now() + Duration::from_secs(3600)).unwrap();
    });
    assert_eq!(house.tenants.usage_exact(), 10 * MIB);
    drop(blocks);
}

fn checkpoint_of(group: &Group, deadline: Instant) -> Result<(), ChargeError> {
    let _scope = scope::enter(group);
    block::checkpoint_until(deadline)
}

#[test]
fn a_real_charge_is_refused_and_usage_stays_within_the_limit() {
    let house = House::new(Some(8));
    let before = house.tenants.usage_exact();
    let error = house.small.try_charge(MIB).unwrap_err();
    assert_eq!((error.group(), error.kind()), (house.tenants.id(), ChargeErrorKind::VictimDying), "{error}");
    assert!(error.path().as_deref() == Some("/tenants") && error.held_by().is_some());
    assert_eq!(house.tenants.usage_exact(), before);
}
