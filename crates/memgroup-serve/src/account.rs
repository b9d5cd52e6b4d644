//! Account: the bytes that the server takes, charged to its own group.
//!
//! - I1. Bytes are charged before they are allocated. Allocations that an explicit charge covers are made in [`uncounted`], so that a global allocator
//!   of `memgroup-alloc` does not count them again. Blocks of a connection are counted by it beside the 64 KiB that each connection has.
//! - I2. The server stays within the limit of its own group, but for blocks that such an allocator counts. A small answer does not need room above the group:
//!   an operator can look at one group, and raise a limit, while the tree is full.

use memgroup::{Charge, ChargeError, ChargeErrorKind, Effort, Group};
pub(crate) use memgroup_alloc::uncounted;

/// The most bytes that are charged at any limit of the groups above.
const SMALL: u64 = 256 << 10;

/// The group that the server charges.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) group: Group,
}

impl Account {
    /// Charges `bytes`. It calls no shrinker and no kill hook.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Charge, ChargeError> {
        let mut charge = self.empty()?;
        self.resize(&mut charge, bytes)?;
        Ok(charge)
    }

    /// Charges `bytes` more, or gives some back, so that `charge` has `bytes`.
    pub(crate) fn resize(&self, charge: &mut Charge, bytes: u64) -> Result<(), ChargeError> {
        let Some(more) = bytes.checked_sub(charge.bytes()) else {
            charge.shrink(charge.bytes() - bytes);
            return Ok(());
        };
        let Err(refused) = charge.try_grow_by(more, Effort::Count) else { return Ok(()) };
        let is_full_above = refused.kind() == ChargeErrorKind::Refused && refused.group() != self.group.id();
        if bytes <= SMALL && is_full_above { charge.grow_forced(more) } else { Err(refused) }
    }

    /// A charge of no bytes yet.
    pub(crate) fn empty(&self) -> Result<Charge, ChargeError> {
        self.group.try_charge_by(0, Effort::Count)
    }
}
