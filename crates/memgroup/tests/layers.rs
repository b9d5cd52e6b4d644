//! Reads the sources of the workspace: a folder imports only folders that come before it in
//! `xtask/layers.txt`.

use std::path::Path;

#[test]
#[cfg_attr(any(miri, memgroup_emulated), ignore = "reads files, slowly")]
fn imports_follow_the_order_of_the_folders() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let faults = xtask::layers::violations(&root).unwrap();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
