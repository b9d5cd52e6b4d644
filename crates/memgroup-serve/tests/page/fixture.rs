//! A hierarchy with a server, and a browser that shows its page.

use std::net::SocketAddr;

use memgroup::{Config, Hierarchy};
use memgroup_serve::{Control, Serve, Server, Token};

use crate::browser::Browser;

pub(crate) const READ: &str = "token-for-reading";
pub(crate) const CONTROL: &str = "token-for-control";

/// A hierarchy in which no byte is prepaid, so that figures are exact.
pub(crate) fn hierarchy() -> Hierarchy {
    Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap()
}

pub(crate) fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

pub(crate) fn serve(hierarchy: &Hierarchy, address: SocketAddr) -> Server {
    let serve = Serve::tcp(address).token(token(READ)).control(Control::Token(token(CONTROL)));
    memgroup_serve::start(hierarchy, serve).unwrap()
}

/// A server, and a browser with its page.
pub(crate) struct Shown {
    pub(crate) browser: Browser,
    pub(crate) server: Server,
}

impl Shown {
    pub(crate) fn new(hierarchy: &Hierarchy, token: &str) -> Shown {
        let shown = Shown { server: serve(hierarchy, ([127, 0, 0, 1], 0).into()), browser: Browser::new() };
        shown.open(token);
        shown.browser.until_live();
        shown
    }

    pub(crate) fn open(&self, token: &str) {
        self.browser.open(&format!("{}/#token={token}", self.origin()));
    }

    pub(crate) fn origin(&self) -> String {
        format!("http://{}", self.server.address().unwrap())
    }

    /// Chooses a group in the table.
    pub(crate) fn choose(&self, path: &str) {
        self.browser.until(&format!(
            "[...document.querySelectorAll('#table .path')].some(cell => cell.title === {path:?})"
        ));
        self.browser.get(&format!(
            "[...document.querySelectorAll('#table .path')].find(cell => cell.title === {path:?}).click()"
        ));
        self.browser
            .until(&format!("document.querySelector('#group-title').textContent === 'Group ' + {path:?}"));
    }
}
