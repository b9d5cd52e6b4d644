//! The reserve: a protected group that comes back finds room at once, and others are told what theirs is kept for.

use memgroup::{Config, Group, Hierarchy, SlotSource, UNLIMITED};

use crate::cache::{MIB, PAGE, Tenant, exact, pin};

const KIB: u64 = 1 << 10;

fn parent(max: u64) -> (Hierarchy, Group) {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(max).unwrap();
    (hierarchy, parent)
}

#[test]
fn a_protected_group_that_was_idle_is_served_where_nothing_can_be_reclaimed() {
    let (_hierarchy, parent) = parent(64 * MIB);
    let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
    idle.set_low(8 * MIB).unwrap();
    let (_held, refused) = pin(&busy, 64 * MIB);
    let refused = refused.unwrap();
    assert_eq!((refused.usage(), refused.max(), refused.reserved()), (63 * MIB, 64 * MIB, MIB));
    let told = refused.to_string();
    assert!(told.ends_with("1048576 of it kept for groups within min or low"), "{told}");
    assert_eq!((idle.headroom(), busy.headroom()), (MIB, 0));
    let (_back, refused) = pin(&idle, 2 * MIB);
    assert_eq!((idle.usage(), parent.usage()), (MIB, 64 * MIB));
    let refused = refused.expect("what was kept is used up");
    assert_eq!(refused.reserved(), 0, "nothing is kept from a group within its protection");
}

#[test]
fn what_is_kept_is_at_most_an_eighth_of_the_limit_the_setting_and_what_is_not_filled() {
    for (max, setting, reserve, kept) in [
        (64 * MIB, 8 * MIB, MIB, MIB),
        (4 * MIB, 8 * MIB, MIB, 512 * KIB),
        (64 * MIB, 48 * KIB, MIB, 48 * KIB),
        (64 * MIB, UNLIMITED, 3 * MIB, 3 * MIB),
        (64 * MIB, 8 * MIB, 0, 0),
        (UNLIMITED, 8 * MIB, MIB, 0),
        (0, 8 * MIB, MIB, 0),
    ] {
        let config = Config::new().stock_cap_bytes(0).protected_reserve_bytes(reserve);
        let hierarchy = Hierarchy::new(config).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
        parent.set_max(max).unwrap();
        idle.set_min(setting).unwrap();
        let headroom = max.min((1 << 48) - 1) - kept;
        assert_eq!(busy.headroom(), headroom, "max {max}, min {setting}, reserve {reserve}");
        assert_eq!(parent.headroom(), headroom, "for a charge of its own");
        let error = busy.try_charge(headroom + 1).unwrap_err();
        assert_eq!(error.reserved(), kept);
        drop(busy.try_charge(headroom).unwrap());
    }
}

#[test]
fn a_charge_that_fills_a_groups_protection_is_not_kept_from_what_is_kept_for_it() {
    let (_hierarchy, parent) = parent(16 * MIB);
    let group = parent.create("group").unwrap();
    group.set_min(8 * MIB).unwrap();
    // Beyond its protection with this charge, and nobody else is protected.
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
fn forced_charges_do_not_ask_what_is_kept() {
    let (_hierarchy, parent) = parent(16 * MIB);
    let [idle, busy] = ["idle", "busy"].map(|name| parent.create(name).unwrap());
    idle.set_min(MIB).unwrap();
    let held = busy.charge_forced(16 * MIB).unwrap();
    assert_eq!((parent.usage(), parent.overdraft().charges), (16 * MIB, 0));
    drop(held);
}

#[test]
fn nothing_is_kept_for_a_group_that_was_removed_or_is_protected_no_more() {
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
fn a_group_within_its_protection_need_not_leave_anything_for_another() {
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
fn a_charge_that_cannot_fit_beside_what_is_kept_takes_nothing_from_anybody() {
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
fn what_is_set_free_for_a_charge_is_not_its_own_before_what_is_kept_is_there() {
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
fn stocks_leave_what_is_kept_alone() {
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
fn what_is_reclaimed_for_a_group_without_protection_brings_back_what_is_kept() {
    let config = Config::new().stock_cap_bytes(0).protected_reserve_bytes(4 * MIB);
    let hierarchy = Hierarchy::new(config).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    let idle = parent.create("idle").unwrap();
    let open = Tenant::new(&parent, "open");
    open.fill(64 * MIB);
    // Made after all was full: what is to be kept is not there yet.
    idle.set_min(8 * MIB).unwrap();
    open.fill(PAGE);
    assert!(parent.usage() <= 60 * MIB, "{} are used", parent.usage());
    let (_back, refused) = pin(&idle, 8 * MIB);
    assert!(refused.is_none(), "and the rest is reclaimed");
}
