//! Throttle: a group that owes pays by time, between two statements and nowhere else.
//!
//! ```text
//!   run ──▶ owes? ──▶ no other use on this thread, no transaction open? ──▶ sleeps ──▶ enter the group ──▶ statements
//!            └─ no: one load    └─ no: later                              └─ Manual: the application takes a value
//! ```
//!
//! What is owed is the engine's matter ([`Group::owed`](memgroup::Group::owed)): memory taken above `high`, or by force above `max`. SQLite's allocator may run under SQLite's
//! mutexes and file locks, and a transaction keeps file locks, for which others wait: a delay there would be everybody's.
//!
//! - I1. Nobody is held up in a use within another on the same thread, in a transaction, or inside SQLite.
//! - B1. A transaction of *another* connection that the thread has open, outside of a use, is not seen: who holds several open sets [`Throttling::Manual`].

use std::time::Instant;

use memgroup::Throttle;

use crate::kill;
use crate::tenant::TenantConnection;

/// Who sees to the delays of a group that [owes](memgroup::Group::owed).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttling {
    /// The connection: its thread sleeps at the beginning of a use, outside of transactions, for 2 s at most.
    #[default]
    Block,
    /// The application, with [`TenantConnection::take_throttle`]: for those that schedule themselves.
    Manual,
}

impl TenantConnection {
    /// Sets who sees to the delays of the group, for this connection: [`Throttling::Block`] unless set.
    pub fn set_throttling(&self, throttling: Throttling) {
        self.throttling.set(throttling);
    }

    /// See [`set_throttling`](TenantConnection::set_throttling).
    pub fn throttling(&self) -> Throttling {
        self.throttling.get()
    }

    /// What the group owes, as a delay that the caller sees to ([`Group::take_throttle`](memgroup::Group::take_throttle)): keep the value for its
    /// [`delay`](Throttle::delay) without using the connection, then drop it. `None` where nothing is due, in a transaction, and within a use of a connection on this thread.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use memgroup_sqlite::{TenantConnection, Throttling};
    /// # fn work(conn: &TenantConnection) -> Result<(), memgroup_sqlite::TenantError> {
    /// conn.set_throttling(Throttling::Manual);
    /// conn.execute("DELETE FROM note WHERE id % 2 = 0", [])?;
    /// if let Some(throttle) = conn.take_throttle() {
    ///     std::thread::sleep(throttle.left());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_throttle(&self) -> Option<Throttle> {
        if self.is_between_statements() { self.group().take_throttle() } else { None }
    }

    /// Before a use: slows this thread down for what the group owes, if that is the connection's matter and can be done here.
    #[inline]
    pub(crate) fn pay(&self, deadline: Option<Instant>) {
        if self.group().owed() > 0 {
            self.pay_what_is_owed(deadline);
        }
    }

    #[cold]
    fn pay_what_is_owed(&self, deadline: Option<Instant>) {
        if self.throttling.get() == Throttling::Block && self.is_between_statements() {
            // How it ended is in the group's statistics.
            let _ = self.group().throttle(deadline);
        }
    }

    /// Whether this thread may be held up (I1).
    pub(crate) fn is_between_statements(&self) -> bool {
        !kill::is_in_use_here() && self.connection().is_autocommit()
    }
}
