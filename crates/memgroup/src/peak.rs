//! Peak: the highest usage, of all time and for each reader since it last said so.
//!
//! ```text
//!   peak      the highest usage ever                                 one reader's answer:
//!   recent    the highest since any reader's last reset                never reset    peak
//!   stored    for each reader: the highest of the times from its       has been       max(stored, recent)
//!             reset to the last reset of another
//! ```
//!
//! A charge that the counters saw compares its usage with `recent`, and with nothing else: where nobody ever reset, that is the peak. A reset, under the
//! lock of the group's readers, begins a new `recent` and lifts what every other reader has stored to the old one. The kernel, whose
//! `memory.peak` this is, lifts it to the usage of that moment instead, so a reader loses the peak between its own reset and another's.
//!
//! - I1. `recent` ≤ `peak`: who raises both raises `peak` first, and a reset goes no higher. Else a charge could find `recent` high enough, and leave
//!   `peak` below its usage.
//! - I2. A reader's answer is at least the highest usage that a charge brought about which began after its reset, and that usage at the reset.
//! - B1. Usage has in it what is prepaid in the stocks of the subtree, so a peak exceeds that of what was charged by as much as
//!   [`Group::usage`] does: at most half of what the limits leave, and the slots' budgets. [`Group::drain`] before a reset has
//!   that begin with what is charged; a hierarchy without stock ([`Config::stock_cap_bytes`](crate::Config::stock_cap_bytes)) has none.
//! - B2. A charge that is under way during a reset may be counted to either side of it: the new peak may be a usage that was over just before.
//! - E1. reset → charge: the reset empties `recent` and then looks at the usage by an RMW; a charge changes the usage by an RMW and then looks at
//!   `recent`. Of two RMWs on one word the later sees the earlier: the reset sees the usage, or the charge an empty `recent`.
//!   No fence is needed where a charge pays. Loom: `a_reset_loses_no_charge`.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{Mutex, interleave};

use crate::counter::Counter;
use crate::group::Group;
use crate::mutation::{self, Mutation};

/// The peaks of one counter.
pub(crate) struct Peak {
    peak: AtomicU64,
    recent: AtomicU64,
}

impl Peak {
    pub(crate) fn new() -> Peak {
        Peak { peak: AtomicU64::new(0), recent: AtomicU64::new(0) }
    }

    /// A charge that succeeded at every level took usage there.
    #[inline]
    pub(crate) fn raise(&self, usage: u64) {
        // ORDERING: Acquire; pairs with the Release below: who finds `recent` high enough leaves `peak` alone, and has it as high.
        if self.recent.load(Ordering::Acquire) < usage {
            self.raise_both(usage);
        }
    }

    #[cold]
    fn raise_both(&self, usage: u64) {
        // ORDERING: Relaxed; published by the next line (I1).
        self.peak.fetch_max(usage, Ordering::Relaxed);
        interleave::point();
        // ORDERING: Release; pairs with the Acquire in `raise`, and with that of a reset, whose reader has had `peak` until then.
        self.recent.fetch_max(usage, Ordering::Release);
    }

    /// The highest usage of all.
    pub(crate) fn highest(&self) -> u64 {
        // ORDERING: Relaxed; a report.
        self.peak.load(Ordering::Relaxed)
    }

    fn recent(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release in `raise_both`.
        self.recent.load(Ordering::Acquire)
    }

    /// Begins anew with the usage of now; the highest until now. The caller has the lock of the readers.
    fn restart(&self, counter: &Counter) -> u64 {
        // ORDERING: AcqRel; published by the RMW on the counter's word (E1).
        let before = self.recent.swap(0, Ordering::AcqRel);
        interleave::point();
        let usage =
            if mutation::active(Mutation::ResetLoadsUsage) { counter.usage() } else { counter.usage_now() };
        interleave::point();
        // A charge under way is in usage and not yet in the peak; it raises both when it has succeeded, if it does.
        let most = if mutation::active(Mutation::ResetGoesAboveThePeak) { u64::MAX } else { self.highest() };
        // ORDERING: Release; as in `raise_both`.
        self.recent.fetch_max(usage.min(most), Ordering::Release);
        before
    }

    /// For a new group in the place.
    pub(crate) fn reset(&self) {
        // ORDERING: Relaxed, both; nobody has a handle yet.
        self.peak.store(0, Ordering::Relaxed);
        // ORDERING: as above.
        self.recent.store(0, Ordering::Relaxed);
    }
}

/// The readers of one group's peak that have been reset: their numbers, and what is stored for them.
pub(crate) struct Readers {
    stored: Mutex<Stored>,
}

struct Stored {
    next: u64,
    of: Vec<(u64, u64)>,
}

impl Readers {
    pub(crate) fn new() -> Readers {
        Readers { stored: Mutex::new(Stored { next: 0, of: Vec::new() }) }
    }

    /// Begins anew for one reader, which has this number if it has been reset before. Its number from now on.
    fn reset(&self, counter: &Counter, number: Option<u64>) -> u64 {
        let mut stored = self.stored.lock();
        let before = counter.peak().restart(counter);
        for (_, highest) in &mut stored.of {
            *highest = (*highest).max(before);
        }
        match number.and_then(|number| stored.of.iter_mut().find(|(of, _)| *of == number)) {
            Some((number, highest)) => {
                *highest = 0;
                *number
            }
            None => {
                let number = stored.next;
                stored.next += 1;
                stored.of.push((number, 0));
                number
            }
        }
    }

    fn read(&self, counter: &Counter, number: u64) -> u64 {
        let stored = self.stored.lock();
        let highest = stored.of.iter().find(|(of, _)| *of == number).map_or(0, |(_, highest)| *highest);
        highest.max(counter.peak().recent())
    }

    fn leave(&self, number: u64) {
        self.stored.lock().of.retain(|(of, _)| *of != number);
    }
}

/// One reader of a group's peak: [`Group::peak_reader`]. It keeps its group as a handle does, so of a group that is removed it reads what that had.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// let (mut hourly, mut daily) = (tenant.peak_reader(), tenant.peak_reader());
/// drop(tenant.try_charge(500).unwrap());
/// daily.reset();
/// drop(tenant.try_charge(100).unwrap());
/// hourly.reset();
/// drop(tenant.try_charge(20).unwrap());
/// assert_eq!((hourly.read(), daily.read(), tenant.peak()), (20, 100, 500));
/// ```
pub struct PeakReader {
    group: Group,
    number: Option<u64>,
}

impl PeakReader {
    /// The group's peak, until this reader is reset; after that the highest usage since, in bytes. Prepaid bytes are a part of usage.
    pub fn read(&self) -> u64 {
        let node = self.group.node();
        match self.number {
            None => node.counter.peak().highest(),
            Some(number) => node.control.peak_readers.read(&node.counter, number),
        }
    }

    /// Begins anew, for this reader alone, with the usage of now. What a charge that ended before has brought about is not in what is read next, what one
    /// that begins afterwards does is; one under way meanwhile may be.
    pub fn reset(&mut self) {
        let node = self.group.node();
        self.number = Some(node.control.peak_readers.reset(&node.counter, self.number));
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }
}

impl Drop for PeakReader {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.group.node().control.peak_readers.leave(number);
        }
    }
}

impl core::fmt::Debug for PeakReader {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PeakReader").field("group", &self.group.path()).field("peak", &self.read()).finish()
    }
}

impl Group {
    /// The highest `usage` so far, in bytes; only charges that succeeded at every level count.
    pub fn peak(&self) -> u64 {
        self.node().counter.peak().highest()
    }

    /// A reader of the peak that can begin anew without any other noticing; there may be any number of them. Costs charges that the stock serves
    /// nothing, and others what [`peak`](Group::peak) alone does.
    pub fn peak_reader(&self) -> PeakReader {
        PeakReader { group: self.clone(), number: None }
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::{Config, Hierarchy};

    #[test]
    fn a_reader_that_is_dropped_is_known_no_longer_and_the_others_are() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let known = || group.node().control.peak_readers.stored.lock().of.len();
        let (mut stays, never_reset) = (group.peak_reader(), group.peak_reader());
        stays.reset();
        for _ in 0..100 {
            let mut goes = group.peak_reader();
            goes.reset();
            goes.reset();
            assert_eq!(known(), 2, "a number for each that was ever reset");
        }
        drop(never_reset);
        assert_eq!(known(), 1);
        drop(group.try_charge(10).unwrap());
        group.peak_reader().reset();
        assert_eq!(stays.read(), 10);
        drop(stays);
        assert_eq!(known(), 0);
    }
}

#[cfg(all(test, memgroup_loom))]
mod loom {
    use std::sync::Arc;

    use memgroup_sync::loom::thread;

    use super::Readers;
    use crate::counter::{Counter, Verdict};
    use crate::mutation::{self, Mutation};
    use crate::stock::loom::explore;

    fn charge(counter: &Counter, bytes: u64) {
        let usage = counter.try_charge(bytes, 0, Verdict::Hint).unwrap();
        counter.raise_peak(usage);
    }

    fn uncharge(counter: &Counter, bytes: u64) {
        counter.uncharge(bytes);
    }

    /// A counter that was at ten, and is at none.
    fn counter() -> Arc<Counter> {
        let counter = Arc::new(Counter::new());
        charge(&counter, 10);
        uncharge(&counter, 10);
        counter
    }

    /// One charges, and keeps it, while a reader is reset.
    fn a_charge_and_a_reset() {
        let (counter, readers) = (counter(), Readers::new());
        let charger = {
            let counter = Arc::clone(&counter);
            thread::spawn(move || charge(&counter, 5))
        };
        let number = readers.reset(&counter, None);
        charger.join().unwrap();
        let read = readers.read(&counter, number);
        assert!(read == 5, "five are charged, and at most five were since the reset: {read}");
    }

    /// One charges more than was ever charged, while a reader is reset.
    fn a_new_peak_and_a_reset() {
        let (counter, readers) = (Arc::new(Counter::new()), Readers::new());
        let charger = {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                charge(&counter, 5);
                assert_eq!(counter.peak().highest(), 5, "the peak is what is charged");
            })
        };
        let number = readers.reset(&counter, None);
        charger.join().unwrap();
        assert_eq!((counter.peak().highest(), readers.read(&counter, number)), (5, 5));
    }

    /// Two readers are reset, one after the other, while somebody charges and uncharges.
    fn a_charge_and_two_resets() {
        let (counter, readers) = (counter(), Arc::new(Readers::new()));
        let first = readers.reset(&counter, None);
        let charger = {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                charge(&counter, 7);
                uncharge(&counter, 7);
            })
        };
        let second = readers.reset(&counter, None);
        let read = readers.read(&counter, second);
        assert!(read == 0 || read == 7, "{read}");
        charger.join().unwrap();
        assert_eq!(readers.read(&counter, first), 7, "the first was reset before that");
        assert_eq!(counter.peak().highest(), 10);
    }

    #[test]
    fn a_reset_loses_no_charge() {
        explore(a_charge_and_a_reset);
    }

    #[test]
    fn a_reset_hides_no_new_peak() {
        explore(a_new_peak_and_a_reset);
    }

    #[test]
    #[should_panic(expected = "the peak is what is charged")]
    fn a_new_peak_is_hidden_where_a_reset_goes_above_the_peak() {
        mutation::with(Mutation::ResetGoesAboveThePeak, || explore(a_new_peak_and_a_reset));
    }

    #[test]
    fn a_reset_takes_no_peak_from_another_reader() {
        explore(a_charge_and_two_resets);
    }

    #[test]
    #[should_panic(expected = "five are charged")]
    fn a_charge_is_lost_where_a_reset_loads_the_usage() {
        mutation::with(Mutation::ResetLoadsUsage, || explore(a_charge_and_a_reset));
    }
}
