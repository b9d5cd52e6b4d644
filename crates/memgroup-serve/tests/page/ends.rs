//! The end of a browser.

use std::process::Command;

use xtask::Watchdog;

use crate::browser::Browser;
use crate::client::Client;
use crate::fixture::{READ, Shown, hierarchy, serve};
use crate::steers::until;
use crate::tasks::below;

#[test]
fn a_killed_browser_leaves_no_connection() {
    let hierarchy = hierarchy();
    hierarchy.create("/alice").unwrap();
    let server = serve(&hierarchy, ([127, 0, 0, 1], 0).into());
    let client = Client::tcp(server.address().unwrap()).token(READ);
    let group = hierarchy.lookup("/memgroup-serve").unwrap();
    let connections = || client.get("/v1/about").json()["connections"].as_u64().unwrap();
    let _watched = Watchdog::over("a browser that is killed");
    until(|| client.get("/v1/history").json()["groups"].as_array().unwrap().len() == 3);
    until(|| connections() == 1);
    let charged = group.usage();

    let shown = Shown { browser: Browser::new(), server };
    shown.open(READ);
    shown.browser.until_live();
    shown.choose("/alice");
    // Its stream of events is charged.
    until(|| connections() > 1 && group.usage() > charged);
    let processes = below(shown.browser.driver.id());
    assert!(processes.iter().any(|process| process.command.contains("--type=renderer")));
    let ids: Vec<String> = processes.iter().map(|process| process.id.to_string()).collect();
    // A process may be gone already, if its parent was killed first.
    let _killed = Command::new("kill").arg("-KILL").args(&ids).output().unwrap();
    until(|| connections() == 1 && group.usage() == charged);
    assert_eq!(hierarchy.groups().len(), 3);
}
