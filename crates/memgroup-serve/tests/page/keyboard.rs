//! The page is used by keyboard alone.

use serde_json::Value;

use crate::browser::{Browser, key};
use crate::fixture::{CONTROL, Shown, hierarchy};

/// The element that has the focus: its id, or its label, or its text.
const FOCUS: &str = "(at => at.id || at.getAttribute('aria-label') || (at.closest('.head') ? 'sort by ' : '') + at.textContent)(document.activeElement)";

/// Presses Tab until this element has the focus.
fn tab_to(browser: &Browser, name: &str) {
    while browser.get(FOCUS) != name {
        browser.press(key::TAB);
    }
}

#[test]
fn each_part_has_a_place_among_the_tab_stops_and_shows_its_focus() {
    let hierarchy = hierarchy();
    hierarchy.create("/alice").unwrap();
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    let mut stops: Vec<String> = Vec::new();
    loop {
        browser.press(key::TAB);
        let stop = browser.get(FOCUS).as_str().unwrap().to_owned();
        if stops.contains(&stop) || browser.get("document.activeElement === document.body") == true {
            break;
        }
        let outline = browser.get("getComputedStyle(document.activeElement).outlineStyle");
        assert_ne!(outline, "none", "{stop} shows no focus");
        stops.push(stop);
    }
    let expected = [
        "/",
        "/: ",
        "filter",
        "only",
        "table",
        "sort by group",
        "sort by usage",
        "sort by of limit",
        "sort by waits",
        "set-max",
        "Set memory.max",
        "set-share",
        "Usage of /",
        "waits",
        "kinds",
        "log",
    ];
    for expected in expected {
        assert!(stops.iter().any(|stop| stop.starts_with(expected)), "{expected:?} is not among {stops:?}");
    }
    assert!(stops.len() >= 30, "{stops:?}");
}

#[test]
fn groups_are_found_chosen_and_limited_by_keys() {
    let hierarchy = hierarchy();
    let usages = [("/a", 3), ("/a/one", 2), ("/a/two", 1), ("/b", 1), ("/c", 0)];
    let _charges =
        usages.map(|(path, bytes)| hierarchy.create(path).unwrap().charge_forced(bytes << 20).unwrap());
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    let is_title = |path: &str| {
        browser.until(&format!("document.querySelector('#group-title').textContent === 'Group {path}'"))
    };
    // The table: sorts by path, goes to a group, zooms to it.
    tab_to(browser, "sort by group");
    browser.press(key::ENTER);
    assert_eq!(browser.get("document.querySelector('#table .head .path').ariaSort"), "ascending");
    tab_to(browser, "filter");
    tab_to(browser, "table");
    for (keys, path) in [
        (key::DOWN, "/a"),
        (key::DOWN, "/a/one"),
        (key::DOWN, "/a/two"),
        (key::UP, "/a/one"),
        (key::END, "/memgroup-serve"),
        (key::HOME, "/"),
        (key::DOWN, "/a"),
    ] {
        browser.press(keys);
        is_title(path);
        let active = "document.getElementById(document.querySelector('#table').getAttribute('aria-activedescendant')).querySelector('.path').title";
        assert_eq!(browser.get(active), path);
    }
    browser.press(key::ENTER);
    assert_eq!(browser.text("#path [aria-current]"), "a");
    assert_eq!(browser.text("#count"), "3 of 3");
    // The icicle: to the cell below, to its neighbour, back out.
    while !browser.get(FOCUS).as_str().unwrap().starts_with("/a: ") {
        browser.press(key::TAB);
    }
    let focus = |path: &str| browser.until(&format!("({FOCUS}).startsWith({path:?} + ': ')"));
    browser.press(key::DOWN);
    focus("/a/one");
    browser.press(key::END);
    focus("/a/two");
    browser.press(key::LEFT);
    focus("/a/one");
    browser.press(key::ENTER);
    is_title("/a/one");
    browser.press(key::UP);
    focus("/a");
    browser.press(key::ESCAPE);
    focus("/");
    assert_eq!(browser.text("#path [aria-current]"), "/");
    // The filter, and a limit.
    tab_to(browser, "filter");
    browser.press("/B");
    browser.until("document.querySelector('#count').textContent.startsWith('1 of ')");
    tab_to(browser, "table");
    browser.press(key::HOME);
    is_title("/b");
    tab_to(browser, "set-max");
    // A field that is reached by Tab has its text selected.
    browser.press("5M");
    browser.press(key::ENTER);
    let group = hierarchy.lookup("/b").unwrap();
    while group.max() != Some(5 << 20) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(browser.console(), [] as [Value; 0]);
}
