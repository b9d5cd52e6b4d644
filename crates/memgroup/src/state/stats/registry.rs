//! Registry of the subsystems of one hierarchy.
//!
//! A subsystem is registered for the rest of the hierarchy's life. A hierarchy that is used again
//! starts with the built-in ones. The stores of its other subsystems stay, without a subsystem,
//! and the next subsystem that fits one gets it.
//!
//! - I1. One subsystem is registered at a time.
//! - I2. A store is in the registry when every node has an entry in it, and a node that is made
//!   later gets one (`store`, I2).

use std::sync::OnceLock;

use memgroup_percpu::{ArenaError, Records};
use memgroup_sync::Mutex;

use crate::state::config::Config;
use crate::state::stats::SUBSYSTEMS_MAX;
use crate::state::stats::stat::{Reason, RegisterError, Subsystem};
use crate::state::stats::store::StatStore;
use crate::state::stats::update_tree::UpdateTree;

pub(crate) struct Registry {
    stores: [OnceLock<&'static StatStore>; SUBSYSTEMS_MAX],
    /// Held by the thread that registers a subsystem. It has the stores of registrations that
    /// failed, for the next ones: a store is never freed, so they would be lost. There is at
    /// most one for each number and width.
    registering: Mutex<Vec<&'static StatStore>>,
    /// The update tree, if all subsystems of the hierarchy share one.
    shared_tree: Option<&'static UpdateTree>,
    /// What new stores are made with.
    config: Mutex<Config>,
}

impl Registry {
    /// Makes a registry with the built-in subsystems.
    pub(crate) fn new(config: &Config) -> Result<Registry, ArenaError> {
        // Records come first, because they can be refused and stores are never freed.
        let builtin = config.builtin().iter().map(|&subsystem| Ok((subsystem, records(config, subsystem)?)));
        let builtin = builtin.collect::<Result<Vec<_>, _>>()?;
        let registry = Registry {
            stores: [const { OnceLock::new() }; SUBSYSTEMS_MAX],
            registering: Mutex::new(Vec::new()),
            shared_tree: (!config.separate_trees).then(|| update_tree(config)),
            config: Mutex::new(*config),
        };
        for (number, (subsystem, records)) in builtin.into_iter().enumerate() {
            let store = registry.make_store(number, subsystem, records);
            store.set_subsystem(Some(subsystem));
            store.updates.lock().join(store);
            let is_first = registry.stores[number].set(store).is_ok();
            debug_assert!(is_first);
        }
        Ok(registry)
    }

    fn make_store(&self, number: usize, subsystem: Subsystem, records: Records) -> &'static StatStore {
        let updates = self.shared_tree.unwrap_or_else(|| update_tree(&self.config.lock()));
        memgroup_sync::keep(Box::new(StatStore::new(number, subsystem.stats.len(), updates, records)))
    }

    /// All stores, those without a subsystem too.
    pub(crate) fn stores(&self) -> impl Iterator<Item = &'static StatStore> + Clone {
        self.stores.iter().map_while(|store| store.get().copied())
    }

    /// The update trees of all stores: one each, or the single one.
    pub(crate) fn trees(&self) -> impl Iterator<Item = &'static UpdateTree> {
        let own = self.stores().filter(|_| self.shared_tree.is_none()).map(|store| store.updates);
        self.shared_tree.into_iter().chain(own)
    }

    /// The update tree of all stores; `None` where each store has its own.
    pub(crate) fn shared_tree(&self) -> Option<&'static UpdateTree> {
        self.shared_tree
    }

    pub(crate) fn store(&self, number: usize) -> &'static StatStore {
        self.stores[number].get().expect("a registered subsystem has a store")
    }

    /// The registered subsystems with their stores, in the order of the stores.
    pub(crate) fn registered(&self) -> impl Iterator<Item = (Subsystem, &'static StatStore)> {
        self.stores().filter_map(|store| store.subsystem().map(|subsystem| (subsystem, store)))
    }

    /// The store of the registered subsystem with this name.
    pub(crate) fn find(&self, name: &str) -> Option<&'static StatStore> {
        self.registered().find(|(subsystem, _)| subsystem.name == name).map(|(_, store)| store)
    }

    /// Registers `subsystem`, or returns the store of the same one registered before.
    ///
    /// `attach` makes an entry in a new store for each group. Before it frees the tree lock it
    /// calls the function that it is given, which publishes the store. It returns whether the
    /// system had memory for the entries. `join` adds the store to its update tree, with
    /// the turn to flush.
    pub(crate) fn register(
        &self,
        subsystem: Subsystem,
        attach: impl FnOnce(&'static StatStore, &dyn Fn()) -> bool,
        join: impl FnOnce(&'static StatStore),
    ) -> Result<&'static StatStore, RegisterError> {
        subsystem.check()?;
        let mut failed = self.registering.lock();
        if let Some(store) = self.find(subsystem.name) {
            let is_same = store.subsystem() == Some(subsystem);
            return if is_same { Ok(store) } else { Err(subsystem.refuse(Reason::Exists)) };
        }
        let free = |fits: fn(usize, usize) -> bool| {
            let fits = |store: &&StatStore| {
                store.subsystem().is_none() && fits(store.words(), subsystem.stats.len())
            };
            self.stores().filter(fits).min_by_key(|store| store.words())
        };
        let store = match free(|words, stats| words == stats) {
            Some(store) => store,
            // A wider store only where no new one can be made.
            None if self.is_full() => {
                free(|words, stats| words > stats).ok_or_else(|| subsystem.refuse(Reason::TooMany))?
            }
            None => self.add(&mut failed, subsystem, attach, join)?,
        };
        store.set_subsystem(Some(subsystem));
        Ok(store)
    }

    /// Returns whether no store can be added.
    pub(crate) fn is_full(&self) -> bool {
        self.stores().count() == SUBSYSTEMS_MAX
    }

    fn add(
        &self,
        failed: &mut Vec<&'static StatStore>,
        subsystem: Subsystem,
        attach: impl FnOnce(&'static StatStore, &dyn Fn()) -> bool,
        join: impl FnOnce(&'static StatStore),
    ) -> Result<&'static StatStore, RegisterError> {
        let (number, words) = (self.stores().count(), subsystem.stats.len());
        let store = match failed.iter().position(|store| (store.number, store.words()) == (number, words)) {
            Some(at) => failed.swap_remove(at),
            None => {
                let records = records(&self.config.lock(), subsystem);
                let records = records.map_err(|error| subsystem.refuse(Reason::Arena(error)))?;
                self.make_store(number, subsystem, records)
            }
        };
        if !attach(store, &|| _ = self.stores[number].set(store)) {
            failed.push(store);
            return Err(subsystem.refuse(Reason::OutOfMemory));
        }
        // Last, so that a flush which finds the store in its tree finds flushed values in every
        // group.
        join(store);
        Ok(store)
    }

    /// Unregisters all but the built-in subsystems, for the hierarchy's next user, who has this
    /// configuration of the same shape.
    pub(crate) fn forget(&self, config: &Config) {
        *self.config.lock() = *config;
        self.stores().skip(config.builtin().len()).for_each(|store| store.set_subsystem(None));
        for store in self.stores().chain(self.registering.lock().iter().copied()) {
            store.records.arena().set_float(config.float_bytes, config.decay);
        }
    }
}

fn records(config: &Config, subsystem: Subsystem) -> Result<Records, ArenaError> {
    Records::new(config.arena(config.source.slots()), subsystem.stats.len())
}

fn update_tree(config: &Config) -> &'static UpdateTree {
    let tree = UpdateTree::new(config.source.slots(), config.shape().places);
    memgroup_sync::keep(Box::new(tree))
}
