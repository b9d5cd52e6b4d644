//! From pressure to freed bytes: charges that do not fit, beside an idle cache of SQLite's that can give.
//!
//! ```text
//!   parent, max = what the idle cache has ──┬── idle: 64 MiB of a database's pages, unused
//!                                           └── busy: charges, timed call by call
//! ```
//!
//! - I1. No charge is refused while the idle cache has something to give, and the parent never has more than its `max`.
//! - I2. A call counts if it was held up: the parent's event `max` was counted for it. Reclaim may free more than was asked for, and the next
//!   charges find room.

use memgroup::{Charge, Group};

use super::{RELIEF_MS_MOST, add_quantiles, calls};
use crate::Error;
use crate::harness::Lab;
use crate::harness::clock::{self, Clock};
use crate::harness::quantiles::Quantiles;
use crate::harness::report::{Check, params};
use crate::harness::sqlite::{Directory, Sqlite, Tenant, remove, unique};
use crate::harness::table::{Table, count};
use crate::harness::tree::{child, expect_bytes, limit};

/// Rows of the idle database, a page each: 64 MiB.
const ROWS: i64 = 16 << 10;
/// The same where figures mean nothing.
const ROWS_TINY: i64 = 2 << 10;
/// Of what the idle cache holds, so much is taken before it is filled anew: the last pages of a cache are not idle pages.
const TAKEN_PERCENT: u64 = 75;

/// Sizes of the charges.
const SIZES: [(&str, u64); 3] = [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];

/// The idle database and the group beside it.
struct House {
    idle: Tenant,
    idle_group: Group,
    busy: Group,
    parent: Group,
    _directory: Directory,
    _sqlite: Sqlite,
}

/// What came of some charges.
#[derive(Default)]
struct Block {
    held_up_ns: Vec<f64>,
    fitted: u64,
    charges: Vec<Charge>,
}

impl House {
    fn build(lab: &Lab<'_>) -> Result<House, Error> {
        let sqlite = Sqlite::take(lab.slots)?;
        let directory = Directory::make()?;
        let parent = child(&sqlite.hierarchy.root(), &unique("relief"))?;
        let (idle_group, busy) = (child(&parent, "idle")?, child(&parent, "busy")?);
        let rows = if lab.args.tiny { ROWS_TINY } else { ROWS };
        let mut idle = Tenant::open(&idle_group, &directory.file(0), rows, None)?;
        idle.check_all()?;
        parent.drain();
        let held = idle_group.usage_exact();
        if held < rows as u64 * 4096 {
            return Err(Error::Wrong(format!("the cache of {rows} pages holds {held} bytes")));
        }
        Ok(House { idle, idle_group, busy, parent, _directory: directory, _sqlite: sqlite })
    }

    /// Has the cache full again, and no room beside it; what it holds.
    fn fill(&mut self) -> Result<u64, Error> {
        limit(&self.parent, memgroup::UNLIMITED)?;
        self.idle.check_all()?;
        self.parent.drain();
        let (usage, held) = (self.parent.usage(), self.idle_group.usage_exact());
        expect_bytes(&self.parent, "usage with the cache full", usage, held)?;
        limit(&self.parent, usage)?;
        Ok(held)
    }

    /// Charges until so many bytes are taken, or so many calls were held up.
    fn charge(&self, lab: &Lab<'_>, bytes: u64, most_bytes: u64, most_calls: usize) -> Result<Block, Error> {
        let (busy, parent, clock) = (self.busy.clone(), self.parent.clone(), lab.clock);
        lab.crew.run(1, move |_| charge(&busy, &parent, clock, bytes, most_bytes, most_calls)).remove(0)
    }

    fn end(mut self) -> Result<(), Error> {
        self.idle.check_all()?;
        self.idle.close()?;
        expect_bytes(&self.parent, "usage after all was closed", self.parent.usage_exact(), 0)?;
        self.parent.drain();
        expect_bytes(&self.parent, "usage after a drain", self.parent.usage(), 0)?;
        drop((self.idle_group, self.busy));
        remove(&self.parent)
    }
}

fn charge(
    busy: &Group,
    parent: &Group,
    clock: Clock,
    bytes: u64,
    most_bytes: u64,
    most_calls: usize,
) -> Result<Block, Error> {
    let (mut block, reading) = (Block::default(), clock::reading_ticks());
    let mut held_up = parent.events_local().max;
    while (block.charges.len() as u64 + 1) * bytes <= most_bytes && block.held_up_ns.len() < most_calls {
        let begin = clock::now_ordered();
        let charge = busy.try_charge(bytes);
        let ticks = (clock::now_ordered() - begin).saturating_sub(reading);
        let charge = charge.map_err(|why| {
            Error::Wrong(format!("an idle cache has {most_bytes} bytes to give, and yet: {why}"))
        })?;
        block.charges.push(charge);
        let now = parent.events_local().max;
        if now > held_up {
            block.held_up_ns.push(clock.ns(ticks as f64));
        } else {
            block.fitted += 1;
        }
        held_up = now;
        let (usage, max) = parent.usage_and_max();
        if usage > max {
            return Err(Error::Wrong(format!("{} has {usage} bytes and may have {max}", parent.path())));
        }
    }
    Ok(block)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let mut house = House::build(lab)?;
    let held = house.fill()?;
    let mut table = Table::new(
        format!("charges that do not fit beside an idle SQLite cache of {} KiB: us", count(held >> 10)),
        ["a charge of", "held up", "p50", "p99", "max", "fitted at once", "with room, p50"],
    );
    for (name, bytes) in SIZES {
        let (mut times, mut fitted) = (Vec::new(), 0);
        let most_calls = calls(lab, 300, 2_000);
        let room = with_room(lab, &house, bytes, most_calls)?;
        while times.len() < most_calls {
            let most_bytes = house.fill()? * TAKEN_PERCENT / 100;
            let block = house.charge(lab, bytes, most_bytes, most_calls - times.len())?;
            if block.held_up_ns.is_empty() {
                return Err(Error::Wrong(format!(
                    "{} charges of {name} where all was full, and none was held up",
                    block.fitted
                )));
            }
            let right = block.charges.len() as u64 * bytes;
            expect_bytes(&house.busy, "what was charged", house.busy.usage_exact(), right)?;
            fitted += block.fitted;
            times.extend(block.held_up_ns);
        }
        let what = params([("bytes", bytes.into()), ("cache", held.into())]);
        let (calls, quantiles) = (times.len(), Quantiles::of(times));
        let cells = add_quantiles(lab, "an idle SQLite cache", &what, quantiles, 1e3);
        let [room_p50, ..] = add_quantiles(lab, "with room (control)", &what, room, 1e3);
        let row = [name.to_owned(), count(calls as u64)].into_iter().chain(cells);
        table.row(row.chain([count(fitted), room_p50]).collect());
        lab.report.checks.push(Check::at_most(
            format!("from pressure to {name} freed by an idle cache, p99"),
            quantiles.map(|ns| ns.p99 / 1e6),
            RELIEF_MS_MOST,
            "ms",
        ));
    }
    table.note(
        "from the call of a charge to its return with the bytes, on the caller's own thread. Reclaim takes pages in batches, so some charges after it find room: those fitted at once. The control has no limit",
    );
    house.end()?;
    lab.print(&table)
}

/// The control: the same charges where nothing has to be freed.
fn with_room(
    lab: &Lab<'_>,
    house: &House,
    bytes: u64,
    most_calls: usize,
) -> Result<Option<Quantiles>, Error> {
    limit(&house.parent, memgroup::UNLIMITED)?;
    let (busy, clock) = (house.busy.clone(), lab.clock);
    let timed = move |_| {
        let reading = clock::reading_ticks();
        let mut times = Vec::with_capacity(most_calls);
        let mut charges = Vec::with_capacity(most_calls);
        for _ in 0..most_calls {
            let begin = clock::now_ordered();
            let charge = busy.try_charge(bytes);
            times.push(clock.ns((clock::now_ordered() - begin).saturating_sub(reading) as f64));
            charges.push(charge.map_err(|why| Error::Wrong(format!("a charge without a limit: {why}")))?);
        }
        Ok(times)
    };
    Ok(Quantiles::of(lab.crew.run(1, timed).remove(0)?))
}
