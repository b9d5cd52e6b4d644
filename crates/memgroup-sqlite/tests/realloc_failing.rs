//! The system refuses to enlarge a block that the group has been charged for. This test limits the
//! memory of its process.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

mod support;

use memgroup::scope;
use support::{Block, tenant};

/// Lets the process map 16 MiB more than it has mapped, until this is dropped.
struct LittleMemory(libc::rlimit);

impl LittleMemory {
    fn new() -> LittleMemory {
        let sizes = std::fs::read_to_string("/proc/self/statm").expect("a file of Linux");
        let pages: u64 = sizes.split(' ').next().and_then(|pages| pages.parse().ok()).expect("mapped pages");
        // SAFETY: no precondition.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `before` is a `rlimit` to be written.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) }, 0);
        set(libc::rlimit { rlim_cur: pages * page_bytes + (16 << 20), ..before });
        LittleMemory(before)
    }
}

impl Drop for LittleMemory {
    fn drop(&mut self) {
        set(self.0);
    }
}

fn set(limit: libc::rlimit) {
    // SAFETY: `limit` is a `rlimit` to be read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

#[test]
fn keeps_block_and_charge_when_the_system_has_no_memory() {
    let owner = tenant("owner");
    let mut block = {
        let _scope = scope::enter(&owner);
        Block::new(4000)
    };
    block.bytes().fill(9);
    for _ in 0..3 {
        let limited = LittleMemory::new();
        let is_resized = block.resize(1 << 30);
        drop(limited);
        assert!(!is_resized, "a gibibyte without memory");
        assert_eq!((block.size(), owner.usage_exact(), owner.refusals()), (4000, 4008, 0));
        assert!(block.bytes().iter().all(|byte| *byte == 9));
    }
    assert!(block.resize(1 << 30), "the system has memory again");
    assert_eq!(owner.usage_exact(), (1 << 30) + 8);
    assert!(block.resize(8));
    assert_eq!(owner.usage_exact(), 16);
    drop(block);
    assert_eq!(owner.usage_exact(), 0);
}
