//! The arenas that objects are made in unless one is named: one for each slot count, for the whole process.

use std::collections::BTreeMap;

use memgroup_sync::Mutex;

use crate::arena::out_of_memory::ArenaError;
use crate::arena::{Arena, ArenaConfig};

memgroup_sync::global! {
    static ARENAS: Mutex<BTreeMap<usize, &'static Arena>> = Mutex::new(BTreeMap::new());
}

impl Arena {
    /// The process's arena for this many slots, with the defaults of [`ArenaConfig`]; made on first use, never dropped.
    ///
    /// # Errors
    ///
    /// [`ArenaError`] if `slots` is not within 1..=8192.
    pub fn shared(slots: usize) -> Result<&'static Self, ArenaError> {
        let known = ARENAS.lock().get(&slots).copied();
        if let Some(arena) = known {
            return Ok(arena);
        }
        let made = Box::new(Self::new(ArenaConfig::new(slots))?);
        let mut arenas = ARENAS.lock();
        Ok(*arenas.entry(slots).or_insert_with(|| Box::leak(made)))
    }
}
