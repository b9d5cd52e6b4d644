//! Single blocks of SQLite's allocator: the group that pays, and the state after a refusal.

use crate::support::{Block, tenant, tenant_with_max};
use memgroup::scope;

#[test]
fn charges_the_rounded_size_and_a_header() {
    let group = tenant("cost");
    let _scope = scope::enter(&group);
    for (asked, size) in [(1, 8), (8, 8), (100, 104), (4360, 4360), (1 << 20, 1 << 20)] {
        let block = Block::new(asked);
        assert_eq!(block.address() % 8, 0);
        assert_eq!(block.size(), size);
        assert_eq!(group.usage_exact(), size + 8, "{asked} bytes asked");
        drop(block);
        assert_eq!(group.usage_exact(), 0);
    }
}

#[test]
fn charges_the_owner_when_another_thread_resizes() {
    let (owner, other) = (tenant("owner"), tenant("other"));
    let mut block = {
        let _scope = scope::enter(&owner);
        Block::new(64)
    };
    block.bytes().fill(7);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _scope = scope::enter(&other);
            let mut block = block;
            assert!(block.resize(100_000));
            assert_eq!(&block.bytes()[..64], [7; 64]);
            assert_eq!((owner.usage_exact(), other.usage_exact()), (100_008, 0));
            assert!(block.resize(32));
            assert_eq!((owner.usage_exact(), other.usage_exact()), (40, 0));
            drop(block);
            assert_eq!((owner.usage_exact(), other.usage_exact()), (0, 0));
        });
    });
}

#[test]
fn keeps_the_block_when_a_resize_is_refused() {
    let owner = tenant_with_max("full", 4096);
    let mut block = {
        let _scope = scope::enter(&owner);
        Block::new(4000)
    };
    block.bytes().fill(9);
    assert!(!block.resize(4096), "4104 bytes fit in 4096");
    assert_eq!((block.size(), owner.usage_exact(), owner.refusals()), (4000, 4008, 1));
    assert!(block.bytes().iter().all(|byte| *byte == 9));
    assert!(block.resize(4088), "4096 bytes do not fit in 4096");
    assert_eq!(owner.usage_exact(), 4096);
    assert!(block.resize(8));
    assert_eq!(owner.usage_exact(), 16);
}

#[test]
fn returns_null_and_charges_nothing_when_refused() {
    let owner = tenant_with_max("tight", 1000);
    let _scope = scope::enter(&owner);
    assert!(Block::new(993).is_null());
    assert_eq!((owner.usage_exact(), owner.refusals()), (0, 1));
    assert!(!Block::new(992).is_null(), "1000 bytes do not fit in 1000");
}

#[test]
fn credits_a_removed_group_but_charges_it_no_more() {
    let owner = tenant("removed block");
    let mut block = {
        let _scope = scope::enter(&owner);
        Block::new(1000)
    };
    owner.remove().expect("no children");
    assert!(!block.resize(2000), "a removed group was charged");
    assert!(block.resize(504), "a removed group must take bytes back");
    assert_eq!(owner.usage_exact(), 512);
    {
        let _scope = scope::enter(&owner);
        assert!(Block::new(8).is_null(), "a removed group was charged");
    }
    drop(block);
    assert_eq!(owner.usage_exact(), 0);
}

#[test]
fn loses_no_byte_of_blocks_passed_between_threads() {
    let groups: Vec<_> = (0..4).map(|index| tenant(&format!("crowd{index}"))).collect();
    std::thread::scope(|threads| {
        let mut send = Vec::new();
        let mut receive = Vec::new();
        for _ in &groups {
            let (sender, receiver) = std::sync::mpsc::channel::<Block>();
            send.push(sender);
            receive.push(receiver);
        }
        for (index, receiver) in receive.into_iter().enumerate() {
            let group = &groups[index];
            let next = send[(index + 1) % groups.len()].clone();
            threads.spawn(move || {
                let _scope = scope::enter(group);
                for round in 0..2_000_u64 {
                    let mut block = Block::new(1 + round % 700);
                    assert!(block.resize(1 + (round * 31) % 5_000));
                    next.send(block).expect("the next thread lives");
                    while let Ok(mut block) = receiver.try_recv() {
                        assert!(block.resize(1 + (round * 17) % 3_000));
                    }
                }
                drop(next);
                for block in receiver {
                    drop(block);
                }
            });
        }
        drop(send);
    });
    for group in &groups {
        assert_eq!(group.usage_exact(), 0, "{}", group.path());
    }
}
