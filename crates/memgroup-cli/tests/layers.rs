//! The folders of `memgroup run` import only folders above them.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders from the top of the list in `src/run.rs` downwards.
const LAYERS: [&str; 10] =
    ["base", "spec", "data", "backend", "report", "serve", "work", "output", "sqlite", "http"];

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    let files = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

#[test]
fn imports_only_layers_above() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/run");
    let layer = |name: &str| LAYERS.iter().position(|&layer| layer == name).expect(name);
    let mut imports = 0;
    for file in files(&directory) {
        let inside = file.strip_prefix(&directory).expect("a file of the directory");
        let first = inside.iter().next().expect("a name").to_str().expect("text").trim_end_matches(".rs");
        let text = fs::read_to_string(&file).expect("a file");
        for path in text.split("crate::run::").skip(1) {
            let name: String = path.chars().take_while(|c| c.is_ascii_lowercase()).collect();
            imports += 1;
            assert!(layer(&name) <= layer(first), "{} imports `{name}`", inside.display());
        }
        // Any other form of the path would escape the check above.
        let others = LAYERS.map(|layer| format!("super::{layer}::"));
        let has_other = others.iter().any(|other| text.contains(other)) || text.contains("crate::run::{");
        assert!(!has_other, "{} must write crate::run::LAYER", inside.display());
    }
    assert!(imports > 50, "{imports}");
}
