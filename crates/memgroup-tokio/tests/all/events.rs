//! Events and triggers, with a timer at their deadline.

use memgroup::WaitEnded;
use memgroup_tokio::{ReclaimerThread, TimedExt};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep};

use crate::{assert_empty, fixture};

const SOON: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn ends_at_its_deadline_by_the_clock_of_the_runtime() {
    let (hierarchy, group) = fixture();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    let watch = group.add_pressure_trigger("some 10000000 10000000".parse().unwrap());
    let began = Instant::now();
    assert_eq!(group.events_after(&group.events()).timeout(SOON).await, Err(WaitEnded::Deadline));
    assert!((SOON..2 * SOON).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(watch.fired().timeout(SOON).await, Err(WaitEnded::Deadline));
    assert!(began.elapsed() >= 2 * SOON);
    assert!(hierarchy.waits().is_empty());
}

#[tokio::test(start_paused = true)]
async fn leaves_no_wait_when_it_is_cancelled() {
    let (hierarchy, group) = fixture();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    tokio::select! {
        _ = group.events_after(&group.events()) => unreachable!(),
        () = sleep(SOON) => (),
    }
    assert!(hierarchy.waits().is_empty());
}

// The reclaimer's thread runs on the real clock.
#[tokio::test]
async fn wakes_tasks_for_events_until_the_group_is_removed() {
    let (hierarchy, group) = fixture();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    group.set_max(1000).unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let (group, mut seen) = (group.clone(), group.events());
        tasks.spawn(async move {
            loop {
                match group.events_after(&seen).await {
                    Ok(now) => seen = now,
                    Err(ended) => return (seen.max, ended),
                }
            }
        });
    }
    for _ in 0..10 {
        group.try_charge(2000).unwrap_err();
        tokio::task::yield_now().await;
    }
    group.remove().unwrap();
    while let Some(task) = tasks.join_next().await {
        assert_eq!(task.unwrap(), (10, WaitEnded::Removed));
    }
    assert!(hierarchy.waits().is_empty());
    assert_empty(&hierarchy, &group);
}
