//! The system takes something away from a process that works, and gives it back: threads, address
//! space, `membarrier`. The program goes on, and says what happened. Each test is a process of its
//! own.
//!
//! Requests of the engine that fail by their number are swept by `sweep/resources.rs`; a barrier
//! that is lost beside sections under way, by memgroup-sync's `grace_barrier_lost` and
//! `hazard_barrier_lost`; a process without an rseq area, by memgroup-percpu's `override`.
#![cfg(all(target_os = "linux", not(any(miri, memgroup_loom, memgroup_emulated))))]
#![allow(unsafe_code)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memgroup::{
    Ask, Config, Count, Group, GroupError, Hierarchy, KillAnswer, KillRequest, Maintenance, Scan, Shrinker,
    ShrinkerConfig, SlotSource, stats::cpu,
};
use memgroup_sync::grace;

/// Runs `test` in a process of its own, whose allocator keeps some free memory: the heap itself
/// must not run out.
fn in_its_own_process(name: &str, test: impl FnOnce()) {
    const MARK: &str = "MEMGROUP_TEST_LACK";
    if std::env::var_os(MARK).is_some() {
        let _watchdog = xtask::Watchdog::over("a process that lacks something");
        return test();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .envs([(MARK, "1"), ("MALLOC_ARENA_MAX", "1"), ("MALLOC_TOP_PAD_", "268435456")])
        .envs([("MALLOC_MMAP_THRESHOLD_", "1073741824"), ("MALLOC_TRIM_THRESHOLD_", "1073741824")])
        .env_remove("MEMGROUP_SLOTS")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// Has system calls answer `error` to this thread, and to those that it starts.
fn forbid(calls: [libc::c_long; 2], error: i32) {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, jump) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let mut program = [
        statement(load, 0, 0, 0),
        statement(jump, calls[0] as u32, 1, 0),
        statement(jump, calls[1] as u32, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | error as u32, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the filter and its program live until the call returns.
    let answer = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

/// Changes the bound on the process's address space, and returns the one before.
fn bound_address_space(bytes: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the call.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) }, 0);
    let before = std::mem::replace(&mut limit.rlim_cur, bytes.min(limit.rlim_max));
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    before
}

fn address_space_in_use() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 4096
}

fn hierarchy() -> Hierarchy {
    Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(4).unwrap())).unwrap()
}

struct Nothing;

impl Shrinker for Nothing {
    fn count(&self, _: u64) -> Count {
        Count::Empty
    }

    fn scan(&self, _: &Ask<'_>) -> Scan {
        Scan::Freed { bytes: 0 }
    }
}

/// Everything that a group does, in its life and at its end.
fn lives(hierarchy: &Hierarchy, name: &str) {
    let group = hierarchy.create(name).unwrap();
    group.set_max(1 << 20).unwrap();
    let charge = group.try_charge(4096).unwrap();
    hierarchy.io().add(&group, memgroup::stats::io::RBYTES, 7);
    let shrinker = group.add_shrinker(ShrinkerConfig::new("nothing"), Nothing).unwrap();
    shrinker.mark();
    let hook = group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Idle { freed: 0 }).unwrap();
    assert!(group.try_charge(2 << 20).is_err());
    assert!(group.charge_until(1 << 20, Duration::from_millis(1)).is_err());
    assert_eq!(group.usage_exact(), 4096);
    shrinker.remove().unwrap();
    hook.remove().unwrap();
    group.remove().unwrap();
    drop(charge);
    drop(group);
    hierarchy.maintain(Maintenance::new().all().expedited());
    assert_eq!((hierarchy.root().usage_exact(), hierarchy.snapshot().groups.len()), (0, 1));
}

#[test]
fn a_process_without_another_thread_chooses_a_slot_source_and_says_why() {
    in_its_own_process("a_process_without_another_thread_chooses_a_slot_source_and_says_why", || {
        let (asks, asked) = std::sync::mpsc::channel::<()>();
        // A thread from before the filter can start others again.
        let free = std::thread::spawn(move || {
            asked.recv().unwrap();
            std::thread::spawn(|| lives(&Hierarchy::new(Config::new()).unwrap(), "/again")).join().unwrap();
        });
        // The watchdog has its thread already.
        forbid([libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
        std::thread::Builder::new().spawn(|| ()).expect_err("this thread can start no other");
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let report = SlotSource::report().to_string();
        // Where the kernel has no mm_cid, no thread is needed.
        let says_why = report.contains("no helper thread for its self-test could be started");
        assert!(says_why || report.contains("the kernel fills") || report.contains("rseq area"), "{report}");
        assert!(!report.starts_with("mm_cid"), "{report}");
        lives(&hierarchy, "/without");
        asks.send(()).unwrap();
        free.join().unwrap();
        lives(&hierarchy, "/after");
    });
}

#[test]
fn a_process_without_address_space_refuses_groups_and_charges_on() {
    in_its_own_process("a_process_without_address_space_refuses_groups_and_charges_on", || {
        let hierarchy = hierarchy();
        let first = hierarchy.create("/first").unwrap();
        let mut held = vec![first.try_charge(4096).unwrap()];
        let before = bound_address_space(address_space_in_use());
        let mut made: Vec<Group> = Vec::new();
        let error = loop {
            match hierarchy.create(&format!("/{}", made.len())) {
                Ok(group) => {
                    held.push(group.try_charge(100).unwrap());
                    made.push(group);
                }
                Err(error) => break error,
            }
        };
        let path = format!("/{}", made.len());
        assert!(matches!(&error, GroupError::OutOfMemory { path: at, .. } if *at == path), "{error}");
        assert!(error.to_string().ends_with("remove groups, or raise the process's limit"), "{error}");
        // Another hierarchy is refused, too, and the error says what to raise.
        let other = Config::with_slots(SlotSource::virtual_slots(37).unwrap());
        let refused = Hierarchy::new(other).unwrap_err().to_string();
        assert!(refused.contains("RLIMIT_AS"), "{refused}");
        // All groups that there are go on, and their end makes room.
        held.push(first.try_charge(4096).unwrap());
        let charged = 2 * 4096 + 100 * made.len() as u64;
        assert_eq!(hierarchy.root().usage_exact(), charged);
        made.pop().unwrap().remove().unwrap();
        assert_eq!(hierarchy.root().usage_exact(), charged, "the bytes of a removed group are counted");

        bound_address_space(before);
        made.push(hierarchy.create(&path).unwrap());
        Hierarchy::new(other).unwrap();
        held.clear();
        made.iter().for_each(|group| group.remove().unwrap());
        drop(made);
        first.remove().unwrap();
        drop(first);
        assert_eq!((hierarchy.root().usage_exact(), hierarchy.snapshot().groups.len()), (0, 1));
        lives(&hierarchy, "/after");
    });
}

#[test]
fn a_process_that_loses_membarrier_goes_on_and_says_so() {
    in_its_own_process("a_process_that_loses_membarrier_goes_on_and_says_so", || {
        let hierarchy = hierarchy();
        lives(&hierarchy, "/before");
        // Threads that were in sections before, and work now and then. One that never enters a
        // section again holds grace periods up.
        let is_over = Arc::new(AtomicBool::new(false));
        let others: Vec<_> = (0..2)
            .map(|number| {
                let (hierarchy, is_over) = (hierarchy.clone(), Arc::clone(&is_over));
                std::thread::spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let group = hierarchy.create(&format!("/other-{number}")).unwrap();
                        drop(group.try_charge(100).unwrap());
                        group.remove().unwrap();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                })
            })
            .collect();
        if !grace::report().enters_by_store() {
            println!("skipped: there is no barrier to lose: {}", grace::report());
        }
        forbid([libc::SYS_membarrier, libc::SYS_membarrier], libc::EPERM);
        for _ in 0..3 {
            let group = hierarchy.create("/meanwhile").unwrap();
            let shrinker = group.add_shrinker(ShrinkerConfig::new("nothing"), Nothing).unwrap();
            let hook = group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Idle { freed: 0 }).unwrap();
            let charge = group.try_charge(4096).unwrap();
            // A record, which waits for a grace period when the group is gone.
            hierarchy.cpu().add(&group, cpu::NR_SCOPES, 1);
            shrinker.remove().unwrap();
            hook.remove().unwrap();
            group.remove().unwrap();
            assert_eq!(group.usage_exact(), 4096);
            drop(charge);
            hierarchy.maintain(Maintenance::new().all().expedited());
        }
        is_over.store(true, Ordering::Relaxed);
        others.into_iter().for_each(|thread| thread.join().unwrap());
        let report = grace::report();
        assert!(!report.enters_by_store() || report.barrier_lost(), "{report}");
        lives(&hierarchy, "/after");
    });
}
