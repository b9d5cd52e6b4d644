//! The queries that run now, and the one of them that gives memory when a group that they share is full.
//!
//! A growth that a group refuses is refused for the sake of all queries below it. The engine's order decides between them: first the child of that
//! group that is furthest above its [`low`](Group::set_low), or the one that the refusal names where the group gives
//! [fair shares](Group::set_share). Within it, the query with the most bytes that its consumers can spill.
//!
//! - I1. A query is asked by flags alone. No code of it runs here, and no lock of it is held but the short one of its list of consumers.
//! - I2. The flags are hints. Each one refuses one growth of a consumer that holds more than it asks for, and that consumer spills.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memgroup::{ChargeError, Group};

use crate::consumers::Consumers;

/// The part of a pool that other queries see.
pub(crate) struct Member {
    /// The pool's group, and all above it.
    chain: Vec<Group>,
    pub(crate) consumers: Consumers,
    /// Bytes up to which a consumer that can spill grows without a look at the others: half a share, as it was at the last look.
    pub(crate) line: AtomicUsize,
    /// Growths that were refused, at any level and for any reason.
    refused: AtomicU64,
}

static MEMBERS: Mutex<Vec<Weak<Member>>> = Mutex::new(Vec::new());

fn members() -> MutexGuard<'static, Vec<Weak<Member>>> {
    MEMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    /// The member of a new pool of this group.
    pub(crate) fn enter(group: &Group) -> Arc<Member> {
        let chain = std::iter::successors(Some(group.clone()), Group::parent).collect();
        let member = Arc::new(Member {
            chain,
            consumers: Consumers::new(),
            line: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
        });
        let mut members = members();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&member));
        member
    }

    /// The next growth of a consumer that can spill looks at all of them.
    pub(crate) fn look_again(&self) {
        // ORDERING: Relaxed; a hint by itself.
        self.line.store(0, Ordering::Relaxed);
    }

    /// A growth is refused: memory is scarce.
    pub(crate) fn count_refusal(&self) {
        self.look_again();
        // ORDERING: Relaxed, here and below; a number by itself.
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The group right below `full` that this query is in.
    fn child_of(&self, full: &Group) -> Option<&Group> {
        let at = self.chain.iter().position(|group| group == full)?;
        at.checked_sub(1).map(|below| &self.chain[below])
    }

    /// Asks other queries to spill for a growth of this one that `error` refused. Returns whether one was asked: not where this query is to give
    /// way itself.
    pub(crate) fn ask_others(self: &Arc<Member>, error: &ChargeError) -> bool {
        let Some(full) = self.chain.iter().find(|group| group.id() == error.group()) else {
            return false;
        };
        let room = error.max().map_or(0, |max| max.saturating_sub(error.usage()));
        let missing = usize::try_from(error.asked().saturating_sub(room)).unwrap_or(usize::MAX);
        let mut others = in_order(full, error);
        others.truncate(others.iter().position(|member| Arc::ptr_eq(member, self)).unwrap_or(others.len()));
        // A growth that cannot be helped makes no query spill.
        if others.iter().map(|member| member.consumers.spillable()).sum::<usize>() < missing {
            return false;
        }
        let (mut missing, mut has_asked) = (missing, false);
        for member in others {
            if missing == 0 {
                break;
            }
            let asked = member.consumers.ask(missing);
            if asked > 0 {
                member.look_again();
                has_asked = true;
            }
            missing = missing.saturating_sub(asked);
        }
        has_asked
    }
}

/// The queries below `full`, in the order in which they give.
fn in_order(full: &Group, error: &ChargeError) -> Vec<Arc<Member>> {
    let below: Vec<Arc<Member>> = members().iter().filter_map(Weak::upgrade).collect();
    let mut order: Vec<_> = below
        .iter()
        .filter_map(|member| {
            let child = member.child_of(full)?;
            let is_named = error.held_by() == Some(child.id());
            let excess = child.usage().saturating_sub(child.low());
            (is_named || excess > 0).then(|| ((is_named, excess, member.consumers.spillable()), member))
        })
        .collect();
    order.sort_by_key(|(order, _)| Reverse(*order));
    order.into_iter().map(|(_, member)| Arc::clone(member)).collect()
}
