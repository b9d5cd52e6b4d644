//! Registry: the subsystems of one hierarchy.
//!
//! A subsystem is registered for the rest of the hierarchy's life. A hierarchy that is used again has the built-in ones; the stores of
//! the others wait for subsystems that fit them.
//!
//! - I1. Registrations take turns.
//! - I2. A store is in the registry when all nodes there are have an entry in it, and nodes made later get one (`store`, I2).

use std::sync::OnceLock;

use memgroup_percpu::{ArenaError, Records};
use memgroup_sync::Mutex;

use super::SUBSYSTEMS_MAX;
use super::stat::{Reason, RegisterError, Subsystem};
use super::store::{Entry, Store};
use super::updates::Updates;
use crate::config::Config;
use crate::group::GroupId;
use crate::shared::Shared;
use crate::tree::State;

pub(crate) struct Registry {
    stores: [OnceLock<&'static Store>; SUBSYSTEMS_MAX],
    /// Whether each is somebody's.
    registered: Mutex<[bool; SUBSYSTEMS_MAX]>,
    /// The one tree of a hierarchy that has no tree for each subsystem.
    unified: Option<&'static Updates>,
    config: Config,
}

impl Registry {
    /// With the built-in subsystems.
    pub(crate) fn new(config: &Config) -> Result<Registry, ArenaError> {
        // First what can be refused: stores and updates are kept for ever.
        let builtin = config.builtin().iter().map(|&subsystem| Ok((subsystem, records(config, subsystem)?)));
        let builtin = builtin.collect::<Result<Vec<_>, _>>()?;
        let unified = (!config.separate_trees).then(|| updates(config));
        let registry = Registry {
            stores: [const { OnceLock::new() }; SUBSYSTEMS_MAX],
            registered: Mutex::new([false; SUBSYSTEMS_MAX]),
            unified,
            config: *config,
        };
        for (number, (subsystem, records)) in builtin.into_iter().enumerate() {
            let store = registry.make(number, subsystem, records);
            store.updates.join(store);
            let is_first = registry.stores[number].set(store).is_ok();
            debug_assert!(is_first);
            registry.registered.lock()[number] = true;
        }
        Ok(registry)
    }

    fn make(&self, number: usize, subsystem: Subsystem, records: Records) -> &'static Store {
        let updates = self.unified.unwrap_or_else(|| updates(&self.config));
        memgroup_sync::keep(Box::new(Store::new(number, subsystem, updates, records)))
    }

    /// All stores there are, those that wait for a subsystem too.
    pub(crate) fn stores(&self) -> impl Iterator<Item = &'static Store> {
        self.stores.iter().map_while(|store| store.get().copied())
    }

    pub(crate) fn store(&self, number: usize) -> &'static Store {
        self.stores[number].get().expect("a subsystem that is registered has a store")
    }

    /// The registered subsystem with this name.
    pub(crate) fn find(&self, name: &str) -> Option<&'static Store> {
        let registered = self.registered.lock();
        self.stores().find(|store| registered[store.number] && store.subsystem().name == name)
    }

    /// All registered subsystems, in their order.
    pub(crate) fn registered(&self) -> Vec<&'static Store> {
        let registered = self.registered.lock();
        self.stores().filter(|store| registered[store.number]).collect()
    }

    /// The names of all registered subsystems, in their order.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.registered().iter().map(|store| store.subsystem().name).collect()
    }

    /// Registers `subsystem`, or finds it registered.
    pub(super) fn register(
        &self,
        shared: &'static Shared,
        subsystem: Subsystem,
    ) -> Result<&'static Store, RegisterError> {
        subsystem.check()?;
        let mut registered = self.registered.lock();
        let same_name = |store: &&Store| registered[store.number] && store.subsystem().name == subsystem.name;
        if let Some(store) = self.stores().find(same_name) {
            let is_same = store.subsystem() == subsystem;
            return if is_same { Ok(store) } else { Err(subsystem.refuse(Reason::Exists)) };
        }
        let store = match self.waiting(&registered, |words| words == subsystem.stats.len()) {
            Some(store) => Ok(store),
            // A wider one only where there is no room for one of its own.
            None if self.is_full() => self
                .waiting(&registered, |words| words > subsystem.stats.len())
                .ok_or_else(|| subsystem.refuse(Reason::TooMany)),
            None => self.add(shared, subsystem),
        }?;
        store.pass_to(subsystem);
        registered[store.number] = true;
        Ok(store)
    }

    /// The narrowest store that waits for a subsystem and fits.
    fn waiting(
        &self,
        registered: &[bool; SUBSYSTEMS_MAX],
        fits: impl Fn(usize) -> bool,
    ) -> Option<&'static Store> {
        let waiting = self.stores().filter(|store| !registered[store.number] && fits(store.words()));
        waiting.min_by_key(|store| store.words())
    }

    /// Whether there are as many stores as there can be.
    pub(crate) fn is_full(&self) -> bool {
        self.stores().count() == SUBSYSTEMS_MAX
    }

    fn add(&self, shared: &'static Shared, subsystem: Subsystem) -> Result<&'static Store, RegisterError> {
        let number = self.stores().count();
        let records =
            records(&self.config, subsystem).map_err(|error| subsystem.refuse(Reason::Arena(error)))?;
        let store = self.make(number, subsystem, records);
        let tree = shared.tree.lock();
        for node in shared.nodes(&tree) {
            node.stats[number].get_or_init(|| store.entry(node.id.0));
        }
        for node in (0..tree.places()).filter_map(|at| shared.node(GroupId(at))) {
            if tree.state(node.id) != State::Free {
                store.expect(&tree, node.entry(store));
            }
        }
        self.stores[number].get_or_init(|| store);
        drop(tree);
        // Last: a flush that finds it in its tree finds an entry with a side in every group.
        store.updates.join(store);
        Ok(store)
    }

    /// The entries of a node that is being made.
    pub(crate) fn entries(&self, id: GroupId) -> [OnceLock<Entry>; SUBSYSTEMS_MAX] {
        let entries = [const { OnceLock::new() }; SUBSYSTEMS_MAX];
        for store in self.stores() {
            entries[store.number].get_or_init(|| store.entry(id.0));
        }
        entries
    }

    /// The hierarchy has a new user, who registers subsystems of its own.
    pub(crate) fn forget(&self) {
        let mut registered = self.registered.lock();
        for store in self.stores() {
            registered[store.number] = store.number < self.config.builtin().len();
        }
    }
}

fn records(config: &Config, subsystem: Subsystem) -> Result<Records, ArenaError> {
    Records::new(config.arena(config.source.slots()), subsystem.stats.len())
}

fn updates(config: &Config) -> &'static Updates {
    let updates = Updates::new(config.source.slots(), Shared::places_max(config), config.depth_max);
    memgroup_sync::keep(Box::new(updates))
}
