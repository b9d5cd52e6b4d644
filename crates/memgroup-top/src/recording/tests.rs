use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memgroup::{Config, Hierarchy};
use proptest::prelude::*;

use super::pack::{FIGURES_MAX, Packer, ROWS_MAX, Unpacker};
use super::{CHECKED, DELTAS_MAX, HEAD, Kind, MAGIC, NAME_MAX, Recorder, Recording, SOURCES_MAX, crc};

/// JSON of snapshots while a group comes, goes, and refuses.
fn snapshots(count: u64) -> Vec<String> {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a hierarchy");
    let tenants = hierarchy.create("/tenants").expect("a group");
    tenants.set_max(9_000).expect("a limit");
    let mut held = Vec::new();
    (0..count)
        .map(|step| {
            held.extend(tenants.try_charge(step * 7));
            if step % 20 == 3 {
                held.clear();
                tenants.create(&format!("t{step}")).expect("a group");
            }
            serde_json::to_string(&hierarchy.snapshot()).expect("JSON")
        })
        .collect()
}

fn record(folder: &Path, snapshots: &[String]) -> PathBuf {
    let path = folder.join("a.memrec");
    let mut recorder = Recorder::create(&path, &["/run/m.sock".to_owned()], 1).expect("a file");
    for (json, second) in snapshots.iter().zip(1..) {
        recorder.snapshot(0, second * 1_000_000, json.as_bytes()).expect("a snapshot");
    }
    assert_eq!(recorder.bytes(), fs::metadata(&path).expect("a file").len());
    path
}

/// The JSON with fractions rounded, for comparison.
pub(super) fn value(json: &[u8]) -> serde_json::Value {
    fn round(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Number(number) if number.is_f64() => {
                *value = ((number.as_f64().unwrap_or_default() * 100.0).round() / 100.0).into();
            }
            serde_json::Value::Array(all) => all.iter_mut().for_each(round),
            serde_json::Value::Object(all) => all.values_mut().for_each(round),
            _ => {}
        }
    }
    let mut value = serde_json::from_slice(json).expect("JSON");
    round(&mut value);
    value
}

/// All snapshots that a file gives.
pub(super) fn read_all(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let mut recording = Recording::open(path, None)?;
    (0..recording.entries.len()).map(|number| recording.read(number).and_then(|found| found)).collect()
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn gives_back_each_snapshot_in_any_order() {
    let folder = tempfile::tempdir().expect("a directory");
    // Each of these needs no other frame.
    let whole = DELTAS_MAX + 1;
    let snapshots = snapshots(2 * u64::from(whole) + 10);
    let whole = whole as usize;
    let path = record(folder.path(), &snapshots);
    let mut recording = Recording::open(&path, None).expect("a recording");
    assert_eq!((recording.entries.len(), recording.note.as_ref()), (snapshots.len(), None));
    for number in (0..snapshots.len()).chain([2 * whole + 9, whole, whole - 1, whole + 1, 0, 2 * whole]) {
        let json = recording.read(number).expect("a frame").expect("a snapshot");
        assert_eq!(value(&json), value(snapshots[number].as_bytes()), "{number}");
    }
}

#[test]
fn keeps_programs_and_gaps_apart() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("two");
    let names = ["/a".to_owned(), "/b".to_owned()];
    let mut recorder = Recorder::create(&path, &names, 0).expect("a file");
    let json = |figure: u64| format!("{{\"groups\":[{{\"path\":\"/\",\"usage_bytes\":{figure}}}]}}");
    recorder.snapshot(0, 1, json(1).as_bytes()).expect("a snapshot");
    recorder.snapshot(1, 1, json(2).as_bytes()).expect("a snapshot");
    recorder.gone(0, 2, "connect: refused").expect("a note");
    recorder.snapshot(0, 3, json(3).as_bytes()).expect("a snapshot");
    let error = |source: Option<&str>| Recording::open(&path, source).err().unwrap_or_default();
    assert!(error(None).ends_with("it has several programs; give one: --of /a, /b"), "{}", error(None));
    assert!(
        error(Some("/c")).ends_with("it has no program \"/c\"; --of may be /a, /b"),
        "{}",
        error(Some("/c"))
    );
    let mut recording = Recording::open(&path, Some("/a")).expect("a recording");
    let read: Vec<_> = (0..3).map(|number| recording.read(number).expect("a frame")).collect();
    assert_eq!(read, [Ok(json(1).into()), Err("connect: refused".to_owned()), Ok(json(3).into())]);
    assert!(Recorder::create(&path, &names, 0).is_err(), "a file that exists is not replaced");
}

/// A frame with a right checksum.
fn frame(kind: Kind, source: u8, body: &[u8]) -> Vec<u8> {
    let packed = zstd::bulk::compress(body, 1).expect("a body");
    let mut checked = vec![kind as u8, source];
    checked.extend([0; 8]);
    checked.extend((body.len() as u32).to_le_bytes());
    let mut frame = (packed.len() as u32).to_le_bytes().to_vec();
    frame.extend(crc(&checked, &packed).to_le_bytes());
    frame.extend(checked);
    frame.extend(packed);
    frame
}

#[test]
fn neither_writes_nor_reads_long_names_and_many_programs() {
    let folder = tempfile::tempdir().expect("a directory");
    let long = vec!["n".repeat(NAME_MAX + 1)];
    let many = (0..=SOURCES_MAX).map(|number| number.to_string()).collect();
    for names in [long, many] {
        let path = folder.path().join("refused");
        let error = Recorder::create(&path, &names, 0).err().expect("no recorder").to_string();
        assert_eq!(error, "a recording has at most 64 programs, and the name of one at most 4096 bytes");
        assert!(!path.exists());
        let frames =
            names.iter().zip(0..).flat_map(|(name, source)| frame(Kind::Source, source, name.as_bytes()));
        fs::write(&path, MAGIC.iter().copied().chain(frames).collect::<Vec<_>>()).expect("a file");
        let error = Recording::open(&path, None).err().unwrap_or_default();
        assert!(
            error.ends_with("more than 64 programs, or the name of one has more than 4096 bytes"),
            "{error}"
        );
        fs::remove_file(&path).expect("a file");
        let most: Vec<String> =
            names.iter().take(SOURCES_MAX).map(|name| name.chars().take(NAME_MAX).collect()).collect();
        let mut recorder = Recorder::create(&path, &most, 0).expect("a file");
        recorder.snapshot(0, 1, br#"{"groups":[{"path":"/"}]}"#).expect("a snapshot");
        let recording = Recording::open(&path, Some(&most[0])).expect("a recording");
        assert_eq!(recording.entries.len(), 1);
        fs::remove_file(&path).expect("a file");
    }
}

#[test]
fn reads_no_more_differences_in_a_row_than_are_written() {
    let folder = tempfile::tempdir().expect("a directory");
    let whole = DELTAS_MAX as usize + 1;
    let path = record(folder.path(), &snapshots(whole as u64 + 2));
    let bytes = fs::read(&path).expect("a file");
    let mut starts = vec![MAGIC.len()];
    while let Some(&[a, b, c, d]) = bytes.get(starts[starts.len() - 1]..).and_then(|rest| rest.first_chunk())
    {
        starts.push(starts[starts.len() - 1] + HEAD + u32::from_le_bytes([a, b, c, d]) as usize);
    }
    // The name, a whole snapshot, its differences, the next whole snapshot, and a difference.
    assert_eq!(starts.len(), 1 + whole + 2 + 1);
    let kind = |number: usize| bytes[starts[number] + HEAD - CHECKED];
    assert_eq!([0, 1, 2, whole, whole + 1, whole + 2].map(kind), [0, 1, 2, 2, 1, 2]);
    let without = |number: usize| [&bytes[..starts[number]], &bytes[starts[number + 1]..]].concat();
    for (removed, read) in [(whole + 1, whole), (1, 0)] {
        fs::write(&path, without(removed)).expect("a file");
        match Recording::open(&path, None) {
            Ok(recording) => {
                assert_eq!(recording.entries.len(), read);
                let note = recording.note.expect("a note");
                assert!(
                    note.ends_with("is not read: none of the 299 before it is a whole snapshot"),
                    "{note}"
                );
            }
            Err(error) => assert!(read == 0 && error.ends_with("it has no snapshot"), "{error}"),
        }
    }
    fs::write(&path, without(whole)).expect("a file");
    assert_eq!(read_all(&path).expect("a whole snapshot after fewer differences").len(), whole + 1);
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn restarts_before_the_tables_exceed_their_bound() {
    let folder = tempfile::tempdir().expect("a directory");
    // Any two of them fit.
    let json = |letter: &str| {
        let text = letter.repeat(24 << 20);
        format!("{{\"groups\":[{{\"path\":\"/\",\"name\":\"{text}\"}}]}}")
    };
    let snapshots = ["a", "b", "c"].map(json);
    let path = record(folder.path(), &snapshots);
    let read = read_all(&path).expect("a recording");
    assert!(read.iter().zip(&snapshots).all(|(read, json)| read == json.as_bytes()) && read.len() == 3);
    let kinds = Recording::open(&path, None).expect("a recording").entries;
    let kinds: Vec<_> = kinds.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [Kind::Full, Kind::Delta, Kind::Full]);
    // One that exceeds it alone.
    let json = format!("{{\"groups\":[],\"all\":[{}]}}", snapshots.join(","));
    let mut recorder = Recorder::create(&folder.path().join("b"), &["/b".to_owned()], 0).expect("a file");
    let error = recorder.snapshot(0, 1, json.as_bytes()).expect_err("too large").to_string();
    assert_eq!(error, "the strings of snapshots have more than 67108864 bytes");
    recorder.snapshot(0, 2, br#"{"groups":[{"path":"/"}]}"#).expect("a snapshot after one that was refused");
    assert_eq!(read_all(&folder.path().join("b")).expect("a recording").len(), 1);
}

#[test]
fn refuses_a_snapshot_with_more_rows_than_are_read() {
    let json = |rows: usize| format!("{{\"groups\":[{}]}}", vec!["{}"; rows].join(","));
    let most = Packer::default().pack(json(ROWS_MAX - 1).as_bytes()).expect("as many as are read");
    Unpacker::default().unpack(&most, false).expect("as many as are written");
    let error = Packer::default().pack(json(ROWS_MAX).as_bytes()).expect_err("one more");
    assert_eq!(error, "a snapshot has more than 1048576 rows");
}

#[test]
fn refuses_a_body_with_more_figures_than_a_reader_keeps() {
    // No string; a shape of 127 integers; so many rows of it, none of which has one before; figures
    // of 0.
    let body = |rows: usize| {
        let mut body = vec![0, 1, 127];
        body.extend([1; 127]);
        let mut left = rows;
        while left >= 0x80 {
            body.push(left as u8 | 0x80);
            left >>= 7;
        }
        body.push(left as u8);
        body.resize(body.len() + rows * (2 + 127), 0);
        body
    };
    let most = FIGURES_MAX / 127;
    Unpacker::default().unpack(&body(100), true).expect("a body");
    let error = Unpacker::default().unpack(&body(most + 1), false).expect_err("one more");
    assert_eq!(error, "it has more than 16777216 figures");
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn refuses_a_snapshot_with_more_figures_than_are_read() {
    let group = format!("{{\"a\":[{}]}}", vec!["0"; 1 << 12].join(","));
    let json = |groups: usize| format!("{{\"groups\":[{}]}}", vec![group.as_str(); groups].join(","));
    let most = Packer::default().pack(json(FIGURES_MAX >> 12).as_bytes()).expect("as many as are read");
    Unpacker::default().unpack(&most, false).expect("as many as are written");
    let error = Packer::default().pack(json((FIGURES_MAX >> 12) + 1).as_bytes()).expect_err("one more");
    assert_eq!(error, "a snapshot has more than 16777216 figures");
}

#[test]
fn a_new_recording_can_be_read_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().expect("a directory");
    let path = record(folder.path(), &snapshots(1));
    let mode = fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
}

#[test]
fn skips_a_torn_last_frame_with_a_note() {
    let folder = tempfile::tempdir().expect("a directory");
    let snapshots = snapshots(3);
    let path = record(folder.path(), &snapshots);
    let bytes = fs::read(&path).expect("a file");
    for cut in 1..=HEAD + 1 {
        fs::write(&path, &bytes[..bytes.len() - cut]).expect("a file");
        let recording = Recording::open(&path, None).expect("a recording");
        assert_eq!(recording.entries.len(), 2, "{cut}");
        let note = recording.note.expect("a note");
        assert!(note.starts_with("the frame at byte ") && note.ends_with("it is cut off"), "{note}");
    }
}

#[test]
fn refuses_files_of_other_kinds() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("other");
    for bytes in [&b""[..], b"memgroup recording 2\n", b"{}", &[0; 99]] {
        fs::write(&path, bytes).expect("a file");
        let error = read_all(&path).expect_err("no recording");
        assert!(error.contains("other: it is no recording of memgroup-top"), "{error}");
    }
    fs::write(&path, MAGIC).expect("a file");
    assert!(read_all(&path).expect_err("empty").ends_with("it has no snapshot"));
    fs::write(&path, [MAGIC, &frame(Kind::Source, 0, b"/s"), b"cut"].concat()).expect("a file");
    let error = read_all(&path).expect_err("no whole frame");
    assert!(error.ends_with("is not read: it is cut off; so it has no snapshot"), "{error}");
    assert!(read_all(&folder.path().join("missing")).expect_err("missing").contains("missing: "));
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("a pipe").success());
    for (path, end) in [
        (pipe.as_path(), "it is no regular file; copy a recording from a pipe to one first"),
        (folder.path(), "it is a directory; give the file of a recording"),
    ] {
        let error = read_all(path).expect_err("no file");
        assert!(error.ends_with(end), "{error}");
    }
}

#[test]
fn does_not_trust_lengths() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = record(folder.path(), &snapshots(2));
    let bytes = fs::read(&path).expect("a file");
    let first = MAGIC.len();
    for at in [first, first + HEAD - 4] {
        let mut damaged = bytes.clone();
        damaged[at..at + 4].fill(0xff);
        fs::write(&path, damaged).expect("a file");
        read_all(&path).expect_err("its first frame is damaged");
    }
    // Right checksums do not make wrong contents right.
    for body in [&[0xff; 9][..], &[0, 0, 0xff, 0xff, 0xff, 0x7f], &[0xff, 0xff, 0xff, 0xff, 0x0f, 1]] {
        Unpacker::default().unpack(body, true).expect_err("too short");
    }
    // A shape and a string that are used again and again do not make a text without bound.
    let mut body = vec![1, 0xff, 0x7f];
    body.extend([b'x'; 0x3fff]);
    body.extend([2, 1, 4, 1, 3]);
    let rows = 100_000_u32;
    body.extend([(rows & 0x7f) as u8 | 0x80, (rows >> 7 & 0x7f) as u8 | 0x80, (rows >> 14) as u8, 0]);
    body.extend(vec![1; rows as usize - 1]);
    body.extend(vec![0; 2 * rows as usize - 1]);
    let error = Unpacker::default().unpack(&body, true).expect_err("1.6 GB");
    assert!(error.starts_with("its text has more than"), "{error}");
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        (-1_000_000..1_000_000_i64).prop_map(|hundredths| (hundredths as f64 / 100.0).into()),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

fn objects() -> impl Strategy<Value = Vec<serde_json::Map<String, serde_json::Value>>> {
    let object = prop::collection::btree_map("[a-c]|groups", json(), 0..4);
    prop::collection::vec(object.prop_map(|map| map.into_iter().collect()), 0..6)
}

proptest! {
    #[test]
    fn packs_any_json_with_groups(frames in prop::collection::vec((objects(), json()), 1..5)) {
        let (mut packer, mut unpacker) = (Packer::default(), Unpacker::default());
        for (groups, other) in frames {
            let json = serde_json::json!({"a": other, "groups": groups, "z": {"groups": [1, "\u{1}"]}});
            let bytes = packer.pack(json.to_string().as_bytes()).expect("a small snapshot");
            let text = unpacker.unpack(&bytes, true).expect("what was packed");
            prop_assert_eq!(text.len(), packer.text);
            let read: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            prop_assert_eq!(value(&text), value(json.to_string().as_bytes()), "{}", read);
        }
    }

    #[test]
    fn unpacks_any_bytes_or_refuses_them(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..4)) {
        let mut unpacker = Unpacker::default();
        for bytes in frames {
            if let Err(error) = unpacker.unpack(&bytes, true) {
                prop_assert!(!error.is_empty());
                break;
            }
        }
    }

    #[test]
    fn changed_bodies_are_refused_or_read(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut packer = Packer::default();
        let bodies = snapshots(5).iter().map(|json| packer.pack(json.as_bytes()).expect("a body")).collect::<Vec<_>>();
        let mut unpacker = Unpacker::default();
        for mut body in bodies {
            let at = at.index(body.len());
            body[at] = byte;
            match unpacker.unpack(&body, true) {
                Ok(text) => prop_assert!(text.len() < 1 << 20),
                Err(error) => { prop_assert!(!error.is_empty()); break }
            }
        }
    }

    #[test]
    fn a_damaged_file_is_read_up_to_the_damage(at in any::<prop::sample::Index>(), bit in 0..8_u8, is_cut in any::<bool>()) {
        let folder = tempfile::tempdir().expect("a directory");
        let snapshots = snapshots(8);
        let path = record(folder.path(), &snapshots);
        let mut bytes = fs::read(&path).expect("a file");
        let at = at.index(bytes.len());
        if is_cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << bit;
        }
        fs::write(&path, bytes).expect("a file");
        match read_all(&path) {
            Ok(read) => {
                prop_assert!(read.len() < 8);
                for (json, expected) in read.iter().zip(&snapshots) {
                    prop_assert_eq!(value(json), value(expected.as_bytes()));
                }
                let note = Recording::open(&path, None).expect("a recording").note;
                prop_assert!(note.is_some() || is_cut, "a cut between two frames has no note");
            }
            Err(error) => prop_assert!(error.contains("a.memrec"), "{}", error),
        }
    }
}
