//! Sources that follow the CPU, on threads that are forced from one CPU to the next.

#![allow(unsafe_code)]
#![cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]

use memgroup_percpu::SlotSource;

/// The CPUs this thread may run on.
fn allowed() -> Vec<usize> {
    // SAFETY: a CPU set is an array of words, for which zero bytes are a value.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the call writes at most the size it is told into `set`.
    let answer = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    assert_eq!(answer, 0);
    // SAFETY: the index is below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Moves this thread to `cpu`.
fn move_to(cpu: usize) {
    // SAFETY: a CPU set is an array of words, for which zero bytes are a value.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the index is one that `allowed` found, below the set's size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the call reads `set`, which lives, at its own size.
    let answer = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    assert_eq!(answer, 0, "CPU {cpu} is allowed");
}

#[test]
fn a_thread_that_is_moved_is_on_the_new_cpu_s_slot_at_once() {
    for spec in ["cpu_id", "getcpu"] {
        let Ok(source) = spec.parse::<SlotSource>() else { continue };
        std::thread::spawn(move || {
            let cpus = allowed();
            for round in 0..200 {
                let cpu = cpus[round % cpus.len()];
                move_to(cpu);
                assert_eq!(source.current(), cpu % source.slots(), "{source:?}");
            }
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_moved_thread_s_concurrency_id_stays_in_range() {
    let Ok(source) = SlotSource::mm_cid() else { return };
    std::thread::scope(|scope| {
        for first in 0..4 {
            scope.spawn(move || {
                let cpus = allowed();
                for round in 0..200 {
                    move_to(cpus[(first + round) % cpus.len()]);
                    assert!(source.current() < source.slots());
                }
            });
        }
    });
}
