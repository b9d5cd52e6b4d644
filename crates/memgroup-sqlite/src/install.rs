//! Installation: puts memgroup under SQLite, once per process, before SQLite is initialised.
//!
//! - I1. `ACCOUNT` is set before `sqlite3_initialize` is called with the tables of this crate, so SQLite never allocates without it. The VFS
//!   is registered after that, because registering one initialises SQLite. It is registered before `install` returns, so that later
//!   connections are opened through it.
//! - I2. Installations run one at a time (`TURN`). The first that passes SQLite's configuration holds for the life of the process.
//!
//! SQLite's `sqlite3_config` is not thread safe: no other code may use SQLite while the first installation runs.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use memgroup::{Group, GroupError, Hierarchy};
use rusqlite::ffi;

use crate::account::{ACCOUNT, Account, belongs};
use crate::alloc;
use crate::pcache;
use crate::vfs;

/// Name, under the root, of the group that [`install`] makes for memory allocated without a current group.
const UNATTRIBUTED: &str = "unattributed";

/// I2.
static TURN: Mutex<()> = Mutex::new(());

/// SQLite under memgroup: the proof that [`install`] has succeeded in this process.
#[derive(Clone)]
pub struct Installed(&'static Account);

impl Installed {
    /// The hierarchy that SQLite's memory is charged in.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.0.hierarchy
    }

    /// The group charged when no group is current on the allocating thread.
    pub fn unattributed(&self) -> &Group {
        &self.0.unattributed
    }
}

impl fmt::Debug for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Installed").field("unattributed", &self.unattributed().path()).finish_non_exhaustive()
    }
}

/// Charges every byte that SQLite allocates in this process to a group of `hierarchy`.
///
/// Memory allocated while no group is current on the thread ([`memgroup::scope`]) is charged to the group `/unattributed`. This call creates
/// it without a limit, or finds it.
///
/// Call it once, early in `main`, before anything in the process uses SQLite. A second call with the same hierarchy changes nothing and
/// succeeds, with one exception: if the former default VFS has become the default again, `memgroup` takes its place again. (Initialising
/// SQLite after `sqlite3_shutdown` does that.)
///
/// It changes for the whole process:
///
/// - SQLite's memory statistics are off: with them every allocation takes one process-wide mutex. `sqlite3_memory_used`,
///   `sqlite3_soft_heap_limit64` and `sqlite3_hard_heap_limit64` have no effect from here on.
/// - The allocator and the page cache (`SQLITE_CONFIG_PCACHE2`) are replaced. A static page cache (`SQLITE_CONFIG_PAGECACHE`) that was
///   configured before is removed, because its pages have no owner.
/// - The VFS `memgroup` becomes the default. It passes all calls to the former default, and counts reads, writes and syncs.
///
/// # Errors
///
/// See [`InstallError`]. If SQLite was initialised already, or cannot be used, SQLite and `hierarchy` are unchanged. After
/// [`InstallError::Group`] and [`InstallError::Configure`] SQLite's memory statistics may be off, and a static page cache removed; the group
/// `/unattributed` is not left behind.
///
/// # Examples
///
/// ```no_run
/// use memgroup::{Config, Hierarchy};
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let sqlite = memgroup_sqlite::install(&hierarchy).unwrap();
/// assert_eq!(sqlite.unattributed().path(), "/unattributed");
/// ```
pub fn install(hierarchy: &Hierarchy) -> Result<Installed, InstallError> {
    install_for(hierarchy, None)
}

/// [`install`] with a group of your own for memory allocated without a current group.
///
/// A limit on `unattributed`, or on one of its ancestors, can make SQLite fail without any tenant's fault: while it is initialised, or on
/// connections used outside of any scope. Prefer a group without one.
///
/// # Errors
///
/// See [`InstallError`].
pub fn install_with(hierarchy: &Hierarchy, unattributed: &Group) -> Result<Installed, InstallError> {
    install_for(hierarchy, Some(unattributed))
}

/// The installation of this process, if there is one.
pub fn installed() -> Option<Installed> {
    ACCOUNT.get().map(Installed)
}

fn install_for(hierarchy: &Hierarchy, given: Option<&Group>) -> Result<Installed, InstallError> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(group) = given.filter(|group| !belongs(hierarchy, group)) {
        return Err(InstallError::ForeignGroup { path: group.path() });
    }
    if let Some(account) = ACCOUNT.get() {
        if account.hierarchy.root() != hierarchy.root() {
            return Err(InstallError::OtherHierarchy);
        }
        if given.is_some_and(|group| *group != account.unattributed) {
            return Err(InstallError::OtherUnattributed { path: account.unattributed.path() });
        }
        return initialize(account);
    }
    check_usable()?;
    let existing = given.cloned().or_else(|| hierarchy.lookup(&format!("/{UNATTRIBUTED}")).ok());
    let unattributed = match &existing {
        Some(group) => group.clone(),
        None => hierarchy.root().create(UNATTRIBUTED).map_err(InstallError::Group)?,
    };
    if let Err(refused) = configure() {
        if existing.is_none() {
            // Nothing was charged to it. This fails only if another thread has created a child of it, and `refused` matters more.
            let _ = unattributed.remove();
        }
        return Err(refused);
    }
    initialize(ACCOUNT.get_or_init(|| Account::new(hierarchy, &unattributed)))
}

/// Checks that SQLite can be used. On failure nothing has changed.
fn check_usable() -> Result<(), InstallError> {
    // SAFETY: no precondition; the name is a terminated string.
    if unsafe { ffi::sqlite3_compileoption_used(c"ENABLE_MEMORY_MANAGEMENT".as_ptr()) } != 0 {
        return Err(InstallError::MemoryManagement);
    }
    // SAFETY: this option takes one int. It is the first option, so it finds an initialised SQLite before anything has changed.
    let statistics = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0 as c_int) };
    configured("SQLITE_CONFIG_MEMSTATUS", statistics)
}

/// Puts the tables of this crate under SQLite.
fn configure() -> Result<(), InstallError> {
    // SAFETY: this option takes a pointer and two ints; a null pointer of no length means no static page cache.
    let pages = unsafe {
        ffi::sqlite3_config(ffi::SQLITE_CONFIG_PAGECACHE, ptr::null_mut::<c_void>(), 0 as c_int, 0 as c_int)
    };
    configured("SQLITE_CONFIG_PAGECACHE", pages)?;
    let mut methods = alloc::methods();
    // SAFETY: this option takes a pointer to a table of methods, which SQLite copies before it returns.
    let table = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw mut methods) };
    configured("SQLITE_CONFIG_MALLOC", table)?;
    let mut caches = pcache::methods();
    // SAFETY: as above, with another table.
    let pages = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_PCACHE2, &raw mut caches) };
    configured("SQLITE_CONFIG_PCACHE2", pages)
}

fn initialize(account: &'static Account) -> Result<Installed, InstallError> {
    // SAFETY: no precondition; it does nothing when SQLite is initialised.
    let code = match unsafe { ffi::sqlite3_initialize() } {
        ffi::SQLITE_OK => vfs::register(),
        code => code,
    };
    if code == ffi::SQLITE_OK { Ok(Installed(account)) } else { Err(InstallError::Initialize { code }) }
}

fn configured(option: &'static str, code: c_int) -> Result<(), InstallError> {
    match code {
        ffi::SQLITE_OK => Ok(()),
        ffi::SQLITE_MISUSE => Err(InstallError::AlreadyInitialized),
        code => Err(InstallError::Configure { option, code }),
    }
}

/// Why memgroup could not be put under SQLite.
#[derive(Debug)]
#[non_exhaustive]
pub enum InstallError {
    /// SQLite was already initialised in this process: a connection was opened, or another function of SQLite called, before.
    AlreadyInitialized,
    /// SQLite was compiled with `SQLITE_ENABLE_MEMORY_MANAGEMENT`. All connections share one page cache then, so a tenant would pay for
    /// another's pages. Compile SQLite without it.
    MemoryManagement,
    /// Another hierarchy was installed in this process before.
    OtherHierarchy,
    /// This hierarchy was installed before, with another group for unattributed memory.
    OtherUnattributed {
        /// The group that was installed.
        path: String,
    },
    /// The group for unattributed memory belongs to another hierarchy.
    ForeignGroup {
        /// Its path there.
        path: String,
    },
    /// The group for unattributed memory could not be created.
    Group(GroupError),
    /// SQLite did not accept an option.
    Configure {
        /// The option of `sqlite3_config`.
        option: &'static str,
        /// SQLite's result code.
        code: i32,
    },
    /// SQLite could not be initialised on top of memgroup. It stays configured. Installing the same hierarchy again tries again.
    Initialize {
        /// SQLite's result code.
        code: i32,
    },
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed to install memgroup under SQLite: ")?;
        match self {
            InstallError::AlreadyInitialized => f.write_str(
                "SQLite is already initialised in this process; install before the first connection is opened",
            ),
            InstallError::MemoryManagement => f.write_str(
                "SQLite was compiled with SQLITE_ENABLE_MEMORY_MANAGEMENT, which shares one page cache between all \
                 connections; compile it without",
            ),
            InstallError::OtherHierarchy => f.write_str(
                "another hierarchy is installed in this process; SQLite has one allocator, so use that hierarchy",
            ),
            InstallError::OtherUnattributed { path } => {
                write!(f, "unattributed memory is already charged to {path} in this process")
            }
            InstallError::ForeignGroup { path } => write!(
                f,
                "the group {path} for unattributed memory belongs to another hierarchy than the one to install"
            ),
            InstallError::Group(error) => {
                write!(f, "no group /{UNATTRIBUTED} for unattributed memory: {error}")
            }
            InstallError::Configure { option, code } => {
                write!(f, "SQLite refused {option}: {}", describe(*code))
            }
            InstallError::Initialize { code } => {
                write!(f, "SQLite could not be initialised: {}", describe(*code))
            }
        }
    }
}

impl std::error::Error for InstallError {}

/// SQLite's text for a result code.
fn describe(code: c_int) -> String {
    format!("{} (result code {code})", ffi::code_to_str(code))
}
