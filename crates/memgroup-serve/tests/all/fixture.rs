//! A hierarchy with a server.

use std::path::PathBuf;

use memgroup::{Config, Hierarchy};
use memgroup_serve::{Control, Serve, Server, Token};
use tempfile::TempDir;

use crate::client::Client;

pub(crate) const READ: &str = "token-for-reading";
pub(crate) const CONTROL: &str = "token-for-control";

pub(crate) struct Fixture {
    // Dropped in this order.
    pub(crate) server: Server,
    pub(crate) hierarchy: Hierarchy,
    pub(crate) folder: TempDir,
}

pub(crate) fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

/// A hierarchy in which no byte is prepaid, so that figures are exact.
pub(crate) fn hierarchy() -> Hierarchy {
    Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap()
}

pub(crate) fn socket(folder: &TempDir) -> PathBuf {
    folder.path().join("m.sock")
}

impl Fixture {
    /// A server on both sockets, which allows control by both.
    pub(crate) fn new() -> Fixture {
        Fixture::with(|serve| serve.control(Control::Unix))
    }

    pub(crate) fn with(set: impl FnOnce(Serve) -> Serve) -> Fixture {
        let (hierarchy, folder) = (hierarchy(), tempfile::tempdir().unwrap());
        let serve = Serve::unix(socket(&folder)).and_tcp(([127, 0, 0, 1], 0)).token(token(READ));
        let serve = set(serve.control(Control::Token(token(CONTROL))));
        let server = memgroup_serve::start(&hierarchy, serve).unwrap();
        Fixture { server, hierarchy, folder }
    }

    pub(crate) fn unix(&self) -> Client {
        Client::unix(self.server.socket().unwrap())
    }

    pub(crate) fn tcp(&self) -> Client {
        Client::tcp(self.server.address().unwrap())
    }

    pub(crate) fn controller(&self) -> Client {
        self.tcp().token(CONTROL)
    }
}
