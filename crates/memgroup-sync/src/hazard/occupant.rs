//! Who is in a place, and for how long: for people.
//!
//! A pin does not look at a clock. Who finds it notes the time in its record, and a pin that begins forgets what is noted there.
//!
//! - B1. A time is a lower bound: it counts from when the pin was first found, or from the last [stamp](super::Pinned::stamp).

use core::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::place::Place;
use super::record::{Found, Record};
use crate::grace::stall;

/// A thread that is in a place, or might be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    place: usize,
    thread_id: u32,
    held: Duration,
    unproven: bool,
}

impl Occupant {
    /// Who has something pinned on this record.
    pub(super) fn of(record: &Record) -> Option<Self> {
        let (thread_id, place) = record.occupied()?;
        let held = Duration::from_nanos(record.known_for());
        Some(Self { place, thread_id, held, unproven: false })
    }

    /// Who has anything pinned on this record, or might have, given what a scan found.
    pub(super) fn using(record: &Record, (place, is_proven): (usize, bool)) -> Option<Self> {
        if place == 0 && is_proven {
            return None;
        }
        let seen = Self::of(record).unwrap_or(Self {
            place,
            thread_id: record.owner(),
            held: Duration::ZERO,
            unproven: false,
        });
        Some(Self { unproven: !is_proven, ..seen })
    }

    /// Who is in the place with this key, given what a scan found.
    pub(super) fn found(record: &Record, place: usize, found: Found) -> Option<Self> {
        match found {
            Found::Nothing => None,
            Found::Pin => Self::of(record).filter(|occupant| occupant.place == place),
            Found::Unproven => {
                Some(Self { place, thread_id: record.owner(), held: Duration::ZERO, unproven: true })
            }
        }
    }

    /// The [key](Place::key) of the place.
    #[must_use]
    pub fn place(&self) -> usize {
        self.place
    }

    /// Whether this is the place.
    #[must_use]
    pub fn is_in<T>(&self, place: &Place<T>) -> bool {
        self.place == place.key()
    }

    /// The system's number of the thread.
    #[must_use]
    pub fn thread_id(&self) -> u32 {
        self.thread_id
    }

    /// The name of the thread, read now; `None` if it has ended, or the system does not tell.
    #[must_use]
    pub fn thread_name(&self) -> Option<String> {
        stall::thread_name(self.thread_id)
    }

    /// For how long at least.
    #[must_use]
    pub fn held(&self) -> Duration {
        self.held
    }

    /// Whether the thread is waited for although it is not seen in the place: the barrier is lost, and until the lease that it has
    /// taken before is over it might be.
    #[must_use]
    pub fn is_unproven(&self) -> bool {
        self.unproven
    }
}

impl fmt::Display for Occupant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}", self.thread_id)?;
        if let Some(name) = self.thread_name() {
            write!(f, " ({name})")?;
        }
        if self.unproven {
            return f.write_str(" began its walk before the barrier was lost");
        }
        write!(f, " in it for {:?} or more", self.held)
    }
}

/// Nanoseconds since the first call, and some: above the values of a record's `since` that are no time.
pub(super) fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let nanos = START.get_or_init(Instant::now).elapsed().as_nanos();
    u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add(2)
}
