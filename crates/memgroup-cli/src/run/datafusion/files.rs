//! Files: the tables of TPC-H at one scale in a directory, as Parquet files that all tenants of that scale read.
//!
//! - I1. A directory under its final name is complete: it is built under another name, each file is synced, then it is renamed.
//! - I2. Its file `memgroup.txt` says that this program made it, with format, scale, and the size of each table. A directory of this program with
//!   another format, or with files of other sizes, is built again.
//! - I3. A directory that this program did not make is never changed. The file `memgroup.txt` is the first one in a new directory.
//! - I4. Building needs the lock of the data directory. Using complete files needs neither the lock nor the right to write.

use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use memgroup_tpch::TABLES;

use crate::run::base::error::{OrFail, RunError};
use crate::run::base::fresh;
use crate::run::data::Job;
use crate::run::data::files::{BUILDING, Database, lock, read_through, tell_loaded, ticker};
use crate::run::spec::Scale;

/// File of a directory that says that this program made it.
const MARK: &str = "memgroup.txt";
/// Changes with the tables or the writer.
const FORMAT: u32 = 1;
/// First words of that file.
const MADE_BY: &str = "memgroup: TPC-H as Parquet files";
/// First part of a directory's name.
const PREFIX: &str = "parquet-";

/// The directory of a scale.
pub(super) fn directory(data: &Path, scale: Scale) -> PathBuf {
    data.join(format!("{PREFIX}{scale}"))
}

/// Bytes of all tables of a complete directory.
pub(super) fn bytes(directory: &Path) -> u64 {
    let sizes = TABLES.iter().filter_map(|table| fs::metadata(memgroup_tpch::file(directory, table)).ok());
    sizes.map(|metadata| metadata.len()).sum()
}

/// Builds the missing directories of the tenants' scales, and reads all files once. Returns whether all are there: a stop may have been requested.
pub(super) fn prepare(job: &Job<'_>) -> Result<bool, RunError> {
    let data = job.directory;
    fs::create_dir_all(data).or_fail_at("create the directory", data)?;
    let mut scales: Vec<Scale> = job.spec.tenants.iter().map(|tenant| tenant.scale).collect();
    scales.sort_unstable();
    scales.dedup();
    for scale in scales {
        if !is_complete(data, scale)? {
            let Some(_lock) = lock(job)? else { return Ok(false) };
            remove_unfinished(data)?;
            // Another process may have built it before it released the lock.
            if !is_complete(data, scale)? && !build(job, scale)? {
                return Ok(false);
            }
        }
        let file =
            |table: &&str| Database { path: memgroup_tpch::file(&directory(data, scale), table), bytes: 0 };
        read_through(&TABLES.iter().map(file).collect::<Vec<_>>())?;
    }
    Ok(!job.stop.requested())
}

/// The text of `memgroup.txt` in a complete directory; an error if a table is missing.
fn mark(directory: &Path, scale: Scale) -> io::Result<String> {
    let mut text = format!("{MADE_BY}, format {FORMAT}, scale {scale}\n");
    for table in TABLES {
        let bytes = fs::metadata(memgroup_tpch::file(directory, table))?.len();
        let _infallible = writeln!(text, "{table} {bytes} bytes");
    }
    Ok(text)
}

/// Whether this program made the directory; an error if there is none.
fn is_own(directory: &Path) -> io::Result<bool> {
    fs::metadata(directory)?;
    Ok(fs::read_to_string(directory.join(MARK)).is_ok_and(|text| text.starts_with(MADE_BY)))
}

/// Whether the directory of a scale is there and complete.
fn is_complete(data: &Path, scale: Scale) -> Result<bool, RunError> {
    let directory = directory(data, scale);
    match is_own(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).or_fail_at("inspect", &directory),
        Ok(false) => {
            let foreign = "that directory was not made by this program; move it away";
            return Err(foreign).or_fail_at("load into", &directory);
        }
        Ok(true) => {}
    }
    let found = fs::read_to_string(directory.join(MARK)).or_fail_at("read", &directory)?;
    Ok(mark(&directory, scale).is_ok_and(|mark| mark == found))
}

/// Removes the unfinished directories of killed runs. The caller holds the lock, so no process is writing them.
fn remove_unfinished(data: &Path) -> Result<(), RunError> {
    for entry in fs::read_dir(data).or_fail_at("list", data)? {
        let path = entry.or_fail_at("list", data)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !(name.starts_with(&format!(".{PREFIX}")) && name.ends_with(BUILDING)) {
            continue;
        }
        if is_own(&path).unwrap_or(false) {
            fs::remove_dir_all(&path).or_fail_at("remove", &path)?;
        } else {
            // A run may have been killed before its first file. A directory with other files stays (I3).
            let _ = fs::remove_dir(&path);
        }
    }
    Ok(())
}

/// Builds the directory of a scale. Returns whether it is there: a stop removes the unfinished one.
fn build(job: &Job<'_>, scale: Scale) -> Result<bool, RunError> {
    let (directory, started) = (directory(job.directory, scale), Instant::now());
    let name = format!("{PREFIX}{scale}");
    let (building, ()) = fresh::make_beside(&directory, BUILDING, |path| fs::create_dir(path))
        .or_fail_at("make a directory beside", &directory)?;
    let mut tick = ticker(job, &name, scale);
    let mut fill = || {
        // First of all, so that an unfinished directory is known to be this program's (I3).
        fs::write(building.join(MARK), MADE_BY)?;
        for table in TABLES {
            if !memgroup_tpch::write(&building, table, scale.factor(), &mut tick)? {
                return Ok(false);
            }
        }
        fs::write(building.join(MARK), mark(&building, scale)?)?;
        File::open(building.join(MARK))?.sync_all()?;
        Ok::<_, datafusion::common::DataFusionError>(true)
    };
    let built = fill().or_fail(format_args!("load TPC-H at scale {scale}"));
    let published = built.and_then(|is_whole| {
        if is_whole {
            publish(&building, &directory)?;
        }
        Ok(is_whole)
    });
    drop(tick);
    if !matches!(published, Ok(true)) {
        // The next run that builds removes a directory that stays.
        let _ = fs::remove_dir_all(&building);
        return published;
    }
    tell_loaded(job, &name, scale, bytes(&directory), started);
    Ok(true)
}

/// Gives a complete directory its final name. An old one of this program is removed.
fn publish(building: &Path, directory: &Path) -> Result<(), RunError> {
    if is_own(directory).unwrap_or(false) {
        fs::remove_dir_all(directory).or_fail_at("replace", directory)?;
    }
    // A directory that the user has put there meanwhile is not empty, and stays.
    fs::rename(building, directory).or_fail_at("rename a directory to", directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::base::progress::Progress;
    use crate::run::base::stop::{CTRL_C, Stop};
    use crate::run::spec::{Engine, Spec};

    /// Prepares the data of a tenant with little data in `data`.
    fn prepared(data: &Path, stop: &Stop) -> Result<bool, RunError> {
        let text = "engine = 'datafusion'\n[[tenant]]\nname = 'a'\nworkload = 'queries'\nscale = 0.001\n";
        let spec = Spec::parse("a.toml", text, Some(Engine::Datafusion)).expect("a valid SPEC");
        let progress = Progress::on_stderr();
        prepare(&Job { spec: &spec, directory: data, progress: &progress, stop })
    }

    fn own(data: &Path) -> PathBuf {
        directory(data, Scale::LEAST)
    }

    #[test]
    fn builds_once_and_again_after_a_change() {
        let data = tempfile::tempdir().expect("a directory");
        let written = || fs::metadata(own(data.path()).join("lineitem.parquet")).expect("a file");
        let is_there = prepared(data.path(), &Stop::default());
        assert_eq!(is_there, Ok(true));
        let first = written().modified().expect("a time");
        assert_eq!(prepared(data.path(), &Stop::default()), Ok(true));
        assert_eq!(written().modified().expect("a time"), first, "it is reused");
        let file = File::options().write(true).open(own(data.path()).join("lineitem.parquet"));
        let whole = written().len();
        file.expect("a file").set_len(whole - 1).expect("it is cut");
        assert_eq!(prepared(data.path(), &Stop::default()), Ok(true));
        assert_eq!(written().len(), whole);
        let entries = fs::read_dir(data.path()).expect("a list").count();
        assert_eq!(entries, 2, "the directory and the lock");
    }

    #[test]
    fn removes_unfinished_directories_and_no_others() {
        let data = tempfile::tempdir().expect("a directory");
        let unfinished = data.path().join(".parquet-0.001.1-0.building");
        let foreign = data.path().join(".parquet-0.001.2-0.building");
        for (path, text) in [(&unfinished, MADE_BY), (&foreign, "mine")] {
            fs::create_dir(path).expect("a directory");
            fs::write(path.join(MARK), text).expect("a file");
        }
        assert_eq!(prepared(data.path(), &Stop::default()), Ok(true));
        assert_eq!((unfinished.exists(), foreign.exists()), (false, true));
    }

    #[test]
    fn leaves_nothing_after_a_stop() {
        let data = tempfile::tempdir().expect("a directory");
        let stop = Stop::default();
        stop.request(CTRL_C);
        assert_eq!(prepared(data.path(), &stop), Ok(false));
        assert!(!own(data.path()).exists());
        let progress = Progress::on_stderr();
        let spec = Spec::read(None, Some(Engine::Datafusion)).expect("a valid SPEC");
        let job = Job { spec: &spec, directory: data.path(), progress: &progress, stop: &stop };
        assert_eq!(build(&job, Scale::LEAST), Ok(false));
        assert_eq!(fs::read_dir(data.path()).expect("a list").count(), 1, "the lock");
    }

    #[test]
    fn names_a_directory_that_it_did_not_make() {
        let data = tempfile::tempdir().expect("a directory");
        fs::create_dir(own(data.path())).expect("a directory");
        let error = prepared(data.path(), &Stop::default()).expect_err("a foreign directory").to_string();
        assert!(error.contains("parquet-0.001") && error.contains("not made by this program"), "{error}");
    }
}
