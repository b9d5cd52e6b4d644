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
//! - I1. Nobody is held up in a use within another on the same thread, in a transaction of the connection, or inside SQLite on behalf of a tenant's connection.
//! - B1. Seen are uses of tenants' connections, and no more. A transaction that *another* connection has open on the thread, outside of a use, is not; nor is a statement of a connection that is no tenant's
//!   (a plain [`Connection`](rusqlite::Connection)), from whose user function, hook or virtual table a tenant's is used: there the thread sleeps inside of SQLite, with the locks of that statement. Who does either
//!   sets [`Throttling::Manual`] on the connection that is used there.

use std::time::Instant;

use memgroup::Throttle;

use crate::kill;
use crate::tenant::TenantConnection;

/// Who sees to the delays of a group that [owes](memgroup::Group::owed).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttling {
    /// The connection: its thread sleeps at the beginning of a use, outside of transactions of it and other tenants' uses on the thread, for 2 s at most. Not for a connection that is used from a function
    /// that SQLite calls in a statement of a plain connection: that statement would be held up with its locks.
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
