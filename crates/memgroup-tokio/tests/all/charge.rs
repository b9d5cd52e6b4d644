//! Charges that wait, with a timer at their deadline.

use memgroup::{ChargeErrorKind, Group};
use memgroup_tokio::{ReclaimerThread, TimedExt};
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, sleep};

use crate::{assert_empty, fixture};

const SOON: Duration = Duration::from_secs(5);
const FAR: Duration = Duration::from_secs(3600);

async fn until_one_waits(group: &Group) {
    while group.waiters().now == 0 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn ends_at_its_deadline_by_the_clock_of_the_runtime() {
    let (hierarchy, group) = fixture();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    group.set_max(1000).unwrap();
    let mut held = group.charge(600).timeout(SOON).await.unwrap();
    let began = Instant::now();
    let error = group.charge(600).timeout(SOON).await.unwrap_err();
    assert_eq!((error.kind(), error.usage()), (ChargeErrorKind::Deadline, 600));
    assert!((SOON..2 * SOON).contains(&began.elapsed()), "{:?}", began.elapsed());
    let error = held.grow(600).timeout(SOON).await.unwrap_err();
    assert_eq!((error.kind(), held.bytes()), (ChargeErrorKind::Deadline, 600));
    assert!(began.elapsed() >= 2 * SOON);
    drop(held);
    assert_empty(&hierarchy, &group);
}

// The reclaimer's thread runs on the real clock, so the deadline is far.
#[tokio::test]
async fn is_made_when_there_is_room_before_the_deadline() {
    let (hierarchy, group) = fixture();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    group.set_max(1000).unwrap();
    let mut held = group.try_charge(600).unwrap();
    let mut other = group.try_charge(300).unwrap();
    let later = group.clone();
    let (made, ()) = tokio::join!(later.charge(600).timeout(FAR), async {
        until_one_waits(&group).await;
        held.shrink(600);
    });
    assert_eq!(made.unwrap().bytes(), 600);
    assert!(other.grow(600).timeout(SOON).await.is_ok());
    drop((held, other));
    assert_empty(&hierarchy, &group);
}

#[tokio::test(start_paused = true)]
async fn leaves_no_bytes_when_it_is_cancelled() {
    let (hierarchy, group) = fixture();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    group.set_max(1000).unwrap();
    let held = group.try_charge(600).unwrap();
    tokio::select! {
        _ = group.charge(600).timeout(SOON) => unreachable!(),
        () = sleep(SOON / 2) => (),
    }
    assert_eq!((group.waiters().now, group.usage_exact()), (0, 600));
    drop(held);
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn is_refused_at_once_without_a_reclaimer() {
    let (hierarchy, group) = fixture();
    group.set_max(1000).unwrap();
    let error =
        group.charge(600).timeout(SOON).await.and(group.charge(2000).timeout(SOON).await).unwrap_err();
    assert_eq!(error.kind(), ChargeErrorKind::Refused, "it never fits");
    let held = group.try_charge(600).unwrap();
    drop(ReclaimerThread::spawn(&hierarchy).unwrap());
    assert_eq!(group.charge(600).await.unwrap_err().kind(), ChargeErrorKind::NoReclaimer);
    drop(held);
    assert_empty(&hierarchy, &group);
}

#[test]
fn ends_at_its_deadline_on_a_runtime_without_a_timer() {
    let (hierarchy, group) = fixture();
    group.set_max(1000).unwrap();
    let held = group.try_charge(600).unwrap();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(group.charge(600).until(Duration::from_millis(20))).unwrap_err();
    assert!(error.kind() == ChargeErrorKind::Deadline && error.waited() >= Duration::from_millis(20));
    drop(held);
    assert_empty(&hierarchy, &group);
}
