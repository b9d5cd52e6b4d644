//! Ring: the last events, each with a number that is never used again.
//!
//! - I1. Numbers rise by one. A reader that asks for the events after a number gets all that
//!   follow, or learns how many are gone.
//! - I2. There are at most [`Serve::events`](crate::Serve::events) events, and their texts take at
//!   most [`TEXT`] bytes for each of these. The memory for both is charged when the server starts.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use crate::account::uncounted;

/// Bytes of texts for each event that may be kept.
const TEXT: usize = 256;

/// Returns the bytes that a ring of `events` events may take.
pub(crate) const fn bytes_of(events: usize) -> u64 {
    (events * (TEXT + size_of::<Event>())) as u64
}

/// An event as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) number: u64,
    pub(crate) kind: &'static str,
    pub(crate) data: Box<str>,
}

/// The events, and a signal for their readers.
#[derive(Debug)]
pub(crate) struct Ring {
    most: usize,
    kept: Mutex<Kept>,
    next: watch::Sender<u64>,
}

#[derive(Debug)]
struct Kept {
    events: VecDeque<Event>,
    bytes: usize,
    next: u64,
}

/// The answer to a reader.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct After {
    /// The number of events that are gone and that the reader did not get.
    pub(crate) lost: u64,
    pub(crate) events: Vec<Event>,
}

impl Ring {
    pub(crate) fn new(most: usize) -> Ring {
        let kept = Kept { events: VecDeque::new(), bytes: 0, next: 1 };
        Ring { most, kept: Mutex::new(kept), next: watch::Sender::new(1) }
    }

    /// Adds an event. An event whose text is larger than the ring is dropped, which readers see as
    /// a gap.
    pub(crate) fn push(&self, kind: &'static str, data: &impl Serialize) {
        // Serialising cannot fail for a value without maps and with finite numbers.
        let data = uncounted(|| serde_json::to_string(data).unwrap_or_default().into_boxed_str());
        let mut kept = self.kept.lock();
        kept.bytes += data.len();
        let number = kept.next;
        uncounted(|| kept.events.push_back(Event { number, kind, data }));
        kept.next += 1;
        while kept.events.len() > self.most || kept.bytes > TEXT * self.most {
            let gone = kept.events.pop_front();
            kept.bytes -= gone.map_or(0, |event| event.data.len());
        }
        drop(kept);
        self.next.send_replace(number + 1);
    }

    /// Returns the number of the next event.
    pub(crate) fn next(&self) -> u64 {
        self.kept.lock().next
    }

    /// Returns the number of the oldest stored event, or of the next event if none is stored.
    pub(crate) fn oldest(&self) -> u64 {
        let kept = self.kept.lock();
        kept.events.front().map_or(kept.next, |event| event.number)
    }

    /// Returns the events from a number on, with at most `bytes` of text, but at least one if there
    /// is one.
    pub(crate) fn from(&self, number: u64, bytes: usize) -> After {
        let kept = self.kept.lock();
        let oldest = kept.events.front().map_or(kept.next, |event| event.number);
        let first = number.max(oldest);
        let skipped = usize::try_from(first - oldest).unwrap_or(usize::MAX);
        let mut sum = 0;
        let fits = |event: &&Event| {
            let is_first = sum == 0;
            sum += event.data.len();
            is_first || sum <= bytes
        };
        let events = kept.events.iter().skip(skipped).take_while(fits).cloned().collect();
        After { lost: first - number, events }
    }

    /// Returns a receiver that gets the number of the next event whenever there is a new one.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.next.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(after: &After) -> Vec<u64> {
        after.events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn gives_each_event_once_and_in_order() {
        let ring = Ring::new(100);
        assert_eq!(ring.from(1, 1000), After { lost: 0, events: vec![] });
        (0..5).for_each(|number| ring.push("limit", &number));
        assert_eq!(numbers(&ring.from(1, 1000)), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(&ring.from(4, 1000)), [4, 5]);
        assert_eq!(numbers(&ring.from(1, 2)), [1, 2], "two bytes of text");
        assert_eq!(numbers(&ring.from(1, 0)), [1], "one at least");
        assert_eq!(numbers(&ring.from(6, 1000)), [0; 0]);
        assert_eq!((ring.oldest(), ring.next()), (1, 6));
    }

    #[test]
    fn tells_how_many_are_gone() {
        const EVENTS: usize = 64;
        const BYTES: usize = EVENTS * TEXT;
        let ring = Ring::new(EVENTS);
        (0..EVENTS + 10).for_each(|number| ring.push("limit", &number));
        assert_eq!(ring.oldest(), 11);
        let after = ring.from(3, 0);
        assert_eq!((after.lost, numbers(&after)), (8, vec![11]));
        let long = "x".repeat(BYTES / 4);
        (0..5).for_each(|_| ring.push("limit", &long));
        assert!(ring.kept.lock().bytes <= BYTES);
        ring.push("limit", &"x".repeat(BYTES));
        let next = ring.next();
        assert_eq!(ring.oldest(), next, "the event was larger than the ring");
        assert_eq!(ring.from(next - 1, 0), After { lost: 1, events: vec![] });
    }

    #[test]
    fn a_number_from_the_future_waits_for_it() {
        let ring = Ring::new(100);
        ring.push("limit", &0);
        assert_eq!(ring.from(100, 1000), After { lost: 0, events: vec![] });
    }
}
