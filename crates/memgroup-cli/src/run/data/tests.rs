use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::{BUILDING, Database, build, build_all, fill, find, path_of, prepare, read_through};
use crate::run::base::RunError;
use crate::run::base::process::Stop;
use crate::run::base::progress::Progress;
use crate::run::data::Job;
use crate::run::spec::Spec;

fn spec() -> Spec {
    let tenant = |name| format!("[[tenant]]\nname = '{name}'\nworkload = 'etl'\nscale = 0.001\n");
    Spec::parse("a.toml", &format!("{}{}", tenant("a"), tenant("b")), None).expect("a valid SPEC")
}

fn prepared(directory: &Path) -> Result<Option<Vec<Database>>, RunError> {
    let (spec, progress, stop) = (spec(), Progress::on_stderr(), Stop::default());
    prepare(&Job { spec: &spec, directory, progress: &progress, stop: &stop }, None)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory is there");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

#[test]
fn builds_one_complete_file_a_tenant_and_reuses_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let databases = prepared(directory.path()).expect("data").expect("no stop");
    assert_eq!(databases.len(), 2);
    for database in &databases {
        let connection = Connection::open(&database.path).expect("a database");
        let rows: i64 =
            connection.query_row("SELECT count(*) FROM lineitem", [], |row| row.get(0)).expect("rows");
        assert_eq!(rows, 6_005);
        let sound: String =
            connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
        assert_eq!(sound, "ok");
        assert_eq!(fs::metadata(&database.path).expect("a file").len(), database.bytes);
    }
    let modified = |database: &Database| {
        fs::metadata(&database.path).and_then(|file| file.modified()).expect("a time of change")
    };
    let before = databases.iter().map(modified).collect::<Vec<_>>();
    let again = prepared(directory.path()).expect("data").expect("no stop");
    assert_eq!(again, databases);
    assert_eq!(again.iter().map(modified).collect::<Vec<_>>(), before);
}

#[test]
fn names_a_file_that_cannot_be_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let databases = prepared(directory.path()).expect("data").expect("no stop");
    read_through(&databases).expect("they are there");
    fs::remove_file(&databases[1].path).expect("a file");
    let error = read_through(&databases).expect_err("one is gone").to_string();
    assert!(error.contains(&databases[1].path.display().to_string()), "{error}");
}

#[test]
fn rebuilds_a_file_that_is_cut_or_of_another_format() {
    let directory = tempfile::tempdir().expect("a directory");
    let databases = prepared(directory.path()).expect("data").expect("no stop");
    let tenants = spec().tenants;
    let file = fs::File::options().write(true).open(&databases[0].path).expect("a file");
    file.set_len(databases[0].bytes - 4_096).expect("files can be cut");
    drop(file);
    let other = Connection::open(&databases[1].path).expect("a database");
    other.pragma_update(None, "user_version", 12).expect("a version");
    drop(other);
    for tenant in &tenants {
        assert_eq!(find(directory.path(), tenant).expect("it is ours"), None, "{}", tenant.name);
    }
    assert_eq!(prepared(directory.path()).expect("data").expect("no stop"), databases);
}

#[test]
fn keeps_a_foreign_file() {
    for content in [&b"my own notes"[..], &[0; 5_000]] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = path_of(directory.path(), &spec().tenants[1]);
        fs::write(&path, content).expect("a file");
        let error = prepared(directory.path()).expect_err("a foreign file");
        assert!(error.to_string().contains("was not made by this program"), "{error}");
        assert_eq!(fs::read(&path).expect("the file"), content);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = path_of(directory.path(), &spec().tenants[0]);
    let connection = Connection::open(&path).expect("a database");
    connection.execute_batch("CREATE TABLE diary (day TEXT)").expect("a table");
    drop(connection);
    let error = prepared(directory.path()).expect_err("a foreign file");
    assert!(error.to_string().contains("was not made by this program"), "{error}");
}

#[test]
fn removes_the_unfinished_file_after_a_stop() {
    let directory = tempfile::tempdir().expect("a directory");
    let (spec, progress, stop) = (spec(), Progress::on_stderr(), Stop::default());
    stop.request();
    let job = Job { spec: &spec, directory: directory.path(), progress: &progress, stop: &stop };
    assert_eq!(prepare(&job, None).expect("no error"), None);
    build_all(&job, spec.tenants.iter().collect(), None).expect("no error");
    // A builder that is running sees the stop at its next tick.
    build(&job, &spec.tenants[0]).expect("no error");
    assert_eq!(files(directory.path()), [directory.path().join(".lock")]);
}

#[test]
fn removes_unfinished_files_of_this_program_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let left = directory.path().join(format!(".a-0.001.sqlite.1-0{BUILDING}"));
    assert!(!fill(&left, spec().tenants[0].scale, &mut |_| false).expect("no error"), "it is given up");
    let diaries = ["a-0.001.building", ".a-0.001.sqlite.1-1.building", ".empty.building"];
    let diaries = diaries.map(|name| directory.path().join(name));
    for diary in &diaries[..2] {
        fs::write(diary, b"dear diary").expect("a file");
    }
    fs::write(&diaries[2], b"").expect("a file");
    prepared(directory.path()).expect("data").expect("no stop");
    assert!(!left.exists());
    for diary in &diaries[..2] {
        assert_eq!(fs::read(diary).expect("it is there"), b"dear diary");
    }
    assert!(diaries[2].exists());
}

#[test]
fn refuses_a_database_beside_a_foreign_journal() {
    for (suffix, built) in [("-journal", false), ("-journal", true), ("-wal", false), ("-wal", true)] {
        let directory = tempfile::tempdir().expect("a directory");
        if built {
            prepared(directory.path()).expect("data").expect("no stop");
        }
        let path = directory.path().join(format!("b-0.001.sqlite{suffix}"));
        fs::write(&path, b"dear diary").expect("a file");
        let error = prepared(directory.path()).expect_err("a foreign file").to_string();
        assert!(error.contains(suffix) && error.contains("was not made by this program"), "{error}");
        assert_eq!(fs::read(&path).expect("it is there"), b"dear diary");
    }
}

#[test]
fn uses_complete_files_without_the_lock() {
    let directory = tempfile::tempdir().expect("a directory");
    let databases = prepared(directory.path()).expect("data").expect("no stop");
    let lock = directory.path().join(".lock");
    fs::remove_file(&lock).expect("a file");
    // Not even root can lock a directory this way.
    fs::create_dir(&lock).expect("a directory");
    assert_eq!(prepared(directory.path()).expect("data").expect("no stop"), databases);
    fs::remove_file(&databases[0].path).expect("a file");
    let error = prepared(directory.path()).expect_err("a missing file must be built").to_string();
    assert!(error.starts_with("failed to lock "), "{error}");
}

#[test]
fn names_a_directory_that_cannot_be_created() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, b"").expect("a file");
    let error = prepared(&file.join("data")).expect_err("a file is in the way").to_string();
    assert!(error.starts_with("failed to create the directory ") && error.contains("--data DIR"), "{error}");
}

#[test]
fn makes_each_database_larger_than_the_page_caches_of_its_tenant() {
    let directory = tempfile::tempdir().expect("a directory");
    let databases = prepared(directory.path()).expect("data").expect("no stop");
    // At scale 0.001; sizes grow with the scale.
    let bytes_per_milli = databases[0].bytes;
    for tenant in Spec::read(None, None).expect("a valid SPEC").tenants {
        let bytes = bytes_per_milli * u64::from(tenant.scale.milli());
        let held = tenant.cache_bytes * u64::from(tenant.threads);
        assert!(bytes > held, "{}: {bytes} bytes, of which it may hold {held}", tenant.name);
    }
}
