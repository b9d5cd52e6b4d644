//! Texts that are read and written.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use memgroup::{Stat, Subsystem};
use rustix::io::Errno;

use super::{mounted, number, read_all};

#[test]
fn shows_each_file_as_the_engine_does() {
    let Some(m) = mounted() else { return };
    let group = m.hierarchy.create("/alice").unwrap();
    group.set_max(1 << 20).unwrap();
    let _held = group.try_charge(600_000).unwrap();
    group.try_charge(600_000).unwrap_err();
    for file in m.hierarchy.files() {
        let name = format!("alice/{}", file.name);
        match group.read_file(&file.name) {
            Some(text) => assert_eq!(m.read(&name), text, "{name}"),
            None => assert_eq!(number(fs::read(m.path(&name))), Err(Errno::INVAL), "{name}"),
        }
    }
    assert_eq!(m.read("alice/memory.current"), "600000\n");
    assert_eq!(m.read("alice/cgroup.procs"), "");
    assert!(m.read("memory.events").contains("max 1\n"));
}

#[test]
fn takes_the_texts_that_the_engine_takes() {
    let Some(m) = mounted() else { return };
    let group = m.hierarchy.create("/alice").unwrap();
    for (file, text, shown) in [
        ("memory.max", "512M\n", "536870912\n"),
        ("memory.max", "max", "max\n"),
        ("memory.high", " 4096 ", "4096\n"),
        ("memory.low", "4k\0ignored", "4096\n"),
        ("memory.min", "max", "max\n"),
        ("memory.oom.group", "1", "1\n"),
        ("memory.share", "8", "8\n"),
        ("memgroup.weight", "10000", "10000\n"),
        ("memgroup.enforced", "0", "0\n"),
        ("cgroup.max.descendants", "100", "100\n"),
        ("cgroup.max.depth", "max\n", "max\n"),
        ("cgroup.subtree_control", "+memory", "memory cpu io\n"),
    ] {
        let name = format!("alice/{file}");
        m.write(&name, text).unwrap();
        assert_eq!(m.read(&name), shown, "{text:?} to {file}");
    }
    assert_eq!((group.high(), group.low(), group.share()), (Some(4096), 4096, Some(8)));
}

#[test]
fn refuses_texts_with_the_numbers_of_the_kernel() {
    let Some(m) = mounted() else { return };
    m.hierarchy.create("/a").unwrap().set_max(4096).unwrap();
    let long = "1".repeat(4097);
    for (file, text, errno) in [
        ("memory.max", "lots", Errno::INVAL),
        ("memory.max", "-1", Errno::INVAL),
        ("memory.max", &long, Errno::TOOBIG),
        ("memory.oom.group", "2", Errno::INVAL),
        ("memory.current", "0", Errno::INVAL),
        ("memory.events", "0", Errno::INVAL),
        ("memory.reclaim", "1M", Errno::AGAIN),
        ("memory.reclaim", "1M swappiness=60", Errno::INVAL),
        ("memory.pressure", "some 150000", Errno::INVAL),
        ("memory.pressure", "some 150000 100000", Errno::INVAL),
        ("cgroup.max.depth", "-1", Errno::INVAL),
        ("cgroup.procs", "1", Errno::OPNOTSUPP),
        ("cgroup.threads", "1", Errno::OPNOTSUPP),
        ("cgroup.type", "threaded", Errno::OPNOTSUPP),
        ("cgroup.subtree_control", "-memory", Errno::OPNOTSUPP),
        ("cgroup.subtree_control", "+pids", Errno::INVAL),
    ] {
        assert_eq!(m.write(&format!("a/{file}"), text), Err(errno), "{text:?} to {file}");
    }
    let file = OpenOptions::new().write(true).open(m.path("a/memory.max")).unwrap();
    assert_eq!(number((&file).write(b"40\xff")), Err(Errno::INVAL));
    assert_eq!(number((&file).write(&vec![b' '; 100_000])), Err(Errno::TOOBIG));
    assert_eq!(m.hierarchy.lookup("/a").unwrap().max(), Some(4096));
}

#[test]
fn ignores_where_and_how_a_file_is_opened_for_writing() {
    let Some(m) = mounted() else { return };
    let group = m.hierarchy.create("/a").unwrap();
    let said = m.sh(
        "echo 1M > a/memory.max && echo 2M >> a/memory.max && truncate -s 0 a/memory.max && truncate -s 100 a/memory.max \
         && cat a/memory.max && stat -c %s a/memory.max",
    );
    assert_eq!(said, "2097152\n0\n");
    let file = OpenOptions::new().write(true).open(m.path("a/memory.max")).unwrap();
    file.write_at(b"4096", 1000).unwrap();
    assert_eq!(group.max(), Some(4096));
    file.set_len(0).unwrap();
    file.sync_all().unwrap();
    assert_eq!((group.max(), file.metadata().unwrap().len()), (Some(4096), 0));
}

#[test]
fn shows_one_text_to_the_reads_of_a_descriptor_until_it_begins_anew() {
    let Some(m) = mounted() else { return };
    let group = m.hierarchy.create("/a").unwrap();
    group.set_max(111_111).unwrap();
    let mut file = File::open(m.path("a/memory.max")).unwrap();
    let mut part = [0; 3];
    file.read_exact(&mut part).unwrap();
    group.set_max(222_222_222).unwrap();
    assert_eq!(read_all(&file).unwrap(), "111\n", "the rest of the text that was begun");
    file.seek(SeekFrom::Start(0)).unwrap();
    assert_eq!(read_all(&file).unwrap(), "222222222\n");
    group.set_max(None).unwrap();
    let mut all = [0; 16];
    assert_eq!(file.read_at(&mut all, 4).unwrap(), 6);
    assert_eq!(file.read_at(&mut all, 0).unwrap(), 4);
    assert_eq!(&all[..4], b"max\n");
    assert_eq!(file.read_at(&mut all, 100).unwrap(), 0);
    let other = File::open(m.path("a/memory.max")).unwrap();
    assert_eq!(other.read_at(&mut all, 1).unwrap(), 3, "a first read need not be at the beginning");
}

#[test]
fn keeps_no_old_value() {
    let Some(m) = mounted() else { return };
    let group = m.hierarchy.create("/a").unwrap();
    let file = File::open(m.path("a/memory.current")).unwrap();
    let mut held = Vec::new();
    for number in 0..200_u64 {
        let expected = format!("{}\n", number * 1000);
        assert_eq!(m.read("a/memory.current"), expected);
        let mut text = [0; 32];
        let bytes = file.read_at(&mut text, 0).unwrap();
        assert_eq!(&text[..bytes], expected.as_bytes());
        held.push(group.try_charge(1000).unwrap());
    }
}

#[test]
fn begins_a_peak_anew_for_one_descriptor() {
    let Some(m) = mounted() else { return };
    let group = m.hierarchy.create("/a").unwrap();
    drop(group.try_charge(500).unwrap());
    let open = || OpenOptions::new().read(true).write(true).open(m.path("a/memory.peak")).unwrap();
    let (daily, hourly) = (open(), open());
    let peak = |file: &File| {
        let mut text = [0; 32];
        let bytes = file.read_at(&mut text, 0).unwrap();
        String::from_utf8(text[..bytes].to_vec()).unwrap()
    };
    assert_eq!((peak(&daily), peak(&hourly)), ("500\n".into(), "500\n".into()));
    (&daily).write_all(b"reset\n").unwrap();
    drop(group.try_charge(100).unwrap());
    (&hourly).write_all(b"any text").unwrap();
    drop(group.try_charge(20).unwrap());
    assert_eq!((peak(&daily), peak(&hourly)), ("100\n".into(), "20\n".into()));
    assert_eq!((m.read("a/memory.peak"), group.peak()), ("500\n".into(), 500));
}

#[test]
fn shows_the_file_of_a_subsystem_that_is_registered_while_it_is_mounted() {
    const CACHE: Subsystem = Subsystem { name: "late", stats: &[Stat::count("hits")] };
    let Some(m) = mounted() else { return };
    let group = m.hierarchy.create("/a").unwrap();
    assert_eq!(number(fs::read(m.path("a/late.stat"))), Err(Errno::NOENT));
    let late = m.hierarchy.register(CACHE).unwrap();
    late.add(&group, CACHE.key("hits"), 3);
    assert_eq!(m.read("a/late.stat"), "hits 3\n");
    assert_eq!(m.sh("ls a | grep late; cat cgroup.controllers"), "late.stat\nmemory cpu io late\n");
}
