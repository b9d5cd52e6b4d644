//! Write: the file of a recorder.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use super::pack::{Packer, ROWS_MAX};
use super::{BODY_MAX, CHECKED, DELTAS_MAX, HEAD, Kind, MAGIC, crc};

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
    /// Makes the file, with the names of all sources.
    ///
    /// # Errors
    /// The file exists, or the system refuses it.
    pub(crate) fn create(path: &Path, sources: &[String], unix_us: u64) -> io::Result<Recorder> {
        let mut file = File::create_new(path)?;
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
        let is_full = *deltas >= DELTAS_MAX;
        if is_full {
            *packer = Packer::default();
        }
        *deltas = if is_full { 0 } else { *deltas + 1 };
        let body = packer.pack(json);
        if packer.len() > ROWS_MAX {
            *deltas = DELTAS_MAX;
            return Err(io::Error::other(format!("a snapshot has {ROWS_MAX} groups or more")));
        }
        let written = self.write(if is_full { Kind::Full } else { Kind::Delta }, source, unix_us, &body);
        if written.is_err() {
            // The next frame cannot build on one that is not there.
            self.sources[source].1 = DELTAS_MAX;
        }
        written
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
