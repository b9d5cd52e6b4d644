//! The memory cgroup of the process, of version 1 or 2, and those above it as far as the process
//! can see them.
//!
//! ```text
//!   /proc/self/cgroup      which group            0::/app                 4:memory:/docker/1f2e
//!   /proc/self/mountinfo   where groups lie       cgroup2, root /         cgroup with memory, root /docker/1f2e
//!                                                  ▼                       ▼
//!                                                 <mount>/app             <mount>
//! ```
//!
//! The system attaches the memory controller to one version only. Version 1 has it if
//! `/proc/self/cgroup` has a line for `memory`.

use std::path::{Path, PathBuf};

use procfs_core::ProcessCGroups;
use procfs_core::process::{MountInfo, MountInfos};

use crate::files::{self, Files, Kept, ProcessError};

/// Version 1 has no word for "no limit". It uses the largest number of whole pages instead.
const UNLIMITED_V1: u64 = 1 << 62;

/// Names of the files in one version.
#[derive(Debug)]
struct Names {
    max: &'static str,
    current: &'static str,
    /// The line of `memory.stat` with the bytes of files that the kernel reclaims first, for the
    /// group and those below it.
    inactive_file: &'static str,
}

const V1: Names = Names {
    max: "memory.limit_in_bytes",
    current: "memory.usage_in_bytes",
    inactive_file: "total_inactive_file",
};
const V2: Names = Names { max: "memory.max", current: "memory.current", inactive_file: "inactive_file" };

/// The memory cgroup of this process.
#[derive(Debug)]
pub(crate) struct Cgroup {
    names: &'static Names,
    /// Its own directory first, then those above it.
    levels: Vec<PathBuf>,
}

impl Cgroup {
    /// Returns the cgroup of this process, or `None` if there is none that the process can see.
    pub(crate) fn of_process(files: &Files) -> Result<Option<Cgroup>, ProcessError> {
        let ProcessCGroups(groups) = files.parse("/proc/self/cgroup")?;
        let MountInfos(mounts) = files.parse("/proc/self/mountinfo")?;
        let is_memory = |controller: &String| controller == "memory";
        let v1 = groups.iter().find(|group| group.controllers.iter().any(is_memory));
        let v2 = groups.iter().find(|group| group.hierarchy == 0);
        let (names, found) = if v1.is_some() { (&V1, v1) } else { (&V2, v2) };
        let holds_memory = |mount: &&MountInfo| match mount.fs_type.as_str() {
            "cgroup" => v1.is_some() && mount.super_options.contains_key("memory"),
            "cgroup2" => v1.is_none(),
            _ => false,
        };
        let Some((group, mount)) = found.zip(mounts.iter().find(holds_memory)) else { return Ok(None) };
        let top = files.at(&mount.mount_point);
        let own = own_directory(&top, Path::new(&mount.root), Path::new(&group.pathname));
        let levels = own.ancestors().take_while(|level| level.starts_with(&top)).map(Path::to_owned);
        // The root of all cgroups has no limit, and in version 2 no file for one.
        let levels: Vec<_> = levels.filter(|level| level.join(names.max).is_file()).collect();
        Ok((!levels.is_empty()).then_some(Cgroup { names, levels }))
    }

    /// Returns the lowest limit of the group and those above it, and the directory that has it.
    /// Returns `None` if none has a limit.
    pub(crate) fn limit(&self) -> Result<Option<(u64, &Path)>, ProcessError> {
        let mut least: Option<(u64, &Path)> = None;
        for level in &self.levels {
            let max = files::number(&level.join(self.names.max))?.filter(|&max| max < UNLIMITED_V1);
            if let Some(max) = max.filter(|&max| least.is_none_or(|(least, _)| max < least)) {
                least = Some((max, level));
            }
        }
        Ok(least)
    }

    /// Returns the files with the figures of the cgroup in `level`.
    pub(crate) fn figures(&self, level: &Path) -> Figures {
        Figures {
            names: self.names,
            current: Kept::at(level.join(self.names.current)),
            stat: Kept::at(level.join("memory.stat")),
            pressure: Kept::at(level.join("memory.pressure")),
        }
    }
}

/// Files of a cgroup that each check reads.
#[derive(Debug)]
pub(crate) struct Figures {
    names: &'static Names,
    current: Kept,
    stat: Kept,
    pub(crate) pressure: Kept,
}

impl Figures {
    /// Returns the bytes that the cgroup uses, without those of files that the kernel reclaims
    /// first.
    pub(crate) fn used(&mut self) -> Result<u64, ProcessError> {
        let (path, text) = self.current.text()?;
        let current = files::parse_number(path, text)?.unwrap_or(0);
        let (path, stat) = self.stat.text()?;
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        let line = lines.find(|(name, _)| *name == self.names.inactive_file);
        let inactive = line.map_or(Ok(0), |(_, bytes)| bytes.trim().parse());
        let inactive: u64 = inactive.map_err(|why| files::malformed(path, why))?;
        Ok(current.saturating_sub(inactive))
    }
}

/// Returns the directory of the group `pathname`, if the group `root` is mounted at `top`. In a
/// container the two paths may come from different views; then the directory is `top`.
fn own_directory(top: &Path, root: &Path, pathname: &Path) -> PathBuf {
    let below = pathname.strip_prefix(root).ok().map(|below| top.join(below));
    below.filter(|own| own.is_dir() && !pathname.ends_with("..")).unwrap_or_else(|| top.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Cgroup;
    use crate::files::Files;
    use crate::files::ProcessError;
    use crate::meter::Meter;

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1_MOUNT: &str =
        "35 31 0:32 /docker/1f2e /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n";

    struct System(tempfile::TempDir);

    impl System {
        fn new(cgroup: &str, mountinfo: &str) -> System {
            let system = System(tempfile::tempdir().unwrap());
            system.write("proc/self/cgroup", cgroup);
            system.write("proc/self/mountinfo", mountinfo);
            system
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn cgroup(&self) -> Result<Option<Cgroup>, ProcessError> {
            Cgroup::of_process(&Files::below(self.0.path()))
        }

        fn limit(&self) -> Option<u64> {
            self.cgroup().unwrap().and_then(|cgroup| cgroup.limit().unwrap().map(|(bytes, _)| bytes))
        }
    }

    #[test]
    fn the_least_limit_on_the_way_to_the_root_counts() {
        let system = System::new("0::/pod/app\n", V2_MOUNT);
        system.write("sys/fs/cgroup/cgroup.procs", "1\n");
        system.write("sys/fs/cgroup/pod/memory.max", "3000\n");
        system.write("sys/fs/cgroup/pod/app/memory.max", "max\n");
        assert_eq!(system.limit(), Some(3000));
        system.write("sys/fs/cgroup/pod/app/memory.max", "2000\n");
        assert_eq!(system.limit(), Some(2000));
        system.write("sys/fs/cgroup/pod/app/memory.current", "1500\n");
        system.write("sys/fs/cgroup/pod/app/memory.stat", "anon 900\ninactive_file 400\nactive_file 200\n");
        let pressure = "some avg10=12.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        system.write("sys/fs/cgroup/pod/app/memory.pressure", pressure);
        let cgroup = system.cgroup().unwrap().unwrap();
        let (_, level) = cgroup.limit().unwrap().unwrap();
        let mut figures = cgroup.figures(level);
        let mut meter = Meter::Cgroup(cgroup.figures(level));
        assert_eq!((figures.used().unwrap(), meter.pressure()), (1100, Some(12.5)));
        system.write("sys/fs/cgroup/pod/app/memory.current", "17\n");
        assert_eq!(figures.used().unwrap(), 0, "a file that is open is read anew");
    }

    #[test]
    fn a_container_of_version_1_sees_its_own_group_as_the_top() {
        let system = System::new("4:memory:/docker/1f2e\n0::/docker/1f2e\n", V1_MOUNT);
        let (max, memory) = ("memory.limit_in_bytes", "sys/fs/cgroup/memory");
        system.write(&format!("{memory}/{max}"), "9223372036854771712\n");
        assert_eq!(system.limit(), None);
        system.write(&format!("{memory}/{max}"), "5000\n");
        assert_eq!(system.limit(), Some(5000));
        system.write(&format!("{memory}/memory.usage_in_bytes"), "4000\n");
        system.write(&format!("{memory}/memory.stat"), "inactive_file 1\ntotal_inactive_file 1000\n");
        let cgroup = system.cgroup().unwrap().unwrap();
        let (_, level) = cgroup.limit().unwrap().unwrap();
        let mut figures = cgroup.figures(level);
        assert_eq!((figures.used().unwrap(), Meter::Cgroup(figures).pressure()), (3000, None));
    }

    #[test]
    fn a_path_of_another_view_stands_for_the_mounted_group() {
        for pathname in ["/../other", "/host/slice/app"] {
            let system = System::new(&format!("0::{pathname}\n"), V2_MOUNT);
            system.write("sys/fs/cgroup/memory.max", "7000\n");
            assert_eq!(system.limit(), Some(7000), "{pathname}");
        }
    }

    #[test]
    fn a_process_in_no_cgroup_has_no_limit() {
        assert_eq!(System::new("", V2_MOUNT).limit(), None);
        assert_eq!(System::new("0::/\n", "").limit(), None);
        assert_eq!(System::new("0::/\n", V2_MOUNT).limit(), None, "the root of the host has no file");
    }

    #[test]
    fn each_text_of_the_kernel_is_read_or_its_file_is_named() {
        let texts = [
            ("proc/self/cgroup", "0::/pod\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("memory.max", "3000\n"),
            ("memory.current", "1500\n"),
            ("memory.stat", "inactive_file 400\n"),
            (
                "memory.pressure",
                "some avg10=12.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
            ),
        ];
        let place = |name: &str| {
            if name.contains('/') { name.to_owned() } else { format!("sys/fs/cgroup/pod/{name}") }
        };
        let system = System::new("", "");
        texts.iter().for_each(|(name, text)| system.write(&place(name), text));
        xtask::corpus::run("cgroups", 1500, |input| {
            let name = input.split(|&byte| byte == b'\n').next().unwrap_or_default();
            let Some((name, valid)) = texts.iter().find(|(known, _)| known.as_bytes() == name) else {
                return;
            };
            let path = system.0.path().join(place(name));
            fs::write(&path, &input[(name.len() + 1).min(input.len())..]).unwrap();
            let is_named = |error: ProcessError| {
                let line = error.to_string();
                assert!(line.starts_with(&format!("read {}: ", path.display())), "{line}");
            };
            match system.cgroup() {
                Ok(Some(cgroup)) => {
                    let level = system.0.path().join("sys/fs/cgroup/pod");
                    _ = cgroup.limit().map_err(is_named);
                    let mut figures = cgroup.figures(&level);
                    _ = figures.used().map_err(is_named);
                    assert!(Meter::Cgroup(figures).pressure().is_none_or(|percent| percent == 12.5
                        || *name == "memory.pressure" && (0.0..=100.0).contains(&percent)));
                }
                Ok(None) => assert!(name.starts_with("proc"), "{name} has no part in where the group lies"),
                Err(error) => is_named(error),
            }
            system.write(&place(name), valid);
        });
    }

    #[test]
    fn a_malformed_file_is_named() {
        let system = System::new("0::/\n", V2_MOUNT);
        system.write("sys/fs/cgroup/memory.max", "12 apples\n");
        let error = system.cgroup().unwrap().unwrap().limit().unwrap_err().to_string();
        assert!(error.contains("sys/fs/cgroup/memory.max: \"12 apples\": invalid digit"), "{error}");
        let system = System::new("nonsense\n", V2_MOUNT);
        let error = system.cgroup().unwrap_err().to_string();
        assert!(error.starts_with("read ") && error.contains("proc/self/cgroup: "), "{error}");
    }
}
