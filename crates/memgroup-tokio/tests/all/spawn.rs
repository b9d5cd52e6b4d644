//! Tasks, blocking tasks, sets and other libraries' threads in a group.

use memgroup::scope;
use memgroup_tokio::{GroupExt, JoinSetExt};
use rayon::prelude::*;
use tokio::task::JoinSet;

use crate::{assert_empty, fixture};

fn charge(bytes: u64) -> memgroup::Charge {
    scope::try_charge_current(bytes).expect("a group is in force").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_of_tasks_and_of_blocking_tasks_are_the_groups() {
    let (hierarchy, group) = fixture();
    let mut set = JoinSet::new();
    for _ in 0..50 {
        set.spawn_in(&group, async {
            tokio::task::yield_now().await;
            charge(10)
        });
        set.spawn_blocking_in(&group, || charge(10));
    }
    let task = group.spawn(async { charge(10) }).await.unwrap();
    let blocking = group.spawn_blocking(|| charge(10)).await.unwrap();
    let charges = set.join_all().await;
    assert_eq!((charges.len(), group.usage_exact()), (100, 1020));
    drop((charges, task, blocking));
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn a_task_that_panics_leaves_no_bytes() {
    let (hierarchy, group) = fixture();
    let task = group.spawn(async {
        let _held = charge(4096);
        panic!("as planned");
    });
    let joined: Result<(), _> = task.await;
    assert!(joined.unwrap_err().is_panic());
    assert_eq!(scope::current(), None);
    assert_empty(&hierarchy, &group);
}

#[test]
fn closures_on_the_threads_of_rayon_are_in_the_group() {
    let (hierarchy, group) = fixture();
    let charges: Vec<_> = (0..1000).into_par_iter().map(|_| group.run(|| charge(7))).collect();
    assert_eq!(group.usage_exact(), 7000);
    let found: Vec<_> = (0..100).into_par_iter().map(|_| scope::current()).collect();
    assert!(found.iter().all(Option::is_none));
    drop(charges);
    assert_empty(&hierarchy, &group);
}
