//! Peak readers: the highest usage since each reader last reset it.

use crate::tree::handle::Group;

/// A reader of a group's peak; from [`Group::peak_reader`]. It keeps its group as a handle does,
/// and still reads the peak of a removed group.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// let (mut hourly, mut daily) = (tenant.peak_reader(), tenant.peak_reader());
/// drop(tenant.try_charge(500).unwrap());
/// daily.reset();
/// drop(tenant.try_charge(100).unwrap());
/// hourly.reset();
/// drop(tenant.try_charge(20).unwrap());
/// assert_eq!((hourly.read(), daily.read(), tenant.peak()), (20, 100, 500));
/// ```
pub struct PeakReader {
    group: Group,
    number: Option<u64>,
}

impl PeakReader {
    /// The highest usage since this reader was last reset, in bytes; before its first reset, the
    /// group's peak. Prepaid bytes are a part of usage.
    pub fn read(&self) -> u64 {
        let node = self.group.node();
        match self.number {
            None => node.counter.peak().highest(),
            Some(number) => node.peak_readers().read(&node.counter, number),
        }
    }

    /// Resets the peak to the present usage, for this reader alone. Charges that ended before no
    /// longer count, and charges that begin afterwards do. A charge made at the same moment may.
    pub fn reset(&mut self) {
        let node = self.group.node();
        self.number = Some(node.peak_readers().reset(&node.counter, self.number));
    }

    /// Its group.
    pub fn group(&self) -> &Group {
        &self.group
    }
}

impl Drop for PeakReader {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.group.node().peak_readers().leave(number);
        }
    }
}

impl core::fmt::Debug for PeakReader {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PeakReader").field("group", &self.group.path()).field("peak", &self.read()).finish()
    }
}

/// Peaks.
impl Group {
    /// The highest `usage` so far, in bytes. Only charges that succeeded at every level count.
    pub fn peak(&self) -> u64 {
        self.node().counter.peak().highest()
    }

    /// A reader of the peak that can be reset without an effect on other readers. There may be any
    /// number of them. A charge costs the same with or without readers.
    pub fn peak_reader(&self) -> PeakReader {
        PeakReader { group: self.clone(), number: None }
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::{Config, Hierarchy};

    #[test]
    fn forgets_a_dropped_reader_and_keeps_the_others() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let known = || group.node().peak_readers().len();
        let (mut stays, never_reset) = (group.peak_reader(), group.peak_reader());
        stays.reset();
        for _ in 0..100 {
            let mut goes = group.peak_reader();
            goes.reset();
            goes.reset();
            assert_eq!(known(), 2, "a number for each that was ever reset");
        }
        drop(never_reset);
        assert_eq!(known(), 1);
        drop(group.try_charge(10).unwrap());
        group.peak_reader().reset();
        assert_eq!(stays.read(), 10);
        drop(stays);
        assert_eq!(known(), 0);
    }
}
