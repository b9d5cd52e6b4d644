//! Prints the time to compute the protection of 10,000 groups, in microseconds.
//!
//! ```text
//! cargo run --release -p memgroup --example protection_cost
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use memgroup::{Charge, Config, Group, GroupError, Hierarchy};

const PARENTS: u64 = 100;
const CHILDREN: u64 = 100;
const TIMES: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hierarchy = Hierarchy::new(Config::new())?;
    let tenants = hierarchy.create("/tenants")?;
    let parents: Vec<Group> =
        (0..PARENTS).map(|number| tenants.create(&number.to_string())).collect::<Result<_, GroupError>>()?;
    let (mut groups, mut held): (Vec<Group>, Vec<Charge>) = (parents.clone(), Vec::new());
    for (number, parent) in (1..).zip(&parents) {
        parent.set_min(number << 16)?;
        for child in 0..CHILDREN {
            let group = parent.create(&child.to_string())?;
            held.push(group.try_charge((child + 1) << 12)?);
            group.set_min(number << 10)?;
            group.set_low((child + 1) << 11)?;
            groups.push(group);
        }
    }
    let one_pass = measure(|| black_box(tenants.protections()).len());
    let each = measure(|| {
        for group in &groups {
            black_box(group.protection_within(&tenants));
        }
        groups.len()
    });
    println!("{} groups, in microseconds: the median and the worst of {TIMES} times", groups.len());
    println!("  one pass from the top   {:>8} {:>8}", one_pass.0.as_micros(), one_pass.1.as_micros());
    println!("  each group for itself   {:>8} {:>8}", each.0.as_micros(), each.1.as_micros());
    Ok(())
}

/// The median and the worst time.
fn measure(compute: impl Fn() -> usize) -> (Duration, Duration) {
    let once = || {
        let began = Instant::now();
        assert_eq!(compute() as u64, PARENTS * (CHILDREN + 1));
        began.elapsed()
    };
    let mut times: Vec<Duration> = (0..TIMES).map(|_| once()).collect();
    times.sort_unstable();
    (times[TIMES / 2], times[TIMES - 1])
}
