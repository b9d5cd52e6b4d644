//! Names of groups and paths of names.

use crate::base::error::GroupError;

/// The longest name, in bytes, as a directory's on Linux.
pub(crate) const NAME_MAX: usize = 255;

/// Checks one name; the error repeats it and names the fault.
pub(crate) fn check(name: &str) -> Result<&str, GroupError> {
    let wrong = |reason| Err(GroupError::InvalidName { name: name.to_owned(), reason });
    if name.is_empty() {
        wrong("it is empty")
    } else if name == "." || name == ".." {
        wrong("it means a place in a path")
    } else if name.contains('/') {
        wrong("it contains a slash")
    } else if name.chars().any(char::is_control) {
        wrong("it contains a control character")
    } else if name.chars().any(turns_text) {
        wrong("it contains a character that changes the direction of text")
    } else if name.len() > NAME_MAX {
        wrong("it is longer than 255 bytes")
    } else {
        Ok(name)
    }
}

/// Whether the character could show a path to an operator in another order.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The names along an absolute path; `/` has none. No name is checked here but for being there.
pub(crate) fn components(path: &str) -> Result<impl DoubleEndedIterator<Item = &str>, GroupError> {
    let wrong = |reason| GroupError::InvalidPath { path: path.to_owned(), reason };
    let below_root = path.strip_prefix('/').ok_or_else(|| wrong("it does not begin with a slash"))?;
    if !below_root.is_empty() && below_root.split('/').any(str::is_empty) {
        return Err(wrong("it has an empty name in it"));
    }
    Ok(below_root.split('/').filter(|name| !name.is_empty()))
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::tree::name::{check, components};

    #[test]
    fn refuses_names_that_are_not_one_plain_word_of_a_path() {
        for (name, why) in [
            ("", "empty"),
            (".", "place"),
            ("..", "place"),
            ("a/b", "slash"),
            ("a\nb", "control"),
            ("a\u{7f}", "control"),
            ("\u{85}", "control"),
            ("a\u{202e}b", "direction"),
            (&"x".repeat(256), "255"),
        ] {
            let error = check(name).unwrap_err().to_string();
            assert!(error.contains(why), "{name:?}: {error}");
        }
        for name in ["a", "...", " ", "mieter-ä", &"x".repeat(255)] {
            assert_eq!(check(name).unwrap(), name);
        }
    }

    #[test]
    fn splits_absolute_paths_only() {
        assert_eq!(components("/").unwrap().count(), 0);
        assert_eq!(components("/a/b").unwrap().collect::<Vec<_>>(), ["a", "b"]);
        for path in ["", "a", "a/b", "//", "/a//b", "/a/"] {
            assert!(components(path).is_err(), "{path}");
        }
    }
}
