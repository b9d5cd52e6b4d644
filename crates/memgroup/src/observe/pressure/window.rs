//! Window: the growth of a total in a time of fixed length that ends now.
//!
//! As the kernel's: windows follow each other, and the growth of the last one counts for as much
//! of it as the time that ends now covers. The total is told at each change of its line, so
//! between two changes it grows steadily or not at all.
//!
//! - B1. The growth in the last window counts as steady. So the result is off by at most a quarter
//!   of the window.

/// The growth in one window; see the top of this file.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    size_nanos: u64,
    /// The beginning of the present window, and the total then.
    start: (u64, u64),
    /// The growth in the window before.
    before: u64,
    last: (u64, u64),
}

impl Window {
    /// A window of `size_nanos`, without growth until `now`.
    pub(crate) fn new(size_nanos: u64, now: u64, total: u64) -> Window {
        Window { size_nanos, start: (now, total), before: 0, last: (now, total) }
    }

    /// Takes in the total at `now`.
    pub(crate) fn see(&mut self, now: u64, total: u64) {
        // Where two threads changed the line, the later change may come first.
        let to = (now.max(self.last.0), total.max(self.last.1));
        let windows = (to.0 - self.start.0) / self.size_nanos;
        if windows > 0 {
            let start = self.start.0 + windows * self.size_nanos;
            let (_, from) =
                if windows == 1 { self.start } else { between(self.last, to, start - self.size_nanos) };
            self.start = between(self.last, to, start);
            self.before = self.start.1 - from;
        }
        self.last = to;
    }

    /// The last total.
    pub(crate) fn total(&self) -> u64 {
        self.last.1
    }

    /// The growth in the window that ends at the last total.
    pub(crate) fn growth(&self) -> u64 {
        let (now, total) = self.last;
        let left = self.size_nanos - (now - self.start.0);
        let before = u128::from(self.before) * u128::from(left) / u128::from(self.size_nanos);
        total - self.start.1 + before as u64
    }
}

/// The point at `at` on the line between two points, each a time and a total.
fn between(from: (u64, u64), to: (u64, u64), at: u64) -> (u64, u64) {
    let (passed, of) = (at - from.0, (to.0 - from.0).max(1));
    (at, from.1 + (u128::from(to.1 - from.1) * u128::from(passed) / u128::from(of)) as u64)
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::observe::pressure::window::*;

    const SIZE: u64 = 1000;

    #[test]
    fn growth_comes_and_goes_with_the_window() {
        let mut window = Window::new(SIZE, 5000, 70);
        let mut growth = |now, total| {
            window.see(now, total);
            window.growth()
        };
        assert_eq!(growth(5000, 70), 0);
        assert_eq!(growth(5300, 370), 300, "on throughout");
        assert_eq!(growth(5900, 370), 300, "off since");
        assert_eq!(growth(6000, 370), 300);
        assert_eq!(growth(6500, 370), 150, "half of the window before counts");
        assert_eq!(growth(6990, 370), 3);
        assert_eq!(growth(7000, 370), 0);
        assert_eq!(growth(90_000, 370), 0, "no look for long");
        assert_eq!(growth(95_000, 5370), SIZE, "on for longer than the window");
        assert_eq!(growth(94_000, 5370), SIZE, "a late look changes nothing");
    }

    #[test]
    fn growth_is_exact_to_within_a_quarter() {
        let mut random = 88_172_645_463_325_252_u64;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for _ in 0..200 {
            let began = draw(5000);
            let mut window = Window::new(SIZE, began, 0);
            // The exact total at each moment.
            let mut totals = vec![0_u64; began as usize + 1];
            let mut is_on = false;
            while totals.len() < 9000 {
                let most = 1 + 10_u64.pow(draw(4) as u32);
                for _ in 0..=draw(most) {
                    totals.push(totals[totals.len() - 1] + u64::from(is_on));
                }
                is_on = !is_on;
                let now = totals.len() - 1;
                window.see(now as u64, totals[now]);
                let exact = totals[now] - totals[now.saturating_sub(SIZE as usize).max(began as usize)];
                let off = window.growth().abs_diff(exact);
                assert!(off <= SIZE / 4 + 1, "{} instead of {exact} at {now}", window.growth());
            }
        }
    }
}
