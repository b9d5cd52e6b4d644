//! Server: a process with the tenants' groups and handlers. The handlers are the same with and
//! without memgroup.
//!
//! - I1. It ends when its standard input ends. The first line of its output is its port.
//! - I2. With memgroup each tenant's handlers have a layer, which creates a group for each request
//!   below the tenant's group.
//!
//! A handler allocates from the program's own allocator, so its blocks are charged to the request's
//! group if there is one. The handlers of a runaway allocate without end. They can be refused or
//! stopped in different ways:
//!
//! | path | allocates | ends at |
//! |---|---|---|
//! | `/push` | blocks, and waits after each | a checkpoint |
//! | `/stream` | the frames of a body without end | the layer's charge for a frame |
//! | `/json` | a tree of JSON, 80 times as large as its text | a checkpoint in the reader |
//! | `/reserve` | blocks, by `try_reserve` | the allocator, which refuses a block |

use std::error::Error;
use std::io::{self, BufReader, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Extension};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::BodyExt;
use memgroup::{ChargeError, Config, Effort, Hierarchy};
use memgroup_alloc::{Checked, checkpoint, fallible};
use memgroup_tokio::{GroupExt, ReclaimerThread, RequestGroup, RequestGroups};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpListener;

use super::bound::Bound;
use crate::run::backend::Groups;
use crate::run::base::process::{self, Stop};
use crate::run::base::progress::Progress;
use crate::run::base::{OrFail, RunError};
use crate::run::report::RegimeReport;
use crate::run::serve;
use crate::run::spec::Spec;

/// Size of a block of a runaway handler.
const BLOCK: usize = 512 << 10;
/// Time between two blocks, as if the handler read them from a database.
const BLOCK_WAIT: Duration = Duration::from_millis(1);
/// How long a handler holds its memory, as if it waited for a database.
const WAIT: Duration = Duration::from_millis(2);
/// How many words a small request makes of each number in its body.
const WORDS: u64 = 32;
/// Bytes charged before a request costs anything.
const ADMISSION: u64 = 16 << 10;

/// The order of the parent process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) spec: Spec,
    pub(super) has_groups: bool,
    pub(super) bound: Option<Bound>,
}

/// Serves the tenants of the order on standard input, until that input ends.
pub(crate) fn serve() -> Result<u8, RunError> {
    let order: Order = process::order().or_fail("read the server's order from standard input")?;
    // A terminal sends Ctrl-C to both processes. The parent ends the server after it has asked for
    // the figures.
    Stop::default().on_ctrl_c().or_fail("listen for Ctrl-C")?;
    order.bound.as_ref().map_or(Ok(()), Bound::enter)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.or_fail("start the server's threads")?.block_on(listen(order))
}

async fn listen(order: Order) -> Result<u8, RunError> {
    let create = || {
        let hierarchy = Hierarchy::new(Config::new().oom(order.spec.oom)).or_fail("set up the hierarchy")?;
        Groups::create(hierarchy, &order.spec)
    };
    let groups = order.has_groups.then(create).transpose()?.map(Arc::new);
    let reclaimer = groups.as_ref().map(|groups| ReclaimerThread::spawn(&groups.hierarchy)).transpose();
    let _reclaimer = reclaimer.or_fail("start the reclaimer")?;
    let mut app = Router::new();
    for (index, tenant) in order.spec.tenants.iter().enumerate() {
        let mut handlers = routes();
        if let Some(groups) = &groups {
            let group = groups.tenants[index].clone();
            let layer = RequestGroups::new(move |_| Ok(group.clone()));
            handlers = handlers.layer(layer.admission(ADMISSION).patience(tenant.patience));
        }
        app = app.nest(&format!("/{}", tenant.name), handlers);
    }
    let show = |groups: &Arc<Groups>| serve::serve(&groups.hierarchy, None, &Progress::on_stderr());
    let _server = groups.as_ref().map(show).transpose()?;
    let (spec, started) = (order.spec.clone(), Instant::now());
    let figures = move || {
        let report = RegimeReport::of_groups(groups.as_deref(), &spec, started.elapsed().as_secs_f64());
        std::future::ready(Json(report))
    };
    // This route is outside of the layers, so it answers even if all groups are full.
    app = app.route("/", get(figures));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.or_fail("listen on the loopback")?;
    let port = listener.local_addr().or_fail("find the server's port")?.port();
    order.bound.as_ref().map_or(Ok(()), Bound::limit_address_space)?;
    process::on_end_of_input(|| std::process::exit(0));
    let said = writeln!(io::stdout(), "{port}").and_then(|()| io::stdout().flush());
    said.or_fail("tell the server's port")?;
    axum::serve(listener, app).await.or_fail("serve").map(|()| 0)
}

/// The group of the request; none without memgroup.
type Own = Option<Extension<RequestGroup>>;

/// Returns the handlers of one tenant.
fn routes() -> Router {
    Router::new()
        .route("/small", post(small))
        .route("/push", post(push))
        .route("/stream", post(stream))
        .route("/json", post(json))
        .route("/reserve", post(reserve))
        .layer(DefaultBodyLimit::disable())
}

/// Answers when a charge was refused.
fn refused(own: &Own, error: &ChargeError) -> Response {
    match own {
        Some(Extension(request)) => request.refuse(error).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, format!("failed to {error}\n")).into_response(),
    }
}

/// Answers when an allocation of `bytes` failed.
fn no_memory(own: &Own, bytes: u64) -> Response {
    let charged = own.as_ref().map(|Extension(request)| request.group().try_charge_by(bytes, Effort::Count));
    match charged {
        Some(Err(error)) => refused(own, &error),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "no memory\n").into_response(),
    }
}

/// Handles a small request: makes words from numbers, sorts them, and holds them for a moment.
async fn small(body: Bytes) -> Response {
    let Ok(numbers) = serde_json::from_slice::<Vec<u64>>(&body) else {
        return (StatusCode::BAD_REQUEST, "not a list of numbers\n").into_response();
    };
    let words = numbers.iter().flat_map(|number| {
        (1..=WORDS).map(move |salt| format!("{:016x}", number.wrapping_mul(salt << 32 | 0x9E37_79B9)))
    });
    let mut words: Vec<String> = words.collect();
    words.sort_unstable();
    tokio::time::sleep(WAIT).await;
    serde_json::to_string(&words[..words.len().min(8)]).unwrap_or_default().into_response()
}

async fn push(own: Own) -> Response {
    let mut held = Vec::new();
    loop {
        held.push(vec![1_u8; BLOCK]);
        if let Err(over) = checkpoint() {
            drop(held);
            return refused(&own, over.error());
        }
        tokio::time::sleep(BLOCK_WAIT).await;
    }
}

async fn stream(mut body: Body) -> Response {
    let mut held: Vec<Bytes> = Vec::new();
    // The layer answers for a body that it has cut off.
    while let Some(Ok(frame)) = body.frame().await {
        held.extend(frame.into_data().ok());
    }
    format!("{} bytes\n", held.iter().map(Bytes::len).sum::<usize>()).into_response()
}

async fn json(own: Own, body: Bytes) -> Response {
    let parse = move || serde_json::from_reader::<_, Value>(BufReader::new(Checked::new(&body[..])));
    // Parsing takes long, so it runs on a thread for blocking work.
    let parsed = match &own {
        Some(Extension(request)) => request.group().spawn_blocking(parse).await,
        None => tokio::task::spawn_blocking(parse).await,
    };
    let over = |error: &serde_json::Error| error.source()?.downcast_ref::<ChargeError>().copied();
    match parsed {
        Ok(Ok(value)) => format!("{} values\n", value.as_array().map_or(0, Vec::len)).into_response(),
        Ok(Err(error)) => match over(&error) {
            Some(over) => refused(&own, &over),
            None => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        },
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the parser panicked\n").into_response(),
    }
}

async fn reserve(own: Own) -> Response {
    let mut held = Vec::new();
    loop {
        let mut block = Vec::new();
        if fallible(|| block.try_reserve_exact(BLOCK)).is_err() {
            drop(held);
            return no_memory(&own, BLOCK as u64);
        }
        block.resize(BLOCK, 1_u8);
        held.push(block);
        tokio::time::sleep(BLOCK_WAIT).await;
    }
}
