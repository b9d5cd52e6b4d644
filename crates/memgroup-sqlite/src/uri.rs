//! What the name of a database asks for, where SQLite reads it as a URI.
//!
//! `file:path?key=value&key=value#fragment`; names and values may have `%HH` in them, and end at a `%00`.
//!
//! - I1. A name in which SQLite finds `cache=shared` is found out here; one that is no URI to SQLite may be taken for one.

/// Whether `name` is a URI with `cache=shared` among its parameters.
pub(crate) fn asks_for_shared_cache(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b"file:") else {
        return false;
    };
    let rest = rest.split(|&byte| byte == b'#').next().unwrap_or_default();
    let Some(question) = rest.iter().position(|&byte| byte == b'?') else {
        return false;
    };
    rest[question + 1..].split(|&byte| byte == b'&').any(|parameter| {
        let mut halves = parameter.splitn(2, |&byte| byte == b'=');
        let (key, value) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
        decoded(key) == b"cache" && decoded(value) == b"shared"
    })
}

/// `text` with its `%HH` replaced, up to a `%00`; a `%` without two digits stands for itself.
fn decoded(text: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text);
    while let [first, after @ ..] = rest {
        let (byte, left) = match (first, after) {
            (b'%', [high, low, left @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, left),
                _ => (*first, after),
            },
            _ => (*first, after),
        };
        if byte == 0 {
            break;
        }
        bytes.push(byte);
        rest = left;
    }
    bytes
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::asks_for_shared_cache;

    #[test]
    fn a_shared_cache_is_found_where_sqlite_finds_it() {
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
    fn nothing_else_is_taken_for_one() {
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
