//! The tenants' databases: one SQLite file each, built once, kept and reused.
//!
//! - I1. A file under its final name is whole: it is built under another name, forced to disk, then renamed.
//! - I2. Its header says which format and scale it has; a file of ours that says otherwise is built again.
//! - I3. A file that is not ours is never touched: what is built has a name that was free, what is removed or replaced
//!   says in its header that it is ours, and where SQLite would take a file beside a database for its own, the
//!   database is not opened.
//! - I4. Whoever builds holds the lock of the directory; whoever finds all files whole needs none, nor the right to
//!   write.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::error::RunError;
use super::fresh;
use super::progress::Progress;
use super::spec::{Scale, Spec, TenantSpec};
use super::stop::Stop;
use super::tpch;
use super::units;

/// "MgTH" in the header of each file: SQLite's `application_id`.
const APPLICATION_ID: u32 = 0x4d67_5448;
/// Changes when tables, indexes or the generator do.
const FORMAT: u32 = 1;
/// The threads that build at once; each sorts and writes, so more than the disk likes does not help.
const BUILDERS_MOST: usize = 8;
/// How the name of a file ends that is being built.
const BUILDING: &str = ".building";
/// What SQLite adds to a database's name for the files it plays back into it.
const PLAYED_BACK: [&str; 2] = ["-journal", "-wal"];

/// Where databases are kept when nothing else is said: the user's cache directory, else the system's temporary one.
pub(crate) fn default_directory() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("memgroup")
        .join("tpch")
}

/// One tenant's database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Database {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

/// Makes sure that each tenant of `spec` has its database in `directory`, and returns them in the tenants' order;
/// none when a stop was asked for. `around` runs on each building thread, around all it does.
pub(crate) fn prepare(
    directory: &Path,
    spec: &Spec,
    progress: &Progress,
    stop: &Stop,
    around: &(dyn Fn(&mut dyn FnMut()) + Sync),
) -> Result<Option<Vec<Database>>, RunError> {
    fs::create_dir_all(directory)
        .map_err(|error| RunError::data(directory, "create the directory", error))?;
    if !missing_of(directory, spec)?.is_empty() {
        let Some(_lock) = lock(directory, progress, stop)? else { return Ok(None) };
        remove_unfinished(directory)?;
        // Another run may have built them while this one waited.
        build_all(directory, missing_of(directory, spec)?, progress, stop, around)?;
    }
    if stop.requested() {
        return Ok(None);
    }
    let mut databases = Vec::new();
    for tenant in &spec.tenants {
        let path = path_of(directory, tenant);
        let found = find(directory, tenant)?;
        databases.push(found.ok_or_else(|| {
            RunError::data(&path, "find the file just built", io::Error::from(io::ErrorKind::NotFound))
        })?);
    }
    Ok(Some(databases))
}

/// Reads every file once, so that what statements find in the system's own cache does not depend on what the machine did before.
pub(crate) fn read_through(databases: &[Database]) -> Result<(), RunError> {
    for Database { path, .. } in databases {
        let failed = |error| RunError::data(path, "read", error);
        let mut file = File::open(path).map_err(failed)?;
        io::copy(&mut file, &mut io::sink()).map_err(failed)?;
    }
    Ok(())
}

/// The tenants of `spec` whose databases are to be built.
fn missing_of<'a>(directory: &Path, spec: &'a Spec) -> Result<Vec<&'a TenantSpec>, RunError> {
    let mut missing: Vec<&TenantSpec> = Vec::new();
    for tenant in &spec.tenants {
        if find(directory, tenant)?.is_none() {
            missing.push(tenant);
        }
    }
    // The largest is taken first (from the end): started last it would be waited for alone.
    missing.sort_by_key(|tenant| tenant.scale);
    Ok(missing)
}

fn build_all(
    directory: &Path,
    missing: Vec<&TenantSpec>,
    progress: &Progress,
    stop: &Stop,
    around: &(dyn Fn(&mut dyn FnMut()) + Sync),
) -> Result<(), RunError> {
    let builders =
        thread::available_parallelism().map_or(1, usize::from).min(BUILDERS_MOST).min(missing.len());
    let queue = Mutex::new(missing);
    let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
    let first_error = Mutex::new(None);
    thread::scope(|threads| {
        for _ in 0..builders {
            threads.spawn(|| {
                around(&mut || {
                    while !stop.requested()
                        && let Some(tenant) = next()
                    {
                        if let Err(error) = build(directory, tenant, progress, stop) {
                            let mut first =
                                first_error.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                            first.get_or_insert(error);
                            return;
                        }
                    }
                });
            });
        }
    });
    match first_error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Tenants of one name but of different scales, in different SPECs, do not take each other's file.
fn path_of(directory: &Path, tenant: &TenantSpec) -> PathBuf {
    directory.join(format!("{}-{}.sqlite", tenant.name, tenant.scale))
}

/// Takes the lock of `directory`, waiting for another run that holds it; none when a stop was asked for.
fn lock(directory: &Path, progress: &Progress, stop: &Stop) -> Result<Option<File>, RunError> {
    let path = directory.join(".lock");
    let failed = |error| RunError::data(&path, "lock", error);
    let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
    let mut told = false;
    while !stop.requested() {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) => {
                if !told {
                    progress.line(&format!("waiting for another run that loads {}", directory.display()));
                    told = true;
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
    }
    Ok(None)
}

/// The tenant's database, if it is there and as it should be.
fn find(directory: &Path, tenant: &TenantSpec) -> Result<Option<Database>, RunError> {
    let path = path_of(directory, tenant);
    check_alone(&path)?;
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(RunError::data(&path, "open", error)),
    };
    let header = match Header::ours(&mut file) {
        Ok(Some(header)) => header,
        Ok(None) => return Err(RunError::NotOurs { path }),
        Err(error) => return Err(RunError::data(&path, "read", error)),
    };
    let length = file.metadata().map_err(|error| RunError::data(&path, "look at", error))?.len();
    let whole = header.bytes == length && header.user_version == stamp(tenant.scale);
    Ok(whole.then_some(Database { path, bytes: length }))
}

/// Makes sure that beside `database` lies nothing that SQLite would play back into it and delete: the files here are
/// never written under their final name, so it is not ours.
fn check_alone(database: &Path) -> Result<(), RunError> {
    for ending in PLAYED_BACK {
        let mut path = database.as_os_str().to_owned();
        path.push(ending);
        let path = PathBuf::from(path);
        match fs::symlink_metadata(&path) {
            Ok(_) => return Err(RunError::Beside { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(RunError::data(&path, "look at", error)),
        }
    }
    Ok(())
}

/// Removes what runs that were killed left unfinished. Called under the lock, so nobody is at work on it.
fn remove_unfinished(directory: &Path) -> Result<(), RunError> {
    let failed = |error| RunError::data(directory, "list", error);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let is_file = || fs::symlink_metadata(&path).is_ok_and(|there| there.is_file());
        if !(name.starts_with(b".") && name.ends_with(BUILDING.as_bytes()) && is_file()) {
            continue;
        }
        // What cannot be read cannot be known to be ours.
        let header = File::open(&path).and_then(|mut file| Header::ours(&mut file));
        if matches!(header, Ok(Some(_))) {
            fs::remove_file(&path).map_err(|error| RunError::data(&path, "remove", error))?;
        }
    }
    Ok(())
}

/// Format and scale in one number: SQLite's `user_version`.
fn stamp(scale: Scale) -> u32 {
    FORMAT << 16 | scale.milli()
}

/// What the first bytes of an SQLite file say.
struct Header {
    bytes: u64,
    user_version: u32,
    application_id: u32,
}

impl Header {
    const BYTES: usize = 100;

    /// The header of `file`; none if the file is not ours.
    fn ours(file: &mut File) -> io::Result<Option<Header>> {
        let mut bytes = [0; Header::BYTES];
        match file.read_exact(&mut bytes) {
            Ok(()) => Ok(Header::of(&bytes).filter(|header| header.application_id == APPLICATION_ID)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn of(bytes: &[u8; Header::BYTES]) -> Option<Header> {
        let at = |offset: usize| {
            u32::from_be_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
        };
        // 1 stands for 65,536 in the two bytes that hold the page size.
        let page_bytes = match u64::from(at(16) >> 16) {
            1 => 65_536,
            size => size,
        };
        bytes.starts_with(b"SQLite format 3\0").then(|| Header {
            bytes: page_bytes * u64::from(at(28)),
            user_version: at(60),
            application_id: at(68),
        })
    }
}

/// Builds the tenant's database. When a stop is asked for meanwhile nothing is left of it.
fn build(directory: &Path, tenant: &TenantSpec, progress: &Progress, stop: &Stop) -> Result<(), RunError> {
    let path = path_of(directory, tenant);
    let started = Instant::now();
    let filling = progress.filling(&tenant.name, tpch::row_count_about(tenant.scale.factor()));
    let (building, _) =
        fresh::beside(&path, BUILDING).map_err(|error| RunError::data(&path, "make a file beside", error))?;
    check_alone(&building)?;
    let filled = fill(&building, tenant.scale, &mut |rows| {
        filling.advance(rows);
        !stop.requested()
    });
    if !matches!(filled, Ok(true)) {
        // What matters is the reason; a file that stays is removed by the next run that builds.
        let _ = fs::remove_file(&building);
        return filled.map(|_| ()).map_err(|error| RunError::Load { tenant: tenant.name.clone(), error });
    }
    filling.finishing();
    // Somebody may have put a file of theirs there meanwhile.
    if let Err(error) = find(directory, tenant) {
        let _ = fs::remove_file(&building);
        return Err(error);
    }
    publish(&building, &path).map_err(|error| RunError::data(&path, "put into place", error))?;
    let bytes = fs::metadata(&path).map_err(|error| RunError::data(&path, "look at", error))?.len();
    filling.finish(&format!(
        "loaded {}: TPC-H at scale {}, {} in {:.1} s",
        tenant.name,
        tenant.scale,
        units::bytes(bytes),
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Without a journal and without waiting for the disk: a file that is not finished is not used (I1).
const FAST_AND_UNSAFE: &str = "
PRAGMA page_size = 4096;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA cache_size = -32768;";

fn fill(path: &Path, scale: Scale, tick: &mut dyn FnMut(u64) -> bool) -> rusqlite::Result<bool> {
    let connection = Connection::open(path)?;
    connection.execute_batch(FAST_AND_UNSAFE)?;
    // Before all else, so that a file left unfinished says whose it is (I3).
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    let transaction = connection.unchecked_transaction()?;
    transaction.execute_batch(tpch::TABLES)?;
    if !tpch::fill(&transaction, scale.factor(), tick)? {
        return Ok(false);
    }
    transaction.execute_batch(tpch::INDEXES)?;
    transaction.pragma_update(None, "user_version", stamp(scale))?;
    transaction.commit()?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(true)
}

fn publish(building: &Path, path: &Path) -> io::Result<()> {
    File::open(building)?.sync_all()?;
    fs::rename(building, path)
}

#[cfg(test)]
mod tests;
