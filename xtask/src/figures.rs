//! Figures: whether the pages quote the figures that `docs/figures.json` has.
//!
//! A page takes a figure by a mark in front of it: `<!-- figure: charge.a-pair-1-thread -->5.2 ns`.
//! The text behind the mark must be the one of the figure with that id: a number and its unit and,
//! if the figure misses its goal, that it does: `5.2 ns (goal: <= 5 ns, missed)`. The file is
//! written by `cargo run --release -p memgroup-lab -- figures`, never by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{Result, crates, entries, read};

const FILE: &str = "docs/figures.json";
const MARK: &str = "<!-- figure: ";
const END: &str = " -->";
/// What stands around the goal of a figure that misses it.
const GOAL: &str = "goal: ";
const MISSED: &str = ", missed)";
/// The crates that the figures are about.
const CORE: [&str; 3] = ["crates/memgroup", "crates/memgroup-percpu", "crates/memgroup-sync"];

/// The text of each figure, by its id.
type Texts = BTreeMap<String, String>;

/// Returns a fault for each mark that differs from the file or names no figure. With `write`,
/// changes the pages instead of reporting a value that differs.
pub fn check(root: &Path, write: bool) -> Result<Vec<String>> {
    let (texts, commit) = texts(&read(&root.join(FILE)).map_err(|error| {
        format!("{error}; write it by `cargo run --release -p memgroup-lab -- figures` on a quiet machine")
    })?)?;
    let mut faults = Vec::new();
    for path in pages(root)? {
        let text = read(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let (written, found) = page(&name, &text, &texts, write);
        faults.extend(found);
        if written != text {
            fs::write(&path, written).map_err(|error| format!("failed to write {name}: {error}"))?;
        }
    }
    println!("{}", newer_commits(root, &commit));
    Ok(faults)
}

/// The texts of the figures, and the commit that they were measured at.
fn texts(json: &str) -> Result<(Texts, String)> {
    let file: Value =
        serde_json::from_str(json).map_err(|error| format!("failed to parse {FILE}: {error}"))?;
    let text = |value: &Value, key: &str| value[key].as_str().map(str::to_owned);
    let figures = file["figures"].as_array().ok_or(format!("{FILE} has no list `figures`"))?;
    let texts = figures.iter().map(|figure| {
        let missed = match (&figure["met"], figure["goal"].as_str()) {
            (Value::Bool(false), Some(goal)) => format!(" ({GOAL}{goal}{MISSED}"),
            _ => String::new(),
        };
        let named = text(figure, "id").zip(text(figure, "text").map(|text| text + &missed));
        named.ok_or(format!("{FILE}: {figure} has no id or no text"))
    });
    let commit = text(&file, "commit").ok_or(format!("{FILE} has no `commit`"))?;
    Ok((texts.collect::<Result<_>>()?, commit))
}

/// The pages that may have marks.
fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![root.to_owned(), root.join("docs"), root.join("heavy")];
    for krate in crates(root)? {
        folders.extend([krate.join("docs"), krate].into_iter().filter(|folder| folder.is_dir()));
    }
    let mut pages = Vec::new();
    for folder in folders {
        pages.extend(
            entries(&folder)?.into_iter().filter(|path| path.extension().is_some_and(|it| it == "md")),
        );
    }
    Ok(pages)
}

/// Compares the marks of one page with the figures; also the page with the right texts, if `write`.
fn page(name: &str, text: &str, texts: &Texts, write: bool) -> (String, Vec<String>) {
    let (mut written, mut faults, mut in_code) = (String::new(), Vec::new(), false);
    for (number, mut rest) in (1..).zip(text.split_inclusive('\n')) {
        in_code ^= rest.trim_start().starts_with("```");
        let comments = rest.split("<!--").skip(1).filter(|text| text.trim_start().starts_with("figure"));
        if !in_code && comments.count() != rest.split(MARK).skip(1).filter(|mark| mark.contains(END)).count()
        {
            faults.push(format!("{name}:{number}: write a mark as `{MARK}id{END}`"));
        }
        while let Some((before, after)) = rest.split_once(MARK).filter(|_| !in_code) {
            let Some((id, behind)) = after.split_once(END) else { break };
            written.extend([before, MARK, id, END]);
            // A mark within a code span is about marks.
            let quoted = before.matches('`').count() % 2 == 1;
            let old = &behind[..figure_len(behind)];
            rest = &behind[old.len()..];
            match texts.get(id) {
                _ if quoted => written.push_str(old),
                None => {
                    faults.push(format!("{name}:{number}: {FILE} has no figure {id}"));
                    written.push_str(old);
                }
                Some(new) if new == old => written.push_str(old),
                Some(new) if write => written.push_str(new),
                Some(new) => {
                    faults.push(format!("{name}:{number}: {id} is {new:?} in {FILE}, and {old:?} here"));
                    written.push_str(old);
                }
            }
        }
        written.push_str(rest);
    }
    if in_code {
        faults.push(format!("{name}: a block of code has no end, so marks behind it are not read"));
    }
    (written, faults)
}

/// The length of the number and its unit at the start of a text: "5.2 ns", "9.28 %", "1.18 times",
/// "12,345".
fn figure_len(text: &str) -> usize {
    let number = text.find(|c: char| !c.is_ascii_digit() && !".,-".contains(c)).unwrap_or(text.len());
    let number = text[..number].trim_end_matches(['.', ',']).len();
    let units = [" ns", " us", " ms", " s", " %", " times", " bytes", " MiB", " kB", " pages", " cycles"];
    let unit = units.iter().filter(|unit| {
        let behind = text[number..].strip_prefix(**unit);
        behind.is_some_and(|behind| !behind.starts_with(|c: char| c.is_ascii_alphanumeric()))
    });
    let end = number + unit.map(|unit| unit.len()).max().unwrap_or(0);
    let missed = text[end..].strip_prefix(" (").filter(|behind| behind.starts_with(GOAL));
    missed.and_then(|behind| Some(behind.find(MISSED)? + MISSED.len() + 2)).map_or(end, |len| end + len)
}

/// How many commits of the core came after the figures.
fn newer_commits(root: &Path, commit: &str) -> String {
    // A "+" says that the sources differed from the commit.
    let range = format!("{}..HEAD", commit.trim_end_matches('+'));
    let git =
        Command::new("git").current_dir(root).args(["rev-list", "--count", &range, "--"]).args(CORE).output();
    match git {
        Ok(output) if output.status.success() => {
            let count = String::from_utf8_lossy(&output.stdout);
            format!("{FILE} was measured at {commit}; commits of the core since then: {}", count.trim())
        }
        _ => format!("{FILE} was measured at {commit}, which is not in this history"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Texts {
        [("charge.pair", "5.2 ns"), ("drain.128", "0.61 us"), ("percpu.left", "9.28 %")]
            .map(|(id, text)| (id.to_owned(), text.to_owned()))
            .into()
    }

    fn faults(text: &str) -> Vec<String> {
        page("README.md", text, &all(), false).1
    }

    #[test]
    fn accepts_pages_that_agree_with_the_file() {
        assert!(
            faults(
                "a pair takes <!-- figure: charge.pair -->5.2 ns, a drain <!-- figure: drain.128 -->0.61 us."
            )
            .is_empty()
        );
        assert!(faults("| <!-- figure: percpu.left -->9.28 % | `<!-- figure: some.id -->1 ns` |").is_empty());
        assert!(faults("```text\n<!-- figure: some.id -->1 ns\n```").is_empty());
    }

    #[test]
    fn names_page_line_and_both_values_of_a_wrong_figure() {
        let found = faults("one\ntwo <!-- figure: charge.pair -->5.3 ns | <!-- figure: drain.128 -->0.61 us");
        assert_eq!(
            found,
            ["README.md:2: charge.pair is \"5.2 ns\" in docs/figures.json, and \"5.3 ns\" here"]
        );
        assert_eq!(faults("<!-- figure: charge.pair -->about 5 ns").len(), 1);
        assert_eq!(faults("<!-- figure: charge.pair -->5.2 nsx").len(), 1);
    }

    #[test]
    fn fails_on_an_unknown_id_also_when_it_writes() {
        let unknown = "<!-- figure: charge.par -->5.2 ns";
        assert_eq!(faults(unknown), ["README.md:1: docs/figures.json has no figure charge.par"]);
        let (written, faults) = page("README.md", unknown, &all(), true);
        assert_eq!((written.as_str(), faults.len()), (unknown, 1));
    }

    #[test]
    fn quotes_a_missed_goal() {
        let json = r#"{"commit": "c", "figures": [
            {"id": "a", "text": "1.07 times", "goal": "<= 1.04 x", "met": false},
            {"id": "b", "text": "1 ns", "goal": "<= 2 ns", "met": true}]}"#;
        let texts = texts(json).unwrap().0;
        let (written, _) = page("p", "<!-- figure: a -->9 times, <!-- figure: b -->9 ns.", &texts, true);
        let right = "<!-- figure: a -->1.07 times (goal: <= 1.04 x, missed), <!-- figure: b -->1 ns.";
        assert_eq!(written, right);
        assert_eq!(page("p", right, &texts, true), (right.to_owned(), Vec::new()));
        let hidden = right.replace(" (goal: <= 1.04 x, missed)", "");
        assert_eq!(page("p", &hidden, &texts, false).1.len(), 1);
    }

    #[test]
    fn names_marks_that_it_cannot_read() {
        for text in
            ["<!-- figure: charge.pair-->5 ns", "<!--figure: charge.pair -->5 ns", "<!-- figures: a -->1"]
        {
            assert!(faults(text)[0].contains("write a mark as"), "{text}");
        }
        assert!(faults("```\nno end\n")[0].contains("has no end"));
    }

    #[test]
    fn writes_the_figures_of_the_file_and_nothing_else() {
        let old = "a <!-- figure: charge.pair -->12,345 ns, b\n<!-- figure: percpu.left -->9 % of it\n";
        let (written, faults) = page("README.md", old, &all(), true);
        assert_eq!(
            written,
            "a <!-- figure: charge.pair -->5.2 ns, b\n<!-- figure: percpu.left -->9.28 % of it\n"
        );
        assert!(faults.is_empty());
        assert_eq!(page("README.md", &written, &all(), true).0, written);
    }

    #[test]
    fn fails_when_there_is_no_file_and_says_how_to_write_it() {
        let error = check(Path::new("/nowhere/at/all"), false).unwrap_err();
        assert!(error.contains("figures.json") && error.contains("memgroup-lab -- figures"), "{error}");
    }

    #[test]
    fn refuses_a_file_that_is_something_else() {
        assert!(texts("{}").is_err() && texts("[").is_err());
        assert!(texts("{\"commit\": \"c\", \"figures\": [{\"id\": \"a\"}]}").is_err());
        let (texts, commit) =
            texts("{\"commit\": \"c\", \"figures\": [{\"id\": \"a\", \"text\": \"1 ns\"}]}").unwrap();
        assert_eq!((texts["a"].as_str(), commit.as_str()), ("1 ns", "c"));
    }
}
