//! A server in a program with a global allocator that charges groups: no byte is counted twice, and
//! none is left.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use memgroup::{Config, Hierarchy};
use memgroup_alloc::Allocator;
use memgroup_serve::Serve;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

/// Reads an answer in small pieces, and returns its length and the highest `usage` in that time.
fn get(socket: &Path, path: &str, usage: impl Fn() -> u64) -> (usize, u64) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let (mut length, mut most, mut piece) = (0, 0, [0; 1 << 14]);
    loop {
        let bytes = stream.read(&mut piece).unwrap();
        if length == 0 {
            assert!(piece.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&piece[..bytes]));
        }
        if bytes == 0 {
            return (length, most);
        }
        (length, most) = (length + bytes, most.max(usage()));
    }
}

#[test]
fn counts_its_bytes_once_and_gives_all_back() {
    const GROUPS: usize = 2000;
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    for number in 0..GROUPS {
        hierarchy.create(&format!("/{number}")).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("m.sock");
    let server = memgroup_serve::start(&hierarchy, Serve::unix(&socket).history_groups(100)).unwrap();
    let own = hierarchy.lookup("/memgroup-serve").unwrap();
    let usage = || own.usage_exact();
    // The first sample takes memory for the history.
    let empty = get(&socket, "/v1/history", usage).0;
    while get(&socket, "/v1/history", usage).0 <= empty {
        std::thread::yield_now();
    }
    let before = usage();
    assert!(before > 0, "its thread is in the group");
    // A group has some 1,500 bytes in a snapshot, and an answer is written in pieces.
    for path in ["/v1/tree", "/v1/groups/"] {
        let (length, most) = get(&socket, path, usage);
        let snapshot = 1500 * GROUPS as u64;
        assert!(length as u64 > snapshot, "{length} bytes are more than one piece");
        assert!(
            most - before < snapshot * 8 / 5,
            "{path} took {}, the snapshot has {snapshot}",
            most - before
        );
    }
    let (length, most) = get(&socket, "/metrics", usage);
    assert!(most >= length as u64 / 2 && most - before < 2 * length as u64, "{most} of {length}");
    // The connection ends a moment after the answer.
    let _watched = xtask::Watchdog::over("connections that give their bytes back");
    while usage() > before + (64 << 10) {
        std::thread::yield_now();
    }
    server.stop();
    drop(own);
    assert!(hierarchy.lookup("/memgroup-serve").is_err());
    let held: Vec<_> = hierarchy.dying();
    assert!(held.is_empty(), "{held:?}");
    assert_eq!(hierarchy.root().usage_exact(), 0);
}

#[test]
fn a_list_of_groups_takes_as_much_as_the_server_charges_for_it() {
    const GROUPS: u64 = 8000;
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let tenant = hierarchy.create("/tenant").unwrap();
    for number in 0..GROUPS {
        tenant.create(&format!("request-{number}")).unwrap();
    }
    // As `FINDING` and `FOUND` in the source of the server; and what the allocator of a thread
    // holds back.
    let (finding, found, held_back) = (384 * GROUPS, 160 * GROUPS, 128 << 10);
    let own = hierarchy.create("/own").unwrap();
    let _scope = memgroup::scope::enter(&own);
    let reader = hierarchy.root().snapshot_reader();
    let (peak, usage) = (own.peak(), own.usage());
    assert!(peak <= finding + held_back && peak > finding / 2, "{peak} of {finding}");
    assert!(usage <= found + held_back && usage > found / 4, "{usage} of {found}");
    drop(reader);
}
