//! Memory of many groups: while they live, after their removal, after a maintenance pass, and
//! after their hierarchy.
//!
//! `cargo run --release -p memgroup --example group_memory [GROUPS]`
//!
//! Each group has a name of 15 bytes. It was charged on two slots, added to a statistic on both,
//! and was uncharged. The figures are resident bytes of the process, and the bytes that the heap's
//! users have. Freed memory that the system's allocator keeps is resident, and no user has it.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use memgroup::{Config, Group, Hierarchy, Maintenance, SlotSource, stats};
use memgroup_percpu::pin_virtual;

const SLOTS: usize = 2;

static HEAP_BYTES: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, with a count of the bytes that its users have.
struct Counting;

// SAFETY: forwards to the system's allocator; the count is one atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // ORDERING: Relaxed; a sum.
        HEAP_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // ORDERING: Relaxed; a sum.
        HEAP_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Resident bytes, and bytes that the heap's users have.
fn taken() -> Result<[i64; 2], Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: i64 = text.split_whitespace().nth(1).ok_or("statm has a second number")?.parse()?;
    // ORDERING: Relaxed; a sum.
    Ok([pages * 4096, HEAP_BYTES.load(Ordering::Relaxed)])
}

fn use_it(hierarchy: &Hierarchy, group: &Group) -> Result<(), Box<dyn Error>> {
    for slot in 0..SLOTS {
        let _pin = pin_virtual(slot);
        drop(group.try_charge(100)?);
        hierarchy.io().add(group, stats::io::RBYTES, 1);
    }
    Ok(())
}

fn measure(groups: usize, has_limits: bool) -> Result<(), Box<dyn Error>> {
    let source = SlotSource::virtual_slots(SLOTS)?;
    let mut handles = Vec::with_capacity(groups);
    let start = taken()?;
    let print = |when: &str| -> Result<(), Box<dyn Error>> {
        let now = taken()?;
        let each = |at: usize| (now[at] - start[at]) as f64 / groups as f64;
        println!("  {when:<34} {:8.0} {:8.0}", each(0), each(1));
        Ok(())
    };
    println!(
        "{:<36} resident     heap",
        if has_limits { "groups with max, high and min" } else { "plain groups" }
    );
    let hierarchy = Hierarchy::new(Config::with_slots(source).groups_max(1 + u32::try_from(groups)?))?;
    for number in 0..groups {
        let group = hierarchy.create(&format!("/tenant-{number:08}"))?;
        use_it(&hierarchy, &group)?;
        if has_limits {
            group.set_max(1 << 30)?;
            group.set_high(1 << 29)?;
            group.set_min(1 << 10)?;
        }
        handles.push(group);
    }
    print("live")?;
    let mut slowest = std::time::Duration::ZERO;
    for group in handles.drain(..) {
        let begin = Instant::now();
        group.remove()?;
        slowest = slowest.max(begin.elapsed());
    }
    print("removed")?;
    hierarchy.maintain(Maintenance::new().all());
    print("removed, and maintained")?;
    let nodes = hierarchy.maintained().node_bytes as f64 / groups as f64;
    drop(hierarchy);
    print("after the hierarchy")?;
    println!("  nodes: {nodes:.0} bytes went back to the system; the longest removal took {slowest:.1?}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let groups = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse())?;
    println!("bytes for each of {groups} groups, on {SLOTS} slots");
    measure(groups, false)?;
    measure(groups, true)
}
