//! The caches that give way when memory is short, and what asking them came to.
//!
//! Each page cache of SQLite's is a shrinker of its tenant's group, as long as its connection is open; those that a
//! statement makes for itself are gone when it ends, and what was taken from them is in the group's statistics alone.

use std::time::Duration;

use memgroup::{Count, Hierarchy, ShrinkerReport};
use serde::{Deserialize, Serialize};

/// One shrinker. Bytes are bytes, times nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shrinker {
    pub(crate) name: String,
    /// The group whose memory it holds.
    pub(crate) group: String,
    /// Bytes that it could give back now; none where it does not know.
    pub(crate) holds: Option<u64>,
    /// Times that it was made to give back.
    pub(crate) scans: u64,
    /// Bytes that it was asked for.
    pub(crate) asked: u64,
    /// Bytes that it said it gave back.
    pub(crate) claimed: u64,
    /// Bytes that were uncharged meanwhile.
    pub(crate) freed: u64,
    /// Those of the last time.
    pub(crate) last_freed: u64,
    /// Time in its calls.
    pub(crate) time_ns: u64,
    /// Times that it could not go on.
    pub(crate) stopped: u64,
    pub(crate) panics: u64,
    /// Times that it took longer than its patience.
    pub(crate) overruns: u64,
    /// Why it is not asked any more, if it is not.
    pub(crate) quarantine: Option<String>,
}

impl Shrinker {
    /// All that `hierarchy` has, each in the group where it has its seat.
    pub(crate) fn all(hierarchy: &Hierarchy) -> Vec<Shrinker> {
        let mut all = Vec::new();
        for report in hierarchy.shrinkers() {
            // Gone since it was listed, it has no groups any more.
            for (group, count) in hierarchy.shrinker_counts(report.id).unwrap_or_default() {
                all.push(Shrinker::of(&report, group.path(), count));
            }
        }
        all
    }

    fn of(report: &ShrinkerReport, group: String, count: Count) -> Shrinker {
        Shrinker {
            name: report.name.clone(),
            group,
            holds: match count {
                Count::Holds { bytes, .. } => Some(bytes),
                Count::Empty => Some(0),
                _ => None,
            },
            scans: report.scans,
            asked: report.asked_bytes,
            claimed: report.claimed_bytes,
            freed: report.freed_bytes,
            last_freed: report.last_freed_bytes,
            time_ns: nanoseconds(report.time),
            stopped: report.stopped,
            panics: report.panics,
            overruns: report.overruns,
            quarantine: report.quarantine.map(|why| why.to_string()),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use memgroup::{Ask, Charge, Config, Count, Hierarchy, Scan, ShrinkerConfig};

    use super::Shrinker;

    /// A cache that gives back all it has.
    struct Cache(Mutex<Option<Charge>>);

    impl memgroup::Shrinker for Cache {
        fn count(&self, _token: u64) -> Count {
            let held = self.0.lock().expect("nobody panics");
            Count::of(held.as_ref().map_or(0, Charge::bytes), 1)
        }

        fn scan(&self, _ask: &Ask<'_>) -> Scan {
            let held = self.0.lock().expect("nobody panics").take();
            Scan::Freed { bytes: held.map_or(0, |charge| charge.bytes()) }
        }
    }

    #[test]
    fn a_cache_stands_with_its_group_and_what_it_was_asked_for_and_gave() {
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let [full, empty] = ["/full", "/empty"].map(|path| hierarchy.create(path).expect("a group"));
        full.set_max(1 << 20).expect("nothing is charged");
        let held = full.try_charge(1 << 20).expect("there is room");
        let cache = Arc::new(Cache(Mutex::new(Some(held))));
        let registered =
            full.add_shrinker(ShrinkerConfig::new("a cache"), Arc::clone(&cache)).expect("it is registered");
        registered.mark();
        let bystander = empty
            .add_shrinker(ShrinkerConfig::new("another"), Arc::new(Cache(Mutex::new(None))))
            .expect("it is registered");
        let charge = full.try_charge(100).expect("the cache gives way");

        let [first, second] = &Shrinker::all(&hierarchy)[..] else { panic!("two") };
        assert_eq!((first.name.as_str(), first.group.as_str()), ("a cache", "/full"));
        assert_eq!((first.scans, first.claimed, first.freed), (1, 1 << 20, 1 << 20));
        assert!(first.asked >= 100 && first.last_freed == 1 << 20, "{first:?}");
        assert_eq!((second.name.as_str(), second.group.as_str(), second.scans), ("another", "/empty", 0));
        drop((charge, registered, bystander));
    }
}
