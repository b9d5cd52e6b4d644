//! Ends: a tree is unmounted in whatever way its program ends, and a dead one is cleared.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use memgroup::Hierarchy;
use memgroup_fuse::{MountProblem, Options, mount};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use xtask::Watchdog;

use super::rights::USER;
use super::{can_mount, exact, mounted, number};

fn tree() -> Hierarchy {
    let hierarchy = Hierarchy::new(exact()).unwrap();
    hierarchy.create("/a").unwrap();
    hierarchy
}

/// The types of the file systems that are mounted at the path.
fn mounts(path: &Path) -> Vec<String> {
    let list = fs::read_to_string("/proc/self/mounts").unwrap();
    let path = path.to_str().unwrap().replace(' ', "\\040");
    let at = |line: &str| {
        let mut words = line.split(' ').skip(1);
        (words.next() == Some(&path)).then(|| words.next().unwrap().to_owned())
    };
    list.lines().filter_map(at).collect()
}

#[test]
fn unmounts_while_descriptors_are_open() {
    if !can_mount() {
        return;
    }
    let (hierarchy, folder) = (tree(), tempfile::tempdir().unwrap());
    let mounted = mount(&hierarchy, folder.path(), Options::new()).unwrap();
    assert_eq!(mounts(folder.path()), ["fuse.memgroup"]);
    let (file, directory) =
        (File::open(folder.path().join("a/memory.max")).unwrap(), File::open(folder.path()).unwrap());
    drop(mounted);
    assert_eq!(mounts(folder.path()), [""; 0]);
    assert!(!folder.path().join("a").exists());
    let gone = [Errno::NOTCONN, Errno::CONNABORTED];
    assert!(gone.contains(&number(file.read_at(&mut [0; 8], 0)).unwrap_err()));
    assert!(gone.contains(&number(directory.metadata().map(drop)).unwrap_err()));
}

#[test]
fn unmounts_when_its_owner_panics() {
    if !can_mount() {
        return;
    }
    let (hierarchy, folder) = (tree(), tempfile::tempdir().unwrap());
    let panics = || {
        let _mounted = mount(&hierarchy, folder.path(), Options::new()).unwrap();
        assert!(!folder.path().join("a").is_dir(), "an owner that panics");
    };
    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
    assert_eq!(mounts(folder.path()), [""; 0]);
}

const CHILD: &str = "MEMGROUP_FUSE_CHILD";

/// Mounts, says so, and ends as told. It is the same test program, in a process of its own.
fn be_the_child(order: &str) {
    let (end, folder) = order.split_once(' ').unwrap();
    let options = Options::new().unmount_at_end(end != "alone");
    let _mounted = mount(&tree(), folder, options).unwrap();
    println!("\nmounted");
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    match end {
        "exit" => std::process::exit(0),
        "abort" => std::process::abort(),
        "panic" => panic!("the owner of the mount panics"),
        _ => unreachable!("a signal ends the child while it waits"),
    }
}

/// Starts the child, and returns when it has mounted.
fn start_child(test: &str, end: &str, folder: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{end} {}", folder.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.as_mut().unwrap());
    let mut line = String::new();
    while line != "mounted\n" {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the child has ended");
    }
    child
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn unmounts_in_whatever_way_the_program_ends() {
    if let Ok(order) = std::env::var(CHILD) {
        return be_the_child(&order);
    }
    if !can_mount() {
        return;
    }
    let _watchdog = Watchdog::over("a mount whose program has ended");
    for end in ["exit", "abort", "panic", "TERM", "KILL"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("its tree");
        fs::create_dir(&path).unwrap();
        let mut child = start_child("ends::unmounts_in_whatever_way_the_program_ends", end, &path);
        assert_eq!(fs::read_to_string(path.join("a/memory.max")).unwrap(), "max\n");
        // A descriptor does not keep it mounted.
        let file = File::open(path.join("a/memory.max")).unwrap();
        match end {
            "TERM" => signal(&child, Signal::TERM),
            "KILL" => signal(&child, Signal::KILL),
            _ => child.stdin.take().unwrap().write_all(b"\n").unwrap(),
        }
        child.wait().unwrap();
        while !mounts(&path).is_empty() {
            thread::yield_now();
        }
        assert!((&file).read(&mut [0; 8]).is_err(), "{end}");
        assert!(!path.join("a").exists(), "{end}");
    }
}

#[test]
fn clears_the_dead_mount_of_a_program_that_was_killed() {
    if let Ok(order) = std::env::var(CHILD) {
        return be_the_child(&order);
    }
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // A name that the list of mounts escapes.
    let path = folder.path().join("dead trees");
    fs::create_dir(&path).unwrap();
    for _ in 0..2 {
        let test = "ends::clears_the_dead_mount_of_a_program_that_was_killed";
        let mut child = start_child(test, "alone", &path);
        let error = mount(&tree(), &path, Options::new()).unwrap_err();
        assert!(matches!(error.problem, MountProblem::Occupied), "{error}");
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        assert_eq!(rustix::fs::statfs(&path).map(drop), Err(Errno::NOTCONN));
        let hierarchy = tree();
        let mounted = mount(&hierarchy, &path, Options::new()).unwrap();
        assert!(path.join("a/memory.max").is_file());
        assert_eq!(mounted.path(), path);
        drop(mounted);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "neither tree is mounted");
    }
}

#[test]
fn leaves_a_dead_file_system_of_another_kind() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse").unwrap().into();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    rustix::mount::mount("other", folder.path(), "fuse.other", MountFlags::empty(), options.as_c_str())
        .unwrap();
    drop(device);
    let error = mount(&tree(), folder.path(), Options::new()).unwrap_err();
    let said = format!(
        "mount the tree at {}: fuse.other is mounted there and does not answer",
        folder.path().display()
    );
    assert!(error.to_string().starts_with(&said), "{error}");
    assert_eq!(mounts(folder.path()), ["fuse.other"]);
    unmount(folder.path(), UnmountFlags::DETACH).unwrap();
}

#[test]
fn unmounts_no_file_system_but_its_own() {
    if !can_mount() {
        return;
    }
    let (hierarchy, folder) = (tree(), tempfile::tempdir().unwrap());
    let mounted = mount(&hierarchy, folder.path(), Options::new()).unwrap();
    // Another program unmounts it, and mounts something else.
    let _watchdog = Watchdog::over("the end of a tree that was unmounted");
    unmount(folder.path(), UnmountFlags::empty()).unwrap();
    while mounted.is_mounted() {
        thread::yield_now();
    }
    let none = None::<&std::ffi::CStr>;
    rustix::mount::mount("other", folder.path(), "tmpfs", MountFlags::empty(), none).unwrap();
    mounted.unmount().unwrap();
    assert_eq!(mounts(folder.path()), ["tmpfs"]);
    // A file system above a tree: neither its program nor the shell unmounts it.
    unmount(folder.path(), UnmountFlags::empty()).unwrap();
    let mounted = mount(&hierarchy, folder.path(), Options::new()).unwrap();
    rustix::mount::mount("other", folder.path(), "tmpfs", MountFlags::empty(), none).unwrap();
    let error = mounted.unmount().unwrap_err();
    assert!(error.to_string().contains("another file system is mounted above it"), "{error}");
    assert_eq!(mounts(folder.path()), ["fuse.memgroup", "tmpfs"]);
    unmount(folder.path(), UnmountFlags::empty()).unwrap();
    unmount(folder.path(), UnmountFlags::DETACH).unwrap();
    rustix::mount::mount("other", folder.path(), "tmpfs", MountFlags::empty(), none).unwrap();
    // A tree above it leaves it too.
    drop(mount(&hierarchy, folder.path(), Options::new()).unwrap());
    assert_eq!(mounts(folder.path()), ["tmpfs"]);
    unmount(folder.path(), UnmountFlags::DETACH).unwrap();
}

#[test]
fn refuses_paths_that_are_no_directory_and_takes_own_links() {
    let Some(m) = mounted() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("file"), "").unwrap();
    for name in ["file", "missing"] {
        let error = mount(&m.hierarchy, path(name), Options::new()).unwrap_err();
        assert!(matches!(error.problem, MountProblem::NoDirectory(_)), "{error}");
        assert!(error.to_string().contains("it must be a directory that exists"), "{error}");
    }
    fs::create_dir(path("real")).unwrap();
    symlink("real", path("link")).unwrap();
    // Where another user may have placed the link, it is refused.
    let set_mode = |mode| fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
    for (owner, mode) in [(0, 0o1777), (USER, 0o755)] {
        set_mode(mode);
        chown(folder.path(), Some(owner), None).unwrap();
        for name in ["link", "link/", "link/."] {
            let error = mount(&m.hierarchy, path(name), Options::new()).unwrap_err();
            let (link, directory) = (path(name).display().to_string(), folder.path().display().to_string());
            assert!(matches!(error.problem, MountProblem::Link { .. }), "{error}");
            let said = format!(
                "mount the tree at {link}: it has a symbolic link, and other users may place links in {directory};"
            );
            assert!(error.to_string().starts_with(&said), "{error}");
        }
    }
    drop(mount(&m.hierarchy, path("real"), Options::new()).unwrap());
    chown(folder.path(), Some(0), None).unwrap();
    let mounted = mount(&m.hierarchy, path("link"), Options::new().unmount_at_end(false)).unwrap();
    assert_eq!(mounted.path(), path("real"));
    // One tree may be mounted twice. Owners and permissions are those of each mount.
    assert_eq!(m.sh("mkdir a && chmod 0700 a && stat -c %a a"), "700\n");
    assert_eq!(super::sh(&path("real"), "stat -c %a a && rmdir a"), "755\n");
    assert_eq!(m.sh("ls -d a 2>&1 | grep -c 'No such'"), "1\n");
}
