//! A tenant within its even share beside one whose closures block threads, and do not stop when
//! they are told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use memgroup_alloc::checkpoint;
use memgroup_tokio::{ChargedBody, GroupExt, ReclaimerThread};
use tower_layer::Layer;
use tower_service::Service;
use xtask::Watchdog;

use crate::{Handler, MIB, tenants};

type Incoming = Request<ChargedBody<Full<Bytes>>>;

fn request(tenant: &str) -> Request<Full<Bytes>> {
    Request::builder().header("tenant", tenant).body(Full::default()).unwrap()
}

const BLOCK: u64 = MIB / 4;

/// Takes blocks. Returns how many checkpoints were refused.
fn fill(blocks: usize) -> usize {
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..blocks {
        held.push(vec![1_u8; BLOCK as usize]);
        refused += usize::from(checkpoint().is_err());
    }
    refused
}

const REQUESTS: usize = 200;
const HOGS: usize = 16;
/// The fewest requests of the hog that are stopped in this time.
const STOPS: usize = 8;

#[test]
fn a_tenant_within_its_even_share_is_not_refused_beside_closures_that_ignore_their_stop() {
    let _watchdog = Watchdog::over("requests beside a hog");
    let (hierarchy, parent, layer) = tenants(&["hog", "small"]);
    parent.set_max(64 * BLOCK).unwrap();
    parent.set_share(8).unwrap();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    let layer = layer.admission(16 << 10).patience(Duration::from_secs(200));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let stopped = Arc::new(AtomicUsize::new(0));

    // Each closure continues to its end, whatever its checkpoints say, even after its request was
    // stopped.
    let block = |_: Incoming, blocks: usize| async move {
        let group = memgroup::scope::current().expect("the request's group is in force");
        let refused = group.spawn_blocking(move || fill(blocks)).await.unwrap();
        Response::new(Full::from(refused.to_string()))
    };
    let hogs: Vec<_> = (0..HOGS)
        .map(|_| {
            let mut service = layer.clone().layer(Handler(move |request| block(request, 12)));
            let (is_over, stopped) = (Arc::clone(&is_over), Arc::clone(&stopped));
            runtime.spawn(async move {
                // ORDERING: Relaxed, all below; flags and figures by themselves.
                while !is_over.load(Ordering::Relaxed) {
                    let response = service.call(request("hog")).await.unwrap();
                    let was_stopped = response.status() == StatusCode::SERVICE_UNAVAILABLE;
                    stopped.fetch_add(usize::from(was_stopped), Ordering::Relaxed);
                }
            })
        })
        .collect();

    let (mut requests, mut failed, mut refused) = (0, 0, 0);
    let mut service = layer.layer(Handler(move |request| block(request, 4)));
    runtime.block_on(async {
        // On a busy machine the hog may have room during many of the first requests.
        while requests < REQUESTS || stopped.load(Ordering::Relaxed) < STOPS {
            requests += 1;
            let response = service.call(request("small")).await.unwrap();
            if response.status() == StatusCode::OK {
                let text = response.into_body().collect().await.unwrap().to_bytes();
                refused += std::str::from_utf8(&text).unwrap().parse::<usize>().unwrap();
            } else {
                failed += 1;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        for hog in hogs {
            hog.await.unwrap();
        }
    });
    drop(runtime);
    assert_eq!((failed, refused), (0, 0), "of {requests} requests and {} checkpoints", 4 * requests);
    assert_eq!(hierarchy.root().usage_exact(), 0);
    assert!(hierarchy.dying().is_empty());
}
