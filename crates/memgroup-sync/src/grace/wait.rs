//! Waiting for a grace period.
//!
//! ```text
//!   synchronize:  ticket = tag() ─▶ turn ─▶ target = tag() ─▶ barrier ─▶ scan each record ─▶ COMPLETED = target
//!                                    │
//!                                    └─ COMPLETED ≥ ticket meanwhile: done, by the grace period of another
//! ```
//!
//! - I1. One scan a form is under way at a time; the others wait for it, and the next one serves
//!   all that waited. A call waits for two scans of its form at most.
//! - I2. No lock is held that a reader takes: readers take none.
//! - I3. A record on which a scan for an epoch found nothing never has a section of before that
//!   epoch again. So a [`Pending`] goes on where its last look ended, with the barrier that was
//!   made when it began. Loom: `loom_memory_is_used_again_when_a_poll_says_so`.

use std::time::{Duration, Instant};

use super::barrier::barrier;
use super::epoch::{self, Epoch};
use super::reader::Reader;
use super::scan::Found;
use super::stall::{self, Stalled};
use super::{Evidence, Form, registry, section};
use crate::mutation::{Mutation, active};
use crate::{Mutex, interleave, spin};

crate::global! {
    static QUIET_TURN: Mutex<()> = Mutex::new(());
    static EXPEDITED_TURN: Mutex<()> = Mutex::new(());
}

/// Waits until every section that was begun before the call is over.
///
/// No section sees memory that was unlinked before it, which may be used again. Calls of several
/// threads share grace periods.
///
/// # Panics
///
/// In a section of the calling thread: it would wait for ever for the end of that section.
pub fn synchronize(form: Form) {
    assert!(!section::inside(), "failed to wait for a grace period: this thread is in a section");
    let waited = wait(form, &mut Pause::new(None));
    debug_assert!(waited.is_ok(), "without a deadline it ends by success only");
}

/// Like [`synchronize`], but gives up at `deadline`, or at once in a section of the calling
/// thread.
///
/// The barrier itself is not broken off: the quiet one takes 8 to 24 ms.
///
/// # Errors
///
/// [`Stalled`] names the threads in the sections that did not end.
pub fn synchronize_until(form: Form, deadline: Instant) -> Result<(), Stalled> {
    let begun = Instant::now();
    let deadline = if section::inside() { begun } else { deadline };
    wait(form, &mut Pause::new(Some(deadline))).map_err(|Overdue(target)| Stalled {
        waited: begun.elapsed(),
        stallers: stall::stallers_before(target),
    })
}

/// A grace period that its owner polls, instead of waiting for it.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::grace::{self, Form};
///
/// let section = grace::enter();
/// let mut pending = grace::begin(Form::Expedited);
/// assert!(!pending.poll(), "a section lasts that was begun before");
/// drop(section);
/// while !pending.poll() {}
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a grace period ends when it is polled"]
pub struct Pending {
    target: Epoch,
    evidence: Evidence,
    /// Records on which no section of before the target is in force.
    over: usize,
}

/// Begins a grace period, for the memory that was unlinked before the call. It makes the barrier
/// of this form and waits for no section.
///
/// The expedited barrier takes microseconds and interrupts each running thread of the process. The
/// quiet one takes 8 to 24 ms.
pub fn begin(form: Form) -> Pending {
    let target = epoch::tag();
    let evidence = barrier(form);
    prove_own(evidence);
    Pending { target, evidence, over: 0 }
}

impl Pending {
    /// Returns whether the grace period is over: epochs from before it [are over](Epoch::is_over)
    /// then. It never waits. A look goes on where the last one ended, so that it visits one record
    /// while a section on it lasts.
    pub fn poll(&mut self) -> bool {
        interleave::point();
        if self.target.is_over() {
            return true;
        }
        for reader in registry::readers().skip(self.over) {
            let found = reader.scan(self.target, self.evidence);
            if found != Found::Nothing && !active(Mutation::PollPassesOverSections) {
                return false;
            }
            self.over += 1;
        }
        epoch::complete(self.target);
        true
    }
}

/// The deadline came before the end of this epoch's grace period.
struct Overdue(Epoch);

fn wait(form: Form, pause: &mut Pause) -> Result<(), Overdue> {
    let ticket = epoch::tag();
    let turn: &Mutex<()> = match form {
        Form::Quiet => &QUIET_TURN,
        Form::Expedited => &EXPEDITED_TURN,
    };
    let mut followed = false;
    loop {
        interleave::point();
        if ticket.is_over() || (followed && active(Mutation::FollowerTakesAnyGracePeriod)) {
            return Ok(());
        }
        if let Some(_turn) = turn.try_lock() {
            return if ticket.is_over() { Ok(()) } else { lead(form, pause) };
        }
        followed = true;
        pause.wait(ticket)?;
    }
}

/// One grace period, for all callers that took their tickets before it.
fn lead(form: Form, pause: &mut Pause) -> Result<(), Overdue> {
    let target = epoch::tag();
    if active(Mutation::CompletedBeforeScan) {
        epoch::complete(target);
    }
    let evidence = barrier(form);
    prove_own(evidence);
    interleave::point();
    // Short pauses again, for another condition.
    *pause = Pause::new(pause.deadline);
    registry::readers().try_for_each(|reader| outlast(reader, target, evidence, pause))?;
    epoch::complete(target);
    Ok(())
}

/// Where each record needs a proof: gives that of this thread, by a section. Else the thread would
/// wait for itself.
fn prove_own(evidence: Evidence) {
    if matches!(evidence, Evidence::Proofs { .. }) && !section::inside() {
        drop(section::enter());
    }
}

/// Waits until no section that was begun before `target` is in force on the record.
fn outlast(reader: &Reader, target: Epoch, evidence: Evidence, pause: &mut Pause) -> Result<(), Overdue> {
    loop {
        let word = match reader.scan(target, evidence) {
            Found::Nothing => return Ok(()),
            Found::Section(word) => word,
            Found::Unproven => {
                rest(reader, 0, target, pause)?;
                continue;
            }
        };
        // Loads until the word changes: an exchange each time would take the line from the reader.
        // A load decides nothing; the scan above does.
        while reader.still_holds(word) {
            rest(reader, word, target, pause)?;
        }
    }
}

/// One pause for a record whose word was found so.
fn rest(reader: &Reader, word: u64, target: Epoch, pause: &mut Pause) -> Result<(), Overdue> {
    if pause.is_long() {
        stall::note(reader, word);
    }
    pause.wait(target)
}

/// The pauses of one wait.
struct Pause {
    wait: spin::Wait,
    deadline: Option<Instant>,
}

impl Pause {
    fn new(deadline: Option<Instant>) -> Self {
        Self { wait: spin::Wait::new(), deadline }
    }

    /// Returns whether the next pause is a sleep.
    fn is_long(&self) -> bool {
        self.wait.sleeps_next()
    }

    fn wait(&mut self, target: Epoch) -> Result<(), Overdue> {
        let left = match self.deadline {
            None => Duration::MAX,
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
        };
        if left.is_zero() {
            return Err(Overdue(target));
        }
        self.wait.wait_at_most(left);
        Ok(())
    }
}
