//! Peaks: the highest usage of a group since each of its readers was last reset.

use memgroup_sync::Mutex;
use memgroup_sync::grace::Lent;

use crate::state::counter::Counter;
use crate::tree::node::Node;
use crate::tree::parts::{Key, NodePart, Part};

/// The readers of one group's peak that have been reset at least once.
pub(crate) struct Readers(Mutex<Stored>);

#[derive(Default)]
struct Stored {
    next: u64,
    /// The number of each reader, and the highest usage from its reset to the last reset of any
    /// reader.
    of: Vec<(u64, u64)>,
}

impl Readers {
    pub(crate) fn new() -> Readers {
        Readers(Mutex::new(Stored::default()))
    }

    /// Resets one reader and returns its number, which is `number` if it has been reset before.
    pub(crate) fn reset(&self, counter: &Counter, number: Option<u64>) -> u64 {
        let mut stored = self.0.lock();
        let before = counter.peak().restart(counter);
        stored.of.iter_mut().for_each(|(_, highest)| *highest = before.max(*highest));
        let number = number.unwrap_or_else(|| {
            stored.next += 1;
            stored.next
        });
        stored.of.retain(|(of, _)| *of != number);
        stored.of.push((number, 0));
        number
    }

    pub(crate) fn read(&self, counter: &Counter, number: u64) -> u64 {
        let stored = self.0.lock();
        let highest = stored.of.iter().find(|(of, _)| *of == number).map_or(0, |(_, highest)| *highest);
        highest.max(counter.peak().recent())
    }

    /// Forgets a reader, which is being dropped.
    pub(crate) fn leave(&self, number: u64) {
        self.0.lock().of.retain(|(of, _)| *of != number);
    }

    #[cfg(all(test, not(memgroup_loom)))]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().of.len()
    }
}

impl Part for Readers {}

static READERS: Key<NodePart, Readers> = Key::new(NodePart::PeakReaders, Readers::new);

impl Node {
    /// Returns the readers of the group's peak.
    pub(crate) fn peak_readers(&self) -> Lent<'_, Readers> {
        self.part(&READERS)
    }
}

#[cfg(all(test, memgroup_loom))]
mod loom {
    use std::sync::Arc;

    use memgroup_sync::loom::thread;

    use crate::base::mutation::{self, Mutation};
    use crate::charge::loom::explore;
    use crate::counter::peaks::Readers;
    use crate::state::counter::{Counter, Purpose};

    fn charge(counter: &Counter, bytes: u64) {
        let usage = counter.try_charge(bytes, 0, Purpose::Charge).unwrap();
        counter.raise_peak(usage);
    }

    fn uncharge(counter: &Counter, bytes: u64) {
        counter.uncharge(bytes);
    }

    /// Returns a counter with a peak of ten and a usage of zero.
    fn counter() -> Arc<Counter> {
        let counter = Arc::new(Counter::new());
        charge(&counter, 10);
        uncharge(&counter, 10);
        counter
    }

    /// A thread makes a charge that lasts, while a reader is reset.
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

    /// A thread makes a new peak while a reader is reset.
    fn a_new_peak_and_a_reset() {
        let (counter, readers) = (Arc::new(Counter::new()), Readers::new());
        let charger = {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                charge(&counter, 5);
                assert_eq!(counter.peak().highest(), 5, "the peak is the charge");
            })
        };
        let number = readers.reset(&counter, None);
        charger.join().unwrap();
        assert_eq!((counter.peak().highest(), readers.read(&counter, number)), (5, 5));
    }

    /// Two readers are reset, one after the other, while a thread charges and uncharges.
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
    #[should_panic(expected = "the peak is the charge")]
    fn hides_a_new_peak_when_a_reset_goes_above_the_peak() {
        mutation::with(Mutation::ResetGoesAboveThePeak, || explore(a_new_peak_and_a_reset));
    }

    #[test]
    fn a_reset_takes_no_peak_from_another_reader() {
        explore(a_charge_and_two_resets);
    }

    #[test]
    #[should_panic(expected = "five are charged")]
    fn loses_a_charge_when_a_reset_loads_the_usage() {
        mutation::with(Mutation::ResetLoadsUsage, || explore(a_charge_and_a_reset));
    }
}
