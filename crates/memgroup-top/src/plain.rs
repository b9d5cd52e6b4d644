//! Texts of other programs, without characters that a terminal obeys.

use std::fmt::Write as _;

/// `text` that a terminal only shows: characters that it obeys, and those that change the direction
/// of text, are replaced.
pub(crate) fn plain(text: &str) -> String {
    text.replace(is_obeyed, "\u{fffd}")
}

/// Whether a terminal does something for this character instead of showing it, or turns the
/// direction of text.
fn is_obeyed(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

/// JSON without characters that a terminal obeys: they become `\u` escapes, so the JSON means the
/// same. It has them in strings only; those of ASCII, but the last one, are escaped in any JSON.
pub(crate) fn escaped(json: &str) -> String {
    let is_escaped = |c: char| c >= '\u{7f}' && is_obeyed(c);
    if !json.contains(is_escaped) {
        return json.to_owned();
    }
    let mut text = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_escaped(c) {
            // All of them are in the first plane. Writing to memory does not fail.
            _ = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{escaped, is_obeyed};

    #[test]
    fn json_has_escapes_for_characters_that_a_terminal_obeys() {
        let names = "a\u{9b}2J b\u{85} c\u{7f} d\u{202e}txt e\u{e9} \u{1f600}";
        let json = serde_json::json!({ "groups": [{ "name": names }] }).to_string();
        let text = escaped(&json);
        assert!(!text.contains(is_obeyed), "{text:?}");
        assert!(text.contains(r"a\u009b2J b\u0085 c\u007f d\u202etxt") && text.contains('\u{e9}'), "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["groups"][0]["name"], names);
        assert_eq!(escaped("{\t}"), "{\t}");
    }
}
