//! The pages name files that exist, and their links lead somewhere, on GitHub and in rustdoc.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("failed to read {}: {error}", path.display()))
}

/// The files below `folder` with a name that ends in `end`, build output left out.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && !entry.ends_with("target") {
            found.extend(files(&entry, end));
        } else if entry.to_string_lossy().ends_with(end) {
            found.push(entry);
        }
    }
    found.sort();
    found
}

/// The folders of the crates of both workspaces.
fn crates() -> Vec<PathBuf> {
    let folders = ["crates", "heavy"].into_iter().flat_map(|all| fs::read_dir(root().join(all)).unwrap());
    let mut folders: Vec<_> = folders.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("Cargo.toml").exists());
    folders.sort();
    folders
}

/// The pages of the workspace as a whole and of all crates.
fn pages() -> Vec<PathBuf> {
    let root = root();
    let names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
    let mut pages = names.map(|name| root.join(name)).to_vec();
    pages.push(root.join("heavy/README.md"));
    pages.extend(files(&root.join("docs"), ".md"));
    for folder in crates() {
        let is_page = |page: &PathBuf| !page.starts_with(folder.join("src"));
        pages.extend(files(&folder, ".md").into_iter().filter(is_page));
    }
    pages
}

/// Names in code spans that look like a file of Rust with its folder. A span with braces, or
/// without a folder, is no such name.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|span| {
        span.ends_with(".rs")
            && span.contains('/')
            && span.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-/.".contains(&byte))
    })
}

/// Targets of links, those of definitions included, but neither addresses of the web nor of items.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let defined =
        text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).map(|(_, target)| target);
    // A sentence may begin with an item, too: its target has no space.
    inline.chain(defined).filter(|target| !["://", "::", " "].iter().any(|other| target.contains(other)))
}

/// The folders that a name on this page may be relative to.
fn bases(page: &Path) -> Vec<PathBuf> {
    let root = root();
    let mut bases = vec![page.parent().unwrap().to_owned(), root.clone()];
    for folder in crates() {
        bases.push(folder.join("src"));
        bases.push(folder);
    }
    bases.extend([root.join("crates"), root.join("heavy")]);
    // A page of one mechanism may leave away the folder of its layer.
    bases.extend(
        ["control", "observe", "counter", "state", "api"]
            .map(|layer| root.join("crates/memgroup/src").join(layer)),
    );
    bases
}

#[test]
fn files_that_pages_name_exist() {
    let mut missing = Vec::new();
    for page in pages() {
        let (text, bases) = (read(&page), bases(&page));
        let is_missing = |name: &&str| !bases.iter().any(|base| base.join(name).is_file());
        let mut names: Vec<_> = named_files(&text).filter(is_missing).collect();
        names.dedup();
        missing.extend(names.iter().map(|name| format!("{}: {name}", page.display())));
    }
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
}

#[test]
fn architecture_lists_the_folders_in_their_order() {
    let (text, layers) = (read(&root().join("ARCHITECTURE.md")), read(&root().join("xtask/layers.txt")));
    let order = layers.lines().find_map(|line| line.strip_prefix("memgroup: ")).unwrap();
    let (_, table) = text.split_once("\n| folder | holds |\n|---|---|\n").unwrap();
    let rows = table.lines().map_while(|line| line.strip_prefix("| `")?.split('`').next());
    assert!(rows.eq(order.split(' ').filter(|folder| *folder != "guide")), "the order is {order}");
}

#[test]
fn architecture_lists_the_files_that_allow_unsafe_code() {
    let text = read(&root().join("ARCHITECTURE.md"));
    for folder in crates().iter().filter(|folder| !folder.ends_with("memgroup")) {
        let (source, name) = (folder.join("src"), folder.file_name().unwrap().to_str().unwrap());
        let line = text.lines().find(|line| line.starts_with(&format!("| `{name}` | ")));
        let listed: BTreeSet<_> =
            line.unwrap_or_else(|| panic!("no line for {name}")).split('`').skip(3).step_by(2).collect();
        let found = files(&source, ".rs");
        let found = found.iter().map(|path| path.strip_prefix(&source).unwrap().to_str().unwrap());
        let is_test =
            |path: &str| ["loom", "litmus", "model", "tests"].iter().any(|word| path.contains(word));
        let allows = |path: &&str| !is_test(path) && read(&source.join(path)).contains("allow(unsafe_code)");
        let found: BTreeSet<_> = found.filter(allows).collect();
        assert_eq!(listed, found, "{name}");
    }
}

#[test]
fn links_of_pages_lead_to_files() {
    let mut dead = Vec::new();
    for page in pages() {
        let text = read(&page);
        for target in targets(&text) {
            let file = target.split('#').next().unwrap();
            if !file.is_empty() && !page.parent().unwrap().join(file).exists() {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "no such file:\n{}", dead.join("\n"));
}

#[test]
fn pages_of_the_guide_link_by_reference() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide");
    let (module, links) = (read(&guide.join("mod.rs")), read(&guide.join("links.md")));
    let defined: BTreeSet<_> =
        links.lines().filter_map(|line| line.split_once("]: ")).map(|(name, _)| name).collect();
    let mut wrong = Vec::new();
    for page in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs"), ".md") {
        let (name, text) = (page.file_stem().unwrap().to_str().unwrap(), read(&page));
        if name != "ten-minutes" && !module.contains(&format!("docs/{name}.md")) {
            wrong.push(format!("{name}: is not in the guide"));
        }
        if text.contains("](crate::") {
            wrong.push(format!("{name}: has a link to an item that is dead outside of rustdoc"));
        }
        let local = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        wrong.extend(
            local
                .filter(|target| target.ends_with(".md"))
                .map(|target| format!("{name}: {target} is dead in rustdoc")),
        );
        let definitions = text.lines().filter(|line| line.starts_with('[') && !line.contains("://"));
        let names = definitions.filter_map(|line| line.split_once("]: ")).map(|(name, _)| name);
        wrong.extend(
            names.filter(|name| *name != "[picture" && !defined.contains(name)).map(|other| {
                format!("{name}: {other}] is not in src/guide/links.md, so it is dead in rustdoc")
            }),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
