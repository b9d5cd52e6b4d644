//! Counts the files, functions and types of this project that a charge passes. Runs a charge one
//! instruction at a time, and looks up which functions the instructions belong to, inlined or not.
//!
//! ```sh
//! cargo run --release --config profile.release.debug=2 -p memgroup --example path
//! cargo run --release --config profile.release.debug=2 -p memgroup --example path -- --list
//! ```
//!
//! Needs Linux on x86-64, and `addr2line`, which comes with the C compiler. It counts what the
//! compiler left: functions that it has evaluated at compile time have no instructions.

#![allow(unsafe_code, reason = "it traces a process of its own")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
    linux::main();
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    eprintln!("path steps through its instructions with ptrace, on Linux and x86-64 only");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod linux {
    use std::collections::{BTreeMap, BTreeSet};
    use std::hint::black_box;
    use std::io::Write;
    use std::process::{Command, Stdio};

    use memgroup::{Config, Hierarchy};

    const MODES: [&str; 3] = ["hit", "refusal", "exact"];

    pub(crate) fn main() {
        match std::env::args().nth(1).as_deref() {
            Some(mode) if MODES.contains(&mode) => charge(mode),
            option => MODES.iter().for_each(|mode| report(mode, option == Some("--list"))),
        }
    }

    /// Makes the same charge three times. The last one stands between two stops of the process.
    fn charge(mode: &str) {
        let config = if mode == "exact" { Config::new().stock_cap_bytes(0) } else { Config::new() };
        let hierarchy = Hierarchy::new(config).expect("the system has memory for it");
        let tenant = hierarchy.create("/tenants").and_then(|tenants| tenants.create("alice"));
        let group = tenant.and_then(|tenant| tenant.create("query")).expect("nothing limits groups");
        let held = group.try_charge(1 << 20).expect("nothing limits bytes");
        if mode == "refusal" {
            group.set_max(1 << 20).expect("any number is a limit");
        }
        for round in 0..3 {
            stop_in(round == 2);
            let charge = black_box(&group).try_charge(black_box(4096));
            stop_in(round == 2);
            assert_eq!(black_box(charge).is_err(), mode == "refusal");
        }
        drop(held);
    }

    fn stop_in(last: bool) {
        if last {
            // SAFETY: a signal that stops the process changes nothing in it.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    }

    /// The functions, each with the file in which it is.
    type Found = BTreeMap<String, String>;

    fn report(mode: &str, lists: bool) {
        let exe = std::env::current_exe().expect("the program has a path").display().to_string();
        let found = functions(&exe, &steps(&exe, mode));
        let files: BTreeSet<&str> = found.values().map(String::as_str).collect();
        let types: BTreeSet<&str> = found.keys().filter_map(|function| type_of(function)).collect();
        println!("{mode}: {} files, {} functions, {} types", files.len(), found.len(), types.len());
        if lists {
            let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            found.iter().for_each(|(function, file)| by_file.entry(file).or_default().push(function));
            for (file, functions) in by_file {
                println!("  {file}\n    {}", functions.join("\n    "));
            }
            println!("  types: {}", types.into_iter().collect::<Vec<_>>().join(", "));
        }
    }

    /// Returns the addresses of the instructions between the two stops of a child, as the file of
    /// the program counts them.
    fn steps(exe: &str, mode: &str) -> BTreeSet<u64> {
        let arguments = [exe, mode].map(|argument| std::ffi::CString::new(argument).expect("it has no zero"));
        let pointers = [arguments[0].as_ptr(), arguments[1].as_ptr(), std::ptr::null()];
        // SAFETY: the child calls nothing but functions that are safe after a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            // SAFETY: as above; the strings end with a zero, and the list of them with a null.
            unsafe { libc::execv(pointers[0], pointers.as_ptr()) };
            // SAFETY: as above.
            unsafe { libc::_exit(127) };
        }
        assert!(child > 0, "the system starts no process: {}", std::io::Error::last_os_error());
        let base = |maps: String| {
            let first = maps.lines().find(|line| line.ends_with(exe)).expect("the program is mapped");
            u64::from_str_radix(first.split('-').next().expect("an address"), 16).expect("an address")
        };
        // The first stop is that of the exec.
        assert_eq!(wait(child), Some(libc::SIGTRAP), "the program was not started");
        resume(child, libc::PTRACE_CONT);
        assert_eq!(wait(child), Some(libc::SIGSTOP), "the program does not come to its charge");
        let base = base(std::fs::read_to_string(format!("/proc/{child}/maps")).expect("the child lives"));
        let mut seen = BTreeSet::new();
        loop {
            resume(child, libc::PTRACE_SINGLESTEP);
            match wait(child) {
                Some(libc::SIGTRAP) => seen.insert(instruction(child).wrapping_sub(base)),
                Some(libc::SIGSTOP) => break,
                other => panic!("the program ended within its charge, with {other:?}"),
            };
        }
        resume(child, libc::PTRACE_CONT);
        assert_eq!(wait(child), None, "the program does not end");
        seen
    }

    fn resume(child: libc::pid_t, how: libc::c_uint) {
        // SAFETY: the child is this process's own, and stopped.
        let resumed = unsafe { libc::ptrace(how, child, 0, 0) };
        assert_eq!(resumed, 0, "ptrace is not allowed here: {}", std::io::Error::last_os_error());
    }

    /// Waits until the child stops, and returns the signal; `None` if it has ended.
    fn wait(child: libc::pid_t) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` lives.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child, "the child is gone");
        libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
    }

    /// Returns the address of the child's next instruction.
    fn instruction(child: libc::pid_t) -> u64 {
        // SAFETY: zeros are a valid value of a struct of integers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the child is stopped, and `registers` lives.
        let read = unsafe { libc::ptrace(libc::PTRACE_GETREGS, child, 0, &raw mut registers) };
        assert_eq!(read, 0, "the registers cannot be read: {}", std::io::Error::last_os_error());
        registers.rip
    }

    /// Returns the functions of this project to which the instructions belong.
    fn functions(exe: &str, addresses: &BTreeSet<u64>) -> Found {
        let mut addr2line = Command::new("addr2line")
            .args(["--inlines", "--functions", "--demangle", "--addresses", "--exe", exe])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("addr2line is missing: it comes with binutils");
        let mut input = addr2line.stdin.take().expect("it was asked for");
        let text: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
        let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
        let output = addr2line.wait_with_output().expect("addr2line ends");
        writer.join().expect("it does not panic").expect("addr2line reads its input");
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = output.lines().filter(|line| !line.starts_with("0x"));
        let mut found = Found::new();
        while let (Some(function), Some(place)) = (lines.next(), lines.next()) {
            // A closure belongs to its function, and what a derive has made is in no file.
            let function = function.split("::{{closure}}").next().expect("a name");
            let folders = ["memgroup/src/", "memgroup-percpu/src/", "memgroup-sync/src/"];
            if let Some(at) = folders.iter().find_map(|folder| place.find(&format!("crates/{folder}")))
                && function.starts_with("memgroup")
            {
                let file = place[at..].split(':').next().expect("a file");
                // Where the compiler has dropped a call, its lines seem to belong to the caller.
                let is_own = |file: &str| module(file).is_some_and(|module| function.contains(&module));
                if is_own(file) {
                    found.insert(function.to_owned(), file.to_owned());
                }
            }
        }
        found
    }

    /// Returns the path of the module that a file has, as it stands in the names of functions.
    fn module(file: &str) -> Option<String> {
        let (name, path) = file.strip_prefix("crates/")?.split_once("/src/")?;
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("lib");
        Some(format!("{}::{}", name.replace('-', "_"), path.replace('/', "::")))
    }

    /// Returns the type to which a function belongs.
    fn type_of(function: &str) -> Option<&str> {
        let path = function.split("::").collect::<Vec<_>>();
        let name = path.iter().rev().skip(1).find(|part| !part.starts_with('{'))?;
        let name = name.trim_start_matches('<').split(['<', '>']).next()?;
        name.starts_with(char::is_uppercase).then_some(name)
    }
}
