//! Owners and permissions: the rules of the kernel's delegation.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use memgroup_fuse::Options;

use super::{mounted, mounted_with};

pub(super) const USER: u32 = 54321;

/// Runs lines of a shell as another user, and returns their output and errors.
pub(super) fn sh_as(uid: u32, folder: &Path, lines: &str) -> String {
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(format!("cd {} && {{ {lines}\n}}", folder.display()))
        .current_dir("/")
        .env("LC_ALL", "C");
    let output = shell.uid(uid).gid(uid).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn lets_a_user_control_a_group_that_was_delegated() {
    let Some(m) = mounted_with(Options::new().allow_other(true)) else { return };
    fs::set_permissions(m.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let folder = m.folder.path();
    fs::create_dir(m.path("alice")).unwrap();
    assert!(sh_as(USER, folder, "mkdir alice/x").contains("Permission denied"));
    assert!(sh_as(USER, folder, "echo 1M > alice/memory.max").contains("Permission denied"));
    assert_eq!(sh_as(USER, folder, "cat alice/memory.max"), "max\n");
    // The directory, and the file with which the user may turn subsystems on: not the limit of the group itself.
    chown(m.path("alice"), Some(USER), Some(USER)).unwrap();
    chown(m.path("alice/cgroup.subtree_control"), Some(USER), None).unwrap();
    assert!(sh_as(USER, folder, "echo 1M > alice/memory.max").contains("Permission denied"));
    let made = "mkdir alice/x && echo +memory > alice/cgroup.subtree_control && echo 1M > alice/x/memory.max && cat alice/x/memory.max";
    assert_eq!(sh_as(USER, folder, made), "1048576\n");
    for name in ["alice/x", "alice/x/memory.max", "alice/x/memory.stat"] {
        let found = fs::metadata(m.path(name)).unwrap();
        assert_eq!((found.uid(), found.gid()), (USER, USER), "{name} belongs to its creator");
    }
    assert_eq!(fs::metadata(m.path("alice/memory.max")).unwrap().uid(), 0);
    assert!(sh_as(USER + 1, folder, "echo 2M > alice/x/memory.max").contains("Permission denied"));
    assert_eq!(sh_as(USER, folder, "rmdir alice/x && ls -d alice/*/ 2>&1 | grep -c 'No such'"), "1\n");
    // A group that the program makes belongs to the user that mounted.
    m.hierarchy.create("/alice/y").unwrap();
    assert_eq!(fs::metadata(m.path("alice/y/memory.max")).unwrap().uid(), 0);
}

#[test]
fn keeps_changed_permissions_with_the_group() {
    let Some(m) = mounted_with(Options::new().allow_other(true)) else { return };
    fs::set_permissions(m.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let folder = m.folder.path();
    assert_eq!(m.sh("mkdir -m 0700 a && stat -c %a a"), "700\n");
    assert!(sh_as(USER, folder, "ls a").contains("Permission denied"));
    assert_eq!(
        m.sh("chmod 0711 a && chmod 0600 a/memory.stat && stat -c %a a a/memory.stat a/memory.max"),
        "711\n600\n644\n"
    );
    assert!(sh_as(USER, folder, "cat a/memory.stat").contains("Permission denied"));
    assert!(sh_as(USER, folder, "chmod 0666 a/memory.stat").contains("not permitted"));
    assert!(sh_as(USER, folder, "cat a/memory.reclaim").contains("Permission denied"));
    assert_eq!(m.sh("touch -d @1000000000 a/memory.max && stat -c %Y a/memory.max"), "1000000000\n");
    // They are the group's. The next group of that name has those of a new one.
    assert_eq!(m.sh("rmdir a && mkdir a && stat -c %a a a/memory.stat"), "755\n444\n");
}

#[test]
fn shows_other_users_nothing_unless_told() {
    let Some(m) = mounted() else { return };
    let said = sh_as(USER, m.folder.path().parent().unwrap(), &format!("ls {}", m.folder.path().display()));
    assert!(said.contains("Permission denied"), "{said}");
}
