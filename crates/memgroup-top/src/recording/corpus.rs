//! Recordings from `corpus/recordings`, bodies of their frames from `corpus/recording-bodies`, and
//! those that are made of them.

use std::fs;

use xtask::corpus;

use super::pack::{Packer, Unpacker};
use super::tests::{read_all, value};
use super::{CHECKED, HEAD, MAGIC, Recording, crc};

/// Corrects the checksum of each frame, so that damage reaches the parsers behind it.
fn mended(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    let mut at = MAGIC.len();
    while let Some(&[a, b, c, d]) = bytes.get(at..at + 4) {
        let end = (at + HEAD).saturating_add(u32::from_le_bytes([a, b, c, d]) as usize);
        let Some(frame) = bytes.get_mut(at..end) else { break };
        let sum = crc(&frame[HEAD - CHECKED..HEAD], &frame[HEAD..]);
        frame[4..8].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
    bytes
}

#[test]
fn a_file_is_read_or_its_error_names_it() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("a.memrec");
    corpus::run("recordings", 500, |input| {
        for bytes in [input.to_vec(), mended(input)] {
            fs::write(&path, bytes).expect("a file");
            match Recording::open(&path, None) {
                Ok(mut recording) => {
                    let numbers: Vec<_> = (0..recording.entries.len()).collect();
                    // Each entry by itself is as in a row, forwards and backwards.
                    let forwards: Vec<_> = numbers.iter().map(|&number| recording.read(number)).collect();
                    let mut backwards: Vec<_> =
                        numbers.iter().rev().map(|&number| recording.read(number)).collect();
                    backwards.reverse();
                    assert_eq!(forwards, backwards);
                    for entry in forwards {
                        match entry {
                            Ok(Ok(_)) => {}
                            Ok(Err(reason)) => assert!(!reason.contains(char::is_control), "{reason:?}"),
                            Err(error) => assert!(error.contains("a.memrec"), "{error}"),
                        }
                    }
                }
                Err(error) => {
                    assert!(error.starts_with("read ") && error.contains("a.memrec: "), "{error}");
                    assert!(!error.contains(char::is_control), "{error:?}");
                    assert!(read_all(&path).is_err());
                }
            }
        }
    });
}

#[test]
fn a_body_is_unpacked_or_refused_and_can_be_packed_again() {
    corpus::run("recording-bodies", 20_000, |input| match Unpacker::default().unpack(input, true) {
        Ok(text) if serde_json::from_slice::<serde_json::Value>(&text).is_ok() => {
            let packed = Packer::default().pack(&text).expect("a text that was unpacked");
            let again = Unpacker::default().unpack(&packed, true).expect("a packed body");
            assert_eq!(value(&again), value(&text));
        }
        Ok(_) => {}
        Err(error) => assert!(error.len() > 5, "{error}"),
    });
}
