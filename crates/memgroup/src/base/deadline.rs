//! Deadline: how long a call may wait.

use std::time::{Duration, Instant};

/// The instant until which a call may wait. It is made from an [`Instant`], from a [`Duration`]
/// from now on, or from `None`, which lets the call wait without end.
///
/// ```
/// # use memgroup::{Config, Deadline, Hierarchy};
/// # use std::time::{Duration, Instant};
/// let group = Hierarchy::new(Config::new()).unwrap().create("/group").unwrap();
/// drop(group.charge_until(100, Duration::from_millis(5)).unwrap());
/// drop(group.charge_until(100, Instant::now() + Duration::from_millis(5)).unwrap());
/// drop(group.charge_until(100, Deadline::NEVER).unwrap());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// The call may wait without end.
    pub const NEVER: Deadline = Deadline(None);

    /// Returns the instant, or `None` if the call may wait without end.
    pub fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Returns the instant, or one a century from now if the call may wait without end.
    pub(crate) fn instant_or_far(self) -> Instant {
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
        self.0.unwrap_or_else(|| Instant::now() + CENTURY)
    }
}

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Deadline {
        Deadline(Some(instant))
    }
}

impl From<Duration> for Deadline {
    /// Makes a deadline that lies `from_now` ahead, or [`Deadline::NEVER`] if no clock can show
    /// that instant.
    fn from(from_now: Duration) -> Deadline {
        Deadline(Instant::now().checked_add(from_now))
    }
}

impl From<Option<Instant>> for Deadline {
    fn from(instant: Option<Instant>) -> Deadline {
        Deadline(instant)
    }
}
