//! Throttle: a group that owes pays by time, between two statements and nowhere else.
//!
//! ```text
//!   run ──▶ owes? ──▶ no other run on this thread, no transaction open? ──▶ sleep ──▶ enter the group ──▶ statements
//!            └─ no: one load    └─ no: later                              └─ Manual: the application takes the delay
//! ```
//!
//! The engine decides how much a group owes ([`Group::owed`](memgroup::Group::owed)): memory taken above `high`, or by force above `max`.
//! SQLite's allocator may run under SQLite's mutexes and file locks, and a transaction keeps file locks. A delay there would hold up every
//! connection that waits for them.
//!
//! - I1. A thread does not sleep in a run within another run on the same thread, or in a transaction of the connection. It does not sleep
//!   inside a call of SQLite on a tenant's connection.
//! - B1. Only runs of tenants' connections are known. A transaction that *another* connection has open on the thread, outside of a run, is
//!   not. Nor is a statement of a plain [`Connection`](rusqlite::Connection) with a user function, hook or virtual table that uses a tenant's
//!   connection: there the thread sleeps inside SQLite, with that statement's locks. Set [`Throttling::Manual`] on a connection that is used
//!   so.

use std::time::Instant;

use memgroup::Throttle;

use crate::kill;
use crate::tenant::{TenantConnection, Throttling};

impl TenantConnection {
    /// Sets how this connection treats the group's delays: [`Throttling::Block`] unless set.
    pub fn set_throttling(&self, throttling: Throttling) {
        self.throttling.set(throttling);
    }

    /// The setting of [`set_throttling`](TenantConnection::set_throttling).
    pub fn throttling(&self) -> Throttling {
        self.throttling.get()
    }

    /// Takes the group's debt as a delay ([`Group::take_throttle`](memgroup::Group::take_throttle)). Keep the value for its
    /// [`delay`](Throttle::delay) without using the connection, then drop it. `None` if nothing is due, in a transaction, and within a run of
    /// a connection on this thread.
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
        if self.may_sleep() { self.group().take_throttle() } else { None }
    }

    /// Sleeps for the group's debt before a run, if the connection's setting says so and the thread may sleep here.
    #[inline]
    pub(crate) fn pay(&self, deadline: Option<Instant>) {
        if self.group().owed() > 0 && self.throttling() == Throttling::Block && self.may_sleep() {
            // The group's statistics tell how the delay ended.
            let _ = self.group().throttle(deadline);
        }
    }

    /// Whether this thread may sleep (I1).
    pub(crate) fn may_sleep(&self) -> bool {
        !kill::is_running_here() && self.connection().is_autocommit()
    }
}
