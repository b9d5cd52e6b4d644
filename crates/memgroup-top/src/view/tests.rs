use std::time::Duration;

use memgroup::{Config, Hierarchy, Snapshot};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{Act, POINTS, Sort, View};
use crate::screen::paint;

/// `/a` uses 1, `/b` uses 5 of 5 and refused twice, `/b/deep` uses 3, `/c` uses 2 after a peak of
/// 9.
fn tree() -> Snapshot {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a hierarchy");
    let make = |path: &str| hierarchy.create(path).expect("a group");
    let (a, b, deep, c) = (make("/a"), make("/b"), make("/b/deep"), make("/c"));
    b.set_max(5).expect("a limit");
    drop(c.try_charge(9).expect("room"));
    let _held =
        [(&a, 1), (&b, 2), (&deep, 3), (&c, 2)].map(|(group, bytes)| group.try_charge(bytes).expect("room"));
    for _ in 0..2 {
        b.try_charge(4).expect_err("no room");
    }
    hierarchy.snapshot()
}

fn paths(view: &View) -> Vec<&str> {
    view.order.iter().map(|&at| view.groups[at].path.as_str()).collect()
}

fn press(view: &mut View, code: KeyCode) -> Act {
    view.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn drawn(view: &mut View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|canvas| paint(canvas, view, "/run/m.sock")).expect("a frame");
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect()
}

#[test]
fn sorts_groups_beside_each_other_by_each_figure() {
    let mut view = View::default();
    view.update(Ok(tree()));
    assert_eq!(paths(&view), ["/", "/a", "/b", "/b/deep", "/c"]);
    let names = ["/", "/a", "/b", "/b/deep", "/c"];
    for (key, expected) in [
        ('u', ["/", "/b", "/b/deep", "/c", "/a"]),
        ('p', ["/", "/c", "/b", "/b/deep", "/a"]),
        ('r', ["/", "/b", "/b/deep", "/a", "/c"]),
        ('s', names),
        ('n', names),
    ] {
        assert_eq!(press(&mut view, KeyCode::Char(key)), Act::Redraw);
        assert_eq!(paths(&view), expected, "{key}");
    }
}

#[test]
fn filters_by_text_and_keeps_the_groups_above() {
    let mut view = View::new(Sort::Name, "");
    view.update(Ok(tree()));
    press(&mut view, KeyCode::Char('/'));
    for letter in "DEx".chars() {
        press(&mut view, KeyCode::Char(letter));
    }
    assert_eq!(paths(&view), ["/"], "no path has the text");
    assert!(drawn(&mut view, 80, 8)[7].starts_with("filter: DEx_"));
    press(&mut view, KeyCode::Backspace);
    assert_eq!(paths(&view), ["/", "/b", "/b/deep"]);
    press(&mut view, KeyCode::Enter);
    assert_eq!(press(&mut view, KeyCode::Char('q')), Act::Quit);
    assert!(drawn(&mut view, 160, 8)[7].contains("with \"DE\""), "{:?}", drawn(&mut view, 160, 8));
    press(&mut view, KeyCode::Esc);
    assert_eq!(paths(&view).len(), 5);
}

#[test]
fn keeps_the_selection_with_its_group() {
    let mut view = View::default();
    view.update(Ok(tree()));
    press(&mut view, KeyCode::Down);
    assert_eq!(view.group().map(|group| &*group.path), Some("/a"));
    press(&mut view, KeyCode::Char('u'));
    assert_eq!((view.line(), view.group().map(|group| &*group.path)), (4, Some("/a")));
    press(&mut view, KeyCode::End);
    press(&mut view, KeyCode::Down);
    assert_eq!(view.line(), 4);
    press(&mut view, KeyCode::Home);
    assert_eq!(view.line(), 0);
}

#[test]
fn shows_the_history_of_one_group() {
    let mut view = View::default();
    let mut tree = tree();
    for step in 0..POINTS as u64 + 5 {
        tree.taken += Duration::from_secs(1);
        tree.groups[2].refusals += 3;
        tree.groups[2].usage_bytes = step;
        view.update(Ok(tree.clone()));
    }
    press(&mut view, KeyCode::Down);
    press(&mut view, KeyCode::Down);
    press(&mut view, KeyCode::Enter);
    let points: Vec<_> = view.points().collect();
    assert_eq!((points.len(), points[POINTS - 1].usage, points[9].refused), (POINTS, POINTS as u64 + 4, 3));
    let lines = drawn(&mut view, 80, 30);
    assert_eq!(lines[0], "/run/m.sock, 5 groups, usage 8, peak 9");
    assert_eq!(lines[2], "group     /b");
    for line in ["usage, the last 80 snapshots, at most 604", "refused, the last 80 snapshots, at most 3"] {
        assert!(lines.iter().any(|found| found == line), "{line} {lines:?}");
    }
    assert!(lines.iter().any(|line| line.starts_with("███")), "{lines:?}");
    // A step back in a replay forgets later points.
    view.is_replay = true;
    tree.taken -= Duration::from_secs(2);
    view.update(Ok(tree));
    assert_eq!(view.points().count(), POINTS - 2);
    press(&mut view, KeyCode::Esc);
    assert!(!view.is_detail);
}

#[test]
fn shows_that_the_program_is_gone_until_it_is_back() {
    let mut view = View::default();
    view.update(Ok(tree()));
    view.update(Err("connect: refused".to_owned()));
    let lines = drawn(&mut view, 120, 8);
    assert!(
        lines[0].starts_with("/run/m.sock, as of ") && lines[0].ends_with(": connect: refused"),
        "{lines:?}"
    );
    assert!(lines[2].starts_with("/ "), "the last snapshot stays: {lines:?}");
    view.update(Ok(tree()));
    assert_eq!(drawn(&mut view, 120, 8)[0], "/run/m.sock, 5 groups, usage 8, peak 9");
    assert_eq!(view.points().count(), 1, "a program that comes back has a new history");
}

#[test]
fn scrolls_to_the_selected_group_and_fits_any_size() {
    let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
    for number in 0..99 {
        hierarchy.root().create(&format!("{number:03}")).expect("a group");
    }
    let mut view = View::default();
    view.update(Ok(hierarchy.snapshot()));
    drawn(&mut view, 80, 13);
    press(&mut view, KeyCode::PageDown);
    assert!(drawn(&mut view, 80, 13)[11].starts_with("  009 "));
    press(&mut view, KeyCode::End);
    assert!(drawn(&mut view, 80, 13)[11].starts_with("  098 "));
    for is_detail in [false, true] {
        view.is_detail = is_detail;
        for (width, height) in [(0, 0), (1, 1), (7, 2), (20, 3), (59, 12), (300, 90)] {
            drawn(&mut view, width, height);
        }
    }
}

#[test]
fn has_keys_of_a_replay_in_a_replay_only() {
    let mut view = View::default();
    let keys = [KeyCode::Char(' '), KeyCode::Left, KeyCode::Right, KeyCode::Char('+'), KeyCode::Char('-')];
    assert_eq!(keys.map(|code| press(&mut view, code)), [Act::None; 5]);
    view.is_replay = true;
    let acts = [Act::Pause, Act::Step(-1), Act::Step(1), Act::Speed(1), Act::Speed(-1)];
    assert_eq!(keys.map(|code| press(&mut view, code)), acts);
    let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.key(end), Act::Quit);
}
