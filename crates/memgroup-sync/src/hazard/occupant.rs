//! Reports of the threads that use a place, and for how long.
//!
//! A pin does not read a clock. A thread that finds a pin notes the time in its record, and a pin
//! that begins erases the note.
//!
//! - B1. A time is a lower bound: it counts from when the pin was first found, or from the last
//!   [stamp](super::Pinned::stamp).

use core::fmt;
use std::time::Duration;

use super::record::{Found, Record};
use crate::grace::stall;

/// A thread that uses a place, or may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    place: usize,
    thread_id: u32,
    held: Duration,
    unproven: bool,
}

impl Occupant {
    /// The thread with a pin on this record.
    pub(super) fn of(record: &Record) -> Option<Self> {
        let place = record.pinned();
        (place != 0).then(|| {
            let held = Duration::from_nanos(record.known_for());
            Self { place, thread_id: record.owner(), held, unproven: false }
        })
    }

    /// The thread that may use this place, or another one, invisibly.
    fn unproven(record: &Record, place: usize) -> Self {
        Self { place, thread_id: record.owner(), held: Duration::ZERO, unproven: true }
    }

    /// The thread that has any place pinned on this record, or may have, according to a scan.
    pub(super) fn of_any(record: &Record, (place, is_proven): (usize, bool)) -> Option<Self> {
        let seen = Self::of(record);
        if is_proven {
            return seen.filter(|_| place != 0);
        }
        Some(Self { unproven: true, ..seen.unwrap_or_else(|| Self::unproven(record, place)) })
    }

    /// The thread that uses the place with this key, or may use it, according to a scan.
    pub(super) fn of_place(record: &Record, place: usize, found: Found) -> Option<Self> {
        match found {
            Found::Nothing => None,
            Found::Pin => Self::of(record).filter(|occupant| occupant.place == place),
            Found::Unproven => Some(Self::unproven(record, place)),
        }
    }

    /// The [key](super::Place::key) of the place.
    pub fn place(&self) -> usize {
        self.place
    }

    /// The system's number of the thread.
    pub fn thread_id(&self) -> u32 {
        self.thread_id
    }

    /// The name of the thread, read now; `None` if it has ended, or the system does not report it.
    pub fn thread_name(&self) -> Option<String> {
        stall::thread_name(self.thread_id)
    }

    /// A lower bound of the time that it has used the place.
    pub fn held(&self) -> Duration {
        self.held
    }

    /// Returns whether a withdrawal waits for the thread although it does not see it in the place.
    /// The barrier is lost, and the thread may use the place until the lease that it took before
    /// is over.
    pub fn is_unproven(&self) -> bool {
        self.unproven
    }
}

impl fmt::Display for Occupant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        stall::write_thread(f, self.thread_id)?;
        if self.unproven {
            return f.write_str(" began its walk before the barrier was lost");
        }
        write!(f, " in it for {:?} or more", self.held)
    }
}
