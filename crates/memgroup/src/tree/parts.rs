//! Parts: the state that the layers above the tree keep for each group and for each hierarchy.
//!
//! The tree knows the number of the parts and nothing else of them. So a layer's state may refer to groups, while the tree
//! refers to no layer above it. Each layer declares its [`Key`]s; the lifecycle makes every part together with its owner.

use core::any::Any;
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::OnceLock;

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

    /// Makes the part, once for each owner.
    pub(crate) fn make<T: Part>(&self, key: &Key<T>) {
        let is_first = self.0[key.number].set(Box::new((key.make)())).is_ok();
        assert!(is_first, "two parts of one owner have the number {}", key.number);
    }

    #[inline]
    pub(crate) fn get<T: Part>(&self, key: &Key<T>) -> &T {
        let part: Option<&dyn Any> = self.0[key.number].get().map(|part| &**part as &dyn Any);
        part.and_then(<dyn Any>::downcast_ref).expect("the owner was made with all its parts")
    }

    pub(crate) fn reset(&self) {
        self.0.iter().filter_map(OnceLock::get).for_each(|part| part.reset());
    }
}
