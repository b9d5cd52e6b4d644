//! TreeCopy: values of one subsystem in many groups as they were at one moment, while they are copied in pieces.
//!
//! - I1. The moment is the one at which the copy becomes that of the update tree. From then on a thread with the turn to flush saves the values
//!   of a group before it writes to them. Loom: `copies_a_tree_of_one_moment`.
//! - I2. The values of each group are saved once: with their piece, or by the first thread that writes to them.
//! - I3. Groups that are copied are held, so their places are not given away. Values are saved into memory of the copy's result, and nothing is
//!   allocated. A copy that a panic left behind is saved into until the next one replaces it.

use std::mem;

use crate::base::mutation::{self, Mutation};
use crate::state::stats::store::{StatEntry, StatStore};

/// The row of a place that is saved, or that is not copied.
const NONE: u32 = u32::MAX;

/// The values that were saved so far.
pub(crate) struct TreeCopy {
    store: &'static StatStore,
    /// For each place, the row that its values are saved to.
    rows: Vec<u32>,
    /// For each row the group's own values, then those of its subtree.
    values: Vec<i64>,
    stats: usize,
}

impl TreeCopy {
    /// A copy of the first values, so many, of the groups in these places. It allocates all memory that is needed.
    pub(crate) fn new(
        store: &'static StatStore,
        stats: usize,
        places: impl ExactSizeIterator<Item = u32> + Clone,
    ) -> TreeCopy {
        let values = vec![0; places.len() * 2 * stats];
        let mut rows = vec![NONE; places.clone().max().map_or(0, |last| last as usize + 1)];
        for (row, place) in places.enumerate() {
            rows[place as usize] = row as u32;
        }
        TreeCopy { store, rows, values, stats }
    }

    /// Saves the values of a group, unless they are saved or not copied. The caller has the turn to flush.
    pub(crate) fn save(&mut self, place: u32, entry: &StatEntry) {
        if !entry.is_of(self.store) {
            return;
        }
        let Some(row) = self.rows.get_mut(place as usize).map(|row| mem::replace(row, NONE)) else { return };
        if row != NONE {
            let row = self.values[row as usize * 2 * self.stats..].split_at_mut(2 * self.stats).0;
            entry.copy_both(row);
        }
    }

    /// As `save`, by a thread that is about to write to the values.
    #[inline]
    pub(crate) fn save_before_write(copy: Option<&mut TreeCopy>, place: u32, entry: &StatEntry) {
        if let Some(copy) = copy.filter(|_| !mutation::active(Mutation::WriterSavesNothing)) {
            copy.save(place, entry);
        }
    }

    /// All values, group by group.
    pub(crate) fn into_values(self) -> Vec<i64> {
        self.values
    }
}
