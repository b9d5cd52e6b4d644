//! Server: a process of its own with the tenants' groups and handlers.
//!
//! - I1. It ends when its standard input ends. The first line of its output is its port.
//! - I2. With memgroup each tenant's handlers have a layer of their own: a group for each request,
//!   below the tenant's. Without, they have none.

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use axum::routing::get;
use axum::{Json, Router};
use memgroup::{Config, Hierarchy};
use memgroup_tokio::{ReclaimerThread, RequestGroups};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use super::bound::Bound;
use super::work;
use crate::run::backend::Groups;
use crate::run::base::child;
use crate::run::base::error::{OrFail, RunError};
use crate::run::base::progress::Progress;
use crate::run::base::stop::Stop;
use crate::run::live;
use crate::run::report::RegimeReport;
use crate::run::spec::{Spec, TenantSpec};

/// Bytes charged before a request costs anything.
const ADMISSION: u64 = 16 << 10;

/// Order of the parent process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) spec: Spec,
    pub(super) has_groups: bool,
    pub(super) bound: Option<Bound>,
}

/// Serves the tenants of the order on standard input, until that input ends.
pub(crate) fn serve() -> Result<u8, RunError> {
    let order: Order = child::order().or_fail("read the server's order from standard input")?;
    // A terminal sends Ctrl-C to both processes. The parent ends the server, after it asked for the
    // figures.
    Stop::default().on_ctrl_c().or_fail("listen for Ctrl-C")?;
    order.bound.as_ref().map_or(Ok(()), Bound::enter)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.or_fail("start the server's threads")?.block_on(listen(order))
}

async fn listen(order: Order) -> Result<u8, RunError> {
    let groups = order.has_groups.then(|| create(&order.spec)).transpose()?.map(Arc::new);
    let reclaimer = groups.as_ref().map(|groups| ReclaimerThread::spawn(&groups.hierarchy)).transpose();
    let _reclaimer = reclaimer.or_fail("start the reclaimer")?;
    let mut app = Router::new();
    for (index, tenant) in order.spec.tenants.iter().enumerate() {
        let mut handlers = work::routes();
        if let Some(groups) = &groups {
            handlers = handlers.layer(layer(groups, index, tenant));
        }
        app = app.nest(&format!("/{}", tenant.name), handlers);
    }
    let serve = |groups: &Arc<Groups>| live::serve(&groups.hierarchy, None, &Progress::on_stderr());
    let _server = groups.as_ref().map(serve).transpose()?;
    let (spec, started) = (order.spec.clone(), Instant::now());
    let figures = move || {
        let report = RegimeReport::of_groups(groups.as_deref(), &spec, started.elapsed().as_secs_f64());
        std::future::ready(Json(report))
    };
    // Outside of the layers: it answers when all groups are full.
    app = app.route("/", get(figures));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.or_fail("listen on the loopback")?;
    let port = listener.local_addr().or_fail("find the server's port")?.port();
    order.bound.as_ref().map_or(Ok(()), Bound::limit_address_space)?;
    std::thread::spawn(|| {
        let _ended = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(0);
    });
    let said = writeln!(io::stdout(), "{port}").and_then(|()| io::stdout().flush());
    said.or_fail("tell the server's port")?;
    axum::serve(listener, app).await.or_fail("serve").map(|()| 0)
}

fn create(spec: &Spec) -> Result<Groups, RunError> {
    let hierarchy = Hierarchy::new(Config::new().oom(spec.oom)).or_fail("set up the hierarchy")?;
    Groups::create(hierarchy, spec)
}

/// The layer of one tenant.
fn layer(groups: &Groups, index: usize, tenant: &TenantSpec) -> RequestGroups {
    let group = groups.tenants[index].clone();
    RequestGroups::new(move |_| Ok(group.clone())).admission(ADMISSION).patience(tenant.patience)
}
