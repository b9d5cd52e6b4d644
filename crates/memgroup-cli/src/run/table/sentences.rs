//! What a run came to, in words: who was refused, who gave way, for whom.

use super::units;
use crate::run::house::Regime;
use crate::run::kills::Kills;
use crate::run::report::{Half, IdleReport, TenantReport};

/// Columns a sentence may take.
const WIDTH: usize = 100;

/// Who was refused or stopped, in a sentence.
pub(super) fn verdict(regime: Regime, half: &Half) -> String {
    let (runaways, others) = (half.with(TenantReport::lost, true), half.with(TenantReport::lost, false));
    let lost = |of: fn(&TenantReport) -> u64| runaways.iter().chain(&others).any(|tenant| of(tenant) > 0);
    let what = match (lost(|tenant| tenant.refused), lost(|tenant| tenant.killed)) {
        (_, false) => "refused",
        (false, true) => "stopped",
        (true, true) => "refused or stopped",
    };
    let (named, losses) = (listed(&runaways, name), listed(&others, loss));
    let who = match (runaways.is_empty(), others.is_empty()) {
        (true, true) => format!("nobody was {what}"),
        (false, true) => format!("only {named} was {what}"),
        (true, false) => format!("{what} were statements of {losses}"),
        (false, false) => format!("{named} was {what}, and others suffered: {losses}"),
    };
    wrapped(&format!("{}, {who}.", begun(regime.title())))
}

/// Who was stopped how often for whom, and how soon its bytes were free; a line for each who was.
pub(super) fn stopped(half: &Half) -> String {
    let kills: Vec<&Kills> = half.kills.iter().flatten().filter(|kills| kills.stopped() > 0).collect();
    let mut victims: Vec<&str> = kills.iter().map(|kills| kills.victim.as_str()).collect();
    victims.sort_unstable();
    victims.dedup();
    let line = |victim: &str| {
        let mut of: Vec<&Kills> = kills.iter().copied().filter(|kills| kills.victim == victim).collect();
        of.sort_by_key(|kills| std::cmp::Reverse(kills.stopped()));
        stopped_for(victim, &of)
    };
    victims.into_iter().map(line).collect()
}

/// Whose statements were tried again because they found no memory, and so may have been done after all.
pub(super) fn retried(regime: Regime, half: &Half) -> String {
    let tenants: Vec<&TenantReport> = half.tenants.iter().filter(|tenant| tenant.retried > 0).collect();
    if tenants.is_empty() {
        return String::new();
    }
    let each = listed(&tenants, |tenant| format!("`{}` ({})", tenant.name, units::count(tenant.retried)));
    wrapped(&format!(
        "{}, statements that found no memory were tried again: of {each}.",
        begun(regime.title())
    ))
}

/// Who had no turn: the one after whom it comes was at work to the end.
pub(super) fn never_began(regime: Regime, half: &Half) -> String {
    let statements = |tenant: &TenantReport| tenant.done + tenant.lost() + tenant.interrupted;
    let tenants: Vec<&TenantReport> = half.tenants.iter().filter(|&tenant| statements(tenant) == 0).collect();
    if tenants.is_empty() {
        return String::new();
    }
    let each = listed(&tenants, name);
    wrapped(&format!("{}, no statement of {each} began before the run was over.", begun(regime.title())))
}

/// Whose limits only measure, and what they would have refused.
pub(super) fn measured(half: &Half) -> String {
    let would = half
        .tenants
        .iter()
        .filter_map(|tenant| Some((name(tenant), tenant.would_refuse.filter(|&count| count > 0)?)));
    let line = |(name, count): (String, u64)| {
        let charges =
            if count == 1 { "1 charge".to_owned() } else { format!("{} charges", units::count(count)) };
        wrapped(&format!("The limit of {name} is not enforced: it would have refused {charges}."))
    };
    would.map(line).collect()
}

fn stopped_for(victim: &str, kills: &[&Kills]) -> String {
    let times = |count| if count == 1 { "once".to_owned() } else { format!("{} times", units::count(count)) };
    let mut requesters: Vec<(&str, u64)> = Vec::new();
    for kills in kills {
        match requesters.iter_mut().find(|(name, _)| *name == kills.requester) {
            Some((_, count)) => *count += kills.stopped(),
            None => requesters.push((&kills.requester, kills.stopped())),
        }
    }
    let for_whom = match &requesters[..] {
        [(name, _)] => format!(" for `{name}`"),
        many => {
            let each = many.iter().map(|(name, count)| format!("{} for `{name}`", units::count(*count)));
            format!(", {}", each.collect::<Vec<_>>().join(", "))
        }
    };
    let mut took: Vec<u64> = kills.iter().flat_map(|kills| kills.took_us.iter().copied()).collect();
    took.sort_unstable();
    let soon = match took[..] {
        [] => String::new(),
        [one] => format!("; half of its bytes were free after {}", units::duration_us(one as f64)),
        [.., last] => format!(
            "; half of its bytes were free after {} (median), {} at most",
            units::duration_us(took[took.len() / 2] as f64),
            units::duration_us(last as f64)
        ),
    };
    let overdue = match kills.iter().map(|kills| kills.overdue).sum::<u64>() {
        0 => String::new(),
        count => format!("; {} it was too slow, and was passed over", times(count)),
    };
    let all = kills.iter().map(|kills| kills.stopped()).sum();
    wrapped(&format!("`{victim}` was stopped {}{for_whom}{soon}{overdue}.", times(all)))
}

fn name(tenant: &TenantReport) -> String {
    format!("`{}`", tenant.name)
}

fn loss(tenant: &TenantReport) -> String {
    let (lost, all) = (units::count(tenant.lost()), units::count(tenant.lost() + tenant.done));
    format!("`{}` ({lost} of {all} statements)", tenant.name)
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
pub(super) fn begun(text: &str) -> String {
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
    use super::{gave_way, measured, never_began, retried, room_made, stopped, verdict, wrapped};
    use crate::run::house::Regime;
    use crate::run::kills::Kills;
    use crate::run::report::Half;
    use crate::run::report::tests::{half, idle, kills, tenant};

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

    fn joined_lines(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn who_was_stopped_is_named_with_those_for_whom_the_most_first() {
        let mut half = half(0);
        half.kills = Some(vec![
            kills("runaway", "dashboards", vec![8_000, 1_000]),
            Kills { full: "/".to_owned(), ..kills("runaway", "etl", vec![31_000]) },
            kills("runaway", "etl", vec![9_000, 2_000, 8_500]),
            Kills { died: 0, refused: 70, ..kills("runaway", "runaway", vec![]) },
        ]);
        assert_eq!(
            joined_lines(&stopped(&half)),
            "`runaway` was stopped 6 times, 4 for `etl`, 2 for `dashboards`; half of its bytes were free after 8.5 ms \
             (median), 31.0 ms at most."
        );
        half.kills = Some(vec![
            Kills { died: 0, overdue: 1, ..kills("hog", "etl", vec![1_200_000]) },
            Kills { idle: 4, ..kills("archive", "etl", vec![]) },
        ]);
        assert_eq!(
            joined_lines(&stopped(&half)),
            "`hog` was stopped once for `etl`; half of its bytes were free after 1.20 s; once it was too slow, and was \
             passed over."
        );
        half.kills = None;
        assert_eq!(stopped(&half), "");
    }

    #[test]
    fn what_a_limit_that_only_measures_would_have_refused_is_told() {
        let mut half = half(0);
        assert_eq!(measured(&half), "");
        half.tenants[1].would_refuse = Some(1_200);
        let said = "The limit of `runaway` is not enforced: it would have refused 1,200 charges.\n";
        assert_eq!(measured(&half), said);
    }

    #[test]
    fn who_had_no_turn_is_told() {
        let mut half = half(0);
        assert_eq!(never_began(Regime::Groups, &half), "");
        (half.tenants[0].done, half.tenants[0].interrupted) = (0, 0);
        let said = "With memgroup, no statement of `lookups` began before the run was over.\n";
        assert_eq!(never_began(Regime::Groups, &half), said);
    }

    #[test]
    fn whose_statements_were_tried_again_is_told() {
        let mut half = half(0);
        assert_eq!(retried(Regime::Groups, &half), "");
        (half.tenants[0].retried, half.tenants[1].retried) = (3, 1_000);
        let said = "With SQLite's heap limit, statements that found no memory were tried again: of `lookups` (3) and \
                    `runaway` (1,000).";
        assert_eq!(joined_lines(&retried(Regime::HeapLimit, &half)), said);
    }

    #[test]
    fn the_verdict_tells_refusals_from_stops() {
        let said = |refused, killed, innocent| {
            let mut half = half(0);
            (half.tenants[1].refused, half.tenants[1].killed, half.tenants[0].killed) =
                (refused, killed, innocent);
            joined_lines(&verdict(Regime::Groups, &half))
        };
        assert_eq!(said(0, 0, 0), "With memgroup, nobody was refused.");
        assert_eq!(said(1, 0, 0), "With memgroup, only `runaway` was refused.");
        assert_eq!(said(0, 1, 0), "With memgroup, only `runaway` was stopped.");
        assert_eq!(said(1, 1, 0), "With memgroup, only `runaway` was refused or stopped.");
        assert_eq!(
            said(0, 0, 2),
            "With memgroup, stopped were statements of `lookups` (2 of 1,234,569 statements)."
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
