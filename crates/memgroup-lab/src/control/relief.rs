//! From pressure to freed bytes: charges that do not fit, beside an idle SQLite cache that can give.
//!
//! ```text
//!   parent, max = usage of the idle cache ──┬── idle: 64 MiB of a database's pages, unused
//!                                           └── busy: charges, timed call by call
//! ```
//!
//! - I1. No charge is refused while the idle cache can give, and the parent never has more than its `max`.
//! - I2. A call counts if it was held up: the parent's event `max` was counted for it. Reclaim may free more than was asked for, and the next
//!   charges find room.

use memgroup::{Charge, Group};

use super::RELIEF_MS_MOST;
use crate::harness::prelude::*;

/// Rows of the idle database, a page each: 64 MiB.
const ROWS: i64 = 16 << 10;
/// The same where figures mean nothing.
const ROWS_TINY: i64 = 2 << 10;
/// The part of the idle cache that is taken before it is filled anew: the last pages of a cache are not idle pages.
const TAKEN_PERCENT: u64 = 75;
/// Sizes of the charges.
const SIZES: [(&str, u64); 3] = [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];

/// The idle database and the group beside it.
struct IdleCache {
    idle: Tenant,
    busy: Group,
    parent: Group,
    _directory: Directory,
    _sqlite: Sqlite,
}

impl IdleCache {
    fn build(lab: &Lab<'_>) -> Result<IdleCache> {
        let (sqlite, directory) = (Sqlite::take(lab.slots)?, Directory::make()?);
        let parent = child(&sqlite.hierarchy.root(), &unique("relief"))?;
        let (idle, busy) = (child(&parent, "idle")?, child(&parent, "busy")?);
        let rows = if lab.args.tiny { ROWS_TINY } else { ROWS };
        let mut idle = Tenant::open(&idle, &directory.file(0), rows, None)?;
        idle.check_all()?;
        parent.drain();
        let held = idle.connection.group().usage_exact();
        ensure(held >= rows as u64 * 4096, || format!("the cache of {rows} pages holds {held} bytes"))?;
        Ok(IdleCache { idle, busy, parent, _directory: directory, _sqlite: sqlite })
    }

    /// Fills the cache again and sets the limit to its usage, which it returns.
    fn fill(&mut self) -> Result<u64> {
        limit(&self.parent, None)?;
        self.idle.check_all()?;
        self.parent.drain();
        let (usage, held) = (self.parent.usage(), self.idle.connection.group().usage_exact());
        expect_bytes(&self.parent, "usage with the cache full", usage, held)?;
        limit(&self.parent, usage)?;
        Ok(held)
    }

    fn end(mut self) -> Result<()> {
        self.idle.check_all()?;
        self.idle.close()?;
        remove_empty(&self.parent)
    }
}

/// Charges until so many bytes are taken, or so many calls were held up; their nanoseconds, and all charges.
fn charge(
    [busy, parent]: [&Group; 2],
    watch: Stopwatch,
    bytes: u64,
    bytes_most: u64,
    calls_most: usize,
) -> Result<(Vec<f64>, Vec<Charge>)> {
    let (mut held_up_ns, mut charges, mut held_up) = (Vec::new(), Vec::new(), parent.events_local().max);
    while (charges.len() as u64 + 1) * bytes <= bytes_most && held_up_ns.len() < calls_most {
        let (ns, charge) = watch.time(|| busy.try_charge(bytes));
        charges.push(charge.or_wrong(format_args!("an idle cache has {bytes_most} bytes to give"))?);
        let before = std::mem::replace(&mut held_up, parent.events_local().max);
        held_up_ns.extend((held_up > before).then_some(ns));
        let (usage, max) = parent.usage_and_max();
        let max = max.unwrap_or(u64::MAX);
        ensure(usage <= max, || format!("{} has {usage} bytes and may have {max}", parent.path()))?;
    }
    Ok((held_up_ns, charges))
}

/// The control: the same charges where nothing has to be freed; nanoseconds of each.
fn charge_with_room(busy: &Group, watch: Stopwatch, bytes: u64, calls: usize) -> Result<Vec<f64>> {
    let timed = (0..calls).map(|_| watch.time(|| busy.try_charge(bytes)));
    let (times, charges): (_, Vec<_>) = timed.unzip();
    charges.into_iter().collect::<Result<Vec<Charge>, _>>().or_wrong("a charge without a limit")?;
    Ok(times)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let mut cache = IdleCache::build(lab)?;
    let held = cache.fill()?;
    let mut table = Table::new(
        format!("charges that do not fit beside an idle SQLite cache of {} KiB: us", count(held >> 10)),
        ["a charge of", "held up", "p50", "p99", "max", "fitted at once", "with room, p50"],
    );
    for (name, bytes) in SIZES {
        let (mut times, mut fitted) = (Vec::new(), 0);
        let calls = lab.pick(lab.effort.calls, 300, 2_000);
        let watch = lab.clock.stopwatch();
        limit(&cache.parent, None)?;
        let busy = &cache.busy;
        let room = lab.workers.run_one(|| charge_with_room(busy, watch, bytes, calls))?;
        while times.len() < calls {
            let bytes_most = cache.fill()? * TAKEN_PERCENT / 100;
            let more = calls - times.len();
            let groups = [&cache.busy, &cache.parent];
            let (held_up, all) = lab.workers.run_one(|| charge(groups, watch, bytes, bytes_most, more))?;
            let calls = all.len() as u64;
            ensure(!held_up.is_empty(), || {
                format!("{calls} charges of {name} where all was full, and none was held up")
            })?;
            expect_bytes(&cache.busy, "what was charged", cache.busy.usage_exact(), calls * bytes)?;
            fitted += calls - held_up.len() as u64;
            times.extend(held_up);
        }
        let params = json!({"bytes": bytes, "cache": held});
        let (calls, quantiles) = (count(times.len() as u64), Quantiles::of(times));
        let cells = lab.record("an idle SQLite cache", params.clone()).quantiles(quantiles, 1e3);
        let [room, ..] = lab.record("with room (control)", params).quantiles(Quantiles::of(room), 1e3);
        table.row(name, [calls].into_iter().chain(cells).chain([count(fitted), room]));
        let (p99, goal) = (quantiles.map(|ns| ns.p99 / 1e6), "freed by an idle cache, p99");
        lab.at_most(format!("from pressure to {name} {goal}"), p99, RELIEF_MS_MOST, "ms");
    }
    table.note(
        "from the call of a charge to its return with the bytes, on the caller's own thread. Reclaim takes pages in batches, so some charges after it find room: those fitted at once. The control has no limit",
    );
    cache.end()?;
    lab.print(&table)
}
