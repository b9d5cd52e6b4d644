//! Recording: snapshots of programs in a file. `docs/recording.md` describes the format.
//!
//!   JSON ─▶ pack (rows, differences) ─▶ zstd ─▶ frame (length, CRC) ─▶ file            and back
//!
//! - I1. A frame is appended by one write. A reader stops at the first frame that is torn or
//!   damaged, and notes it.
//! - I2. No length in a file is trusted: it is checked against a bound and the rest of the file
//!   before memory is allocated for it.

mod pack;

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::text::plain;
use pack::{Packer, Unpacker};

/// The first line of a file.
const MAGIC: &[u8] = b"memgroup recording 1\n";
/// Bytes of a frame before its body: the length of the body, the CRC-32, the kind, the source, the
/// time, and the length of the unpacked body.
const HEAD: usize = 4 + 4 + CHECKED;
/// How many of these bytes the CRC covers.
const CHECKED: usize = 1 + 1 + 8 + 4;
/// The most bytes of an unpacked body.
const BODY_MAX: usize = 32 << 20;
/// The most programs of a recording, and the most bytes of the name of one.
pub(crate) const SOURCES_MAX: usize = 64;
const NAME_MAX: usize = 4096;
/// The most frames in a row that each need the frame before.
const DELTAS_MAX: u32 = 299;

/// Level of zstd. Higher levels save a few percent and take several times as long.
const LEVEL: i32 = 6;

/// Contents of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The name of a program's socket. The first frame with a source number has it.
    Source = 0,
    /// A snapshot that needs no other frame.
    Full = 1,
    /// A snapshot as differences to the previous one of the same source.
    Delta = 2,
    /// The reason why the program gave no snapshot.
    Gone = 3,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        [Kind::Source, Kind::Full, Kind::Delta, Kind::Gone].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Returns the CRC-32 of the second part of a head and of the body.
fn crc(checked: &[u8], body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(checked);
    crc.update(body);
    crc.finalize()
}

/// A recording that is being written.
pub(crate) struct Recorder {
    file: File,
    zstd: zstd::bulk::Compressor<'static>,
    sources: Vec<(Packer, u32)>,
    bytes: u64,
}

impl Recorder {
    /// Creates the file, with the names of all sources. Only its owner can read it, because
    /// programs show their groups only to their own users.
    ///
    /// # Errors
    /// The file exists, the system refuses it, there are too many sources, or a name is too long.
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
    /// The system refused the write, or the snapshot is too large.
    pub(crate) fn snapshot(&mut self, source: usize, unix_us: u64, json: &[u8]) -> io::Result<()> {
        let (packer, deltas) = &mut self.sources[source];
        // Unless this frame is written, the next one cannot build on it.
        let before = std::mem::replace(deltas, DELTAS_MAX);
        let is_full = before >= DELTAS_MAX;
        if is_full {
            *packer = Packer::default();
        }
        let body = match packer.pack(json) {
            Ok(body) => body,
            // A whole snapshot begins with empty tables.
            Err(_) if !is_full => return self.snapshot(source, unix_us, json),
            Err(error) => return Err(io::Error::other(error)),
        };
        self.write(if is_full { Kind::Full } else { Kind::Delta }, source, unix_us, &body)?;
        self.sources[source].1 = if is_full { 0 } else { before + 1 };
        Ok(())
    }

    /// Appends the reason why a source gave no snapshot.
    ///
    /// # Errors
    /// The system refused the write.
    pub(crate) fn gone(&mut self, source: usize, unix_us: u64, why: &str) -> io::Result<()> {
        self.write(Kind::Gone, source, unix_us, why.as_bytes())
    }

    /// Returns the bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&mut self, kind: Kind, source: usize, unix_us: u64, body: &[u8]) -> io::Result<()> {
        if body.len() > BODY_MAX {
            return Err(io::Error::other(format!("a snapshot has more than {BODY_MAX} bytes")));
        }
        let packed = self.zstd.compress(body)?;
        // Compression can make a body longer.
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

/// A frame of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) unix_us: u64,
    source: u8,
    offset: u64,
    /// Lengths of the body in the file, and unpacked.
    packed: usize,
    unpacked: usize,
}

/// How a file or frame is damaged, or why it cannot be read.
type Failed = Box<dyn Error>;

/// The frames of one program in a recording.
pub(crate) struct Recording {
    path: PathBuf,
    file: File,
    /// Frames of the program that was chosen.
    pub(crate) entries: Vec<Entry>,
    /// Why later frames are missing, if any are.
    pub(crate) note: Option<String>,
    /// The state after the snapshot with number `at`.
    unpacker: Unpacker,
    at: Option<usize>,
}

/// Reads a head and its body, of `left` bytes. The error tells how it is damaged.
fn frame(file: &mut impl io::Read, offset: u64, left: u64) -> Result<(Entry, Vec<u8>), Failed> {
    let left = left.checked_sub(HEAD as u64).ok_or("it is cut off")?;
    let mut head = [0; HEAD];
    file.read_exact(&mut head)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (packed, unpacked) = (word(0) as usize, word(HEAD - 4) as usize);
    if packed as u64 > left {
        return Err("it is cut off".into());
    }
    if packed > BODY_MAX || unpacked > BODY_MAX {
        return Err(format!("its length is above {BODY_MAX} bytes").into());
    }
    let mut body = vec![0; packed];
    file.read_exact(&mut body)?;
    if crc(&head[HEAD - CHECKED..], &body) != word(4) {
        return Err("its checksum is wrong".into());
    }
    let [kind, source] = [head[HEAD - CHECKED], head[HEAD - CHECKED + 1]];
    let unix_us = u64::from(word(HEAD - 12)) | u64::from(word(HEAD - 8)) << 32;
    let kind = Kind::of(kind).ok_or("its kind is unknown")?;
    Ok((Entry { kind, unix_us, source, offset, packed, unpacked }, body))
}

/// Counts a frame, or refuses one that needs too many before it.
fn follows(entry: Entry, deltas: &mut u32) -> Result<(), Failed> {
    match entry.kind {
        Kind::Full => *deltas = 0,
        Kind::Delta if *deltas >= DELTAS_MAX => {
            return Err(format!("none of the {DELTAS_MAX} before it is a whole snapshot").into());
        }
        Kind::Delta => *deltas += 1,
        Kind::Source | Kind::Gone => {}
    }
    Ok(())
}

fn unpacked(body: &[u8], length: usize) -> Result<Vec<u8>, Failed> {
    let bytes = zstd::bulk::decompress(body, length)?;
    if bytes.len() == length { Ok(bytes) } else { Err("its length is wrong".into()) }
}

impl Recording {
    /// Opens a recording and reads its frames: those of `source`, or of its only program.
    ///
    /// # Errors
    /// The file cannot be read, is no recording, or has no snapshot; `source` is not in it, or is
    /// not given and there are several.
    pub(crate) fn open(path: &Path, source: Option<&str>) -> Result<Recording, String> {
        Recording::of(path, source).map_err(|error| format!("read {}: {error}", path.display()))
    }

    fn of(path: &Path, source: Option<&str>) -> Result<Recording, Failed> {
        // A pipe has no bytes to go back to, and opening it would wait for one that writes.
        let found = fs::metadata(path)?;
        if found.is_dir() {
            return Err("it is a directory; give the file of a recording".into());
        }
        if !found.is_file() {
            return Err("it is no regular file; copy a recording from a pipe to one first".into());
        }
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut reader = BufReader::new(file);
        let mut magic = Vec::new();
        let line = (&mut reader).take(MAGIC.len() as u64).read_to_end(&mut magic);
        if line.is_err() || magic != MAGIC {
            return Err("it is no recording of memgroup-top (its first line is another)".into());
        }
        let (mut entries, mut names, mut note) = (Vec::new(), Vec::new(), None);
        let mut offset = MAGIC.len() as u64;
        // For each source, the frames since the last one that needs no other. Before its first
        // snapshot a source has none.
        let mut deltas = [DELTAS_MAX; 1 << u8::BITS];
        while offset < size {
            let found = frame(&mut reader, offset, size - offset).and_then(|(entry, body)| {
                follows(entry, &mut deltas[usize::from(entry.source)]).map(|()| (entry, body))
            });
            let (entry, body) = match found {
                Ok(found) => found,
                Err(error) => {
                    note = Some(format!("the frame at byte {offset} is not read: {error}"));
                    break;
                }
            };
            if entry.kind == Kind::Source {
                if entry.unpacked > NAME_MAX || names.len() >= SOURCES_MAX {
                    let most =
                        format!("{SOURCES_MAX} programs, or the name of one has more than {NAME_MAX} bytes");
                    return Err(format!("it has more than {most}").into());
                }
                names.push((entry.source, text(&unpacked(&body, entry.unpacked)?)));
            }
            entries.push(entry);
            offset += (HEAD + entry.packed) as u64;
        }
        let all = || names.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(", ");
        let number = match (source, &names[..]) {
            (None, [(number, _)]) => Some(*number),
            (None, []) => None,
            (None, _) => return Err(format!("it has several programs; give one: --of {}", all()).into()),
            (Some(source), _) => match names.iter().find(|(_, name)| name == source) {
                Some((number, _)) => Some(*number),
                None => return Err(format!("it has no program {source:?}; --of may be {}", all()).into()),
            },
        };
        entries.retain(|entry| Some(entry.source) == number && entry.kind != Kind::Source);
        if !entries.iter().any(|entry| entry.kind == Kind::Full) {
            // The damaged frame may have been the first snapshot.
            let note = note.map_or_else(String::new, |note| note + "; so ");
            return Err(format!("{note}it has no snapshot").into());
        }
        let file = reader.into_inner();
        Ok(Recording { path: path.to_owned(), file, entries, note, unpacker: Unpacker::default(), at: None })
    }

    /// Returns the JSON of the snapshot in entry `number`, or why there is none.
    ///
    /// # Errors
    /// The frame is damaged although its checksum is right, or the file was changed.
    pub(crate) fn read(&mut self, number: usize) -> Result<Result<Vec<u8>, String>, String> {
        self.snapshot(number).map_err(|error| {
            let (offset, path) = (self.entries[number].offset, self.path.display());
            format!("read the frame at byte {offset} of {path}: {error}")
        })
    }

    fn snapshot(&mut self, number: usize) -> Result<Result<Vec<u8>, String>, Failed> {
        if self.entries[number].kind == Kind::Gone {
            return Ok(Err(text(&self.body(number)?)));
        }
        let full = (0..=number).rev().find(|&at| self.entries[at].kind == Kind::Full);
        let full = full.ok_or("it needs one before")?;
        let from = self.at.take().filter(|&at| at >= full && at < number).map_or(full, |at| at + 1);
        let mut json = Vec::new();
        for at in from..=number {
            let kind = self.entries[at].kind;
            if kind == Kind::Full {
                self.unpacker = Unpacker::default();
            }
            if matches!(kind, Kind::Full | Kind::Delta) {
                let body = self.body(at)?;
                json = self.unpacker.unpack(&body, at == number)?;
            }
        }
        self.at = Some(number);
        Ok(Ok(json))
    }

    fn body(&mut self, number: usize) -> Result<Vec<u8>, Failed> {
        let entry = self.entries[number];
        self.file.seek(SeekFrom::Start(entry.offset))?;
        let (found, body) = frame(&mut self.file, entry.offset, (HEAD + entry.packed) as u64)?;
        if found.unpacked != entry.unpacked {
            return Err("the file was changed".into());
        }
        unpacked(&body, entry.unpacked)
    }
}

/// Returns bytes of a file as text that a terminal only shows.
fn text(bytes: &[u8]) -> String {
    plain(&String::from_utf8_lossy(bytes))
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
