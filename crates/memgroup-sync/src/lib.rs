//! Atomics, locks and threads of memgroup: the standard library's, or loom's for model checking
