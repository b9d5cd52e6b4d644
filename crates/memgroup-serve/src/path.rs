//! Path: the group and the file that a request names, and its query.
//!
//! - I1. Each part of a path is decoded once, and has no slash afterwards. So a request names one group only by its own path.
//! - I2. A text that cannot be decoded is refused, never mended: `%zz`, `%` at the end, bytes that are not UTF-8, an empty part.

use percent_encoding::percent_decode_str;

use crate::problem::Problem;

/// The parts of a path below `/v1/groups`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    parts: Vec<String>,
    /// Whether the path ends with a slash: then it names a group, also where its last part is the name of a file.
    is_closed: bool,
}

impl Parts {
    /// Reads the rest of a path after `/v1/groups`: nothing, or a slash and more.
    pub(crate) fn parse(rest: &str) -> Result<Parts, Problem> {
        let Some(inner) = rest.strip_prefix('/').filter(|inner| !inner.is_empty()) else {
            return Ok(Parts { parts: Vec::new(), is_closed: true });
        };
        let (inner, is_closed) = inner.strip_suffix('/').map_or((inner, false), |inner| (inner, true));
        let parts = inner.split('/').map(|part| decode_part(part, rest)).collect::<Result<_, _>>()?;
        Ok(Parts { parts, is_closed })
    }

    /// The path of the group that all parts name.
    pub(crate) fn group(&self) -> String {
        join(&self.parts)
    }

    /// The path of a group, and the last part as the name of its file. `None` if there is no part, or a slash at the end.
    pub(crate) fn group_and_file(&self) -> Option<(String, &str)> {
        let (file, parts) = self.parts.split_last().filter(|_| !self.is_closed)?;
        Some((join(parts), file))
    }
}

fn join(parts: &[String]) -> String {
    if parts.is_empty() {
        return "/".to_owned();
    }
    parts.iter().flat_map(|part| ["/", part]).collect()
}

fn decode_part(part: &str, whole: &str) -> Result<String, Problem> {
    let wrong = |reason: &str| {
        let detail = format!(
            "{whole:?} is no path of a group: {reason}; write it as /parent/child, and bytes other than letters and digits as %XX"
        );
        Problem::bad("invalid_path", detail)
    };
    if part.is_empty() {
        return Err(wrong("a part is empty"));
    }
    let text = decode(part)
        .ok_or_else(|| wrong("a part has a % without two hexadecimal digits, or is not UTF-8"))?;
    if text.contains('/') {
        return Err(wrong("a part has a slash"));
    }
    Ok(text)
}

/// Decodes `%XX`. `None` where that is not possible.
fn decode(text: &str) -> Option<String> {
    let is_hex = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    let is_valid =
        text.bytes().enumerate().all(|(at, byte)| byte != b'%' || (is_hex(at + 1) && is_hex(at + 2)));
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.ok().filter(|_| is_valid).map(|text| text.into_owned())
}

/// The values of a query by their names, of which `allowed` are known.
pub(crate) fn query(
    text: Option<&str>,
    allowed: &[&'static str],
) -> Result<Vec<(&'static str, String)>, Problem> {
    let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let read = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(key).and_then(|name| allowed.iter().find(|known| **known == name));
        name.copied().zip(decode(value)).ok_or_else(|| {
            let known = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
            // Without the value, which may be a token that the client put here.
            let detail = format!("{key:?} with its value is no part of this query; its names: {known}");
            Problem::bad("invalid_query", detail).allowed(allowed.iter().copied())
        })
    };
    pairs.map(read).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group(rest: &str) -> Result<String, &'static str> {
        Parts::parse(rest).map(|parts| parts.group()).map_err(|problem| problem.code)
    }

    #[test]
    fn reads_groups_and_the_file_in_the_last_part() {
        for root in ["", "/"] {
            let parts = Parts::parse(root).unwrap();
            assert_eq!((parts.group().as_str(), parts.group_and_file()), ("/", None));
        }
        let parts = Parts::parse("/a/b%20c/memory.max").unwrap();
        assert_eq!(parts.group(), "/a/b c/memory.max");
        assert_eq!(parts.group_and_file(), Some(("/a/b c".to_owned(), "memory.max")));
        let parts = Parts::parse("/memory.max").unwrap();
        assert_eq!(parts.group_and_file(), Some(("/".to_owned(), "memory.max")));
        let parts = Parts::parse("/a/memory.max/").unwrap();
        assert_eq!((parts.group().as_str(), parts.group_and_file()), ("/a/memory.max", None));
    }

    #[test]
    fn refuses_texts_that_cannot_be_decoded() {
        for wrong in ["//", "/a//b", "//a", "/a//", "/%", "/%4", "/%zz", "/a%2fb", "/%2F", "/%ff", "/%c3%28"]
        {
            assert_eq!(group(wrong), Err("invalid_path"), "{wrong}");
        }
        assert_eq!(group("/%61").as_deref(), Ok("/a"));
        assert_eq!(group("/%25").as_deref(), Ok("/%"), "decoded once");
        assert_eq!(group("/%2561").as_deref(), Ok("/%61"), "decoded once");
    }

    #[test]
    fn reads_queries_with_known_names_only() {
        assert_eq!(query(None, &[]), Ok(vec![]));
        assert_eq!(query(Some("recursive=true"), &["recursive"]), Ok(vec![("recursive", "true".to_owned())]));
        assert_eq!(query(Some("group=%2Fa%26b&"), &["group"]), Ok(vec![("group", "/a&b".to_owned())]));
        for wrong in ["x=1", "recursive=%", "recursive=%ff", "=", "%zz=1"] {
            assert_eq!(query(Some(wrong), &["recursive"]).unwrap_err().code, "invalid_query", "{wrong}");
        }
        let problem = query(Some("token=secret"), &["recursive"]).unwrap_err();
        assert!(
            problem.detail.contains("\"token\"") && !problem.detail.contains("secret"),
            "{}",
            problem.detail
        );
    }

    proptest! {
        #[test]
        fn every_encoded_path_comes_back(names in prop::collection::vec("[^/]{1,12}", 0..6)) {
            let encode = |name: &String| {
                name.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>()
            };
            let rest: String = names.iter().map(|name| format!("/{}", encode(name))).collect();
            let parts = Parts::parse(&rest).unwrap();
            prop_assert_eq!(&parts.parts, &names);
        }

        #[test]
        fn no_text_panics_or_makes_a_part_that_names_two_groups(rest in "\\PC{0,64}|(/|%|%2[fF]|%00|\\.|[a-z]){0,32}") {
            if let Ok(parts) = Parts::parse(&rest) {
                prop_assert!(parts.parts.iter().all(|part| !part.is_empty() && !part.contains('/')));
                prop_assert!(parts.group().starts_with('/'));
            }
        }

        #[test]
        fn no_query_panics(text in "\\PC{0,64}|(=|&|%|%2[fF]|[a-z]){0,32}") {
            let _ = query(Some(&text), &["a", "group"]);
        }
    }
}
