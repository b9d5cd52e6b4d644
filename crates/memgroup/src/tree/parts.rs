//! Parts: the state that the layers above the tree keep for each group and for each hierarchy,
//! made when it is first needed.
//!
//! The tree knows the names of the parts and nothing else of them. So a layer's state may refer to
//! groups, while the tree refers to no layer above it. Each layer declares the [`Key`] of its
//! part. Most groups have no part at all.

use core::any::Any;
use core::marker::PhantomData;
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::OnceLock;

use memgroup_sync::depth;

/// The parts that go with a group's node.
#[derive(Clone, Copy)]
pub(crate) enum NodePart {
    Triggers,
    Used,
    PeakReaders,
    Callbacks,
}

/// The parts that stay with a place for ever, because walks refer to them without a section.
#[derive(Clone, Copy)]
pub(crate) enum PlacePart {
    Oom,
    Shrinkers,
}

/// The parts of a hierarchy.
#[derive(Clone, Copy)]
pub(crate) enum HierarchyPart {
    Shrinkers,
    Waits,
    WaitQueue,
    Protected,
    Victims,
    Upkeep,
    Injections,
}

/// The names of an owner's parts.
pub(crate) trait Names: Copy + Send + Sync + 'static {
    fn number(self) -> usize;
}

macro_rules! names {
    ($($names:ty: $parts:ident, up to $last:ident;)*) => {$(
        impl Names for $names {
            fn number(self) -> usize {
                self as usize
            }
        }

        pub(crate) type $parts = Parts<$names, { <$names>::$last as usize + 1 }>;
    )*};
}

names! {
    NodePart: NodeParts, up to Callbacks;
    PlacePart: PlaceParts, up to Shrinkers;
    HierarchyPart: HierarchyParts, up to Injections;
}

/// The state of one layer, in a group or in a hierarchy.
pub(crate) trait Part: Any + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// The owner's memory is given to a new group or hierarchy. The caller holds the tree lock.
    fn reset(&self) {}
}

/// The name of one part, and its type. Each name has one key.
pub(crate) struct Key<N, T> {
    name: N,
    make: fn() -> T,
}

impl<N: Names, T: Part> Key<N, T> {
    pub(crate) const fn new(name: N, make: fn() -> T) -> Key<N, T> {
        Key { name, make }
    }
}

/// The parts of one owner.
pub(crate) struct Parts<N, const MOST: usize>([OnceLock<Box<dyn Part>>; MOST], PhantomData<N>);

impl<N: Names, const MOST: usize> Parts<N, MOST> {
    pub(crate) fn new() -> Self {
        Parts([const { OnceLock::new() }; MOST], PhantomData)
    }

    /// The part, which is made if the owner has none yet.
    pub(crate) fn get<T: Part>(&self, key: &Key<N, T>) -> &T {
        match self.find(key) {
            Some(part) => part,
            None => self.make(key),
        }
    }

    /// Within the engine: an allocator that charges must not ask for the same part meanwhile.
    #[cold]
    fn make<T: Part>(&self, key: &Key<N, T>) -> &T {
        let _inside = depth::enter();
        downcast(&**self.0[key.name.number()].get_or_init(|| Box::new((key.make)())))
    }

    /// The part, if the owner has it.
    #[inline]
    pub(crate) fn find<T: Part>(&self, key: &Key<N, T>) -> Option<&T> {
        self.0[key.name.number()].get().map(|part| downcast(&**part))
    }

    pub(crate) fn reset(&self) {
        self.0.iter().filter_map(OnceLock::get).for_each(|part| part.reset());
    }
}

fn downcast<T: Part>(part: &dyn Part) -> &T {
    (part as &dyn Any).downcast_ref().expect("each part of an owner has one type")
}
