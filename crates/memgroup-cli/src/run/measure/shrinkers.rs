//! Shrinkers: the caches that were reclaimed, and the results.
//!
//! Each page cache of SQLite is a shrinker of its tenant's group while its connection is open. A cache that a statement creates
//! for itself ends with it; only the group's statistics count its bytes.

use memgroup::{Count, Hierarchy};
use serde::{Deserialize, Serialize};

use super::counts::Counts;

/// One shrinker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shrinker {
    pub(crate) name: String,
    /// Path of the group that is charged for its memory.
    pub(crate) group: String,
    /// Bytes that it could free now; none if it does not know.
    pub(crate) holds: Option<u64>,
    /// Scans of the cache: how many, bytes that they asked for (`asked`), bytes that the cache reported as freed (`claimed`), bytes that
    /// were uncharged (`freed`), and during the last of them (`last_freed`), time (`time_ns`), and scans in which it could not continue
    /// (`stopped`), panicked (`panics`) or took longer than allowed (`overruns`).
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// Reason why it is not scanned any more.
    pub(crate) quarantine: Option<String>,
}

impl Shrinker {
    /// All shrinkers of `hierarchy`.
    pub(crate) fn all(hierarchy: &Hierarchy) -> Vec<Shrinker> {
        let of_report = |report: memgroup::ShrinkerReport| {
            // A shrinker that was removed meanwhile has no groups.
            let counts = hierarchy.shrinker_counts(report.id).unwrap_or_default();
            counts.into_iter().map(move |(group, count)| Shrinker {
                name: report.name.clone(),
                group: group.path(),
                holds: match count {
                    Count::Holds { bytes, .. } => Some(bytes),
                    Count::Empty => Some(0),
                    _ => None,
                },
                counts: Counts::of([
                    ("scans", report.scans),
                    ("asked", report.asked_bytes),
                    ("claimed", report.claimed_bytes),
                    ("freed", report.freed_bytes),
                    ("last_freed", report.last_freed_bytes),
                    ("time_ns", report.time.as_nanos() as u64),
                    ("stopped", report.stopped),
                    ("panics", report.panics),
                    ("overruns", report.overruns),
                ]),
                quarantine: report.quarantine.map(|why| why.to_string()),
            })
        };
        hierarchy.shrinkers().into_iter().flat_map(of_report).collect()
    }

    /// Adds the same cache in a run `before`. Each run opens a tenant's connections, and so its caches, in one order.
    pub(crate) fn add(&mut self, before: Shrinker) {
        self.counts = before.counts.add(std::mem::take(&mut self.counts), &["last_freed"]);
        self.quarantine = self.quarantine.take().or(before.quarantine);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use memgroup::{Ask, Charge, Config, Count, Hierarchy, Scan, ShrinkerConfig};

    use super::Shrinker;

    /// A cache that frees everything at the first scan.
    struct Cache(Mutex<Option<Charge>>);

    impl memgroup::Shrinker for Cache {
        fn count(&self, _token: u64) -> Count {
            let held = self.0.lock().expect("no poison");
            Count::of(held.as_ref().map_or(0, Charge::bytes), 1)
        }

        fn scan(&self, _ask: &Ask<'_>) -> Scan {
            let held = self.0.lock().expect("no poison").take();
            Scan::Freed { bytes: held.map_or(0, |charge| charge.bytes()) }
        }
    }

    #[test]
    fn reports_group_requests_and_freed_bytes() {
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let [full, empty] = ["/full", "/empty"].map(|path| hierarchy.create(path).expect("a group"));
        full.set_max(1 << 20).expect("nothing is charged");
        let held = full.try_charge(1 << 20).expect("room");
        let cache = Arc::new(Cache(Mutex::new(Some(held))));
        let registered =
            full.add_shrinker(ShrinkerConfig::new("a cache"), Arc::clone(&cache)).expect("registered");
        registered.mark();
        let bystander = empty
            .add_shrinker(ShrinkerConfig::new("another"), Arc::new(Cache(Mutex::new(None))))
            .expect("registered");
        let charge = full.try_charge(100).expect("the cache is reclaimed");

        let [first, second] = &Shrinker::all(&hierarchy)[..] else { panic!("two") };
        assert_eq!((first.name.as_str(), first.group.as_str()), ("a cache", "/full"));
        assert_eq!(["scans", "claimed", "freed"].map(|key| first.counts.get(key)), [1, 1 << 20, 1 << 20]);
        assert!(first.counts.get("asked") >= 100 && first.counts.get("last_freed") == 1 << 20, "{first:?}");
        assert_eq!(
            (second.name.as_str(), second.group.as_str(), second.counts.get("scans")),
            ("another", "/empty", 0)
        );
        drop((charge, registered, bystander));
    }
}
