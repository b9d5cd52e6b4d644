//! Labels: the purpose of bytes, and the bytes that keep a removed group.

use std::collections::BTreeMap;
use std::time::Duration;

use memgroup::{Charge, Config, Group, Hierarchy, LABELS_MAX, LabelError, LabelledCharge};

use super::random::Random;

fn tenant() -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    (hierarchy, group)
}

#[test]
fn lists_bytes_under_their_label() {
    let (_hierarchy, group) = tenant();
    let (sorts, plans) = (group.label("sorts").unwrap(), group.label("plans").unwrap());
    let mut run = sorts.try_charge(1000).unwrap();
    let plan = plans.charge_forced(50).unwrap();
    let other = group.try_charge(7).unwrap();
    run.try_grow(500).unwrap();
    run.shrink(200);
    let list = |sorts, plans| vec![("sorts".to_owned(), sorts), ("plans".to_owned(), plans)];
    assert_eq!(group.labels(), list(1300, 50));
    assert_eq!((run.bytes(), run.label(), group.usage_exact()), (1300, sorts.clone(), 1357));
    let charge: Charge = run.into_charge();
    assert_eq!((group.labels(), charge.bytes(), group.usage_exact()), (list(0, 50), 1300, 1357));
    drop((charge, plan, other));
    assert_eq!((group.labels(), group.usage_exact()), (list(0, 0), 0));
}

#[test]
fn a_charge_that_is_refused_is_under_no_label() {
    let (_hierarchy, group) = tenant();
    group.set_max(100).unwrap();
    let label = group.label("sorts").unwrap();
    let mut held = label.try_charge(60).unwrap();
    label.try_charge(50).unwrap_err();
    held.try_grow(50).unwrap_err();
    assert_eq!((label.bytes(), held.bytes()), (60, 60));
}

#[test]
fn checks_names_as_those_of_groups() {
    let (_hierarchy, group) = tenant();
    for name in ["", ".", "a/b", "a\nb", &"x".repeat(256)] {
        let error = group.label(name).unwrap_err();
        assert!(matches!(error, LabelError::InvalidName { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
    }
    let labels: Vec<_> = (0..LABELS_MAX).map(|number| group.label(&number.to_string()).unwrap()).collect();
    let error = group.label("one more").unwrap_err().to_string();
    assert!(["/tenant", "16", "\"one more\""].iter().all(|part| error.contains(part)), "{error}");
    assert_eq!(group.label("3").unwrap(), labels[3]);
    assert_eq!((labels[3].name(), labels[3].group()), ("3".to_owned(), &group));
}

#[test]
fn lists_a_removed_group_with_its_age_and_labels() {
    let (hierarchy, group) = tenant();
    let (sorts, _idle) = (group.label("sorts").unwrap(), group.label("idle").unwrap());
    let (run, bare) = (sorts.try_charge(1000).unwrap(), group.try_charge(24).unwrap());
    group.remove().unwrap();
    drop((sorts, _idle, group));
    std::thread::sleep(Duration::from_millis(2));
    let listed = hierarchy.dying();
    assert_eq!((listed.len(), listed[0].path.as_str(), listed[0].usage_bytes), (1, "/tenant", 1024));
    assert_eq!(listed[0].labels, [("sorts".to_owned(), 1000)], "and the rest has none");
    assert!(listed[0].age >= Duration::from_millis(2) && listed[0].age <= listed[0].removed.elapsed());
    drop(bare);
    drop(run);
    assert_eq!(hierarchy.dying(), []);
    let again = hierarchy.create("/tenant").unwrap();
    assert_eq!(again.labels(), [], "labels go with their group");
}

#[test]
fn grows_a_charge_that_was_shrunk_to_nothing() {
    let (_hierarchy, group) = tenant();
    let label = group.label("sorts").unwrap();
    let mut run = label.try_charge(0).unwrap();
    run.try_grow(10).unwrap();
    run.shrink(10);
    assert_eq!((run.bytes(), label.bytes()), (0, 0));
    run.try_grow(5).unwrap();
    let complaint = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.shrink(6)));
    assert!(complaint.is_err());
    assert_eq!((run.bytes(), label.bytes(), group.usage_exact()), (5, 5, 5));
}

#[test]
fn labels_add_up_to_the_bytes_that_threads_hold() {
    let (_hierarchy, group) = tenant();
    let held: Vec<(usize, LabelledCharge)> = std::thread::scope(|scope| {
        let threads = (1..=4).map(|seed| {
            let group = &group;
            scope.spawn(move || {
                let mut random = Random(seed);
                let mut held = Vec::new();
                for _ in 0..5000 {
                    let number = random.below(LABELS_MAX as u64) as usize;
                    let label = group.label(&format!("{number:02}")).unwrap();
                    held.push((number, label.try_charge(random.bytes(12)).unwrap()));
                    if random.below(3) > 0 {
                        drop(held.swap_remove(random.below(held.len() as u64) as usize));
                    }
                }
                held
            })
        });
        threads.collect::<Vec<_>>().into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut expected = BTreeMap::new();
    for (number, charge) in &held {
        *expected.entry(format!("{number:02}")).or_insert(0) += charge.bytes();
    }
    assert_eq!(group.labels().into_iter().collect::<BTreeMap<_, _>>(), expected);
    assert_eq!(group.usage_exact(), expected.values().sum::<u64>());
    drop(held);
    assert!(group.labels().iter().all(|(_, bytes)| *bytes == 0));
}
