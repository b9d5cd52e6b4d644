//! The proof that this thread is the only one of its process.
//!
//! - I1. If the kernel counts one thread, it is the calling one. Nothing else runs code of the
//!   process until this thread starts a thread.
//!
//! The kernel updates the number of threads atomically, so nothing has to walk a changing list. It
//! counts a thread from before its first instruction until after its last one. A thread that was
//! joined may be counted for a moment longer, which is why a larger number is read again. Kernel
//! threads that serve an `io_uring` are counted as well, which errs on the safe side.
//!
//! The number does not cover what only `unsafe` code can make: a handler of signals, and a child of
//! `clone` with `CLONE_VM` and without `CLONE_VFORK` (the parent of a `vfork` sleeps). Such a
//! handler or child must not use SQLite anyway.

use std::thread;
use std::time::Duration;

/// How often the number is read before we conclude that there is another thread, and the time
/// between two reads.
const READS: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(1);

/// Why the calling thread may not be the only one.
#[derive(Debug)]
pub(crate) enum NotAlone {
    /// The process has this many threads.
    Others(u64),
    /// The number is unknown: on systems other than Linux, and without `/proc`.
    Unknown(String),
}

/// Proves that the calling thread is the only one of the process (I1).
pub(crate) fn prove_alone() -> Result<(), NotAlone> {
    let mut count = count()?;
    for _ in 1..READS {
        if count == 1 {
            break;
        }
        thread::sleep(BETWEEN);
        count = self::count()?;
    }
    if count == 1 { Ok(()) } else { Err(NotAlone::Others(count)) }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn count() -> Result<u64, NotAlone> {
    const PATH: &str = "/proc/self/status";
    let unknown = |why: String| NotAlone::Unknown(format!("read {PATH}: {why}"));
    let text = std::fs::read_to_string(PATH).map_err(|error| unknown(error.to_string()))?;
    parse(&text).ok_or_else(|| unknown("it has no number of threads".to_owned()))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn count() -> Result<u64, NotAlone> {
    Err(NotAlone::Unknown("only Linux counts them in a file".to_owned()))
}

/// The number of threads in the text of `/proc/self/status`.
#[cfg(any(test, target_os = "linux", target_os = "android"))]
fn parse(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Threads:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn reads_the_number_of_threads_and_nothing_that_looks_like_it() {
        let text = |line: &str| format!("Name:\tThreads: 1\nUmask:\t0022\n{line}SigQ:\t0/1\n");
        assert_eq!(parse(&text("Threads:\t12\n")), Some(12));
        assert_eq!(parse(&text("Threads:\t1\n")), Some(1));
        for malformed in ["", "Threads:\n", "Threads:\t-1\n", "Threads:\tone\n", "Threads:\t1 1\n"] {
            assert_eq!(parse(&text(malformed)), None, "{malformed:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn counts_the_threads_of_the_test() {
        // The test's own, and the one that runs it.
        assert!(matches!(super::count(), Ok(count) if count >= 2));
    }
}
