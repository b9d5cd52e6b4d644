//! Directories: making, removing and listing groups.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use memgroup::{Config, Hierarchy};
use memgroup_fuse::{Options, mount};
use rustix::io::Errno;

use super::rights::{USER, sh_as};
use super::{can_mount, mounted, mounted_with, number};

#[test]
fn makes_and_removes_groups() {
    let Some(m) = mounted() else { return };
    fs::create_dir(m.path("alice")).unwrap();
    fs::create_dir_all(m.path("bob/request/sort")).unwrap();
    let paths: Vec<_> = m.hierarchy.groups().iter().map(|group| group.path()).collect();
    assert_eq!(paths, ["/", "/alice", "/bob", "/bob/request", "/bob/request/sort"]);
    assert_eq!(
        m.sh("rmdir bob/request/sort bob/request bob && mkdir -p carol/x && ls -d */"),
        "alice/\ncarol/\n"
    );
    m.hierarchy.lookup("/carol/x").unwrap();
    // A group that the program makes and removes is there, and gone, at once.
    let dave = m.hierarchy.create("/dave").unwrap();
    assert!(m.path("dave/memory.max").exists());
    dave.remove().unwrap();
    assert!(!m.path("dave/memory.max").exists() && !m.path("dave").exists());
}

#[test]
fn answers_with_the_numbers_of_the_kernel() {
    let Some(m) = mounted() else { return };
    fs::create_dir_all(m.path("a/b")).unwrap();
    let mkdir = |name: &str| number(fs::create_dir(m.path(name)));
    let rmdir = |name: &str| number(fs::remove_dir(m.path(name)));
    assert_eq!(mkdir("a"), Err(Errno::EXIST));
    assert_eq!(mkdir("a/memory.max"), Err(Errno::EXIST));
    assert_eq!(mkdir("x/y"), Err(Errno::NOENT));
    assert_eq!(mkdir("a/memory.max/y"), Err(Errno::NOTDIR));
    assert_eq!(mkdir("a\nb"), Err(Errno::INVAL));
    assert_eq!(mkdir(&"x".repeat(256)), Err(Errno::NAMETOOLONG));
    assert_eq!(mkdir(&"x".repeat(255)), Ok(()));
    assert_eq!(rmdir("a"), Err(Errno::BUSY), "it has a child");
    assert_eq!(rmdir("c"), Err(Errno::NOENT));
    assert_eq!(rmdir("a/memory.max"), Err(Errno::NOTDIR));
    assert_eq!(rmdir("a/b"), Ok(()));
    let file = m.path("a/memory.max");
    assert_eq!(number(fs::remove_file(&file)), Err(Errno::PERM));
    assert_eq!(number(fs::remove_file(m.path("a"))), Err(Errno::ISDIR));
    assert_eq!(number(File::create_new(m.path("a/new"))).map(drop), Err(Errno::ACCESS));
    assert_eq!(number(fs::rename(m.path("a"), m.path("b"))), Err(Errno::PERM));
    assert_eq!(number(fs::rename(&file, m.path("b"))), Err(Errno::PERM));
    assert_eq!(number(fs::hard_link(&file, m.path("b"))), Err(Errno::PERM));
    assert_eq!(number(symlink("a", m.path("b"))), Err(Errno::PERM));
    assert_eq!(m.sh("mkfifo p 2>&1 | grep -c 'not permitted'"), "1\n");
    let attribute = rustix::fs::getxattr(&file, "user.a", &mut [0_u8; 8]);
    assert_eq!(attribute, Err(Errno::OPNOTSUPP));
}

#[test]
fn tells_the_bounds_of_the_hierarchy() {
    if !can_mount() {
        return;
    }
    let hierarchy = Hierarchy::new(Config::new().groups_max(4).depth_max(2)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let _mount = mount(&hierarchy, folder.path(), Options::new()).unwrap();
    let mkdir = |name: &str| number(fs::create_dir(folder.path().join(name)));
    assert_eq!(mkdir("a").and_then(|()| mkdir("a/b")), Ok(()));
    assert_eq!(mkdir("a/b/c"), Err(Errno::AGAIN), "too deep");
    assert_eq!(mkdir("d"), Ok(()));
    assert_eq!(mkdir("e"), Err(Errno::AGAIN), "too many");
}

#[test]
fn lists_what_can_be_looked_up() {
    let Some(m) = mounted() else { return };
    let groups: Vec<_> = (0..3000).map(|number| m.hierarchy.create(&format!("/{number}")).unwrap()).collect();
    let expected: BTreeSet<String> = m.hierarchy.files().into_iter().map(|file| file.name).collect();
    let mut listed = BTreeSet::new();
    for entry in fs::read_dir(m.folder.path()).unwrap() {
        let entry = entry.unwrap();
        let (name, metadata) = (entry.file_name().into_string().unwrap(), entry.metadata().unwrap());
        let has_kind = if expected.contains(&name) { metadata.is_file() } else { metadata.is_dir() };
        assert!(has_kind && metadata.ino() == std::os::unix::fs::DirEntryExt::ino(&entry), "{name}");
        assert!(listed.insert(name));
    }
    assert_eq!(listed.len(), expected.len() + groups.len());
    assert!(expected.is_subset(&listed));
    let found = m.sh("find . -type d | wc -l; find . -maxdepth 1 -type f | wc -l");
    assert_eq!(found, format!("{}\n{}\n", groups.len() + 1, expected.len()));
}

#[test]
fn hides_a_group_with_the_name_of_a_file() {
    let Some(m) = mounted() else { return };
    m.hierarchy.create("/memory.max").unwrap();
    assert!(m.path("memory.max").is_file());
    assert_eq!(m.sh("ls | grep -c '^memory.max$'"), "1\n");
}

#[test]
fn keeps_an_inode_number_as_long_as_its_group() {
    let Some(m) = mounted() else { return };
    let number = |name: &str| fs::metadata(m.path(name)).unwrap().ino();
    let group = m.hierarchy.create("/a").unwrap();
    let (first, file) = (number("a"), number("a/memory.max"));
    m.hierarchy.create("/b").unwrap();
    assert_eq!((number("a"), number("a/memory.max"), number(".")), (first, file, 1));
    group.remove().unwrap();
    drop(group);
    m.hierarchy.create("/a").unwrap();
    assert!(number("a") != first && number("a/memory.max") != file, "another group of the same name");
}

#[test]
fn has_sizes_modes_and_links_as_the_kernel_does() {
    let Some(m) = mounted() else { return };
    fs::create_dir_all(m.path("a/b")).unwrap();
    fs::create_dir(m.path("a/c")).unwrap();
    let line = |name: &str| m.sh(&format!("stat -c '%A %h %s %u %B %F' {name}"));
    assert_eq!(line("a"), "drwxr-xr-x 4 0 0 512 directory\n");
    assert_eq!(line("a/b"), "drwxr-xr-x 2 0 0 512 directory\n");
    assert_eq!(line("a/memory.max"), "-rw-r--r-- 1 0 0 512 regular empty file\n");
    assert_eq!(line("a/memory.current"), "-r--r--r-- 1 0 0 512 regular empty file\n");
    assert_eq!(line("a/memory.reclaim"), "--w------- 1 0 0 512 regular empty file\n");
    let system = rustix::fs::statfs(m.folder.path()).unwrap();
    assert_eq!((system.f_blocks, system.f_files, system.f_namelen), (0, 0, 255));
    assert!(m.sh("ls -l a").contains("memory.max"));
}

#[test]
fn answers_descriptors_of_a_removed_group_that_it_is_gone() {
    let Some(m) = mounted() else { return };
    for by_program in [true, false] {
        let group = m.hierarchy.create("/a").unwrap();
        let max = fs::OpenOptions::new().read(true).write(true).open(m.path("a/memory.max")).unwrap();
        let directory = File::open(m.path("a")).unwrap();
        if by_program {
            group.remove().unwrap();
        } else {
            fs::remove_dir(m.path("a")).unwrap();
        }
        drop(group);
        assert_eq!(m.hierarchy.groups().len(), 1);
        assert!(m.hierarchy.snapshot().dying().next().is_none(), "a descriptor keeps no group");
        // Another group of the same name does not take its place.
        m.hierarchy.create("/a").unwrap().set_max(7).unwrap();
        assert_eq!(super::read_all(&max), Err(Errno::NODEV));
        assert_eq!(number(std::io::Write::write(&mut &max, b"4096")), Err(Errno::NODEV));
        assert_eq!(number(max.set_len(0)), Ok(()), "as the kernel's");
        assert_eq!((max.metadata().unwrap().nlink(), directory.metadata().unwrap().nlink()), (1, 2));
        let mut buffer = Vec::with_capacity(1024);
        let mut names = rustix::fs::RawDir::new(&directory, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = names.next() {
            assert!([c".", c".."].contains(&entry.file_name()));
        }
        assert_eq!(m.read("a/memory.max"), "7\n");
        m.hierarchy.lookup("/a").unwrap().remove().unwrap();
    }
}

#[test]
fn removes_a_group_whose_bytes_are_still_charged() {
    let Some(m) = mounted() else { return };
    fs::create_dir(m.path("a")).unwrap();
    let charge = m.hierarchy.lookup("/a").unwrap().try_charge(4096).unwrap();
    fs::remove_dir(m.path("a")).unwrap();
    assert_eq!(m.read("cgroup.stat"), "nr_descendants 0\nnr_dying_descendants 1\n");
    assert_eq!(m.read("memory.current"), "4096\n");
    drop(charge);
    assert_eq!(m.read("cgroup.stat"), "nr_descendants 0\nnr_dying_descendants 0\n");
}

#[test]
fn lists_a_directory_anew_from_its_beginning() {
    let Some(m) = mounted() else { return };
    m.hierarchy.create("/a").unwrap();
    let directory = File::open(m.folder.path()).unwrap();
    let names = || {
        rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(0)).unwrap();
        let mut buffer = Vec::with_capacity(8192);
        let mut entries = rustix::fs::RawDir::new(&directory, buffer.spare_capacity_mut());
        let mut names = BTreeSet::new();
        while let Some(entry) = entries.next() {
            names.insert(entry.unwrap().file_name().to_str().unwrap().to_owned());
        }
        names
    };
    let mut expected = names();
    assert!(expected.contains("a"));
    m.hierarchy.create("/b").unwrap();
    expected.insert("b".to_owned());
    assert_eq!(names(), expected);
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn bounds_the_open_files_and_lists_of_a_user() {
    // As in `tree.rs`.
    const FILES_MOST: usize = 16_384;
    const ENTRIES_MOST: usize = 1 << 20;
    const GROUPS: usize = 50_000;
    let Some(m) = mounted_with(Options::new().allow_other(true)) else { return };
    fs::set_permissions(m.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|limit| limit < FILES_MOST as u64 + 1000) {
        println!("skipped: this process may have {limit:?} open files");
        return;
    }
    m.hierarchy.create("/a").unwrap();
    let open = || File::open(m.path("a/memory.current"));
    let mut held: Vec<File> = (0..FILES_MOST).map(|_| open().unwrap()).collect();
    assert_eq!(number(open()).map(drop), Err(Errno::NFILE));
    assert_eq!(sh_as(USER, m.folder.path(), "cat a/memory.current"), "0\n", "another user has places");
    held.pop();
    while number(open()).map(drop) == Err(Errno::NFILE) {
        // The kernel reports a close late.
        std::thread::yield_now();
    }
    drop(held);

    let many = m.hierarchy.create("/many").unwrap();
    (0..GROUPS).for_each(|name| drop(many.create(&name.to_string()).unwrap()));
    let lists = || {
        let mut list = fs::read_dir(m.path("many"))?;
        list.next().unwrap().map(|_| list)
    };
    let held: Vec<_> = (0..=ENTRIES_MOST / GROUPS).map(|_| lists().unwrap()).collect();
    assert_eq!(number(lists()).map(drop), Err(Errno::NFILE));
    assert_eq!(sh_as(USER, m.folder.path(), "ls a | grep current"), "memory.current\n");
    drop(held);
}
