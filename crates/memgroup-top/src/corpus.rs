//! Snapshots of a program that may be any, from `corpus/snapshots` and made of them.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use xtask::corpus;

use super::attach::Shot;
use super::screen::{paint, printed};
use super::view::{Sort, View};

#[test]
fn a_snapshot_is_shown_or_refused() {
    let mut terminal = Terminal::new(TestBackend::new(130, 30)).expect("a terminal");
    let mut view = View::default();
    corpus::run("snapshots", 2000, |input| match Shot::of(input.to_vec()) {
        Ok(shot) => {
            assert!(!shot.json.contains(&b'\n'), "one line");
            let groups = shot.snapshot.groups.len();
            view.update(Ok(shot.snapshot));
            assert_eq!(view.order.len(), groups);
            let plain = printed(&view, "now");
            assert!(!plain.contains(|c: char| c.is_control() && c != '\n'), "{plain:?}");
            for key in
                ['u', 'p', 'r', 's', 'n'].map(KeyCode::Char).into_iter().chain([KeyCode::End, KeyCode::Enter])
            {
                view.key(KeyEvent::new(key, KeyModifiers::NONE));
                assert_eq!(view.order.len(), groups);
                terminal.draw(|canvas| paint(canvas, &mut view, "now")).expect("a frame");
            }
            view.sort = Sort::Name;
        }
        Err(error) => assert!(error.starts_with("read a snapshot: ") && error.len() < 300, "{error}"),
    });
}
