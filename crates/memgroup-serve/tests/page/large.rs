//! The page with 10,000 groups: all of them can be reached, few elements are made, and the figures
//! of its cost are printed.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::browser::key;
use crate::fixture::{CONTROL, Shown, hierarchy};
use crate::tasks::{below, tasks};

const TENANTS: usize = 100;
const GROUPS: usize = 10_000;

/// CPU seconds of the browser's processes, of those that draw the page alone, and of the server.
fn seconds(driver: u32) -> [f64; 3] {
    let browser = below(driver);
    let browser = || browser.iter();
    let renderer = browser().filter(|task| task.command.contains("--type=renderer"));
    let server = tasks("/proc/self/task").into_iter().filter(|task| task.command.contains("memgroup-serve"));
    [
        browser().map(|task| task.seconds).sum(),
        renderer.map(|task| task.seconds).sum(),
        server.map(|task| task.seconds).sum(),
    ]
}

#[test]
fn ten_thousand_groups_are_shown() {
    let hierarchy = hierarchy();
    let mut groups = Vec::new();
    for tenant in 0..TENANTS {
        let above = hierarchy.get_or_create(&format!("/tenants/tenant-{tenant:03}")).unwrap();
        above.set_max(256 << 20).unwrap();
        groups.extend(
            (0..GROUPS / TENANTS).map(|number| above.create(&format!("session-{number:03}")).unwrap()),
        );
    }
    let charge = |group: &memgroup::Group, at: usize| {
        group.charge_forced(4096 * (1 + (at * 7919) % 997) as u64).unwrap()
    };
    let mut charges: Vec<_> = groups.iter().zip(0..).map(|(group, at)| charge(group, at)).collect();
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    let mut usable = Vec::new();
    for _ in 0..3 {
        browser.get("location.reload()");
        browser.until("performance.getEntriesByName('usable').length > 0");
        usable.push(browser.get("performance.getEntriesByName('usable')[0].startTime").as_f64().unwrap());
    }
    usable.sort_by(f64::total_cmp);
    let all = GROUPS + TENANTS + 3;
    assert_eq!(browser.text("#count"), format!("10,{} of 10,{}", all - 10_000, all - 10_000));
    let elements = browser.get("document.querySelectorAll('*').length").as_u64().unwrap();
    assert!(elements < 3000, "{elements} elements");

    browser.get("(performance.clearResourceTimings(), performance.setResourceTimingBufferSize(10000))");
    // Every usage changes each second, as in a busy program.
    let (before, began) = (seconds(browser.driver.id()), Instant::now());
    for second in 1..=5 {
        for (at, place) in charges.iter_mut().enumerate() {
            *place = charge(&groups[at], at + second);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    let (after, passed) = (seconds(browser.driver.id()), began.elapsed().as_secs_f64());
    let updates = browser.get(
        "performance.getEntriesByType('resource').filter(entry => entry.name.includes('/v1/table')).length",
    );
    let [whole, renderer, server] = [0, 1, 2].map(|part| 100.0 * (after[part] - before[part]) / passed);
    println!(
        "10,000 groups ({}): usable after {:.0} ms (of three: {:.0} to {:.0}); {updates} updates in {passed:.1} s take {renderer:.1} % of a core in the page, \
         {whole:.1} % in all processes of the browser, {server:.1} % in the server; {elements} elements",
        if cfg!(debug_assertions) { "not optimised" } else { "optimised" },
        usable[1],
        usable[0],
        usable[2],
    );

    // The last row, a filter, and the figure of a group.
    // By path, so that the order stays while usage changes.
    browser.click("#table .head .path button");
    browser.get("document.querySelector('#table').focus()");
    browser.press(key::END);
    browser.until("[...document.querySelectorAll('#table .body .row')].some(row => row.ariaSelected === 'true' && row.ariaRowIndex === String(document.querySelector('#table').ariaRowCount))");
    browser.get("document.querySelector('#filter').focus()");
    browser.press("tenant-042/session-007");
    browser.until("document.querySelector('#count').textContent.startsWith('1 of ')");
    shown.choose("/tenants/tenant-042/session-007");
    let usage = groups[4207].usage();
    let text: String = usage
        .to_string()
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|part| std::str::from_utf8(part).unwrap())
        .collect::<Vec<_>>()
        .join(",");
    browser.until(&format!("document.querySelector('#group dd').title === '{text} bytes'"));
    assert_eq!(browser.console(), [] as [Value; 0]);
}
