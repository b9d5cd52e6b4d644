//! Ended: the record of a group at its end, and the callbacks that are told.
//!
//! - I1. A removal takes the callbacks off the group under the tree lock, after it marked the
//!   group offline. It calls them when it holds no lock. So each is called once.
//! - I2. A callback is refused if the group is offline, which is looked at under the lock of the
//!   list. A removal that marked the group before takes the list later, and takes the callback
//!   along.
//! - I3. Nothing is allocated or freed under the lock of the list: an allocator that charges may
//!   need the tree lock, which a removal holds meanwhile.

use core::fmt;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};

use memgroup_sync::Mutex;

use crate::base::error::GroupError;
use crate::base::id::GroupId;
use crate::base::panic;
use crate::counter::events::Events;
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::parts::{Key, NodePart, Part};

/// The figures of a group when it was removed; from [`Group::on_end`].
///
/// Printed, it is a line for a log. With the feature `serde` it can be serialised.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EndedGroup {
    /// Its path.
    pub path: String,
    /// Its id.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::base::json::id::serialize"))]
    pub id: GroupId,
    /// Time from its creation to its removal.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "lifetime_us", serialize_with = "crate::base::json::us::serialize")
    )]
    pub lifetime: Duration,
    /// Its highest usage, in bytes. Prepaid bytes are a part of usage.
    pub peak_bytes: u64,
    /// Bytes still charged to it. They stay counted above until their charges end.
    pub usage_bytes: u64,
    /// Charges that it refused itself ([`Group::refusals`]).
    pub refusals: u64,
    /// Events of it and of the groups below it; [`oom_kill`](Events::oom_kill) counts its kills.
    pub events: Events,
    /// Time in which a thread or more was stalled for memory in it or below.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "stalled_us", serialize_with = "crate::base::json::us::serialize")
    )]
    pub stalled: Duration,
}

impl EndedGroup {
    fn of(group: &Group, lifetime: Duration) -> EndedGroup {
        EndedGroup {
            path: group.path(),
            id: group.id(),
            lifetime,
            peak_bytes: group.peak(),
            usage_bytes: group.usage(),
            refusals: group.refusals(),
            events: group.events(),
            stalled: Duration::from_micros(group.pressure().some.total),
        }
    }
}

impl fmt::Display for EndedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EndedGroup { path, lifetime, peak_bytes, usage_bytes, refusals, events, stalled, .. } = self;
        write!(
            f,
            "{path} lifetime_us={} peak_bytes={peak_bytes} usage_bytes={usage_bytes} refusals={refusals} kills={} \
             stalled_us={}",
            lifetime.as_micros(),
            events.oom_kill,
            stalled.as_micros()
        )
    }
}

/// A callback, with those that were added before it.
struct Callback {
    call: Box<dyn FnOnce(EndedGroup) + Send>,
    before: Option<Box<Callback>>,
}

/// The callbacks of one group, the last one first.
struct Callbacks(Mutex<Option<Box<Callback>>>);

impl Part for Callbacks {}

static CALLBACKS: Key<NodePart, Callbacks> = Key::new(NodePart::Callbacks, || Callbacks(Mutex::new(None)));

/// Callbacks for the end of a removed group. The remover calls them when it holds no lock.
#[must_use = "the callbacks are to be told"]
pub(crate) struct Farewell {
    group: Group,
    lifetime: Duration,
    callbacks: Box<Callback>,
}

impl Farewell {
    /// Takes the callbacks of a group that goes offline, if it has any. The caller holds the tree
    /// lock.
    pub(crate) fn take(node: &'static Node, lifetime: Duration) -> Option<Farewell> {
        let callbacks = node.find_part(&CALLBACKS)?.0.lock().take()?;
        Some(Farewell { group: Group::pinned(node), lifetime, callbacks })
    }

    /// Tells the callbacks, in their order. The caller holds no lock.
    pub(crate) fn tell(self) {
        let mut calls = Vec::new();
        let mut next = Some(self.callbacks);
        while let Some(callback) = next {
            let Callback { call, before } = *callback;
            calls.push(call);
            next = before;
        }
        let ended = EndedGroup::of(&self.group, self.lifetime);
        for call in calls.into_iter().rev() {
            let ended = ended.clone();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| call(ended))) {
                panic::drop_caught(panic);
            }
        }
    }
}

/// The end of the group.
impl Group {
    /// Has `callback` told the figures of the group at its end: its removal by any handle or
    /// owner, by the removal of a group above, or with its hierarchy. For a line in a log for
    /// each request.
    ///
    /// It is called once, on the thread that removes the group, after the removal and under no
    /// lock. So it should be short: the thread may be an executor's. Callbacks of one group are
    /// called in the order in which they were added, and those of groups below before. A panic of
    /// a callback is caught and forgotten, and the others are told. A callback that keeps a
    /// [`Hierarchy`](crate::Hierarchy) or a handle keeps the tree, as any handle does. One that
    /// keeps an owner of its own group keeps the group.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    /// let request = hierarchy.get_or_create_owned("/alice/request-7").unwrap();
    /// let (log, lines) = std::sync::mpsc::channel();
    /// request.on_end(move |ended| log.send(ended).unwrap()).unwrap();
    /// drop(request.try_charge(4096).unwrap());
    /// drop(request);
    /// let ended = lines.recv().unwrap();
    /// assert_eq!((ended.path.as_str(), ended.peak_bytes, ended.refusals), ("/alice/request-7", 4096, 0));
    /// assert!(ended.to_string().starts_with("/alice/request-7 lifetime_us="));
    /// ```
    ///
    /// # Errors
    /// The group was removed. The callback is dropped without a call.
    pub fn on_end(&self, callback: impl FnOnce(EndedGroup) + Send + 'static) -> Result<(), GroupError> {
        let node = self.node();
        let mut added = Box::new(Callback { call: Box::new(callback), before: None });
        let part = node.part(&CALLBACKS);
        let mut list = part.0.lock();
        if node.counter.is_offline() {
            drop(list);
            drop(part);
            return Err(GroupError::Offline { path: self.path() });
        }
        added.before = list.take();
        *list = Some(added);
        Ok(())
    }
}
