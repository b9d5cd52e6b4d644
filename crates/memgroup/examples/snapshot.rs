//! The time of a snapshot: `cargo run --release -p memgroup --example snapshot -- 10000`.
//!
//! It makes a tree of as many groups as are asked for. All of them are charged and counted for
//! since the last snapshot; then the same with nothing changed.

use std::time::Duration;

use memgroup::{Config, Hierarchy, stats};

const ROUNDS: usize = 21;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let groups: usize = std::env::args().nth(1).map_or(Ok(10_000), |text| text.parse())?;
    let hierarchy = Hierarchy::new(Config::new().groups_max(u32::try_from(groups + 1)?))?;
    let io = hierarchy.io();
    let mut all = vec![hierarchy.root()];
    // Up to a hundred children each.
    while all.len() <= groups {
        let parent = &all[(all.len() - 1) / 100];
        all.push(parent.create(&format!("group-{}", all.len()))?);
    }
    let charges: Vec<_> = all.iter().map(|group| group.try_charge(4096)).collect::<Result<_, _>>()?;
    let median = |change: bool| {
        let mut times: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                if change {
                    all.iter().for_each(|group| io.add(group, stats::io::RIOS, 1));
                }
                hierarchy.snapshot().took
            })
            .collect();
        times.sort_unstable();
        times[ROUNDS / 2]
    };
    println!(
        "{groups} groups: {:?} with statistics of all changed, {:?} with none",
        median(true),
        median(false)
    );
    drop(charges);
    Ok(())
}
