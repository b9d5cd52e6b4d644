//! Base: child processes, errors, early end, latencies, progress lines, units, fresh files, the
//! user. It imports no other folder of `run`.

pub(crate) mod child;
pub(crate) mod error;
pub(crate) mod fresh;
pub(crate) mod latencies;
pub(crate) mod progress;
pub(crate) mod stop;
pub(crate) mod units;
pub(crate) mod user;

/// Waits for a thread. If it panicked, the panic continues here.
pub(crate) fn joined<T>(handle: std::thread::ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
