//! `kill -9` of each view, and of the program itself.

use std::fs;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use tempfile::tempdir;
use xtask::Watchdog;

use crate::client::read_reply;
use crate::program::{Program, connections, is_the_program, mounts, until};
use crate::visitors::{self, Terminal, has_group, replay, wait_for_a_snapshot};

#[test]
fn a_killed_top_leaves_nothing_in_the_program() {
    if is_the_program() {
        return;
    }
    let folder = tempdir().unwrap();
    let mut program = Program::start("kills::a_killed_top_leaves_nothing_in_the_program", folder.path());
    let (socket, client) = (program.socket(), program.unix());
    let connected = |others: u64| until("a view that connects", || connections(&client) == 1 + others);
    // The first one fills the server's buffers.
    let first = visitors::top(&socket);
    connected(1);
    drop(first);
    let before = program.settled();
    let views = [visitors::top(&socket), visitors::top_that_is_not_read(&socket)];
    let terminal = Terminal::start(&socket);
    connected(3);
    assert!(!program.held().is_as(&before));
    drop(views);
    connected(1);
    terminal.kill();
    program.wait_until_held(&before);
}

#[test]
fn a_killed_recorder_leaves_each_snapshot_that_it_took() {
    if is_the_program() {
        return;
    }
    let folder = tempdir().unwrap();
    let test = "kills::a_killed_recorder_leaves_each_snapshot_that_it_took";
    let mut program = Program::start(test, folder.path());
    let (socket, mut before) = (program.socket(), None);
    for round in 0..5 {
        let file = folder.path().join(format!("{round}.memrec"));
        let recorder = visitors::recorder(&file, &socket);
        wait_for_a_snapshot(&file);
        program.order("create");
        wait_for_a_snapshot(&file);
        drop(recorder);
        let shots = replay(&file);
        assert!(!has_group(&shots[0], "/last"), "round {round}");
        assert!(has_group(shots.last().unwrap(), "/last"), "round {round}: {} snapshots", shots.len());
        program.order("remove");
        // The first one has filled the server's buffers.
        let before = before.get_or_insert_with(|| program.settled());
        program.wait_until_held(before);
    }
}

#[test]
fn a_killed_reader_of_the_mount_leaves_no_open_file() {
    if is_the_program() || visitors::is_a_reader() {
        return;
    }
    let _watchdog = Watchdog::over("readers of a mount that are killed");
    let folder = tempdir().unwrap();
    let test = "kills::a_killed_reader_of_the_mount_leaves_no_open_file";
    let mut program = Program::start(test, folder.path());
    if !program.is_mounted {
        return;
    }
    let (before, groups) = (program.settled(), program.groups());
    let readers = ["alice", "bob"].map(|tenant| visitors::reader(test, &groups.join("tenants").join(tenant)));
    assert_eq!(unmount(&groups, UnmountFlags::empty()), Err(Errno::BUSY), "files are open");
    assert!(!program.is_asleep("memgroup-polls"), "a thread looks for events of polled files");
    drop(readers);
    program.wait_until_held(&before);
    until("a thread without polled files", || program.is_asleep("memgroup-polls"));
    fs::remove_dir(groups.join("tenants/alice")).unwrap();
    assert_eq!(program.order("tell")["dying"], 0, "no descriptor keeps the group");
    // Without MNT_DETACH the system refuses while a file is open.
    until("a mount without open files", || unmount(&groups, UnmountFlags::empty()).is_ok());
}

#[test]
fn the_next_start_takes_the_place_of_a_killed_program() {
    if is_the_program() {
        return;
    }
    let _watchdog = Watchdog::over("a program that is killed and started again");
    let folder = tempdir().unwrap();
    let test = "kills::the_next_start_takes_the_place_of_a_killed_program";
    let program = Program::start(test, folder.path());
    let (socket, groups, file) = (program.socket(), program.groups(), folder.path().join("a.memrec"));
    let _views = [visitors::recorder(&file, &socket), visitors::top(&socket)];
    let client = program.unix();
    until("views that connect", || connections(&client) == 3);
    let mut stream = client.connect().unwrap();
    stream.write_all(client.head("GET", "/v1/events", "").as_bytes()).unwrap();
    assert_eq!(read_reply(&mut stream, true).unwrap().status, 200);
    wait_for_a_snapshot(&file);
    let is_mounted = program.is_mounted;
    program.kill();
    while stream.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
    assert!(socket.exists() && client.connect().is_err(), "nothing listens at the socket that is left");
    if is_mounted {
        assert_eq!(mounts(&groups), 1);
        assert_eq!(rustix::fs::statfs(&groups).map(drop), Err(Errno::NOTCONN), "a dead mount is left");
    }

    let program = Program::start(test, folder.path());
    assert_eq!(mounts(&groups), usize::from(is_mounted), "the dead mount is gone");
    if is_mounted {
        assert_eq!(fs::read_to_string(groups.join("tenants/bob/memory.max")).unwrap(), "1048576\n");
    }
    // The views go on with the new program.
    until("views that connect again", || connections(&client) == 3);
    assert_eq!(client.send("POST", "/v1/groups/later", b"").status, 201);
    wait_for_a_snapshot(&file);
    assert!(has_group(replay(&file).last().unwrap(), "/later"));
    drop(program);
    assert_eq!(mounts(&groups), 0);
    assert!(!socket.exists());
}
