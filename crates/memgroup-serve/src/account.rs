//! Account: the bytes that the server takes, charged to its own group, and the text of an answer in
//! pieces, each charged before it is allocated.
//!
//! - I1. Bytes are charged before they are allocated. Allocations that an explicit charge covers
//!   are made in [`uncounted`], so that a global allocator of `memgroup-alloc` does not count them
//!   again. Such an allocator does count the blocks of a connection, in addition to the 64 KiB
//!   charged for each connection.
//! - I2. The server stays within the limit of its own group, except for blocks that such an
//!   allocator counts. A small answer needs no free bytes in the groups above it, so an operator
//!   can inspect a group and raise a limit while the tree is full.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use memgroup::{Charge, ChargeError, ChargeErrorKind, Effort, Group};
pub(crate) use memgroup_alloc::uncounted;

use crate::pace::Pace;
use crate::problem::Problem;

/// Charges of at most this many bytes ignore the limits of the groups above.
const SMALL: u64 = 256 << 10;

/// The group that the server charges.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) group: Group,
}

impl Account {
    /// Charges `bytes`, without calling a shrinker or a kill hook.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Charge, ChargeError> {
        let mut charge = self.empty()?;
        self.resize(&mut charge, bytes)?;
        Ok(charge)
    }

    /// Charges more bytes or returns some, so that `charge` has `bytes`.
    pub(crate) fn resize(&self, charge: &mut Charge, bytes: u64) -> Result<(), ChargeError> {
        let Some(more) = bytes.checked_sub(charge.bytes()) else {
            charge.shrink(charge.bytes() - bytes);
            return Ok(());
        };
        let Err(refused) = charge.try_grow_by(more, Effort::Count) else { return Ok(()) };
        let is_full_above = refused.kind() == ChargeErrorKind::Refused && refused.group() != self.group.id();
        if bytes <= SMALL && is_full_above { charge.grow_forced(more) } else { Err(refused) }
    }

    /// Returns a charge of zero bytes.
    pub(crate) fn empty(&self) -> Result<Charge, ChargeError> {
        self.group.try_charge_by(0, Effort::Count)
    }
}

/// Bytes of a piece.
pub(crate) const CHUNK: usize = 64 << 10;

/// Bytes of a text that are written between two readings of the clock.
const SETTLED: usize = 4 << 10;

/// A text that grows in pieces, at the server's pace.
#[derive(Debug)]
pub(crate) struct Chunks {
    account: Account,
    pace: Arc<Pace>,
    /// Bytes since the clock was last read.
    unsettled: usize,
    charge: Charge,
    full: VecDeque<Bytes>,
    open: Vec<u8>,
    refused: Option<ChargeError>,
}

impl Chunks {
    pub(crate) fn new(account: &Account, pace: &Arc<Pace>) -> Result<Chunks, ChargeError> {
        let charge = account.empty()?;
        Ok(Chunks {
            account: account.clone(),
            pace: Arc::clone(pace),
            unsettled: 0,
            charge,
            full: VecDeque::new(),
            open: Vec::new(),
            refused: None,
        })
    }

    /// Adds a text. Returns `false` if the memory for it was refused.
    fn push(&mut self, mut text: &[u8]) -> bool {
        self.unsettled += text.len();
        if self.unsettled >= SETTLED {
            self.unsettled = 0;
            self.pace.settle();
        }
        while !text.is_empty() {
            if self.open.len() == self.open.capacity() && !self.begin(text.len()) {
                return false;
            }
            let (now, later) = text.split_at(text.len().min(self.open.capacity() - self.open.len()));
            self.open.extend_from_slice(now);
            text = later;
        }
        true
    }

    /// Starts the next piece. The first one is only as long as its text needs, so that a small
    /// answer costs little.
    fn begin(&mut self, needed: usize) -> bool {
        let bytes =
            if self.open.capacity() == 0 { needed.next_power_of_two().clamp(256, CHUNK) } else { CHUNK };
        let all = self.charge.bytes() + bytes as u64;
        if let Err(refused) = self.account.resize(&mut self.charge, all) {
            self.refused = Some(refused);
            return false;
        }
        let open = std::mem::replace(&mut self.open, uncounted(|| Vec::with_capacity(bytes)));
        if !open.is_empty() {
            self.full.push_back(Bytes::from(open));
        }
        true
    }

    /// Returns the text if all of it was written. Otherwise returns the refusal, or an error with
    /// this code.
    pub(crate) fn written<E: fmt::Display>(
        mut self,
        result: Result<(), E>,
        code: &'static str,
    ) -> Result<Chunks, Problem> {
        let Err(error) = result else { return Ok(self) };
        Err(match self.refused.take() {
            Some(refused) => refused.into(),
            None => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, code, error.to_string()),
        })
    }

    /// Returns the number of bytes that were not taken yet.
    pub(crate) fn len(&self) -> usize {
        self.full.iter().map(Bytes::len).sum::<usize>() + self.open.len()
    }

    /// Takes the next piece. It stays charged until the next one is taken.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        // The connection still has the previous piece; it asks for the next one when it has room.
        let left = self.full.iter().map(Bytes::len).sum::<usize>() + self.open.capacity();
        let piece = self.full.pop_front().or_else(|| {
            let open = std::mem::take(&mut self.open);
            (!open.is_empty()).then(|| Bytes::from(open))
        });
        let keep = (left as u64).min(self.charge.bytes());
        self.charge.shrink(self.charge.bytes() - keep);
        piece
    }
}

impl fmt::Write for Chunks {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.push(text.as_bytes()) { Ok(()) } else { Err(fmt::Error) }
    }
}

impl io::Write for Chunks {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.push(text) { Ok(text.len()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use memgroup::{Config, Hierarchy};

    use super::*;
    use crate::pace::settles_of;

    fn chunks(account: &Account) -> Chunks {
        Chunks::new(account, &Arc::new(Pace::new(100))).unwrap()
    }

    fn account(max: u64) -> (Hierarchy, Account) {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let group = hierarchy.create("/serve").unwrap();
        group.set_max(max).unwrap();
        (hierarchy, Account { group })
    }

    #[test]
    fn charges_each_piece_and_gives_it_back() {
        let (_hierarchy, account) = account(1 << 20);
        let mut chunks = chunks(&account);
        let text = "0123456789".repeat(20_000);
        chunks.write_str(&text).unwrap();
        assert_eq!(chunks.len(), text.len());
        assert!(account.group.usage() >= text.len() as u64);
        let mut read = Vec::new();
        while let Some(piece) = chunks.pop() {
            assert!(account.group.usage() >= piece.len() as u64, "the piece is charged while it is sent");
            read.extend_from_slice(&piece);
        }
        assert_eq!(read, text.as_bytes());
        assert_eq!(account.group.usage(), 0);
    }

    #[test]
    fn stops_at_the_limit_and_keeps_the_reason() {
        let (_hierarchy, account) = account(100_000);
        let mut chunks = chunks(&account);
        assert!((0..1000).try_for_each(|_| chunks.write_str(&"x".repeat(1000))).is_err());
        let refusal = chunks.written(Err("out of memory"), "not_written").unwrap_err();
        assert_eq!((refusal.code, refusal.group.as_deref()), (crate::problem::NO_MEMORY, Some("/serve")));
        assert_eq!(account.group.usage(), 0);
    }

    #[test]
    fn a_small_text_costs_little() {
        let (_hierarchy, account) = account(1000);
        let mut chunks = chunks(&account);
        chunks.write_str("small").unwrap();
        assert_eq!((chunks.len(), account.group.usage()), (5, 256));
    }

    #[test]
    fn settles_once_for_each_4_kib() {
        let (_hierarchy, account) = account(1 << 20);
        let by_fmt = settles_of(|pace| {
            let mut chunks = Chunks::new(&account, pace).unwrap();
            (0..3 * SETTLED).for_each(|_| chunks.write_str("x").unwrap());
            assert_eq!(chunks.len(), 3 * SETTLED);
        });
        let by_io = settles_of(|pace| {
            let mut chunks = Chunks::new(&account, pace).unwrap();
            (0..3 * SETTLED).for_each(|_| io::Write::write_all(&mut chunks, b"x").unwrap());
            assert_eq!(chunks.len(), 3 * SETTLED);
        });
        assert_eq!((by_fmt, by_io), (3, 3));
    }
}
