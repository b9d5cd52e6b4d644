//! Work: the server's handlers. They are the same with and without memgroup.
//!
//! A handler allocates from the program's own allocator, so every block of it is charged to the
//! request's group, if there is one. The handlers of a runaway ask for more memory without end.
//! Each has safe points of its kind:
//!
//! | path | allocates | ends at |
//! |---|---|---|
//! | `/push` | blocks, and waits after each | a checkpoint |
//! | `/stream` | the frames of a body without end | the layer's charge for a frame |
//! | `/json` | a tree of JSON, 80 times as large as its text | a checkpoint in the reader |
//! | `/reserve` | blocks, by `try_reserve` | the allocator, which refuses a block |

use std::error::Error;
use std::io::BufReader;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Extension};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body_util::BodyExt;
use memgroup::{ChargeError, Effort};
use memgroup_alloc::{Checked, checkpoint, fallible};
use memgroup_tokio::{GroupExt, RequestGroup};
use serde_json::Value;

/// Block of a runaway handler.
const BLOCK: usize = 512 << 10;
/// Time between two blocks, as if the handler read them from a database.
const BLOCK_WAIT: Duration = Duration::from_millis(1);
/// Time for which a handler holds its memory, as if it waited for a database.
const WAIT: Duration = Duration::from_millis(2);
/// Words that a small request makes of each number in its body.
const WORDS: u64 = 32;

/// The group of the request; none without memgroup.
type Own = Option<Extension<RequestGroup>>;

/// The handlers of one tenant.
pub(super) fn routes() -> axum::Router {
    axum::Router::new()
        .route("/small", post(small))
        .route("/push", post(push))
        .route("/stream", post(stream))
        .route("/json", post(json))
        .route("/reserve", post(reserve))
        .layer(DefaultBodyLimit::disable())
}

/// The answer to a charge that was refused.
fn refused(own: &Own, error: &ChargeError) -> Response {
    match own {
        Some(Extension(request)) => request.refuse(error).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, format!("failed to {error}\n")).into_response(),
    }
}

/// The answer to an allocation that failed: `bytes` do not fit.
fn no_memory(own: &Own, bytes: u64) -> Response {
    let charged = own.as_ref().map(|Extension(request)| request.group().try_charge_by(bytes, Effort::Count));
    match charged {
        Some(Err(error)) => refused(own, &error),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "no memory\n").into_response(),
    }
}

/// A small request: words from numbers, sorted, and held for a moment.
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
    // Parsing takes long, so it has a thread of its own.
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
