//! A barrier that worked when the program started and is forbidden later: grace periods stay right.
//!
//! One test, in a process of its own: the barrier is lost for the whole of it.

#![cfg(all(target_os = "linux", not(any(miri, memgroup_loom, memgroup_emulated))))]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use memgroup_sync::grace::{self, Form, Limbo};
use seccomp::forbid_membarrier;

mod seccomp;

/// A thread that runs one section each time it is told to.
fn reader() -> (mpsc::Sender<()>, mpsc::Receiver<()>, std::thread::JoinHandle<()>) {
    let (tell, told) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::Builder::new().name("idle-reader".to_owned());
    let thread = thread.spawn(move || {
        while told.recv().is_ok() {
            drop(grace::enter());
            done.send(()).unwrap();
        }
    });
    (tell, is_done, thread.unwrap())
}

fn late() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(30)
}

#[test]
fn a_barrier_that_is_forbidden_later_is_replaced_by_proofs() {
    let mut limbo = Limbo::new(1);
    if !grace::report().enters_by_store() {
        println!("skipped: there is no barrier to lose: {}", grace::report());
        return;
    }
    let (tell, is_done, thread) = reader();
    tell.send(()).unwrap();
    is_done.recv().unwrap();
    for form in [Form::Quiet, Form::Expedited] {
        grace::synchronize_until(form, late()).unwrap();
    }

    forbid_membarrier();
    limbo.retire((), 1).unwrap();
    let stalled = grace::synchronize_until(Form::Quiet, soon()).unwrap_err();
    let [staller] = &stalled.stallers[..] else { panic!("the idle reader is waited for: {stalled}") };
    assert!(staller.is_unproven);
    assert!(
        stalled.to_string().ends_with("(idle-reader) has not entered a section since the barrier was lost")
    );
    assert!(grace::report().barrier_lost() && !grace::report().enters_by_store());
    assert!(grace::report().to_string().ends_with("; the barrier failed later, sections by swap since then"));
    assert_eq!(limbo.reclaim(|()| panic!("its grace period is not over")), 0);

    tell.send(()).unwrap();
    is_done.recv().unwrap();
    for form in [Form::Quiet, Form::Expedited] {
        grace::synchronize_until(form, late()).expect("the reader has entered by a swap");
    }
    assert_eq!(limbo.reclaim(drop), 1);

    let held = grace::enter();
    let waits = std::thread::spawn(|| grace::synchronize_until(Form::Quiet, soon()).is_err());
    assert!(waits.join().unwrap(), "a section is waited for as ever");
    drop(held);
    drop(tell);
    thread.join().unwrap();
    grace::synchronize_until(Form::Quiet, late()).expect("a record that was given back needs no proof");
}
