//! Rust sources as tokens with line numbers, and the parts of them that a production build
//! compiles.
//!
//! A parser of the whole language would not look into the arguments of macros, where `layers` finds
//! paths.

use std::path::{Path, PathBuf};

use crate::{Result, read};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Comment,
    Literal,
    Punctuation,
    Space,
    Word,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    pub(crate) line: usize,
}

/// Splits a source into tokens, comments included.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut rest, mut line) = (Vec::new(), source, 1);
    while let Some(first) = rest.chars().next() {
        let (kind, length) = first_token(rest, first);
        let (text, tail) = rest.split_at(length);
        if kind != Kind::Space {
            tokens.push(Token { kind, text, line });
        }
        line += text.matches('\n').count();
        rest = tail;
    }
    tokens
}

fn first_token(rest: &str, first: char) -> (Kind, usize) {
    let run = |rest: &str, class: fn(char) -> bool| rest.find(|c| !class(c)).unwrap_or(rest.len());
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if let Some(length) = literal_length(rest) {
        (Kind::Literal, length)
    } else if rest.starts_with("//") {
        (Kind::Comment, run(rest, |c| c != '\n'))
    } else if rest.starts_with("/*") {
        (Kind::Comment, block_comment_length(rest))
    } else if first.is_whitespace() {
        (Kind::Space, run(rest, char::is_whitespace))
    } else if first == '\'' {
        (Kind::Word, 1 + run(&rest[1..], is_word)) // a lifetime
    } else if is_word(first) {
        (Kind::Word, run(rest, is_word))
    } else {
        (Kind::Punctuation, first.len_utf8())
    }
}

/// Returns the length of the string or character that `rest` begins with, if it begins with one.
fn literal_length(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let body = &rest[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = body.len() - body.trim_start_matches('#').len();
        let text = body[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(rest.len() - text.len() + text.find(&end).map_or(text.len(), |at| at + end.len()));
    }
    let quote = body.chars().next().filter(|&c| c == '"' || c == '\'')?;
    if quote == '\'' && !body.starts_with("'\\") {
        let end = 1 + body[1..].chars().next()?.len_utf8();
        return body[end..].starts_with('\'').then_some(prefix.len() + end + 1);
    }
    let mut escaped = false;
    let end = body[1..].find(|c| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    Some(prefix.len() + end.map_or(body.len(), |end| end + 2))
}

fn block_comment_length(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        let Some(next) = rest[at..].find(['/', '*']) else { return rest.len() };
        at += next;
        match &rest.as_bytes()[at..rest.len().min(at + 2)] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
}

/// Returns the tokens that a production build compiles, without comments, tests and models.
pub(crate) fn production(source: &str) -> Vec<Token<'_>> {
    let mut all = tokens(source);
    all.retain(|token| token.kind != Kind::Comment);
    let (mut kept, mut rest) = (Vec::new(), &all[..]);
    while let [first, tail @ ..] = rest {
        let attribute = attribute_length(rest);
        if attribute > 0 && is_left_out(&rest[..attribute]) {
            if rest[1].text == "!" {
                break; // the attribute stands for the whole file
            }
            rest = &rest[attribute..];
            rest = &rest[item_length(rest)..];
        } else {
            kept.push(*first);
            rest = tail;
        }
    }
    kept
}

/// Returns the number of tokens of the attribute that `tokens` begins with, or 0.
fn attribute_length(tokens: &[Token]) -> usize {
    let open = match tokens {
        [hash, open, ..] if hash.text == "#" && open.text == "[" => 1,
        [hash, inner, open, ..] if hash.text == "#" && inner.text == "!" && open.text == "[" => 2,
        _ => return 0,
    };
    open + group_length(&tokens[open..])
}

/// Returns the number of tokens from an opening bracket to its partner.
fn group_length(tokens: &[Token]) -> usize {
    let mut depth = 0;
    let end = tokens.iter().position(|token| {
        depth += nesting(token);
        depth == 0
    });
    end.map_or(tokens.len(), |end| end + 1)
}

/// 1 for an opening bracket, -1 for a closing one.
pub(crate) fn nesting(token: &Token) -> i32 {
    match token.text {
        "(" | "[" | "{" => 1,
        ")" | "]" | "}" => -1,
        _ => 0,
    }
}

/// Returns the number of tokens of the item, statement, field or expression that follows an
/// attribute.
fn item_length(tokens: &[Token]) -> usize {
    const ITEMS: [&str; 14] = [
        "pub", "mod", "use", "fn", "struct", "enum", "impl", "trait", "const", "static", "type", "unsafe",
        "extern", "let",
    ];
    let mut at = 0;
    while attribute_length(&tokens[at..]) > 0 {
        at += attribute_length(&tokens[at..]);
    }
    // In an item, a comma may be between type parameters, and does not end the item.
    let is_item = tokens.get(at).is_some_and(|token| ITEMS.contains(&token.text));
    let mut depth = 0;
    for token in &tokens[at..] {
        depth += nesting(token);
        if depth < 0 {
            return at; // the bracket closes the group around the item
        }
        at += 1;
        let ends = token.text == ";" || token.text == "}" || token.text == "," && !is_item;
        if depth == 0 && ends {
            break;
        }
    }
    at
}

/// Returns whether an attribute keeps its item out of a production build.
fn is_left_out(attribute: &[Token]) -> bool {
    let at = attribute.iter().position(|token| token.text == "[").map_or(0, |open| open + 1);
    match &attribute[at..] {
        [cfg, predicate @ ..] if cfg.text == "cfg" => {
            let (value, _) = predicate_value(&predicate[1..]);
            value == Some(false)
        }
        _ => false,
    }
}

/// Returns the value of a predicate of `cfg` in a production build, if it has only one, and the
/// tokens after it.
fn predicate_value<'t, 'a>(tokens: &'t [Token<'a>]) -> (Option<bool>, &'t [Token<'a>]) {
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.text == text);
    if is(1, "(") {
        let (mut values, mut rest) = (Vec::new(), &tokens[2..]);
        while rest.first().is_some_and(|token| token.text != ")") {
            let (value, after) = predicate_value(rest);
            values.push(value);
            rest = if after.first().is_some_and(|token| token.text == ",") { &after[1..] } else { after };
        }
        let decisive = tokens[0].text == "any";
        let value = if tokens[0].text == "not" {
            values.first().copied().flatten().map(|value| !value)
        } else if values.contains(&Some(decisive)) {
            Some(decisive)
        } else if values.contains(&None) {
            None
        } else {
            Some(!decisive)
        };
        return (value, rest.get(1..).unwrap_or_default());
    }
    let length = if is(1, "=") { 3 } else { 1 };
    let off = ["test", "doctest", "doc", "miri", "memgroup_loom"];
    (off.iter().any(|name| is(0, name)).then_some(false), tokens.get(length..).unwrap_or_default())
}

/// A file of a crate that a production build compiles.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// The module that the file is: `["stock", "drain"]`. Empty for the root of the crate.
    pub(crate) module: Vec<String>,
    pub(crate) text: String,
}

/// Returns the files of the crate in a folder. They are found as the compiler finds them, from the
/// root by `mod name;`.
pub(crate) fn files(folder: &Path) -> Result<Vec<File>> {
    let roots = ["src/lib.rs", "src/main.rs"].map(|root| folder.join(root));
    let mut open: Vec<_> =
        roots.into_iter().filter(|root| root.exists()).map(|root| (root, vec![])).collect();
    let mut files = Vec::new();
    while let Some((path, module)) = open.pop() {
        let text = read(&path)?;
        let is_folder = module.is_empty() || path.ends_with("mod.rs");
        let below = if is_folder { path.with_file_name("") } else { path.with_extension("") };
        for child in production(&text).windows(3) {
            if let [keyword, name, end] = child
                && keyword.text == "mod"
                && end.text == ";"
            {
                let file = below.join(format!("{}.rs", name.text));
                let file = if file.exists() { file } else { below.join(name.text).join("mod.rs") };
                open.push((file, [&module[..], &[name.text.to_owned()]].concat()));
            }
        }
        files.push(File { path, module, text });
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    fn kept(source: &str) -> String {
        production(source).iter().map(|token| token.text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn splits_literals_lifetimes_and_comments() {
        assert_eq!(texts(r#"let a: &'a str = "x \" // y";"#)[4..], ["'a", "str", "=", r#""x \" // y""#, ";"]);
        assert_eq!(texts(r##"r#"a " b"# b"\\" '\'' 'x' b'{' '\u{7d}'"##).len(), 6);
        assert_eq!(texts("a /* b /* c */ d */ e // f\ng"), ["a", "/* b /* c */ d */", "e", "// f", "g"]);
        assert_eq!(texts("crate::b"), ["crate", ":", ":", "b"]);
    }

    #[test]
    fn numbers_lines_behind_text_of_several_lines() {
        let source = "a\n\"b\nc\"\n/* d\n */ e";
        assert_eq!(tokens(source).last().map(|token| token.line), Some(5));
    }

    #[test]
    fn drops_items_of_tests_and_models() {
        assert_eq!(kept("#[cfg(test)] mod tests { fn a() {} } fn b() {}"), "fn b ( ) { }");
        assert_eq!(kept("#[cfg(all(test, not(memgroup_loom)))] #[path = \"x\"] mod a; mod b;"), "mod b ;");
        assert_eq!(kept("#[cfg(memgroup_loom)] fn a<A, B>() { c; } d"), "d");
        assert_eq!(kept("S { #[cfg(test)] a: f(b, c), d }"), "S { d }");
        assert_eq!(kept("#![cfg(test)] fn a() {}"), "");
    }

    #[test]
    fn keeps_items_that_some_production_build_has() {
        for attribute in ["not(memgroup_loom)", "any(test, feature = \"inject\")", "target_os = \"linux\""] {
            let source = format!("#[cfg({attribute})] fn a() {{}}");
            assert!(kept(&source).ends_with("fn a ( ) { }"), "{source}");
        }
    }
}
