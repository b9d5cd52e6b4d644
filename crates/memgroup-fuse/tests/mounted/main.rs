//! A mounted tree, used by `std::fs`, by system calls, and by shells.
#![cfg(target_os = "linux")]

mod directories;
mod ends;
mod kernel;
mod leaks;
mod others;
mod polls;
mod random;
mod rights;
mod scripts;
mod sweep;
mod texts;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use memgroup::{Config, Hierarchy};
use memgroup_fuse::{Mount, MountProblem, Options, mount};
use rustix::io::Errno;

/// A tree that is mounted in a directory of its own.
struct Mounted {
    // Dropped first, so that the directory is empty.
    _mount: Mount,
    hierarchy: Hierarchy,
    folder: tempfile::TempDir,
}

/// The configuration of a tree in which usage is the sum of charges.
fn exact() -> Config {
    Config::new().stock_cap_bytes(0)
}

/// Mounts a new tree. `None` where the system does not let this process mount, and a line says so.
fn mounted() -> Option<Mounted> {
    mounted_with(Options::new())
}

fn mounted_with(options: Options) -> Option<Mounted> {
    mounted_of(Hierarchy::new(exact()).unwrap(), options)
}

fn mounted_of(hierarchy: Hierarchy, options: Options) -> Option<Mounted> {
    if !can_mount() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = mount(&hierarchy, folder.path(), options).unwrap();
    Some(Mounted { _mount: mount, hierarchy, folder })
}

/// Whether this process can mount. If not, a line says why.
fn can_mount() -> bool {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let try_it = || {
        if !rustix::process::geteuid().is_root() {
            return Some("only root mounts by itself".to_owned());
        }
        let (hierarchy, folder) = (Hierarchy::new(exact()).unwrap(), tempfile::tempdir().unwrap());
        let tried = mount(&hierarchy, folder.path(), Options::new().unmount_at_end(false));
        tried.err().filter(|error| is_of_the_system(&error.problem)).map(|error| error.to_string())
    };
    let refused = REFUSED.get_or_init(try_it);
    if let Some(why) = refused {
        println!("skipped: {why}");
    }
    refused.is_none()
}

/// Whether the system lets no program like this one mount. Any other error fails the test.
fn is_of_the_system(problem: &MountProblem) -> bool {
    use MountProblem::{Device, Fusermount, NoFusermount, Refused};
    match problem {
        Device(_) | Fusermount(_) | NoFusermount(_) => true,
        // No right to mount, or a kernel without FUSE. Wrong options of a mount are EINVAL.
        Refused(error) => [Errno::PERM, Errno::ACCESS, Errno::NODEV]
            .map(|errno| Some(errno.raw_os_error()))
            .contains(&error.raw_os_error()),
        _ => false,
    }
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Errno> {
        write(&self.path(name), text.as_bytes())
    }

    /// Runs lines of a shell in the mount, and returns their output and errors.
    fn sh(&self, lines: &str) -> String {
        sh(self.folder.path(), lines)
    }
}

fn sh(folder: &Path, lines: &str) -> String {
    let output =
        Command::new("sh").arg("-c").arg(lines).current_dir(folder).env("LC_ALL", "C").output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// One write to a file, as that of `echo`.
fn write(path: &Path, text: &[u8]) -> Result<(), Errno> {
    let written =
        OpenOptions::new().write(true).truncate(true).open(path).and_then(|mut file| file.write(text));
    assert_eq!(number(written)?, text.len());
    Ok(())
}

/// The number of an error.
fn number<T>(result: io::Result<T>) -> Result<T, Errno> {
    result.map_err(|error| Errno::from_io_error(&error).unwrap_or_else(|| panic!("{error}")))
}

fn read_all(mut file: &File) -> Result<String, Errno> {
    let mut text = String::new();
    number(file.read_to_string(&mut text)).map(|_| text)
}
