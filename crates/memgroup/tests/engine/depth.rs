//! The deepest tree, on a thread with a small stack.
// Frames of a debug build are several times as large.
#![cfg(all(not(memgroup_loom), not(debug_assertions)))]

use std::sync::{Arc, Mutex};

use memgroup::{
    Ask, Charge, Config, Count, Group, Hierarchy, KillAnswer, KillRequest, Scan, Shrinker, ShrinkerConfig,
    SlotSource,
};

const DEPTH: u32 = 256;
const STACK: usize = 32 << 10;

/// The deepest group of a tree with as many levels as there can be.
fn deepest(hierarchy: &Hierarchy) -> Group {
    (1..=DEPTH).fold(hierarchy.root(), |group, _| group.create("g").unwrap())
}

#[test]
fn charges_256_levels_on_a_stack_of_32_kib() {
    for cap in [0, 256 << 10] {
        let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).depth_max(DEPTH);
        let hierarchy = Hierarchy::new(config.stock_cap_bytes(cap)).unwrap();
        let group = deepest(&hierarchy);
        let work = move || {
            let charge = group.try_charge(4096).unwrap();
            let forced = group.charge_forced(4096).unwrap();
            assert_eq!(hierarchy.snapshot().groups.len(), DEPTH as usize + 1);
            group.set_max(8192).unwrap();
            assert!(group.try_charge(1 << 20).is_err());
            drop((charge, forced));
            assert_eq!(hierarchy.root().usage_exact(), 0);
            group.remove().unwrap();
        };
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
        thread.unwrap().join().unwrap();
    }
}

/// A cache of charges.
#[derive(Default)]
struct Pages(Mutex<Vec<Charge>>);

impl Shrinker for Pages {
    fn count(&self, _: u64) -> Count {
        Count::of(self.0.lock().unwrap().iter().map(Charge::bytes).sum(), 1)
    }

    fn scan(&self, _: &Ask<'_>) -> Scan {
        let page = self.0.lock().unwrap().pop();
        Scan::Freed { bytes: page.map_or(0, |page| page.bytes()) }
    }
}

/// A charge at the top and one at the bottom, and a reclaim by hand, walk down to caches of the
/// deepest groups.
#[test]
fn has_caches_at_256_levels_give_back_on_a_stack_of_32_kib() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).depth_max(DEPTH);
    let hierarchy = Hierarchy::new(config).unwrap();
    let group = deepest(&hierarchy);
    let tops: Vec<Group> = ["/g", "/g/g"].iter().map(|path| hierarchy.lookup(path).unwrap()).collect();
    let beside = group.parent().unwrap().create("beside").unwrap();
    tops[0].set_max(2 * 4096 + 100).unwrap();
    let caches = [&group, &beside].map(|group| {
        let pages = Arc::new(Pages::default());
        let shrinker = group.add_shrinker(ShrinkerConfig::new("pages"), Arc::clone(&pages)).unwrap();
        (group.clone(), pages, shrinker)
    });
    let fill = || {
        for (group, pages, shrinker) in &caches {
            let page = group.try_charge(4096).unwrap();
            pages.0.lock().unwrap().push(page);
            shrinker.mark();
        }
    };
    // Protection is computed level by level, too. The victim that is told to stop frees nothing.
    let hook = caches[1].0.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused).unwrap();
    let of_others = ["/g/beside", "/g/g/beside"].map(|path| {
        let group = hierarchy.create(path).unwrap();
        group.set_low(1).unwrap();
        group.set_min(1).unwrap();
        group
    });
    let work = || {
        fill();
        assert!(group.try_charge(1 << 20).is_err());
        drop(tops[1].try_charge(4096).unwrap());
        fill();
        drop(group.try_charge(2 * 4096).unwrap());
        fill();
        assert_eq!(tops[1].reclaim(2 * 4096, None).bytes, 2 * 4096);
        assert_eq!(hierarchy.root().usage_exact(), 0);
        assert!(caches.iter().all(|(_, pages, _)| pages.0.lock().unwrap().is_empty()));
    };
    let _kept = (&hook, &of_others);
    std::thread::scope(|threads| {
        std::thread::Builder::new().stack_size(STACK).spawn_scoped(threads, work).unwrap();
    });
}
