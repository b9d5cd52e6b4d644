//! Production lines: those with code that a production build compiles. No tests, models, comments or blank lines.

use std::collections::BTreeSet;
use std::path::Path;

use crate::source::{files, production};
use crate::{Result, crates, name};

/// A table with the production lines of each crate, and their sum.
pub fn table(root: &Path) -> Result<String> {
    let (mut table, mut sum) = (String::new(), 0);
    for folder in crates(root)? {
        let lines: usize = files(&folder)?.iter().map(|file| count(&file.text)).sum();
        table += &format!("{:<18} {lines:>7}\n", name(&folder));
        sum += lines;
    }
    Ok(table + &format!("{:<18} {sum:>7}", "sum"))
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
    fn counts_lines_with_code_only() {
        let source = "//! Page.\n\nfn a() { // why\n    b(\"c\n\n d\"); /* e\n */\n}\n\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(count(source), 4);
    }
}
