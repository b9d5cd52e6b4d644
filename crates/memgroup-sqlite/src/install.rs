//! Putting memgroup under SQLite: once per process, before SQLite is initialised.
//!
//! - I1. `ACCOUNT` is set before `sqlite3_initialize` is called with our tables in place, so SQLite never allocates
//!   without it.
//!   The VFS is registered after that, because registering one initialises SQLite, and before `install` returns, so
//!   that what is opened later is opened through it.
//! - I2. Installations take turns (`TURN`), and the first that passes SQLite's configuration wins for the life of the
//!   process.
//!
//! SQLite's `sqlite3_config` is not thread safe: nothing else may use SQLite while the first installation runs.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use memgroup::{Group, GroupError, Hierarchy};
use rusqlite::ffi;

use crate::alloc::{ACCOUNT, Account, methods};
use crate::pcache;
use crate::shrink;
use crate::vfs;

/// Name, under the root, of the group that [`install`] makes for allocations with no group in force.
const UNATTRIBUTED: &str = "unattributed";

/// I2.
static TURN: Mutex<()> = Mutex::new(());

/// SQLite under memgroup: the proof that [`install`] has succeeded in this process.
#[derive(Clone)]
pub struct Installed {
    hierarchy: Hierarchy,
    unattributed: Group,
}

impl Installed {
    /// The hierarchy that all of SQLite's memory is charged in.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// The group charged for what SQLite allocates while no group is in force on the thread.
    pub fn unattributed(&self) -> &Group {
        &self.unattributed
    }

    /// Whether `group` belongs to the hierarchy that SQLite's memory is charged in.
    pub(crate) fn holds(&self, group: &Group) -> bool {
        belongs(&self.hierarchy, group)
    }
}

impl fmt::Debug for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Installed").field("unattributed", &self.unattributed.path()).finish_non_exhaustive()
    }
}

/// Charges every byte that SQLite allocates in this process to a group of `hierarchy`.
///
/// What SQLite allocates while no group is in force on the thread is charged to the group `/unattributed`, which is
/// created here (or found) without a limit of its own. SQLite's own memory statistics are switched off: with them every
/// allocation takes one process-wide mutex, and `sqlite3_memory_used`, `sqlite3_soft_heap_limit64` and
/// `sqlite3_hard_heap_limit64` have no effect from here on. A static page cache (`SQLITE_CONFIG_PAGECACHE`) that was
/// configured before is taken back, because its pages would belong to nobody; a page cache of the application's own
/// (`SQLITE_CONFIG_PCACHE2`) is replaced by one that gives pages back.
///
/// The VFS `memgroup` becomes the default: it is the default VFS of before, and counts what is read and written
/// through it.
///
/// Call it once, early in `main`, before anything in the process uses SQLite. A second call with the same hierarchy
/// changes nothing and succeeds; where the VFS of before has been made the default again meanwhile (initialising
/// SQLite after `sqlite3_shutdown` does that), `memgroup` takes its place again.
///
/// # Errors
///
/// See [`InstallError`]. Where SQLite was initialised already, or cannot be used, it and `hierarchy` are as they were. On
/// [`InstallError::Group`] and [`InstallError::Configure`] SQLite's memory statistics may be off, and a static page
/// cache taken back; the group `/unattributed` is not left behind. [`InstallError::Initialize`] says what it leaves.
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
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(account) = ACCOUNT.get() {
        return again(account, hierarchy, None);
    }
    begin()?;
    let (unattributed, is_new) = match hierarchy.lookup(&format!("/{UNATTRIBUTED}")) {
        Ok(group) => (group, false),
        Err(_) => (hierarchy.root().create(UNATTRIBUTED).map_err(InstallError::Group)?, true),
    };
    if let Err(refused) = configure() {
        if is_new {
            // Nothing was charged to it, and nothing can be said beside `refused` if somebody put a child under it.
            let _ = unattributed.remove();
        }
        return Err(refused);
    }
    open(hierarchy, &unattributed)
}

/// [`install`] with a group of your own for what SQLite allocates while no group is in force.
///
/// A limit on `unattributed`, or on a group above it, can make SQLite fail where no tenant is to blame: while it
/// is initialised, or on connections that are used outside of any group. Prefer one without.
///
/// # Errors
///
/// See [`InstallError`].
pub fn install_with(hierarchy: &Hierarchy, unattributed: &Group) -> Result<Installed, InstallError> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !belongs(hierarchy, unattributed) {
        return Err(InstallError::ForeignGroup { path: unattributed.path() });
    }
    match ACCOUNT.get() {
        Some(account) => again(account, hierarchy, Some(unattributed)),
        None => {
            begin()?;
            configure()?;
            open(hierarchy, unattributed)
        }
    }
}

/// What was installed in this process, if anything was.
pub fn installed() -> Option<Installed> {
    ACCOUNT.get().map(|account| Installed {
        hierarchy: account.hierarchy.clone(),
        unattributed: account.unattributed.clone(),
    })
}

/// The first installation begins with what tells whether SQLite can be used at all; if it cannot, nothing has changed.
fn begin() -> Result<(), InstallError> {
    // SAFETY: no precondition; the name is a terminated string.
    if unsafe { ffi::sqlite3_compileoption_used(c"ENABLE_MEMORY_MANAGEMENT".as_ptr()) } != 0 {
        return Err(InstallError::MemoryManagement);
    }
    // SAFETY: this option takes one int. The first option is the one that finds SQLite initialised.
    let statistics = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0 as c_int) };
    configured("SQLITE_CONFIG_MEMSTATUS", statistics)
}

/// Puts our tables under SQLite.
fn configure() -> Result<(), InstallError> {
    // SAFETY: this option takes a pointer and two ints; a null pointer of no length means no static page cache.
    let pages = unsafe {
        ffi::sqlite3_config(ffi::SQLITE_CONFIG_PAGECACHE, ptr::null_mut::<c_void>(), 0 as c_int, 0 as c_int)
    };
    configured("SQLITE_CONFIG_PAGECACHE", pages)?;
    let mut methods = methods();
    // SAFETY: this option takes a pointer to a table of methods, which SQLite copies before it returns.
    let table = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw mut methods) };
    configured("SQLITE_CONFIG_MALLOC", table)?;
    let mut caches = pcache::methods();
    // SAFETY: as above, with another table.
    let pages = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_PCACHE2, &raw mut caches) };
    configured("SQLITE_CONFIG_PCACHE2", pages)
}

/// Opens the account, and initialises SQLite on it.
fn open(hierarchy: &Hierarchy, unattributed: &Group) -> Result<Installed, InstallError> {
    let account = ACCOUNT.get_or_init(|| Account {
        hierarchy: hierarchy.clone(),
        unattributed: unattributed.clone(),
        memory: hierarchy.memory(),
        io: hierarchy.io(),
    });
    shrink::begin();
    initialize(account)
}

/// A later installation: fine if it asks for what is in force, and SQLite's initialisation is made good if it failed.
fn again(
    account: &Account,
    hierarchy: &Hierarchy,
    unattributed: Option<&Group>,
) -> Result<Installed, InstallError> {
    if account.hierarchy.root() != hierarchy.root() {
        return Err(InstallError::OtherHierarchy);
    }
    if unattributed.is_some_and(|group| *group != account.unattributed) {
        return Err(InstallError::OtherUnattributed { path: account.unattributed.path() });
    }
    initialize(account)
}

fn initialize(account: &Account) -> Result<Installed, InstallError> {
    // SAFETY: no precondition; it does nothing when SQLite is initialised.
    let code = match unsafe { ffi::sqlite3_initialize() } {
        ffi::SQLITE_OK => vfs::register(),
        code => code,
    };
    match code {
        ffi::SQLITE_OK => {
            Ok(Installed { hierarchy: account.hierarchy.clone(), unattributed: account.unattributed.clone() })
        }
        code => Err(InstallError::Initialize { code }),
    }
}

fn configured(option: &'static str, code: c_int) -> Result<(), InstallError> {
    match code {
        ffi::SQLITE_OK => Ok(()),
        ffi::SQLITE_MISUSE => Err(InstallError::AlreadyInitialized),
        code => Err(InstallError::Configure { option, code }),
    }
}

fn belongs(hierarchy: &Hierarchy, group: &Group) -> bool {
    let mut top = group.clone();
    while let Some(parent) = top.parent() {
        top = parent;
    }
    top == hierarchy.root()
}

/// Why memgroup could not be put under SQLite.
#[derive(Debug)]
#[non_exhaustive]
pub enum InstallError {
    /// SQLite was already initialised in this process: something opened a connection, or called another function of
    /// SQLite, before.
    AlreadyInitialized,
    /// SQLite was compiled with `SQLITE_ENABLE_MEMORY_MANAGEMENT`: all connections take their pages from one cache
    /// there, so that a tenant's pages would be paid for by another. Compile SQLite without it.
    MemoryManagement,
    /// Another hierarchy was installed in this process before.
    OtherHierarchy,
    /// This hierarchy was installed before, with another group for unattributed memory.
    OtherUnattributed {
        /// The group in force.
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
    /// SQLite could not be initialised on top of memgroup. It stays configured; installing the same hierarchy again
    /// tries again.
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

/// SQLite's words for a result code.
fn describe(code: c_int) -> String {
    // SAFETY: no precondition; the answer is null or a static string.
    let words = unsafe { ffi::sqlite3_errstr(code) };
    if words.is_null() {
        return format!("result code {code}");
    }
    // SAFETY: SQLite answers with a static, terminated string.
    let words = unsafe { CStr::from_ptr(words) };
    format!("{} (result code {code})", words.to_string_lossy())
}
