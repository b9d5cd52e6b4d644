//! Cost of a group for a request: its creation, and its removal by the drop of its owner.
//!
//! `cargo run --release -p memgroup --example request_groups` prints both for 100,000 groups of
//! each kind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memgroup::{Config, Group, Hierarchy, OwnedGroup};

const GROUPS: usize = 100_000;

/// The times of one kind of call.
struct Times(Vec<Duration>);

impl Times {
    fn new() -> Times {
        Times(Vec::with_capacity(GROUPS))
    }

    fn add<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let value = call();
        self.0.push(began.elapsed());
        value
    }

    fn print(mut self, what: &str) {
        self.0.sort();
        let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize].as_nanos() as f64 / 1e3;
        println!("{what:<52} {:8.2} {:8.2} {:8.2} {:8.2}", at(0.5), at(0.99), at(0.999), at(1.0));
    }
}

/// Makes and removes all groups, so many at a time: the creations, and the removals.
fn run<T>(at_a_time: usize, mut create: impl FnMut(usize) -> T, mut remove: impl FnMut(T)) -> (Times, Times) {
    let (mut creations, mut removals) = (Times::new(), Times::new());
    let mut live = Vec::with_capacity(at_a_time);
    for number in 0..GROUPS {
        live.push(creations.add(|| create(number)));
        if live.len() == at_a_time {
            live.drain(..).for_each(|group| removals.add(|| remove(group)));
        }
    }
    live.drain(..).for_each(|group| removals.add(|| remove(group)));
    (creations, removals)
}

fn use_it(group: &Group) {
    drop(group.try_charge(4096).expect("there is no limit"));
}

fn main() {
    let hierarchy = Hierarchy::new(Config::new()).expect("the defaults are valid");
    let tenant = hierarchy.create("/tenant").expect("it is the first");
    let name = |number: usize| format!("request-{number}");
    let owned = |number| {
        let group = tenant.create_owned(&name(number)).expect("the name is free");
        use_it(&group);
        group
    };
    println!("{:<52} {:>8} {:>8} {:>8} {:>8}", "us, of 100,000 calls", "p50", "p99", "p99.9", "most");
    for at_a_time in [1, 64, 10_000] {
        let plain = |number| {
            let group = tenant.create(&name(number)).expect("the name is free");
            use_it(&group);
            group
        };
        let (made, removed) = run(at_a_time, plain, |group: Group| group.remove().expect("it is empty"));
        made.print(&format!("{at_a_time} at a time: create and charge"));
        removed.print(&format!("{at_a_time} at a time: remove"));
        let (made, dropped) = run(at_a_time, owned, drop::<OwnedGroup>);
        made.print(&format!("{at_a_time} at a time: create_owned and charge"));
        dropped.print(&format!("{at_a_time} at a time: drop of the owner"));
        let told = |number| {
            let group = owned(number);
            group.on_end(|ended| _ = std::hint::black_box(ended)).expect("it is online");
            group
        };
        run(at_a_time, told, drop::<OwnedGroup>)
            .1
            .print(&format!("{at_a_time} at a time: the same, with on_end"));
    }
    let with_child = |number| {
        let group = owned(number);
        use_it(&group.create("sort").expect("it is the first"));
        group
    };
    run(64, with_child, drop::<OwnedGroup>).1.print("64 at a time: drop of the owner, with a child");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let other = hierarchy.create("/other").expect("the name is free");
            while !is_over.load(Ordering::Relaxed) {
                use_it(&other.create_owned("request").expect("the name is free"));
            }
        });
        run(64, owned, drop::<OwnedGroup>).1.print("64 at a time, beside a thread that does the same");
        is_over.store(true, Ordering::Relaxed);
    });
    let group = tenant.create_owned("weak").expect("the name is free");
    let (weak, mut upgrades) = (group.downgrade(), Times::new());
    (0..GROUPS).for_each(|_| drop(upgrades.add(|| weak.upgrade())));
    upgrades.print("upgrade of a weak handle");
}
