//! Installation in a process with one thread, and with more. Each case is a child process, because
//! SQLite is installed once in a process.

use std::process::Command;
use std::sync::Barrier;
use std::thread;

use memgroup::{Config, Hierarchy};
use memgroup_sqlite::{InstallError, TenantConnection, install, install_with, installed};
use rusqlite::Connection;

/// The case that a child process runs.
const CASE: &str = "MEMGROUP_ALONE_CASE";

/// Children in which one thread opens connections while another one installs.
const RACES: u32 = 100;

fn main() {
    if std::env::args().any(|argument| argument == "--ignored") {
        // Only the long tests were asked for, and this is not one of them.
        return;
    }
    let Ok(case) = std::env::var(CASE) else {
        for case in ["alone", "joined", "used", "first", "given"] {
            run(case);
        }
        for number in 0..RACES {
            run(&format!("race {}", number * 41 % 3000));
        }
        return;
    };
    let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
    match case.as_str() {
        "alone" => installs_without_other_threads(&hierarchy),
        "joined" => refuses_beside_another_thread_and_installs_when_it_has_ended(&hierarchy),
        "used" => refuses_when_this_thread_has_used_sqlite(&hierarchy),
        "first" => a_second_installation_may_come_from_any_thread(&hierarchy),
        "given" => installs_with_a_given_group(&hierarchy),
        race => opens_connections_while_another_thread_installs(
            &hierarchy,
            race.strip_prefix("race ").and_then(|spins| spins.parse().ok()).expect("a case"),
        ),
    }
}

/// Runs `case` in a child, which ends with 0.
fn run(case: &str) {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).env(CASE, case).output().expect("a child");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "case `{case}`: {}\n{said}", output.status);
}

fn installs_without_other_threads(hierarchy: &Hierarchy) {
    install(hierarchy).expect("the process has one thread");
    let group = hierarchy.create("/tenant").expect("a group");
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    assert!(group.usage() > 0);
    conn.close().expect("nothing uses it");
    assert_eq!(group.usage_exact(), 0);
}

fn refuses_beside_another_thread_and_installs_when_it_has_ended(hierarchy: &Hierarchy) {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let other = thread::spawn(move || ended.recv());
    let refused = install(hierarchy).expect_err("another thread exists");
    assert!(matches!(refused, InstallError::OtherThreads { count: 2 }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("has 2 threads") && text.contains("install_unchecked"), "{text}");
    assert!(installed().is_none());
    assert!(hierarchy.lookup("/unattributed").is_err(), "a refused installation left a group behind");
    end.send(()).expect("the thread waits");
    _ = other.join().expect("the thread ends");
    install(hierarchy).expect("the other thread has ended");
    drop(Connection::open_in_memory().expect("a plain connection"));
    assert!(installed().expect("installed").unattributed().peak() > 0, "it was not charged");
}

fn refuses_when_this_thread_has_used_sqlite(hierarchy: &Hierarchy) {
    let before = Connection::open_in_memory().expect("a plain connection");
    let refused = install(hierarchy).expect_err("SQLite is initialised");
    assert!(matches!(refused, InstallError::AlreadyInitialized), "{refused}");
    drop(before);
    let refused = install(hierarchy).expect_err("SQLite is still initialised");
    assert!(matches!(refused, InstallError::AlreadyInitialized), "{refused}");
    assert!(hierarchy.lookup("/unattributed").is_err(), "a refused installation left a group behind");
}

fn a_second_installation_may_come_from_any_thread(hierarchy: &Hierarchy) {
    install(hierarchy).expect("the process has one thread");
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                drop(Connection::open_in_memory().expect("a plain connection"));
                install(hierarchy).expect("it is installed");
            });
        }
    });
}

fn installs_with_a_given_group(hierarchy: &Hierarchy) {
    let shared = hierarchy.create("/shared").expect("a group");
    let installed = install_with(hierarchy, &shared).expect("the process has one thread");
    assert_eq!(installed.unattributed(), &shared);
    assert!(shared.usage() > 0, "SQLite was initialised at no cost");
}

/// Whatever the answer of `install`, no memory is corrupted.
fn opens_connections_while_another_thread_installs(hierarchy: &Hierarchy, spins: u32) {
    let start = Barrier::new(2);
    thread::scope(|threads| {
        threads.spawn(|| {
            start.wait();
            for _ in 0..50 {
                let conn = Connection::open_in_memory().expect("a plain connection");
                conn.execute_batch("CREATE TABLE a (b); INSERT INTO a VALUES (zeroblob(3000))")
                    .expect("memory");
            }
        });
        start.wait();
        (0..spins).for_each(|_| std::hint::spin_loop());
        match install(hierarchy) {
            Ok(_) => panic!("the other thread has used SQLite"),
            Err(InstallError::OtherThreads { .. } | InstallError::AlreadyInitialized) => {}
            Err(error) => panic!("{error}"),
        }
    });
}
