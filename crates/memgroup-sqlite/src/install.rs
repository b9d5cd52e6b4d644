//! Installation: puts memgroup under SQLite, once per process, before SQLite is initialised.
//!
//! ```text
//!   install ───────────▶ prove that no other thread exists ─┐
//!                                                           ├▶ configure ▶ set the account ▶ initialise ▶ register the VFS
//!   install_unchecked ─▶ the caller's promise ──────────────┘
//! ```
//!
//! - I1. Until an installation has succeeded, only the installing thread uses SQLite.
//!   `sqlite3_config` copies tables of function pointers without a lock. It refuses once SQLite is
//!   initialised, but not while another thread initialises it. That thread would free a block of
//!   one allocator with the other. So [`install`] proves that no other thread exists, and
//!   [`install_unchecked`] is `unsafe`. The proof is repeated after the last call that may run code
//!   of the application, which might start a thread.
//! - I2. The account is made before SQLite is configured, and is set right afterwards. Nothing in
//!   between can fail, so SQLite never allocates from this crate's tables without `ACCOUNT`.
//! - I3. The VFS is registered after SQLite is initialised, because registering one initialises it.
//!   It is registered before `install` returns, so that later connections are opened through it.
//! - I4. Installations run one at a time (`TURN`). The first one that SQLite accepts lasts for the
//!   life of the process.
//!
//! The alternative is a static constructor that configures SQLite before any thread exists. It
//! would change SQLite in programs that only link this crate, and it proves nothing in a library
//! that is loaded while threads are running.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use memgroup::{Group, GroupError, Hierarchy};
use rusqlite::ffi;

use crate::account::{ACCOUNT, Account, belongs};
use crate::alloc;
use crate::pcache;
use crate::threads::{self, NotAlone};
use crate::vfs;

/// Name, under the root, of the group that [`install`] makes for memory allocated without a current
/// group.
const UNATTRIBUTED: &str = "unattributed";

/// I4. Whether an installation has succeeded, so that SQLite is initialised and may be in use by
/// any thread.
static TURN: Mutex<bool> = Mutex::new(false);

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

impl std::fmt::Debug for Installed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Installed").field("unattributed", &self.unattributed().path()).finish_non_exhaustive()
    }
}

/// Charges every byte that SQLite allocates in this process to a group of `hierarchy`.
///
/// Memory allocated while no group is current on the thread ([`memgroup::scope`]) is charged to the
/// group `/unattributed`. This call creates it without a limit, or finds it.
///
/// Call it once, at the beginning of `main`, before anything in the process uses SQLite or starts a
/// thread. It can only be called safely while no other thread is able to use SQLite, so the first
/// call proves that the process has no other thread. For that it reads `/proc/self/status` of
/// Linux. With tokio, call it in a plain `fn main` before the runtime is built: the threads of
/// `#[tokio::main]` exist before its body runs. Where the proof is impossible, use
/// [`install_unchecked`].
///
/// After a success, a call with the same hierarchy on any thread changes nothing and succeeds, with
/// one exception: if the former default VFS has become the default again, `memgroup` takes its
/// place again. (Initialising SQLite after `sqlite3_shutdown` does that.)
///
/// It changes for the whole process:
///
/// - SQLite's memory statistics are off: with them every allocation takes one process-wide mutex.
///   `sqlite3_memory_used`, `sqlite3_soft_heap_limit64` and `sqlite3_hard_heap_limit64` have no
///   effect from here on.
/// - The allocator and the page cache (`SQLITE_CONFIG_PCACHE2`) are replaced. A static page cache
///   (`SQLITE_CONFIG_PAGECACHE`) that was configured before is removed, because its pages have no
///   owner.
/// - The VFS `memgroup` becomes the default. It passes all calls to the former default, and counts
///   reads, writes and syncs.
///
/// # Errors
///
/// See [`InstallError`]. If the process has other threads, or SQLite was initialised already or
/// cannot be used, SQLite and `hierarchy` are unchanged. After [`InstallError::Group`] and
/// [`InstallError::Configure`] SQLite's memory statistics may be off, and a static page cache
/// removed; the group `/unattributed` is not left behind.
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
    install_for(hierarchy, None, is_alone)
}

/// [`install`] with a group of your own for memory allocated without a current group.
///
/// A limit on `unattributed`, or on one of its ancestors, can make SQLite fail without any tenant's
/// fault: while it is initialised, or on connections used outside of any scope. Prefer a group
/// without one.
///
/// # Errors
///
/// See [`InstallError`].
pub fn install_with(hierarchy: &Hierarchy, unattributed: &Group) -> Result<Installed, InstallError> {
    install_for(hierarchy, Some(unattributed), is_alone)
}

/// [`install`], or [`install_with`] if there is an `unattributed` group, in a process that may have
/// other threads.
///
/// It is for programs that start threads before they can install, and for systems on which
/// [`install`] cannot count the threads.
///
/// # Errors
///
/// See [`InstallError`], of which [`InstallError::OtherThreads`] and
/// [`InstallError::ThreadsUnknown`] do not occur.
///
/// # Safety
///
/// From the call until it returns, no other thread uses SQLite in any way: no connection is opened
/// or used, and no function of [`rusqlite`] or SQLite's C interface is called, through this crate
/// or any other. If SQLite was initialised before and shut down, nothing that it allocated then is
/// used or freed afterwards.
///
/// # Examples
///
/// ```no_run
/// use memgroup::{Config, Hierarchy};
///
/// let logger = std::thread::spawn(|| println!("a thread that never uses SQLite"));
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// // SAFETY: the only other thread prints a line.
/// let sqlite = unsafe { memgroup_sqlite::install_unchecked(&hierarchy, None) }.unwrap();
/// assert_eq!(sqlite.unattributed().path(), "/unattributed");
/// logger.join().unwrap();
/// ```
pub unsafe fn install_unchecked(
    hierarchy: &Hierarchy,
    unattributed: Option<&Group>,
) -> Result<Installed, InstallError> {
    install_for(hierarchy, unattributed, || Ok(()))
}

/// The installation of this process, if there is one.
pub fn installed() -> Option<Installed> {
    ACCOUNT.get().map(Installed)
}

fn is_alone() -> Result<(), InstallError> {
    threads::prove_alone().map_err(|not_alone| match not_alone {
        NotAlone::Others(count) => InstallError::OtherThreads { count },
        NotAlone::Unknown(why) => InstallError::ThreadsUnknown { why },
    })
}

/// Installs if `is_alone` says that only this thread uses SQLite (I1).
fn install_for(
    hierarchy: &Hierarchy,
    given: Option<&Group>,
    is_alone: fn() -> Result<(), InstallError>,
) -> Result<Installed, InstallError> {
    let mut has_succeeded = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(group) = given.filter(|group| !belongs(hierarchy, group)) {
        return Err(InstallError::ForeignGroup { path: group.path() });
    }
    let before = ACCOUNT.get();
    if let Some(account) = before {
        if account.hierarchy.root() != hierarchy.root() {
            return Err(InstallError::OtherHierarchy);
        }
        if given.is_some_and(|group| *group != account.unattributed) {
            return Err(InstallError::OtherUnattributed { path: account.unattributed.path() });
        }
    }
    if !*has_succeeded {
        is_alone()?;
    }
    let account = match before {
        Some(account) => account,
        None => configure_for(hierarchy, given, is_alone)?,
    };
    let installed = initialize(account)?;
    *has_succeeded = true;
    Ok(installed)
}

/// Puts the tables of this crate under SQLite, and sets the account. Only this thread uses SQLite
/// (I1).
fn configure_for(
    hierarchy: &Hierarchy,
    given: Option<&Group>,
    is_alone: fn() -> Result<(), InstallError>,
) -> Result<&'static Account, InstallError> {
    check_usable()?;
    let existing = given.cloned().or_else(|| hierarchy.lookup(&format!("/{UNATTRIBUTED}")).ok());
    let unattributed = match &existing {
        Some(group) => group.clone(),
        None => hierarchy.root().create(UNATTRIBUTED).map_err(InstallError::Group)?,
    };
    let account = Account::new(hierarchy, &unattributed);
    // I1, I2: no code of the application runs between the second proof and setting the account.
    if let Err(refused) = is_alone().and_then(|()| configure()) {
        if existing.is_none() {
            // Nothing was charged to it. This fails only if another thread has created a child of
            // it, and `refused` matters more.
            let _ = unattributed.remove();
        }
        return Err(refused);
    }
    Ok(ACCOUNT.get_or_init(|| account))
}

/// Checks that SQLite can be used. On failure nothing has changed.
fn check_usable() -> Result<(), InstallError> {
    // SAFETY: no other thread uses SQLite (I1); the name is a terminated string.
    if unsafe { ffi::sqlite3_compileoption_used(c"ENABLE_MEMORY_MANAGEMENT".as_ptr()) } != 0 {
        return Err(InstallError::MemoryManagement);
    }
    // SAFETY: no other thread uses SQLite (I1); this option takes one int. It is the first option,
    // so it finds an initialised SQLite before anything has changed.
    let statistics = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0 as c_int) };
    configured("SQLITE_CONFIG_MEMSTATUS", statistics)
}

/// Puts the tables of this crate under SQLite.
fn configure() -> Result<(), InstallError> {
    // SAFETY: no other thread uses SQLite (I1); this option takes a pointer and two ints; a null
    // pointer of no length means no static page cache.
    let pages = unsafe {
        ffi::sqlite3_config(ffi::SQLITE_CONFIG_PAGECACHE, ptr::null_mut::<c_void>(), 0 as c_int, 0 as c_int)
    };
    configured("SQLITE_CONFIG_PAGECACHE", pages)?;
    let mut methods = alloc::methods();
    // SAFETY: no other thread uses SQLite, and no block of the former table lives (I1); this option
    // takes a pointer to a table of methods, which SQLite copies before it returns.
    let table = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw mut methods) };
    configured("SQLITE_CONFIG_MALLOC", table)?;
    let mut caches = pcache::methods();
    // SAFETY: no other thread uses SQLite, and no page of another page cache lives (I1); this
    // option takes a pointer to a table of methods, which SQLite copies before it returns.
    let pages = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_PCACHE2, &raw mut caches) };
    configured("SQLITE_CONFIG_PCACHE2", pages)
}

/// Initialises SQLite on this crate's tables, and registers the VFS. Only this thread uses SQLite,
/// or an installation has succeeded (I1).
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
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// SQLite was already initialised in this process: a connection was opened, or another function
    /// of SQLite called, before.
    #[error(
        "failed to install memgroup under SQLite: SQLite is already initialised in this process; install before \
         the first connection is opened"
    )]
    AlreadyInitialized,
    /// The process has other threads, and no installation has succeeded before. One of them may be
    /// using SQLite, which would corrupt memory.
    ///
    /// Install at the beginning of `main`, before anything starts a thread; or with
    /// [`install_unchecked`].
    #[error(
        "failed to install memgroup under SQLite: the process has {count} threads, and another one may be using \
         SQLite; install at the beginning of main, before anything starts a thread (with tokio before the runtime \
         is built), or call the unsafe install_unchecked if no other thread uses SQLite until it returns"
    )]
    OtherThreads {
        /// The number of threads, with the calling one.
        count: u64,
    },
    /// It is unknown whether the process has other threads. Install with [`install_unchecked`].
    #[error(
        "failed to install memgroup under SQLite: the number of threads of the process is unknown ({why}), and \
         another one may be using SQLite; call the unsafe install_unchecked if no other thread uses SQLite until \
         it returns"
    )]
    ThreadsUnknown {
        /// Why it is unknown.
        why: String,
    },
    /// SQLite was compiled with `SQLITE_ENABLE_MEMORY_MANAGEMENT`. All connections share one page
    /// cache then, so a tenant would pay for another's pages. Compile SQLite without it.
    #[error(
        "failed to install memgroup under SQLite: SQLite was compiled with SQLITE_ENABLE_MEMORY_MANAGEMENT, which \
         shares one page cache between all connections; compile it without"
    )]
    MemoryManagement,
    /// Another hierarchy was installed in this process before.
    #[error(
        "failed to install memgroup under SQLite: another hierarchy is installed in this process; SQLite has one \
         allocator, so use that hierarchy"
    )]
    OtherHierarchy,
    /// This hierarchy was installed before, with another group for unattributed memory.
    #[error(
        "failed to install memgroup under SQLite: unattributed memory is already charged to {path} in this process"
    )]
    OtherUnattributed {
        /// The group that was installed.
        path: String,
    },
    /// The group for unattributed memory belongs to another hierarchy.
    #[error(
        "failed to install memgroup under SQLite: the group {path} for unattributed memory belongs to another \
         hierarchy than the one to install"
    )]
    ForeignGroup {
        /// Its path there.
        path: String,
    },
    /// The group for unattributed memory could not be created.
    #[error("failed to install memgroup under SQLite: no group /{UNATTRIBUTED} for unattributed memory: {0}")]
    Group(GroupError),
    /// SQLite did not accept an option.
    #[error("failed to install memgroup under SQLite: SQLite refused {option}: {}", describe(*code))]
    Configure {
        /// The option of `sqlite3_config`.
        option: &'static str,
        /// SQLite's result code.
        code: i32,
    },
    /// SQLite could not be initialised on top of memgroup. It stays configured. Installing the same
    /// hierarchy again tries again.
    #[error("failed to install memgroup under SQLite: SQLite could not be initialised: {}", describe(*code))]
    Initialize {
        /// SQLite's result code.
        code: i32,
    },
}

/// SQLite's text for a result code.
fn describe(code: c_int) -> String {
    format!("{} (result code {code})", ffi::code_to_str(code))
}
