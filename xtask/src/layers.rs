//! Layers: which folder of a crate may import which.
//!
//! A folder is a top-level module: `src/stock/` or `src/stock.rs`. An order in `layers.txt` lists
//! the folders of a crate from the lowest to the highest; a folder imports only folders before it.
//! The root of a crate may import all, and re-exports and macros at the root count for the folder
//! that they come from. An item that is defined in the root counts as the folder `lib`, which comes
//! last.
//!
//! Imports are the paths that begin with `crate`, `super` or `self`, in `use` and elsewhere, also
//! within the arguments of macros. This does not see methods of a type that a folder received
//! without naming it, and does not count tests, models and comments.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::source::{File, Token, files, nesting, production};
use crate::{Result, crates, name, read};

const ROOT: &str = "lib";

/// A path in one folder that names an item of another.
#[derive(PartialEq)]
struct Import {
    file: String,
    line: usize,
    from: String,
    to: String,
}

/// The folders of a crate, and the imports between them.
struct Crate {
    name: String,
    folders: BTreeSet<String>,
    imports: Vec<Import>,
}

/// Returns a message for each import of the workspace that breaks an order of `layers.txt`.
pub fn violations(root: &Path) -> Result<Vec<String>> {
    let orders = orders(&read(&root.join("xtask/layers.txt"))?)?;
    let known = read_crates(root)?;
    if let Some(name) = orders.keys().find(|&name| known.iter().all(|krate| krate.name != *name)) {
        return Err(format!("layers.txt: there is no crate {name}"));
    }
    let faults = known.iter().flat_map(|krate| match orders.get(&krate.name) {
        Some(order) => krate.violations(order),
        None => krate.cycles(),
    });
    Ok(faults.collect())
}

/// Returns the state of each crate: its order, an order that would hold, or its cycles. `all` lists
/// the imports that make a cycle.
pub fn report(root: &Path, all: bool) -> Result<String> {
    let orders = orders(&read(&root.join("xtask/layers.txt"))?)?;
    let line = |krate: &Crate| match orders.get(&krate.name) {
        Some(order) => format!("{}: in the order {}", krate.name, order.join(" ")),
        None => format!("{}: no order is declared; {}", krate.name, krate.derived_order(all)),
    };
    Ok(read_crates(root)?.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// Reads `layers.txt`: a line `crate: lowest ... highest` for each crate that has an order.
fn orders(text: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, order) = line.split_once(':').ok_or(format!("layers.txt: no colon in {line:?}"))?;
            Ok((name.to_owned(), order.split_whitespace().map(str::to_owned).collect()))
        })
        .collect()
}

fn read_crates(root: &Path) -> Result<Vec<Crate>> {
    let read_crate = |folder: &PathBuf| {
        let mut files = files(folder)?;
        for file in &mut files {
            file.path = file.path.strip_prefix(root).unwrap_or(&file.path).to_owned();
        }
        Ok(Crate::new(name(folder), &files))
    };
    crates(root)?.iter().map(read_crate).collect()
}

impl Crate {
    fn new(name: String, files: &[File]) -> Self {
        let folders: BTreeSet<String> =
            files.iter().filter_map(|file| file.module.first().cloned()).collect();
        let mut at_root = BTreeMap::new();
        for file in files {
            let tokens = production(&file.text);
            match file.module.first() {
                None => at_root.extend(reexports(&tokens)),
                Some(folder) => at_root.extend(exported_macros(&tokens).map(|name| (name, folder.clone()))),
            }
        }
        // A name of the root is a folder, comes from a folder or another crate, or is the root's
        // own.
        let folder_of = |name: String| match at_root.get(&name) {
            _ if folders.contains(&name) => Some(name),
            Some(origin) => folders.get(origin).cloned(),
            None => Some(ROOT.to_owned()),
        };
        let mut imports = Vec::new();
        for file in files {
            let Some(from) = file.module.first() else { continue };
            for (line, name) in root_names(&file.module, &production(&file.text)) {
                if let Some(to) = folder_of(name).filter(|to| to != from) {
                    let file = file.path.display().to_string();
                    imports.push(Import { file, line, from: from.clone(), to });
                }
            }
        }
        imports.sort_by(|a, b| (&a.file, a.line, &a.to).cmp(&(&b.file, b.line, &b.to)));
        imports.dedup();
        Self { name, folders, imports }
    }

    /// Returns a line for each fault against an order, followed by the order.
    fn violations(&self, order: &[String]) -> Vec<String> {
        let place = |folder: &str| order.iter().position(|name| name == folder);
        let missing = self.folders.iter().filter(|folder| place(folder).is_none());
        let unknown = order.iter().filter(|&name| !self.folders.contains(name));
        let upward = self.imports.iter().filter(|import| match (place(&import.from), place(&import.to)) {
            (Some(from), Some(to)) => to > from,
            _ => import.to == ROOT,
        });
        let mut faults: Vec<_> = upward
            .map(|Import { file, line, from, to }| {
                format!("{file}:{line}: `{from}` imports `{to}`, which comes later in the order")
            })
            .chain(missing.map(|folder| format!("{}: the order lacks folder `{folder}`", self.name)))
            .chain(
                unknown.map(|folder| format!("{}: the order has `{folder}`, which is no folder", self.name)),
            )
            .collect();
        if !faults.is_empty() {
            faults.push(format!("the order of {}: {}", self.name, order.join(" ")));
        }
        faults
    }

    /// A crate needs no order while its folders have no cycle.
    fn cycles(&self) -> Vec<String> {
        let has_cycle = self.imports.iter().any(|import| self.leads(&import.to, &import.from));
        let fault =
            || format!("{}: no order is declared, and it has {}", self.name, self.derived_order(false));
        has_cycle.then(fault).into_iter().collect()
    }

    /// Returns an order that holds, or the folders in cycles and, with `all`, the imports that make
    /// them.
    fn derived_order(&self, all: bool) -> String {
        let circular: Vec<_> =
            self.imports.iter().filter(|import| self.leads(&import.to, &import.from)).collect();
        if !circular.is_empty() {
            let folders: BTreeSet<_> = circular.iter().map(|import| import.from.as_str()).collect();
            let folders = folders.into_iter().collect::<Vec<_>>().join(" ");
            let mut text = format!("cycles of {} imports between {folders}", circular.len());
            for Import { file, line, from, to } in circular.into_iter().filter(|_| all) {
                text += &format!("\n  {file}:{line}: {from} imports {to}");
            }
            return text;
        }
        let (mut order, mut open) = (Vec::new(), self.folders.clone());
        let is_free = |folder: &str, open: &BTreeSet<String>| {
            !self.imports.iter().any(|import| import.from == folder && open.contains(&import.to))
        };
        while let Some(next) = open.iter().find(|folder| is_free(folder, &open)).cloned() {
            open.remove(&next);
            order.push(next);
        }
        format!("this one holds: {}", order.join(" "))
    }

    /// Returns whether imports lead from one folder to another, over any number of folders.
    fn leads(&self, from: &str, to: &str) -> bool {
        let (mut reached, mut open) = (BTreeSet::from([from]), vec![from]);
        while let Some(folder) = open.pop() {
            let next =
                self.imports.iter().filter(|import| import.from == folder).map(|import| import.to.as_str());
            open.extend(next.filter(|folder| reached.insert(folder)));
        }
        reached.contains(to)
    }
}

/// Returns the names that the root of a crate imports, and the first part of each one's path.
fn reexports(tokens: &[Token]) -> Vec<(String, String)> {
    let uses = (0..tokens.len()).filter(|&at| tokens[at].text == "use");
    let paths = uses.flat_map(|at| paths(&tokens[at + 1..]).0);
    paths
        .filter_map(|(_, path)| {
            let path: Vec<_> = path.into_iter().skip_while(|part| ["crate", "self"].contains(part)).collect();
            let known_as = path.iter().rev().find(|&&part| part != "self")?;
            Some((known_as.to_string(), path[0].to_owned()))
        })
        .collect()
}

/// Returns the macros that a file defines at the root of its crate.
fn exported_macros(tokens: &[Token]) -> impl Iterator<Item = String> {
    let definitions = tokens.windows(5).filter(|window| {
        let texts = [0, 1, 2, 3].map(|at| window[at].text);
        texts == ["macro_export", "]", "macro_rules", "!"]
    });
    definitions.map(|window| window[4].text.to_owned())
}

/// Returns the names of the crate's root that a file's paths lead to, with their lines.
fn root_names(module: &[String], tokens: &[Token]) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    let mut depth = 0;
    let mut inline: Vec<(&str, i32)> = Vec::new(); // the modules around a token, and the depth of each
    for at in 0..tokens.len() {
        let is = |offset: usize, text: &str| tokens.get(at + offset).is_some_and(|token| token.text == text);
        if is(0, "mod") && is(2, "{") {
            inline.push((tokens[at + 1].text, depth));
        }
        depth += nesting(&tokens[at]);
        if is(0, "}") {
            inline.retain(|&(_, outer)| outer < depth);
        }
        let continues = at > 1 && tokens[at - 2..at].iter().all(|token| token.text == ":");
        let begins = ["crate", "super", "self"].contains(&tokens[at].text) && is(1, ":") && is(2, ":");
        if !begins || continues {
            continue;
        }
        for (line, path) in paths(&tokens[at..]).0 {
            let mut absolute: Vec<_> = module.iter().map(String::as_str).collect();
            absolute.extend(inline.iter().map(|(name, _)| name));
            for part in path {
                match part {
                    "crate" => absolute.clear(),
                    "super" => drop(absolute.pop()),
                    "self" => {}
                    _ => absolute.push(part),
                }
            }
            names.extend(absolute.first().map(|name| (line, name.to_string())));
        }
    }
    names
}

/// Returns the paths that `tokens` begin with, one for each leaf of a `use` tree, with the line of
/// its last part. A name after `as` is one more part. The second value is the number of tokens
/// read.
fn paths<'a>(tokens: &[Token<'a>]) -> (Vec<(usize, Vec<&'a str>)>, usize) {
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.text == text);
    let (mut path, mut at) = (Vec::new(), 0);
    while is(at, ":") {
        at += 1; // a path may begin with `::`
    }
    loop {
        if is(at, "{") {
            let mut leaves = Vec::new();
            at += 1;
            while at < tokens.len() && !is(at, "}") {
                let (below, length) = paths(&tokens[at..]);
                leaves.extend(below.into_iter().map(|(line, tail)| (line, [&path[..], &tail[..]].concat())));
                at += length.max(1);
            }
            return (leaves, at + 1);
        }
        let Some(token) = tokens.get(at) else { return (Vec::new(), at) };
        if token.text == "," {
            return (Vec::new(), at);
        }
        path.push(token.text);
        at += 1;
        if is(at, ":") && is(at + 1, ":") {
            at += 2;
            continue;
        }
        if is(at, "as") {
            path.extend(tokens.get(at + 1).map(|alias| alias.text));
            at += 2;
        }
        return (vec![(token.line, path)], at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &str = "# lowest first\nkrate: low middle high\n";

    /// A crate of four files, of which only `low` varies.
    fn krate(low: &str) -> Crate {
        let file = |module: &[&str], text: &str| File {
            path: PathBuf::from(format!(
                "src/{}.rs",
                if module.is_empty() { "lib".to_owned() } else { module.join("/") }
            )),
            module: module.iter().map(|&name| name.to_owned()).collect(),
            text: text.to_owned(),
        };
        let lib = "mod low; mod middle; mod high; pub use high::{Top, Other as Renamed}; pub use std::mem; struct Own;";
        let files = [
            file(&[], lib),
            file(&["low", "leaf"], low),
            file(&["middle"], "use crate::low::leaf;"),
            file(
                &["high"],
                "use super::{low, middle::{self, A}}; fn f() { crate::middle::g() }\n#[macro_export] macro_rules! m {}",
            ),
        ];
        Crate::new("krate".to_owned(), &files)
    }

    fn faults(low: &str) -> Vec<String> {
        krate(low).violations(&orders(ORDER).unwrap()["krate"])
    }

    #[test]
    fn accepts_imports_of_lower_folders() {
        assert_eq!(faults("use super::Leaf; use self::x; use std::mem; use crate::mem::swap;"), [""; 0]);
        let to_middle = krate("").imports.iter().filter(|import| import.to == "middle").count();
        assert_eq!(to_middle, 1);
    }

    #[test]
    fn refuses_an_import_of_a_later_folder() {
        let fault = "src/low/leaf.rs:2: `low` imports `middle`, which comes later in the order";
        for low in [
            "\nuse crate::middle::A;",
            "\nuse super::super::middle;",
            "\nuse crate::{low::B, middle::{A, self as m}};",
            "\nuse {std::mem, crate::middle::A};",
            "\npub(super) fn f() -> crate::middle::A { todo!() }",
            "\nfn f() { assert!(crate::middle::g()) }",
            "\nfn f(a: crate::middle::A) {}",
            "\nmod inner { use super::super::super::middle::A; }",
        ] {
            assert!(faults(low).contains(&fault.to_owned()), "{low}: {:?}", faults(low));
        }
    }

    #[test]
    fn follows_reexports_and_macros_of_the_root() {
        for low in [
            "use crate::Top;",
            "use crate::Renamed;",
            "use crate::{Top as Bottom};",
            "fn f() { crate::m!() }",
        ] {
            assert!(faults(low)[0].contains("`low` imports `high`"), "{low}");
        }
        for low in ["use crate::Own;", "use crate::*;"] {
            assert!(faults(low)[0].contains("`low` imports `lib`"), "{low}");
        }
    }

    #[test]
    fn ignores_tests_models_and_comments() {
        for low in [
            "//! [`A`]: crate::middle::A\n// crate::middle",
            "#[cfg(test)] mod tests { use crate::middle::A; }",
            "#[cfg(all(test, memgroup_loom))] use crate::middle::A;",
            "fn f() { \"crate::middle\"; }",
        ] {
            assert_eq!(faults(low), [""; 0], "{low}");
        }
    }

    #[test]
    fn refuses_an_order_that_does_not_match_the_folders() {
        let faults = krate("").violations(&["low", "high", "gone"].map(str::to_owned));
        let expected =
            ["krate: the order lacks folder `middle`", "krate: the order has `gone`, which is no folder"];
        assert_eq!(faults[..2], expected);
        assert_eq!(faults[2], "the order of krate: low high gone");
    }

    #[test]
    fn reports_cycles_and_orders_that_hold() {
        assert_eq!(krate("").derived_order(false), "this one holds: low middle high");
        let cycle = krate("use crate::middle::A;").derived_order(true);
        assert!(
            cycle.starts_with(
                "cycles of 2 imports between low middle\n  src/low/leaf.rs:1: low imports middle"
            ),
            "{cycle}"
        );
    }
}
