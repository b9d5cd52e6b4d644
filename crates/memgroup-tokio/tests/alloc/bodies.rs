//! Bodies that the layer and the allocator both see.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use memgroup_tokio::{ChargedBody, RequestGroup};
use tower_layer::Layer;
use tower_service::Service;

use crate::frames::Frames;
use crate::{Handler, MIB, tenants};

const FRAMES: usize = 160;
const FRAME: usize = 64 << 10;

#[tokio::test]
async fn each_byte_of_a_body_counts_once() {
    let (hierarchy, tenants, layer) = tenants(&["alice"]);
    let alice = tenants.child("alice").unwrap();
    // As an extractor of JSON does: the frames are copied into one buffer, and the text in it is
    // copied out.
    let parse = |request: Request<ChargedBody<Frames>>| async move {
        let tenant = request.extensions().get::<RequestGroup>().unwrap().tenant().clone();
        let collected = request.into_body().collect().await.unwrap().to_bytes();
        let parsed = collected.to_vec();
        drop(collected);
        let usage = tenant.usage_exact();
        Response::new(Full::from(format!("{} {usage}", parsed.len())))
    };
    let mut service = layer.layer(Handler(parse));
    // Allocated in no group, as those that a server reads from a connection.
    let frames: Vec<Bytes> = (0..FRAMES).map(|_| Bytes::from(vec![b'x'; FRAME])).collect();
    let body = Frames(frames.into_iter());
    let request = Request::builder().header("tenant", "alice").body(body).unwrap();
    let response = service.call(request).await.unwrap();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let (length, usage) = std::str::from_utf8(&text).unwrap().split_once(' ').unwrap();
    let (length, usage): (u64, u64) = (length.parse().unwrap(), usage.parse().unwrap());
    assert_eq!(length, 10 * MIB);
    // Two copies of the body are alive at a time: the frames and the buffer, and then the buffer
    // and its copy. The rest is what slots hold back, the owners, and the list of frames.
    let small = (64 << 10) + FRAMES as u64 * 512;
    assert!((length..length + small).contains(&usage), "one copy is left, and {usage} bytes are charged");
    let (live, peak) = (2 * length, alice.peak());
    assert!((live..=live + FRAME as u64 + small).contains(&peak), "{peak} bytes at most, of {live} alive");
    drop(text);
    assert_eq!(hierarchy.root().usage_exact(), 0);
}
