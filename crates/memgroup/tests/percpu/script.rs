//! The script of seed `001` in small: a hundred groups with ten below each; the ten go, the
//! hundred stay.

use core::time::Duration;

use memgroup::tuning::{PageSize, Tuning};
use memgroup::{Config, Hierarchy, Maintenance, PerCpuStats, Reach};

use crate::{
    CHARGED_BYTES, TENANT_BYTES, Tenant, config, densely, go_on, in_its_own_process, levels, maintain,
    used_on_all_slots, words_bytes,
};

const SLOTS: usize = 8;
const STAYING: u64 = 100;
const GOING: u64 = 10;
/// All of them, and the root.
const PLACES: u64 = STAYING * (GOING + 1) + 1;

/// Of so many groups and the root, which is charged only.
fn live_bytes(groups: u64) -> u64 {
    (groups * TENANT_BYTES + CHARGED_BYTES) * SLOTS as u64
}

struct Script {
    hierarchy: Hierarchy,
    staying: Vec<Tenant>,
    going: Vec<Tenant>,
    peak: PerCpuStats,
}

impl Script {
    fn new(config: Config) -> Script {
        let hierarchy = used_on_all_slots(config, SLOTS);
        let levels = levels(&hierarchy);
        let (mut staying, mut going) = (Vec::new(), Vec::new());
        for number in 1..=STAYING {
            let parent = hierarchy.create(&format!("/{number}")).unwrap();
            for below in 1..=GOING {
                let child = parent.create(&below.to_string()).unwrap();
                going.push(Tenant::new(&levels, child, number * 100 + below, SLOTS));
            }
            staying.push(Tenant::new(&levels, parent, number * 100, SLOTS));
        }
        let peak = hierarchy.percpu();
        assert_eq!(peak.live_bytes, live_bytes(STAYING * (GOING + 1)));
        let script = Script { hierarchy, staying, going, peak };
        script.check_truth();
        script
    }

    fn remove(&mut self) {
        for tenant in self.going.drain(..) {
            tenant.group.drain();
            assert_eq!(tenant.values(Reach::Local)[0], tenant.mark as i64 * SLOTS as i64);
            drop(tenant.charges);
            tenant.group.remove().unwrap();
        }
    }

    fn check(&mut self) {
        for tenant in &self.staying {
            // Charges of the removed children are not in it any more; their additions are.
            tenant.check();
            let rounds = tenant.charges.len() as i64;
            let gone = (1..=GOING).map(|below| (tenant.mark + below) as i64 * SLOTS as i64).sum::<i64>();
            assert_eq!(tenant.values(Reach::Subtree)[0], tenant.mark as i64 * rounds + gone);
        }
        let held: u64 =
            self.staying.iter().flat_map(|tenant| &tenant.charges).map(memgroup::Charge::bytes).sum();
        self.hierarchy.root().drain();
        assert_eq!(self.hierarchy.root().usage(), held);
    }

    /// Checks that the remaining groups work as before.
    fn go_on(&mut self) {
        self.check();
        for _ in 0..2 {
            self.staying.iter_mut().for_each(Tenant::live);
        }
        self.check();
    }

    /// Checks that the engine's figures are the system's.
    fn check_truth(&self) {
        #[cfg(target_os = "linux")]
        {
            let resident = crate::smaps::resident_bytes(&self.hierarchy);
            assert_eq!(self.hierarchy.percpu().populated_bytes, resident);
        }
    }
}

/// Nothing comes back but by `maintain`.
fn by_maintenance_only(page: PageSize) -> Config {
    config(SLOTS).page_size(page).maintain_on_removal(false)
}

#[test]
fn keeps_pinned_pages_without_relocation() {
    in_its_own_process("script::keeps_pinned_pages_without_relocation", || {
        for page in PageSize::ALL {
            let mut script = Script::new(by_maintenance_only(page).relocate(false));
            script.remove();
            assert_eq!(script.hierarchy.percpu().populated_bytes, script.peak.populated_bytes);
            let done = script.hierarchy.maintain(Maintenance::new().all());
            let after = maintain(&script.hierarchy);
            script.check_truth();
            assert_eq!((done.moved_records, done.demoted_groups), (0, 0));
            assert_eq!(after.live_bytes, live_bytes(STAYING));
            // Each of the hundred lies within a page of another: this is the seed's case of large
            // pages.
            assert!(after.populated_bytes > script.peak.populated_bytes / 2, "{page:?} {after:?}");
            script.go_on();
        }
    });
}

#[test]
fn returns_all_but_a_tenth_with_relocation() {
    in_its_own_process("script::returns_all_but_a_tenth_with_relocation", || {
        for page in PageSize::ALL {
            let mut script = Script::new(by_maintenance_only(page));
            script.remove();
            let done = script.hierarchy.maintain(Maintenance::new().all().expedited());
            let after = maintain(&script.hierarchy);
            script.check_truth();
            assert!(after.populated_bytes <= densely(&after, PLACES), "{page:?} {after:?}");
            if page < PageSize::Mib2 {
                assert!(done.moved_records > 0, "{page:?} {done:?}");
                assert!(after.populated_bytes < script.peak.populated_bytes, "{page:?} {after:?}");
            }
            assert_eq!(after.limbo_bytes, 0);
            script.go_on();
        }
    });
}

#[test]
fn returns_everything_with_demotion() {
    in_its_own_process("script::returns_everything_with_demotion", || {
        for page in [PageSize::Kib4, PageSize::Kib16, PageSize::Kib64] {
            let mut script = Script::new(by_maintenance_only(page).demote_after(Some(Duration::ZERO)));
            script.remove();
            let done = script.hierarchy.maintain(Maintenance::new().all().expedited());
            let after = maintain(&script.hierarchy);
            script.check_truth();
            // The hundred and the root.
            assert_eq!(done.demoted_groups, STAYING + 1);
            // The stock words stay, also those of dead places between survivors.
            assert_eq!(after.live_bytes, (STAYING + 1) * CHARGED_BYTES * SLOTS as u64, "{page:?} {after:?}");
            assert!(after.populated_bytes <= words_bytes(PLACES, SLOTS), "{page:?} {after:?}");
            script.go_on();
            let back = script.hierarchy.percpu();
            assert_eq!(back.live_bytes, live_bytes(STAYING), "a group has its levels again: {back:?}");
        }
    });
}

#[test]
fn returns_most_memory_by_removals_alone() {
    in_its_own_process("script::returns_most_memory_by_removals_alone", || {
        for page in [PageSize::Kib4, PageSize::Kib16, PageSize::Kib64] {
            let mut script = Script::new(config(SLOTS).page_size(page).float(0, Duration::ZERO));
            script.remove();
            let most = script.peak.populated_bytes * 3 / 5;
            go_on(&script.hierarchy, |now| now.populated_bytes <= most);
            script.check_truth();
            script.go_on();
        }
    });
}
