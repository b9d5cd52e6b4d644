use std::sync::atomic::Ordering;

use memgroup::{Config, Hierarchy};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{Input, OPEN, View, paint, restore_on_every_end};
use crate::run::live::frame::Frame;
use crate::tree::Tree;

fn groups(count: usize) -> Tree {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a hierarchy");
    for number in 1..count {
        hierarchy.root().create(&format!("{number:03}")).expect("a group");
    }
    Tree::of(&hierarchy)
}

fn frame(tree: &Tree) -> Frame<'_> {
    Frame { tree, order: None, time: "1.0 of 20 s".to_owned(), tenants: &[] }
}

/// Lines of a terminal of that size.
fn drawn(tree: &Tree, width: u16, height: u16, view: &mut View) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|canvas| paint(canvas, &frame(tree), view)).expect("a frame");
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect()
}

#[test]
fn shows_groups_and_keys() {
    let lines = drawn(&groups(3), 60, 8, &mut View::default());
    assert_eq!(
        lines,
        [
            "1.0 of 20 s, 3 groups, usage 0, peak 0",
            "group     usage of max               usage     max   refused",
            "/                                        0     max         0",
            "  001                                    0     max         0",
            "  002                                    0     max         0",
            "q ends the run",
            "",
            "",
        ]
    );
}

#[test]
fn scrolls_within_a_thousand_groups() {
    let tree = groups(1000);
    let mut view = View::default();
    let mut press = |code| {
        assert_eq!(view.key(KeyEvent::new(code, KeyModifiers::NONE)), Input::Redraw);
        let lines = drawn(&tree, 80, 63, &mut view);
        (lines[2][..5].trim_end().to_owned(), lines[62].clone())
    };
    let shown = |group: &str, footer: &str| (group.to_owned(), footer.to_owned());
    let end = "q ends the run   up and down scroll";
    assert_eq!(press(KeyCode::Up), shown("/", &format!("... 940 more   {end}")));
    assert_eq!(press(KeyCode::Down), shown("  001", &format!("... 1 above, 939 more   {end}")));
    assert_eq!(press(KeyCode::PageDown), shown("  061", &format!("... 61 above, 879 more   {end}")));
    assert_eq!(press(KeyCode::End), shown("  940", &format!("... 940 above, 0 more   {end}")));
    assert_eq!(press(KeyCode::Down), shown("  940", &format!("... 940 above, 0 more   {end}")));
    assert_eq!(press(KeyCode::PageUp), shown("  880", &format!("... 880 above, 60 more   {end}")));
    assert_eq!(press(KeyCode::Home), shown("/", &format!("... 940 more   {end}")));
}

#[test]
fn ends_the_run_by_q_and_control_c_only() {
    let mut view = View::default();
    let mut press = |code, modifiers| view.key(KeyEvent::new(code, modifiers));
    assert_eq!(press(KeyCode::Char('q'), KeyModifiers::NONE), Input::End("q"));
    assert_eq!(press(KeyCode::Char('Q'), KeyModifiers::SHIFT), Input::End("q"));
    assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Input::End("Ctrl-C"));
    assert_eq!(press(KeyCode::Char('c'), KeyModifiers::NONE), Input::None);
}

#[test]
fn draws_on_a_terminal_of_any_size() {
    let tree = groups(20);
    for width in [0, 1, 2, 7, 20, 59, 60, 300] {
        for height in [0, 1, 2, 3, 4, 24] {
            drawn(&tree, width, height, &mut View::default());
        }
    }
}

#[test]
fn restores_the_terminal_after_a_panic_on_any_thread() {
    restore_on_every_end();
    // ORDERING: Release, and Acquire below, as in `Screen`.
    OPEN.store(true, Ordering::Release);
    std::thread::spawn(|| panic!("on purpose")).join().expect_err("it panics");
    assert!(!OPEN.load(Ordering::Acquire));
}
