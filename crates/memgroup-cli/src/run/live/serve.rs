//! Serve: the groups of a run, for a browser and other clients on this machine.

use std::net::SocketAddr;
use std::{env, process};

use memgroup::Hierarchy;
use memgroup_serve::{Control, Serve, Server, Token};

use crate::run::base::error::{OrFail, RunError};
use crate::run::base::progress::Progress;

/// Serves the groups at `address` until the result is dropped, and prints the address of the page. Its token may read and control. A socket in the
/// directory for temporary files serves `memgroup top`.
pub(crate) fn serve(
    hierarchy: &Hierarchy,
    address: SocketAddr,
    progress: &Progress,
) -> Result<Server, RunError> {
    let token = Token::random().or_fail("make a token")?;
    let socket = env::temp_dir().join(format!("memgroup-{}.sock", process::id()));
    let settings = Serve::tcp(address).and_unix(socket).token(token.clone()).control(Control::Token(token));
    let server = memgroup_serve::start(hierarchy, settings)
        .map_err(|error| RunError::Usage(format!("--serve {address}: {error}")))?;
    if let Some(page) = server.page() {
        progress.line(&format!("page of all groups until the run ends: {page}"));
    }
    Ok(server)
}
