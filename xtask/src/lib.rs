//! The project's own checks, which `.ci/run` calls, and helpers of its tests: the watchdog, the
//! corpus of inputs, and the sweep of refusals. They need only the standard library and
//! `serde_json`.
//!
//! ```text
//! cargo run -p xtask -- lines     production lines of each crate
//! cargo run -p xtask -- layers    imports against the orders of `layers.txt`
//! cargo run -p xtask -- heavy     whether the workspace in `heavy/` must be checked again
//! cargo run -p xtask -- figures   whether the pages quote the figures of `docs/figures.json`
//! ```

pub mod corpus;
pub mod figures;
pub mod heavy;
pub mod layers;
pub mod lines;
mod source;
pub mod sweep;
mod watchdog;

use std::fs;
use std::path::{Path, PathBuf};

pub use watchdog::Watchdog;

/// Result of a check, with an error that names the file.
pub type Result<T> = std::result::Result<T, String>;

/// The folders of the crates of both workspaces.
pub(crate) fn crates(root: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = entries(&root.join("crates"))?;
    folders.extend(entries(&root.join("heavy"))?);
    folders.retain(|path| path.join("Cargo.toml").exists());
    Ok(folders)
}

/// The entries of a folder, sorted by name.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| format!("failed to list {}: {error}", folder.display());
    let paths = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = paths.map_err(failed)?;
    paths.sort();
    Ok(paths)
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("failed to read {}: {error}", path.display()))
}

/// The last part of a path, as text.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
