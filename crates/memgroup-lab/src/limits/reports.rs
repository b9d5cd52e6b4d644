//! Reports and limit changes over many groups: their CPU time, and how long another thread's `create` waits meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memgroup::Config;

use super::lifecycle::name_of;
use super::maps::{CasMap, MutexMap, Names};
use super::{PAGE, many_groups};
use crate::harness::prelude::*;

/// Groups with prepaid bytes before each call, which drains and lowered limits return.
const STOCKS: usize = 1_000;

/// A call that looks at all groups.
type Call<'c> = Box<dyn Fn() -> Result<()> + Sync + 'c>;

/// One row: the call, and the group that another thread makes and removes meanwhile.
struct Row<'c> {
    name: &'static str,
    call: Call<'c>,
    create: Call<'c>,
}

/// Calls once; milliseconds of its CPU time, of the longest creation that was under way meanwhile, and the number of creations.
fn sample(lab: &Lab<'_>, row: &Row<'_>) -> Result<[f64; 3]> {
    let (is_over, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
    let (clock, mut sums) = (lab.clock, [0.0; 3]);
    let parts = lab.workers.try_run(2, |thread| {
        if thread == 0 {
            // ORDERING: Relaxed, here and below; flags by themselves.
            spin_until(|| has_begun.load(Ordering::Relaxed).then_some(()));
            let cpu = thread_cpu_ns();
            let called = (row.call)();
            let ns = thread_cpu_ns() - cpu;
            // ORDERING: Relaxed, as above. Also after an error, or the other thread would go on.
            is_over.store(true, Ordering::Relaxed);
            return called.map(|()| [ns as f64 / 1e6, 0.0, 0.0]);
        }
        let (mut longest, mut done) = (0, 0.0);
        // ORDERING: Relaxed, as above.
        while !is_over.load(Ordering::Relaxed) {
            let begin = clock::now();
            let created = (row.create)();
            longest = longest.max(clock::now() - begin);
            done += 1.0;
            // ORDERING: Relaxed, as above.
            has_begun.store(true, Ordering::Relaxed);
            created?;
        }
        Ok([0.0, clock.ns(longest as f64) / 1e6, done])
    })?;
    parts.iter().for_each(|part| (0..3).for_each(|at| sums[at] += part[at]));
    Ok(sums)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let groups = many_groups(lab);
    let hierarchy = hierarchy(Config::with_slots(lab.slots).groups_max(2 * groups as u32 + 100_000))?;
    let parent = child(&child(&hierarchy.root(), "level1")?, "parent")?;
    let (cas, mutex) = (CasMap::new(), MutexMap::default());
    let mut tenants = Vec::with_capacity(groups);
    for number in 0..groups {
        let (name, bytes) = (name_of(number), PAGE);
        let tenant = child(&parent, &name)?;
        drop(tenant.try_charge(bytes).or_wrong("a charge without a limit")?);
        tenants.push(tenant);
        [&cas as &dyn Names, &mutex].into_iter().try_for_each(|names| names.create(&name))?;
    }
    let other = child(&hierarchy.root(), "other")?;
    let create = || -> Call<'_> {
        Box::new(|| child(&other, "passing")?.remove().or_wrong("failed to remove an empty group"))
    };
    let least =
        |what, found: usize| ensure(found >= groups, || format!("{what} showed {found} of {groups} groups"));
    let is_drained = || ensure(parent.usage() <= PAGE, || format!("{} bytes above a limit", parent.usage()));
    let mut rows = vec![
        Row { name: "nothing: spins for 20 ms", call: Box::new(spin), create: create() },
        Row {
            name: "groups()",
            call: Box::new(|| least("groups()", hierarchy.groups().len())),
            create: create(),
        },
        Row {
            name: "usage_exact",
            call: Box::new(|| expect("bytes charged", parent.usage_exact(), 0)),
            create: create(),
        },
        Row {
            name: "drain",
            call: Box::new(|| {
                parent.drain();
                expect_bytes(&parent, "usage after a drain", parent.usage(), 0)
            }),
            create: create(),
        },
        Row {
            name: "set_max below the usage",
            call: Box::new(|| {
                limit(&parent, PAGE)?;
                is_drained()?;
                limit(&parent, None)
            }),
            create: create(),
        },
        Row {
            name: "set_high below the usage",
            call: Box::new(|| {
                parent.set_high(PAGE).set_up("high")?;
                is_drained()?;
                parent.set_high(None).set_up("high")
            }),
            create: create(),
        },
        Row {
            name: "snapshot",
            call: Box::new(|| least("the snapshot", hierarchy.snapshot().groups.len())),
            create: create(),
        },
    ];
    for (list, sum, names) in [
        ("CAS map: copy all names", "CAS map: sum of all usages", &cas as &dyn Names),
        ("mutex map: copy all names", "mutex map: sum of all usages", &mutex),
    ] {
        let create = || -> Call<'_> { Box::new(move || names.live("passing")) };
        rows.push(Row { name: list, call: Box::new(move || least(list, names.list())), create: create() });
        // The group that passes holds a page at times.
        let call = move || {
            let usage = names.usage();
            ensure(usage <= PAGE, || format!("{sum}: {usage} bytes, a page at most is charged"))
        };
        rows.push(Row { name: sum, call: Box::new(call), create: create() });
    }
    let mut found: Vec<Samples> = rows.iter().map(|_| Samples::default()).collect();
    lab.in_turns(lab.pick(1, 3, 11), rows.len(), |lab, row| {
        for tenant in tenants.iter().step_by(groups.div_ceil(STOCKS)) {
            drop(tenant.try_charge(PAGE).or_wrong("a charge without a limit")?);
        }
        let prepaid = parent.usage();
        ensure(prepaid > PAGE, || format!("{prepaid} bytes are prepaid before a call"))?;
        let of = sample(lab, &rows[row])?;
        METRICS.into_iter().zip(of).for_each(|((metric, _), value)| found[row].push(metric, value));
        Ok(())
    })?;
    let mut table = Table::new(
        format!("reports and limit changes over {} groups", count(groups as u64)),
        ["call", "its CPU time, ms", "longest create meanwhile, ms", "creates meanwhile"],
    );
    for (row, of) in rows.iter().zip(&found) {
        let cells = lab.record(row.name, json!({"groups": groups})).medians(of, METRICS);
        table.row(row.name, cells);
    }
    table.note("another thread makes and removes a group of another parent without rest. Before each call 1,000 groups, if there are as many, hold prepaid bytes; a limit below the usage is lifted again in the same call. Medians of the calls. Where the first row is long, other programs took the CPU");
    lab.print(&table)?;
    drop(rows);
    check_empty(&hierarchy)
}

const METRICS: [(&str, &str); 3] = [("CPU time", "ms"), ("longest create", "ms"), ("creates", "")];

fn spin() -> Result<()> {
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    Ok(())
}
