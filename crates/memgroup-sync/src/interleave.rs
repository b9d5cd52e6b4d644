//! Points at which a stress test may lose the processor.
//!
//! Windows of a few instructions are hardly ever hit on a machine with few cores. With `--cfg memgroup_yields` a thread
//! that passes a [`point`] gives up its processor now and then, so that others run in the window; in every other build
//! the call is nothing.
//!
//! ```text
//! RUSTFLAGS="--cfg memgroup_yields" cargo test --release -p memgroup --test stress
//! ```

/// Here another thread may come between.
#[cfg(not(memgroup_yields))]
#[inline(always)]
pub fn point() {}

/// Here another thread may come between: yields one time in four, several times in a row one time in sixty-four.
#[cfg(memgroup_yields)]
pub fn point() {
    use std::cell::Cell;

    std::thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0) };
    }
    // Seeded by where the thread-local lies, which differs from thread to thread; xorshift.
    let mut state = STATE.get();
    if state == 0 {
        state = STATE.with(|cell| std::ptr::from_ref(cell) as u64) | 1;
    }
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
