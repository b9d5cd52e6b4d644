//! Until: work that ran out of memory waits for room and is done again, until a deadline.
//!
//! ```text
//!   attempt ──▶ done, or failed otherwise
//!      ▲  └──▶ out of memory, no transaction open ──▶ everything that it had is free again ──▶ in line for what it had and lacked
//!      └────────────────── there is room, or some time has passed ◀───────────────────────────────────┘
//! ```
//!
//! SQLite cannot wait within a statement: its allocator may run under mutexes and file locks that whoever could free memory needs. So the statement fails, which frees what it had, and its
//! thread waits with nothing in hand ([`Group::wait_for_room`]).
//!
//! - I1. Nothing is charged but what an attempt charges: the wait takes nothing. Another may have the room; then there is another wait.
//! - I2. Where there is room at once, and the attempt fails again, the next wait is for twice as much. So a statement is not run over and over where there is room for its beginning alone.
//! - I3. Nobody is stopped for what is waited for, which is a guess. Whom it needs stopped an attempt itself has stopped, as long as what it has then says who is the larger.
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
        let mut room = Room { patience: PATIENCE, wanted_least: 0 };
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
    /// Bytes: less was there at once, and did not do.
    wanted_least: u64,
}

impl Room {
    /// Waits for room; false: there is nothing to wait for, or no time.
    fn is_awaited(&mut self, group: &Group, details: &OutOfMemory, deadline: Instant) -> bool {
        let Some(Shortage::Refused(refusal)) = details.shortage() else { return false };
        let began = Instant::now();
        let least = least_max(group);
        if refusal.asked() > least || began >= deadline {
            return false;
        }
        let had = details.usage.saturating_sub(group.usage_exact());
        let wanted = had.saturating_add(refusal.asked()).max(self.wanted_least).min(least);
        match group.wait_for_room(wanted, deadline.min(began + self.patience)) {
            Ok(()) => {
                let was_at_once = began.elapsed() < PATIENCE / 10;
                self.wanted_least = if was_at_once { wanted.saturating_mul(2) } else { 0 };
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

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::*;

    /// A group with a megabyte, which a group below it may fill.
    fn family() -> (Hierarchy, Group, Group) {
        let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
        let group = hierarchy.create("/tenants").expect("a group");
        group.set_max(1 << 20).expect("a limit");
        let tenant = group.create("tenant").expect("a group");
        (hierarchy, group, tenant)
    }

    /// What an attempt reports that has lacked 8 KiB when its group had so much.
    fn refused(group: &Group, usage: u64) -> OutOfMemory {
        let refusal = {
            let _held = group.try_charge((1 << 20) - group.usage_exact() - 4096).expect("room");
            group.try_charge(8192).expect_err("twice the room")
        };
        let shortage = Some(Shortage::Refused(refusal));
        OutOfMemory { group: group.path(), shortage, usage, rolled_back: false }
    }

    fn room() -> Room {
        Room { patience: PATIENCE, wanted_least: 0 }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn work_waits_for_what_it_had_and_not_only_for_what_it_lacked() {
        let (_hierarchy, group, tenant) = family();
        let details = refused(&tenant, 700 << 10);
        let _others = group.try_charge(512 << 10).expect("room");
        let mut room = room();
        assert!(room.is_awaited(&tenant, &details, soon()));
        assert_eq!(room.patience, PATIENCE * 2, "half a megabyte is free, and 700 KiB were not enough");
    }

    #[test]
    fn work_waits_for_no_more_than_a_limit_above_it_allows() {
        let (_hierarchy, group, tenant) = family();
        let details = refused(&tenant, 5 << 20);
        let _others = group.try_charge(512 << 10).expect("room");
        let mut room = room();
        assert!(room.is_awaited(&tenant, &details, soon()), "a whole megabyte may be free later");
        assert_eq!(room.patience, PATIENCE * 2);
    }

    #[test]
    fn room_that_was_waited_for_says_nothing_of_how_much_is_enough() {
        let (hierarchy, group, tenant) = family();
        let details = refused(&tenant, 700 << 10);
        let others = group.try_charge(512 << 10).expect("room");
        let mut room = Room { patience: Duration::from_secs(60), ..room() };
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let began = Instant::now();
                while hierarchy.waits().is_empty() {
                    assert!(began.elapsed() < Duration::from_secs(60), "it does not wait");
                    std::thread::yield_now();
                }
                // Longer than what counts as room at once.
                std::thread::sleep(PATIENCE);
                drop(others);
            });
            assert!(room.is_awaited(&tenant, &details, soon()));
        });
        assert_eq!((room.wanted_least, room.patience), (0, Duration::from_secs(60)));
        assert!(room.is_awaited(&tenant, &details, soon()));
        assert_eq!(room.wanted_least, (700 << 10) * 2 + 8192 * 2, "it was there at once");
    }

    #[test]
    fn work_that_fails_beside_free_memory_waits_for_more_each_time_until_there_is_none() {
        let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
        let group = hierarchy.create("/tenant").expect("a group");
        group.set_max(1 << 20).expect("a limit");
        let held = group.try_charge((1 << 20) - 4096).expect("room");
        let refusal = group.try_charge(8192).expect_err("twice the room");
        drop(held);
        let _connection = group.try_charge(4096).expect("room");
        // As if others of the group had taken what this one has freed.
        let shortage = Some(Shortage::Refused(refusal));
        let details = OutOfMemory { group: group.path(), shortage, usage: 0, rolled_back: false };
        let (mut room, deadline) = (room(), soon());
        let mut attempts = 0;
        while room.patience == PATIENCE {
            assert!(room.is_awaited(&group, &details, deadline));
            attempts += 1;
            assert!(attempts < 100, "it does not wait");
        }
        assert!(attempts <= 8, "{attempts} attempts: 8 KiB, 16 KiB, .. 1 MiB");
        assert!(room.is_awaited(&group, &details, deadline));
        assert_eq!(room.patience, PATIENCE * 4, "that it has been refused once is not forgotten");
    }
}
