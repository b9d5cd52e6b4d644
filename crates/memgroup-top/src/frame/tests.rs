use memgroup::{Charge, Config, Hierarchy, Snapshot};

use super::{ALARM, Frame, WARNING, events, fit};

/// A tree as in a run, its charges, and one removed group.
fn tree() -> (Hierarchy, Vec<Charge>) {
    // Without stock every figure equals the charged bytes.
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a hierarchy");
    let tenants = hierarchy.create("/tenants").expect("a group");
    tenants.set_max(100 << 20).expect("a limit");
    let mut charges = Vec::new();
    let mut make = |name: &str, max: Option<u64>, peak: u64, usage: u64| {
        let group = tenants.create(name).expect("a group");
        group.set_max(max).expect("a limit");
        drop(group.try_charge(peak).expect("room"));
        charges.push(group.try_charge(usage).expect("room"));
        group
    };
    let lookups = make("lookups", Some(12 << 20), 9 << 20, 8 << 20);
    lookups.set_min(6 << 20).expect("a protection");
    let dashboards = make("dashboards", Some(16 << 20), 16 << 20, 13 << 20);
    dashboards.set_low(4 << 20).expect("a protection");
    dashboards.set_high(15 << 20).expect("a soft limit");
    let runaway = make("runaway", Some(24 << 20), 24 << 20, 24 << 20);
    for _ in 0..1234 {
        runaway.try_charge(1).expect_err("no room");
    }
    make("unlimited-with-a-name-that-is-far-too-long", None, 1, 1);
    let gone = make("gone", Some(1 << 20), 1 << 10, 1 << 10);
    gone.remove().expect("no children");
    (hierarchy, charges)
}

fn frame(tree: &Snapshot) -> Frame<'_> {
    static ALL: [usize; 1_000] = {
        let (mut all, mut at) = ([0; 1_000], 0);
        while at < all.len() {
            all[at] = at;
            at += 1;
        }
        all
    };
    Frame { groups: &tree.groups, order: &ALL[..tree.groups.len()], time: "3.2 of 20 s".to_owned() }
}

fn text(width: usize) -> String {
    let (hierarchy, _charges) = tree();
    frame(&hierarchy.snapshot()).text(width, 40)
}

#[test]
fn matches_the_golden_frames_of_nine_widths() {
    for (width, golden) in [
        (20, include_str!("golden/20.txt")),
        (40, include_str!("golden/40.txt")),
        (50, include_str!("golden/50.txt")),
        (60, include_str!("golden/60.txt")),
        (80, include_str!("golden/80.txt")),
        (110, include_str!("golden/110.txt")),
        (120, include_str!("golden/120.txt")),
        (150, include_str!("golden/150.txt")),
        (200, include_str!("golden/200.txt")),
    ] {
        assert_eq!(text(width), golden, "{width}");
    }
}

#[test]
fn shows_the_share_of_a_group_without_a_limit() {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a hierarchy");
    let tenants = hierarchy.create("/tenants").expect("a group");
    tenants.set_max(90 << 20).expect("a limit");
    tenants.set_share(8).expect("shares");
    let [a, b] = ["a", "b"].map(|name| tenants.create(name).expect("a group"));
    b.set_max(40 << 20).expect("a limit");
    let _held = [&a, &b].map(|group| group.try_charge(10 << 20).expect("room"));
    let text = frame(&hierarchy.snapshot()).text(60, 40);
    // Of 90M each of two has 8/17, 42.4M, and one alone may have 71.1M.
    let expected = "    a       ##......e...........     10.0M  ~71.1M         0";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("    b      [#####...............]"), "{text}");
    let text = frame(&hierarchy.snapshot()).text(120, 40);
    assert!(text.contains("   excess    given  received  last to"), "{text}");
}

#[test]
fn keeps_names_and_usage_on_narrow_lines() {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a hierarchy");
    let group = hierarchy.create("/tenants").and_then(|tenants| tenants.create("archive")).expect("a group");
    let charge = group.try_charge(45 << 20).expect("no limit");
    let tree = hierarchy.snapshot();
    for width in 18..=150 {
        let row = frame(&tree).rows(width, 2, 1)[0].to_string();
        assert!(row.trim_start().starts_with("archive ") && row.contains(" 45.0M"), "{width}: {row:?}");
    }
    for width in 9..17 {
        let row = frame(&tree).rows(width, 2, 1)[0].to_string();
        assert_eq!(row.trim(), "archive", "{width}");
    }
    drop(charge);
}

#[test]
fn counts_a_removed_group_until_it_is_released() {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a hierarchy");
    let heading = || frame(&hierarchy.snapshot()).heading(100).to_string();
    let group = hierarchy.create("/gone").expect("a group");
    let charge = group.try_charge(1).expect("no limit");
    group.remove().expect("no children");
    assert!(heading().ends_with("usage 1, peak 1, 1 removed and still held"), "{}", heading());
    drop(charge);
    assert!(heading().ends_with("usage 0, peak 1, 1 removed and still held"), "{}", heading());
    drop(group);
    assert!(heading().ends_with("usage 0, peak 1"), "{}", heading());
}

#[test]
fn shows_the_severest_events_first() {
    let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
    let mut root = hierarchy.snapshot().groups[0].clone();
    assert_eq!(events(&root), "-");
    root.events.low = 2_299;
    assert_eq!(events(&root), "low 2,299");
    root.events.max = 26_896;
    root.events.high = 146_257;
    assert_eq!(events(&root), "max 26,896, high 146,257, low 2,299");
    root.events.oom = 142;
    assert_eq!(events(&root), "oom 142, max 26,896, high 146,257…");
    root.events.oom_kill = 6;
    assert_eq!(events(&root), "oom_kill 6, oom 142, max 26,896…");
    root.events.oom_group_kill = 100_000;
    assert_eq!(events(&root), "oom_group_kill 100,000, oom_kill 6…");
}

#[test]
fn fits_every_line_into_any_width() {
    let (hierarchy, _charges) = tree();
    let mut deep = hierarchy.root();
    for _ in 0..16 {
        deep = deep.create("日本語-ä").expect("a group");
    }
    let tree = hierarchy.snapshot();
    for width in 0..=220 {
        let frame = frame(&tree);
        let lines = [vec![frame.heading(width), frame.titles(width)], frame.rows(width, 0, 100)].concat();
        assert_eq!(lines.len(), 2 + tree.groups.len());
        for line in lines {
            assert!(line.width() <= width, "{width}: {line:?}");
        }
    }
}

#[test]
fn shows_the_name_of_a_deep_group() {
    let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
    let mut deep = hierarchy.root();
    for level in 1..=16 {
        deep = deep.create(&format!("l{level}")).expect("a group");
    }
    let tree = hierarchy.snapshot();
    for width in [60, 80, 120] {
        let text = frame(&tree).text(width, 40);
        for level in 1..=16 {
            let name = format!(" l{level} ");
            assert!(text.lines().any(|line| line.contains(&name)), "{name}at {width}: {text}");
        }
    }
}

#[test]
fn counts_the_groups_that_do_not_fit() {
    let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
    for number in 0..999 {
        hierarchy.root().create(&format!("{number:03}")).expect("a group");
    }
    let tree = hierarchy.snapshot();
    let text = frame(&tree).text(100, 60);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), lines[62]), (63, "... 940 more"));
    assert!(lines[2].starts_with("/ ") && lines[61].starts_with("  058 "), "{text}");
}

#[test]
fn colours_a_bar_by_its_usage() {
    use ratatui::style::Color;
    let (hierarchy, _charges) = tree();
    let tree = hierarchy.snapshot();
    let frame = frame(&tree);
    let colour = |name: &str| {
        let group = tree.groups.iter().find(|group| group.name == name).expect("a group");
        frame.bar(group, 20).1.fg
    };
    assert_eq!(colour("lookups"), Some(Color::Green));
    assert_eq!(colour("dashboards"), Some(Color::Yellow));
    assert_eq!(colour("runaway"), Some(Color::Red));
    assert_eq!(colour(""), None, "the root has no limit");
}

#[test]
fn colours_a_bar_from_the_same_shares_as_the_page() {
    use ratatui::style::Color;
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a hierarchy");
    hierarchy.root().set_max(1000).expect("a limit");
    for (bytes, colour) in
        [(749, Color::Green), (750, Color::Yellow), (899, Color::Yellow), (900, Color::Red)]
    {
        let _charge = hierarchy.root().try_charge(bytes).expect("room");
        let tree = hierarchy.snapshot();
        assert_eq!(frame(&tree).bar(&tree.groups[0], 20).1.fg, Some(colour), "{bytes} of 1000");
    }
    let page = include_str!("../../../memgroup-serve/page/text.js");
    let levels = format!(r#"ratio >= {ALARM} ? "full" : ratio >= {WARNING} ? "near""#);
    assert!(page.contains(&levels), "the page has other shares");
}

#[test]
fn cuts_texts_of_any_length() {
    assert_eq!([fit("abc", 3), fit("abcd", 3), fit("äöüß", 3), fit("abc", 0)], ["abc", "ab…", "äö…", ""]);
    assert_eq!(fit(&"é".repeat(1 << 22), 4), "ééé…");
    // A combining mark has no width.
    assert_eq!(fit(&format!("a{}", "\u{301}".repeat(1 << 22)), 4).chars().last(), Some('…'));
}
