//! The reserve: a protected group that comes back is served at once, and the errors of others name
//! the reserve.

use memgroup::{BYTES_MAX, Config, Group, Hierarchy, SlotSource};

use super::cache::{MIB, PAGE, Tenant, exact, pin};

const KIB: u64 = 1 << 10;

fn parent(max: u64) -> (Hierarchy, Group) {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(max).unwrap();
    (hierarchy, parent)
}

#[test]
fn serves_an_idle_protected_group_from_the_reserve() {
    let (_hierarchy, parent) = parent(64 * MIB);
    let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
    idle.set_low(8 * MIB).unwrap();
    let (_held, refused) = pin(&busy, 64 * MIB);
    let refused = refused.unwrap();
    assert_eq!((refused.usage(), refused.max(), refused.reserved()), (63 * MIB, Some(64 * MIB), MIB));
    let told = refused.to_string();
    assert!(told.ends_with("1048576 of it kept for groups within min or low"), "{told}");
    assert_eq!((idle.headroom(), busy.headroom()), (MIB, 0));
    let (_back, refused) = pin(&idle, 2 * MIB);
    assert_eq!((idle.usage(), parent.usage()), (MIB, 64 * MIB));
    let refused = refused.expect("the reserve is used up");
    assert_eq!(refused.reserved(), 0, "nothing is kept from a group within its protection");
}

#[test]
fn bounds_the_reserve_by_limit_setting_and_unused_bytes() {
    for (max, setting, reserve, kept) in [
        (Some(64 * MIB), 8 * MIB, MIB, MIB),
        (Some(4 * MIB), 8 * MIB, MIB, 512 * KIB),
        (Some(64 * MIB), 48 * KIB, MIB, 48 * KIB),
        (Some(64 * MIB), BYTES_MAX, 3 * MIB, 3 * MIB),
        (Some(64 * MIB), 8 * MIB, 0, 0),
        (None, 8 * MIB, MIB, 0),
        (Some(0), 8 * MIB, MIB, 0),
    ] {
        let config = Config::new().stock_cap_bytes(0).protected_reserve_bytes(reserve);
        let hierarchy = Hierarchy::new(config).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
        parent.set_max(max).unwrap();
        idle.set_min(setting).unwrap();
        let headroom = max.unwrap_or(BYTES_MAX) - kept;
        assert_eq!(busy.headroom(), headroom, "max {max:?}, min {setting:?}, reserve {reserve}");
        assert_eq!(parent.headroom(), headroom, "for a charge of its own");
        let error = busy.try_charge(headroom + 1).unwrap_err();
        assert_eq!(error.reserved(), kept);
        drop(busy.try_charge(headroom).unwrap());
    }
}

#[test]
fn serves_a_charge_that_fills_the_protection() {
    let (_hierarchy, parent) = parent(16 * MIB);
    let group = parent.create("group").unwrap();
    group.set_min(8 * MIB).unwrap();
    // Beyond its protection with this charge, and no other group is protected.
    let charge = group.try_charge(16 * MIB).unwrap();
    drop(charge);
    let other = parent.create("other").unwrap();
    other.set_low(256 * KIB).unwrap();
    assert_eq!(group.try_charge(16 * MIB).unwrap_err().reserved(), 256 * KIB);
    let held = group.try_charge(16 * MIB - 256 * KIB).unwrap();
    let back = other.try_charge(256 * KIB).unwrap();
    assert_eq!(parent.usage(), 16 * MIB);
    drop((held, back));
}

#[test]
fn ignores_the_reserve_for_forced_charges() {
    let (_hierarchy, parent) = parent(16 * MIB);
    let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
    idle.set_min(MIB).unwrap();
    let held = busy.charge_forced(16 * MIB).unwrap();
    assert_eq!((parent.usage(), parent.overdraft().charges), (16 * MIB, 0));
    drop(held);
}

#[test]
fn reserves_nothing_for_a_group_without_protection() {
    let (_hierarchy, parent) = parent(16 * MIB);
    let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
    idle.set_min(8 * MIB).unwrap();
    assert_eq!(busy.headroom(), 15 * MIB);
    idle.set_min(0).unwrap();
    assert_eq!(busy.headroom(), 16 * MIB);
    idle.set_low(8 * MIB).unwrap();
    assert_eq!(busy.headroom(), 15 * MIB);
    idle.remove().unwrap();
    assert_eq!(busy.headroom(), 16 * MIB);
}

#[test]
fn serves_groups_within_their_protection_alike() {
    let (_hierarchy, parent) = parent(16 * MIB);
    let [idle, back, busy] = ["idle", "back", "busy"].map(|name| parent.create(name).unwrap());
    idle.set_min(8 * MIB).unwrap();
    back.set_low(4 * MIB).unwrap();
    let held = busy.try_charge(14 * MIB + 512 * KIB).unwrap();
    assert_eq!((busy.headroom(), idle.headroom(), back.headroom()), (512 * KIB, 1536 * KIB, 1536 * KIB));
    let all = back.try_charge(1536 * KIB).unwrap();
    assert_eq!(parent.usage(), 16 * MIB);
    drop((held, all));
    // Beyond its low it is as any other.
    assert_eq!(back.headroom(), 15 * MIB);
    assert_eq!(back.try_charge(15 * MIB + 1).unwrap_err().reserved(), MIB);
    drop(back.try_charge(15 * MIB).unwrap());
}

#[test]
fn reclaims_nothing_for_a_charge_that_cannot_fit() {
    for cap in [0, 256 * KIB] {
        let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).stock_cap_bytes(cap);
        let hierarchy = Hierarchy::new(config).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max(16 * MIB).unwrap();
        let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
        idle.set_min(8 * MIB).unwrap();
        let open = Tenant::new(&parent, "open");
        open.fill(8 * MIB);
        let refused = busy.try_charge(16 * MIB - 512 * KIB).unwrap_err();
        assert_eq!((refused.reserved(), open.group.usage_exact()), (MIB, 8 * MIB));
    }
}

#[test]
fn fills_the_reserve_before_the_charge() {
    let (_hierarchy, parent) = parent(16 * MIB);
    let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
    let open = Tenant::new(&parent, "open");
    let _pinned = busy.try_charge(16 * MIB - 256 * KIB).unwrap();
    open.fill(256 * KIB);
    idle.set_min(8 * MIB).unwrap();
    let refused = busy.try_charge(PAGE).unwrap_err();
    assert_eq!((refused.reserved(), parent.usage()), (MIB, 16 * MIB - 256 * KIB));
    let _back = idle.try_charge(256 * KIB).unwrap();
}

#[test]
fn leaves_the_reserve_to_no_stock() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(8 * MIB).unwrap();
    let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
    idle.set_min(MIB).unwrap();
    let (held, refused) = pin(&busy, 8 * MIB);
    assert_eq!((held.len() as u64 * PAGE, refused.unwrap().reserved()), (7 * MIB, MIB));
    let (back, refused) = pin(&idle, MIB);
    assert!(refused.is_none(), "batches of others are not in its way");
    drop((held, back));
}

#[test]
fn refills_the_reserve_by_reclaim() {
    let config = Config::new().stock_cap_bytes(0).protected_reserve_bytes(4 * MIB);
    let hierarchy = Hierarchy::new(config).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    let idle = parent.create("idle").unwrap();
    let open = Tenant::new(&parent, "open");
    open.fill(64 * MIB);
    // Made after all was full: the reserve is not there yet.
    idle.set_min(8 * MIB).unwrap();
    open.fill(PAGE);
    assert!(parent.usage() <= 60 * MIB, "{} are used", parent.usage());
    let (_back, refused) = pin(&idle, 8 * MIB);
    assert!(refused.is_none(), "and the rest is reclaimed");
}

/// The bytes that a charge of `child` is to leave free, by the rule of reservations alone.
fn reserved_for_others(groups: &[Group], child: usize, bytes: u64) -> u64 {
    if groups[child].usage_exact() + bytes <= groups[child].min() {
        return 0;
    }
    let unused = |group: &Group| group.min().saturating_sub(group.usage_exact());
    groups.iter().enumerate().filter(|&(other, _)| other != child).map(|(_, group)| unused(group)).sum()
}

#[test]
fn a_parent_that_reserves_keeps_each_unused_min_free_to_the_byte() {
    for seed in 0..20 {
        let config = Config::new().stock_cap_bytes(0).protected_reserve_bytes(0);
        let hierarchy = Hierarchy::new(config).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max(MIB).unwrap();
        let groups: Vec<_> = (0..4).map(|number| parent.create(&number.to_string()).unwrap()).collect();
        let (mut random, mut held, mut refused) = (0x9E37_79B9_u64 * (seed + 1), Vec::new(), 0);
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for _ in 0..2000 {
            let child = draw(4) as usize;
            match draw(10) {
                0 => groups[child].set_min(draw(MIB / 4)).unwrap(),
                1 => parent.set_reserve_min(draw(4) > 0).unwrap(),
                2..=4 if !held.is_empty() => drop(held.swap_remove(draw(held.len() as u64) as usize)),
                _ => {
                    let bytes = 1 + draw(MIB / 8);
                    let kept =
                        if parent.reserves_min() { reserved_for_others(&groups, child, bytes) } else { 0 };
                    let fits = parent.usage_exact() + bytes + kept <= MIB;
                    match groups[child].try_charge(bytes) {
                        Ok(charge) => {
                            assert!(fits, "seed {seed}: {kept} bytes were to be left free");
                            held.push(charge);
                        }
                        Err(error) => {
                            assert!(!fits, "seed {seed}: {error}");
                            assert_eq!(error.reserved(), kept, "seed {seed}");
                            refused += 1;
                        }
                    }
                }
            }
        }
        assert!(refused > 100, "seed {seed}: {refused}");
    }
}

#[test]
fn a_hoarder_that_comes_first_leaves_a_reserved_min_free() {
    for stock in [0, 64 * KIB] {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(stock)).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max(64 * MIB).unwrap();
        let [idle, open, hoarder] = ["idle", "open", "hoarder"].map(|name| parent.create(name).unwrap());
        idle.set_min(24 * MIB).unwrap();
        open.set_min(BYTES_MAX).unwrap(); // all that it holds is protected: that is no number of bytes to reserve
        parent.set_reserve_min(true).unwrap();
        let (_held, refused) = pin(&hoarder, 64 * MIB);
        assert_eq!(refused.unwrap().reserved(), 24 * MIB);
        let (_own, refused) = pin(&idle, 24 * MIB);
        assert!(refused.is_none(), "{refused:?}");
        parent.remove().unwrap_err();
        for group in [&idle, &open, &hoarder] {
            group.remove().unwrap();
        }
        parent.remove().unwrap();
        assert!(parent.set_reserve_min(true).unwrap_err().to_string().contains("was removed"));
        assert!(!parent.reserves_min());
    }
}

#[test]
fn a_waiting_charge_goes_on_when_a_reservation_ends() {
    let (_hierarchy, parent) = parent(8 * MIB);
    let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
    idle.set_min(4 * MIB).unwrap();
    parent.set_reserve_min(true).unwrap();
    let (_held, _refused) = pin(&busy, 4 * MIB);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| busy.charge_until(MIB, None));
        while parent.waiters().now == 0 {
            std::thread::yield_now();
        }
        parent.set_reserve_min(false).unwrap();
        assert!(waiter.join().unwrap().is_ok());
    });
}

#[test]
fn a_child_beyond_its_min_leaves_what_others_have_reserved_also_within_its_low() {
    for stock in [0, 64 * KIB] {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(stock)).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max(32 * MIB).unwrap();
        let [idle, low] = ["idle", "low"].map(|name| parent.create(name).unwrap());
        idle.set_min(8 * MIB).unwrap();
        low.set_min(2 * MIB).unwrap();
        low.set_low(32 * MIB).unwrap();
        parent.set_reserve_min(true).unwrap();
        let (held, refused) = pin(&low, 32 * MIB);
        assert_eq!((held.len() as u64 * PAGE, refused.unwrap().reserved()), (24 * MIB, 8 * MIB));
        drop(held);
        // The small reserve stays where it is more than the reservations.
        idle.set_min(0).unwrap();
        idle.set_low(8 * MIB).unwrap();
        low.set_low(0).unwrap();
        let (held, refused) = pin(&low, 32 * MIB);
        assert_eq!((held.len() as u64 * PAGE, refused.unwrap().reserved()), (31 * MIB, MIB));
    }
}
