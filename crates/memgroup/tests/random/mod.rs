//! Numbers for stress tests: the same in each run.

/// xorshift64; the seed is not zero.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// From 1 to 2^`magnitudes`, each order of magnitude as likely as any other.
    #[allow(dead_code, reason = "not every test that has this module draws bytes")]
    pub(crate) fn bytes(&mut self, magnitudes: u64) -> u64 {
        let magnitude = self.below(magnitudes);
        self.below(1 << magnitude) + 1
    }
}
