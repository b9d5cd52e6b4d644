//! Future: a charge that waits without a thread.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::time::Instant;

use crate::base::deadline::Deadline;
use crate::base::effort::Effort;
use crate::charge::charge::Charge;
use crate::tree::error::ChargeError;
use crate::tree::handle::Group;

/// A charge that waits for room; from [`Group::charge`].
#[must_use = "futures do nothing unless they are polled"]
pub struct Charging {
    group: Group,
    bytes: u64,
    deadline: Option<Instant>,
}

/// A charge that waits for room to grow; from [`Charge::grow`].
#[must_use = "futures do nothing unless they are polled"]
pub struct Growing<'a> {
    charge: &'a mut Charge,
    more: Charging,
}

impl Charging {
    /// Sets until when it waits.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Charging {
        self.deadline = deadline.into().instant();
        self
    }

    /// Until when it waits; `None` for a wait without end.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

impl Future for Charging {
    type Output = Result<Charge, ChargeError>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Result<Charge, ChargeError>> {
        Poll::Ready(self.group.try_charge_by(self.bytes, Effort::Count))
    }
}

impl Growing<'_> {
    /// Sets until when it waits.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Self {
        self.more = self.more.until(deadline);
        self
    }

    /// Until when it waits; `None` for a wait without end.
    pub fn deadline(&self) -> Option<Instant> {
        self.more.deadline()
    }
}

impl Future for Growing<'_> {
    type Output = Result<(), ChargeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), ChargeError>> {
        let Growing { charge, more } = &mut *self;
        Pin::new(more).poll(context).map(|made| made.map(|more| assert!(charge.merge(more).is_ok())))
    }
}

/// Charges that wait without a thread.
impl Group {
    /// Charges `bytes`, and waits for room without a thread.
    pub fn charge(&self, bytes: u64) -> Charging {
        Charging { group: self.clone(), bytes, deadline: None }
    }
}

/// Growth that waits without a thread.
impl Charge {
    /// Charges `bytes` more, as [`Group::charge`] does.
    pub fn grow(&mut self, bytes: u64) -> Growing<'_> {
        let more = self.group().charge(bytes);
        Growing { charge: self, more }
    }
}
