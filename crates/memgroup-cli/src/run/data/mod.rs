//! Data: the tenants' TPC-H databases, and the statements that run on them.
//!
//! Each tenant has one SQLite file, which is built once, kept and reused.
//!
//! - I1. A file under its final name is complete, because it's built under another name, synced to
//!   disk, and then renamed.
//! - I2. The header of a file has its format and scale. A file of this program with another format
//!   is rebuilt.
//! - I3. A file that this program didn't make is never changed. New files get a name that was free.
//!   A file is removed or replaced only if its header has this program's id. A database is not
//!   opened beside a file that SQLite would play back.
//! - I4. Building needs the lock of the directory. Using complete files needs neither the lock nor
//!   the right to write.

mod tpch;
pub(crate) mod workload;

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memgroup::{Group, scope};
use rusqlite::Connection;

use crate::run::base::process::Stop;
use crate::run::base::progress::Progress;
use crate::run::base::{OrFail, RunError, beside, joined, units};
use crate::run::spec::{Scale, Spec, TenantSpec};

/// "MgTH": SQLite's `application_id` in the header of each file.
const APPLICATION_ID: u32 = 0x4d67_5448;
/// It must change with the tables, the indexes or the generator.
const FORMAT: u32 = 2;
/// The most threads that build at once. More would only wait for the disk.
const BUILDERS_MAX: usize = 8;
/// Suffix of a file that is being built.
const BUILDING: &str = ".building";
/// Suffixes of the files that SQLite plays back into a database.
const PLAYED_BACK: [&str; 2] = ["-journal", "-wal"];

/// The SPEC of a run, and what every part of the run uses.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) spec: &'a Spec,
    /// Directory of the databases.
    pub(crate) directory: &'a Path,
    pub(crate) progress: &'a Progress,
    pub(crate) stop: &'a Stop,
}

/// Returns the directory without `--data`: in the user's cache directory, or else in the system's
/// temporary directory.
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

/// Builds the missing databases of `job`, and returns all in the order of the tenants, or none if a
/// stop was requested. Building is charged to `loader`.
pub(crate) fn prepare(job: &Job<'_>, loader: Option<&Group>) -> Result<Option<Vec<Database>>, RunError> {
    let directory = job.directory;
    fs::create_dir_all(directory).or_fail_at("create the directory", directory)?;
    if !missing(job)?.is_empty() {
        let Some(_lock) = lock(job)? else { return Ok(None) };
        remove_unfinished(directory)?;
        // Another process may have built them before it released the lock.
        build_all(job, missing(job)?, loader)?;
    }
    if job.stop.requested() {
        return Ok(None);
    }
    let found = |tenant| {
        let absent = io::Error::from(io::ErrorKind::NotFound);
        find(directory, tenant)?.ok_or(absent).or_fail_at("find the new file", &path_of(directory, tenant))
    };
    job.spec.tenants.iter().map(found).collect::<Result<_, _>>().map(Some)
}

/// Reads every file once, so that statements find the same pages in the system's cache in every
/// run.
pub(crate) fn read_through(databases: &[Database]) -> Result<(), RunError> {
    for Database { path, .. } in databases {
        let read = File::open(path).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
        read.or_fail_at("read", path)?;
    }
    Ok(())
}

/// Returns the tenants without a database, the largest last.
fn missing<'a>(job: &Job<'a>) -> Result<Vec<&'a TenantSpec>, RunError> {
    let mut missing: Vec<&TenantSpec> = Vec::new();
    for tenant in &job.spec.tenants {
        if find(job.directory, tenant)?.is_none() {
            missing.push(tenant);
        }
    }
    missing.sort_by_key(|tenant| tenant.scale);
    Ok(missing)
}

fn build_all(job: &Job<'_>, missing: Vec<&TenantSpec>, loader: Option<&Group>) -> Result<(), RunError> {
    let builders =
        thread::available_parallelism().map_or(1, usize::from).min(BUILDERS_MAX).min(missing.len());
    let queue = Mutex::new(missing);
    // The largest is built first. If it were last, it would be built alone.
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let build_queue = || {
        let _scope = loader.map(scope::enter);
        while !job.stop.requested()
            && let Some(tenant) = next()
        {
            build(job, tenant)?;
        }
        Ok(())
    };
    thread::scope(|threads| {
        let handles: Vec<_> = (0..builders).map(|_| threads.spawn(build_queue)).collect();
        handles.into_iter().map(joined).fold(Ok(()), Result::and)
    })
}

/// Returns the path of a database. The scale is part of its name, so SPECs that have the same
/// tenant at different scales use different files.
fn path_of(directory: &Path, tenant: &TenantSpec) -> PathBuf {
    directory.join(format!("{}-{}.sqlite", tenant.name, tenant.scale))
}

/// Takes the lock of the directory, and waits for another process that has it. Returns none if a
/// stop was requested.
fn lock(job: &Job<'_>) -> Result<Option<File>, RunError> {
    let path = job.directory.join(".lock");
    let file = File::options().create(true).append(true).open(&path).or_fail_at("lock", &path)?;
    let mut told = false;
    while !job.stop.requested() {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::Error(error)) => return Err(error).or_fail_at("lock", &path),
            Err(TryLockError::WouldBlock) => {}
        }
        if !std::mem::replace(&mut told, true) {
            let directory = job.directory.display();
            job.progress.line(&format!("waiting for another run that loads {directory}"));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(None)
}

/// Returns the tenant's database, if it exists and is complete.
fn find(directory: &Path, tenant: &TenantSpec) -> Result<Option<Database>, RunError> {
    let path = path_of(directory, tenant);
    check_alone(&path)?;
    let mut file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.or_fail_at("open", &path)?,
    };
    let header = header(&mut file).or_fail_at("read", &path)?;
    let header = header
        .ok_or("that file was not made by this program; move it away")
        .or_fail_at("load into", &path)?;
    let length = file.metadata().or_fail_at("inspect", &path)?.len();
    Ok((header == (length, stamp(tenant.scale))).then_some(Database { path, bytes: length }))
}

/// Fails if there is a file that SQLite would play back into the database and delete. This program
/// leaves no such file, because it never writes to a database under its final name.
fn check_alone(database: &Path) -> Result<(), RunError> {
    for suffix in PLAYED_BACK {
        let mut path = database.as_os_str().to_owned();
        path.push(suffix);
        let path = PathBuf::from(path);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => {
                found.or_fail_at("inspect", &path)?;
                let why = "that file was not made by this program, and SQLite would delete it; move it away";
                return Err(why).or_fail_at("use the database beside", &path);
            }
        }
    }
    Ok(())
}

/// Removes the unfinished files of killed runs. The caller must hold the lock, so that no process
/// is writing them.
fn remove_unfinished(directory: &Path) -> Result<(), RunError> {
    for entry in fs::read_dir(directory).or_fail_at("list", directory)? {
        let path = entry.or_fail_at("list", directory)?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let is_file = || fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file());
        if !(name.starts_with(b".") && name.ends_with(BUILDING.as_bytes()) && is_file()) {
            continue;
        }
        // A file that cannot be read stays, because its origin is unknown (I3).
        let found = File::open(&path).and_then(|mut file| header(&mut file));
        if matches!(found, Ok(Some(_))) {
            fs::remove_file(&path).or_fail_at("remove", &path)?;
        }
    }
    Ok(())
}

/// Returns the format and the scale in one number, which is SQLite's `user_version`.
fn stamp(scale: Scale) -> u32 {
    FORMAT << 16 | scale.milli()
}

/// Returns the size and `user_version` in the header of an SQLite file, or none if this program
/// didn't make the file.
fn header(file: &mut File) -> io::Result<Option<(u64, u32)>> {
    let mut bytes = [0; 100];
    match file.read_exact(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let at = |offset: usize| {
        u32::from_be_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
    };
    // In the two bytes of the page size, 1 stands for 65,536.
    let page_bytes = match u64::from(at(16) >> 16) {
        1 => 65_536,
        size => size,
    };
    let is_ours = bytes.starts_with(b"SQLite format 3\0") && at(68) == APPLICATION_ID;
    Ok(is_ours.then(|| (page_bytes * u64::from(at(28)), at(60))))
}

/// Builds the tenant's database. A stop removes the unfinished file.
fn build(job: &Job<'_>, tenant: &TenantSpec) -> Result<(), RunError> {
    let path = path_of(job.directory, tenant);
    let (name, scale, started) = (&tenant.name, tenant.scale, Instant::now());
    let mut tick = ticker(job, name, scale);
    let building = beside(&path, BUILDING).or_fail_at("make a file beside", &path)?;
    check_alone(building.path())?;
    let built = fill(building.path(), scale, &mut tick);
    if !built.or_fail(format_args!("load the data of tenant `{name}`"))? {
        return Ok(());
    }
    // The user may have put a file there since the build began.
    find(job.directory, tenant)?;
    building.as_file().sync_all().or_fail_at("sync", building.path())?;
    let published = building.persist(&path).map_err(|failed| failed.error);
    let length = published.and_then(|file| file.metadata()).or_fail_at("rename a file to", &path)?.len();
    drop(tick);
    let (bytes, seconds) = (units::bytes(length), started.elapsed().as_secs_f64());
    job.progress.line(&format!("loaded {name}: TPC-H at scale {scale}, {bytes} in {seconds:.1} s"));
    Ok(())
}

/// Returns a function that shows the progress of loading TPC-H at this scale for `name`. It takes
/// the number of new rows, and returns whether to go on.
fn ticker<'a>(job: &Job<'a>, name: &'a str, scale: Scale) -> impl FnMut(u64) -> bool + 'a {
    let rows_about = tpch::row_count_about(scale.factor());
    let template = "  loading {msg:<14} {bar:30} {percent:>3} %  {human_pos} rows";
    let mut bar = job.progress.bar(rows_about, template, &format!("loading {name}"));
    let (stop, mut rows) = (job.stop, 0);
    move |more| {
        rows += more;
        let line = || format!("loading {name}: {} %", (rows * 100 / rows_about).min(100));
        bar.update(rows, || name.to_owned(), line);
        !stop.requested()
    }
}

/// There is no journal and no sync, because an unfinished file is never used (I1).
const FAST_AND_UNSAFE: &str = "
PRAGMA page_size = 4096;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA cache_size = -32768;";

fn fill(path: &Path, scale: Scale, tick: &mut dyn FnMut(u64) -> bool) -> rusqlite::Result<bool> {
    let connection = Connection::open(path)?;
    connection.execute_batch(FAST_AND_UNSAFE)?;
    // This comes first, so that an unfinished file has this program's id (I3).
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

#[cfg(test)]
mod tests;
