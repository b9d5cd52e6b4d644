//! Production lines: those with code that a production build compiles, without tests, models,
//! comments and blank lines.

use std::collections::BTreeSet;
use std::path::Path;

use crate::source::{files, production};
use crate::{Result, crates, name};

/// Prints the production lines and files of each crate, and returns a fault if there are more than
/// `most` lines.
pub fn report(root: &Path, most: Option<usize>) -> Result<Vec<String>> {
    let sizes = sizes(root)?;
    let (lines, in_files) =
        sizes.iter().fold((0, 0), |sum, (_, lines, files)| (sum.0 + lines, sum.1 + files));
    for (name, lines, files) in &sizes {
        println!("{name:<18} {lines:>7} lines {files:>5} files");
    }
    println!("{:<18} {lines:>7} lines {in_files:>5} files", "sum");
    Ok(most.and_then(|most| excess(lines, most)).into_iter().collect())
}

/// Returns the fault of `lines` lines where `most` are allowed, if they are too many.
fn excess(lines: usize, most: usize) -> Option<String> {
    (lines > most).then(|| {
        format!("{lines} production lines, where {most} are the most: remove some, or raise the number and say why")
    })
}

/// The name of each crate, its production lines, and its files that have any.
fn sizes(root: &Path) -> Result<Vec<(String, usize, usize)>> {
    let mut sizes = Vec::new();
    for folder in crates(root)? {
        let counts: Vec<usize> =
            files(&folder)?.iter().map(|file| count(&file.text)).filter(|&lines| lines > 0).collect();
        sizes.push((name(&folder), counts.iter().sum(), counts.len()));
    }
    Ok(sizes)
}

fn count(source: &str) -> usize {
    let mut lines = BTreeSet::new();
    for token in production(source) {
        let text = token.text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty());
        lines.extend(text.map(|(offset, _)| token.line + offset));
    }
    lines.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_both_numbers_when_there_are_too_many_lines() {
        assert_eq!(excess(10, 10), None);
        let fault = excess(11, 10).expect("one too many");
        assert!(fault.starts_with("11 production lines, where 10 are the most"), "{fault}");
    }

    #[test]
    fn counts_lines_with_code_only() {
        let source = "//! Page.\n\nfn a() { // why\n    b(\"c\n\n d\"); /* e\n */\n}\n\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(count(source), 4);
    }
}
