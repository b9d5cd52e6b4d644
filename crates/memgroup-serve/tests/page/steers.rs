//! A limit that is set in the page arrives in the engine, and an error is shown beside its field.

use memgroup::Group;
use serde_json::Value;

use crate::answers::answer_with;
use crate::browser::{Browser, key};
use crate::fixture::{CONTROL, READ, Shown, hierarchy};

/// Types a text into the field of a file and presses Enter there.
fn write(browser: &Browser, file: &str, text: &str) {
    browser
        .get(&format!("(field => (field.focus(), field.select()))(document.querySelector('#set-{file}'))"));
    browser.press(text);
    browser.press(key::ENTER);
}

pub(crate) fn until(is_done: impl Fn() -> bool) {
    while !is_done() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_limit_arrives_in_the_engine() {
    let hierarchy = hierarchy();
    let tenant = hierarchy.get_or_create("/tenants/alice").unwrap();
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    shown.choose("/tenants/alice");
    type Read = fn(&Group) -> Option<u64>;
    let cases: [(&str, &str, Read, Option<u64>); 6] = [
        ("max", "64M", Group::max, Some(64 << 20)),
        ("high", "50000000", Group::high, Some(50_000_000)),
        ("low", "8k", |group| Some(group.low()), Some(8192)),
        ("min", "4K", |group| Some(group.min()), Some(4096)),
        ("share", "7", |group| group.share().map(u64::from), Some(7)),
        ("max", "max", Group::max, None),
    ];
    for (file, text, read, expected) in cases {
        write(browser, file, text);
        until(|| read(&tenant) == expected);
        assert_eq!(browser.text(&format!("#error-{file}")), "");
    }
    // The button beside the field does the same.
    browser.get("(field => (field.focus(), field.select()))(document.querySelector('#set-max'))");
    browser.press("32M");
    browser.click("button[aria-label='Set memory.max']");
    until(|| tenant.max() == Some(32 << 20));
    // A change from elsewhere shows up in the field, unless a text is being typed there.
    tenant.set_max(16 << 20).unwrap();
    browser.until("document.querySelector('#set-max').value === '16M'");
    browser.get("(field => (field.focus(), field.select()))(document.querySelector('#set-max'))");
    browser.press("77");
    tenant.set_high(1 << 20).unwrap();
    browser.until("document.querySelector('#set-high').value === '1M'");
    assert_eq!(browser.get("document.querySelector('#set-max').value"), "77");
    browser.press(key::ESCAPE);
    assert_eq!(browser.get("document.querySelector('#set-max').value"), "16M");
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn an_error_is_shown_beside_its_field() {
    let hierarchy = hierarchy();
    let tenant = hierarchy.create("/alice").unwrap();
    tenant.set_max(1 << 20).unwrap();
    let charge = tenant.try_charge(1 << 20).unwrap();
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    shown.choose("/alice");
    let error = |file: &str, part: &str| {
        browser.until(&format!("document.querySelector('#error-{file}').textContent.includes({part:?})"));
        assert_eq!(
            browser.get(&format!("document.querySelector('#set-{file}').getAttribute('aria-invalid')")),
            "true"
        );
    };
    // The page itself refuses these.
    for wrong in ["abc", "-1", "1.5M", "5Q", "<b>1</b>"] {
        write(browser, "max", wrong);
        error("max", "Write digits with an optional K, M, G or T, or max.");
    }
    write(browser, "share", "1025");
    error("share", "from 0 to 1024");
    // The engine refuses these.
    write(browser, "max", "999T");
    error("max", "failed to write memory.max of group /alice");
    error("max", "it is more than 256 TiB");
    assert_eq!((tenant.max(), tenant.share()), (Some(1 << 20), None));
    // A warning before, and no error after, a limit below usage.
    browser.get("(field => (field.focus(), field.select()))(document.querySelector('#set-max'))");
    browser.press("512K");
    assert_eq!(browser.text("#hint-max"), "below usage: memory is reclaimed, and groups may be stopped");
    drop(charge);
    browser.press(key::ENTER);
    until(|| tenant.max() == Some(512 << 10));
    browser.until("document.querySelector('#error-max').textContent === '' && !document.querySelector('#set-max').hasAttribute('aria-invalid')");
    assert_eq!(browser.text("#group > .error"), "");
    // A group that is gone.
    shown.choose("/alice");
    tenant.remove().unwrap();
    browser.until("document.querySelector('#group dd').textContent.startsWith('removed; ')");
    assert_eq!(browser.get("document.querySelector('form[aria-label]').checkVisibility()"), false);
    drop(tenant);
    browser.until("document.querySelector('#group-title').textContent === 'Group /'");
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn a_client_without_the_right_has_no_form() {
    let hierarchy = hierarchy();
    hierarchy.create("/alice").unwrap();
    let shown = Shown::new(&hierarchy, READ);
    let browser = &shown.browser;
    shown.choose("/alice");
    assert!(browser.text("#program").ends_with("reading only"));
    assert_eq!(browser.get("document.querySelector('form[aria-label]').checkVisibility()"), false);
    // The same page, opened with the other token.
    shown.open(CONTROL);
    browser.until("document.querySelector('form[aria-label]').checkVisibility()");
}

#[test]
fn a_text_typed_for_a_removed_group_is_no_limit_of_the_one_above() {
    let hierarchy = hierarchy();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(1000).unwrap();
    let alice = tenants.create("alice").unwrap();
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    shown.choose("/tenants/alice");
    browser.get("(field => (field.focus(), field.select()))(document.querySelector('#set-max'))");
    browser.press("6");
    alice.remove().unwrap();
    drop(alice);
    browser.until("document.querySelector('#group-title').textContent === 'Group /tenants'");
    browser.press("4K");
    browser.press(key::ENTER);
    assert_eq!(browser.get("document.querySelector('#set-max').value"), "1000");
    assert_eq!(browser.text("#error-max"), "");
    // A later text arrives.
    write(browser, "max", "8K");
    until(|| tenants.max() == Some(8192));
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn a_write_that_fails_after_another_group_was_chosen_is_told() {
    let hierarchy = hierarchy();
    let alice = hierarchy.create("/alice").unwrap();
    let bob = hierarchy.create("/bob").unwrap();
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    shown.choose("/alice");
    // Writes to alice wait.
    browser.get("(window.go = [])");
    answer_with(
        browser,
        "async (path, options, real) => {
            if (options?.method === 'PUT' && path.includes('alice')) await new Promise(done => go.push(done));
            return real(path, options);
        }",
    );
    let told = || browser.text("#group > .error");
    write(browser, "share", "7");
    browser.until("go.length === 1");
    // The last write to a file counts, and is the only one reported.
    write(browser, "share", "8");
    shown.choose("/bob");
    write(browser, "share", "9");
    until(|| bob.share() == Some(9));
    bob.remove().unwrap();
    alice.remove().unwrap();
    drop(bob);
    browser.until("document.querySelector('#group-title').textContent === 'Group /'");
    let removed = told();
    assert!(removed.contains("/bob was removed"), "{removed}");
    browser.get("(go.pop()(), 0)");
    browser.until("go.length === 1");
    assert_eq!(told(), removed);
    browser.get("(go.pop()(), 0)");
    browser.until("document.querySelector('#group > .error').textContent.includes('not set')");
    let (before, after) = (told(), "memory.share of /alice was not set: ");
    assert!(before.starts_with(&format!("{removed} {after}")), "{before}");
    assert_eq!(before.matches("not set").count(), 1);
    assert_eq!(browser.text("#error-share"), "");
}

#[test]
fn a_text_that_is_typed_during_a_write_stays_and_is_written_after_it() {
    let hierarchy = hierarchy();
    let tenant = hierarchy.create("/alice").unwrap();
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    shown.choose("/alice");
    // A write begins when the test says so, or after one that overtakes it.
    browser.get("(window.begun = window.ended = 0, window.go = [])");
    answer_with(
        browser,
        "async (path, options, real) => {
            if (options?.method !== 'PUT') return real(path, options);
            begun += 1;
            if (begun === 1) await new Promise(done => go.push(done));
            const answer = await real(path, options);
            ended += 1;
            go.forEach(done => done());
            return answer;
        }",
    );
    write(browser, "max", "5M");
    browser.until("begun === 1");
    write(browser, "max", "7M");
    browser.get("document.querySelector('#set-max').focus()");
    browser.press("77");
    browser.get("(go.forEach(done => done()), 0)");
    browser.until("ended === 2");
    browser.until("document.querySelector('#hint-max').textContent.startsWith('set at ')");
    assert_eq!(tenant.max(), Some(7 << 20), "the last one counts");
    tenant.set_high(4096).unwrap();
    browser.until("document.querySelector('#set-high').value === '4K'");
    assert_eq!(browser.get("document.querySelector('#set-max').value"), "7M77");
    browser.press(key::ESCAPE);
    assert_eq!(browser.get("document.querySelector('#set-max').value"), "7M");
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn the_form_stays_while_the_page_asks_for_its_rights_anew() {
    let hierarchy = hierarchy();
    hierarchy.create("/alice").unwrap();
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    browser.until("document.querySelector('form[aria-label]').checkVisibility()");
    browser.get("(window.asked = 0)");
    answer_with(
        browser,
        "async (path, options, real) => {
            if (path.includes('v1/about')) await new Promise(done => (window.go = done, asked += 1));
            return real(path, options);
        }",
    );
    browser.get("dispatchEvent(new Event('hashchange'))");
    browser.until("asked === 1");
    shown.choose("/alice");
    assert_eq!(browser.get("document.querySelector('form[aria-label]').checkVisibility()"), true);
    browser.get("(go(), 0)");
    browser.until_live();
    assert_eq!(browser.console(), [] as [Value; 0]);
}
