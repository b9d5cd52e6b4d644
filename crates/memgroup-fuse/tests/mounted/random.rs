//! Random names and texts.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use memgroup::{FileProblem, Group, GroupError};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::io::Errno;

use super::{mounted, number, write};

/// Names of all kinds: bytes, characters, long ones, and those of files.
fn names() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(1..=255_u8, 1..300),
        "\\PC{1,80}".prop_map(String::into_bytes),
        "(cgroup|memory)\\.(max|procs|stat|new)".prop_map(String::into_bytes),
        "[a-c]{1,2}".prop_map(String::into_bytes),
        "(\\.|\\.\\.|\\.\\.\\.)".prop_map(String::into_bytes),
    ]
    .prop_filter("a path has no zero, and a name no slash", |name| !name.contains(&b'/'))
}

#[test]
fn makes_a_group_of_each_name_that_the_engine_takes() {
    let Some(m) = mounted() else { return };
    let files: Vec<_> = m.hierarchy.files().into_iter().map(|file| file.name).collect();
    let property = |name: Vec<u8>| {
        let path = m.folder.path().join(OsStr::from_bytes(&name));
        let text = str::from_utf8(&name).ok();
        let made = number(fs::create_dir(&path));
        let expected = match text {
            Some("." | "..") => Err(Errno::EXIST),
            Some(name) if files.iter().any(|file| file == name) => Err(Errno::EXIST),
            _ if name.len() > 255 => Err(Errno::NAMETOOLONG),
            None => Err(Errno::INVAL),
            Some(name) => {
                // The engine's own answer, in another tree.
                match memgroup::Hierarchy::new(super::exact()).unwrap().root().create(name) {
                    Ok(_) => Ok(()),
                    Err(GroupError::InvalidName { .. }) => Err(Errno::INVAL),
                    Err(other) => panic!("{other}"),
                }
            }
        };
        prop_assert_eq!(made, expected, "{:?}", text);
        let root = m.hierarchy.root();
        prop_assert_eq!(root.child_count(), usize::from(made.is_ok()));
        if made.is_ok() {
            let group = &root.children()[0];
            prop_assert_eq!(Some(group.name()), text.map(str::to_owned));
            prop_assert!(path.join("memory.max").is_file());
            prop_assert_eq!(number(fs::remove_dir(&path)), Ok(()));
            prop_assert!(!group.is_online());
        }
        Ok(())
    };
    TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })
        .run(&names(), property)
        .unwrap();
}

/// Texts of all kinds: valid ones, almost valid ones, and bytes.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[ \\n]?(max|[0-9]{1,16}[KkMmGgTt]?)[ \\n]?".prop_map(String::into_bytes),
        "-?[0-9]{1,5}".prop_map(String::into_bytes),
        "[+-](memory|io|cpu|pids)( [+-]?(memory|io))?".prop_map(String::into_bytes),
        "(some|full|none) [0-9]{1,8} [0-9]{1,8}".prop_map(String::into_bytes),
        "\\PC{0,40}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 1..60),
    ]
    .prop_filter("a write of nothing reaches no file", |text| !text.is_empty())
}

/// A mounted tree with two groups: one is written through the mount, the other by the engine.
struct Twins {
    m: super::Mounted,
    mounted: Group,
    twin: Group,
    files: Vec<String>,
}

impl Twins {
    fn new() -> Option<Twins> {
        let m = mounted()?;
        let create = |path| m.hierarchy.create(path).unwrap();
        let (mounted, twin) = (create("/mounted"), create("/twin"));
        let files = m.hierarchy.files().into_iter().map(|file| file.name).collect();
        Some(Twins { m, mounted, twin, files })
    }

    /// Writes a text to a file of both, and compares.
    fn write(&self, name: &str, text: &[u8]) -> Result<(), TestCaseError> {
        let written = write(&self.m.path("mounted").join(name), text);
        let text = text.split(|&byte| byte == 0).next().unwrap();
        let expected = match (str::from_utf8(text), name) {
            (_, "memory.peak") => Ok(()),
            (Err(_), _) => Err(Errno::INVAL),
            (Ok(text), "memory.pressure") => {
                text.parse::<memgroup::PressureTrigger>().map(drop).map_err(|_| Errno::INVAL)
            }
            (Ok(text), name) => self.twin.write_file(name, text).map_err(|error| match error.problem {
                FileProblem::Short { .. } => Errno::AGAIN,
                FileProblem::Unsupported(_) => Errno::OPNOTSUPP,
                _ => Errno::INVAL,
            }),
        };
        prop_assert_eq!(written, expected, "{:?}", text);
        for name in &self.files {
            prop_assert_eq!(self.mounted.read_file(name), self.twin.read_file(name), "{}", name);
        }
        Ok(())
    }
}

#[test]
fn applies_each_text_as_the_engine_does() {
    let Some(twins) = Twins::new() else { return };
    let name = proptest::sample::select(twins.files.clone());
    TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })
        .run(&(name, texts()), |(name, text)| twins.write(&name, &text))
        .unwrap();
}

#[test]
fn applies_the_texts_of_the_corpus_as_the_engine_does() {
    let Some(twins) = Twins::new() else { return };
    xtask::corpus::run("files", 1000, |input| {
        let end = input.iter().position(|&byte| byte == b'\n').unwrap_or(input.len());
        let text = &input[(end + 1).min(input.len())..];
        let Some(name) = twins.files.iter().find(|name| name.as_bytes() == &input[..end]) else { return };
        if !text.is_empty() && text.len() <= 4096 {
            twins.write(name, text).unwrap();
        }
    });
}
