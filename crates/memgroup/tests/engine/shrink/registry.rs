//! Registration, attachment, and their ends.

use std::sync::{Arc, Mutex};

use memgroup::{
    Ask, Charge, Config, Count, Group, Hierarchy, Scan, Shrinker, ShrinkerConfig, ShrinkerError,
    ShrinkerSlot, SlotSource,
};

use super::cache::{Cache, PAGE, Tenant, parent};

/// One cache for many groups, by token.
#[derive(Default)]
struct Shared {
    pages: Mutex<Vec<Vec<Charge>>>,
}

impl Shared {
    fn fill(&self, token: u64, group: &Group, pages: usize) {
        let mut all = self.pages.lock().unwrap();
        let token = token as usize;
        if all.len() <= token {
            all.resize_with(token + 1, Vec::new);
        }
        all[token].extend((0..pages).map(|_| group.try_charge(PAGE).unwrap()));
    }

    fn len(&self, token: u64) -> usize {
        self.pages.lock().unwrap()[token as usize].len()
    }
}

impl Shrinker for Shared {
    fn count(&self, token: u64) -> Count {
        let pages = self.len(token) as u64;
        Count::of(pages * PAGE, pages)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let mut all = self.pages.lock().unwrap();
        let pages = &mut all[ask.token() as usize];
        assert!(pages.iter().all(|page| page.group() == ask.group()), "the token is the group's");
        let keep = pages.len().saturating_sub((ask.bytes() / PAGE) as usize);
        let given: Vec<Charge> = pages.drain(keep..).collect();
        drop(all);
        Scan::Freed { bytes: given.len() as u64 * PAGE }
    }
}

#[test]
fn asks_a_shared_shrinker_for_the_right_groups() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let cache = Arc::new(Shared::default());
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("shared"), Arc::clone(&cache)).unwrap();
    let parents: Vec<Group> = ["/a", "/b"].map(|path| hierarchy.create(path).unwrap()).into();
    let groups: Vec<Group> = (0..20).map(|at| parents[at % 2].create(&format!("g{at}")).unwrap()).collect();
    let slots: Vec<ShrinkerSlot> =
        groups.iter().enumerate().map(|(at, group)| registration.attach(group, at as u64).unwrap()).collect();
    for (token, group) in groups.iter().enumerate() {
        cache.fill(token as u64, group, 50);
        slots[token].mark();
    }
    parents[0].reclaim(400 * PAGE, None);
    let left = |parent: usize| {
        (0..20u64).filter(|at| *at as usize % 2 == parent).map(|at| cache.len(at)).sum::<usize>()
    };
    assert!((84..=100).contains(&left(0)), "{} pages are left below /a", left(0));
    assert_eq!(left(1), 500);
}

#[test]
fn reuses_slots_and_releases_their_groups() {
    let (hierarchy, tenants) = parent(2, 100_000);
    let cache = Arc::new(Cache::default());
    let registration =
        hierarchy.add_shrinker(ShrinkerConfig::new("one of many"), Arc::clone(&cache)).unwrap();
    for round in 0..50 {
        let groups: Vec<Group> = (0..20).map(|at| tenants.create(&format!("g{at}")).unwrap()).collect();
        let slots: Vec<ShrinkerSlot> =
            groups.iter().map(|group| registration.attach(group, 0).unwrap()).collect();
        slots.iter().for_each(ShrinkerSlot::mark);
        assert!(tenants.reclaim(PAGE, None).bytes == 0 && cache.counted() >= 20, "round {round}");
        groups.iter().for_each(|group| group.remove().unwrap());
        drop(slots);
        drop(groups);
        assert_eq!(hierarchy.dying().len(), 0);
        tenants.reclaim(PAGE, None);
        assert_eq!(cache.counted(), 0, "round {round}: the slots are free");
    }
}

#[test]
fn does_not_ask_a_group_that_got_the_place_of_another() {
    let (hierarchy, _) = parent(2, 100);
    let (first, second) = (hierarchy.create("/first").unwrap(), hierarchy.create("/second").unwrap());
    let old = Tenant::new(&first, "old");
    old.fill(10);
    old.group.remove().unwrap();
    old.cache.clear();
    drop(old);
    // The new group has the old one's place in the table, below another parent.
    let new = Tenant::new(&second, "new");
    new.fill(10);
    assert_eq!(first.reclaim(u64::MAX, None).bytes, 0);
    assert_eq!((new.cache.len(), new.cache.counted()), (10, 0));
    assert_eq!(second.reclaim(u64::MAX, None).bytes, 10 * PAGE);
}

#[test]
fn errors_name_shrinker_and_group() {
    let (hierarchy, tenants) = parent(2, 100);
    let (elsewhere, _) = parent(3, 100);
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("pages"), Cache::default()).unwrap();
    let foreign = registration.attach(&elsewhere.root(), 0).map(drop).unwrap_err();
    assert_eq!(
        foreign.to_string(),
        "attach shrinker \"pages\" to group /: the group is of another hierarchy"
    );
    let gone = tenants.create("gone").unwrap();
    gone.remove().unwrap();
    let error = gone.add_shrinker(ShrinkerConfig::new("late"), Cache::default()).map(drop).unwrap_err();
    assert_eq!(error, ShrinkerError::Removed { name: "late".to_owned(), group: "/tenants/gone".to_owned() });
}

#[test]
#[should_panic(expected = "the batch of the shrinker \"none\" is 0 bytes")]
fn refuses_a_batch_of_0_bytes() {
    let _ = ShrinkerConfig::new("none").batch_bytes(0);
}

#[test]
fn reuses_the_numbers_of_shrinkers() {
    let (hierarchy, tenants) = parent(2, 100);
    let tenants: Vec<Tenant> = (0..300).map(|at| Tenant::new(&tenants, &format!("t{at}"))).collect();
    assert!(tenants.iter().all(|tenant| tenant.shrinker.registration().name().starts_with('t')));
    drop(tenants);
    for _ in 0..1000 {
        let registration = hierarchy.add_shrinker(ShrinkerConfig::new("again"), Cache::default()).unwrap();
        registration.remove().unwrap();
    }
}

#[test]
fn lists_every_shrinker_and_asks_one_by_hand() {
    let (hierarchy, tenants) = parent(2, 1000);
    let (one, two) = (Tenant::new(&tenants, "one"), Tenant::new(&tenants, "two"));
    one.fill(10);
    two.fill(20);
    let mut names: Vec<String> = hierarchy.shrinkers().into_iter().map(|report| report.name).collect();
    names.sort();
    assert_eq!(names, ["one", "two"]);
    let id = two.shrinker.registration().id();
    // Less than a batch, so no walk would ask for it before the last priorities.
    let reclaimed = two.group.ask_shrinker(id, 3 * PAGE).unwrap();
    assert_eq!((reclaimed.bytes, reclaimed.scans, two.cache.len()), (3 * PAGE, 1, 17));
    let report = hierarchy.shrinkers().into_iter().find(|report| report.id == id).unwrap();
    assert_eq!((report.scans, report.asked_bytes), (1, 3 * PAGE));
    assert_eq!(
        (report.claimed_bytes, report.freed_bytes, report.last_freed_bytes),
        (3 * PAGE, 3 * PAGE, 3 * PAGE)
    );
    let error = one.group.ask_shrinker(id, PAGE).unwrap_err();
    assert_eq!(error.to_string(), format!("ask shrinker {id}: it is not attached to this group"));
    two.shrinker.remove().unwrap();
    let error = one.group.ask_shrinker(id, PAGE).unwrap_err();
    assert_eq!(error.to_string(), format!("ask shrinker {id}: the hierarchy has none of this number now"));
    assert_eq!(hierarchy.shrinkers().len(), 1);
}
