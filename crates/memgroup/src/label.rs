//! Label: what bytes of a group are for, so that an operator sees what keeps a removed group alive.
//!
//! A group has up to sixteen labels. A charge that is made under one counts in one word more, and takes its bytes out of both when it ends; charges
//! without a label cost what they did. [`Group::labels`] lists them, and so does [`Hierarchy::dying`](crate::Hierarchy::dying).
//!
//! - I1. The bytes of a label are charged to its group: they are added when they have been charged, and taken out before they are uncharged. So what the
//!   labels of a group add up to is at most what is charged to it, and a group that is released has none.
//! - I2. The words of a place are made once and are the next group's, too; names are its own.
//! - B1. Between two looks at different labels charges may come and go: the list is of no one moment.

use core::fmt;
use std::sync::OnceLock;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{CachePadded, Mutex};

use crate::charge::Charge;
use crate::error::{ChargeError, GroupError};
use crate::group::Group;
use crate::name;
use crate::node::Node;

/// The most labels of one group.
pub const LABELS_MAX: usize = 16;

/// The labels of one group, if it ever had one.
pub(crate) struct Labels {
    made: OnceLock<Box<Made>>,
}

struct Made {
    names: Mutex<Vec<String>>,
    bytes: [CachePadded<AtomicU64>; LABELS_MAX],
}

impl Labels {
    pub(crate) fn new() -> Labels {
        Labels { made: OnceLock::new() }
    }

    fn make(&self) -> &Made {
        self.made.get_or_init(|| {
            let bytes = std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0)));
            Box::new(Made { names: Mutex::new(Vec::new()), bytes })
        })
    }

    /// Names with their bytes, in the order in which they were first asked for.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let Some(made) = self.made.get() else { return Vec::new() };
        let names = made.names.lock().clone();
        // ORDERING: Relaxed; a report.
        names
            .into_iter()
            .zip(&made.bytes)
            .map(|(name, bytes)| (name, bytes.load(Ordering::Relaxed)))
            .collect()
    }

    /// For a new group in the place.
    pub(crate) fn reset(&self) {
        if let Some(made) = self.made.get() {
            made.names.lock().clear();
        }
    }
}

/// Why a label was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LabelError {
    /// The name cannot be a label's; the rules are those for names of groups.
    InvalidName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The group has as many labels as it can have.
    TooMany {
        /// The path of the group.
        path: String,
        /// The name that was asked for.
        name: String,
    },
}

impl fmt::Display for LabelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabelError::InvalidName { name, reason } => write!(
                f,
                "make the label {name:?}: {reason}; a name has 1 to 255 bytes, no slash, no control character, and is \
                 not . or .."
            ),
            LabelError::TooMany { path, name } => write!(
                f,
                "make the label {name:?}: group {path} has {LABELS_MAX} labels already, which is the most; use one of them"
            ),
        }
    }
}

impl std::error::Error for LabelError {}

/// A label of a group: charges made here are counted under its name, too. A handle, which keeps the group as a [`Group`] does; clones are the same
/// label.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// let sorts = tenant.label("sorts").unwrap();
/// let run = sorts.try_charge(4096).unwrap();
/// tenant.remove().unwrap();
/// let dying = &hierarchy.dying()[0];
/// assert_eq!((dying.path.as_str(), dying.labels.as_slice()), ("/tenant", &[("sorts".to_owned(), 4096)][..]));
/// drop(run);
/// assert!(hierarchy.dying().is_empty());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Label {
    group: Group,
    number: usize,
}

impl Label {
    /// Charges `bytes` to the group, as [`Group::try_charge`] does, under this label.
    ///
    /// # Errors
    /// As there.
    pub fn try_charge(&self, bytes: u64) -> Result<Labelled, ChargeError> {
        self.group.try_charge(bytes).map(|charge| self.on(charge))
    }

    /// Charges `bytes` whatever the limits, as [`Group::charge_forced`] does, under this label.
    ///
    /// # Errors
    /// As there.
    pub fn charge_forced(&self, bytes: u64) -> Result<Labelled, ChargeError> {
        self.group.charge_forced(bytes).map(|charge| self.on(charge))
    }

    fn on(&self, charge: Charge) -> Labelled {
        let mut tag = Tag { node: self.group.node(), number: self.number, bytes: 0 };
        tag.add(charge.bytes());
        Labelled { tag, charge }
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.group.node().control.labels.make().names.lock()[self.number].clone()
    }

    /// Bytes that are charged under it now.
    pub fn bytes(&self) -> u64 {
        // ORDERING: Relaxed; a report.
        self.group.node().control.labels.make().bytes[self.number].load(Ordering::Relaxed)
    }

    /// Its group.
    pub fn group(&self) -> &Group {
        &self.group
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, group) = (self.name(), self.group.path());
        f.debug_struct("Label")
            .field("name", &name)
            .field("group", &group)
            .field("bytes", &self.bytes())
            .finish()
    }
}

/// A [`Charge`] with its label; dropping it takes its bytes out of both.
#[must_use = "dropping a charge uncharges its bytes"]
pub struct Labelled {
    // Dropped in this order (I1).
    tag: Tag,
    charge: Charge,
}

/// Bytes of a label, which a charge beside it keeps charged.
struct Tag {
    node: &'static Node,
    number: usize,
    bytes: u64,
}

impl Tag {
    fn word(&self) -> &'static AtomicU64 {
        &self.node.control.labels.make().bytes[self.number]
    }

    fn add(&mut self, bytes: u64) {
        // ORDERING: Relaxed; a number by itself.
        self.word().fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }

    fn take(&mut self, bytes: u64) {
        // ORDERING: Release; as a part of what precedes the uncharge that may release the group.
        self.word().fetch_sub(bytes, Ordering::Release);
        self.bytes -= bytes;
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        self.take(self.bytes);
    }
}

impl Labelled {
    /// Bytes it accounts for.
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Its label.
    pub fn label(&self) -> Label {
        Label { group: self.charge.group(), number: self.tag.number }
    }

    /// Charges `bytes` more, as [`Charge::try_grow`] does.
    ///
    /// # Errors
    /// As there; this charge stays as it was.
    pub fn try_grow(&mut self, bytes: u64) -> Result<(), ChargeError> {
        self.charge.try_grow(bytes)?;
        self.tag.add(bytes);
        Ok(())
    }

    /// Uncharges `bytes` of it.
    ///
    /// # Panics
    /// When it has fewer; nothing is uncharged then.
    pub fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes(), "cannot shrink {bytes} bytes off a charge of {}", self.bytes());
        self.tag.take(bytes);
        self.charge.shrink(bytes);
    }

    /// The charge without its label, which counts it no more.
    pub fn into_charge(self) -> Charge {
        let Labelled { tag, charge } = self;
        drop(tag);
        charge
    }
}

impl fmt::Debug for Labelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Labelled").field("label", &self.label().name()).field("charge", &self.charge).finish()
    }
}

impl Group {
    /// The label of this name, which is made if the group has none of it; it stays the group's until that is released. Of a removed group too.
    ///
    /// # Errors
    /// The name cannot be one, by the rules for names of groups; or the group has [`LABELS_MAX`] others.
    pub fn label(&self, name: &str) -> Result<Label, LabelError> {
        if let Err(GroupError::InvalidName { name, reason }) = name::check(name) {
            return Err(LabelError::InvalidName { name, reason });
        }
        let mut names = self.node().control.labels.make().names.lock();
        let number = names.iter().position(|other| other == name).unwrap_or(names.len());
        if number == LABELS_MAX {
            drop(names);
            return Err(LabelError::TooMany { path: self.path(), name: name.to_owned() });
        }
        if number == names.len() {
            names.push(name.to_owned());
        }
        drop(names);
        Ok(Label { group: self.clone(), number })
    }

    /// The group's own labels with the bytes that are charged under each now, in the order in which they were made.
    pub fn labels(&self) -> Vec<(String, u64)> {
        self.node().control.labels.list()
    }
}
