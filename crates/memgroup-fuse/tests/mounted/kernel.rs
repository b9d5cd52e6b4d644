//! The kernel's own cgroup v2, where this process may make a cgroup: the same calls there and in
//! the mount have the same results.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{mounted, number};

/// A cgroup of the kernel, with another one in it. Dropping it removes both.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Option<Cgroup> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let Some(mount) = lines.find(|words| words[2] == "cgroup2") else {
            println!("skipped: cgroup v2 is not mounted here");
            return None;
        };
        let path = Path::new(mount[1]).join(format!("memgroup-fuse-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&path).and_then(|()| fs::create_dir(path.join("child"))) {
            println!("skipped: no cgroup can be made in {}: {error}", mount[1]);
            return None;
        }
        Some(Cgroup(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for name in ["child", "."] {
            // `.` cannot be removed by that name.
            let path = if name == "." { self.0.clone() } else { self.0.join(name) };
            fs::remove_dir(path).ok();
        }
    }
}

fn shown<T: std::fmt::Debug>(result: std::io::Result<T>) -> String {
    format!("{:?}", number(result))
}

fn writing(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn revents(file: &File) -> String {
    let mut polled = [PollFd::new(file, PollFlags::all())];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    format!("{:?}", polled[0].revents())
}

/// Files that both have without the controller of memory.
const FILES: [&str; 10] = [
    "cgroup.controllers",
    "cgroup.events",
    "cgroup.max.depth",
    "cgroup.max.descendants",
    "cgroup.procs",
    "cgroup.stat",
    "cgroup.subtree_control",
    "cgroup.threads",
    "cgroup.type",
    "memory.pressure",
];

/// Files that need the controller.
const MEMORY_FILES: [&str; 10] = [
    "memory.current",
    "memory.events",
    "memory.events.local",
    "memory.high",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.oom.group",
    "memory.reclaim",
    "memory.stat",
];

/// The results of calls in a directory that has a directory `child`.
fn results(top: &Path, files: &[&str]) -> Vec<(String, String)> {
    let mut results = Vec::new();
    let mut add = |call: String, result: String| results.push((call, result));
    let at = |name: &str| top.join(name);

    for name in ["child", "cgroup.procs", "none/x", "cgroup.procs/x", "a\nb", "."] {
        add(format!("mkdir {name:?}"), shown(fs::create_dir(at(name))));
    }
    for name in ["none", "cgroup.procs", "cgroup.procs/x"] {
        add(format!("rmdir {name:?}"), shown(fs::remove_dir(at(name))));
    }
    add("rmdir of a parent".into(), shown(fs::remove_dir(top)));
    add("mkdir, rmdir".into(), shown(fs::create_dir(at("x")).and_then(|()| fs::remove_dir(at("x")))));
    for name in ["child", "cgroup.procs", "none"] {
        add(format!("unlink {name}"), shown(rustix::fs::unlink(at(name)).map_err(Into::into)));
        add(format!("rename {name}"), shown(fs::rename(at(name), at("new"))));
        add(format!("link {name}"), shown(fs::hard_link(at(name), at("new"))));
    }
    add("rename to a file".into(), shown(fs::rename(at("child"), at("cgroup.procs"))));
    add("symlink".into(), shown(symlink("child", at("new"))));
    add("create".into(), shown(File::create_new(at("new")).map(drop)));
    add("create what exists".into(), shown(File::create_new(at("cgroup.procs")).map(drop)));
    add(
        "open a directory to write".into(),
        shown(OpenOptions::new().write(true).open(at("child")).map(drop)),
    );

    for &name in files {
        let path = at(name);
        let found = fs::metadata(&path).unwrap();
        let attributes =
            (found.permissions().mode(), found.len(), found.nlink(), found.blocks(), found.blksize());
        add(format!("stat {name}"), format!("{attributes:?}"));
        if !["cgroup.controllers", "cgroup.subtree_control", "cgroup.stat", "memory.stat"].contains(&name) {
            // The names of controllers, and some keys, exist in the kernel only.
            add(format!("read {name}"), shown(fs::read_to_string(&path)));
        }
        let mut file = writing(&path);
        add(format!("write nothing to {name}"), shown(file.write(b"")));
        add(format!("write 4097 bytes to {name}"), shown(file.write(&[b' '; 4097])));
        add(format!("write 100,000 bytes to {name}"), shown(file.write(&[b' '; 100_000])));
        if !["cgroup.procs", "cgroup.threads", "memory.pressure"].contains(&name) {
            add(format!("write a word to {name}"), shown(file.write(b"word")));
        }
        add(format!("truncate {name}"), shown(file.set_len(7)));
        add(format!("length of {name}"), shown(file.metadata().map(|found| found.len())));
        add(format!("seek to the end of {name}"), shown(file.seek(SeekFrom::End(0))));
        add(format!("sync {name}"), shown(file.sync_all()));
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        add(format!("touch {name}"), shown(file.set_modified(time)));
        add(format!("time of {name}"), shown(file.metadata().map(|found| found.mtime())));
        add(format!("chmod {name}"), shown(file.set_permissions(PermissionsExt::from_mode(0o640))));
        add(format!("mode of {name}"), shown(file.metadata().map(|found| found.mode())));
    }

    let events = File::open(at("child/cgroup.events")).unwrap();
    add("poll before a read".into(), revents(&events));
    add("poll again".into(), revents(&events));
    let mut part = [0; 5];
    add("read a part".into(), shown((&events).read(&mut part)));
    add("poll after a read".into(), revents(&events));
    add("read the rest".into(), super::read_all(&events).unwrap());
    add("read at 3".into(), shown(events.read_at(&mut part, 3).map(|bytes| part[..bytes].to_vec())));
    add("read at 1000".into(), shown(events.read_at(&mut part, 1000)));

    for text in [
        "some 150000 2000000",
        "some 150000 2000000\n",
        "some 150000 2000000\0",
        "full 150000 2000000",
        "some 2000001 2000000",
        "some 0 2000000",
        "some 1 100000",
        "some 1 10000001",
        "some 150000",
        "none 150000 2000000",
        "\n",
        "word",
    ] {
        let file = writing(&at("memory.pressure"));
        add("poll without a trigger".into(), revents(&file));
        add(format!("trigger {text:?}"), shown((&file).write(text.as_bytes())));
        add(format!("poll after trigger {text:?}"), revents(&file));
        add("another trigger".into(), shown((&file).write(b"some 150000 2000000")));
        if text.starts_with('f') {
            add("text beside a trigger".into(), super::read_all(&file).unwrap());
        }
    }

    for text in ["+none", "none", " ", "\n"] {
        let written = writing(&at("cgroup.subtree_control")).write(text.as_bytes());
        add(format!("write {text:?} to cgroup.subtree_control"), shown(written));
    }
    for text in ["domain", "word", "\n"] {
        let written = writing(&at("cgroup.type")).write(text.as_bytes());
        add(format!("write {text:?} to cgroup.type"), shown(written));
    }

    for name in ["cgroup.max.descendants", "cgroup.max.depth"] {
        for text in ["10", " 7 \n", "0", "max\n", "Max", "1 2", "1K", "\n", "1"] {
            let written = writing(&at(name)).write(text.as_bytes());
            let read = fs::read_to_string(at(name)).unwrap();
            add(format!("write {text:?} to {name}"), format!("{} {read:?}", shown(written)));
        }
        add(
            "mkdir within the bounds".into(),
            shown(fs::create_dir(at("x")).and_then(|()| fs::remove_dir(at("x")))),
        );
        add(
            "mkdir beyond a bound".into(),
            shown(fs::create_dir(at("child/x")).and_then(|()| fs::create_dir(at("child/x/y")))),
        );
        add("rmdir".into(), shown(fs::remove_dir(at("child/x"))));
        fs::write(at(name), "max").unwrap();
    }

    let open = writing(&at("child/cgroup.type"));
    let pressure = writing(&at("child/memory.pressure"));
    (&pressure).write_all(b"some 150000 2000000").unwrap();
    let directory = File::open(at("child")).unwrap();
    add("links of the parent".into(), shown(fs::metadata(top).map(|found| found.nlink())));
    add("rmdir beside descriptors".into(), shown(fs::remove_dir(at("child"))));
    add("links without the child".into(), shown(fs::metadata(top).map(|found| found.nlink())));
    add("read of a removed one".into(), shown(events.read_at(&mut part, 0)));
    add("write to a removed one".into(), shown((&open).write(b"word")));
    add("truncation of a removed one".into(), shown(open.set_len(0)));
    add("links of a removed one".into(), shown(directory.metadata().map(|found| found.nlink())));
    let reopened = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open)));
    add("reopening of a removed one".into(), shown(reopened.map(drop)));
    for file in [&events, &open, &pressure] {
        add("poll of a removed one".into(), revents(file));
    }
    results
}

/// The results of texts for settings in bytes.
fn settings(top: &Path) -> Vec<(String, String)> {
    let mut results = Vec::new();
    for name in ["memory.high", "memory.low", "memory.max", "memory.min"] {
        // In whole pages, because the kernel rounds.
        for text in ["512M", "1g\n", " 8192 ", "8K", "max", "-1", "1.5G", "word", "4096 8192", "Max", "512M"]
        {
            let written = super::write(&top.join(name), text.as_bytes());
            let shown = fs::read_to_string(top.join(name)).unwrap();
            results.push((format!("write {text:?} to {name}"), format!("{written:?} {shown:?}")));
        }
    }
    for text in ["0", "1", "1\n", "2", "-1", "yes", "0"] {
        let written = super::write(&top.join("memory.oom.group"), text.as_bytes());
        let shown = fs::read_to_string(top.join("memory.oom.group")).unwrap();
        results.push((format!("write {text:?} to memory.oom.group"), format!("{written:?} {shown:?}")));
    }
    for text in ["0", "1G", "word", "-1", "1M none=1"] {
        let written = super::write(&top.join("memory.reclaim"), text.as_bytes());
        results.push((format!("write {text:?} to memory.reclaim"), format!("{written:?}")));
    }
    results
}

#[test]
fn has_the_results_of_the_kernel() {
    let Some(m) = mounted() else { return };
    let Some(cgroup) = Cgroup::new() else { return };
    fs::create_dir_all(m.path("a/child")).unwrap();
    let ours = m.path("a");
    let has_memory = cgroup.0.join("memory.max").exists();
    if !has_memory {
        println!("skipped in part: the controller of memory is not in cgroup v2 here");
    }
    let files = [&FILES[..], if has_memory { &MEMORY_FILES } else { &[] }].concat();
    let (mut expected, mut found) = (results(&cgroup.0, &files), results(&ours, &files));
    if has_memory {
        expected.extend(settings(&cgroup.0));
        found.extend(settings(&ours));
    }
    let other: Vec<_> = expected.iter().zip(&found).filter(|(expected, found)| expected != found).collect();
    assert!(other.is_empty() && expected.len() == found.len(), "the kernel's, and ours:\n{other:#?}");
    println!("{} calls have the results of the kernel", expected.len());
}
