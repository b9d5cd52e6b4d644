//! `ended_over_limit`: a task ends when its group is over its limit.

use std::future::pending;

use memgroup::{Charge, scope};
use memgroup_tokio::{Ended, InGroupExt};
use tokio::task::yield_now;

use crate::{assert_empty, fixture};

fn forced(bytes: u64) -> Charge {
    scope::current().expect("a group is in force").charge_forced(bytes).unwrap()
}

#[tokio::test]
async fn ends_after_the_poll_that_exceeds_the_limit() {
    let (hierarchy, group) = fixture();
    group.set_max(1000).unwrap();
    let runaway = async {
        let mut held = vec![];
        loop {
            held.push(forced(400));
            yield_now().await;
        }
    };
    let ended: Result<(), Ended> = runaway.in_group(&group).ended_over_limit().await;
    assert_eq!(ended.unwrap_err(), Ended::OverLimit { group: "/group".to_owned(), usage: 1200, max: 1000 });
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn ends_when_the_limit_is_lowered() {
    let (hierarchy, group) = fixture();
    let task = tokio::spawn(
        async {
            let _held = scope::try_charge_current(4096).unwrap().unwrap();
            loop {
                yield_now().await;
            }
        }
        .in_group(&group)
        .ended_over_limit(),
    );
    while group.usage_exact() == 0 {
        yield_now().await;
    }
    group.set_max(4095).unwrap();
    let ended: Result<(), Ended> = task.await.unwrap();
    assert!(matches!(ended, Err(Ended::OverLimit { usage: 4096, max: 4095, .. })));
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn goes_on_where_the_limit_only_counts() {
    let (hierarchy, group) = fixture();
    group.set_max(1000).unwrap();
    group.set_enforced(false);
    let work = async {
        let _held = forced(4000);
        yield_now().await;
        7
    };
    assert_eq!(work.in_group(&group).ended_over_limit().await, Ok(7));
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn goes_on_where_a_group_above_is_over_its_limit() {
    let (hierarchy, group) = fixture();
    let (below, beside) = (group.create("below").unwrap(), group.create("beside").unwrap());
    group.set_max(1000).unwrap();
    let excess = beside.charge_forced(2000).unwrap();
    let work = async { yield_now().await };
    assert_eq!(work.in_group(&below).ended_over_limit().await, Ok(()));
    drop(excess);
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn keeps_the_output_of_a_future_that_is_ready() {
    let (hierarchy, group) = fixture();
    group.set_max(1000).unwrap();
    let charge = async { forced(4000) }.in_group(&group).ended_over_limit().await.unwrap();
    assert_eq!(charge.bytes(), 4000);
    drop(charge);
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn frees_all_bytes_when_it_is_cancelled() {
    let (hierarchy, group) = fixture();
    let work = async {
        let _held = scope::try_charge_current(4096).unwrap().unwrap();
        pending::<()>().await;
    };
    tokio::select! {
        biased;
        _ = work.in_group(&group).ended_over_limit() => unreachable!(),
        usage = async { group.usage_exact() } => assert_eq!(usage, 4096),
    }
    assert_empty(&hierarchy, &group);
}
