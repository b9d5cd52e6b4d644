//! Recording: snapshots of programs in a file. `docs/recording.md` has the format.
//!
//!   JSON ─▶ pack (rows, differences) ─▶ zstd ─▶ frame (length, CRC) ─▶ file            and back
//!
//! - I1. A frame is appended by one write. A reader takes the frames up to the first one that is
//!   torn or damaged, and notes that one.
//! - I2. No length in a file is trusted: each is checked against a bound and the rest of the file
//!   before memory is allocated for it.

mod pack;
mod read;
mod write;

pub(crate) use read::Recording;
pub(crate) use write::Recorder;

/// The first line of a file.
const MAGIC: &[u8] = b"memgroup recording 1\n";
/// Bytes of a frame before its body: length of the body, CRC-32, kind, source, time, length of the
/// unpacked body.
const HEAD: usize = 4 + 4 + CHECKED;
/// Those of them that the CRC covers.
const CHECKED: usize = 1 + 1 + 8 + 4;
/// The most bytes of an unpacked body.
const BODY_MAX: usize = 32 << 20;
/// The most programs of a recording, and the most bytes of the name of one.
pub(crate) const SOURCES_MAX: usize = 64;
const NAME_MAX: usize = 4096;
/// The most frames in a row that need the one before.
const DELTAS_MAX: u32 = 299;

/// Contents of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The name of a program's socket. The first frame with a source number has it.
    Source = 0,
    /// A snapshot that needs no other frame.
    Full = 1,
    /// A snapshot, as differences to the one before of the same source.
    Delta = 2,
    /// The program gave no snapshot: the reason.
    Gone = 3,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        [Kind::Source, Kind::Full, Kind::Delta, Kind::Gone].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// CRC-32 of the second part of a head, and of the body.
fn crc(checked: &[u8], body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(checked);
    crc.update(body);
    crc.finalize()
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
