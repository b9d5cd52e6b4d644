//! Sweeps: each scenario is repeated, and has its first charge refused, then its second, and so
//! on, once and from then on. The same with the mappings and the chunks of nodes that the engine
//! asks the system for. See `xtask::sweep`.
//!
//! A scenario's oracle is a [`Book`]: every refusal reaches exactly one caller, with the kind
//! `Injected`; after each step the root holds the bytes of the charges that were made; in the end
//! every group reads 0, and the next operation works.
#![cfg(not(any(memgroup_loom, memgroup_emulated)))]

mod charges;
mod life;
mod limits;
mod resources;

use memgroup::{
    Charge, ChargeError, ChargeErrorKind, Config, FailureInjection, Group, Hierarchy, SlotSource,
};
use xtask::sweep::Run;

const PAGE: u64 = 4096;

fn hierarchy() -> Hierarchy {
    Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap()
}

/// The charges of one run, and its refusals.
struct Book {
    hierarchy: Hierarchy,
    injection: FailureInjection,
    run: Run,
    refused: u64,
    held: Vec<Charge>,
}

impl Book {
    fn open(hierarchy: Hierarchy, run: Run) -> Book {
        let injection = hierarchy.root().inject_failures_at(run.refused());
        Book { hierarchy, injection, run, refused: 0, held: Vec::new() }
    }

    /// Notes the outcome of a charge, which may be refused by injection only.
    fn note<T>(&mut self, outcome: Result<T, ChargeError>) -> Option<T> {
        if let Err(error) = &outcome {
            assert_eq!(error.kind(), ChargeErrorKind::Injected, "{error}");
            assert!(error.to_string().contains("a failure is injected into group /"), "{error}");
            self.refused += 1;
        }
        self.check_refusals();
        outcome.ok()
    }

    /// Notes a charge, and keeps it if it was made.
    fn keep(&mut self, outcome: Result<Charge, ChargeError>) {
        let made = self.note(outcome);
        self.held.extend(made);
        self.check_bytes(0);
    }

    /// Each refusal was told to one caller.
    fn check_refusals(&self) {
        assert_eq!(self.injection.failed(), self.refused, "refusals, and errors that callers were given");
    }

    /// The root holds the charges of the book, and so many bytes more.
    fn check_bytes(&self, more: u64) {
        let held: u64 = self.held.iter().map(Charge::bytes).sum();
        assert_eq!(self.hierarchy.root().usage_exact(), held + more);
    }

    /// Ends the run: nothing is left, and every group works. Returns the number of charges that
    /// the run made.
    fn close(mut self) -> u64 {
        self.held.clear();
        self.check_refusals();
        let charges = self.injection.drawn();
        let refuses = self.run.refuses_any_of(charges);
        assert_eq!(self.refused > 0, refuses, "{charges} charges, {} refusals", self.refused);
        drop(self.injection);
        assert_nothing_is_left(&self.hierarchy);
        self.hierarchy.groups().iter().for_each(assert_works);
        assert_nothing_is_left(&self.hierarchy);
        charges
    }
}

fn assert_nothing_is_left(hierarchy: &Hierarchy) {
    for group in hierarchy.groups() {
        assert_eq!(group.usage_exact(), 0, "{}", group.path());
    }
    // Dying groups without bytes, too.
    for group in hierarchy.snapshot().groups {
        assert!(
            group.online,
            "{} is dying, with {} bytes and no handle",
            group.path, group.usage_exact_bytes
        );
    }
    assert!(hierarchy.waits().is_empty(), "{:?}", hierarchy.waits());
}

/// The next operation of a group works, with its stock again.
fn assert_works(group: &Group) {
    let charge = group.try_charge(100).unwrap();
    assert_eq!(group.usage_exact(), 100, "{}", group.path());
    drop(charge);
}
