//! Owners and permissions: the rules of the kernel's delegation.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use memgroup::{Config, Hierarchy};
use memgroup_fuse::Options;

use super::{Mounted, can_mount, mounted, mounted_of, mounted_with};

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
    // The directory, and the file with which the user may turn subsystems on: not the limit of the
    // group itself.
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
fn bounds_the_groups_of_a_user_to_whom_one_was_delegated() {
    const GROUPS: u32 = 400;
    if !can_mount() {
        return;
    }
    let hierarchy = Hierarchy::new(Config::new().groups_max(GROUPS)).unwrap();
    let Some(m) = mounted_of(hierarchy, Options::new().allow_other(true)) else { return };
    fs::set_permissions(m.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let folder = m.folder.path();
    let delegate = "mkdir -p tenants/alice && echo 100 > tenants/alice/cgroup.max.descendants && echo 2 > tenants/alice/cgroup.max.depth";
    assert_eq!(m.sh(delegate), "");
    chown(m.path("tenants/alice"), Some(USER), Some(USER)).unwrap();
    let owners = |name: &str| {
        ["cgroup.max.descendants", "cgroup.max.depth"].map(|file| {
            let found = fs::metadata(m.path(name).join(file)).unwrap();
            (found.uid(), found.gid(), found.mode() & 0o777)
        })
    };
    let (root, alice) = ((0, 0, 0o644), (USER, USER, 0o644));
    assert_eq!((owners(""), owners("tenants"), owners("tenants/alice")), ([root; 2], [root; 2], [root; 2]));
    let tries = "for file in descendants depth; do echo max > tenants/alice/cgroup.max.$file || echo refused; \
                 chmod 0666 tenants/alice/cgroup.max.$file || echo refused; \
                 chown $(id -u) tenants/alice/cgroup.max.$file || echo refused; done; \
                 rmdir tenants/alice || echo refused; mv tenants/alice tenants/bob || echo refused";
    let said = sh_as(USER, folder, tries);
    assert_eq!(said.matches("refused\n").count(), 8, "{said}");
    assert_eq!(m.sh("cat tenants/alice/cgroup.max.*"), "2\n100\n");
    // She bounds the groups that she makes herself, within her own bound.
    let inner = "mkdir tenants/alice/team && echo 3 > tenants/alice/team/cgroup.max.descendants && mkdir tenants/alice/team/1 tenants/alice/team/2 tenants/alice/team/3 && mkdir tenants/alice/team/4";
    let said = sh_as(USER, folder, inner);
    assert!(said.contains("Resource temporarily unavailable") && said.contains("team/4"), "{said}");
    assert_eq!(owners("tenants/alice/team"), [alice; 2]);
    assert!(
        sh_as(USER, folder, "mkdir tenants/alice/team/1/deep").contains("Resource temporarily unavailable")
    );
    // Another user may make a group there. Its bounds are not that user's, but those of the one
    // whose directory it is in.
    chmod_all(&m, "tenants/alice/team");
    assert_eq!(sh_as(USER, folder, "echo max > tenants/alice/team/cgroup.max.descendants"), "");
    assert_eq!(
        sh_as(
            USER + 1,
            folder,
            "mkdir tenants/alice/team/other && echo 1M > tenants/alice/team/other/memory.max"
        ),
        ""
    );
    assert_eq!(owners("tenants/alice/team/other"), [alice; 2]);
    assert!(
        sh_as(USER + 1, folder, "echo 7 > tenants/alice/team/other/cgroup.max.depth")
            .contains("Permission denied")
    );
    // All that she can get.
    let storm = "i=0; while mkdir tenants/alice/g$i 2>/dev/null; do i=$((i + 1)); done; echo $i";
    assert_eq!(sh_as(USER, folder, storm), "95\n", "five groups are in the team and its own");
    // Removed groups that hold bytes still count.
    let held: Vec<_> = (0..95)
        .map(|number| {
            let group = m.hierarchy.lookup(&format!("/tenants/alice/g{number}")).unwrap();
            group.try_charge(1).unwrap()
        })
        .collect();
    assert_eq!(sh_as(USER, folder, "rmdir tenants/alice/g*"), "");
    assert_eq!(sh_as(USER, folder, storm), "0\n");
    assert_eq!(m.sh("mkdir tenants/bob && mkdir tenants/bob/x && ls -d tenants/bob/x"), "tenants/bob/x\n");
    drop(held);
    assert_eq!(sh_as(USER, folder, storm), "95\n");
    // Who owns the directory above owns the bounds.
    chown(m.path("tenants"), Some(USER + 1), None).unwrap();
    assert_eq!(sh_as(USER + 1, folder, "echo 101 > tenants/alice/cgroup.max.descendants"), "");
    assert_eq!(sh_as(USER, folder, storm), "0\n", "its names are taken");
    assert!(sh_as(USER, folder, "mkdir tenants/alice/last && mkdir tenants/alice/more").contains("more"));
}

#[test]
fn leaves_some_groups_to_others_when_a_user_without_a_bound_takes_all() {
    if !can_mount() {
        return;
    }
    let hierarchy = Hierarchy::new(Config::new().groups_max(512)).unwrap();
    let Some(m) = mounted_of(hierarchy, Options::new().allow_other(true)) else { return };
    fs::set_permissions(m.folder.path(), Permissions::from_mode(0o755)).unwrap();
    assert_eq!(m.sh("mkdir -p tenants/alice tenants/bob"), "");
    chown(m.path("tenants/alice"), Some(USER), Some(USER)).unwrap();
    let storm = "i=0; while mkdir tenants/alice/g$i 2>/dev/null; do i=$((i + 1)); done; echo $i";
    assert_eq!(sh_as(USER, m.folder.path(), storm), "508\n", "all but the root and three");
    assert_eq!(m.sh("mkdir tenants/bob-too tenants/bob/x other && ls -d tenants/bob/x"), "tenants/bob/x\n");
}

/// Lets every user make groups there.
fn chmod_all(m: &Mounted, name: &str) {
    fs::set_permissions(m.path(name), Permissions::from_mode(0o777)).unwrap();
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
