//! Bodies that are charged for as long as they exist.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use memgroup::{Group, scope};
use memgroup_tokio::{BodyError, BodyFailure, ChargedBody, InGroupExt, ReclaimerThread};
use tokio::task::yield_now;

use crate::frames::zeros;
use crate::{assert_empty, fixture};

fn charged<B: Body>(group: &Group, body: B) -> ChargedBody<B> {
    ChargedBody::new(body, group.try_charge(100).unwrap())
}

#[tokio::test]
async fn holds_its_charge_while_it_lasts() {
    let (hierarchy, group) = fixture();
    let mut body = charged(&group, zeros([10, 20]));
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 10);
    assert_eq!(group.usage_exact(), 100, "frames are not charged unless told");
    drop(body);
    assert_empty(&hierarchy, &group);
}

/// Bytes that are charged for each frame besides its data.
const FRAME: u64 = 128;

#[tokio::test]
async fn many_small_frames_are_charged_for_the_memory_of_a_list_of_them() {
    let (hierarchy, group) = fixture();
    group.set_max(100 + 1000 * (1 + FRAME)).unwrap();
    let mut body = charged(&group, zeros([1; 1001])).growing();
    let mut list = Vec::new();
    let end = loop {
        match body.frame().await.unwrap() {
            Ok(frame) => list.push(frame),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, BodyError::Failed(BodyFailure::Refused(_))));
    assert_eq!((list.len(), group.usage_exact()), (1000, 100 + 1000 * (1 + FRAME)));
    drop((list, body));
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn charges_each_frame_until_it_is_dropped() {
    let (hierarchy, group) = fixture();
    let mut body = charged(&group, zeros([10, 20])).growing();
    let account = body.account();
    let mut next = async || body.frame().await.unwrap().unwrap().into_data().unwrap();
    let first = next().await;
    assert_eq!(group.usage_exact(), 100 + 10 + FRAME);
    let second = next().await;
    assert_eq!(group.usage_exact(), 100 + 10 + 20 + 2 * FRAME);
    drop(first);
    assert_eq!((account.bytes(), group.usage_exact()), (100, 100 + 20 + FRAME));
    let part = second.slice(19..);
    drop(second);
    assert_eq!((part.len(), group.usage_exact()), (1, 100 + 20 + FRAME), "a part keeps the whole frame");
    drop(part);
    drop(body);
    assert_eq!((group.usage_exact(), account.failure()), (100, None));
    drop(account);
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn a_copy_of_the_frames_is_not_charged_beside_them() {
    let (hierarchy, group) = fixture();
    let copied = charged(&group, zeros([10, 20])).growing().collect().await.unwrap().to_bytes();
    assert_eq!((copied.len(), group.usage_exact()), (30, 0), "two frames were copied into one buffer");
    let handed_on = charged(&group, zeros([10])).growing().collect().await.unwrap().to_bytes();
    assert_eq!((handed_on.len(), group.usage_exact()), (10, 10 + FRAME), "one is handed on as it is");
    drop(handed_on);
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn hands_out_data_of_any_type_in_one_piece() {
    let (hierarchy, group) = fixture();
    let pieces = bytes::Buf::chain(&b"two "[..], &b"pieces"[..]);
    let whole = charged(&group, Full::new(pieces)).growing().frame().await.unwrap().unwrap();
    let whole = whole.into_data().unwrap();
    assert_eq!((&*whole, group.usage_exact()), (&b"two pieces"[..], 10 + FRAME));
    drop(whole);
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn has_not_ended_while_its_last_frame_waits_for_room() {
    let (hierarchy, group) = fixture();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    group.set_max(1000).unwrap();
    let held = group.try_charge(900).unwrap();
    let body = Full::<Bytes>::from("the whole of it");
    let body = ChargedBody::new(body, group.try_charge(0).unwrap()).growing();
    let mut body = body.patience(Duration::from_secs(3600));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(Pin::new(&mut body).poll_frame(&mut context).is_pending());
    assert!(!body.is_end_stream(), "a reader that asks would drop the frame");
    assert_eq!((body.size_hint().lower(), body.size_hint().upper()), (0, None));
    drop(held);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 15);
    assert!(body.is_end_stream());
    drop(body);
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn is_cut_off_at_a_frame_that_is_refused() {
    let (hierarchy, group) = fixture();
    group.set_max(125 + FRAME).unwrap();
    let mut body = charged(&group, zeros([20, 20, 1])).growing();
    let first = body.frame().await.unwrap().unwrap();
    let Some(Err(BodyError::Failed(BodyFailure::Refused(error)))) = body.frame().await else { panic!() };
    assert_eq!((error.asked(), error.usage()), (20 + FRAME, 120 + FRAME));
    assert!(body.frame().await.is_none());
    assert_eq!(body.account().failure(), Some(BodyFailure::Refused(error)));
    drop((first, body));
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn is_cut_off_at_the_byte_beyond_its_most() {
    let (hierarchy, group) = fixture();
    for (most, is_whole) in [(30, true), (29, false)] {
        let body = charged(&group, zeros([10, 20])).growing().max_bytes(most);
        assert_eq!(body.collect().await.is_ok(), is_whole, "{most}");
    }
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn a_frame_waits_for_room() {
    let (hierarchy, group) = fixture();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    group.set_max(1100).unwrap();
    let held = group.try_charge(800).unwrap();
    let body = charged(&group, zeros([50, 500])).growing().patience(Duration::from_secs(3600));
    let reading = tokio::spawn(body.collect());
    while group.waiters().now == 0 {
        yield_now().await;
    }
    assert_eq!(group.usage_exact(), 950 + FRAME);
    drop(held);
    assert_eq!(reading.await.unwrap().unwrap().to_bytes().len(), 550);
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn a_body_that_waits_for_a_frame_can_be_dropped() {
    let (hierarchy, group) = fixture();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    group.set_max(1000).unwrap();
    let held = group.try_charge(800).unwrap();
    let body = charged(&group, zeros([500])).growing().patience(Duration::from_secs(3600));
    let reading = tokio::spawn(body.collect());
    while group.waiters().now == 0 {
        yield_now().await;
    }
    reading.abort();
    assert!(reading.await.unwrap_err().is_cancelled());
    assert_eq!(group.usage_exact(), 800);
    drop(held);
    assert_empty(&hierarchy, &group);
}

#[tokio::test]
async fn is_polled_and_dropped_in_its_group() {
    struct Looks(Full<Bytes>, Group);

    impl Body for Looks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            assert_eq!(scope::current().as_ref(), Some(&self.1));
            Pin::new(&mut self.0).poll_frame(context)
        }
    }

    impl Drop for Looks {
        fn drop(&mut self) {
            assert_eq!(scope::current().as_ref(), Some(&self.1));
        }
    }

    let (_hierarchy, group) = fixture();
    let looks = || Looks(Full::from("body"), group.clone());
    assert_eq!(charged(&group, looks()).collect().await.unwrap().to_bytes().len(), 4);
    assert_eq!(looks().in_group(&group).collect().await.unwrap().to_bytes().len(), 4);
    assert_eq!(scope::current(), None);
}
