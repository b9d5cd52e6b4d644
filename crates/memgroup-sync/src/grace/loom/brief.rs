//! Models of brief sections: alone, among others, and extended.

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

/// A writer that scans once, a section that follows its link and is extended before it reads.
fn an_extended_section(within: fn(&Linked)) {
    let linked = Linked::new();
    let other = reader(&linked, within);
    linked.unlink();
    if sees_no_section(tag(), Evidence::Exchanges) {
        linked.use_again();
    }
    other.join().unwrap();
}

fn extended(linked: &Linked) {
    let brief = briefly();
    let place = linked.follow();
    let section = brief.extend();
    linked.read(place);
    drop(section);
}

/// The brief section becomes a part of the other one, which is later.
fn extended_into_a_later_one(linked: &Linked) {
    let brief = briefly();
    let place = linked.follow();
    let later = enter();
    let section = brief.extend();
    drop(later);
    linked.read(place);
    drop(section);
}

#[test]
fn loom_a_brief_section_that_is_extended_keeps_its_protection() {
    explore_as_shipped(|| an_extended_section(extended));
}

#[test]
fn loom_a_brief_section_within_a_later_one_keeps_its_protection() {
    explore_as_shipped(|| an_extended_section(extended_into_a_later_one));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_extended_section_that_takes_the_new_epoch_is_caught() {
    fails_with(Mutation::ExtendTakesNewEpoch, || explore_as_shipped(|| an_extended_section(extended)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_extended_section_that_is_in_no_word_for_a_moment_is_caught() {
    fails_with(Mutation::ExtendLeavesFirst, || explore_as_shipped(|| an_extended_section(extended)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_scan_that_an_extended_section_slips_past_is_caught() {
    fails_with(Mutation::ScanReadsWordFirst, || explore_as_shipped(|| an_extended_section(extended)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_extended_section_that_takes_a_later_ones_epoch_is_caught() {
    let model = || an_extended_section(extended_into_a_later_one);
    fails_with(Mutation::ExtendTakesNewEpoch, || explore_as_shipped(model));
}
