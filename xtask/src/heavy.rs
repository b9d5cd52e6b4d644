//! Heavy: whether the workspace in `heavy/` must be checked again.
//!
//! `.ci/heavy` builds DataFusion, which takes minutes. `heavy/checked` has the state with which it
//! last passed: a hash of the files below `heavy/`, and one of the public signatures of the crates
//! that they use, with their manifests, implementations and attributes. A change of the engine that
//! leaves all of these alone is not tested against `heavy/` until `.ci/full` runs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::source::{Token, files, nesting, production};
use crate::{Result, entries, name, read};

/// The crates that the workspace uses, apart from helpers of tests.
const USED: [&str; 3] = ["memgroup", "memgroup-alloc", "memgroup-tokio"];

/// The helpers of its tests.
const HELPERS: &str = "xtask";

/// Returns a fault if the state differs from the one that `.ci/heavy` last passed with.
pub fn changed(root: &Path) -> Result<Vec<String>> {
    let checked = fs::read_to_string(root.join(FILE)).unwrap_or_default();
    let (is_same, now) = (checked.trim() == state(root)?, state(root)?);
    let fault = format!("{FILE} has {:?}, and the state is {now}: run .ci/heavy", checked.trim());
    Ok(if is_same { Vec::new() } else { vec![fault] })
}

/// Writes the current state as checked. Returns whether it differs from the previous one.
pub fn note_checked(root: &Path) -> Result<bool> {
    let is_new = !changed(root)?.is_empty();
    let path = root.join(FILE);
    let written = fs::write(&path, state(root)? + "\n");
    written.map_err(|error| format!("failed to write {}: {error}", path.display())).map(|()| is_new)
}

const FILE: &str = "heavy/checked";

/// Returns the hashes of the files and of the signatures.
fn state(root: &Path) -> Result<String> {
    let (mut sources, mut public) = (Hash::default(), Hash::default());
    let heavy = root.join("heavy");
    for path in below(&heavy)? {
        sources.add(&path.strip_prefix(&heavy).unwrap_or(&path).display().to_string());
        sources.add(&read(&path)?);
    }
    public.add(&read(&root.join("Cargo.toml"))?);
    for name in USED {
        let folder = root.join("crates").join(name);
        public.add(&read(&folder.join("Cargo.toml"))?);
        let mut files = files(&folder)?;
        files.sort_by(|one, other| one.path.cmp(&other.path));
        for file in files {
            signatures(&production(&file.text), &mut |text| public.add(text));
        }
    }
    for file in files(&root.join(HELPERS))? {
        signatures(&production(&file.text), &mut |text| public.add(text));
    }
    Ok(format!("files {:016x} signatures {:016x}", sources.0, public.0))
}

/// Returns the files below `heavy/`, sorted, without build output and without the state itself.
fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in entries(folder)? {
        let name = name(&path);
        if path.is_dir() && name != "target" {
            found.extend(below(&path)?);
        } else if path.is_file() && !FILE.ends_with(&format!("/{name}")) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Calls `each` with the tokens of all public items, implementations and attributes, without the
/// bodies of functions.
fn signatures(tokens: &[Token<'_>], each: &mut dyn FnMut(&str)) {
    let mut rest = tokens;
    while let [first, tail @ ..] = rest {
        let is_public = first.text == "pub" && tail.first().is_some_and(|next| next.text != "(");
        let is_attribute = first.text == "#" && tail.first().is_some_and(|next| next.text == "[");
        rest = if is_public {
            signature(rest, each)
        } else if first.text == "impl" || is_attribute {
            let end = if is_attribute { "]" } else { "{" };
            let len = rest.iter().position(|token| token.text == end).unwrap_or(rest.len() - 1);
            rest[..len].iter().for_each(|token| each(token.text));
            &rest[len..]
        } else {
            tail
        };
    }
}

/// Calls `each` with the tokens of the public item at the start of `tokens`. Returns those after
/// it.
fn signature<'t, 'a>(tokens: &'t [Token<'a>], each: &mut dyn FnMut(&str)) -> &'t [Token<'a>] {
    let starts = |words: &[&str]| tokens[1..].iter().take(2).any(|token| words.contains(&token.text));
    // Variants and methods of traits are public without the keyword. A list of names is not a body.
    let has_public_braces = starts(&["enum", "trait", "use"]);
    let is_field = tokens.get(2).is_some_and(|token| token.text == ":");
    let (mut depth, mut last) = (0, "");
    for (at, token) in tokens.iter().enumerate() {
        let is_outside = depth == 0;
        let ends_before = match token.text {
            "{" => is_outside && !has_public_braces,
            "}" | ")" => is_outside,
            "," => is_outside && is_field,
            _ => false,
        };
        if ends_before {
            each("\n");
            return &tokens[at..];
        }
        each(token.text);
        depth += match token.text {
            "<" => 1,
            ">" if last != "-" && last != "=" => -1,
            _ => nesting(token),
        };
        last = token.text;
        if depth == 0 && (token.text == ";" || token.text == "}" && !starts(&["use"])) {
            each("\n");
            return &tokens[at + 1..];
        }
    }
    &[]
}

/// FNV-1a. The standard library's hash may change with the compiler.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: &str) -> String {
        let mut text = String::new();
        signatures(&production(source), &mut |token| text += &format!("{token} "));
        text.replace(" \n ", "\n")
    }

    #[test]
    fn takes_what_other_crates_see() {
        let source = "
            pub fn add(one: u8) -> Result<u8> { one.pub_like() }
            pub(crate) fn hidden() { body() }
            fn own() {}
            pub struct Pair(pub u8, u16);
            pub struct Named<T: Copy, U> { pub first: Map<T, U>, second: u8 }
            pub enum Kind { One, Two(u8) }
            pub trait Read { fn read(&self) -> u8; }
            pub use base::{One, Two};
            pub const MAX: usize = 4;";
        let text = of(source);
        for part in [
            "pub fn add ( one : u8 ) - > Result < u8 >",
            "pub struct Named < T : Copy , U >",
            "pub first : Map < T , U >",
            "pub enum Kind { One , Two ( u8 ) }",
            "pub trait Read { fn read ( & self ) - > u8 ; }",
            "pub use base : : { One , Two } ;",
            "pub const MAX : usize = 4 ;",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        for part in ["hidden", "own", "pub_like", "second"] {
            assert!(!text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn a_body_changes_nothing() {
        let with = |body| of(&format!("impl Group {{ pub fn add(&self) -> u8 {{ {body} }} }}"));
        assert_eq!(with("1"), with("if true { 2 } else { 3 }"));
        assert_ne!(with("1"), of("impl Group { pub fn add(&self) -> u16 { 1 } }"));
    }
}
