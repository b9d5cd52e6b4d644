//! The self-test of slot sources.
//!
//! A wrong slot costs speed, never correctness. So the tests search for a source that is
//! *systematically* wrong. Examples are an emulator that leaves the rseq area as it was, and a
//! kernel that stopped updating a field. They tolerate the delays of a busy machine.
//!
//! - B1. Readings during which a thread was moved are not counted, and one in eight of the others
//!   may disagree.
//! - B2. Every test ends after a number of readings that is fixed beforehand, passed or not.
//! - E1. One round of `Meeting`: the asker's first reading happens before the helper's reading.
//!   That one happens before the asker's second reading. Both hold by Release stores to `asked`
//!   and `answer`, and Acquire loads on the other side.

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::slot::cpus;
use crate::slot::error::SlotError;
use crate::slot::source::SlotSource;

/// Readings compared with the system call's.
const READINGS: usize = 256;
/// Rounds with a helper that must have found the two threads on different CPUs, without a move.
const ROUNDS_WANTED: usize = 64;
/// How often the asker polls for answers, all rounds together: some 30 ms of CPU time. On a busy
/// machine the two threads meet only when both have a CPU at the same time.
const POLLS_MAX: u32 = 1 << 19;
/// Polls between two yields. Many, because yielding at once would let two threads take turns on
/// one CPU for ever.
const POLLS_TO_YIELD: u32 = 1 << 13;

pub(crate) fn getcpu() -> Result<SlotSource, SlotError> {
    follows_the_cpu(SlotSource::getcpu()?)
}

pub(crate) fn cpu_id() -> Result<SlotSource, SlotError> {
    follows_the_cpu(SlotSource::cpu_id()?)
}

pub(crate) fn mm_cid() -> Result<SlotSource, SlotError> {
    let source = SlotSource::mm_cid()?;
    let cpu = follows_the_cpu(SlotSource::cpu_id()?)?;
    for _ in 0..READINGS {
        in_range(source, source.raw())?;
    }
    if source.slots() > 1 {
        if cpus::allowed() == 1 {
            return fail(source, "this process may run on one CPU only, where its self-test cannot run");
        }
        differs_between_running_threads(source, cpu)?;
    }
    Ok(source)
}

fn fail<T>(source: SlotSource, reason: impl Into<String>) -> Result<T, SlotError> {
    Err(SlotError::unavailable(source.name(), reason))
}

fn in_range(source: SlotSource, raw: u32) -> Result<(), SlotError> {
    if (raw as usize) < source.slots() {
        return Ok(());
    }
    fail(source, format!("it reads {raw}, and there are {} possible CPUs", source.slots()))
}

/// The source reads the CPU that the system call names, in every reading during which the thread
/// stayed there.
fn follows_the_cpu(source: SlotSource) -> Result<SlotSource, SlotError> {
    let (mut counted, mut wrong) = (0, 0);
    for _ in 0..READINGS {
        let Some(before) = cpus::getcpu_kernel() else {
            return fail(source, "the getcpu system call to compare it with reports an error");
        };
        let raw = source.raw();
        in_range(source, raw)?;
        if cpus::getcpu_kernel() == Some(before) {
            counted += 1;
            wrong += usize::from(raw != before);
        }
    }
    if counted == 0 || wrong * 8 > counted {
        let reason = format!("it disagrees with the getcpu system call in {wrong} of {counted} readings");
        return fail(source, reason);
    }
    Ok(source)
}

/// The CPU and the id that a thread reads of itself.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Reading {
    cpu: u32,
    id: u32,
}

impl Reading {
    fn take(source: SlotSource, cpu: SlotSource) -> Self {
        Self { cpu: cpu.raw(), id: source.raw() }
    }

    /// Two readings that agree; `None` if the thread was moved between them.
    fn take_steady(source: SlotSource, cpu: SlotSource) -> Option<Self> {
        let reading = Self::take(source, cpu);
        (Self::take(source, cpu) == reading).then_some(reading)
    }
}

/// The words by which the asker and the helper meet, once a round.
#[derive(Default)]
struct Meeting {
    asked: AtomicU32,
    answered: AtomicU32,
    /// The helper's CPU and id, 32 bits each.
    answer: AtomicU64,
}

const STOP: u32 = u32::MAX;
/// The answer of a helper that was moved while it read.
const MOVED: u64 = u64::MAX;

/// Two threads that run at the same time on different CPUs read different ids.
fn differs_between_running_threads(source: SlotSource, cpu: SlotSource) -> Result<(), SlotError> {
    let meeting = &Meeting::default();
    std::thread::scope(|scope| {
        let helper = std::thread::Builder::new().name("memgroup-slots".to_owned());
        let here = cpu.raw();
        let started = helper.spawn_scoped(scope, move || {
            // Two threads that wait for each other are easily left on one CPU when all are busy.
            cpus::keep_off(here);
            meeting.answer(source, cpu);
        });
        if let Err(error) = started {
            return fail(source, format!("no helper thread for its self-test could be started: {error}"));
        }
        let outcome = meeting.ask(source, cpu);
        // ORDERING: Release for uniformity with `asked` in `ask`; the helper only ends.
        meeting.asked.store(STOP, Ordering::Release);
        outcome
    })
}

impl Meeting {
    fn ask(&self, source: SlotSource, cpu: SlotSource) -> Result<(), SlotError> {
        let (mut counted, mut equal, mut polls) = (0, 0, 0);
        for round in 1..=POLLS_MAX {
            let before = Reading::take(source, cpu);
            // ORDERING: Release; pairs with the Acquire load in `answer` (E1). Weaker, the helper's
            // reading could be older than ours, of a moment when we did not run yet.
            self.asked.store(round, Ordering::Release);
            // ORDERING: Acquire; pairs with the Release store in `answer` (E1). Weaker, the answer
            // could be that of an earlier round.
            while self.answered.load(Ordering::Acquire) != round && polls < POLLS_MAX {
                polls += 1;
                pause(polls);
            }
            if polls == POLLS_MAX {
                break;
            }
            // ORDERING: Relaxed; ordered by the Acquire load of `answered` (E1).
            let answer = self.answer.load(Ordering::Relaxed);
            let other = Reading { cpu: (answer >> 32) as u32, id: answer as u32 };
            if Reading::take(source, cpu) != before || answer == MOVED || other.cpu == before.cpu {
                continue;
            }
            in_range(source, other.id)?;
            counted += 1;
            equal += usize::from(other.id == before.id);
            if counted == ROUNDS_WANTED {
                break;
            }
        }
        if counted < ROUNDS_WANTED {
            let reason = format!(
                "two threads were seen on different CPUs {counted} times only, of {ROUNDS_WANTED} that its self-test \
                 needs (one CPU allowed, or all busy)"
            );
            return fail(source, reason);
        }
        if equal * 8 > counted {
            let reason =
                format!("threads on different CPUs read the same id in {equal} of {counted} readings");
            return fail(source, reason);
        }
        Ok(())
    }

    fn answer(&self, source: SlotSource, cpu: SlotSource) {
        let (mut last, mut polls) = (0, 0_u32);
        loop {
            // ORDERING: Acquire; pairs with the Release store in `ask` (E1).
            let round = self.asked.load(Ordering::Acquire);
            if round == STOP {
                return;
            }
            if round == last {
                polls += 1;
                pause(polls);
                continue;
            }
            let reading = Reading::take_steady(source, cpu);
            let answer = reading.map_or(MOVED, |it| u64::from(it.cpu) << 32 | u64::from(it.id));
            // ORDERING: Relaxed; published by the Release store that follows (E1).
            self.answer.store(answer, Ordering::Relaxed);
            // ORDERING: Release; pairs with the Acquire load in `ask` (E1).
            self.answered.store(round, Ordering::Release);
            last = round;
        }
    }
}

fn pause(polls: u32) {
    if polls.is_multiple_of(POLLS_TO_YIELD) {
        memgroup_sync::thread::yield_now();
    } else {
        core::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pin_virtual;

    fn reason<T: core::fmt::Debug>(outcome: Result<T, SlotError>) -> String {
        match outcome {
            Err(SlotError::Unavailable { reason, .. }) => reason,
            other => panic!("expected a rejection, got {other:?}"),
        }
    }

    #[test]
    fn rejects_a_source_that_is_stuck_on_one_slot() {
        let stuck = SlotSource::virtual_slots(4096).unwrap();
        let _far_beyond_any_cpu_here = pin_virtual(4095);
        let reason = reason(follows_the_cpu(stuck));
        assert!(reason.contains("getcpu system call"), "{reason}");
    }

    #[test]
    fn accepts_the_cpu_of_the_library() {
        assert_eq!(getcpu().map(SlotSource::name), Ok("getcpu"));
    }

    #[test]
    fn rejects_ids_that_two_running_threads_share() {
        let Ok(cpu) = SlotSource::cpu_id() else { return };
        let same_for_all = SlotSource::thread_hash(1).unwrap();
        let reason = reason(differs_between_running_threads(same_for_all, cpu));
        assert!(reason.contains("the same id in") || reason.contains("on different CPUs"), "{reason}");
    }

    #[test]
    fn rejects_ids_beyond_the_possible_cpus() {
        let source = SlotSource::hash_of_cpus();
        let beyond = source.slots() as u32;
        assert!(in_range(source, beyond - 1).is_ok());
        assert!(reason(in_range(source, beyond)).contains("possible CPUs"));
    }
}
