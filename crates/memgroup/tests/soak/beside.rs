//! Steps of an actor besides charges: with caches and tenants, waits for events, and reads of
//! reports.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{GroupShrinker, KillRegistration, Maintenance};

use crate::actors::{Actor, SLACK};
use crate::hostile::{Cache, Tenant};
use crate::ledger::{Held, Member, lock, numbers};
use crate::plan::{Ending, Form, Step};
use crate::sleepers::Wish;

const CACHES_MOST: usize = 24;
const TENANTS_MOST: usize = 12;

fn one_of<T>(many: &Mutex<Vec<Arc<T>>>, at: usize) -> Option<Arc<T>> {
    let many = lock(many);
    (!many.is_empty()).then(|| Arc::clone(&many[at % many.len()]))
}

fn leave<T>(many: &Mutex<Vec<Arc<T>>>, one: &Arc<T>) {
    lock(many).retain(|other| !Arc::ptr_eq(other, one));
}

impl Actor<'_> {
    fn end_cache(&self, cache: &Arc<Cache>, ending: Ending) {
        leave(&self.house.caches, cache);
        if let Some(own) = cache.take_registration() {
            match ending {
                Ending::Remove => own.remove().unwrap(),
                Ending::Withdraw => {
                    let left = self.until(200, |deadline| own.withdraw().wait_until(deadline));
                    drop(left);
                }
                Ending::Detach => {
                    let kept = Arc::clone(cache);
                    GroupShrinker::withdraw(own).detach(move || drop(kept));
                }
                Ending::Drop => drop(own),
            }
        }
        cache.clear();
    }

    fn end_tenant(&self, tenant: &Arc<Tenant>, ending: Ending) {
        leave(&self.house.tenants, tenant);
        match (tenant.take_hook(), ending) {
            (Some(hook), Ending::Remove) => KillRegistration::remove(hook).unwrap(),
            (hook, _) => drop(hook),
        }
        tenant.free();
    }

    /// A group from the number `at` on that uses a part of its limit, and a number of bytes for
    /// which there is room only when it frees some.
    fn full_for(&self, at: usize, bytes: u64) -> Option<(Arc<Member>, u64)> {
        let members = self.house.members();
        let mut all = (0..members.len()).map(|more| &members[(at + more) % members.len()]);
        all.find_map(|member| {
            let (usage, max) = (member.group.usage(), member.group.max()?);
            let used = usage.min(max);
            (used > 0).then(|| (Arc::clone(member), max - used + 1 + bytes % used))
        })
    }

    fn watch_events(&self, member: &Member, after: u64) {
        let seen = member.group.events();
        let changed = self.until(after, |deadline| member.group.wait_events(&seen, Some(deadline)));
        if let Some(now) = changed {
            let grown = numbers(&now).iter().zip(numbers(&seen)).all(|(now, seen)| *now >= seen);
            assert!(grown, "events run backwards: {seen:?}, then {now:?}");
        }
    }

    fn peak(&mut self, member: &Arc<Member>, bytes: u64) {
        let mut reader = member.group.peak_reader();
        reader.reset();
        if let Ok(charge) = member.group.try_charge(bytes) {
            assert!(reader.read() >= bytes, "a peak of {} with {bytes} bytes charged", reader.read());
            self.keep(Held::plain(member, charge));
        }
        let (read, peak) = (reader.read(), member.group.peak());
        assert!(read <= peak, "a reader's peak of {read} above the group's of {peak}");
    }

    fn snapshot(&self, member: &Member) {
        let snapshot = member.group.snapshot();
        for (number, group) in snapshot.groups.iter().enumerate() {
            assert!(group.parent.is_none_or(|parent| parent < number));
            // Usage may be above the peak while a charge is under way, so the two are not compared.
            assert!(group.usage_exact_bytes <= group.usage_bytes);
        }
        let top = &snapshot.groups[0];
        assert_eq!(snapshot.groups.len(), 1 + top.descendants + top.dying_descendants);
        let files = self.house.hierarchy.files().into_iter();
        let texts = files.filter_map(|file| member.group.read_file(&file.name)).map(|text| text.len());
        assert!(texts.sum::<usize>() > 0);
    }

    fn look(&self) {
        let hierarchy = &self.house.hierarchy;
        for wait in hierarchy.waits() {
            let late = Instant::now().saturating_duration_since(wait.deadline);
            assert!(late < SLACK, "{wait}");
        }
        assert!(hierarchy.kills().len() <= 64);
        hierarchy.shrinkers();
        hierarchy.dying();
    }

    /// Steps with caches and tenants, waits for events, and reads of reports.
    pub(crate) fn step_beside(&mut self, step: Step) {
        let house = self.house;
        match step {
            Step::AddCache { group, manner, seed } if lock(&house.caches).len() < CACHES_MOST => {
                let cache = Cache::new(&house.member(group), manner, seed, &house.late);
                lock(&house.caches).extend(cache);
            }
            Step::FillCache { cache, pages, bytes } => {
                let filled = one_of(&house.caches, cache).map_or(0, |cache| cache.fill(pages, bytes));
                house.figures.count(|figures| &figures.charges, filled);
            }
            Step::AskCache { cache, bytes } => {
                if let Some(cache) = one_of(&house.caches, cache) {
                    let id = cache.with_registration(|own| own.registration().id());
                    // The shrinker may have been removed since.
                    id.map(|id| cache.member.group.ask_shrinker(id, bytes).map_or(0, |done| done.bytes));
                }
            }
            Step::Reinstate { cache } => {
                if let Some(cache) = one_of(&house.caches, cache) {
                    cache.with_registration(|own| own.registration().reinstate());
                }
                one_of(&house.tenants, cache).into_iter().for_each(|tenant| tenant.reinstate());
            }
            Step::EndCache { cache, ending } => {
                one_of(&house.caches, cache).into_iter().for_each(|cache| self.end_cache(&cache, ending));
            }
            Step::AddTenant { group, manner, seed } if lock(&house.tenants).len() < TENANTS_MOST => {
                let tenant = Tenant::new(&house.member(group), manner, seed, &house.late, &house.deaths);
                lock(&house.tenants).extend(tenant);
            }
            Step::FillTenant { tenant, charges, bytes } => {
                let filled = one_of(&house.tenants, tenant).map_or(0, |tenant| tenant.fill(charges, bytes));
                house.figures.count(|figures| &figures.charges, filled);
            }
            Step::FreeTenant { tenant, says } => {
                if let Some(tenant) = one_of(&house.tenants, tenant) {
                    tenant.free();
                    if says {
                        tenant.member.group.kill_done();
                    }
                }
            }
            Step::EndTenant { tenant, ending } => {
                one_of(&house.tenants, tenant).into_iter().for_each(|one| self.end_tenant(&one, ending));
            }
            Step::Sleep { group, bytes, as_task } => {
                if let Some((member, bytes)) = self.full_for(group, bytes) {
                    self.sleepers.ask(&house.hierarchy, Wish { member, bytes, as_task });
                }
            }
            Step::FreeLate { says } => house.late.free(says),
            Step::WaitEvents { group, micros } => self.watch_events(&house.member(group), micros),
            Step::Trigger { group, micros } => {
                let member = house.member(group);
                let trigger = member.group.add_pressure_trigger("some 1000 500000".parse().unwrap());
                self.until(micros, |deadline| trigger.wait(deadline));
            }
            Step::Stall { group, micros } => {
                let member = house.member(group);
                let _stall = member.group.stall();
                std::thread::sleep(Duration::from_micros(micros));
            }
            Step::Peak { group, bytes } => self.peak(&house.member(group), bytes),
            Step::Snapshot { group } => self.snapshot(&house.member(group)),
            Step::Look => self.look(),
            Step::Wake { group } => _ = house.member(group).group.wake_waiters(),
            Step::Deny { group, seed } => {
                let member = house.member(group);
                let first = seed % 2;
                let _denial = member.group.inject_failures_at(first..=first);
                self.charge(&member, Form::Try, seed % 5000);
            }
            Step::Maintain { all } => {
                let what = Maintenance::new().expedited();
                house.hierarchy.maintain(if all { what.all() } else { what });
            }
            Step::Pin { slot } => self.slot = slot % house.slots,
            // There are as many caches or tenants as allowed.
            _ => {}
        }
    }
}
