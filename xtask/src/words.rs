//! Words that rule 1 of the project's style bans: `who`, `whom`, `whoever`, `whose`, `somebody`, `nobody`,
//! `anybody`, `everybody`, and `what` outside questions.
//!
//! Read are the comments of all `.rs` files (`//`, `///`, `//!`, `/* */`) and all `.md` pages. Left out are code
//! blocks between fences and code spans. A `what` is in a question if its sentence ends with a question mark.
//! `words.txt` says how many of these words each crate may have; the pages outside crates count as `pages`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::source::{Kind, tokens};
use crate::{Result, entries, name, read};

const BANNED: [&str; 8] = ["who", "whom", "whoever", "whose", "somebody", "nobody", "anybody", "everybody"];

/// How many words an area has, and each banned one: file, line, word.
#[derive(Default)]
struct Area {
    words: usize,
    banned: Vec<(PathBuf, usize, String)>,
}

/// The areas of the repository, and how many banned words each may have.
pub struct Words {
    areas: BTreeMap<String, Area>,
    allowed: BTreeMap<String, usize>,
}

impl Words {
    /// Counts in the repository at `root`.
    pub fn read(root: &Path) -> Result<Self> {
        let mut areas = BTreeMap::new();
        count_folder(root, Path::new(""), &mut areas)?;
        Ok(Self { areas, allowed: parse(&read(&root.join("xtask/words.txt"))?)? })
    }

    /// A table of the areas and the whole repository.
    pub fn table(&self) -> String {
        let mut table =
            format!("{:<18} {:>7} {:>7} {:>7} {:>10}\n", "", "words", "banned", "allowed", "per 10,000");
        let mut row = |name: &str, words: usize, banned: usize, allowed: usize| {
            let rate = banned as f64 * 1e4 / words.max(1) as f64;
            table += &format!("{name:<18} {words:>7} {banned:>7} {allowed:>7} {rate:>10.1}\n");
        };
        let mut sum = (0, 0, 0);
        for (name, area) in &self.areas {
            let counts = (area.words, area.banned.len(), self.allowed(name));
            row(name, counts.0, counts.1, counts.2);
            sum = (sum.0 + counts.0, sum.1 + counts.1, sum.2 + counts.2);
        }
        row("whole", sum.0, sum.1, sum.2);
        table.trim_end().to_owned()
    }

    /// Each banned word with its file and line.
    pub fn list(&self) -> Vec<String> {
        let banned = self.areas.values().flat_map(|area| &area.banned);
        banned.map(|(path, line, word)| format!("{}:{line}: {word}", path.display())).collect()
    }

    /// The areas with more banned words than they may have, a message each.
    pub fn excesses(&self) -> Vec<String> {
        let counts = self.areas.iter().map(|(name, area)| (name, area.banned.len(), self.allowed(name)));
        let above = counts.filter(|(_, banned, allowed)| banned > allowed);
        above
            .map(|(name, banned, allowed)| format!("{name}: {banned} banned words, {allowed} allowed"))
            .collect()
    }

    /// Writes `words.txt` anew, with the counts that fell.
    pub fn lower(&self, root: &Path) -> Result<()> {
        let path = root.join("xtask/words.txt");
        let failed = |error| format!("failed to write {}: {error}", path.display());
        std::fs::write(&path, self.lowered()).map_err(failed)
    }

    fn lowered(&self) -> String {
        let lines = self.areas.iter().map(|(name, area)| {
            let banned = area.banned.len().min(self.allowed(name));
            format!("{name} {banned}\n")
        });
        lines.collect()
    }

    fn allowed(&self, area: &str) -> usize {
        self.allowed.get(area).copied().unwrap_or(0)
    }
}

/// Reads `words.txt`: a line `area count` each.
fn parse(text: &str) -> Result<BTreeMap<String, usize>> {
    let line = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    text.lines().map(|text| line(text).ok_or(format!("words.txt: no `area count` in {text:?}"))).collect()
}

fn count_folder(root: &Path, below: &Path, areas: &mut BTreeMap<String, Area>) -> Result<()> {
    for path in entries(&root.join(below))? {
        let name = name(&path);
        let here = below.join(&name);
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "data" {
                count_folder(root, &here, areas)?;
            }
            continue;
        }
        let texts = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => comments(&read(&path)?),
            Some("md") => vec![(1, read(&path)?)],
            _ => continue,
        };
        let area = areas.entry(area(&here)).or_default();
        for (first_line, text) in texts {
            let (words, banned) = count(&text);
            area.words += words;
            area.banned
                .extend(banned.into_iter().map(|(line, word)| (here.clone(), first_line + line, word)));
        }
    }
    Ok(())
}

/// The crate that a path belongs to, or `pages`.
fn area(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    match &parts[..] {
        [folder, name, _, ..] if folder == "crates" => name.to_string(),
        [folder, _, ..] if folder == "xtask" => folder.to_string(),
        _ => "pages".to_owned(),
    }
}

/// The comments of a Rust source, those on neighbouring lines as one text, with the line of each text's first.
fn comments(source: &str) -> Vec<(usize, String)> {
    let mut texts: Vec<(usize, String)> = Vec::new();
    let mut last_line = 0;
    for comment in tokens(source).iter().filter(|token| token.kind == Kind::Comment) {
        let text = comment.text.trim_start_matches(['/', '!', '*']).trim_end_matches("*/");
        match texts.last_mut() {
            Some((_, block)) if comment.line == last_line + 1 => *block += &format!("\n{text}"),
            _ => texts.push((comment.line, text.to_owned())),
        }
        last_line = comment.line + comment.text.matches('\n').count();
    }
    texts
}

/// The number of words in a text, and the banned ones with their lines, counted from 0.
fn count(text: &str) -> (usize, Vec<(usize, String)>) {
    let text = without_code(text);
    let (mut words, mut banned) = (0, Vec::new());
    let is_word = |c: char| c.is_alphanumeric() || "_'’".contains(c);
    let mut at = 0;
    while let Some(start) = text[at..].find(is_word) {
        let start = at + start;
        at = text[start..].find(|c| !is_word(c)).map_or(text.len(), |end| start + end);
        let word = text[start..at].trim_start_matches(['\'', '’']).to_lowercase();
        words += usize::from(word.contains(char::is_alphabetic));
        let stem = word.split(['\'', '’']).next().unwrap_or_default(); // `who's` is `who`
        if BANNED.contains(&stem) || stem == "what" && !is_question(&text[at..]) {
            banned.push((text[..start].matches('\n').count(), word));
        }
    }
    (words, banned)
}

/// Whether the sentence of which `rest` is the end is a question.
fn is_question(rest: &str) -> bool {
    let rest = rest.split("\n\n").next().unwrap_or_default();
    let ends = rest.char_indices().find(|&(at, c)| {
        let after = rest[at..].chars().nth(1);
        ".!?".contains(c) && after.is_none_or(|after| !after.is_alphanumeric())
    });
    ends.is_some_and(|(_, end)| end == '?')
}

/// A text of the same lines with spaces in place of code blocks and code spans.
fn without_code(text: &str) -> String {
    let (mut prose, mut fence) = (String::new(), None);
    for line in text.split('\n') {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        let opens = fence.is_none() && mark.is_some();
        let closes = fence.is_some() && mark == fence;
        prose += if fence.is_none() && !opens { line.trim() } else { "" };
        prose.push('\n');
        fence = if closes { None } else { fence.or(mark) };
    }
    // A span ends within its paragraph.
    prose.split("\n\n").map(without_spans).collect::<Vec<_>>().join("\n\n")
}

fn without_spans(paragraph: &str) -> String {
    let (mut prose, mut rest) = (String::new(), paragraph);
    while let Some(start) = rest.find('`') {
        let ticks = rest[start..].len() - rest[start..].trim_start_matches('`').len();
        let (before, span) = rest.split_at(start);
        let length = span[ticks..].find(&span[..ticks]).map_or(ticks, |end| end + 2 * ticks);
        prose += before;
        prose.extend(span[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &span[length..];
    }
    prose + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn banned(text: &str) -> Vec<String> {
        count(text).1.into_iter().map(|(_, word)| word).collect()
    }

    fn words(banned: &[(&str, usize)], allowed: &str) -> Words {
        let area =
            |count| Area { words: 100, banned: vec![(PathBuf::from("a.rs"), 1, "who".to_owned()); count] };
        let areas = banned.iter().map(|&(name, count)| (name.to_owned(), area(count))).collect();
        Words { areas, allowed: parse(allowed).unwrap() }
    }

    #[test]
    fn counts_each_banned_word_in_any_case() {
        assert_eq!(
            banned("Who asked whom? Whoever, whose, somebody."),
            ["who", "whom", "whoever", "whose", "somebody"]
        );
        assert_eq!(
            banned("NOBODY, anybody and everybody who's there"),
            ["nobody", "anybody", "everybody", "who's"]
        );
        assert_eq!(banned("whole whopper somebodyelse who_is"), [""; 0]);
    }

    #[test]
    fn counts_what_outside_questions_only() {
        assert_eq!(banned("What is it? It is what it is."), ["what"]);
        assert_eq!(banned("What does `a.b` cost,\nand what 1.5 bytes?"), [""; 0]);
        assert_eq!(banned("What it costs\n\nIs it much?"), ["what"]);
    }

    #[test]
    fn leaves_out_code_blocks_and_code_spans() {
        assert_eq!(banned("a `who` b ``c ` nobody`` whose\n```text\nwho `\n```\nwhom"), ["whose", "whom"]);
        assert_eq!(banned("a `span over\nwho lines` and a lone ` whose\n\nnobody `"), ["whose", "nobody"]);
    }

    #[test]
    fn counts_words_and_says_their_lines() {
        assert_eq!(count("One, two-three; 4 it's\n\nwho").0, 5);
        assert_eq!(count("One\n`two\nthree`\nwho").1, [(3, "who".to_owned())]);
    }

    #[test]
    fn reads_comments_of_rust_and_nothing_else() {
        let source = "//! who\n//! `nobody\n//! x`\nlet who = \"// whom\"; // whose\n/* what\n */\n";
        let texts = comments(source);
        assert_eq!(texts.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1]);
        assert_eq!(banned(&texts[0].1), ["who", "whose", "what"]);
    }

    #[test]
    fn refuses_more_banned_words_than_allowed() {
        let words = words(&[("a", 3), ("b", 1), ("new", 1)], "a 2\nb 1\n");
        assert_eq!(words.excesses(), ["a: 3 banned words, 2 allowed", "new: 1 banned words, 0 allowed"]);
    }

    #[test]
    fn lowers_the_committed_counts_and_never_raises_them() {
        let words = words(&[("a", 3), ("b", 1)], "a 2\nb 5\ngone 4\n");
        assert_eq!(words.lowered(), "a 2\nb 1\n");
    }

    #[test]
    fn assigns_files_to_crates_and_pages() {
        let areas = ["crates/memgroup/src/lib.rs", "xtask/src/lib.rs", "README.md", "docs/guide.md"];
        assert_eq!(areas.map(|path| area(Path::new(path))), ["memgroup", "xtask", "pages", "pages"]);
    }
}
