//! Points at which a stress test may lose the processor.
//!
//! Another thread hardly ever runs within a window of a few instructions on a machine with few
//! cores. With `--cfg memgroup_yields` a thread that passes a [`point`] sometimes yields its
//! processor, so that others run in the window. In every other build the call does nothing.
//!
//! ```text
//! RUSTFLAGS="--cfg memgroup_yields" cargo test --release -p memgroup --test engine stress
//! ```

/// Another thread may run here.
#[cfg(not(memgroup_yields))]
#[inline(always)]
pub fn point() {}

/// Another thread may run here: yields one time in four, and several times in a row one time in
/// sixty-four.
#[cfg(memgroup_yields)]
pub fn point() {
    use std::cell::Cell;

    std::thread_local! {
        // Seeded by an address on the stack, which differs from thread to thread.
        static STATE: Cell<u64> = Cell::new(std::ptr::from_ref(&Cell::new(0_u8)) as u64 | 1);
    }
    // Xorshift.
    let mut state = STATE.get();
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    STATE.set(state);
    let yields = match state % 64 {
        0 => 8,
        1..16 => 1,
        _ => 0,
    };
    for _ in 0..yields {
        std::thread::yield_now();
    }
}
