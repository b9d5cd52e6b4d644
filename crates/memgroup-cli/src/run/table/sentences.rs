//! What a run came to, in words: who was refused, who gave way, for whom.

use super::units;
use crate::run::house::Regime;
use crate::run::report::{Half, IdleReport, TenantReport};

/// Columns a sentence may take.
const WIDTH: usize = 100;

/// Who was refused, in a sentence.
pub(super) fn verdict(regime: Regime, half: &Half) -> String {
    let (runaways, others) = (half.refused(true), half.refused(false));
    let (named, losses) = (listed(&runaways, name), listed(&others, loss));
    let who = match (runaways.is_empty(), others.is_empty()) {
        (true, true) => "nobody was refused".to_owned(),
        (false, true) => format!("only {named} was refused"),
        (true, false) => format!("refused were statements of {losses}"),
        (false, false) => format!("{named} was refused, and others suffered: {losses}"),
    };
    wrapped(&format!("{}, {who}.", begun(regime.title())))
}

fn name(tenant: &TenantReport) -> String {
    format!("`{}`", tenant.name)
}

fn loss(tenant: &TenantReport) -> String {
    let (refused, all) = (units::count(tenant.refused), units::count(tenant.refused + tenant.done));
    format!("`{}` ({refused} of {all} statements)", tenant.name)
}

fn listed(tenants: &[&TenantReport], show: fn(&TenantReport) -> String) -> String {
    joined(&tenants.iter().map(|tenant| show(tenant)).collect::<Vec<_>>())
}

/// "a, b and c".
fn joined(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// All that SQLite says by itself; the report says it already.
const NO_MORE_THAN_REFUSED: &str = "out of memory";

/// What the first refusal of each tenant said, where it said more than that; `where_it_was` follows the name.
pub(super) fn first_refusals(half: &Half, where_it_was: &str) -> String {
    let mut text = String::new();
    for tenant in &half.tenants {
        if let Some(refusal) = tenant.first_refusal.as_deref().filter(|&text| text != NO_MORE_THAN_REFUSED) {
            text.push_str(&wrapped(&format!("First refusal of `{}`{where_it_was}: {refusal}", tenant.name)));
        }
    }
    text
}

/// Which idle tenants gave way; nothing where nothing was taken. Where no cache gives way, what the idle kept.
pub(super) fn gave_way(regime: Regime, half: &Half) -> String {
    let idle = half.tenants.iter().filter_map(|tenant| Some((tenant, tenant.idle?)));
    idle.map(|(tenant, idle)| idle_since(regime, half, tenant, idle)).collect()
}

/// For whom room was made, the most first; nothing where none was. Nobody knows whose memory went to whom, but what an
/// idle tenant gave up went to others.
pub(super) fn room_made(half: &Half) -> String {
    let gained = |tenant: &TenantReport| tenant.statistics.map_or(0, |statistics| statistics.memory.gained);
    let mut gainers: Vec<(u64, &str)> =
        half.tenants.iter().map(|tenant| (gained(tenant), tenant.name.as_str())).collect();
    gainers.retain(|&(bytes, _)| bytes > 0);
    gainers.sort_by_key(|&(bytes, _)| std::cmp::Reverse(bytes));
    if gainers.is_empty() {
        return String::new();
    }
    let shares: Vec<String> =
        gainers.iter().map(|&(bytes, name)| format!("{} for `{name}`", units::bytes(bytes))).collect();
    wrapped(&format!("Room that caches made, a tenant's own included: {}.", joined(&shares)))
}

fn idle_since(regime: Regime, half: &Half, tenant: &TenantReport, idle: IdleReport) -> String {
    let who = format!("`{}`, idle since second {:.1},", tenant.name, idle.since_seconds);
    let (then, now) = (units::bytes(idle.page_cache), units::bytes(tenant.page_cache));
    match (idle.reclaimed, half.reclaim) {
        (Some(bytes), Some(true)) if bytes > 0 => wrapped(&format!(
            "{who} gave up {} for others: its page cache held {then} then and {now} at the end.",
            units::bytes(bytes)
        )),
        (_, Some(true)) => String::new(),
        _ => wrapped(&format!(
            "{}, {who} held {then} in its page cache then and {now} at the end.",
            begun(regime.title())
        )),
    }
}

/// `text`, as it begins a sentence.
fn begun(text: &str) -> String {
    let mut sentence = text.to_owned();
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    sentence
}

/// `text` in lines of at most `WIDTH` columns, the later ones indented.
pub(super) fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            lines.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines.push('\n');
    lines
}

#[cfg(test)]
mod tests {
    use super::{gave_way, room_made, wrapped};
    use crate::run::house::Regime;
    use crate::run::report::Half;
    use crate::run::report::tests::{half, idle, tenant};

    /// A half in which `archive` was idle and lost `reclaimed` of its 30M.
    fn with_archive(reclaimed: u64) -> Half {
        let mut half = half(0);
        half.tenants.push(idle(tenant("archive", "dashboards", 10, 0), 30 << 20, reclaimed));
        half
    }

    #[test]
    fn who_was_idle_and_gave_way_is_named_with_what_it_had() {
        let said = gave_way(Regime::Groups, &with_archive(10 << 20));
        let expected = "`archive`, idle since second 5.0, gave up 10.0M for others: its page cache held 30.0M then and \
                        20.0M at the end.";
        assert_eq!(said.split_whitespace().collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn where_nothing_was_taken_nothing_is_said() {
        assert_eq!(gave_way(Regime::Groups, &with_archive(0)), "");
        let mut still = half(0);
        assert_eq!(gave_way(Regime::Groups, &still), "", "nobody was idle");
        for tenant in &mut still.tenants {
            tenant.statistics = None;
        }
        assert_eq!(room_made(&still), "");
    }

    #[test]
    fn where_no_cache_gives_way_what_the_idle_kept_is_said() {
        let mut off = with_archive(0);
        off.reclaim = Some(false);
        let kept =
            "`archive`, idle since second 5.0, held 30.0M in its page cache then and 30.0M at the end.";
        let said =
            |regime, half: &Half| gave_way(regime, half).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(said(Regime::Groups, &off), format!("With memgroup, {kept}"));
        off.reclaim = None;
        assert_eq!(said(Regime::HeapLimit, &off), format!("With SQLite's heap limit, {kept}"));
    }

    #[test]
    fn those_for_whom_room_was_made_are_listed_the_most_first() {
        let mut half = with_archive(0);
        for (tenant, gained) in half.tenants.iter_mut().zip([1 << 20, 7 << 20, 0]) {
            tenant.statistics.as_mut().expect("there are some").memory.gained = gained;
        }
        assert_eq!(
            room_made(&half),
            "Room that caches made, a tenant's own included: 7.0M for `runaway` and 1.0M for `lookups`.\n"
        );
    }

    #[test]
    fn long_texts_are_wrapped_between_words() {
        let text = wrapped(&"word ".repeat(50));
        assert_eq!(text.split_whitespace().count(), 50);
        assert!(text.lines().all(|line| line.len() <= 100) && text.lines().count() == 3, "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(wrapped("short"), "short\n");
    }
}
