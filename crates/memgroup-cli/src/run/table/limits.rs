//! What limits did to each tenant: events, delays, stalls.

use super::{Cell, Emphasis, NONE, columns, or_none, plain};
use crate::run::control::{Events, Pressure};
use crate::run::report::{Half, TenantReport};
use crate::run::units;

/// The share of the time that a protected tenant may be stalled without being marked.
const STALLED_SHARE_MOST: f64 = 0.01;

const TITLES: [&str; 12] = [
    "tenant",
    "protected",
    "low",
    "high",
    "max",
    "oom",
    "kill",
    "stopped",
    "throttled",
    "some",
    "some %",
    "full %",
];

/// Nothing where there are no limits.
pub(super) fn table(half: &Half, emphasis: Emphasis) -> String {
    let mut rows: Vec<Vec<Cell>> = half.tenants.iter().filter_map(of_tenant).collect();
    let tenants = rows.len();
    rows.extend(of_all(half));
    if rows.is_empty() {
        return String::new();
    }
    let table = columns(&TITLES.map(str::to_owned), &rows, tenants, emphasis);
    format!("\n{table}{}", of_all_alone(half, emphasis))
}

/// Where the events of all are more than those of the tenants, whose the rest are.
fn of_all_alone(half: &Half, emphasis: Emphasis) -> String {
    let of_tenants = half.tenants.iter().filter_map(|tenant| tenant.events).map(|events| events.max).sum();
    let is_more = half.events.is_some_and(|events| events.max > of_tenants);
    if !is_more {
        return String::new();
    }
    let note = "max and oom are counted where the limit is: beyond the tenants' own, at that of all tenants";
    format!("{}\n", emphasis.aside(note))
}

fn of_tenant(tenant: &TenantReport) -> Option<Vec<Cell>> {
    let (events, pressure) = (tenant.events?, tenant.pressure?);
    let protected = plain(if tenant.protected { "yes" } else { NONE });
    let killed =
        Cell { text: units::count(tenant.killed), alarming: tenant.killed > 0 && !tenant.is_runaway() };
    let is_stalled_long = tenant.protected && pressure.some.share > STALLED_SHARE_MOST;
    Some(row(&tenant.name, protected, events, killed, tenant.throttled_us, pressure, is_stalled_long))
}

fn of_all(half: &Half) -> Option<Vec<Cell>> {
    let (events, pressure) = (half.events?, half.pressure?);
    let killed = plain(units::count(half.tenants.iter().map(|tenant| tenant.killed).sum()));
    let throttled_us = half.statistics.map(|statistics| statistics.memory.throttled_us);
    Some(row("all tenants", plain(NONE), events, killed, throttled_us, pressure, false))
}

fn row(
    name: &str,
    protected: Cell,
    events: Events,
    killed: Cell,
    throttled_us: Option<u64>,
    pressure: Pressure,
    is_stalled_long: bool,
) -> Vec<Cell> {
    let counts = [events.low, events.high, events.max, events.oom, events.oom_kill];
    let mut row = vec![plain(name), protected];
    row.extend(counts.map(|count| plain(units::count(count))));
    row.extend([
        killed,
        or_none(throttled_us, |us| units::duration_us(us as f64)),
        plain(units::duration_us(pressure.some.total_us as f64)),
        Cell { text: share(pressure.some.share), alarming: is_stalled_long },
        plain(share(pressure.full.share)),
    ]);
    row
}

/// In percent, to a hundredth.
fn share(share: f64) -> String {
    format!("{:.2}", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::super::Emphasis;
    use super::table;
    use crate::run::report::Half;
    use crate::run::report::tests::half;

    #[test]
    fn events_delays_and_stalls_line_up() {
        let mut half = half(2);
        half.tenants[1].killed = 12;
        let expected = "
tenant       protected  low  high  max  oom  kill  stopped  throttled     some  some %  full %
----------------------------------------------------------------------------------------------
lookups            yes    0     0    2    1     0        0     1.50 s  40.0 ms    0.20    0.05
runaway              -    0     0  120   60     0       12     1.50 s  40.0 ms    0.20    0.05
----------------------------------------------------------------------------------------------
all tenants          -    0     0  130   65     0       12     1.50 s  60.0 ms    0.30    0.03
max and oom are counted where the limit is: beyond the tenants' own, at that of all tenants
";
        assert_eq!(table(&half, Emphasis(false)), expected);
    }

    #[test]
    fn marked_are_stops_of_those_who_are_no_runaways_and_the_protected_that_are_stalled_long() {
        let marked = |change: &dyn Fn(&mut Half)| {
            let mut half = half(0);
            change(&mut half);
            table(&half, Emphasis(true)).matches("\x1b[31m").count()
        };
        assert_eq!(marked(&|half| half.tenants[1].killed = 3), 0);
        assert_eq!(marked(&|half| half.tenants[0].killed = 3), 1);
        let stall = |half: &mut Half, tenant: usize| {
            half.tenants[tenant].pressure.as_mut().expect("known").some.share = 0.011;
        };
        assert_eq!(marked(&|half| stall(half, 0)), 1);
        assert_eq!(marked(&|half| stall(half, 1)), 0);
    }

    #[test]
    fn where_nobody_has_limits_there_is_no_table() {
        let mut half = Half { events: None, ..half(0) };
        for tenant in &mut half.tenants {
            tenant.events = None;
        }
        assert_eq!(table(&half, Emphasis(false)), "");
    }
}
