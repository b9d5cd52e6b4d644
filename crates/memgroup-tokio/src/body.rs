//! Body: the bytes of a request or response, charged for as long as they exist.
//!
//! - I1. The bytes of a frame are charged before it is handed out, and stay charged until its last
//!   part is dropped, because its `Bytes` own the charge. Once the frame is dropped, what a reader
//!   copied out of it is charged only if the reader charges it.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use memgroup::{Charge, ChargeError, ChargeErrorKind, Charging, Effort};
use pin_project_lite::pin_project;

use crate::in_group::{InGroup, InGroupExt};

/// Why a body was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyFailure {
    /// The body has more data than it may have.
    #[error("body too large: more than {max} bytes")]
    TooLarge {
        /// The most bytes that it may have.
        max: u64,
    },
    /// A frame could not be charged.
    #[error("failed to {0}")]
    Refused(ChargeError),
}

/// The error of a [`ChargedBody`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError<E> {
    /// The error of the body within.
    #[error("{0}")]
    Inner(E),
    /// The body was cut off.
    #[error("{0}")]
    Failed(BodyFailure),
}

/// The charge that a body was made with. Clones share it, and it lasts until the body and all
/// clones are dropped.
#[derive(Clone, Debug)]
pub struct BodyAccount {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    charge: Charge,
    failure: Option<BodyFailure>,
}

impl BodyAccount {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes that are charged for as long as the body exists. Frames that were handed
    /// out own charges of their own.
    pub fn bytes(&self) -> u64 {
        self.lock().charge.bytes()
    }

    /// Why the body was cut off, if it was.
    pub fn failure(&self) -> Option<BodyFailure> {
        self.lock().failure
    }
}

/// A frame that waits for its charge.
struct Waiting {
    charging: Charging,
    frame: Frame<Bytes>,
    /// The refusal before the wait.
    refused: ChargeError,
}

/// Bytes of a frame in addition to its data: the block that owns its charge, and its entry in the
/// list of a reader that collects frames.
const FRAME: u64 = 128;

/// A frame's data, which is charged for as long as a part of it is alive.
struct Charged {
    data: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// The frame with its data in one piece. For data that is `Bytes` this copies nothing.
fn in_one_piece<D: Buf>(frame: Frame<D>) -> Frame<Bytes> {
    frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))
}

/// The frame, whose data owns the charge.
fn charged(frame: Frame<Bytes>, charge: Charge) -> Frame<Bytes> {
    frame.map_data(|data| Bytes::from_owner(Charged { data, _charge: charge }))
}

/// Returns the error of a wait, or the refusal before it if no reclaimer runs, because the refusal
/// names the limit.
pub(crate) fn unless_deserted(error: ChargeError, refused: ChargeError) -> ChargeError {
    if error.kind() == ChargeErrorKind::NoReclaimer { refused } else { error }
}

pin_project! {
    /// A body that has a charge for its whole life, is polled in its group, and may be charged
    /// frame by frame.
    ///
    /// With [`growing`](ChargedBody::growing) each frame of data is charged before it is handed
    /// out, to the group of the first charge. Its bytes stay charged until the frame is dropped,
    /// with all clones and slices of its [`Bytes`]. So a reader that copies frames into its own
    /// buffer is charged for them only while it keeps the frames. A refused frame cuts the body off
    /// with [`BodyError::Failed`].
    ///
    /// Data of another type than `Bytes` is copied when its frame is handed out.
    ///
    /// **Cancel safety**: a frame that waits for its charge stays in the body, and the next poll
    /// continues.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::{BodyExt, Full};
    /// # use memgroup::{Config, Hierarchy};
    /// use memgroup_tokio::{BodyError, BodyFailure, ChargedBody};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// let body = ChargedBody::new(Full::<Bytes>::from("ten bytes!"), alice.try_charge(0).unwrap()).growing();
    /// let collected = body.collect().await.unwrap().to_bytes();
    /// assert_eq!((collected.len(), alice.usage_exact()), (10, 138), "128 for the frame itself");
    /// drop(collected);
    /// assert_eq!(alice.usage_exact(), 0);
    ///
    /// let body = ChargedBody::new(Full::<Bytes>::from("ten bytes!"), alice.try_charge(0).unwrap()).max_bytes(9);
    /// assert_eq!(body.collect().await.unwrap_err(), BodyError::Failed(BodyFailure::TooLarge { max: 9 }));
    /// assert_eq!(alice.usage_exact(), 0);
    /// # }
    /// ```
    pub struct ChargedBody<B: Body> {
        #[pin]
        body: InGroup<B>,
        account: BodyAccount,
        is_growing: bool,
        patience: Duration,
        // Bytes that the body may still yield.
        max: u64,
        left: u64,
        waiting: Option<Waiting>,
        is_cut_off: bool,
    }
}

impl<B: Body> ChargedBody<B> {
    /// Makes a body in the group of `charge`, which it keeps for its whole life.
    pub fn new(body: B, charge: Charge) -> ChargedBody<B> {
        let body = body.in_group(&charge.group());
        let account = BodyAccount { state: Arc::new(Mutex::new(State { charge, failure: None })) };
        let (is_growing, patience, max, left) = (false, Duration::ZERO, u64::MAX, u64::MAX);
        ChargedBody { body, account, is_growing, patience, max, left, waiting: None, is_cut_off: false }
    }

    /// Charges each frame of data before it is handed out: its bytes, and 128 more for the frame
    /// itself. It calls no shrinker and no kill hook ([`Effort::Count`]).
    #[must_use]
    pub fn growing(mut self) -> ChargedBody<B> {
        self.is_growing = true;
        self
    }

    /// Lets a frame wait if there is no room for it. The body reads no further, so the sender waits
    /// too. This needs a [`Reclaimer`](memgroup::Reclaimer); without one, a frame does not wait.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> ChargedBody<B> {
        self.patience = patience;
        self
    }

    /// Sets the most bytes of data that the body may have. It is cut off at the first frame that
    /// exceeds them.
    #[must_use]
    pub fn max_bytes(mut self, max: u64) -> ChargedBody<B> {
        (self.max, self.left) = (max, max);
        self
    }

    /// The charge that the body was made with, and the reason if it is cut off.
    pub fn account(&self) -> BodyAccount {
        self.account.clone()
    }
}

/// The result of a poll of a [`ChargedBody`].
type Polled<B> = Poll<Option<Result<Frame<Bytes>, BodyError<<B as Body>::Error>>>>;

impl<B: Body> ChargedBody<B> {
    /// Cuts the body off: drops it in its group.
    fn cut_off(self: Pin<&mut Self>, failure: BodyFailure) -> Polled<B> {
        let this = self.project();
        this.body.clear();
        *this.is_cut_off = true;
        this.account.lock().failure = Some(failure);
        Poll::Ready(Some(Err(BodyError::Failed(failure))))
    }
}

impl<B: Body> Body for ChargedBody<B> {
    type Data = Bytes;
    type Error = BodyError<B::Error>;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled<B> {
        let mut this = self.as_mut().project();
        if let Some(waiting) = this.waiting {
            let made = ready!(Pin::new(&mut waiting.charging).poll(context));
            return match made {
                Ok(charge) => {
                    Poll::Ready(this.waiting.take().map(|waiting| Ok(charged(waiting.frame, charge))))
                }
                Err(error) => {
                    let refused = this.waiting.take().map(|waiting| waiting.refused);
                    let error = refused.map_or(error, |refused| unless_deserted(error, refused));
                    self.cut_off(BodyFailure::Refused(error))
                }
            };
        }
        if *this.is_cut_off {
            return Poll::Ready(None);
        }
        let frame = match ready!(this.body.as_mut().poll_frame(context)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(BodyError::Inner(error)))),
            Some(Ok(frame)) => frame,
        };
        let data = frame.data_ref().map(|data| data.remaining() as u64);
        let bytes = data.unwrap_or(0);
        let Some(left) = this.left.checked_sub(bytes) else {
            let max = *this.max;
            return self.cut_off(BodyFailure::TooLarge { max });
        };
        *this.left = left;
        let Some(data) = data.filter(|_| *this.is_growing) else {
            return Poll::Ready(Some(Ok(in_one_piece(frame))));
        };
        let bytes = data.saturating_add(FRAME);
        match this.body.group().try_charge_by(bytes, Effort::Count) {
            Ok(charge) => Poll::Ready(Some(Ok(charged(in_one_piece(frame), charge)))),
            Err(error) if this.patience.is_zero() => self.cut_off(BodyFailure::Refused(error)),
            Err(refused) => {
                let charging = this.body.group().charge(bytes).until(*this.patience);
                *this.waiting = Some(Waiting { charging, frame: in_one_piece(frame), refused });
                self.poll_frame(context)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.waiting.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

impl<B: Body> fmt::Debug for ChargedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargedBody").field("account", &self.account).finish_non_exhaustive()
    }
}
