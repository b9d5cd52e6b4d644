//! Delays of groups above their `high`, with paused time.

use memgroup::{Charge, Group, scope};
use memgroup_tokio::{GroupExt, InGroupExt};
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, sleep};

use crate::{assert_empty, fixture};

/// Takes the group to twice its `high`: the longest delay, 2 s.
fn owing(group: &Group) -> Charge {
    group.set_high(1 << 20).unwrap();
    group.try_charge(2 << 20).unwrap()
}

#[tokio::test(start_paused = true)]
async fn waits_at_the_boundary_of_a_poll() {
    let (hierarchy, group) = fixture();
    let began = Instant::now();
    let owes = group.clone();
    let work = async move {
        let held = owing(&owes);
        yield_now().await;
        let elapsed = began.elapsed();
        drop(held);
        elapsed
    };
    let elapsed = work.in_group(&group).ended_over_limit().await.unwrap();
    assert!((Duration::from_secs(2)..Duration::from_secs(3)).contains(&elapsed), "{elapsed:?}");
    assert_eq!(group.owed(), 0);
    assert_empty(&hierarchy, &group);
}

#[tokio::test(start_paused = true)]
async fn waits_before_the_output_without_the_future() {
    let (hierarchy, group) = fixture();
    let began = Instant::now();
    let owes = group.clone();
    let work = async move { owing(&owes) };
    let held = work.in_group(&group).ended_over_limit().await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2));
    drop(held);
    assert_empty(&hierarchy, &group);
}

#[tokio::test(start_paused = true)]
async fn lets_other_tasks_run_meanwhile() {
    let (_hierarchy, group) = fixture();
    let held = owing(&group);
    let began = Instant::now();
    let (_, ran) = tokio::join!(group.delayed(), async {
        sleep(Duration::from_millis(500)).await;
        began.elapsed()
    });
    assert!(ran < Duration::from_secs(1) && began.elapsed() >= Duration::from_secs(2));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn ends_when_the_group_is_within_its_limit_again() {
    let (_hierarchy, group) = fixture();
    let held = owing(&group);
    let began = Instant::now();
    tokio::join!(group.delayed(), async move {
        sleep(Duration::from_millis(100)).await;
        drop(held);
    });
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn is_owed_again_when_it_is_cancelled() {
    let (_hierarchy, group) = fixture();
    let held = owing(&group);
    let owed = group.owed();
    tokio::select! {
        biased;
        () = group.delayed() => unreachable!(),
        owed = async { group.owed() } => assert_eq!(owed, 0),
    }
    assert!(group.owed() > 0 && group.owed() <= owed, "{} of {owed}", group.owed());
    drop(held);
}

#[tokio::test]
async fn counts_as_a_stall_of_the_group() {
    let (hierarchy, group) = fixture();
    // 2.5 % above: 40 ms for 256 KiB.
    group.set_high(10 << 20).unwrap();
    let work = async {
        let held = scope::try_charge_current((10 << 20) + (256 << 10)).unwrap().unwrap();
        yield_now().await;
        drop(held);
    };
    let began = std::time::Instant::now();
    work.in_group(&group).ended_over_limit().await.unwrap();
    let (some, elapsed) = (group.pressure().some.total, began.elapsed().as_micros() as u64);
    assert!(some >= 10_000 && some <= elapsed, "{some} of {elapsed} us");
    let after = group.pressure().some.total;
    assert_eq!((after, hierarchy.root().pressure().some.total), (some, some), "the stall is over");
    assert_empty(&hierarchy, &group);
}
