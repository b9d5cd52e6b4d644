//! Recording: snapshots of programs in a file. `docs/recording.md` has the format.
//!
//!   JSON ─▶ pack (rows, differences) ─▶ zstd ─▶ frame (length, CRC) ─▶ file            and back
//!
//! - I1. A frame is appended by one write. A reader takes the frames up to the first one that is
//!   torn or damaged, and notes that one.
//! - I2. No length in a file is trusted: each is checked against a bound and the rest of the file
//!   before memory is allocated for it.

mod pack;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::text::plain;
use pack::{Packer, Unpacker};

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

/// Level of zstd. Higher levels take several times the time for a few percent.
const LEVEL: i32 = 6;

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

/// The frames of one program in a recording.
pub(crate) struct Recording {
    path: PathBuf,
    file: File,
    /// Frames of the program that was chosen.
    pub(crate) entries: Vec<Entry>,
    /// Why later frames are missing, if any are.
    pub(crate) note: Option<String>,
    /// State after the snapshot with this number.
    unpacker: Unpacker,
    at: Option<usize>,
}

/// Reads a head and its body, of `left` bytes; the error tells how it is damaged.
fn frame(file: &mut impl io::Read, offset: u64, left: u64) -> Result<(Entry, Vec<u8>), String> {
    let mut head = [0; HEAD];
    if left < HEAD as u64 {
        return Err("it is cut off".to_owned());
    }
    file.read_exact(&mut head).map_err(|error| error.to_string())?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (packed, unpacked) = (word(0) as usize, word(HEAD - 4) as usize);
    if packed as u64 > left - HEAD as u64 {
        return Err("it is cut off".to_owned());
    }
    if packed > BODY_MAX || unpacked > BODY_MAX {
        return Err(format!("its length is above {BODY_MAX} bytes"));
    }
    let mut body = vec![0; packed];
    file.read_exact(&mut body).map_err(|error| error.to_string())?;
    if crc(&head[HEAD - CHECKED..], &body) != word(4) {
        return Err("its checksum is wrong".to_owned());
    }
    let mut time = [0; 8];
    time.copy_from_slice(&head[HEAD - CHECKED + 2..][..8]);
    let kind = Kind::of(head[HEAD - CHECKED]).ok_or("its kind is unknown")?;
    let source = head[HEAD - CHECKED + 1];
    let unix_us = u64::from_le_bytes(time);
    Ok((Entry { kind, unix_us, source, offset, packed, unpacked }, body))
}

/// Counts a frame, or refuses one that needs too many before it.
fn follows(entry: Entry, deltas: &mut u32) -> Result<(), String> {
    match entry.kind {
        Kind::Full => *deltas = 0,
        Kind::Delta if *deltas >= DELTAS_MAX => {
            return Err(format!("none of the {DELTAS_MAX} before it is a whole snapshot"));
        }
        Kind::Delta => *deltas += 1,
        Kind::Source | Kind::Gone => {}
    }
    Ok(())
}

fn unpacked(body: &[u8], length: usize) -> Result<Vec<u8>, String> {
    let bytes = zstd::bulk::decompress(body, length).map_err(|error| error.to_string())?;
    if bytes.len() == length { Ok(bytes) } else { Err("its length is wrong".to_owned()) }
}

impl Recording {
    /// Opens a recording and reads its frames: those of `source`, or of its only program.
    ///
    /// # Errors
    /// The file cannot be read, is no recording, or has no snapshot; `source` is not in it, or is
    /// not given and there are several.
    pub(crate) fn open(path: &Path, source: Option<&str>) -> Result<Recording, String> {
        let named = |error: String| format!("read {}: {error}", path.display());
        // A pipe would have no bytes to go back to, and would wait here for one that writes.
        let found = fs::metadata(path).map_err(|error| named(error.to_string()))?;
        if found.is_dir() {
            return Err(named("it is a directory; give the file of a recording".to_owned()));
        }
        if !found.is_file() {
            return Err(named("it is no regular file; copy a recording from a pipe to one first".to_owned()));
        }
        let file = File::open(path).map_err(|error| named(error.to_string()))?;
        let size = file.metadata().map_err(|error| named(error.to_string()))?.len();
        let mut reader = BufReader::new(file);
        let mut magic = Vec::new();
        let line = (&mut reader).take(MAGIC.len() as u64).read_to_end(&mut magic);
        if line.is_err() || magic != MAGIC {
            return Err(named("it is no recording of memgroup-top (its first line is another)".to_owned()));
        }
        let (mut entries, mut names, mut note) = (Vec::new(), Vec::new(), None);
        let mut offset = MAGIC.len() as u64;
        // Of each source: the frames since the last one that needs no other. A source has none before its
        // first.
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
                    return Err(named(format!(
                        "it has more than {SOURCES_MAX} programs, or the name of one has more than {NAME_MAX} bytes"
                    )));
                }
                let name = unpacked(&body, entry.unpacked).map_err(named)?;
                names.push((entry.source, plain(&String::from_utf8_lossy(&name))));
            }
            entries.push(entry);
            offset += (HEAD + entry.packed) as u64;
        }
        let all = || names.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(", ");
        // The damaged frame may have been the first snapshot.
        let none = |note: Option<String>| match note {
            Some(note) => named(format!("{note}; so it has no snapshot")),
            None => named("it has no snapshot".to_owned()),
        };
        let number = match (source, &names[..]) {
            (None, [(number, _)]) => *number,
            (None, []) => return Err(none(note)),
            (None, _) => return Err(named(format!("it has several programs; give one: --of {}", all()))),
            (Some(source), _) => match names.iter().find(|(_, name)| name == source) {
                Some((number, _)) => *number,
                None => return Err(named(format!("it has no program {source:?}; --of may be {}", all()))),
            },
        };
        entries.retain(|entry| entry.source == number && entry.kind != Kind::Source);
        if !entries.iter().any(|entry| entry.kind == Kind::Full) {
            return Err(none(note));
        }
        let (path, file) = (path.to_owned(), reader.into_inner());
        Ok(Recording { path, file, entries, note, unpacker: Unpacker::default(), at: None })
    }

    /// JSON of the snapshot in entry `number`, or why there is none.
    ///
    /// # Errors
    /// The frame is damaged although its checksum is right, or the file was changed.
    pub(crate) fn read(&mut self, number: usize) -> Result<Result<Vec<u8>, String>, String> {
        let offset = self.entries[number].offset;
        let named = |path: &Path, error: String| {
            format!("read the frame at byte {offset} of {}: {error}", path.display())
        };
        if self.entries[number].kind == Kind::Gone {
            let why = self.body(number).map_err(|error| named(&self.path, error))?;
            return Ok(Err(plain(&String::from_utf8_lossy(&why))));
        }
        let back = |kinds: &[Kind]| (0..=number).rev().find(|&at| kinds.contains(&self.entries[at].kind));
        let full = back(&[Kind::Full]).ok_or_else(|| named(&self.path, "it needs one before".to_owned()))?;
        let from = self.at.filter(|&at| at >= full && at < number).map_or(full, |at| at + 1);
        self.at = None;
        let mut json = Vec::new();
        for at in from..=number {
            let kind = self.entries[at].kind;
            if kind == Kind::Full {
                self.unpacker = Unpacker::default();
            }
            if matches!(kind, Kind::Full | Kind::Delta) {
                let body = self.body(at).map_err(|error| named(&self.path, error))?;
                json = self.unpacker.unpack(&body, at == number).map_err(|error| named(&self.path, error))?;
            }
        }
        self.at = Some(number);
        Ok(Ok(json))
    }

    fn body(&mut self, number: usize) -> Result<Vec<u8>, String> {
        let entry = self.entries[number];
        self.file.seek(SeekFrom::Start(entry.offset)).map_err(|error| error.to_string())?;
        let (found, body) = frame(&mut self.file, entry.offset, (HEAD + entry.packed) as u64)?;
        if found.unpacked != entry.unpacked {
            return Err("the file was changed".to_owned());
        }
        unpacked(&body, entry.unpacked)
    }
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
