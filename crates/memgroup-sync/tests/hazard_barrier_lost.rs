//! A barrier that worked when the program started and is forbidden later: withdrawals stay right.
//!
//! One test, in a process of its own: the barrier is lost for the whole of it.

#![cfg(all(target_os = "linux", not(any(miri, memgroup_loom, memgroup_emulated))))]

use std::sync::mpsc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use memgroup_sync::grace;
use memgroup_sync::hazard::{Domain, Place, WaitError, Withdrawn};
use seccomp::forbid_membarrier;
use xtask::Watchdog;

mod seccomp;

static DOMAIN: Domain = Domain::new();
static PLACE: Place<u32> = Place::empty(&DOMAIN);
static OTHER: Place<u32> = Place::empty(&DOMAIN);

/// A thread that takes a lease, pins a place if it is full, and goes on when it is told to.
fn walker(place: &'static Place<u32>) -> (mpsc::Sender<()>, std::thread::JoinHandle<()>) {
    let (tell, told) = mpsc::channel();
    let (tell_begun, begun) = mpsc::channel();
    let thread = std::thread::Builder::new().name("walker".to_owned());
    let thread = thread.spawn(move || {
        let mut lease = DOMAIN.lease();
        let pinned = lease.pin(place);
        tell_begun.send(()).unwrap();
        told.recv().unwrap();
        drop(pinned);
    });
    begun.recv().unwrap();
    (tell, thread.unwrap())
}

fn withdrawn(value: u32) -> Withdrawn<u32> {
    PLACE.put(Box::new(value));
    PLACE.withdraw().expect("a value")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(30)
}

#[test]
fn a_barrier_that_is_forbidden_later_is_replaced_by_proofs() {
    if !grace::report().enters_by_store() {
        println!("skipped: there is no barrier to lose: {}", grace::report());
        return;
    }
    let _watchdog = Watchdog::over("withdrawals without a barrier");
    // Beside a walk in another place, with the barrier and then without.
    OTHER.put(Box::new(0));
    let (tell, thread) = walker(&OTHER);
    assert_eq!(*withdrawn(1).wait().unwrap(), 1);
    forbid_membarrier();
    let Err(WaitError::Deadline(waited)) = withdrawn(2).wait_until(soon()) else {
        panic!("the walker may be anywhere")
    };
    assert!(grace::report().barrier_lost());
    let blockers = waited.blockers();
    assert!(blockers.len() == 1 && blockers[0].is_unproven() && !waited.is_used_here());
    assert!(blockers[0].to_string().ends_with("(walker) began its walk before the barrier was lost"));

    // A departure that waits for the walk ends with it.
    let (done, is_done) = mpsc::channel::<(ThreadId, u32)>();
    waited.detach(move |value| done.send((std::thread::current().id(), *value)).unwrap());
    assert!(is_done.try_recv().is_err() && PLACE.is_taken());
    let id = thread.thread().id();
    tell.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(is_done.recv(), Ok((id, 2)));
    assert!(is_done.recv().is_err(), "once");

    // Walks that begin now prove themselves.
    let (tell_other, other) = walker(&OTHER);
    assert_eq!(*withdrawn(3).wait().unwrap(), 3);
    PLACE.put(Box::new(4));
    let (tell, thread) = walker(&PLACE);
    let waited = PLACE.withdraw().expect("a value");
    assert_eq!(waited.blockers().len(), 1);
    let waiting = std::thread::spawn(move || *waited.wait().unwrap());
    std::thread::sleep(Duration::from_millis(5));
    assert!(!waiting.is_finished());
    tell.send(()).unwrap();
    assert_eq!(waiting.join().unwrap(), 4);
    thread.join().unwrap();
    tell_other.send(()).unwrap();
    other.join().unwrap();

    // A thread's own walk does not hold up that thread.
    let mut lease = DOMAIN.lease();
    let pinned = lease.pin(&OTHER).unwrap();
    assert_eq!(*withdrawn(5).wait().unwrap(), 5);
    drop(pinned);
}
