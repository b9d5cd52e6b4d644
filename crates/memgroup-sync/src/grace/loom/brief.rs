//! Models of brief sections: alone, and among others.

use super::*;
use crate::grace::{BriefSection, enter_briefly};

/// A brief section; the thread has a record by an earlier section of its own.
fn briefly() -> BriefSection {
    drop(enter());
    enter_briefly().expect("the thread is in no other brief section")
}

fn one_brief_section() {
    let linked = Linked::new();
    let other = reader(&linked, |linked| {
        let section = briefly();
        linked.read(linked.follow());
        drop(section);
    });
    linked.unlink();
    synchronize(Form::Quiet);
    linked.use_again();
    other.join().unwrap();
}

#[test]
fn loom_a_brief_section_never_sees_memory_that_is_used_again() {
    explore(one_brief_section);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_brief_entry_by_a_store_without_a_barrier_is_caught() {
    fails_with(Mutation::EnterByStore, || explore(one_brief_section));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_brief_section_that_publishes_nothing_is_caught() {
    fails_with(Mutation::LeaveRelaxed, || explore(one_brief_section));
}

/// The end of one of the two does not end the other, whichever was first.
#[test]
fn loom_a_brief_section_and_another_end_in_any_order() {
    for brief_first in [true, false] {
        explore(move || {
            let linked = Linked::new();
            let read: fn(&Linked) = if brief_first {
                |linked| {
                    let brief = briefly();
                    let section = enter();
                    drop(brief);
                    in_section(linked, section);
                }
            } else {
                |linked| {
                    let section = enter();
                    let brief = enter_briefly().expect("the thread is in no other brief section");
                    drop(section);
                    linked.read(linked.follow());
                    drop(brief);
                }
            };
            let other = reader(&linked, read);
            linked.unlink();
            synchronize(Form::Quiet);
            linked.use_again();
            other.join().unwrap();
        });
    }
}
