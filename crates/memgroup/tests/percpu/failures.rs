//! The system refuses memory, at every place that asks for it. The error names the bytes and the
//! group, charges stay exact, and nothing is lost. When the system has memory again, everything
//! works.

use core::time::Duration;

use memgroup::tuning::{PageSize, Tuning};
use memgroup::{Config, GroupError, Hierarchy, Maintenance};
use memgroup_percpu::{Call, inject, pin_virtual};

use crate::{STOCK_BYTES, TENANT_BYTES, Tenant, alone, config, levels, maintain, used_on_all_slots};

const SLOTS: usize = 3;
/// Stock words of fewer groups are mapped at a time.
const MORE_THAN_A_CHUNK: usize = 9000;

const CALLS: [Call; 3] = [Call::Map, Call::Discard, Call::Resident];

/// Pages of the system's size, and pages that the arena returns as a whole.
fn pages() -> [PageSize; 2] {
    [PageSize::of_system(), PageSize::Kib64]
}

/// A kind of hierarchy that no other test uses again.
fn kind(page: PageSize, number: usize) -> Config {
    config(SLOTS).page_size(page).groups_max(50_000 + number as u32).float(0, Duration::ZERO)
}

fn works(hierarchy: &Hierarchy) {
    let mut tenants: Vec<_> = (1..=100)
        .map(|number| {
            Tenant::new(
                &levels(hierarchy),
                hierarchy.create(&format!("/works-{number}")).unwrap(),
                number,
                SLOTS,
            )
        })
        .collect();
    maintain(hierarchy);
    tenants.iter_mut().for_each(Tenant::live);
    for tenant in tenants {
        tenant.check();
        assert!(tenant.group.stock().hits > 0, "{:?} has no stock", tenant.group);
        drop(tenant.charges);
        tenant.group.remove().unwrap();
    }
    hierarchy.root().drain();
}

#[test]
fn refuses_a_hierarchy_without_memory() {
    let _alone = alone();
    // As many slots as nothing else has, so that no hierarchy is there already.
    let kind = config(37).groups_max(50_000);
    let guard = inject::fail(Call::Map, 0);
    for _ in 0..100 {
        let error = Hierarchy::new(kind).expect_err("there is no address space").to_string();
        assert!(error.starts_with("make the hierarchy: "), "{error}");
        assert!(error.ends_with("for its groups; raise RLIMIT_AS or vm.max_map_count"), "{error}");
    }
    drop(guard);
    let hierarchy = Hierarchy::new(kind).unwrap();
    let works = hierarchy.create("/works").unwrap();
    assert_eq!((works.try_charge(7).unwrap().bytes(), hierarchy.groups().len()), (7, 2));
}

#[test]
fn refuses_a_group_without_memory_by_name() {
    let _alone = alone();
    for (number, page) in pages().into_iter().enumerate() {
        for call in [Call::Map, Call::Discard] {
            // Nothing is given back meanwhile.
            let may_fail = call == Call::Map;
            let hierarchy = used_on_all_slots(kind(page, 1 + number), SLOTS);
            let parent = hierarchy.create("/parent").unwrap();
            let before = parent.children().len();
            // The group for which there is no memory does not count.
            parent.set_max_descendants(MORE_THAN_A_CHUNK as u32 + 1);
            let guard = inject::fail(call, 0);
            let mut made = 0;
            let error = loop {
                match parent.create(&format!("child-{made}")) {
                    Ok(_) => made += 1,
                    Err(error) => break error,
                }
                if made == MORE_THAN_A_CHUNK {
                    assert!(!may_fail, "{page:?} {call:?}");
                    break parent.create("child-0").unwrap_err();
                }
            };
            drop(guard);
            assert_eq!(made < MORE_THAN_A_CHUNK, may_fail, "{page:?} {call:?}");
            if may_fail {
                let path = format!("/parent/child-{made}");
                let words = STOCK_BYTES * SLOTS as u64;
                assert!(
                    matches!(&error, GroupError::OutOfMemory { path: at, bytes } if *at == path && *bytes > words),
                    "{error:?}"
                );
                let text = error.to_string();
                assert!(
                    text.contains(&path) && text.contains("bytes of memory and the system refuses"),
                    "{text}"
                );
                assert!(text.ends_with("remove groups, or raise the process's limit"), "{text}");
                assert!(hierarchy.lookup(&path).is_err(), "nothing of it is there");
            }
            assert_eq!(parent.children().len(), before + made);
            parent.set_max_descendants((before + made) as u32 + 1);
            parent.create("after").unwrap();
            assert!(matches!(parent.create("more"), Err(GroupError::TooManyDescendants { .. })));
            works(&hierarchy);
            for child in parent.children() {
                child.remove().unwrap();
            }
            parent.remove().unwrap();
            assert_eq!(hierarchy.groups().len(), 1);
        }
    }
}

#[test]
fn tells_the_bytes_that_the_first_group_needed() {
    let _alone = alone();
    let hierarchy = Hierarchy::new(kind(PageSize::of_system(), 3)).unwrap();
    let guard = inject::fail(Call::Map, 0);
    let error = (0..MORE_THAN_A_CHUNK).find_map(|number| hierarchy.create(&format!("/{number}")).err());
    drop(guard);
    let text = error.expect("a chunk has no room for so many groups").to_string();
    let bytes =
        |text: &str| text.split_once("needs ")?.1.split_once(" bytes of memory")?.0.parse::<u64>().ok();
    let bytes = bytes(&text).unwrap_or_else(|| panic!("{text}"));
    assert!(
        (8..8 + 2048).contains(&bytes),
        "one word, because no slot has been used yet, and a node: {text}"
    );
}

/// Runs the operations of groups on a thread for which requests of one kind fail from the
/// `after`th on.
fn life_under_refusals(config: Config, call: Call, after: u64) {
    let hierarchy = used_on_all_slots(config, SLOTS);
    let levels = levels(&hierarchy);
    let mut tenants: Vec<_> = (1..=300)
        .map(|number| Tenant::new(&levels, hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS))
        .collect();
    let guard = inject::fail(call, after);
    for number in 301..=400 {
        match hierarchy.create(&format!("/{number}")) {
            Ok(group) => tenants.push(Tenant::new(&levels, group, number, SLOTS)),
            Err(GroupError::OutOfMemory { path, .. }) => assert_eq!(path, format!("/{number}")),
            Err(error) => panic!("{error}"),
        }
    }
    for pass in 0..3 {
        let done = hierarchy.maintain(Maintenance::new().all().expedited());
        assert!(done.grace < Duration::from_secs(60), "{done:?}");
        tenants.iter_mut().for_each(Tenant::live);
        tenants.iter().for_each(Tenant::check);
        for _ in 0..30 {
            let mut tenant = tenants.remove(tenants.len() / 2);
            tenant.charges.clear();
            tenant.group.remove().unwrap();
        }
        assert!(hierarchy.percpu().populated_bytes > 0, "pass {pass}");
    }
    drop(guard);
    tenants.iter_mut().for_each(Tenant::live);
    tenants.iter().for_each(Tenant::check);
    works(&hierarchy);
    drop(tenants);
    hierarchy.root().drain();
    assert_eq!(hierarchy.root().usage(), 0, "{call:?} {after}");
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn charges_and_counts_when_memory_is_refused() {
    let _alone = alone();
    for page in pages() {
        for call in CALLS {
            for after in [0, 1, 2, 5, 20] {
                life_under_refusals(kind(page, 4), call, after);
                life_under_refusals(kind(page, 5).demote_after(Some(Duration::ZERO)), call, after);
            }
        }
    }
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn keeps_stocks_of_cold_groups_while_their_statistics_wait_for_memory() {
    let _alone = alone();
    // With room in the budgets for a stock of each.
    let kind = kind(PageSize::of_system(), 7).stock_budget_bytes(1 << 30);
    let hierarchy = used_on_all_slots(kind.demote_after(Some(Duration::ZERO)), SLOTS);
    let levels = levels(&hierarchy);
    let mut tenants: Vec<_> = (1..=MORE_THAN_A_CHUNK)
        .map(|number| {
            let group = hierarchy.create(&format!("/{number}")).unwrap();
            Tenant::new(&levels, group, number as u64, SLOTS)
        })
        .collect();
    let guard = inject::fail(Call::Map, 0);
    while hierarchy.maintain(Maintenance::new().all().expedited()).more {}
    tenants.iter_mut().for_each(Tenant::live);
    tenants.iter().for_each(Tenant::check);
    let prepaid = |tenants: &[Tenant]| {
        let _pin = pin_virtual(0);
        tenants.iter().filter(|tenant| tenant.group.stock().prepaid_bytes > 0).count()
    };
    assert_eq!(prepaid(&tenants), MORE_THAN_A_CHUNK, "stock words stay");
    let all = (MORE_THAN_A_CHUNK as u64 * TENANT_BYTES + STOCK_BYTES) * SLOTS as u64;
    assert!(hierarchy.percpu().live_bytes < all, "there was no address space for all records");
    drop(guard);
    maintain(&hierarchy);
    tenants.iter_mut().for_each(Tenant::live);
    tenants.iter().for_each(Tenant::check);
    assert_eq!(hierarchy.percpu().live_bytes, all, "each has its statistics again");
}
