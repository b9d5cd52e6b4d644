//! Settings: their range, their errors, and the figures that follow from them.

use memgroup::{BYTES_MAX, Config, Hierarchy, Protection, ProtectionError};

use super::cache::{MIB, exact};

#[test]
fn returns_the_settings_that_were_set() {
    let hierarchy = exact();
    let group = hierarchy.create("/group").unwrap();
    assert_eq!((group.min(), group.low()), (0, 0));
    group.set_min(5).unwrap();
    group.set_low(BYTES_MAX).unwrap();
    assert_eq!((group.min(), group.low()), (5, BYTES_MAX));
    group.set_min(0).unwrap();
    assert_eq!((group.min(), group.low()), (0, BYTES_MAX));
    assert_eq!(group.protection(), Protection { min: 0, low: BYTES_MAX }, "all that a group can account");
}

#[test]
fn names_group_and_range_in_errors() {
    let hierarchy = exact();
    let group = hierarchy.create("/group").unwrap();
    group.set_min(7).unwrap();
    for error in [group.set_min(1 << 48).unwrap_err(), group.set_low(u64::MAX).unwrap_err()] {
        assert!(matches!(error, ProtectionError::OutOfRange { .. }));
        assert!(
            error.to_string().contains("/group")
                && error.to_string().contains("0 to 281474976710655, which protects all"),
            "{error}"
        );
    }
    assert_eq!((group.min(), group.low()), (7, 0), "the settings before are in force");
    group.remove().unwrap();
    let error = group.set_low(1).unwrap_err();
    assert_eq!(error.to_string(), "set low of group /group: it was removed; protect a group that is online");
    assert_eq!((group.min(), group.low()), (0, 0));
}

#[test]
fn refuses_a_reserve_that_is_too_large() {
    let error = Hierarchy::new(Config::new().protected_reserve_bytes((1 << 39) + 1)).unwrap_err();
    assert!(error.to_string().starts_with("protected_reserve_bytes is 549755813889"), "{error}");
    Hierarchy::new(Config::new().protected_reserve_bytes(1 << 39)).unwrap();
}

#[test]
fn protects_depending_on_the_group_that_needs_memory() {
    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    let [b, beside] = ["b", "beside"].map(|name| a.create(name).unwrap());
    let [c, d] = ["c", "d"].map(|name| b.create(name).unwrap());
    b.set_min(50 * MIB).unwrap();
    c.set_min(75 * MIB).unwrap();
    d.set_low(10 * MIB).unwrap();
    let _held = [c.try_charge(60 * MIB).unwrap(), d.try_charge(20 * MIB).unwrap()];
    let of = |min: u64, low: u64| Protection { min: min * MIB, low: low * MIB };
    assert_eq!(b.protection_within(&a), of(50, 0));
    assert_eq!((c.protection_within(&a), d.protection_within(&a)), (of(50, 0), of(0, 0)));
    assert_eq!((c.protection_within(&b), d.protection_within(&b)), (of(75, 0), of(0, 10)));
    assert_eq!(c.protection(), Protection::default(), "nothing protects a");
    assert_eq!(c.protection_within(&c), Protection::default(), "the group that needs memory is exempt");
    assert_eq!(c.protection_within(&beside), Protection::default());
    let stranger = exact().create("/a").unwrap();
    assert_eq!(c.protection_within(&stranger), Protection::default());
}

#[test]
fn computes_the_same_in_one_pass() {
    let hierarchy = exact();
    let mut random = super::super::random::Random(0x5eed);
    let mut groups = vec![hierarchy.root()];
    let mut held = Vec::new();
    for number in 0..500 {
        let parent = groups[random.below(groups.len() as u64) as usize].clone();
        let Ok(group) = parent.create(&number.to_string()) else { continue };
        held.push(group.try_charge(random.bytes(24)).unwrap());
        group.set_min(random.bytes(24) - 1).unwrap();
        group.set_low(random.bytes(24) - 1).unwrap();
        groups.push(group);
    }
    for top in &groups {
        let mut found = top.protections();
        found.sort_by_key(|(id, _)| *id);
        let below = |group: &&memgroup::Group| {
            std::iter::successors(group.parent(), |group| group.parent()).any(|above| above == *top)
        };
        let mut each: Vec<_> =
            groups.iter().filter(below).map(|group| (group.id(), group.protection_within(top))).collect();
        each.sort_by_key(|(id, _)| *id);
        assert_eq!(found, each);
    }
}
