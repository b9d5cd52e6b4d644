//! Deadline: until when a call may wait.

use std::time::{Duration, Instant};

/// Until when a call may wait. Made from an [`Instant`], from a [`Duration`] from now on, or from `None`: without end.
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

    /// The instant; `None` for one that never comes.
    pub fn instant(self) -> Option<Instant> {
        self.0
    }

    /// The instant; for one that never comes, a century from now.
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
    /// A duration that no clock can show is without end.
    fn from(from_now: Duration) -> Deadline {
        Deadline(Instant::now().checked_add(from_now))
    }
}

impl From<Option<Instant>> for Deadline {
    fn from(instant: Option<Instant>) -> Deadline {
        Deadline(instant)
    }
}
