//! Bounds on the groups below a group: which creations they refuse, and that the counts are exact.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use memgroup::{Charge, Config, Freshness, Group, GroupError, Hierarchy, Reach, SlotSource, stats};
use proptest::prelude::*;

fn config() -> Config {
    Config::with_slots(SlotSource::virtual_slots(2).unwrap())
}

fn hierarchy() -> Hierarchy {
    Hierarchy::new(config()).unwrap()
}

fn is_bounded(created: &Result<Group, GroupError>) -> bool {
    match created {
        Err(GroupError::TooManyDescendants { .. }) => true,
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}

/// Creates groups below `group`, until its bound refuses one. Returns how many were created.
fn fill(group: &Group) -> usize {
    // A name is used once.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = || format!("fill-{}", NUMBER.fetch_add(1, Relaxed));
    std::iter::repeat_with(|| group.create(&name())).take_while(|created| !is_bounded(created)).count()
}

#[test]
fn refuse_a_group_on_any_level_and_name_the_one_with_the_bound() {
    let h = hierarchy();
    let tenants = h.create("/tenants").unwrap();
    let alice = h.create("/tenants/alice").unwrap();
    alice.set_max_descendants(3);
    for path in ["/tenants/alice/a", "/tenants/alice/a/b", "/tenants/alice/a/b/c"] {
        h.create(path).unwrap();
    }
    let refused = |path: &str| GroupError::TooManyDescendants {
        path: path.to_owned(),
        group: "/tenants/alice".to_owned(),
        descendants: 3,
        max_descendants: 3,
    };
    for path in ["/tenants/alice/d", "/tenants/alice/a/d", "/tenants/alice/a/b/c/d"] {
        assert_eq!(h.create(path), Err(refused(path)));
        assert_eq!(h.get_or_create(path), Err(refused(path)));
        assert_eq!(h.get_or_create_owned(path), Err(refused(path)));
    }
    assert_eq!(alice.create_owned("d"), Err(refused("/tenants/alice/d")));
    assert_eq!(
        refused("/tenants/alice/d").to_string(),
        "group /tenants/alice/d would be one too many below /tenants/alice, which has 3 groups below it and a \
         bound of 3; remove groups there, whose last bytes and handles must be gone too, or raise the bound by \
         set_max_descendants or cgroup.max.descendants"
    );
    // What was wrong before is the error still.
    assert!(matches!(h.create("/tenants/alice/a"), Err(GroupError::Exists { .. })));
    assert!(matches!(alice.create("a/b"), Err(GroupError::InvalidName { .. })));
    h.create("/tenants/bob").unwrap();
    // Two groups have a bound, and the lower one is named.
    tenants.set_max_descendants(0);
    assert_eq!(alice.create("d"), Err(refused("/tenants/alice/d")));
    alice.set_max_descendants(4);
    let error = alice.create("d").unwrap_err();
    assert!(
        matches!(&error, GroupError::TooManyDescendants { group, descendants: 5, .. } if group == "/tenants")
    );
    assert_eq!((tenants.max_descendants(), alice.max_descendants()), (Some(0), Some(4)));
    tenants.set_max_descendants(None);
    assert_eq!((fill(&alice), tenants.max_descendants()), (1, None));
}

#[test]
fn set_below_the_present_number_they_only_refuse_further_groups() {
    let h = hierarchy();
    let alice = h.create("/alice").unwrap();
    let groups: Vec<_> = (0..10).map(|number| alice.create(&format!("{number}")).unwrap()).collect();
    alice.set_max_descendants(4);
    assert_eq!((alice.child_count(), fill(&alice)), (10, 0));
    for (number, group) in groups.into_iter().enumerate() {
        group.remove().unwrap();
        drop(group);
        assert_eq!(is_bounded(&alice.create("new")), number < 6);
        if number >= 6 {
            h.lookup("/alice/new").unwrap().remove().unwrap();
        }
    }
    assert_eq!(fill(&alice), 4);
    h.root().set_max_descendants(7);
    h.create("/bob").unwrap();
    assert_eq!(fill(&h.root()), 1, "the root has a bound, too");
}

#[test]
fn bound_the_depth() {
    let h = hierarchy();
    let alice = h.create("/alice").unwrap();
    assert_eq!((alice.max_depth(), alice.max_descendants()), (None, None));
    alice.set_max_depth(0);
    let error = alice.create("x").unwrap_err();
    assert_eq!(
        error.to_string(),
        "group /alice/x would be 1 levels below /alice, whose bound is 0; create it further up, or raise the \
         bound by set_max_depth or cgroup.max.depth"
    );
    alice.set_max_depth(2);
    let y = h.get_or_create("/alice/x/y").unwrap();
    let refused = |group: &str, depth, max_depth| GroupError::TooDeepBelow {
        path: "/alice/x/y/z".to_owned(),
        group: group.to_owned(),
        depth,
        max_depth,
    };
    assert_eq!(y.create("z"), Err(refused("/alice", 3, 2)));
    h.root().set_max_depth(1);
    assert_eq!(y.create("z"), Err(refused("/alice", 3, 2)));
    alice.set_max_depth(None);
    assert_eq!(y.create("z"), Err(refused("/", 4, 1)));
    assert!(h.create("/bob").is_ok() && alice.max_depth().is_none());
    h.root().set_max_depth(4);
    assert!(y.create("z").is_ok());
    alice.set_max_depth(1);
    assert!(alice.create("beside").is_ok() && y.create("deep").is_err(), "groups that are there stay");
}

#[test]
fn count_removed_groups_until_their_last_byte_and_handle_are_gone() {
    let h = hierarchy();
    let alice = h.create("/alice").unwrap();
    alice.set_max_descendants(20);
    let (mut charges, mut handles) = (Vec::new(), Vec::new());
    let refused = loop {
        match alice.create("request") {
            Ok(request) => {
                charges.push(request.try_charge(1).unwrap());
                request.remove().unwrap();
                if charges.len() % 2 == 0 {
                    handles.push(request);
                }
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, GroupError::TooManyDescendants { descendants: 20, .. }), "{refused}");
    assert_eq!((charges.len(), alice.child_count()), (20, 0));
    let bob = h.create("/bob").unwrap();
    assert!(bob.create("request").is_ok());
    charges.clear();
    assert_eq!(fill(&alice), 10, "ten have handles");
    handles.clear();
    assert_eq!(fill(&alice), 10);
    for group in alice.children() {
        group.remove().unwrap();
    }
    assert_eq!(fill(&alice), 20);
}

#[test]
fn count_the_descendants_of_removed_groups() {
    let h = hierarchy();
    let alice = h.create("/alice").unwrap();
    let leaf = h.get_or_create("/alice/a/b/c/d").unwrap();
    let charge = leaf.try_charge(1).unwrap();
    alice.set_max_descendants(4);
    h.lookup("/alice/a").unwrap().remove_all().unwrap();
    drop(leaf);
    assert_eq!(fill(&alice), 0, "the byte keeps its group and the three above");
    drop(charge);
    assert_eq!(fill(&alice), 4);
}

#[test]
fn count_no_group_that_was_not_created() {
    let h = Hierarchy::new(config().groups_max(250).depth_max(4)).unwrap();
    let alice = h.create("/alice").unwrap();
    alice.set_max_descendants(5);
    alice.create("taken").unwrap();
    let deep = h.get_or_create("/alice/taken/b/c").unwrap();
    for _ in 0..20 {
        assert!(matches!(alice.create("taken"), Err(GroupError::Exists { .. })));
        assert!(matches!(alice.create(".."), Err(GroupError::InvalidName { .. })));
        assert!(matches!(deep.create("d"), Err(GroupError::TooDeep { .. })));
        alice.set_max_depth(0);
        assert!(matches!(alice.create("d"), Err(GroupError::TooDeepBelow { .. })));
        alice.set_max_depth(None);
    }
    assert_eq!(fill(&alice), 2);
    for number in 0.. {
        if let Err(error) = h.create(&format!("/more-{number}")) {
            assert_eq!(error, GroupError::TooMany { groups_max: 250 });
            break;
        }
    }
    alice.set_max_descendants(6);
    assert_eq!(alice.create("full"), Err(GroupError::TooMany { groups_max: 250 }));
    h.lookup("/more-0").unwrap().remove().unwrap();
    assert_eq!(fill(&alice), 1);
}

#[test]
fn go_with_their_group_and_with_their_hierarchy() {
    let h = hierarchy();
    let group = h.create("/a").unwrap();
    group.set_max_descendants(0);
    group.set_max_depth(0);
    let place = group.id().node();
    group.remove().unwrap();
    assert_eq!((group.max_descendants(), group.max_depth()), (Some(0), Some(0)));
    drop(group);
    let next = h.create("/b").unwrap();
    assert_eq!((next.id().node(), next.max_descendants(), next.max_depth()), (place, None, None));
    h.get_or_create("/b/c/d").unwrap();
    let kind = config().groups_max(4711);
    for _ in 0..3 {
        let h = Hierarchy::new(kind).unwrap();
        assert_eq!((h.root().max_descendants(), h.root().max_depth()), (None, None));
        h.get_or_create("/x/y").unwrap();
        h.root().set_max_descendants(2);
        h.root().set_max_depth(2);
        assert_eq!(fill(&h.root()), 0);
    }
}

#[test]
fn keep_one_tenant_from_taking_the_groups_of_all() {
    const GROUPS: u32 = 2000;
    let h = Hierarchy::new(config().groups_max(GROUPS)).unwrap();
    let (alice, bob) = (h.create("/alice").unwrap(), h.create("/bob").unwrap());
    alice.set_max(1).unwrap();
    alice.set_max_descendants(GROUPS / 2);
    let long = "n".repeat(240);
    let made = (0..).take_while(|number| !is_bounded(&alice.create(&format!("{long}-{number}")))).count();
    assert_eq!(made, 1000);
    assert!(bob.create("request-1").is_ok());
}

/// Creates groups below the one of this path until there is no place, and uses each. Returns how
/// many it created.
fn take(h: &Hierarchy, groups_max: u32, path: &str) -> u32 {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let group = h.lookup(path).unwrap();
    let take_one = || match group.create(&format!("take-{}", NUMBER.fetch_add(1, Relaxed))) {
        Ok(created) => {
            h.io().add(&created, stats::io::WIOS, 1);
            let charge = created.try_charge(7).unwrap();
            assert_eq!((created.usage_exact(), charge.group().id()), (7, created.id()));
            true
        }
        Err(error) => {
            assert_eq!(error, GroupError::TooMany { groups_max });
            false
        }
    };
    (0..).take_while(|_| take_one()).count() as u32
}

#[test]
fn one_tenant_that_takes_all_places_leaves_some_to_others() {
    const GROUPS: u32 = 2560;
    for (tenants, parts) in [("", 3), ("/tenants", 2)] {
        let h = Hierarchy::new(config().groups_max(GROUPS)).unwrap();
        for name in ["alice/x", "bob", "carol"] {
            h.get_or_create(&format!("{tenants}/{name}")).unwrap();
        }
        let inside = (0..6).map(|number| format!("{tenants}/alice/{number}")).collect::<Vec<_>>();
        inside.iter().for_each(|path| drop(h.create(path).unwrap()));
        h.get_or_create("/other").unwrap();
        let [alice, inner, bob] = ["alice", "alice/x", "bob"].map(|name| format!("{tenants}/{name}"));
        let before = h.groups().len() as u32;
        assert_eq!(take(&h, GROUPS, &alice), GROUPS - before);
        // What she reaches by small groups of her own, and what others have after that.
        let mut taken = take(&h, GROUPS, &inner);
        assert_eq!((taken, take(&h, GROUPS, &alice)), (parts * 5, 0), "half of her parts");
        taken += inside.iter().map(|path| take(&h, GROUPS, path)).sum::<u32>();
        assert_eq!(taken, parts * 10, "all of her parts");
        h.create(&format!("{tenants}/new")).unwrap();
        // Nine of the last part are left. Bob takes more than half of them, because he has none.
        assert_eq!((take(&h, GROUPS, &bob), take(&h, GROUPS, &inner)), (5, 0));
        if parts == 2 {
            while h.create(&format!("/tenants/more-{}", h.groups().len())).is_ok() {}
            assert!(h.create("/tenants/more").is_err() && h.create("/more").is_ok());
            assert_eq!(take(&h, GROUPS, "/other"), 5);
        }
        assert_eq!(take(&h, GROUPS, "/"), 4, "the rest, for groups below the root");
        assert_eq!((h.groups().len() as u32, take(&h, GROUPS, "/")), (GROUPS + 40, 0));
        let written = h.io().get(&h.root(), stats::io::WIOS, Reach::Subtree, Freshness::Fresh);
        let taken = h.groups().iter().filter(|group| group.path().contains("/take-")).count();
        assert_eq!(written, taken as i64, "one for each that was taken");
        h.root().children().into_iter().for_each(|group| group.remove_all().unwrap());
        assert_eq!(take(&h, GROUPS, "/"), GROUPS - 1, "the bound is exact below the root");
    }
}

#[test]
fn a_small_tenant_leaves_spare_places_to_those_that_have_fewer_groups() {
    const GROUPS: u32 = 2560;
    for tenants in ["", "/tenants"] {
        let h = Hierarchy::new(config().groups_max(GROUPS)).unwrap();
        let path = |name: &str| format!("{tenants}/{name}");
        let small = ["carol", "dave", "erin", "frank"].map(path);
        for path in small.iter().chain(&["a", "b", "c"].map(path)) {
            h.get_or_create(path).unwrap();
        }
        for name in ["a", "b", "c"] {
            // Large ones take all places between them.
            let group = h.lookup(&path(name)).unwrap();
            group.set_max_descendants(GROUPS / 3);
            while group.create(&format!("{name}-{}", group.child_count())).is_ok() {}
            group.set_max_descendants(None);
        }
        let others = take(&h, GROUPS, "/");
        assert!(others >= 40, "places that are no spare ones, and those");
        h.root().children().iter().filter(|group| group.path().starts_with("/take-")).for_each(|group| {
            group.remove().unwrap();
        });
        while h.groups().len() < GROUPS as usize {
            h.create(&format!("/more-{}", h.groups().len())).unwrap();
        }
        assert!(["a", "b", "c"].iter().all(|name| take(&h, GROUPS, &path(name)) == 0), "they are large");
        let spare = if tenants.is_empty() { 40 } else { 30 };
        let mut left: u32 = spare;
        for path in &small {
            let taken = take(&h, GROUPS, path);
            assert_eq!(taken, left.div_ceil(2), "half of {left} spare places are for others");
            left -= taken;
        }
        assert!(left > 0);
        // A group in itself gives a tenant no more: the tenant is the topmost one that is not
        // large.
        let within = h.lookup(&small[3]).unwrap().children().remove(0).path();
        assert_eq!(take(&h, GROUPS, &within), 0);
    }
}

#[test]
fn small_hierarchies_have_no_spare_places() {
    for groups_max in [2_u32, 3, 30, 65, 255] {
        let h = Hierarchy::new(config().groups_max(groups_max)).unwrap();
        h.create("/tenants").unwrap();
        assert_eq!(take(&h, groups_max, "/tenants"), groups_max - 2);
    }
}

/// A group of the model.
struct Known {
    parent: Option<usize>,
    group: Option<Group>,
    charges: Vec<Charge>,
    is_online: bool,
    max: Option<u32>,
}

/// The tree as it should be: groups with their parents, handles and bytes.
#[derive(Default)]
struct Model(Vec<Known>);

impl Model {
    fn is_above(&self, above: usize, at: usize) -> bool {
        std::iter::successors(self.0[at].parent, |&at| self.0[at].parent).any(|at| at == above)
    }

    /// Whether the group, or one below it, is online, or has a handle or a byte.
    fn is_there(&self, at: usize) -> bool {
        let held = |known: &Known| known.is_online || known.group.is_some() || !known.charges.is_empty();
        held(&self.0[at]) || (0..self.0.len()).any(|below| held(&self.0[below]) && self.is_above(at, below))
    }

    fn below(&self, at: usize) -> u32 {
        (0..self.0.len()).filter(|&below| self.is_above(at, below) && self.is_there(below)).count() as u32
    }

    fn allows(&self, parent: usize) -> bool {
        let levels = std::iter::successors(Some(parent), |&at| self.0[at].parent);
        levels.into_iter().all(|at| self.0[at].max.is_none_or(|max| self.below(at) < max))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn are_as_exact_as_a_list_of_all_groups(
        steps in prop::collection::vec((0..8_u8, any::<prop::sample::Index>(), 0..12_u32), 1..120),
    ) {
        // So few that some of the groups have a large part of all.
        let h = Hierarchy::new(config().groups_max(128)).unwrap();
        let root = Known { parent: None, group: Some(h.root()), charges: vec![], is_online: true, max: None };
        let mut model = Model(vec![root]);
        for (number, (step, index, max)) in steps.into_iter().enumerate() {
            let at = index.index(model.0.len());
            let Some(group) = model.0[at].group.clone() else { continue };
            match step {
                0..=2 => match group.create(&format!("{number}")) {
                    Ok(group) => {
                        prop_assert!(model.allows(at), "{} is one too many", group.path());
                        let (parent, group) = (Some(at), Some(group));
                        model.0.push(Known { parent, group, charges: vec![], is_online: true, max: None });
                    }
                    Err(GroupError::TooManyDescendants { .. }) => {
                        prop_assert!(!model.allows(at), "{} has room for one more", group.path());
                    }
                    Err(error) => prop_assert!(!model.0[at].is_online, "{error}"),
                },
                3 => {
                    model.0[at].max = Some(max).filter(|&max| max < 10);
                    group.set_max_descendants(model.0[at].max);
                }
                4 => {
                    if group.remove_all().is_ok() {
                        for below in 0..model.0.len() {
                            if below == at || model.is_above(at, below) {
                                model.0[below].is_online = false;
                            }
                        }
                    }
                }
                5 => {
                    if let Ok(charge) = group.try_charge(1 + u64::from(max)) {
                        model.0[at].charges.push(charge);
                    }
                }
                6 => model.0[at].charges.clear(),
                _ => {
                    if at > 0 && !model.0[at].is_online {
                        model.0[at].group = None;
                    }
                }
            }
        }
    }
}

#[test]
fn are_exact_after_many_threads_created_and_removed() {
    const THREADS: usize = 4;
    const MAX: u32 = 24;
    let h = hierarchy();
    let alice = h.create("/alice").unwrap();
    alice.set_max_descendants(MAX);
    let begin = Barrier::new(THREADS);
    let refused: usize = thread::scope(|threads| {
        let churn = |thread: usize| {
            let (alice, begin, h) = (&alice, &begin, &h);
            move || {
                begin.wait();
                let mut refused = 0;
                let mut held = Vec::new();
                for round in 0..2_000 {
                    match alice.create_owned(&format!("{thread}-{round}")) {
                        Ok(owned) => {
                            let below = owned.create("below").ok();
                            held.push((owned.try_charge(100).unwrap(), owned.clone(), below));
                            assert!(h.dying().len() + h.groups().len() <= 2 * (2 + MAX as usize));
                        }
                        Err(GroupError::TooManyDescendants { descendants, .. }) => {
                            assert_eq!(descendants, MAX);
                            refused += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    if held.len() > round % 9 {
                        held.drain(..held.len() / 2 + 1);
                    }
                }
                refused
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| threads.spawn(churn(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("{refused} refusals");
    assert_eq!(fill(&alice), MAX as usize);
}
