//! Parts: the state that the layers above the tree keep for each group and for each hierarchy, made when it is first needed.
//!
//! The tree knows the number of the parts and nothing else of them. So a layer's state may refer to groups, while the tree
//! refers to no layer above it. Each layer declares its [`Key`]s. Most groups have no part at all.

use core::any::Any;
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::OnceLock;

use memgroup_sync::depth;

/// The state of one layer, in a group or in a hierarchy.
pub(crate) trait Part: Any + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// The owner's memory is given to a new group or hierarchy. The caller holds the tree lock.
    fn reset(&self) {}
}

/// Which part of an owner, and its type. Each owner's keys have different numbers.
pub(crate) struct Key<T> {
    number: usize,
    make: fn() -> T,
}

impl<T: Part> Key<T> {
    pub(crate) const fn new(number: usize, make: fn() -> T) -> Key<T> {
        Key { number, make }
    }
}

/// The parts of one owner.
pub(crate) struct Parts([OnceLock<Box<dyn Part>>; Parts::MOST]);

impl Parts {
    /// The largest number of parts that one owner has.
    const MOST: usize = 10;

    pub(crate) fn new() -> Parts {
        Parts([const { OnceLock::new() }; Parts::MOST])
    }

    /// The part, which is made if the owner has none yet.
    pub(crate) fn get<T: Part>(&self, key: &Key<T>) -> &T {
        match self.find(key) {
            Some(part) => part,
            None => self.make(key),
        }
    }

    /// Within the engine: an allocator that charges must not ask for the same part meanwhile.
    #[cold]
    fn make<T: Part>(&self, key: &Key<T>) -> &T {
        let _inside = depth::enter();
        downcast(&**self.0[key.number].get_or_init(|| Box::new((key.make)())))
    }

    /// The part, if the owner has it.
    #[inline]
    pub(crate) fn find<T: Part>(&self, key: &Key<T>) -> Option<&T> {
        self.0[key.number].get().map(|part| downcast(&**part))
    }

    pub(crate) fn reset(&self) {
        self.0.iter().filter_map(OnceLock::get).for_each(|part| part.reset());
    }
}

fn downcast<T: Part>(part: &dyn Part) -> &T {
    (part as &dyn Any).downcast_ref().expect("each part of an owner has a number of its own")
}
