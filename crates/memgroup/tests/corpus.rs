//! Texts of files, triggers, trees and settings, from `corpus` and made of it: each is applied or
//! refused, and a refused one changes nothing.
#![cfg(not(any(memgroup_loom, memgroup_emulated)))]

use memgroup::{Config, FileProblem, Group, Hierarchy, PressureTrigger, SlotSource};
use xtask::corpus;

fn config() -> Config {
    Config::with_slots(SlotSource::virtual_slots(4).unwrap()).stock_cap_bytes(0)
}

/// The texts of all settings of a group, by the names of their files.
fn settings(group: &Group, names: &[String]) -> Vec<(String, String)> {
    names.iter().map(|name| (name.clone(), group.read_file(name).unwrap())).collect()
}

#[test]
fn a_text_of_a_file_is_in_force_or_changes_nothing() {
    let hierarchy = Hierarchy::new(config()).unwrap();
    let (group, twin) = (hierarchy.create("/t").unwrap(), hierarchy.create("/twin").unwrap());
    let files = hierarchy.files().into_iter().filter(|file| file.writable && file.readable);
    let names: Vec<_> = files.map(|file| file.name).collect();
    corpus::run("files", 20_000, |input| {
        let input = String::from_utf8_lossy(input);
        let (name, text) = input.split_once('\n').unwrap_or((&input, ""));
        let before = settings(&group, &names);
        let written = group.write_file(name, text);
        let after = settings(&group, &names);
        let changed: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
        match written {
            Ok(()) => {
                assert!(changed.iter().all(|(before, _)| before.0 == name), "{name} changed {changed:?}");
                if let Some((_, text)) = after.iter().find(|(known, _)| known == name) {
                    // The text that is read from a setting is that setting. No text turns
                    // subsystems on that is read so.
                    let again = twin.write_file(name, text);
                    assert!(again.is_ok() || name.starts_with("cgroup."), "{again:?}");
                    assert_eq!(twin.read_file(name).as_ref(), Some(text));
                }
            }
            Err(error) => {
                assert!(changed.is_empty(), "{error}, but it changed {changed:?}");
                let line = error.to_string();
                let subject = [
                    format!("write {} of group /t: ", error.file),
                    format!("write {:?} of group /t: ", error.file),
                ];
                assert!(subject.iter().any(|subject| line.starts_with(subject)), "{line}");
                assert!(line.len() < 2000 && !line.contains(char::is_control), "{line:?}");
                assert_eq!(
                    matches!(error.problem, FileProblem::Unknown),
                    !hierarchy.files().iter().any(|file| file.name == name)
                );
            }
        }
    });
}

#[test]
fn a_trigger_comes_back_from_its_text() {
    corpus::run("files", 20_000, |input| {
        let input = String::from_utf8_lossy(input);
        let text = input.strip_prefix("memory.pressure\n").unwrap_or(&input);
        match text.parse::<PressureTrigger>() {
            Ok(trigger) => assert_eq!(trigger.to_string().parse(), Ok(trigger)),
            Err(error) => {
                let line = error.to_string();
                assert!(line.contains("pressure trigger") && line.len() < 2000, "{line}");
            }
        }
    });
}

#[cfg(feature = "serde")]
#[test]
fn a_tree_is_applied_or_changes_nothing() {
    use memgroup::{GroupSpec, TreeSpec};
    use serde::de::DeserializeOwned;

    /// Reads a text as JSON if it begins so, and as TOML otherwise.
    fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
        if text.starts_with(['{', '[']) && !text.starts_with("[\"") {
            serde_json::from_str(text).map_err(|error| error.to_string())
        } else {
            toml::from_str(text).map_err(|error| error.to_string())
        }
    }

    let tree_of = |hierarchy: &Hierarchy| {
        let mut snapshot = hierarchy.snapshot();
        snapshot.groups.drain(..).map(|group| (group.path, group.limits)).collect::<Vec<_>>()
    };
    corpus::run("trees", 5000, |input| {
        let text = String::from_utf8_lossy(input);
        let hierarchy = Hierarchy::new(config().depth_max(8)).unwrap();
        let group = hierarchy.create("/a").unwrap();
        let before = tree_of(&hierarchy);
        let tree = read::<TreeSpec>(&text);
        if let Ok(tree) = &tree {
            match hierarchy.apply(tree) {
                Ok(()) => {
                    let applied = tree_of(&hierarchy);
                    hierarchy.apply(tree).unwrap();
                    assert_eq!(tree_of(&hierarchy), applied, "applied twice");
                }
                Err(error) => assert_eq!(tree_of(&hierarchy), before, "{error}"),
            }
        }
        let settings = read::<GroupSpec>(&text);
        if let Ok(settings) = &settings {
            group.apply(settings).unwrap();
        }
        let configuration = read::<Config>(&text);
        for error in [tree.err(), settings.err(), configuration.err()].into_iter().flatten() {
            // Errors of the formats tell the place, and ours the key or the group.
            let subjects = ["line ", "key `", "group", "EOF"];
            assert!(subjects.iter().any(|subject| error.contains(subject)), "{error}");
        }
    });
}
