//! What a slot source must show before it is trusted.
//!
//! A wrong slot costs speed, never correctness, so the tests look for a source that is *systematically* wrong: an
//! emulator that leaves the rseq area as it was, a kernel that stopped updating a field. They tolerate what a busy
//! machine does to two threads.
//!
//! - B1. Readings during which a thread was moved are not counted, and one in eight of the others may disagree.
//! - B2. Every test ends after a number of readings that is fixed beforehand, passed or not.
//! - E1. One round of `Meeting`: what the asker read before it asked happens before the helper's reading, and that before
//!   the asker's second reading: Release stores to `asked` and `answered`, Acquire loads on the other side.

use memgroup_sync::atomic::{AtomicU32, Ordering};

use crate::slot::cpus;
use crate::slot::error::SlotError;
use crate::slot::source::SlotSource;

/// Readings compared with the system call's.
const READINGS: usize = 256;
/// Rounds with a helper that must have found the two threads on different CPUs, without a move.
const ROUNDS_WANTED: usize = 64;
/// How often the asker looks for answers, all rounds together: some 30 ms of CPU time. On a busy machine the two threads meet
/// only when both have a CPU at the same time.
const LOOKS_MAX: u32 = 1 << 19;
/// Looks between two yields. Long, because yielding at once would let two threads take turns on one CPU for ever.
const LOOKS_TO_YIELD: u32 = 1 << 13;

pub(crate) fn getcpu() -> Result<SlotSource, SlotError> {
    let source = SlotSource::getcpu()?;
    follows_the_cpu(source)?;
    Ok(source)
}

pub(crate) fn cpu_id() -> Result<SlotSource, SlotError> {
    let source = SlotSource::cpu_id()?;
    follows_the_cpu(source)?;
    Ok(source)
}

pub(crate) fn mm_cid() -> Result<SlotSource, SlotError> {
    let source = SlotSource::mm_cid()?;
    let cpu = SlotSource::cpu_id()?;
    follows_the_cpu(cpu)?;
    for _ in 0..READINGS {
        in_range(source, source.raw())?;
    }
    if source.slots() > 1 {
        if cpus::allowed() == 1 {
            let reason = "this process may run on one CPU only, where its self-test cannot run";
            return Err(SlotError::unavailable(source.name(), reason));
        }
        differs_between_running_threads(source, cpu)?;
    }
    Ok(source)
}

fn in_range(source: SlotSource, raw: u32) -> Result<(), SlotError> {
    if (raw as usize) < source.slots() {
        return Ok(());
    }
    let reason = format!("it reads {raw}, and there are {} possible CPUs", source.slots());
    Err(SlotError::unavailable(source.name(), reason))
}

/// The source reads the CPU that the system call names, in every reading during which the thread stayed there.
fn follows_the_cpu(source: SlotSource) -> Result<(), SlotError> {
    let fail = |reason: String| Err(SlotError::unavailable(source.name(), reason));
    let (mut counted, mut wrong) = (0, 0);
    for _ in 0..READINGS {
        let Some(before) = cpus::getcpu_kernel() else {
            return fail("the getcpu system call to compare it with reports an error".to_owned());
        };
        let raw = source.raw();
        in_range(source, raw)?;
        if cpus::getcpu_kernel() == Some(before) {
            counted += 1;
            wrong += usize::from(raw != before);
        }
    }
    if counted == 0 || wrong * 8 > counted {
        return fail(format!("it disagrees with the getcpu system call in {wrong} of {counted} readings"));
    }
    Ok(())
}

/// What a thread reads of itself: its CPU and its id, both the same before and after.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Reading {
    cpu: u32,
    id: u32,
}

impl Reading {
    fn take(source: SlotSource, cpu: SlotSource) -> Self {
        Self { cpu: cpu.raw(), id: source.raw() }
    }
}

/// Where the asker and the helper meet, once a round.
struct Meeting {
    asked: AtomicU32,
    answered: AtomicU32,
    cpu: AtomicU32,
    id: AtomicU32,
}

const STOP: u32 = u32::MAX;
/// The CPU of a helper that was moved while it read.
const MOVED: u32 = u32::MAX;

/// Two threads that run at the same time on different CPUs read different ids.
fn differs_between_running_threads(source: SlotSource, cpu: SlotSource) -> Result<(), SlotError> {
    let word = || AtomicU32::new(0);
    let meeting = &Meeting { asked: word(), answered: word(), cpu: word(), id: word() };
    std::thread::scope(|scope| {
        let helper = std::thread::Builder::new().name("memgroup-slots".to_owned());
        let here = cpu.raw();
        let started = helper.spawn_scoped(scope, move || {
            // Two threads that wait for each other are easily left on one CPU when all are busy.
            cpus::keep_off(here);
            meeting.answer(source, cpu);
        });
        if let Err(error) = started {
            let reason = format!("no helper thread for its self-test could be started: {error}");
            return Err(SlotError::unavailable(source.name(), reason));
        }
        let outcome = meeting.ask(source, cpu);
        // ORDERING: Release for uniformity with `asked` in `ask`; the helper only ends.
        meeting.asked.store(STOP, Ordering::Release);
        outcome
    })
}

impl Meeting {
    fn ask(&self, source: SlotSource, cpu: SlotSource) -> Result<(), SlotError> {
        let (mut counted, mut equal, mut looks) = (0, 0, 0);
        for round in 1..=LOOKS_MAX {
            let before = Reading::take(source, cpu);
            // ORDERING: Release; pairs with the Acquire load in `answer` (E1). Weaker, the helper's reading could be
            // older than ours, of a moment when we did not run yet.
            self.asked.store(round, Ordering::Release);
            if !self.is_answered(round, &mut looks) {
                break;
            }
            // ORDERING: Relaxed; ordered by the Acquire load of `answered` in `is_answered` (E1).
            let other =
                Reading { cpu: self.cpu.load(Ordering::Relaxed), id: self.id.load(Ordering::Relaxed) };
            let still = Reading::take(source, cpu) == before;
            if !still || other.cpu == MOVED || other.cpu == before.cpu {
                continue;
            }
            in_range(source, other.id)?;
            counted += 1;
            equal += usize::from(other.id == before.id);
            if counted == ROUNDS_WANTED {
                break;
            }
        }
        let fail = |reason: String| Err(SlotError::unavailable(source.name(), reason));
        if counted < ROUNDS_WANTED {
            return fail(format!(
                "two threads were seen on different CPUs {counted} times only, of {ROUNDS_WANTED} that its self-test \
                 needs (one CPU allowed, or all busy)"
            ));
        }
        if equal * 8 > counted {
            return fail(format!(
                "threads on different CPUs read the same id in {equal} of {counted} readings"
            ));
        }
        Ok(())
    }

    /// Whether an answer came while there were looks left.
    fn is_answered(&self, round: u32, looks: &mut u32) -> bool {
        while *looks < LOOKS_MAX {
            *looks += 1;
            // ORDERING: Acquire; pairs with the Release store in `answer` (E1). Weaker, `cpu` and `id` could be those
            // of an earlier round.
            if self.answered.load(Ordering::Acquire) == round {
                return true;
            }
            pause(*looks);
        }
        false
    }

    fn answer(&self, source: SlotSource, cpu: SlotSource) {
        let (mut last, mut looks) = (0, 0_u32);
        loop {
            // ORDERING: Acquire; pairs with the Release store in `ask` (E1).
            let round = self.asked.load(Ordering::Acquire);
            if round == STOP {
                return;
            }
            if round == last {
                looks += 1;
                pause(looks);
                continue;
            }
            let reading = Reading::take(source, cpu);
            let still = Reading::take(source, cpu) == reading;
            // ORDERING: Relaxed; published by the Release store that follows (E1).
            self.cpu.store(if still { reading.cpu } else { MOVED }, Ordering::Relaxed);
            // ORDERING: Relaxed, as for `cpu`.
            self.id.store(reading.id, Ordering::Relaxed);
            // ORDERING: Release; pairs with the Acquire load in `is_answered` (E1).
            self.answered.store(round, Ordering::Release);
            last = round;
        }
    }
}

fn pause(looks: u32) {
    if looks.is_multiple_of(LOOKS_TO_YIELD) {
        memgroup_sync::thread::yield_now();
    } else {
        core::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pin_virtual;

    fn reason(outcome: Result<(), SlotError>) -> String {
        match outcome {
            Err(SlotError::Unavailable { reason, .. }) => reason,
            other => panic!("expected a rejection, got {other:?}"),
        }
    }

    #[test]
    fn a_source_that_is_stuck_on_one_slot_does_not_pass_for_the_cpu() {
        let stuck = SlotSource::virtual_slots(4096).unwrap();
        let _far_beyond_any_cpu_here = pin_virtual(4095);
        let reason = reason(follows_the_cpu(stuck));
        assert!(reason.contains("getcpu system call"), "{reason}");
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn the_library_s_cpu_passes_for_the_cpu() {
        assert_eq!(getcpu().map(SlotSource::name), Ok("getcpu"));
    }

    #[test]
    fn ids_that_two_running_threads_share_are_rejected() {
        let Ok(cpu) = SlotSource::cpu_id() else { return };
        let same_for_all = SlotSource::thread_hash(1).unwrap();
        let reason = reason(differs_between_running_threads(same_for_all, cpu));
        assert!(reason.contains("the same id in") || reason.contains("on different CPUs"), "{reason}");
    }

    #[test]
    fn ids_beyond_the_possible_cpus_are_rejected() {
        let source = SlotSource::hash_of_cpus();
        let beyond = source.slots() as u32;
        assert!(in_range(source, beyond - 1).is_ok());
        assert!(reason(in_range(source, beyond)).contains("possible CPUs"));
    }
}
