//! Layers: which folder of a crate may import which.
//!
//! A folder is a top-level module: `src/stock/` or `src/stock.rs`. An order in `layers.txt` lists
//! the folders of a crate, or of a folder such as `memgroup-cli/run`, from the lowest to the
//! highest; a folder imports only folders before it.
//! The root of a crate may import all, and re-exports and macros at the root count for the folder
//! that they come from. An item that is defined in the root counts as the folder `lib`, which
//! comes last.
//!
//! Within a folder, files may import each other, but at most `CIRCLE_MOST` of them in a circle:
//! a folder that is one circle is one module with many files. What a file imports by `*` is not
//! known, and does not count for circles.
//!
//! Imports are the paths that begin with `crate`, `super` or `self`, in `use` and elsewhere, also
//! within the arguments of macros. This does not see methods of a type that a folder received
//! without naming it, and does not count tests, models and comments.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::source::{File, Token, files, nesting, production};
use crate::{Result, crates, name, read};

const ROOT: &str = "lib";

/// The most files of a folder that may import each other in a circle.
const CIRCLE_MOST: usize = 3;

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
    /// The modules of files, and those of the same folder that each imports.
    files: BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
}

/// Returns a message for each import of the workspace that breaks an order of `layers.txt`.
pub fn violations(root: &Path) -> Result<Vec<String>> {
    let orders = orders(&read(&root.join("xtask/layers.txt"))?)?;
    let known = read_crates(root, &orders)?;
    if let Some(name) = orders.keys().find(|&name| known.iter().all(|krate| krate.name != *name)) {
        return Err(format!("layers.txt: there is no crate {name}"));
    }
    let faults = known.iter().flat_map(|krate| {
        let of_folders = match orders.get(&krate.name) {
            Some(order) => krate.violations(order),
            None => krate.cycles(),
        };
        of_folders.into_iter().chain(krate.circles(CIRCLE_MOST))
    });
    Ok(faults.collect())
}

/// Returns the state of each crate: its order, an order that would hold, or its cycles. `all`
/// lists the imports that make a cycle.
pub fn report(root: &Path, all: bool) -> Result<String> {
    let orders = orders(&read(&root.join("xtask/layers.txt"))?)?;
    let line = |krate: &Crate| match orders.get(&krate.name) {
        Some(order) => format!("{}: in the order {}", krate.name, order.join(" ")),
        None => format!("{}: no order is declared; {}", krate.name, krate.derived_order(all)),
    };
    Ok(read_crates(root, &orders)?.iter().map(line).collect::<Vec<_>>().join("\n"))
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

/// Reads the crates, and the folders that have orders of their own.
fn read_crates(root: &Path, orders: &BTreeMap<String, Vec<String>>) -> Result<Vec<Crate>> {
    let mut found = Vec::new();
    for folder in crates(root)? {
        let mut files = files(&folder)?;
        for file in &mut files {
            file.path = file.path.strip_prefix(root).unwrap_or(&file.path).to_owned();
        }
        let name = name(&folder);
        for key in orders.keys() {
            if let Some(inner) = key.strip_prefix(&format!("{name}/")) {
                let base: Vec<_> = inner.split('/').map(str::to_owned).collect();
                found.push(Crate::new(key.clone(), &files, &base));
            }
        }
        found.push(Crate::new(name, &files, &[]));
    }
    Ok(found)
}

impl Crate {
    /// Reads the folders below the module `base`: of the whole crate if it is empty.
    fn new(name: String, files: &[File], base: &[String]) -> Self {
        let files: Vec<_> = files
            .iter()
            .filter_map(|file| {
                let module = file.module.strip_prefix(base)?.to_vec();
                Some(File { path: file.path.clone(), module, text: file.text.clone() })
            })
            .collect();
        let folders: BTreeSet<String> =
            files.iter().filter_map(|file| file.module.first().cloned()).collect();
        let (mut at_root, mut renamed) = (BTreeMap::new(), BTreeMap::new());
        for file in &files {
            let tokens = production(&file.text);
            for (name, path) in reexports(&tokens) {
                let to = path.into_iter().map(str::to_owned);
                renamed.insert([&file.module[..], &[name]].concat(), absolute(&file.module, to));
            }
            match file.module.first() {
                None => at_root.extend(reexports(&tokens).into_iter().filter_map(|(name, path)| {
                    let first = path.into_iter().find(|part| !["crate", "self"].contains(part))?;
                    Some((name, first.to_owned()))
                })),
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
        let mut of_files: BTreeMap<_, BTreeSet<_>> =
            files.iter().map(|file| (file.module.clone(), BTreeSet::new())).collect();
        for file in &files {
            let Some(from) = file.module.first() else { continue };
            let module = [base, &file.module].concat();
            for (line, path) in imported(&module, &production(&file.text)) {
                let Some(path) = path.strip_prefix(base).map(<[String]>::to_vec) else { continue };
                let Some(name) = path.first().cloned() else { continue };
                let is_glob = path.last().is_some_and(|part| part == "*");
                let to = file_of(&of_files, &renamed, path);
                if to.first() == Some(from) && to != file.module && !is_glob {
                    of_files.entry(file.module.clone()).or_default().insert(to);
                }
                if let Some(to) = folder_of(name).filter(|to| to != from) {
                    let file = file.path.display().to_string();
                    imports.push(Import { file, line, from: from.clone(), to });
                }
            }
        }
        imports.sort_by(|a, b| (&a.file, a.line, &a.to).cmp(&(&b.file, b.line, &b.to)));
        imports.dedup();
        Self { name, folders, imports, files: of_files }
    }

    /// Returns a line for each circle of more than `most` files.
    fn circles(&self, most: usize) -> Vec<String> {
        let (mut faults, mut known) = (Vec::new(), BTreeSet::new());
        let reached: BTreeMap<_, _> = self.files.keys().map(|file| (file, self.reached(file))).collect();
        for (&file, from_here) in &reached {
            let circle: Vec<_> = from_here.iter().filter(|&&other| reached[other].contains(file)).collect();
            if circle.len() > most && known.insert(circle.clone()) {
                let names = circle.iter().map(|file| file.join("/")).collect::<Vec<_>>().join(" ");
                let (name, count) = (&self.name, circle.len());
                faults.push(format!("{name}: {count} files import each other in a circle: {names}"));
            }
        }
        faults
    }

    /// Returns the files of its folder that a file imports, over any number of others.
    fn reached<'a>(&'a self, file: &'a Vec<String>) -> BTreeSet<&'a Vec<String>> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![file]);
        while let Some(next) = open.pop() {
            open.extend(self.files[next].iter().filter(|file| reached.insert(*file)));
        }
        reached
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

    /// Returns an order that holds, or the folders in cycles and, with `all`, the imports that
    /// make them.
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

/// Returns the names that a module gets by `use`, and the path of each one.
fn reexports<'a>(tokens: &[Token<'a>]) -> Vec<(String, Vec<&'a str>)> {
    let uses = (0..tokens.len()).filter(|&at| tokens[at].text == "use");
    let paths = uses.flat_map(|at| paths(&tokens[at + 1..]).0);
    paths
        .filter_map(|(_, path)| {
            let known_as = path.iter().rev().find(|&&part| part != "self")?.to_string();
            Some((known_as, path))
        })
        .collect()
}

/// Returns the path from the root of the crate that a path in a module leads to.
fn absolute(module: &[String], path: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut absolute = module.to_vec();
    for part in path {
        match part.as_str() {
            "crate" => absolute.clear(),
            "super" => drop(absolute.pop()),
            "self" => {}
            _ => absolute.push(part),
        }
    }
    absolute
}

/// Returns the module of the file in which the item of a path is, through what other modules
/// re-export.
fn file_of(
    files: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
    renamed: &BTreeMap<Vec<String>, Vec<String>>,
    path: Vec<String>,
) -> Vec<String> {
    const HOPS_MOST: usize = 8;
    let mut path = path;
    for _ in 0..HOPS_MOST {
        let prefix = (0..=path.len()).rev().find(|&length| files.contains_key(&path[..length])).unwrap_or(0);
        let item = &path[..path.len().min(prefix + 1)];
        match renamed.get(item).filter(|_| prefix < path.len()) {
            Some(to) if to != item => path = to.clone(),
            _ => return path[..prefix].to_vec(),
        }
    }
    Vec::new()
}

/// Returns the macros that a file defines at the root of its crate.
fn exported_macros(tokens: &[Token]) -> impl Iterator<Item = String> {
    let definitions = tokens.windows(5).filter(|window| {
        let texts = [0, 1, 2, 3].map(|at| window[at].text);
        texts == ["macro_export", "]", "macro_rules", "!"]
    });
    definitions.map(|window| window[4].text.to_owned())
}

/// Returns the paths of a file, from the root of the crate on, with their lines.
fn imported(module: &[String], tokens: &[Token]) -> Vec<(usize, Vec<String>)> {
    let mut names = Vec::new();
    let mut depth = 0;
    // The modules around a token, and the depth of each.
    let mut inline: Vec<(&str, i32)> = Vec::new();
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
            let inner = inline.iter().map(|(name, _)| name.to_string());
            names.push((line, absolute(module, inner.chain(path.into_iter().map(str::to_owned)))));
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
    use std::path::PathBuf;

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
        Crate::new("krate".to_owned(), &files, &[])
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

    /// A crate of one folder, with a file for each source.
    fn folder(sources: [&str; 5]) -> Crate {
        let names = ["mod", "a", "b", "c", "d"];
        let files = names.iter().zip(sources).map(|(&name, text)| File {
            path: PathBuf::from(format!("src/x/{name}.rs")),
            module: ["x", name].into_iter().filter(|&part| part != "mod").map(str::to_owned).collect(),
            text: text.to_owned(),
        });
        Crate::new("krate".to_owned(), &files.collect::<Vec<_>>(), &[])
    }

    #[test]
    fn refuses_four_files_in_a_circle() {
        let circle =
            ["", "use crate::x::b;", "use super::c::C;", "use crate::x::{d::D, Other};", "use super::a;"];
        let fault = "krate: 4 files import each other in a circle: x/a x/b x/c x/d";
        assert_eq!(folder(circle).circles(3), [fault]);
        let [root, a, b, c, d] = circle;
        assert_eq!(folder([root, "", b, c, d]).circles(3), [""; 0]);
        assert_eq!(folder([root, a, b, "use crate::x::a;", "use crate::x::a;"]).circles(3), [""; 0]);
        let with_reexport = folder(["pub(crate) use a::Item;", a, b, c, "use crate::x::Item;"]);
        assert_eq!(with_reexport.circles(3), [fault], "the item of the folder is that of a file");
        let of_folder = folder(["use crate::x::a; struct Item;", a, b, "use super::Item;", ""]).circles(3);
        assert_eq!(of_folder, ["krate: 4 files import each other in a circle: x x/a x/b x/c"]);
    }

    #[test]
    fn has_orders_for_folders_of_a_folder() {
        let file = |module: &[&str], text: &str| File {
            path: PathBuf::from(format!("src/{}.rs", module.join("/"))),
            module: module.iter().map(|&name| name.to_owned()).collect(),
            text: text.to_owned(),
        };
        let files = [
            file(&[], "mod run; mod other;"),
            file(&["run"], ""),
            file(&["run", "low"], "use crate::other::A; use super::high::B;"),
            file(&["run", "high"], "use crate::run::low::C;"),
        ];
        let run = Crate::new("krate/run".to_owned(), &files, &["run".to_owned()]);
        let faults = run.violations(&["low", "high"].map(str::to_owned));
        assert_eq!(faults[0], "src/run/low.rs:1: `low` imports `high`, which comes later in the order");
        assert_eq!(faults.len(), 2, "and the order: {faults:?}");
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
