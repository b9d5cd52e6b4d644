//! Names of groups and paths of names.

use crate::base::error::GroupError;

/// The longest name, in bytes, as a directory's on Linux.
pub(crate) const NAME_MAX: usize = 255;

/// The bytes of a name that needs no memory of its own.
const SHORT_MAX: usize = 22;

/// The name of a group. A short one takes no memory beyond this value.
#[derive(Debug)]
pub(crate) enum Name {
    Short { length: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<str>),
}

impl Name {
    pub(crate) const EMPTY: Name = Name::Short { length: 0, bytes: [0; SHORT_MAX] };

    pub(crate) fn new(name: &str) -> Name {
        if name.len() > SHORT_MAX {
            return Name::Long(name.into());
        }
        let mut bytes = [0; SHORT_MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Name::Short { length: name.len() as u8, bytes }
    }

    pub(crate) fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).expect("a name is made of a str")
    }

    /// Names are in the order of their bytes, which is that of `str`.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Name::Short { length, bytes } => &bytes[..usize::from(*length)],
            Name::Long(name) => name.as_bytes(),
        }
    }
}

/// Which bytes are plain characters: digits, letters, `-` and `_`.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let at = byte as u8;
        plain[byte] = at.is_ascii_alphanumeric() || at == b'-' || at == b'_';
        byte += 1;
    }
    plain
};

/// Returns whether all characters of the name are plain ones, as they mostly are.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| PLAIN[usize::from(byte)])
}

/// Checks one name; the error repeats it and names the fault.
pub(crate) fn check(name: &str) -> Result<&str, GroupError> {
    if (1..=NAME_MAX).contains(&name.len()) && is_plain(name) {
        return Ok(name);
    }
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

/// Checks a path with all its names, before any group of it is created.
pub(crate) fn check_path(path: &str) -> Result<(), GroupError> {
    components(path)?.try_for_each(|name| check(name).map(drop))
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::tree::name::{Name, check, components};

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
        for name in ["a", "...", " ", "mieter-ä", "request-7_X", &"x".repeat(255)] {
            assert_eq!(check(name).unwrap(), name);
        }
    }

    #[test]
    fn keeps_names_of_any_length_in_the_order_of_strings() {
        let texts: Vec<String> = ["a", "ä", "b", "z"]
            .iter()
            .flat_map(|c| [1, 11, 22, 23, 255].map(|n| c.repeat(n / c.len() + 1)))
            .collect();
        for one in &texts {
            assert_eq!(Name::new(one).as_str(), one);
            for other in &texts {
                assert_eq!(
                    Name::new(one).as_bytes().cmp(Name::new(other).as_bytes()),
                    one.cmp(other),
                    "{one} and {other}"
                );
            }
        }
        assert_eq!(size_of::<Name>(), 24);
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
