//! The layers of this crate's sources: a module imports only modules that precede it in `LAYERS`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// All modules in order; `lib.rs` explains them.
const LAYERS: [&str; 26] = [
    "mutation",
    "uri",
    "threads",
    "account",
    "allocation_error",
    "block",
    "kill_target",
    "alloc",
    "pcache::page",
    "pcache::table",
    "pcache::lock",
    "pcache::recent",
    "pcache::pages",
    "pcache::cache",
    "pcache::fetch",
    "pcache::methods",
    "pcache",
    "vfs::file",
    "vfs",
    "install",
    "error",
    "rollback",
    "gauges",
    "kill",
    "tenant",
    "run",
];

/// Modules that exist in tests only.
const TEST_ONLY: [&str; 5] =
    ["kill_target::loom", "pcache::loom", "pcache::model", "pcache::stress", "pcache::tests"];

/// The modules below `dir`, with their sources.
fn modules(dir: &Path, prefix: &str, found: &mut Vec<(String, PathBuf)>) {
    for entry in std::fs::read_dir(dir).expect("a source directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension != "rs") {
            continue; // A page.
        }
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
        let module = format!("{prefix}{name}");
        if path.is_dir() {
            modules(&path, &format!("{module}::"), found);
        } else if module != "lib" && !TEST_ONLY.contains(&module.as_str()) {
            found.push((module, path));
        }
    }
}

/// The paths that begin with `crate::` or `super::` in a source, before its tests.
fn imports(module: &str, source: &str) -> Vec<String> {
    let production = source.split("mod tests {").next().unwrap_or_default();
    let code: Vec<&str> = production.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let parent = module.rsplit_once("::").map_or(String::new(), |(parent, _)| format!("{parent}::"));
    let absolute = code.replace("super::", &format!("crate::{parent}"));
    absolute.split("crate::").skip(1).map(str::to_owned).collect()
}

#[test]
fn imports_only_earlier_layers() {
    let mut found = Vec::new();
    modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    let names: BTreeSet<&str> = found.iter().map(|(module, _)| module.as_str()).collect();
    assert_eq!(names, BTreeSet::from(LAYERS), "a module without a place in the layers, or the reverse");
    for (module, path) in &found {
        let source = std::fs::read_to_string(path).expect("a source");
        let layer = LAYERS.iter().position(|layer| layer == module).expect("checked above");
        for import in imports(module, &source) {
            let of_import = |layer: &&str| {
                import
                    .strip_prefix(*layer)
                    .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
            };
            // The longest match: `pcache::page` rather than `pcache`.
            let imported = LAYERS.into_iter().filter(of_import).max_by_key(|layer| layer.len());
            let imported = imported.unwrap_or_else(|| panic!("{module} imports {import:.40}"));
            let is_earlier = LAYERS[..layer].contains(&imported);
            assert!(is_earlier, "{module} imports {imported}, which is not an earlier layer");
        }
    }
}
