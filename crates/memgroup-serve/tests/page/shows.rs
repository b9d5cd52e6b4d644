//! The page shows the figures of the engine, as text, and asks only its own server.

use std::time::{Duration, Instant};

use memgroup::{Hierarchy, KillAnswer, KillRequest};
use serde_json::{Value, json};

use crate::fixture::{CONTROL, READ, Shown, hierarchy, serve};

/// The figures of a row of the table, by the columns' titles.
const ROWS: &str = "Object.fromEntries([...document.querySelectorAll('#table .body .row')].filter(row => !row.hidden).map(row => [row.querySelector('.path').title, \
    Object.fromEntries([...row.children].map(cell => [cell.className.split(' ')[0], cell.title || cell.textContent]))]))";

fn bytes(value: Option<u64>) -> Value {
    let Some(value) = value else { return json!("max") };
    let digits = value.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    json!(format!("{} bytes", groups.join(",")))
}

/// The figures that the page must show, from a snapshot. The server's own group changes all the
/// time, and so does the root.
fn expected(hierarchy: &Hierarchy) -> Value {
    let snapshot = hierarchy.root().snapshot();
    let groups = snapshot.groups.iter().filter(|group| group.path.starts_with("/tenants"));
    let rows = groups.map(|group| {
        let limits = &group.limits;
        let row = json!({
            "usage": bytes(Some(group.usage_bytes)), "peak": bytes(Some(group.peak_bytes)),
            "max": bytes(limits.max_bytes), "high": bytes(limits.high_bytes),
            "low": bytes(limits.low_bytes), "min": bytes(limits.min_bytes), "share": limits.share.to_string(),
            "refusals": group.refusals.to_string(), "kills": group.events.oom_kill.to_string(),
            "waits": group.waiters.now.to_string(),
        });
        (group.path.clone(), row)
    });
    Value::Object(rows.collect())
}

/// Waits until the page shows the engine's figures.
fn until_shown(shown: &Shown, hierarchy: &Hierarchy) {
    loop {
        let (mut rows, expected) = (shown.browser.get(ROWS), expected(hierarchy));
        let rows = rows.as_object_mut().unwrap();
        rows.retain(|path, _| path.starts_with("/tenants"));
        rows.values_mut().for_each(|row| {
            row.as_object_mut().unwrap().retain(|name, _| !matches!(&name[..], "path" | "used" | "pressure"))
        });
        if Value::Object(rows.clone()) == expected {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn shows_the_figures_of_the_engine() {
    let hierarchy = hierarchy();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(100 << 20).unwrap();
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    alice.set_max(10_000_000).unwrap();
    alice.set_low(1 << 20).unwrap();
    bob.set_high(3 << 30).unwrap();
    let _alices = alice.try_charge(9_876_543).unwrap();
    let bobs = bob.try_charge(2048).unwrap();
    alice.try_charge(1 << 20).unwrap_err();
    let shown = Shown::new(&hierarchy, READ);
    let browser = &shown.browser;
    until_shown(&shown, &hierarchy);
    assert_eq!(browser.get(&format!("({ROWS})['/tenants/alice'].used")), "! 98 %");
    assert_eq!(browser.get(&format!("({ROWS})['/tenants/bob'].used")), "–");
    let label = |path: &str| {
        browser.get(&format!("[...document.querySelectorAll('.cell')].find(cell => cell.key === {path:?}).getAttribute('aria-label')"))
    };
    assert_eq!(label("/tenants/alice"), "/tenants/alice: 9.42M, ! 98 % of 9.54M");
    browser.get("document.querySelectorAll('.cell .name').forEach(name => name.dispatchEvent(new PointerEvent('pointerover', { bubbles: true })))");
    let without = "[...document.querySelectorAll('.cell')].filter(cell => cell.title !== cell.getAttribute('aria-label')).length";
    assert_eq!(browser.get(without), 0, "a cell under the pointer has a tooltip");
    // A change is shown too, also by a page that the browser has translated.
    browser.get("document.querySelectorAll('#table .body .row > div:not(.used, .path), #state').forEach(cell => { const font = document.createElement('font'); font.append(cell.textContent); cell.replaceChildren(font); })");
    drop(bobs);
    let _more = bob.try_charge(5 << 20).unwrap();
    tenants.set_share(Some(3)).unwrap();
    tenants.create("carol").unwrap().set_min(4096).unwrap();
    until_shown(&shown, &hierarchy);

    shown.choose("/tenants/alice");
    let events = alice.read_file("memory.events.local").unwrap().trim().replace('\n', " · ");
    browser.until(&format!("document.querySelector('.events').textContent === {events:?}"));
    browser.until("document.querySelector('canvas').getAttribute('aria-label').includes('now 9.42M')");
    assert_eq!(
        browser.get("document.querySelector('form[aria-label]').hidden"),
        true,
        "this client may only read"
    );
    assert_eq!(browser.get("sessionStorage.getItem('token')"), READ);
    assert_eq!(browser.get("location.hash"), "", "the token is out of sight");
    browser.get("location.reload()");
    browser.until_live();
    until_shown(&shown, &hierarchy);

    assert_eq!(browser.console(), [] as [Value; 0]);
    let origin = shown.origin();
    let requests = browser.requests();
    assert!(requests.len() > 10, "{requests:?}");
    for request in requests {
        let url = request["url"].as_str().unwrap();
        assert!(url.starts_with(&origin) || url.starts_with("data:"), "a request to {url}");
        assert!(!url.contains(READ), "the token is in {url}");
    }
}

#[test]
fn shows_waits_kills_and_limits() {
    let hierarchy = hierarchy();
    let tenant = hierarchy.create("/tenant").unwrap();
    tenant.set_max(8 << 20).unwrap();
    let (victim, other) = (tenant.create("victim").unwrap(), tenant.create("other").unwrap());
    let held = victim.try_charge(8 << 20).unwrap();
    let shown = Shown::new(&hierarchy, READ);
    let browser = &shown.browser;
    let in_log =
        |text: &str| browser.until(&format!("document.querySelector('#log').textContent.includes({text:?})"));
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| other.charge_until(1 << 20, Instant::now() + Duration::from_secs(3600)).map(drop));
        browser.until("document.querySelector('#waits td') !== null");
        let cells = browser
            .get("[...document.querySelectorAll('#waits td')].slice(0, 4).map(cell => cell.textContent)");
        assert_eq!(cells, json!(["/tenant/other", "room", "/tenant", "1M"]));
        drop(held);
        waiter.join().unwrap().unwrap();
    });
    browser.until("document.querySelector('#waits').textContent === 'No charge waits.'");
    in_log("/tenant: reached max");

    let held = std::sync::Mutex::new(Some(victim.try_charge(8 << 20).unwrap()));
    let held = std::sync::Arc::new(held);
    let stop = std::sync::Arc::clone(&held);
    let _hook = victim.set_kill_hook(move |_: &KillRequest<'_>| {
        stop.lock().unwrap().take();
        KillAnswer::Dying
    });
    let _charge = other.try_charge(1 << 20).unwrap();
    in_log("/tenant/victim was stopped for /tenant/other, ");
    in_log("it held 8M, and /tenant was full");
    assert_eq!(browser.get("document.querySelectorAll('#log .kill').length"), 1);
    assert_eq!(browser.text("#log .kill b"), "✕ kill");
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn says_of_a_group_whose_hook_refused_that_it_runs_on() {
    let hierarchy = hierarchy();
    let tenant = hierarchy.create("/tenant").unwrap();
    tenant.set_max(1 << 20).unwrap();
    let _held = tenant.try_charge(1 << 20).unwrap();
    let _hook = tenant.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused);
    let shown = Shown::new(&hierarchy, READ);
    let browser = &shown.browser;
    assert!(tenant.try_charge(4096).is_err());
    browser.until("document.querySelector('#log .spared') !== null");
    assert_eq!(browser.text("#log .spared b"), "○ no kill");
    assert_eq!(
        browser.text("#log .spared span"),
        "/tenant was not stopped for a charge of its own: its hook refused; it held 1M, and /tenant was full"
    );
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn a_flood_of_entries_drives_out_the_oldest_of_its_class_only() {
    let hierarchy = hierarchy();
    let shown = Shown::new(&hierarchy, READ);
    let texts = shown.browser.get(
        "import('/log.js').then(({ Log }) => {
            const list = document.createElement('ol');
            const log = new Log(list, document.createElement('p'));
            const limit = (group, unix_us) => log.add('1-' + unix_us, 'limit', { unix_us, group, max: 1, usage_bytes: 7, max_bytes: 7 });
            const kill = (kill, outcome) => log.add('1-' + kill, 'kill', { kill, unix_us: kill, victim: '/' + kill, requester: '/', outcome, took_us: null, usage_bytes: 7, full: '/' });
            limit('/first', 1);
            kill(2, null);
            for (let number = 1000; number < 1400; number += 1) {
                log.add('1-' + number, 'group_made', { unix_us: number, group: '/' + number });
                // It was not known at first that there was nothing to stop.
                kill(number, null);
                kill(number, 'idle');
                log.add('2-' + number, 'gap', { lost: number, unix_us: number });
            }
            const of = name => [...list.querySelectorAll('.' + name)].map(item => item.lastChild.textContent.split(/[ :]/)[0]);
            const ends = name => [of(name).length, of(name)[0], of(name).at(-1)];
            const flooded = [of('limit'), of('kill'), ends('change'), ends('spared'), ends('gap')];
            // Too late to be a part of the first entry.
            limit('/first', 20e6);
            for (let number = 1; number < 200; number += 1) limit('/' + number, 20e6);
            // The first entry of the group is gone, and the second one counts on.
            limit('/first', 20e6 + 1);
            return [...flooded, ends('limit'), list.children.length - log.entries.size];
        })",
    );
    let kept = json!([200, "/1399", "/1200"]);
    let gaps = json!([200, "1,399", "1,200"]);
    assert_eq!(texts, json!([["/first"], ["/2"], kept, kept, gaps, [200, "/199", "/first"], 0]));
}

#[test]
fn shows_names_as_text() {
    let names = [
        "<img src=x onerror=document.title='run'>",
        "<script>document.title='run'<",
        "\"'&amp;%2e%41 ?#ü\\",
        "memory.max",
    ];
    let hierarchy = hierarchy();
    let groups = names.map(|name| hierarchy.root().create(name).unwrap());
    for group in &groups {
        group.set_max(1 << 20).unwrap();
    }
    let _charges = groups.each_ref().map(|group| group.try_charge(1 << 20).unwrap());
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    std::thread::scope(|scope| {
        let wait = |group: &memgroup::Group| {
            group.charge_until(4096, Instant::now() + Duration::from_secs(3600)).map(drop)
        };
        let waiters = groups.each_ref().map(|group| scope.spawn(move || wait(group)));
        for (name, group) in names.iter().zip(&groups) {
            let path = format!("/{name}");
            for part in ["#table", "#icicle", "#waits", "#log"] {
                browser.until(&format!("document.querySelector({part:?}).textContent.includes({name:?})"));
            }
            shown.choose(&path);
            browser.until("document.querySelector('.events').textContent.startsWith('low 0')");
            browser.get(
                "(document.querySelector('#set-max').focus(), document.querySelector('#set-max').select())",
            );
            browser.press("2M");
            browser.press(crate::browser::key::ENTER);
            while group.max() != Some(2 << 20) {
                std::thread::sleep(Duration::from_millis(20));
            }
            // Zooms, so that the name is in the path.
            browser.get("[...document.querySelectorAll('#table .row')].find(row => row.ariaSelected === 'true').dispatchEvent(new MouseEvent('dblclick', {bubbles: true}))");
            assert_eq!(browser.text("#path [aria-current]"), *name);
            browser.click("#path button");
        }
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
    });
    assert_eq!(browser.get("document.querySelectorAll('img, main script').length"), 0);
    assert_ne!(browser.get("document.title"), "run");
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn recovers_when_the_server_restarts() {
    let hierarchy = hierarchy();
    let tenant = hierarchy.create("/tenants").unwrap();
    tenant.set_max(4096).unwrap();
    let Shown { browser, server } = Shown::new(&hierarchy, CONTROL);
    let events =
        |text: &str| browser.until(&format!("document.querySelector('#log').textContent.includes({text:?})"));
    tenant.try_charge(4097).unwrap_err();
    events("/tenants: reached max 1×");
    let address = server.address().unwrap();
    server.stop();
    browser.until("document.querySelector('#state').textContent.startsWith('Not connected since ')");
    browser.requests();
    let more = hierarchy.create("/more").unwrap();
    more.set_max(4096).unwrap();
    let server = serve(&hierarchy, address);
    browser.until_live();
    events("the server was started anew");
    more.try_charge(4097).unwrap_err();
    events("/more: reached max 1×");
    let texts = browser.text("#log");
    assert_eq!(texts.matches("/tenants: reached max").count(), 1, "{texts}");
    let resumed = browser.requests();
    let ids: Vec<&Value> = resumed
        .iter()
        .filter(|request| request["url"].as_str().unwrap().ends_with("/v1/events"))
        .map(|request| &request["headers"]["Last-Event-ID"])
        .collect();
    assert!(ids.iter().all(|id| id.as_str().unwrap().contains('-')), "{ids:?}");
    let shown = Shown { browser, server };
    until_shown(&shown, &hierarchy);
    assert_eq!(shown.browser.console(), [] as [Value; 0]);
}

#[test]
fn says_that_the_chosen_group_is_gone_and_goes_on() {
    let hierarchy = hierarchy();
    let tenants = hierarchy.create("/tenants").unwrap();
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    // Each state of the connection from now on.
    browser.get(
        "(window.states = [], new MutationObserver(() => states.push(document.querySelector('#state').textContent))
            .observe(document.querySelector('#state'), { childList: true, characterData: true, subtree: true }))",
    );
    let says = |text: &str| {
        browser.until(&format!("document.querySelector('#group').textContent.includes({text:?})"))
    };

    // A charge keeps the removed group in the tree.
    let charge = bob.try_charge(4096).unwrap();
    shown.choose("/tenants/bob");
    browser.until("document.querySelector('.events').textContent.startsWith('low 0')");
    bob.remove().unwrap();
    says("The group /tenants/bob was removed.");
    drop((charge, bob));
    says("The group /tenants/bob was removed. This is the nearest group above it.");

    shown.choose("/tenants/alice");
    browser.until("!document.querySelector('#group').textContent.includes('was removed')");
    alice.remove().unwrap();
    drop(alice);
    says("The group /tenants/alice was removed. This is the nearest group above it.");
    assert_eq!(browser.text("#group-title"), "Group /tenants");

    tenants.create("carol").unwrap();
    until_shown(&shown, &hierarchy);
    let states = browser.get("states");
    let states = states.as_array().unwrap();
    assert!(states.iter().all(|state| !state.as_str().unwrap().contains("Not connected")), "{states:?}");
}

#[test]
fn tells_a_removed_group_from_one_that_was_made_in_its_place() {
    let hierarchy = hierarchy();
    let tenants = hierarchy.create("/tenants").unwrap();
    let removed = tenants.create("bob").unwrap();
    let _charge = removed.try_charge(1 << 20).unwrap();
    removed.remove().unwrap();
    let bob = tenants.create("bob").unwrap();
    let _other = bob.try_charge(3 << 20).unwrap();
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    let labels = "[...document.querySelectorAll('.cell')].map(cell => cell.ariaLabel).filter(label => label.startsWith('/tenants/bob: ')).sort()";
    assert_eq!(
        browser.get(labels),
        json!(["/tenants/bob: 1M, no limit", "/tenants/bob: 3M, no limit"]),
        "each has a cell"
    );
    let row = |sign: &str| {
        format!(
            "[...document.querySelectorAll('#table .body .row')].find(row => !row.hidden && row.querySelector('.path').textContent === '{sign}/tenants/bob')"
        )
    };
    let mut more = Vec::new();
    for (sign, events, has_form) in
        [("", "low 0", true), ("† ", "The group /tenants/bob was removed.", false)]
    {
        browser.get(&format!("{}.click()", row(sign)));
        let is_chosen = || {
            browser.until(&format!("document.querySelector('.events').textContent.startsWith({events:?})"));
            assert_eq!(browser.get(&format!("{}.ariaSelected", row(sign))), "true");
            assert_eq!(browser.get("document.querySelector('form[aria-label]').checkVisibility()"), has_form);
        };
        is_chosen();
        // The groups get new places.
        more.push(hierarchy.create(&format!("/{}", more.len())).unwrap());
        browser.until(&format!(
            "document.querySelector('#count').textContent.startsWith('{} of ')",
            5 + more.len()
        ));
        is_chosen();
    }
    assert_eq!(browser.console(), [] as [Value; 0]);
}

#[test]
fn a_wrong_token_is_told_and_can_be_mended() {
    let hierarchy = hierarchy();
    let shown = Shown::new(&hierarchy, READ);
    let browser = &shown.browser;
    browser.get("sessionStorage.setItem('token', 'another-wrong-token')");
    browser.until("!document.querySelector('#token-form').hidden");
    let state = browser.text("#state");
    assert!(state.ends_with(": the server has another token; enter it below"), "{state}");
    browser.get("sessionStorage.removeItem('token')");
    browser.until(
        "document.querySelector('#state').textContent.endsWith(': a token is needed; enter it below')",
    );
    // One that no header takes.
    browser.get("document.querySelector('#token').focus()");
    browser.press("token-\u{2026}");
    browser.press(crate::browser::key::ENTER);
    browser.until("document.querySelector('#state').textContent.includes('a character that no token has')");
    assert_eq!(browser.get("document.querySelector('#token-form').hidden"), false);
    browser.get("document.querySelector('#token').focus()");
    browser.press(CONTROL);
    browser.press(crate::browser::key::ENTER);
    browser.until_live();
    assert_eq!(browser.get("document.querySelector('#token-form').hidden"), true);
    browser.until("!document.querySelector('form[aria-label]').hidden");
}

#[test]
fn shows_each_title_of_the_table_whole_and_its_sign_of_the_order() {
    let hierarchy = hierarchy();
    let shown = Shown::new(&hierarchy, READ);
    let browser = &shown.browser;
    for width in [500, 1400] {
        browser.set_size(width, 900);
        browser.until(&format!("innerWidth === {width}"));
        let cut = browser.get(
            "[...document.querySelectorAll('#table .head > div')].filter(head => {
                head.firstChild.click();
                return head.firstChild.scrollWidth > head.firstChild.clientWidth;
            }).map(head => head.textContent)",
        );
        assert_eq!(cut, json!([]), "cut at {width}");
    }
    let wide = browser
        .get("document.querySelector('#table').scrollWidth <= document.querySelector('#table').clientWidth");
    assert_eq!(wide, true, "1400 pixels have room for all columns");
}

#[test]
fn fits_small_and_large_windows() {
    let hierarchy = hierarchy();
    let mut charges = Vec::new();
    for tenant in 0..20 {
        let group = hierarchy
            .create(&format!("/a-tenant-with-a-long-name-{tenant}-{}", "x".repeat(10 * tenant)))
            .unwrap();
        charges.push(group.charge_forced((1 + tenant as u64) << 20).unwrap());
    }
    let shown = Shown::new(&hierarchy, CONTROL);
    let browser = &shown.browser;
    for (width, scheme) in [(360, "light"), (1920, "dark"), (1100, "light")] {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.command("Emulation.setEmulatedMedia", &media);
        browser.set_size(width, 900);
        browser.until(&format!("innerWidth === {width} && document.documentElement.scrollWidth <= {width}"));
        for section in ["tree", "groups", "group", "waits", "log"] {
            let edges = browser.get(&format!("(box => [box.left >= 0, box.right <= innerWidth])(document.querySelector('section.{section}').getBoundingClientRect())"));
            assert_eq!(edges, json!([true, true]), "{section} at {width}");
        }
    }
}
