//! Window: the growth of a total in a time of fixed length that ends now.
//!
//! The total is kept as it was at the last eleven tenths of the window. The window is told each change of its line. So between two changes the total
//! grew steadily or not at all, and its value at a tenth in between is known.
//!
//! - I1. `value(t)` is exact for every t since `began` at which the line did not change in the tenth of the window around t.
//! - B1. Where it did, the growth is off by less than a tenth of the window. The tenth in which the window begins counts as steady growth.

/// Tenths kept: those of the window, the one in which it begins, and the present one.
const KEPT: usize = 12;

/// The growth in one window; see the top of this file.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    tenth_nanos: u64,
    /// The total at the begin of each tenth since `began`, by the tenth's number.
    marks: [u64; KEPT],
    began: (u64, u64),
    last: (u64, u64),
}

impl Window {
    /// A window of `size_nanos`, without growth until `now`.
    pub(crate) fn new(size_nanos: u64, now: u64, total: u64) -> Window {
        Window { tenth_nanos: size_nanos / 10, marks: [total; KEPT], began: (now, total), last: (now, total) }
    }

    /// Takes in the total at `now`.
    pub(crate) fn see(&mut self, now: u64, total: u64) {
        let (before, from) = self.last;
        if now <= before {
            // Two threads changed the line, and the later change came here first.
            self.last.1 = from.max(total);
            return;
        }
        let total = total.max(from);
        let (first, end) = (before / self.tenth_nanos + 1, now / self.tenth_nanos);
        for number in first.max(end.saturating_sub(KEPT as u64 - 1))..=end {
            let at = number * self.tenth_nanos;
            self.marks[number as usize % KEPT] = between(self.last, (now, total), at);
        }
        self.last = (now, total);
    }

    /// The last total.
    pub(crate) fn total(&self) -> u64 {
        self.last.1
    }

    /// The growth in the window that ends at the last total.
    pub(crate) fn growth(&self) -> u64 {
        let (now, total) = self.last;
        let start = now.saturating_sub(10 * self.tenth_nanos);
        total - self.value(start)
    }

    /// The total at `at`, at most a window ago.
    fn value(&self, at: u64) -> u64 {
        if at <= self.began.0 {
            return self.began.1;
        }
        let mark = |number: u64| (number * self.tenth_nanos, self.marks[number as usize % KEPT]);
        let number = at / self.tenth_nanos;
        let from = Some(mark(number)).filter(|from| from.0 >= self.began.0).unwrap_or(self.began);
        let to = Some(mark(number + 1)).filter(|to| to.0 <= self.last.0);
        between(from, to.unwrap_or(self.last), at)
    }
}

/// The total at `at` on the line between two points, each a time and a total.
fn between(from: (u64, u64), to: (u64, u64), at: u64) -> u64 {
    let (passed, of) = (at.saturating_sub(from.0), to.0 - from.0);
    let part =
        if of == 0 { 0 } else { u128::from(to.1 - from.1) * u128::from(passed.min(of)) / u128::from(of) };
    from.1 + part as u64
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
        assert_eq!(growth(6150, 370), 150, "half of it is in the window");
        assert_eq!(growth(6300, 370), 0);
        assert_eq!(growth(90_000, 370), 0, "no look for long");
        assert_eq!(growth(95_000, 5370), SIZE, "on for longer than the window");
        assert_eq!(growth(94_000, 5370), SIZE, "a late look changes nothing");
    }

    #[test]
    fn growth_is_exact_to_within_a_tenth() {
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
                assert!(off <= SIZE / 10, "{} instead of {exact} at {now}", window.growth());
            }
        }
    }
}
