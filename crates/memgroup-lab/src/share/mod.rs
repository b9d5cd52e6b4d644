//! Fair shares: a runaway among small tenants, with them and without, with charges and with SQLite, and their cost.
//!
//! - I1. All tenants of a case are below one parent, with room for [`TENANT`] each. A small one never holds more than [`NEED`], which is within
//!   its even share.
//! - I2. When a case is over, nothing is charged below its parent.

mod costs;
mod hoarder;
mod mix;
mod orders;
mod players;
mod slots;
mod sqlite;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memgroup::{
    Config, Freshness, Group, Hierarchy, KillAnswer, KillRegistration, KillRequest, Reach, stats,
};

use crate::Args;
use crate::harness::prelude::*;

const MIB: u64 = 1 << 20;
/// Room of the parent for each tenant, the runaway included.
const TENANT: u64 = 4 * MIB;
/// The most that a small tenant holds.
const NEED: u64 = 2 * MIB;
const FACTOR: u32 = 8;
/// How far a child may pass its share, as a part of the limit: stocks below the parent may hold so much.
const CAPS: f64 = 1.0 / (16.0 * FACTOR as f64);

/// The most that one child may hold, in percent of the limit.
fn held_most() -> f64 {
    let most = f64::from(FACTOR) / f64::from(FACTOR + 1) + CAPS;
    (most * 1e4).round() / 100.0
}

/// How the memory of the tenants is kept apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// A group each, and a limit of all.
    None,
    /// The same, with fair shares.
    Share,
    /// The same, with a `min` for each small tenant.
    Min,
    /// One group for all.
    Wide,
}

impl Setting {
    const ALL: [Setting; 4] = [Setting::None, Setting::Share, Setting::Min, Setting::Wide];

    fn name(self) -> &'static str {
        ["none", "share", "min by hand", "process-wide"][self as usize]
    }
}

/// The groups of one case.
struct Scene {
    setting: Setting,
    hierarchy: Hierarchy,
    parent: Group,
    small: Vec<Group>,
    /// The runaway's, or the hoarder's.
    large: Group,
}

impl Scene {
    fn set(hierarchy: &Hierarchy, setting: Setting, small: usize) -> Result<Scene> {
        let parent = child(&hierarchy.root(), &unique("share"))?;
        limit(&parent, (small as u64 + 1) * TENANT)?;
        if setting == Setting::Share {
            parent.set_share(FACTOR).set_up("the shares")?;
        }
        let (small, large) = if setting == Setting::Wide {
            (vec![parent.clone(); small], parent.clone())
        } else {
            (children(&parent, "small", small)?, child(&parent, "large")?)
        };
        if setting == Setting::Min {
            small.iter().try_for_each(|group| group.set_min(NEED)).set_up("the min of a small tenant")?;
        }
        Ok(Scene { setting, hierarchy: hierarchy.clone(), parent, small, large })
    }

    fn max(&self) -> u64 {
        self.parent.max().unwrap_or(u64::MAX)
    }

    /// Bytes that the caches of the small tenants gave back, and of the large one. With one group for all they count as the latter's.
    fn given(&self) -> [u64; 2] {
        let of = |group: &Group| {
            self.hierarchy.memory().get(group, stats::memory::RECLAIMED, Reach::Subtree, Freshness::Fresh)
                as u64
        };
        let (all, large) = (of(&self.parent), of(&self.large));
        [all - large, large]
    }

    /// Part of `us` in which a small tenant was stalled; the mean of all.
    fn stalled(&self, us: f64) -> f64 {
        let total = self.small.iter().map(|group| group.pressure().some.total).sum::<u64>() as f64;
        total / us / self.small.len() as f64
    }

    /// Neither the limit nor a small tenant's need was passed (I1); prepaid bytes count in a peak.
    fn check(&self) -> Result<()> {
        const PREPAID_MOST: u64 = MIB;
        let is_wide = self.setting == Setting::Wide;
        let small = self.small.iter().filter(|_| !is_wide).map(|group| (group, NEED + PREPAID_MOST));
        small.chain([(&self.parent, self.max())]).try_for_each(|(group, most)| {
            let peak = group.peak();
            ensure(peak <= most, || format!("{} had {peak} bytes, and may have {most}", group.path()))
        })
    }

    /// Nothing is charged any more (I2).
    fn end(self) -> Result<()> {
        remove_empty(&self.parent)
    }
}

/// Tells the work of a group to stop by a flag. A charge of the group's own is refused instead, as in SQLite's.
fn stop_by(group: &Group, flag: &Arc<AtomicBool>) -> Result<KillRegistration> {
    let flag = Arc::clone(flag);
    let hook = move |request: &KillRequest<'_>| {
        if request.kills_requester {
            return KillAnswer::Refused;
        }
        // ORDERING: Relaxed; the flag publishes nothing but itself.
        flag.store(true, Ordering::Relaxed);
        KillAnswer::Dying
    };
    group.set_kill_hook(hook).set_up("a kill hook")
}

/// How a statement ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    Refused,
    Stopped,
}

/// Statements of one tenant, or of several.
#[derive(Default)]
struct Tally {
    done: u64,
    refused: u64,
    stopped: u64,
    /// Of SQLite attempts that were refused, waited and were made again; else pages that a cache was refused.
    again: u64,
    /// Nanoseconds of those that were done.
    times: Vec<f64>,
    /// The first refusal, in words.
    why: Option<String>,
}

impl Tally {
    fn add(&mut self, end: End) {
        match end {
            End::Done => self.done += 1,
            End::Refused => self.refused += 1,
            End::Stopped => self.stopped += 1,
        }
    }

    fn join(parts: impl IntoIterator<Item = Tally>) -> Tally {
        let mut all = Tally::default();
        for part in parts {
            all.done += part.done;
            all.refused += part.refused;
            all.stopped += part.stopped;
            all.again += part.again;
            all.times.extend(part.times);
            all.why = all.why.or(part.why);
        }
        all
    }
}

/// The result of a tenant's thread.
fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err("panic").or_wrong("a tenant"))
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut lab = Lab::open(args, None, args.slots, out)?;
    lab.paragraph(&format!(
        "\nnote: tenants are below one parent with {} MiB for each. \"none\" is that limit alone, \"share\" is set_share({FACTOR}) on the parent, \"min by hand\" is a min of {} MiB for each small tenant, \"process-wide\" is one group for all. A charge \"at once\" is made or refused; \"waits\" has a deadline of {} s",
        TENANT / MIB,
        NEED / MIB,
        players::PATIENCE.as_secs()
    ))?;
    lab.paragraph(mix::COLUMNS)?;
    let hierarchy = hierarchy(Config::with_slots(lab.slots))?;
    mix::plain(&mut lab, &hierarchy)?;
    hoarder::run(&mut lab, &hierarchy)?;
    orders::run(&mut lab, &hierarchy)?;
    slots::run(&mut lab)?;
    sqlite::run(&mut lab)?;
    costs::run(&mut lab)?;
    lab.close()
}
