//! `in_group`: the group in force at each poll and at the drop.

use std::future::{pending, ready};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use memgroup::{Group, scope};
use memgroup_tokio::InGroupExt;
use tokio::task::yield_now;

use crate::{assert_empty, fixture};

/// Notes the group in force when it is dropped.
struct Notes(Arc<Mutex<Option<Group>>>);

impl Drop for Notes {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = scope::current();
    }
}

fn charge(bytes: u64) -> memgroup::Charge {
    scope::try_charge_current(bytes).expect("a group is in force").unwrap()
}

#[tokio::test]
async fn puts_each_group_in_force_within_join() {
    let (hierarchy, a) = fixture();
    let b = hierarchy.create("/b").unwrap();
    let charging = |group: &Group| {
        let expected = group.clone();
        async move {
            let mut held = Vec::new();
            for _ in 0..100 {
                held.push(charge(10));
                yield_now().await;
                assert_eq!(scope::current().as_ref(), Some(&expected));
            }
            held
        }
        .in_group(group)
    };
    let (in_a, in_b, outside) = tokio::join!(charging(&a), charging(&b), async {
        yield_now().await;
        scope::current()
    });
    assert_eq!((a.usage_exact(), b.usage_exact(), outside), (1000, 1000, None));
    drop((in_a, in_b));
    assert_empty(&hierarchy, &a);
}

#[tokio::test]
async fn drops_the_branch_that_select_cancels_in_its_group() {
    let (hierarchy, group) = fixture();
    let seen = Arc::new(Mutex::new(None));
    let notes = Notes(Arc::clone(&seen));
    let loser = async move {
        let _held = (charge(4096), notes);
        pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = loser.in_group(&group) => unreachable!(),
        () = ready(()) => (),
    }
    assert_eq!((seen.lock().unwrap().clone(), scope::current()), (Some(group.clone()), None));
    assert_empty(&hierarchy, &group);
}

#[test]
fn drops_a_future_that_was_never_polled_in_its_group() {
    let (_hierarchy, group) = fixture();
    let seen = Arc::new(Mutex::new(None));
    let notes = Notes(Arc::clone(&seen));
    drop(async move { drop(notes) }.in_group(&group));
    assert_eq!(*seen.lock().unwrap(), Some(group));
}

#[test]
fn restores_the_group_when_a_poll_panics() {
    let (hierarchy, group) = fixture();
    let outer = hierarchy.create("/outer").unwrap();
    let seen = Arc::new(Mutex::new(None));
    let notes = Notes(Arc::clone(&seen));
    let panics = async move {
        let _held = (charge(4096), notes);
        panic!("as planned");
    };
    let _outer = scope::enter(&outer);
    let mut future = Box::pin(panics.in_group(&group));
    let mut context = Context::from_waker(Waker::noop());
    let polled =
        std::panic::catch_unwind(AssertUnwindSafe(|| -> Poll<()> { future.as_mut().poll(&mut context) }));
    assert!(polled.is_err());
    assert_eq!((scope::current(), seen.lock().unwrap().clone()), (Some(outer.clone()), Some(group.clone())));
    drop(future);
    assert_eq!(scope::current(), Some(outer.clone()));
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn nested_groups_return_to_the_outer_one() {
    let (_hierarchy, outer) = fixture();
    let inner = outer.create("inner").unwrap();
    let within = inner.clone();
    let future = async move {
        let nested = async {
            yield_now().await;
            scope::current()
        };
        let found = nested.in_group(&within).await;
        (found, scope::current())
    };
    assert_eq!(future.in_group(&outer).await, (Some(inner), Some(outer)));
}

#[test]
fn follows_a_future_from_thread_to_thread() {
    let (_hierarchy, group) = fixture();
    let mut future = Box::pin(
        async {
            let mut seen = vec![scope::current()];
            yield_now().await;
            seen.push(scope::current());
            seen
        }
        .in_group(&group),
    );
    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }
    assert!(poll(future.as_mut()).is_pending());
    let seen = std::thread::spawn(move || poll(future.as_mut())).join().unwrap();
    assert_eq!(seen, Poll::Ready(vec![Some(group.clone()), Some(group)]));
    assert_eq!(scope::current(), None);
}
