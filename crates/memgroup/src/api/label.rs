//! Label: the purpose of a group's bytes. An operator sees by it which bytes keep a removed group alive.
//!
//! A group has up to sixteen labels. A charge under a label counts in one word more, and takes its bytes out of both when it ends. Charges without a
//! label cost nothing more. [`Group::labels`] lists the labels, and so does [`Hierarchy::dying`](crate::Hierarchy::dying).
//!
//! - I1. The bytes of a label are charged to its group: they are added after they were charged, and taken out before they are uncharged. So the
//!   labels of a group add up to at most its usage, and a group that is released has none.
//! - I2. The words of a node are made once, and the next group of the node uses them too. Names belong to one group.
//! - B1. Charges may come and go between the looks at two labels: the list belongs to no one moment.

use core::fmt;
use core::ops::Deref;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::grace::Lent;

use crate::base::error::GroupError;
use crate::charge::charge::Charge;
use crate::control::labels::LABELS_MAX;
use crate::tree::error::ChargeError;
use crate::tree::handle::Group;
use crate::tree::name;

/// The reason why a label was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LabelError {
    /// The name cannot be a label's; the rules are those for names of groups.
    InvalidName {
        /// The name as given.
        name: String,
        /// The rule that it breaks.
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
                "make the label {name:?}: {reason}; a name has 1 to 255 bytes, no slash, no control or direction character, and is \
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

/// A label of a group: charges made here are counted under its name too. It keeps the group as a [`Group`] does; clones are the same label.
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
    pub fn try_charge(&self, bytes: u64) -> Result<LabelledCharge, ChargeError> {
        self.group.try_charge(bytes).map(|charge| self.on(charge))
    }

    /// Charges `bytes` whatever the limits, as [`Group::charge_forced`] does, under this label.
    ///
    /// # Errors
    /// As there.
    pub fn charge_forced(&self, bytes: u64) -> Result<LabelledCharge, ChargeError> {
        self.group.charge_forced(bytes).map(|charge| self.on(charge))
    }

    fn on(&self, charge: Charge) -> LabelledCharge {
        let charge = LabelledCharge { number: self.number, charge };
        charge.count(charge.bytes());
        charge
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.group.node().labels().names.lock()[self.number].clone()
    }

    /// The bytes that are charged under it now.
    pub fn bytes(&self) -> u64 {
        // ORDERING: Relaxed; a report.
        self.group.node().labels().bytes[self.number].load(Ordering::Relaxed)
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

/// A [`Charge`] with a label. Dropping it takes its bytes out of both.
///
/// It reads as the charge that it contains. It changes by its own methods, which keep the label's count right.
#[must_use = "dropping a charge uncharges its bytes"]
pub struct LabelledCharge {
    number: usize,
    charge: Charge,
}

impl LabelledCharge {
    fn word(&self) -> Lent<'static, AtomicU64> {
        self.charge.node().labels().map(|labels| &*labels.bytes[self.number])
    }

    fn count(&self, bytes: u64) {
        // ORDERING: Relaxed; a number by itself.
        self.word().fetch_add(bytes, Ordering::Relaxed);
    }

    fn uncount(&self, bytes: u64) {
        // ORDERING: Release; precedes the uncharge that may release the group (I1).
        self.word().fetch_sub(bytes, Ordering::Release);
    }

    /// Its label.
    pub fn label(&self) -> Label {
        Label { group: self.charge.group(), number: self.number }
    }

    /// Charges `bytes` more, as [`Charge::try_grow`] does.
    ///
    /// # Errors
    /// As there. This charge stays as it was.
    pub fn try_grow(&mut self, bytes: u64) -> Result<(), ChargeError> {
        self.charge.try_grow(bytes)?;
        self.count(bytes);
        Ok(())
    }

    /// Uncharges `bytes` of it.
    ///
    /// # Panics
    /// When it has fewer; nothing is uncharged then.
    pub fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes(), "cannot shrink {bytes} bytes off a charge of {}", self.bytes());
        self.uncount(bytes);
        self.charge.shrink(bytes);
    }

    /// The charge without its label, which does not count it any more.
    pub fn into_charge(mut self) -> Charge {
        let empty = Charge::empty(&self.charge.group());
        self.uncount(self.charge.bytes());
        std::mem::replace(&mut self.charge, empty)
    }
}

impl Deref for LabelledCharge {
    type Target = Charge;

    fn deref(&self) -> &Charge {
        &self.charge
    }
}

impl Drop for LabelledCharge {
    fn drop(&mut self) {
        // Before the charge is dropped (I1).
        self.uncount(self.charge.bytes());
    }
}

impl fmt::Debug for LabelledCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LabelledCharge")
            .field("label", &self.label().name())
            .field("charge", &self.charge)
            .finish()
    }
}

/// Labels.
impl Group {
    /// The group's label of this name, made if there is none. It lasts as long as the group, also after the group was removed.
    ///
    /// # Errors
    /// The name breaks the rules for names of groups, or the group has [`LABELS_MAX`] others.
    pub fn label(&self, name: &str) -> Result<Label, LabelError> {
        if let Err(GroupError::InvalidName { name, reason }) = name::check(name) {
            return Err(LabelError::InvalidName { name, reason });
        }
        let labels = self.node().labels();
        let mut names = labels.names.lock();
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

    /// The group's own labels, in the order in which they were made, with the bytes that are charged under each now.
    pub fn labels(&self) -> Vec<(String, u64)> {
        self.node().list_labels()
    }
}
