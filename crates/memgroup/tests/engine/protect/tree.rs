//! One tree with every case of protection. Siblings ask for more than their parent is protected
//! with; one is unprotected, one is empty. A neighbour needs memory.
//!
//! ```text
//!   a  max 200M
//!   ├─ b  50M            c  75M, holds 50M    e  0, holds 50M
//!   │  └─ c, d, e, f     d  25M, holds 50M    f  500M, holds nothing
//!   └─ g  cannot give anything back
//! ```

use memgroup::{Charge, Config, Group, Hierarchy};

use super::cache::{MIB, Tenant, assert_close, exact, pin};

struct Tree {
    _hierarchy: Hierarchy,
    a: Group,
    b: Group,
    children: [Tenant; 4],
    g: Group,
}

impl Tree {
    fn new(protect: impl Fn(&Group, u64)) -> Tree {
        let hierarchy = exact();
        let a = hierarchy.create("/a").unwrap();
        a.set_max(200 * MIB).unwrap();
        let b = a.create("b").unwrap();
        protect(&b, 50 * MIB);
        let children = [("c", 75), ("d", 25), ("e", 0), ("f", 500)].map(|(name, protected)| {
            let tenant = Tenant::new(&b, name);
            protect(&tenant.group, protected * MIB);
            tenant
        });
        children[..3].iter().for_each(|tenant| tenant.fill(50 * MIB));
        let g = a.create("g").unwrap();
        Tree { _hierarchy: hierarchy, a, b, children, g }
    }

    fn assert_shares(&self) {
        let [c, d, e, f] = &self.children;
        assert_close("b", self.b.usage(), 50 * MIB, 3);
        assert_close("c", c.usage(), 29 * MIB, 10);
        assert_close("d", d.usage(), 21 * MIB, 10);
        assert!(e.usage() < MIB, "e has {} and is not protected", e.usage());
        assert_eq!(f.usage(), 0);
    }

    fn assert_no_oom(&self) {
        assert_eq!((self.a.events().oom, self.a.events().oom_kill), (0, 0));
    }

    fn neighbour_takes(&self, mib: u64) -> Vec<Charge> {
        let (pinned, refused) = pin(&self.g, mib * MIB);
        assert_eq!(refused.map(|error| error.to_string()), None);
        pinned
    }
}

fn set_min(group: &Group, bytes: u64) {
    group.set_min(bytes).unwrap();
}

fn set_low(group: &Group, bytes: u64) {
    group.set_low(bytes).unwrap();
}

#[test]
fn shares_min_among_siblings_and_refuses_a_neighbour() {
    let tree = Tree::new(set_min);
    let held = tree.neighbour_takes(148);
    tree.assert_shares();
    drop(held);
    let (held, refused) = pin(&tree.g, 170 * MIB);
    let refused = refused.expect("170M and the bytes within min are more than 200M");
    assert_eq!(refused.group(), tree.a.id());
    assert_close("b", tree.b.usage(), 50 * MIB, 3);
    assert!(tree.b.usage() >= 50 * MIB, "b was taken below its min, to {}", tree.b.usage());
    drop(held);
    assert_eq!(tree.a.events().low, 0);
    let c = &tree.children[0];
    c.fill(30 * MIB);
    let reclaimed = c.group.reclaim(c.usage() - 10 * MIB, None);
    assert_close("c", c.usage(), 10 * MIB, 3);
    assert!(reclaimed.bytes > 0);
}

#[test]
fn shares_low_among_siblings_until_nothing_else_is_left() {
    let tree = Tree::new(set_low);
    let held = tree.neighbour_takes(148);
    tree.assert_shares();
    assert_eq!(tree.a.events().low, 0);
    drop(held);
    let _held = tree.neighbour_takes(170);
    assert_close("b", tree.b.usage(), 30 * MIB, 3);
    let [c, d, e, f] = &tree.children;

    assert!(c.group.events().low > 0 && d.group.events().low > 0);
    assert_eq!((e.group.events().low, f.group.events().low), (0, 0));
    assert_eq!(tree.b.events().low, c.group.events().low + d.group.events().low);
    tree.assert_no_oom();
    // By hand, a group that is protected is exempt, and this is no need of others.
    let low = c.group.events().low;
    let reclaimed = c.group.reclaim(c.usage() - 10 * MIB, None);
    assert_close("c", c.usage(), 10 * MIB, 3);
    assert!(reclaimed.bytes > 0);
    assert_eq!(c.group.events().low, low);
}

#[test]
fn adds_the_scans_that_spared_low_and_those_that_did_not() {
    let hierarchy = exact();
    let (plain, low) = (Tenant::new(&hierarchy.root(), "plain"), Tenant::new(&hierarchy.root(), "low"));
    plain.fill(2 * MIB);
    low.fill(2 * MIB);
    low.group.set_low(2 * MIB).unwrap();
    let reclaimed = hierarchy.root().reclaim(3 * MIB, None);
    let scans: Vec<u64> = hierarchy.shrinkers().iter().map(|shrinker| shrinker.scans).collect();
    assert!(scans.len() == 2 && scans.iter().all(|&scans| scans > 0), "{scans:?}");
    assert_eq!((reclaimed.scans, reclaimed.bytes), (scans.iter().sum(), 3 * MIB));
    assert_eq!((plain.usage(), low.usage()), (0, MIB));
}

#[test]
fn protects_children_without_settings() {
    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    a.set_max(100 * MIB).unwrap();
    let b = a.create("b").unwrap();
    b.set_min(40 * MIB).unwrap();
    let [c, d] = ["c", "d"].map(|name| Tenant::new(&b, name));
    c.fill(20 * MIB);
    d.fill(60 * MIB);
    let g = a.create("g").unwrap();
    let (_held, refused) = pin(&g, 59 * MIB);
    assert!(refused.is_none());
    assert!(b.usage() >= 40 * MIB);
    // It has more than its part of the rest: the larger one gave.
    assert!(c.usage() >= 10 * MIB && d.usage() >= 10 * MIB, "{} and {}", c.usage(), d.usage());
    assert_eq!(b.events().low, 0);
}

#[test]
fn protects_a_group_from_its_own_charges() {
    let hierarchy = exact();
    let a = hierarchy.create("/a").unwrap();
    a.set_max(10 * MIB).unwrap();
    let b = Tenant::new(&a, "b");
    b.group.set_min(10 * MIB).unwrap();
    b.fill(10 * MIB);
    let refused = b.try_fill(MIB).unwrap_err();
    assert_eq!((refused.group(), b.usage()), (a.id(), 10 * MIB));
    // Its own limit is another matter: there it is the one that needs memory.
    b.group.set_max(10 * MIB).unwrap();
    b.fill(MIB);
    assert_eq!(b.usage(), 10 * MIB);
}

#[test]
fn takes_from_all_siblings_below_another_group() {
    // A tree that no other test has used: turns go by the places that siblings ever had.
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0).groups_max(4321)).unwrap();
    let a = hierarchy.create("/a").unwrap();
    a.set_max(60 * MIB).unwrap();
    let b = a.create("b").unwrap();
    let [c, d] = ["c", "d"].map(|name| Tenant::new(&b, name));
    c.fill(20 * MIB);
    d.fill(20 * MIB);
    let (_held, refused) = pin(&a.create("g").unwrap(), 40 * MIB);
    assert!(refused.is_none());
    assert!(c.usage() >= 8 * MIB && d.usage() >= 8 * MIB, "{} and {}", c.usage(), d.usage());
}
