//! A barrier that is forbidden later, and a thread that waits for grace periods: it does not wait
//! for itself.
//!
//! One test, in a process of its own: the barrier is lost for the whole of it.

#![cfg(all(target_os = "linux", not(any(miri, memgroup_loom, memgroup_emulated))))]

use std::time::{Duration, Instant};

use memgroup_sync::grace::{self, Form};
use seccomp::forbid_membarrier;

mod seccomp;

#[test]
fn a_thread_that_waits_proves_that_it_is_in_no_section() {
    drop(grace::enter());
    grace::synchronize(Form::Quiet);
    forbid_membarrier();
    for form in [Form::Expedited, Form::Quiet] {
        let waited = grace::synchronize_until(form, Instant::now() + Duration::from_secs(20));
        assert!(waited.is_ok(), "{}", waited.unwrap_err());
    }
    let mut pending = grace::begin(Form::Expedited);
    assert!(pending.poll(), "no thread is in a section");
    assert!(grace::report().barrier_lost() || !grace::report().enters_by_store());
}
