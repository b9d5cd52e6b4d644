//! Rounds: `low` is spared while another group has something, and counted when it is not.

use std::sync::Mutex;

use memgroup::{Ask, Charge, Count, Events, Group, Scan, Shrinker, ShrinkerConfig};

use super::cache::{MIB, Tenant, exact, pin};

#[test]
fn spares_low_until_nothing_else_is_left_and_counts_it() {
    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    a.set_max(30 * MIB).unwrap();
    let [low, open] = ["low", "open"].map(|name| Tenant::new(&a, name));
    low.group.set_low(10 * MIB).unwrap();
    low.fill(10 * MIB);
    open.fill(20 * MIB);
    let (held, refused) = pin(&a.create("g").unwrap(), 20 * MIB);
    assert!(refused.is_none());
    assert_eq!((low.usage(), open.usage(), low.group.events()), (10 * MIB, 0, Events::default()));
    let (more, refused) = pin(&a, MIB);
    assert!(refused.is_none());
    assert!(low.usage() < 10 * MIB && low.group.events().low > 0);
    assert_eq!(open.group.events().low, 0);
    assert_eq!((a.events_local().low, a.events().low), (0, low.group.events().low));
    drop((held, more));
}

#[test]
fn counts_low_only_where_it_protects() {
    /// Gives nothing before another group has given its bytes within `low`.
    struct Late(Mutex<Charge>, Group);

    impl Shrinker for Late {
        fn count(&self, _token: u64) -> Count {
            Count::of(self.0.lock().unwrap().bytes(), 1)
        }

        fn scan(&self, ask: &Ask<'_>) -> Scan {
            let mut held = self.0.lock().unwrap();
            let bytes = if self.1.usage() < self.1.low() { ask.bytes().min(held.bytes()) } else { 0 };
            held.shrink(bytes);
            Scan::Freed { bytes }
        }
    }

    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    let low = Tenant::new(&a, "low");
    low.group.set_low(4 * MIB).unwrap();
    low.fill(4 * MIB);
    let open = a.create("open").unwrap();
    let late = Late(Mutex::new(open.try_charge(4 * MIB).unwrap()), low.group.clone());
    let shrinker = open.add_shrinker(ShrinkerConfig::new("late"), late).unwrap();
    shrinker.mark();
    a.reclaim(8 * MIB, None);
    assert!(open.usage() < 4 * MIB && low.usage() < 4 * MIB);
    assert!(low.group.events().low > 0);
    assert_eq!(open.events().low, 0);
}

#[test]
fn low_does_not_protect_below_min() {
    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    a.set_max(20 * MIB).unwrap();
    let both = Tenant::new(&a, "both");
    both.group.set_low(20 * MIB).unwrap();
    both.group.set_min(5 * MIB).unwrap();
    both.fill(20 * MIB);
    let (held, refused) = pin(&a, 20 * MIB);
    // A reserve is left free for the bytes within its low that were taken.
    assert_eq!(refused.unwrap().reserved(), MIB);
    assert_eq!((both.usage(), held.len() as u64 * super::cache::PAGE), (5 * MIB, 14 * MIB));
    assert!(both.group.events().low > 0);
}

#[test]
fn spares_children_but_not_the_group_reclaimed_by_hand() {
    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    let own = Tenant::new(&a, "own");
    own.group.set_min(8 * MIB).unwrap();
    let [low, min] = ["low", "min"].map(|name| Tenant::new(&own.group, name));
    low.group.set_low(4 * MIB).unwrap();
    min.group.set_min(4 * MIB).unwrap();
    for tenant in [&own, &low, &min] {
        tenant.fill(4 * MIB);
    }
    // First the group's own cache, which is not protected from itself.
    own.group.reclaim(4 * MIB, None);
    assert_eq!((own.usage(), low.usage(), min.usage()), (8 * MIB, 4 * MIB, 4 * MIB));
    assert_eq!(own.group.events().low, 0);
    // Then the bytes within low, and none within min.
    own.group.reclaim(8 * MIB, None);
    assert_eq!((own.usage(), low.usage(), min.usage()), (4 * MIB, 0, 4 * MIB));
    assert!(low.group.events_local().low > 0);
    assert_eq!(min.group.reclaim(MIB, None).bytes, MIB);
}

#[test]
fn reclaims_by_hand_in_an_accounted_root_and_another() {
    for account_root in [true, false] {
        let config = memgroup::Config::new().account_root(account_root).stock_cap_bytes(0);
        let hierarchy = memgroup::Hierarchy::new(config).unwrap();
        let [min, open] = ["min", "open"].map(|name| Tenant::new(&hierarchy.root(), name));
        min.group.set_min(2 * MIB).unwrap();
        min.fill(4 * MIB);
        open.fill(4 * MIB);
        hierarchy.root().reclaim(100 * MIB, None);
        assert_eq!((min.usage(), open.usage()), (2 * MIB, 0), "root accounted: {account_root}");
    }
}
