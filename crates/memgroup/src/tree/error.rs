//! Errors. Those of the charge path are `Copy` and allocate nothing; names are resolved when they
//! are printed.

use core::fmt;
use core::time::Duration;

use crate::base::id::GroupId;
use crate::base::limit;
use crate::state::counter::Reading;
use crate::tree::node::Node;

/// Why a charge was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChargeErrorKind {
    /// The group named by the error has no room below its limit.
    Refused,
    /// The group was removed.
    Offline,
    /// No counter can hold so much (256 TiB), at any limit.
    TooLarge,
    /// Tests inject failures into the group
    /// ([`Group::inject_failures_at`](crate::Group::inject_failures_at)), and this is one.
    Injected,
    /// The charge waited until its deadline, and the group named by the error had no room for it.
    Deadline,
    /// All waits of the group were ended while the charge waited.
    Woken,
    /// As [`Refused`](ChargeErrorKind::Refused), while a group was being stopped for memory there:
    /// it had not freed enough yet. [`held_by`](ChargeError::held_by) names it. The charge may
    /// succeed soon: ask again, or wait with a deadline.
    VictimDying,
    /// The charge was to wait as a future ([`Group::charge`](crate::Group::charge)), and the
    /// hierarchy has no [`Reclaimer`](crate::Reclaimer) which could make room for it. The other
    /// numbers are those of the refusal.
    NoReclaimer,
}

/// A charge that was not made. Nothing was charged anywhere.
///
/// Printed, it completes the phrase "failed to ...". It names the group that refused, which is
/// often an ancestor of the one charged. It is `Copy`, and made without allocating. `Display`
/// looks the group's path up when it prints.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// tenant.set_max(4096).unwrap();
/// let error = tenant.try_charge(10_000).unwrap_err();
/// assert_eq!((error.asked(), error.usage(), error.max()), (10_000, 0, Some(4096)));
/// assert!(error.to_string().contains("/tenant"));
/// ```
#[derive(Clone, Copy)]
pub struct ChargeError {
    node: &'static Node,
    generation: u64,
    kind: ChargeErrorKind,
    asked: u64,
    usage: u64,
    max: u64,
    reserved: u64,
    is_share: bool,
    waited_nanos: u64,
    held_by: Holder,
}

/// The group that has the memory which a charge was to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    group: GroupId,
    usage: u64,
    /// Its even share; `DYING` for a group that is being stopped, and `UNKNOWN` where no group is
    /// known. An `Option` would take more room.
    even: u64,
}

const DYING: u64 = u64::MAX;
const UNKNOWN: u64 = u64::MAX - 1;

impl Holder {
    fn unknown(node: &Node) -> Holder {
        Holder { group: node.group_id(), usage: 0, even: UNKNOWN }
    }
}

impl ChargeError {
    pub(crate) fn of(node: &'static Node, seen: Reading, asked: u64) -> ChargeError {
        let kind = if seen.offline {
            ChargeErrorKind::Offline
        } else if asked > limit::BYTES_MAX - seen.usage {
            ChargeErrorKind::TooLarge
        } else {
            ChargeErrorKind::Refused
        };
        let Reading { usage, max, reserved, is_share, .. } = seen;
        ChargeError {
            node,
            generation: node.generation(),
            kind,
            asked,
            usage,
            max,
            reserved,
            is_share,
            waited_nanos: 0,
            held_by: Holder::unknown(node),
        }
    }

    pub(crate) fn injected(node: &'static Node, asked: u64) -> ChargeError {
        let seen = node.counter.read();
        ChargeError { kind: ChargeErrorKind::Injected, ..ChargeError::of(node, seen, asked) }
    }

    /// The same refusal, after a wait that ended so.
    pub(crate) fn after_wait(self, kind: ChargeErrorKind, waited: Duration) -> ChargeError {
        ChargeError { kind, waited_nanos: waited.as_nanos().try_into().unwrap_or(u64::MAX), ..self }
    }

    /// The same refusal, because `victim` is being stopped.
    pub(crate) fn while_dying(self, (victim, usage): (GroupId, u64)) -> ChargeError {
        let kind =
            if self.kind == ChargeErrorKind::Refused { ChargeErrorKind::VictimDying } else { self.kind };
        ChargeError { kind, held_by: Holder { group: victim, usage, even: DYING }, ..self }
    }

    /// The same refusal, where `group` is the largest of those above their even share, with its
    /// usage and that share.
    pub(crate) fn beside(self, (group, usage, even): (GroupId, u64, u64)) -> ChargeError {
        ChargeError { held_by: Holder { group, usage, even }, ..self }
    }

    /// The level that refused.
    pub(crate) fn level(&self) -> &'static Node {
        self.node
    }

    /// Why.
    pub fn kind(&self) -> ChargeErrorKind {
        self.kind
    }

    /// The group that refused.
    pub fn group(&self) -> GroupId {
        GroupId::new(self.node.id(), self.generation)
    }

    /// The path of the group that refused; `None` once it has been removed and released.
    pub fn path(&self) -> Option<String> {
        self.node.shared().path_of(self.group())
    }

    /// Bytes that were asked for.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Usage of the group that refused, in bytes, at the instant of the refusal. It leaves out the
    /// prepaid bytes of the group itself; those of groups below may be in it.
    pub fn usage(&self) -> u64 {
        self.usage
    }

    /// Its limit in force at that instant; `None` if it had none.
    pub fn max(&self) -> Option<u64> {
        limit::given(self.max)
    }

    /// Bytes below that limit that this charge was to leave free, for groups within their
    /// [`min`](crate::Group::set_min) or `low`; 0 where none are protected.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Whether the group's fair share of the one above refused
    /// ([`Group::set_share`](crate::Group::set_share)). [`max`](ChargeError::max) is that share
    /// then.
    pub fn is_by_share(&self) -> bool {
        self.is_share
    }

    /// The group that has the memory which the charge was to get, as far as it is known: the one
    /// that is being stopped; else, where the group that refused gives [fair
    /// shares](crate::Group::set_share), the largest of those right below it that were above their
    /// even share.
    pub fn held_by(&self) -> Option<GroupId> {
        (self.held_by.even != UNKNOWN).then_some(self.held_by.group)
    }

    /// For how long the charge waited for room; zero unless it is of a call with a deadline.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_nanos)
    }
}

impl ChargeError {
    fn write_usage(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max() {
            Some(share) if self.is_share => {
                write!(f, ", usage {}, its fair share is {share} now", self.usage)?;
            }
            Some(max) => write!(f, ", usage {} of max {max}", self.usage)?,
            None => write!(f, ", usage {}, no max", self.usage)?,
        }
        if self.reserved > 0 {
            write!(f, ", {} of it kept for groups within min or low", self.reserved)?;
        }
        if let Some(group) = self.held_by() {
            let Holder { usage, even, .. } = self.held_by;
            let path = self.node.shared().path_of(group);
            let path = path.as_deref().unwrap_or("(a group removed since)");
            match even {
                DYING => write!(f, "; {path} has {usage} and is being stopped")?,
                even => write!(f, "; {path} has {usage}, its even share is {even}")?,
            }
        }
        Ok(())
    }
}

impl PartialEq for ChargeError {
    fn eq(&self, other: &ChargeError) -> bool {
        std::ptr::eq(self.node, other.node)
            && (self.generation, self.kind, self.asked) == (other.generation, other.kind, other.asked)
            && (self.usage, self.max, self.is_share) == (other.usage, other.max, other.is_share)
            && self.reserved == other.reserved
            && (self.waited_nanos, self.held_by) == (other.waited_nanos, other.held_by)
    }
}

impl Eq for ChargeError {}

impl fmt::Debug for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeError")
            .field("kind", &self.kind)
            .field("group", &self.path().unwrap_or_else(|| "(released)".to_owned()))
            .field("asked", &self.asked)
            .field("usage", &self.usage)
            .field("max", &self.max())
            .field("reserved", &self.reserved)
            .field("is_by_share", &self.is_share)
            .field("waited", &self.waited())
            .field("held_by", &self.held_by())
            .finish()
    }
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        let group = path.as_deref().unwrap_or("(a group removed since)");
        match self.kind {
            ChargeErrorKind::Refused | ChargeErrorKind::VictimDying => {
                write!(f, "charge {} bytes: refused by group {group}", self.asked)?;
                self.write_usage(f)
            }
            ChargeErrorKind::NoReclaimer => {
                write!(f, "charge {} bytes: no room in group {group}, and no reclaimer runs", self.asked)?;
                self.write_usage(f)
            }
            ChargeErrorKind::Deadline => {
                write!(
                    f,
                    "charge {} bytes: no room in group {group} within {:.3?}",
                    self.asked,
                    self.waited()
                )?;
                self.write_usage(f)
            }
            ChargeErrorKind::Woken => {
                let (asked, waited) = (self.asked, self.waited());
                write!(
                    f,
                    "charge {asked} bytes: woken after {waited:.3?} of waiting for room in group {group}"
                )?;
                self.write_usage(f)
            }
            ChargeErrorKind::Offline => {
                write!(f, "charge {} bytes: group {group} was removed", self.asked)
            }
            ChargeErrorKind::TooLarge => {
                write!(
                    f,
                    "charge {} bytes: more than group {group} can account, 256 TiB in all",
                    self.asked
                )?;
                if self.max().is_none() { write!(f, "; usage {}, no max", self.usage) } else { Ok(()) }
            }
            ChargeErrorKind::Injected => {
                write!(f, "charge {} bytes: a failure is injected into group {group}", self.asked)
            }
        }
    }
}

impl std::error::Error for ChargeError {}
