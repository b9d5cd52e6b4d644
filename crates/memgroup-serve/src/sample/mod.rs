//! Sample: the values that checks of the tree leave: events, history, sums of kills.

mod groups;
mod history;
mod kills;
mod ring;

use std::time::{Duration, SystemTime};

use memgroup::{Charge, ChargeError};
use parking_lot::Mutex;

pub(crate) use self::groups::{Counts, Groups, Met};
pub(crate) use self::history::History;
pub(crate) use self::kills::{BOUNDS, Kill, Kills, Totals, outcome};
pub(crate) use self::ring::Ring;
use crate::account::Account;
use crate::config::Serve;

/// The values that checks leave for requests.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(crate) ring: Ring,
    pub(crate) history: History,
    /// Sums over all kills since the server was started.
    pub(crate) kills: Mutex<Totals>,
    /// The charge of the ring.
    _charge: Charge,
}

impl Samples {
    pub(crate) fn new(account: &Account, serve: &Serve) -> Result<Samples, ChargeError> {
        let charge = account.charge(ring::bytes_of(serve.events))?;
        let history = History::new(serve.history_groups);
        Ok(Samples { ring: Ring::new(serve.events), history, kills: Mutex::default(), _charge: charge })
    }
}

/// Microseconds of a time.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds since 1970.
pub(crate) fn unix_us(time: SystemTime) -> u64 {
    micros(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}
