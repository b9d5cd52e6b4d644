//! Chunks: the text of an answer in pieces, each charged before it is allocated.

use std::collections::VecDeque;
use std::fmt;
use std::io;

use bytes::Bytes;
use memgroup::{Charge, ChargeError};

use crate::account::{Account, uncounted};

/// Bytes of a piece.
pub(crate) const CHUNK: usize = 64 << 10;

/// A text that grows in pieces.
#[derive(Debug)]
pub(crate) struct Chunks {
    account: Account,
    charge: Charge,
    full: VecDeque<Bytes>,
    open: Vec<u8>,
    refused: Option<ChargeError>,
}

impl Chunks {
    pub(crate) fn new(account: &Account) -> Result<Chunks, ChargeError> {
        let charge = account.empty()?;
        Ok(Chunks {
            account: account.clone(),
            charge,
            full: VecDeque::new(),
            open: Vec::new(),
            refused: None,
        })
    }

    /// A text that exists already.
    pub(crate) fn of(account: &Account, text: &[u8]) -> Result<Chunks, ChargeError> {
        let mut chunks = Chunks::new(account)?;
        match chunks.push(text) {
            true => Ok(chunks),
            false => Err(chunks.refused.take().expect("a refusal is kept")),
        }
    }

    /// Adds a text. `false` if it was refused memory.
    fn push(&mut self, mut text: &[u8]) -> bool {
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

    /// Begins the next piece. The first one is as long as its text needs, so that a small answer costs little.
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

    /// Why it was refused memory, if it was.
    pub(crate) fn refusal(&mut self) -> Option<ChargeError> {
        self.refused.take()
    }

    /// Bytes of the text that were not taken yet.
    pub(crate) fn len(&self) -> usize {
        self.full.iter().map(Bytes::len).sum::<usize>() + self.open.len()
    }

    /// Takes the next piece. It stays charged until the next one is taken.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        // The piece taken before is with the connection, which asks for one more when there is room.
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

    fn account(max: u64) -> (Hierarchy, Account) {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let group = hierarchy.create("/serve").unwrap();
        group.set_max(max).unwrap();
        (hierarchy, Account { group })
    }

    #[test]
    fn charges_each_piece_and_gives_it_back() {
        let (_hierarchy, account) = account(1 << 20);
        let mut chunks = Chunks::new(&account).unwrap();
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
        let mut chunks = Chunks::new(&account).unwrap();
        assert!((0..1000).try_for_each(|_| chunks.write_str(&"x".repeat(1000))).is_err());
        let refusal = chunks.refusal().unwrap();
        assert_eq!(refusal.path().as_deref(), Some("/serve"));
        drop(chunks);
        assert_eq!(account.group.usage(), 0);
    }

    #[test]
    fn a_small_text_costs_little() {
        let (_hierarchy, account) = account(1000);
        let chunks = Chunks::of(&account, b"small").unwrap();
        assert_eq!((chunks.len(), account.group.usage()), (5, 256));
    }
}
