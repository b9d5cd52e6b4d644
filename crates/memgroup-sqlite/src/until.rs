//! Until: work that ran out of memory waits for room and is done again, until a deadline.
//!
//! ```text
//!   attempt ──▶ done, or failed otherwise
//!      ▲  └──▶ out of memory, no transaction open ──▶ everything that it had is free again ──▶ in line for what it had and lacked
//!      └────────────────── there is room, or some time has passed ◀───────────────────────────────────┘
//! ```
//!
//! SQLite cannot wait within a statement: its allocator may run under mutexes and file locks that whoever could free memory needs. So the statement fails, which frees what it had, and its
//! thread waits with nothing in hand ([`Group::charge_until`]).
//!
//! - I1. Nothing is charged while an attempt runs but what the attempt charges: what the wait got is given back before. Another may take it; then there is another wait.
//! - I2. Of two waits that end at once one after the other, the second is for twice as much. So a statement is not run over and over where there is room for its beginning alone.
//! - B1. What a statement will need is not known. It waits for what its group had more when it was refused, and what it lacked then; others of the group count in that. So a wait for room ends after
//!   10 ms, the next after 20, up to a second, and the work is tried all the same.

use std::time::{Duration, Instant};

use memgroup::{ChargeErrorKind, Group};
use rusqlite::Connection;

use crate::error::{OutOfMemory, TenantError};
use crate::shortage::Shortage;
use crate::tenant::TenantConnection;

/// How long the first wait is at most, and the longest.
const PATIENCE: Duration = Duration::from_millis(10);
const PATIENCE_MOST: Duration = Duration::from_secs(1);

impl TenantConnection {
    /// Runs `work` as [`run`](TenantConnection::run) does. When it runs out of memory outside of a transaction, waits until there is room again where it was refused, and runs it again, until it succeeds or
    /// fails otherwise, or the deadline has passed. What it had is free while it waits.
    ///
    /// `work` is run again from its beginning: it is to be one statement, or one transaction that it begins and ends. What it has committed before it fails is done twice. An attempt that is on when the deadline passes
    /// goes on to its end. Whether one was waited for tells [`Hierarchy::waits`](memgroup::Hierarchy::waits) meanwhile; [`Group::wake_waiters`] ends the wait, and so does the removal of the group.
    ///
    /// In a transaction, within another use on this thread, and where waiting could not help (the charge is larger than the limit), it is tried once.
    ///
    /// # Errors
    ///
    /// As for [`run`](TenantConnection::run); [`TenantError::OutOfMemory`] is that of the last attempt.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use memgroup_sqlite::{TenantConnection, TenantError};
    /// # use std::time::{Duration, Instant};
    /// # fn report(conn: &TenantConnection) -> Result<String, TenantError> {
    /// let deadline = Instant::now() + Duration::from_secs(5);
    /// conn.run_until(deadline, |conn| conn.query_row("SELECT group_concat(text) FROM note", [], |row| row.get(0)))
    /// # }
    /// ```
    pub fn run_until<T>(
        &self,
        deadline: Instant,
        mut work: impl FnMut(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, TenantError> {
        let may_wait = self.is_between_statements();
        let mut room = Room { patience: PATIENCE, at_once: None };
        loop {
            self.pay(Some(deadline));
            let details = match self.use_once(&mut work) {
                Err(TenantError::OutOfMemory(details)) if may_wait => details,
                outcome => return outcome,
            };
            if !self.is_between_statements() || !room.is_awaited(self.group(), &details, deadline) {
                return Err(TenantError::OutOfMemory(details));
            }
        }
    }
}

/// What one call has waited for.
struct Room {
    patience: Duration,
    /// Bytes for which there was room without a wait.
    at_once: Option<u64>,
}

impl Room {
    /// Waits for room; false: there is nothing to wait for, or no time.
    fn is_awaited(&mut self, group: &Group, details: &OutOfMemory, deadline: Instant) -> bool {
        let Some(Shortage::Refused(refusal)) = details.shortage() else { return false };
        let began = Instant::now();
        let least = least_max(group);
        if refusal.kind() == ChargeErrorKind::Offline || refusal.asked() > least || began >= deadline {
            return false;
        }
        let had = details.usage.saturating_sub(group.usage_exact());
        let wanted =
            had.saturating_add(refusal.asked()).max(self.at_once.map_or(0, |bytes| bytes.saturating_mul(2)));
        let wanted = wanted.min(least);
        let until = deadline.min(began + self.patience);
        let waited = group.charge_until(wanted, until);
        match waited {
            Ok(charge) => {
                drop(charge);
                // A wait that took no time was none.
                self.at_once = (began.elapsed() < PATIENCE / 10).then_some(wanted);
                true
            }
            Err(error) if error.kind() == ChargeErrorKind::Deadline => {
                self.patience = (self.patience * 2).min(PATIENCE_MOST);
                self.at_once = None;
                Instant::now() < deadline
            }
            Err(_) => false,
        }
    }
}

/// The lowest limit of the group and those above it.
fn least_max(group: &Group) -> u64 {
    let mut least = group.max();
    let mut level = group.parent();
    while let Some(above) = level {
        least = least.min(above.max());
        level = above.parent();
    }
    least
}
