//! Runs: work on a connection, in its group, and retries of work that ran out of memory, until a
//! deadline.
//!
//! ```text
//!   run_until: attempt ──▶ done, or failed otherwise
//!                ▲  └────▶ out of memory, no transaction open ──▶ its memory is free again ──▶ wait for that much and the refused bytes
//!                └──────────────── memory is free, or some time has passed ◀────────────────────┘
//! ```
//!
//! SQLite cannot wait within a statement: its allocator may run under mutexes and file locks that
//! the thread which could free memory needs. So the statement fails, which frees the statement's
//! memory, and then its thread waits ([`Group::wait_for_room`]).
//!
//! - I1. The wait charges nothing; only attempts do. If another thread takes the memory first, the
//!   thread waits again.
//! - I2. If memory is free at once and the attempt still fails, the next wait is for twice as much.
//!   So a statement is not repeated again and again if there is memory only for its beginning.
//! - I3. The wait kills nothing, because its size is an estimate. An attempt may kill, and its own
//!   memory then decides which victim is larger.
//! - B1. How much a statement needs isn't known. It waits for the memory that its group lost since
//!   the refusal, plus the refused bytes, and other connections of the group affect that sum. So
//!   the first wait ends after 10 ms, the next one after 20, up to a second, and the work is then
//!   tried in any case.
//!
//! A group that owes pays by time, between two statements and nowhere else:
//!
//! ```text
//!   run ──▶ owes? ──▶ no other run on this thread, no transaction open? ──▶ sleep ──▶ enter the group ──▶ statements
//!            └─ no: one load    └─ no: later                              └─ Manual: the application takes the delay
//! ```
//!
//! The engine decides how much a group owes ([`Group::owed`]): memory taken above `high`, or by
//! force above `max`. SQLite's allocator may run under SQLite's mutexes and file locks, and a
//! transaction keeps file locks. A delay there would hold up every connection that waits for them.
//!
//! - I4. A thread does not sleep in a run within another run on the same thread, or in a
//!   transaction of the connection. It does not sleep inside a call of SQLite on a tenant's
//!   connection.
//! - B2. Only runs of tenants' connections are known. A transaction that *another* connection has
//!   open on the thread, outside of a run, is not. Nor is a statement of a plain [`Connection`]
//!   with a user function, hook or virtual table that uses a tenant's connection: there the thread
//!   sleeps inside SQLite, with that statement's locks. Set [`Throttling::Manual`] on a connection
//!   that is used so.

use std::time::{Duration, Instant};

use memgroup::{ChargeErrorKind, Group, Throttle};
use rusqlite::{Connection, Params, Row, Transaction};

use crate::allocation_error::AllocationError;
use crate::error::{OutOfMemory, TenantError};
use crate::kill;
use crate::tenant::{TenantConnection, Throttling};

/// Length of the first wait, and of the longest.
const PATIENCE: Duration = Duration::from_millis(10);
const PATIENCE_MOST: Duration = Duration::from_secs(1);

impl TenantConnection {
    /// Sets how this connection treats the group's delays: [`Throttling::Block`] unless set.
    pub fn set_throttling(&self, throttling: Throttling) {
        self.throttling.set(throttling);
    }

    /// The setting of [`set_throttling`](TenantConnection::set_throttling).
    pub fn throttling(&self) -> Throttling {
        self.throttling.get()
    }

    /// Takes the group's debt as a delay
    /// ([`Group::take_throttle`](memgroup::Group::take_throttle)). Keep the value for its
    /// [`delay`](Throttle::delay) without using the connection, then drop it. `None` if nothing is
    /// due, in a transaction, and within a run of a connection on this thread.
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

    /// Sleeps for the group's debt before a run, if the connection's setting says so and the thread
    /// may sleep here.
    #[inline]
    pub(crate) fn pay(&self, deadline: Option<Instant>) {
        if self.group().owed() > 0 && self.throttling() == Throttling::Block && self.may_sleep() {
            // The group's statistics show how the delay ended.
            let _ = self.group().throttle(deadline);
        }
    }

    /// Returns whether this thread may sleep (I4).
    pub(crate) fn may_sleep(&self) -> bool {
        !kill::is_running_here() && self.connection().is_autocommit()
    }

    /// Runs `work` on the connection in its group: every allocation of SQLite in it is charged to
    /// the group. Statements that should be kept between runs belong in the connection's cache
    /// ([`Connection::prepare_cached`]). A transaction begins with
    /// [`TenantConnection::transaction`].
    ///
    /// When memory runs out while SQLite converts a text value (in a UTF-16 database), rusqlite
    /// panics. That panic is turned into [`TenantError::OutOfMemory`]. Any other panic continues.
    ///
    /// Runs nest, and the innermost group pays. Inside `a.run(|conn| b.run(|_| conn.execute(..)))`
    /// the connection of `a` allocates from the group of `b`. Pages that it caches there stay
    /// charged to `b`, and an error names `b`. So use only the lent connection inside `b.run`, and
    /// inside a [`scope`](memgroup::scope) of another group no tenant's connection of yet another.
    ///
    /// If the group owes, for memory taken above its `high`, the thread sleeps before `work`: never
    /// in a transaction, nor within another run ([`Throttling`](crate::Throttling)).
    ///
    /// From time to time the end of a run reports the connection's memory by kind
    /// ([`TenantConnection::sample`]).
    ///
    /// # Errors
    ///
    /// [`TenantError::OutOfMemory`] when the group, or one of its ancestors, refused memory that
    /// SQLite needed; [`TenantError::Killed`] when the run was stopped because another group needed
    /// its memory, even if `work` succeeded but left a transaction open that it began;
    /// [`TenantError::Sqlite`] for every other error of `work`.
    pub fn run<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, TenantError> {
        self.pay(None);
        self.run_once(work)
    }

    /// Runs `work` inside a transaction, in the group as [`TenantConnection::run`] does. Commits
    /// when it succeeds, rolls back when it fails.
    ///
    /// On failure [`TenantError::rolled_back`] reports whether it was rolled back. If the roll-back
    /// itself fails, the transaction is still open. Within another run of the connection that may
    /// happen when it is killed; then the end of the outer run rolls back.
    ///
    /// It is all or nothing even if `work` ignores errors. SQLite may have rolled the transaction
    /// back (after a query that ran out of memory), or `work` may have. Then nothing more can be
    /// committed on the connection before this returns. A statement that writes fails with
    /// `SQLITE_CONSTRAINT_COMMITHOOK`, or takes part in a transaction that will, and the commit at
    /// the end fails. This does not hold if the application installs a commit or rollback hook of
    /// its own on the connection.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::run`], of `work` or of the commit.
    pub fn transaction<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, TenantError> {
        self.run(|conn| {
            let _guard = self.watch.guard();
            let transaction = conn.unchecked_transaction()?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        })
    }

    /// [`Connection::execute`] in the group.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::run`].
    pub fn execute(&self, sql: &str, params: impl Params) -> Result<usize, TenantError> {
        self.run(|conn| conn.execute(sql, params))
    }

    /// [`Connection::execute_batch`] in the group.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::run`].
    pub fn execute_batch(&self, sql: &str) -> Result<(), TenantError> {
        self.run(|conn| conn.execute_batch(sql))
    }

    /// [`Connection::query_row`] in the group.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::run`]; no row at all is [`TenantError::Sqlite`] with
    /// [`rusqlite::Error::QueryReturnedNoRows`].
    pub fn query_row<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, TenantError> {
        self.run(|conn| conn.query_row(sql, params, read))
    }

    /// Runs `work` as [`run`](TenantConnection::run) does, and retries it when it runs out of
    /// memory.
    ///
    /// Before each retry the thread waits until memory is free where it was refused. It stops when
    /// `work` succeeds or fails otherwise, or when the deadline has passed. The memory of a failed
    /// attempt is free during the wait.
    ///
    /// Each attempt runs `work` from its beginning. It should be one statement, or one transaction
    /// that it begins and ends: anything that it commits before it fails is done again. An attempt
    /// that runs when the deadline passes runs to its end.
    /// [`Hierarchy::waits`](memgroup::Hierarchy::waits) lists the waits. [`Group::wake_waiters`]
    /// and the removal of the group end them.
    ///
    /// `work` is tried once only: in a transaction, within another run on this thread, and if the
    /// refused charge is larger than the limit.
    ///
    /// # Errors
    ///
    /// As for [`run`](TenantConnection::run); [`TenantError::OutOfMemory`] is that of the last
    /// attempt.
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
        let may_wait = self.may_sleep();
        let mut waits = RetryWaits::new();
        loop {
            self.pay(Some(deadline));
            let details = match self.run_once(&mut work) {
                Err(TenantError::OutOfMemory(details)) if may_wait => details,
                outcome => return outcome,
            };
            if !self.may_sleep() || !waits.wait(self.group(), &details, deadline) {
                return Err(TenantError::OutOfMemory(details));
            }
        }
    }
}

/// The waits of one [`TenantConnection::run_until`].
struct RetryWaits {
    patience: Duration,
    /// The fewest bytes to wait for. Half of that was free at once, and was not enough.
    wanted_least: u64,
}

impl RetryWaits {
    fn new() -> RetryWaits {
        RetryWaits { patience: PATIENCE, wanted_least: 0 }
    }

    /// Waits until memory is free, or for `patience`. Returns `false` if the work must not be
    /// retried, because waiting cannot help or the time is over.
    fn wait(&mut self, group: &Group, details: &OutOfMemory, deadline: Instant) -> bool {
        let Some(AllocationError::Refused(refusal)) = details.cause() else { return false };
        let began = Instant::now();
        let limit = lowest_max(group);
        if limit.is_some_and(|limit| refusal.asked() > limit) || began >= deadline {
            return false;
        }
        let lost = details.usage.saturating_sub(group.usage_exact());
        let wanted = lost.saturating_add(refusal.asked()).max(self.wanted_least);
        let wanted = limit.map_or(wanted, |limit| wanted.min(limit));
        match group.wait_for_room(wanted, deadline.min(began + self.patience)) {
            Ok(()) => {
                let was_free_at_once = began.elapsed() < PATIENCE / 10;
                self.wanted_least = if was_free_at_once { wanted.saturating_mul(2) } else { 0 };
                true
            }
            Err(error) if error.kind() == ChargeErrorKind::Deadline => {
                self.patience = (self.patience * 2).min(PATIENCE_MOST);
                Instant::now() < deadline
            }
            // The group was removed, its waits were ended, or its limit was lowered.
            Err(_) => false,
        }
    }
}

/// The lowest limit of the group and its ancestors.
fn lowest_max(group: &Group) -> Option<u64> {
    std::iter::successors(Some(group.clone()), Group::parent).filter_map(|level| level.max()).min()
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::*;

    /// A group of one megabyte, and a child that may fill it.
    fn family() -> (Hierarchy, Group, Group) {
        let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
        let group = hierarchy.create("/tenants").expect("a group");
        group.set_max(1 << 20).expect("a limit");
        let tenant = group.create("tenant").expect("a group");
        (hierarchy, group, tenant)
    }

    /// The error of an attempt that was refused 8 KiB when its group used `usage`.
    fn refused(group: &Group, usage: u64) -> OutOfMemory {
        let refusal = {
            let _held = group.try_charge((1 << 20) - group.usage_exact() - 4096).expect("enough is free");
            group.try_charge(8192).expect_err("4 KiB are free")
        };
        let cause = Some(Box::new(AllocationError::Refused(refusal)));
        OutOfMemory { group: group.path(), cause, usage, rolled_back: false }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn waits_for_lost_bytes_and_refused_ones() {
        let (_hierarchy, group, tenant) = family();
        let details = refused(&tenant, 700 << 10);
        let _others = group.try_charge(512 << 10).expect("half is free");
        let mut waits = RetryWaits::new();
        assert!(waits.wait(&tenant, &details, soon()));
        assert_eq!(waits.patience, PATIENCE * 2, "half a megabyte is free, and 700 KiB were not enough");
    }

    #[test]
    fn waits_for_no_more_than_an_ancestors_limit() {
        let (_hierarchy, group, tenant) = family();
        let details = refused(&tenant, 5 << 20);
        let _others = group.try_charge(512 << 10).expect("half is free");
        let mut waits = RetryWaits::new();
        assert!(waits.wait(&tenant, &details, soon()), "a whole megabyte may be free later");
        assert_eq!(waits.patience, PATIENCE * 2);
    }

    #[test]
    fn doubles_the_wanted_bytes_only_if_they_were_free_at_once() {
        let (hierarchy, group, tenant) = family();
        let details = refused(&tenant, 700 << 10);
        let others = group.try_charge(512 << 10).expect("half is free");
        let mut waits = RetryWaits { patience: Duration::from_secs(60), ..RetryWaits::new() };
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let began = Instant::now();
                while hierarchy.waits().is_empty() {
                    assert!(began.elapsed() < Duration::from_secs(60), "it does not wait");
                    std::thread::yield_now();
                }
                // Longer than what counts as at once.
                std::thread::sleep(PATIENCE);
                drop(others);
            });
            assert!(waits.wait(&tenant, &details, soon()));
        });
        assert_eq!((waits.wanted_least, waits.patience), (0, Duration::from_secs(60)));
        assert!(waits.wait(&tenant, &details, soon()));
        assert_eq!(waits.wanted_least, (700 << 10) * 2 + 8192 * 2, "they were free at once");
    }

    #[test]
    fn wants_twice_as_much_after_each_failure_beside_free_memory() {
        let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
        let group = hierarchy.create("/tenant").expect("a group");
        group.set_max(1 << 20).expect("a limit");
        let held = group.try_charge((1 << 20) - 4096).expect("all is free");
        let refusal = group.try_charge(8192).expect_err("4 KiB are free");
        drop(held);
        let _connection = group.try_charge(4096).expect("all is free");
        // As if other connections of the group had taken the memory that this one has freed.
        let cause = Some(Box::new(AllocationError::Refused(refusal)));
        let details = OutOfMemory { group: group.path(), cause, usage: 0, rolled_back: false };
        let (mut waits, deadline) = (RetryWaits::new(), soon());
        let mut attempts = 0;
        while waits.patience == PATIENCE {
            assert!(waits.wait(&group, &details, deadline));
            attempts += 1;
            assert!(attempts < 100, "it does not wait");
        }
        assert!(attempts <= 8, "{attempts} attempts: 8 KiB, 16 KiB, .. 1 MiB");
        assert!(waits.wait(&group, &details, deadline));
        assert_eq!(waits.patience, PATIENCE * 4, "the next wait is longer too");
    }
}
