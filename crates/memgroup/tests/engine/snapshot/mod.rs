//! Snapshots: a tree as one value, its files byte for byte, writes to them, and all of it while
//! groups come and go.

mod files;
#[cfg(feature = "serde")]
mod json;
mod load;
mod tree;
mod write;

use std::sync::{Arc, Mutex};

use memgroup::{
    Ask, Charge, Config, Count, Group, GroupShrinker, Hierarchy, Scan, Shrinker, ShrinkerConfig, SlotSource,
    Snapshot,
};

fn hierarchy() -> Hierarchy {
    hierarchy_of(|config| config)
}

fn hierarchy_of(set: impl FnOnce(Config) -> Config) -> Hierarchy {
    Hierarchy::new(set(Config::with_slots(SlotSource::virtual_slots(4).unwrap()))).unwrap()
}

fn paths(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.groups.iter().map(|group| group.path.as_str()).collect()
}

/// A cache of charges, one of which it gives back at a time.
struct Cache(Arc<Mutex<Vec<Charge>>>);

impl Shrinker for Cache {
    fn count(&self, _token: u64) -> Count {
        let held = self.0.lock().unwrap();
        Count::of(held.iter().map(Charge::bytes).sum(), held.len() as u64)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        match self.0.lock().unwrap().pop() {
            Some(charge) => Scan::Freed { bytes: charge.bytes() },
            None => Scan::Stopped { bytes: 0 },
        }
    }
}

/// A cache of `group` with so many charges of so many bytes each.
fn cache(group: &Group, charges: usize, bytes: u64) -> GroupShrinker {
    let held = (0..charges).map(|_| group.try_charge(bytes).unwrap()).collect();
    let cache = Cache(Arc::new(Mutex::new(held)));
    let registered = group.add_shrinker(ShrinkerConfig::new("plans"), cache).unwrap();
    registered.mark();
    registered
}
