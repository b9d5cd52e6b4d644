//! Write: the file of a recorder.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::pack::Packer;
use super::{BODY_MAX, CHECKED, DELTAS_MAX, HEAD, Kind, MAGIC, NAME_MAX, SOURCES_MAX, crc};

/// Level of zstd. Higher levels take several times the time for a few percent.
const LEVEL: i32 = 6;

/// A recording that is being written.
pub(crate) struct Recorder {
    file: File,
    zstd: zstd::bulk::Compressor<'static>,
    sources: Vec<(Packer, u32)>,
    bytes: u64,
}

impl Recorder {
    /// Makes the file, with the names of all sources. Only its owner can read it: it has what the
    /// programs show to their own users only.
    ///
    /// # Errors
    /// The file exists, or the system refuses it. Or there are too many sources, or one has too
    /// long a name.
    pub(crate) fn create(path: &Path, sources: &[String], unix_us: u64) -> io::Result<Recorder> {
        if sources.len() > SOURCES_MAX || sources.iter().any(|name| name.len() > NAME_MAX) {
            return Err(io::Error::other(format!(
                "a recording has at most {SOURCES_MAX} programs, and the name of one at most {NAME_MAX} bytes"
            )));
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(MAGIC)?;
        let zstd = zstd::bulk::Compressor::new(LEVEL)?;
        let mut recorder = Recorder { file, zstd, sources: Vec::new(), bytes: MAGIC.len() as u64 };
        for name in sources {
            let number = recorder.sources.len();
            recorder.sources.push((Packer::default(), DELTAS_MAX));
            recorder.write(Kind::Source, number, unix_us, name.as_bytes())?;
        }
        Ok(recorder)
    }

    /// Appends a snapshot of a source.
    ///
    /// # Errors
    /// The system's, or a snapshot that is too large.
    pub(crate) fn snapshot(&mut self, source: usize, unix_us: u64, json: &[u8]) -> io::Result<()> {
        let (packer, deltas) = &mut self.sources[source];
        // Until this frame is written, the next one cannot build on it.
        let before = std::mem::replace(deltas, DELTAS_MAX);
        let is_full = before >= DELTAS_MAX;
        if is_full {
            *packer = Packer::default();
        }
        let body = match packer.pack(json) {
            Ok(body) => body,
            // A frame that needs no other has tables of its own.
            Err(_) if !is_full => return self.snapshot(source, unix_us, json),
            Err(error) => return Err(io::Error::other(error)),
        };
        self.write(if is_full { Kind::Full } else { Kind::Delta }, source, unix_us, &body)?;
        self.sources[source].1 = if is_full { 0 } else { before + 1 };
        Ok(())
    }

    /// Appends that a source gave no snapshot.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn gone(&mut self, source: usize, unix_us: u64, why: &str) -> io::Result<()> {
        self.write(Kind::Gone, source, unix_us, why.as_bytes())
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&mut self, kind: Kind, source: usize, unix_us: u64, body: &[u8]) -> io::Result<()> {
        if body.len() > BODY_MAX {
            return Err(io::Error::other(format!("a snapshot has more than {BODY_MAX} bytes")));
        }
        let packed = self.zstd.compress(body)?;
        // A body that cannot be compressed becomes longer.
        if packed.len() > BODY_MAX {
            return Err(io::Error::other(format!("a compressed snapshot has more than {BODY_MAX} bytes")));
        }
        let mut checked = Vec::with_capacity(CHECKED);
        checked.extend([kind as u8, source as u8]);
        checked.extend(unix_us.to_le_bytes());
        checked.extend((body.len() as u32).to_le_bytes());
        let mut frame = Vec::with_capacity(HEAD + packed.len());
        frame.extend((packed.len() as u32).to_le_bytes());
        frame.extend(crc(&checked, &packed).to_le_bytes());
        frame.extend(checked);
        frame.extend(packed);
        self.file.write_all(&frame)?;
        self.bytes += frame.len() as u64;
        Ok(())
    }
}
