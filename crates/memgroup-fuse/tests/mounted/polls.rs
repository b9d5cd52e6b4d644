//! Polls: programs that wait for events and pressure.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use xtask::Watchdog;

use super::{mounted, number};

/// The events of a file that has not changed since it was read.
const READY: PollFlags =
    PollFlags::IN.union(PollFlags::OUT).union(PollFlags::RDNORM).union(PollFlags::WRNORM);
const CHANGED: PollFlags = READY.union(PollFlags::PRI).union(PollFlags::ERR);
const FIRED: PollFlags = READY.union(PollFlags::PRI);

fn poll_for(file: &File, events: PollFlags, timeout: Option<&Timespec>) -> PollFlags {
    let mut polled = [PollFd::new(file, events)];
    poll(&mut polled, timeout).unwrap();
    polled[0].revents()
}

pub(super) fn poll_now(file: &File) -> PollFlags {
    poll_for(file, CHANGED, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
}

/// Waits for news of a file, without end.
fn wait(file: &File) -> PollFlags {
    poll_for(file, PollFlags::PRI, None)
}

pub(super) fn read(file: &File) -> String {
    let mut text = [0; 256];
    let bytes = file.read_at(&mut text, 0).unwrap();
    String::from_utf8(text[..bytes].to_vec()).unwrap()
}

#[test]
fn tells_a_change_until_the_file_is_read_again() {
    let Some(m) = mounted() else { return };
    let (parent, child) = (m.hierarchy.create("/a").unwrap(), m.hierarchy.create("/a/b").unwrap());
    child.set_max(10).unwrap();
    let (all, local) = (
        File::open(m.path("a/memory.events")).unwrap(),
        File::open(m.path("a/memory.events.local")).unwrap(),
    );
    assert_eq!((poll_now(&all), poll_now(&local)), (CHANGED, CHANGED), "they were not read yet");
    let (first, _) = (read(&all), read(&local));
    assert_eq!((poll_now(&all), poll_now(&local)), (READY, READY));
    child.try_charge(11).unwrap_err();
    assert_eq!((poll_now(&all), poll_now(&local)), (CHANGED, READY), "an event below");
    assert_eq!(poll_now(&all), CHANGED, "a poll does not take the news away");
    assert_ne!(read(&all), first);
    assert_eq!(poll_now(&all), READY);
    parent.set_max(5).unwrap();
    child.set_max(None).unwrap();
    child.try_charge(6).unwrap_err();
    assert_eq!((poll_now(&all), poll_now(&local)), (CHANGED, CHANGED), "an event of its own");
}

#[test]
fn wakes_a_poll_that_waits_for_events() {
    let Some(m) = mounted() else { return };
    let _watchdog = Watchdog::over("a poll that waits for events");
    let groups: Vec<_> = ["/a", "/b", "/c"].map(|path| m.hierarchy.create(path).unwrap()).into();
    let files: Vec<_> =
        ["a", "b", "c"].map(|name| File::open(m.path(&format!("{name}/memory.events"))).unwrap()).into();
    for (group, file) in groups.iter().zip(&files) {
        group.set_max(10).unwrap();
        read(file);
    }
    for round in 1..=3 {
        thread::scope(|threads| {
            for file in &files {
                threads.spawn(move || {
                    assert_eq!(wait(file), PollFlags::PRI | PollFlags::ERR);
                    assert!(read(file).contains(&format!("max {round}\n")));
                });
            }
            for group in &groups {
                group.try_charge(11).unwrap_err();
            }
        });
    }
}

#[test]
fn wakes_a_poll_when_memory_is_held_and_freed() {
    let Some(m) = mounted() else { return };
    let _watchdog = Watchdog::over("a poll that waits for memory");
    let group = m.hierarchy.create("/a").unwrap();
    let file = File::open(m.path("a/cgroup.events")).unwrap();
    assert_eq!(read(&file), "populated 0\nfrozen 0\n");
    let charge = thread::scope(|threads| {
        let waiting = threads.spawn(|| wait(&file));
        let charge = group.try_charge(1).unwrap();
        waiting.join().unwrap();
        charge
    });
    assert_eq!(read(&file), "populated 1\nfrozen 0\n");
    drop(charge);
    wait(&file);
    assert_eq!(read(&file), "populated 0\nfrozen 0\n");
}

#[test]
fn wakes_a_poll_when_the_group_is_removed() {
    let Some(m) = mounted() else { return };
    let _watchdog = Watchdog::over("a poll on a group that is removed");
    for by_program in [true, false] {
        let group = m.hierarchy.create("/a").unwrap();
        let events = File::open(m.path("a/memory.events")).unwrap();
        let pressure = OpenOptions::new().read(true).write(true).open(m.path("a/memory.pressure")).unwrap();
        (&pressure).write_all(b"some 150000 1000000").unwrap();
        let mut peak = OpenOptions::new().write(true).open(m.path("a/memory.peak")).unwrap();
        peak.write_all(b"1").unwrap();
        read(&events);
        thread::scope(|threads| {
            threads.spawn(|| wait(&events));
            threads.spawn(|| wait(&pressure));
            if by_program {
                group.remove().unwrap();
            } else {
                fs::remove_dir(m.path("a")).unwrap();
            }
        });
        assert_eq!((poll_now(&events), poll_now(&pressure)), (CHANGED, CHANGED));
        // The trigger and the peak release the group.
        drop(group);
        while m.hierarchy.snapshot().groups.len() > 1 {
            thread::yield_now();
        }
    }
}

#[test]
fn fires_a_trigger_of_the_descriptor_that_wrote_it() {
    let Some(m) = mounted() else { return };
    let _watchdog = Watchdog::over("a trigger that is to fire");
    let group = m.hierarchy.create("/a").unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(m.path("a/memory.pressure")).unwrap();
    let (file, other) = (open(), open());
    assert_eq!(poll_now(&file), CHANGED, "there is no trigger");
    // With the end of a string of C, as in the kernel's own example.
    (&file).write_all(b"some 20000 500000\0").unwrap();
    assert_eq!(number((&file).write(b"some 20000 500000")), Err(Errno::BUSY));
    assert_eq!(poll_now(&file), READY);
    assert!(read(&file).starts_with("some avg10=0.00"), "it can be read beside its trigger");
    let stalled = group.stall_task();
    assert_eq!(wait(&file), PollFlags::PRI);
    drop(stalled);
    assert_eq!(poll_now(&file), READY, "the poll took the firing");
    assert_eq!(poll_now(&other), CHANGED, "another descriptor has no trigger");
    // A trigger that fires while no poll waits is reported to the next one.
    let (file, _stalled) = (open(), group.stall_task());
    (&file).write_all(b"full 1 500000").unwrap();
    while poll_now(&file) != FIRED {
        thread::yield_now();
    }
}

#[test]
fn tells_events_by_epoll() {
    use rustix::event::epoll;
    let Some(m) = mounted() else { return };
    let _watchdog = Watchdog::over("an epoll that waits for events");
    let group = m.hierarchy.create("/a").unwrap();
    group.set_max(10).unwrap();
    let file = File::open(m.path("a/memory.events")).unwrap();
    read(&file);
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&set, &file, epoll::EventData::new_u64(7), epoll::EventFlags::PRI).unwrap();
    let mut events = Vec::with_capacity(4);
    for _ in 0..3 {
        group.try_charge(11).unwrap_err();
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None).unwrap();
        assert_eq!(events.len(), 1);
        read(&file);
        events.clear();
    }
}
