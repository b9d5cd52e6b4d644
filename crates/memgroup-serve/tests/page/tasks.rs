//! Tasks: processes and threads, as `/proc` lists them.

use std::fs;

/// A running process or thread: its id, the id above it, its command line, and the CPU time that it
/// has taken.
pub(crate) struct Task {
    pub(crate) id: u32,
    above: u32,
    pub(crate) command: String,
    pub(crate) seconds: f64,
}

/// The tasks of a folder of `/proc`.
pub(crate) fn tasks(folder: &str) -> Vec<Task> {
    let folders = fs::read_dir(folder).unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let task = |path: std::path::PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        let (before, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
        let command = fs::read_to_string(path.join("cmdline")).ok().filter(|_| folder == "/proc");
        let command = command.unwrap_or_else(|| before.to_owned());
        // The kernel counts hundredths of a second.
        Some(Task {
            id: before.split(' ').next()?.parse().ok()?,
            above: fields[1].parse().ok()?,
            command,
            seconds: ticks as f64 / 100.0,
        })
    };
    folders.filter_map(task).collect()
}

/// All processes below one.
pub(crate) fn below(process: u32) -> Vec<Task> {
    let all = tasks("/proc");
    let mut family = vec![process];
    let mut at = 0;
    while let Some(&above) = family.get(at) {
        family.extend(all.iter().filter(|task| task.above == above).map(|task| task.id));
        at += 1;
    }
    all.into_iter().filter(|task| family[1..].contains(&task.id)).collect()
}
