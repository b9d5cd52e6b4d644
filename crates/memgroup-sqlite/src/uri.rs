//! Parameters of a database name that SQLite reads as a URI.
//!
//! `file:path?key=value&key=value#fragment`. Keys and values may contain `%HH`, and end at a `%00`.
//!
//! - I1. Every name in which SQLite finds `cache=shared` is recognised. So may be a name that
//!   SQLite does not read as a URI.

use percent_encoding::percent_decode;

/// Returns whether `name` is a URI with `cache=shared` among its parameters.
pub(crate) fn asks_for_shared_cache(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b"file:") else { return false };
    let rest = rest.split(|&byte| byte == b'#').next().unwrap_or_default();
    let query = rest.iter().position(|&byte| byte == b'?').map_or(&[][..], |question| &rest[question + 1..]);
    query.split(|&byte| byte == b'&').any(|parameter| {
        let (key, value) = parameter.split_at(parameter.iter().position(|&byte| byte == b'=').unwrap_or(0));
        decodes_to(key, b"cache") && decodes_to(value, b"=shared")
    })
}

/// Returns whether `text` up to a `%00`, with each `%HH` replaced, is `wanted`. A `%` without two
/// hexadecimal digits stays as it is.
fn decodes_to(text: &[u8], wanted: &[u8]) -> bool {
    percent_decode(text).take_while(|&byte| byte != 0).eq(wanted.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::asks_for_shared_cache;

    #[test]
    fn finds_a_shared_cache_where_sqlite_finds_it() {
        for name in [
            "file:a.db?cache=shared",
            "file:a?mode=memory&cache=shared#x",
            "file:///tmp/a?cache=private&cache=shared",
            "file:a?c%61che=%73hared",
            "file:a?cache=shared%00x",
            "file::memory:?cache=shared&mode=ro",
        ] {
            assert!(asks_for_shared_cache(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn finds_no_shared_cache_elsewhere() {
        for name in [
            "a.db?cache=shared",
            ":memory:",
            "file:a.db",
            "file:a?cache=private",
            "file:a#?cache=shared",
            "file:a?cache=sharedx",
            "file:a?mycache=shared",
            "file:a?cache%3Dshared",
            "file:a?cache=%",
            "FILE:a?cache=shared",
        ] {
            assert!(!asks_for_shared_cache(name.as_bytes()), "{name}");
        }
    }
}
