//! Answers that are cut, come late, or are of another server: the page continues with those that
//! follow.

use memgroup::{Config, Hierarchy};
use memgroup_serve::Serve;
use serde_json::{Value, json};

use crate::browser::{Browser, key};
use crate::client::{Client, read_reply};
use crate::fixture::{CONTROL, READ, Shown, hierarchy, serve, token};

/// Makes `answer` answer the page's requests. It gets the path, the options, and the function that
/// sends the real request.
pub(crate) fn answer_with(browser: &Browser, answer: &str) {
    browser
        .get(&format!("(real => window.fetch = (path, options) => ({answer})(path, options, real))(fetch)"));
}

/// Waits until the table shows this limit of a group.
fn until_max(browser: &Browser, path: &str, max: &str) {
    browser.until(&format!(
        "[...document.querySelectorAll('#table .body .row')].some(row => row.querySelector('.path').title === {path:?} && row.querySelector('.max').title === {max:?})"
    ));
}

#[test]
fn goes_on_after_answers_that_were_cut() {
    let hierarchy = hierarchy();
    let alice = hierarchy.create("/alice").unwrap();
    let shown = Shown::new(&hierarchy, READ);
    let browser = &shown.browser;
    for (file, bytes) in [("v1/table", 4096), ("v1/waits", 8192)] {
        browser.get(&format!("(window.path = {file:?}, 0)"));
        answer_with(
            browser,
            "async (path, options, real) => {
                const answer = await real(path, options);
                if (window.path === '' || !path.includes(window.path)) return answer;
                window.path = '';
                return new Response(new ReadableStream({ start: to => to.error(new TypeError('network error')) }));
            }",
        );
        browser
            .until("document.querySelector('#state').textContent.includes('the server cannot be reached')");
        alice.set_max(bytes).unwrap();
        browser.until_live();
        until_max(browser, "/alice", &format!("{},{:03} bytes", bytes / 1000, bytes % 1000));
    }
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn one_update_follows_the_other() {
    let hierarchy = hierarchy();
    let shown = Shown::new(&hierarchy, READ);
    let browser = &shown.browser;
    browser.get("(window.now = window.most = window.all = 0)");
    answer_with(
        browser,
        "async (path, options, real) => {
            if (!path.includes('v1/table')) return real(path, options);
            most = Math.max(most, ++now);
            await new Promise(done => setTimeout(done, 100));
            const answer = await real(path, options);
            now -= 1;
            all += 1;
            return answer;
        }",
    );
    for _ in 0..5 {
        browser.get("document.dispatchEvent(new Event('visibilitychange'))");
    }
    browser.until("all >= 5");
    assert_eq!(browser.get("most"), 1);
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn a_restart_between_two_updates_brings_the_new_rights() {
    let hierarchy = hierarchy();
    let Shown { browser, server } = Shown::new(&hierarchy, CONTROL);
    browser.until("document.querySelector('form[aria-label]').checkVisibility()");
    // A hidden page does not update. No answer is pending.
    browser.get("(window.now = window.all = 0)");
    answer_with(
        &browser,
        "async (path, options, real) => {
            if (path.includes('v1/events')) return real(path, options);
            now += 1;
            const answer = await real(path, options);
            const text = await answer.text();
            now -= 1;
            all += 1;
            return new Response(text, { status: answer.status });
        }",
    );
    browser.get("Boolean(Object.defineProperty(document, 'hidden', { get: () => window.isHidden }))");
    browser.until("all >= 5");
    browser.get("(window.isHidden = true)");
    browser.until("now === 0");
    let address = server.address().unwrap();
    server.stop();
    let server = memgroup_serve::start(&hierarchy, Serve::tcp(address).token(token(CONTROL))).unwrap();
    browser.get("(window.isHidden = false)");
    browser.until("document.querySelector('#program').textContent.endsWith('reading only')");
    browser.until("!document.querySelector('form[aria-label]').checkVisibility()");
    drop((browser, server));
}

#[test]
fn each_token_that_a_server_takes_opens_the_page() {
    let hierarchy = hierarchy();
    let settings = Serve::tcp(([127, 0, 0, 1], 0)).token(token("A0z-._~+/=+a+b//c=="));
    let server = memgroup_serve::start(&hierarchy, settings).unwrap();
    let browser = Browser::new();
    browser.open(&server.page().unwrap());
    browser.until_live();
    drop((browser, server));
}

#[test]
fn a_group_that_cannot_be_asked_for_keeps_no_other_figures_away() {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0).depth_max(30)).unwrap();
    let alice = hierarchy.create("/alice").unwrap();
    // Its address is longer than the head of a request may be.
    let deep = format!("/{}", "\u{1f600}".repeat(63)).repeat(22) + "/deep";
    hierarchy.get_or_create(&deep).unwrap();
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    let filter = |text: &str| {
        browser.get(&format!("(field => (field.value = {text:?}, field.dispatchEvent(new Event('input'))))(document.querySelector('#filter'))"))
    };
    filter("deep");
    shown.choose(&deep);
    filter("");
    browser.until("/431|cannot be reached/.test(document.querySelector('.events').textContent)");
    alice.set_max(4096).unwrap();
    until_max(browser, "/alice", "4,096 bytes");
    assert_eq!(browser.get("document.body.className"), "live");
    shown.choose("/alice");
    browser.until("document.querySelector('.events').textContent.startsWith('low 0')");
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn a_history_that_is_refused_once_is_asked_for_again() {
    let hierarchy = hierarchy();
    let shown = Shown::new(&hierarchy, READ);
    let browser = &shown.browser;
    let label = |text: &str| {
        browser.until(&format!("document.querySelector('canvas').ariaLabel.startsWith({text:?})"));
    };
    label("Usage of /");
    // Each label of the chart from now on.
    browser.get("(window.labels = [], new MutationObserver(() => labels.push(document.querySelector('canvas').ariaLabel)).observe(document.querySelector('canvas'), { attributeFilter: ['aria-label'] }))");
    browser.get("(window.refusals = 1)");
    answer_with(
        browser,
        "(path, options, real) => path.includes('v1/history') && refusals-- > 0
            ? Promise.resolve(new Response(JSON.stringify({ detail: 'no memory' }), { status: 503 }))
            : real(path, options)",
    );
    browser.until("refusals < 0");
    label("Usage of /");
    let others = browser.get("labels.filter(label => !label.startsWith('Usage of /'))");
    assert_eq!(others, json!(["No history: no memory"]));
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn a_page_without_a_token_asks_for_one_and_keeps_the_filter() {
    let hierarchy = hierarchy();
    hierarchy.create("/alice").unwrap();
    let server = serve(&hierarchy, ([127, 0, 0, 1], 0).into());
    let browser = Browser::new();
    browser.open(&format!("http://{}/", server.address().unwrap()));
    browser.until("!document.querySelector('#token-form').hidden");
    browser.get("document.querySelector('#filter').focus()");
    browser.press("Ali");
    browser.get("document.querySelector('#token').focus()");
    browser.press(READ);
    browser.press(key::ENTER);
    browser.until_live();
    assert_eq!(browser.text("#count"), "1 of 3");
    assert_eq!(browser.console(), [] as [Value; 0]);
    drop((browser, server));
}

#[test]
fn a_log_without_a_stream_says_so() {
    const STREAMS: usize = 20;
    let hierarchy = hierarchy();
    let settings = Serve::tcp(([127, 0, 0, 1], 0)).token(token(READ)).connections(2 * STREAMS);
    let server = memgroup_serve::start(&hierarchy, settings).unwrap();
    let client = Client::tcp(server.address().unwrap()).token(READ);
    let streams: Vec<_> = (0..STREAMS)
        .map(|_| {
            let mut stream = client.connect().unwrap();
            stream.write_all(client.head("GET", "/v1/events", "").as_bytes()).unwrap();
            assert_eq!(read_reply(&mut stream, true).unwrap().status, 200);
            stream
        })
        .collect();
    let browser = Browser::new();
    browser.open(&server.page().unwrap());
    browser.until_live();
    browser
        .until("document.querySelector('#log-note').textContent.includes('20 streams of events are open')");
    drop(streams);
    browser.until("document.querySelector('#log-note').textContent === ''");
    assert_eq!(browser.console(), [] as [Value; 0]);
    drop((browser, server));
}

#[test]
fn a_page_without_news_says_nothing_aloud() {
    let hierarchy = hierarchy();
    let shown = Shown::new(&hierarchy, READ);
    let browser = &shown.browser;
    browser.until("document.querySelector('canvas').ariaLabel.startsWith('Usage of /')");
    browser.get(
        "(window.said = [], document.querySelectorAll('[role=status], [role=alert]').forEach(part => new MutationObserver(() => said.push(part.textContent)).observe(part, { childList: true, characterData: true, subtree: true })))",
    );
    let mut states = Vec::new();
    while states.len() < 3 {
        let state = browser.text("#state");
        browser.until(&format!("document.querySelector('#state').textContent !== {state:?}"));
        states.push(state);
    }
    assert_eq!(browser.get("said"), json!([]), "{states:?}");
    let Shown { browser, server } = shown;
    server.stop();
    browser.until("said.length > 0");
    assert_eq!(browser.get("said"), json!(["Not connected: the server cannot be reached"]));
    assert_eq!(browser.console(), [] as [Value; 0]);
}
