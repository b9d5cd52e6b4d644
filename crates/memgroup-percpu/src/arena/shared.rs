//! The process's own arenas, one for each slot count. Objects are made in them unless the caller names another arena.

use std::collections::BTreeMap;

use memgroup_sync::Mutex;

use crate::arena::alloc::Arena;
use crate::arena::config::ArenaConfig;
use crate::arena::out_of_memory::ArenaError;

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
