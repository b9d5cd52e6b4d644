//! The pool of one query: each growth is a charge to the query's group.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, human_readable_size,
};
use memgroup::{BYTES_MAX, Charge, ChargeError, Effort, Group, Hierarchy, raw};

use crate::consumers::{ConsumerReport, Place};
use crate::fit::EIGHTHS;
use crate::neighbours::Member;
use crate::patience::Patience;

/// Consumers that an error names.
const NAMED: usize = 3;

/// A DataFusion [`MemoryPool`] that charges all its bytes to a group.
///
/// # Concurrency
/// A growth is a charge of the engine, and a shrinkage an uncharge; each also changes the
/// consumer's own figures. Neither takes a lock. Unless it waits, a growth runs no shrinker and no
/// kill hook ([`Effort::Count`]). At a limit, or above half of a share, it also lists the
/// consumers, which takes a lock.
///
/// A growth that a limit refuses asks other queries to spill, beginning with those that are
/// furthest above their share. A consumer that can spill is then refused, and spills itself. One
/// that cannot spill waits for the other queries' memory if the pool [may
/// wait](GroupPool::patience).
///
/// # Panics
/// [`MemoryPool::grow`] panics if the bytes of a group would exceed [`BYTES_MAX`].
pub struct GroupPool {
    group: Group,
    member: Arc<Member>,
    /// Bytes that are charged and that no consumer holds. The next growths take them.
    admitted: AtomicUsize,
    /// The wait of growths that cannot spill.
    patience: Patience,
    /// The group that the query's allocations are charged to, in a tree of its own.
    allocated: Option<Group>,
    /// Eighths of its even share up to which a consumer that can spill grows.
    eighths: AtomicUsize,
    /// Names of consumers whose bytes others reserve as well.
    uncharged: Vec<String>,
}

/// The cause of a refused growth.
enum Refuser<'a> {
    Tree(&'a ChargeError),
    /// The consumer must spill.
    Share,
    Allocated(&'a Group),
}

/// Returns whether a query may hold `bytes` in the group that refused, once other queries have
/// freed theirs.
fn may_fit(error: &ChargeError, bytes: u64) -> bool {
    let most = error.max().map_or(BYTES_MAX, |max| max.saturating_sub(error.reserved()));
    error.is_by_share() || bytes <= most
}

/// Admitted bytes that a growth takes. They are returned if the growth fails.
struct Admitted<'p> {
    pool: &'p GroupPool,
    bytes: usize,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; as in `admit`.
        self.pool.admitted.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

impl GroupPool {
    /// Makes a pool that charges `group` of `hierarchy`. Its growths do not wait.
    ///
    /// # Panics
    /// The group is not of this hierarchy.
    pub fn new(hierarchy: &Hierarchy, group: &Group) -> GroupPool {
        assert!(
            hierarchy.group(group.id()).is_some_and(|found| found == *group),
            "a pool of group {}: it is not of this hierarchy",
            group.path()
        );
        GroupPool {
            group: group.clone(),
            member: Member::enter(group),
            admitted: AtomicUsize::new(0),
            patience: Patience::of(Duration::ZERO),
            allocated: None,
            eighths: AtomicUsize::new(EIGHTHS),
            uncharged: Vec::new(),
        }
    }

    /// Sets the time for which growths of this pool wait in all. Growths that wait at the same time
    /// share it. Only growths of consumers that cannot spill wait, after the pool has asked other
    /// queries to spill.
    ///
    /// A growth waits only on a multi-threaded tokio runtime. It hands the thread's other tasks to
    /// another thread first ([`block_in_place`](tokio::task::block_in_place)), so that no task
    /// waits with it. Each try runs shrinkers on the thread. The last one, at the end of the
    /// patience, also runs kill hooks, as any charge does.
    ///
    /// Tokio panics instead within a
    /// [`LocalSet`](https://docs.rs/tokio/1/tokio/task/struct.LocalSet.html), and on a
    /// current-thread runtime that is entered within a multi-threaded one. The pool catches that
    /// panic, and its growths no longer wait. The program's panic hook prints it once for each
    /// query. Set no patience in these cases, or if a panic ends the process.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> GroupPool {
        self.patience = Patience::of(patience);
        self
    }

    /// Lists consumers of this name without charging their bytes, because other consumers reserve
    /// the same bytes.
    ///
    /// With DataFusion's feature `arrow_buffer_pool` a program claims Arrow's buffers for a
    /// consumer that it names (`ArrowMemoryPool`). The operators that hold these buffers have
    /// reserved them already.
    #[must_use]
    pub fn uncharged(mut self, consumer: impl Into<String>) -> GroupPool {
        self.uncharged.push(consumer.into());
        self
    }

    /// Returns the same pool for a query with allocations that are charged to `group` of another
    /// hierarchy. A growth that has no room there is refused as well.
    pub(crate) fn beside(mut self, group: Option<Group>) -> GroupPool {
        self.allocated = group;
        self
    }

    /// Lets consumers that can spill grow up to this many eighths of their even share.
    pub(crate) fn spill_at_eighths(&self, eighths: usize) {
        // ORDERING: Relaxed, because the number publishes nothing else.
        self.eighths.store(eighths, Ordering::Relaxed);
    }

    /// Takes over a charge of the group. The next growths use its bytes.
    pub(crate) fn admit(&self, charge: Charge) {
        let (_, bytes) = charge.into_parts();
        // ORDERING: Relaxed, because the number publishes nothing else. The bytes are charged to
        // the group whichever thread takes them.
        self.admitted.fetch_add(bytes as usize, Ordering::Relaxed);
    }

    /// Takes admitted bytes for a growth: as many as it asks for, or as there are.
    fn take_admitted(&self, bytes: usize) -> Admitted<'_> {
        let take = |admitted: usize| (admitted > 0).then(|| admitted.saturating_sub(bytes));
        // ORDERING: Relaxed; as in `admit`.
        let before = self.admitted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Admitted { pool: self, bytes: before.map_or(0, |before| before.min(bytes)) }
    }

    /// The bytes that the query needed in its group beyond those that it holds now, for a growth
    /// that was refused and could not spill.
    pub(crate) fn lacked(&self) -> u64 {
        // ORDERING: Relaxed; as in `admit`.
        let own = self.reserved().saturating_add(self.admitted.load(Ordering::Relaxed));
        self.member.wanted().saturating_sub(own as u64)
    }

    /// The group that is charged.
    pub fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Growths that the pool refused so far, at any level of the tree and for any reason. After
    /// most of them the query spills and continues.
    pub fn refused(&self) -> u64 {
        self.member.refused()
    }

    /// The consumers that are registered now, in the order of their registration.
    pub fn consumers(&self) -> Vec<ConsumerReport> {
        self.member.consumers.list()
    }

    /// Returns the bytes that the query could hold in all now, with the limits of every level of
    /// the tree, or `None` if there is no limit.
    fn most(&self, reserved: usize) -> Option<usize> {
        let allocated = self.allocated.as_ref().map_or(BYTES_MAX, Group::headroom);
        let headroom = self.group.headroom().min(allocated);
        // ORDERING: Relaxed; as in `admit`.
        let admitted = self.admitted.load(Ordering::Relaxed);
        // Without a limit, the headroom is what a counter can represent.
        let is_limited = headroom < BYTES_MAX / 2;
        is_limited.then_some(reserved.saturating_add(admitted).saturating_add(headroom as usize))
    }

    /// Returns the even share of each consumer that can spill, of all bytes not held by those that
    /// cannot.
    #[cold]
    fn share(&self) -> usize {
        let mut list = self.member.consumers.list();
        list.retain(|consumer| consumer.is_charged);
        let reserved = list.iter().map(|consumer| consumer.held).sum();
        let Some(most) = self.most(reserved) else {
            return usize::MAX;
        };
        let kept: usize =
            list.iter().filter(|consumer| !consumer.can_spill).map(|consumer| consumer.held).sum();
        let sharing = list.iter().filter(|consumer| consumer.can_spill).count();
        most.saturating_sub(kept) / sharing.max(1)
    }

    /// Returns whether a reservation has more bytes to write to disk than it asks for.
    ///
    /// One with less has just begun, or has spilled, and would fail if it were refused. Other
    /// reservations of its consumer may hold bytes at the same time. A sort has some in tasks that
    /// sorted its last batches and are about to end.
    fn has_more(reservation: &MemoryReservation, place: &Place, additional: usize) -> bool {
        let own = reservation.size();
        place.note_reservation(own);
        own > additional && !place.merges()
    }

    /// Returns whether a consumer that can spill [has more](Self::has_more) than it asks for, and
    /// would hold more than its share. One that spills at this moment would fail.
    fn spills(&self, reservation: &MemoryReservation, place: &Place, additional: usize) -> bool {
        let after = place.held().saturating_add(additional);
        if !Self::has_more(reservation, place, additional) || !self.looks(place, additional) {
            return false;
        }
        // Allows a quarter more, or two growths if those are more, because a sort of few batches
        // holds another one while it spills.
        let needs_it_to_spill =
            place.spilling().is_some_and(|began| after <= began + (began / 4).max(2 * additional));
        let share = self.share();
        // ORDERING: Relaxed, because the number publishes nothing else.
        let small = share / EIGHTHS * self.eighths.load(Ordering::Relaxed);
        // ORDERING: Relaxed, because this is only a hint.
        self.member.line.store(small / 2, Ordering::Relaxed);
        // An aggregate that spills early writes more groups, and has as much to merge. So it gets
        // all of its share in any plan.
        let share = if place.is_aggregate() { share } else { small };
        after > share && !needs_it_to_spill || self.member.gives_way(place)
    }

    /// Returns whether a consumer that can spill must check the others, because it would hold much
    /// or was asked to spill.
    #[inline]
    fn looks(&self, place: &Place, additional: usize) -> bool {
        // ORDERING: Relaxed, because this is only a hint.
        place.held().saturating_add(additional) > self.member.line.load(Ordering::Relaxed) || place.is_asked()
    }

    /// Returns whether a growth is one charge: no bytes were admitted, and allocations have no
    /// limit of their own.
    #[inline]
    fn is_plain(&self) -> bool {
        // ORDERING: Relaxed; as in `admit`.
        self.admitted.load(Ordering::Relaxed) == 0 && self.allocated.is_none()
    }

    /// A growth in all cases.
    #[cold]
    #[inline(never)]
    fn try_grow_slowly(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer();
        let place = self.member.consumers.place(consumer.id());
        if place.is_some_and(Place::is_uncharged) {
            self.keep(place, None, additional);
            return Ok(());
        }
        if consumer.can_spill() && place.is_some_and(|place| self.spills(reservation, place, additional)) {
            return Err(self.refusal(reservation, additional, &Refuser::Share));
        }
        if let Some(group) = self.allocated.as_ref().filter(|group| group.headroom() < additional as u64) {
            return Err(self.refusal(reservation, additional, &Refuser::Allocated(group)));
        }
        let admitted = self.take_admitted(additional);
        let missing = additional - admitted.bytes;
        let charge = self.group.try_charge_by(missing as u64, Effort::Count);
        let charge = charge.or_else(|error| self.make_room(reservation, additional, missing, &error))?;
        mem::forget(admitted);
        self.keep(place, Some(charge), additional);
        Ok(())
    }

    /// A growth that the tree refused.
    #[cold]
    #[inline(never)]
    fn grow_with_room(
        &self,
        reservation: &MemoryReservation,
        additional: usize,
        error: &ChargeError,
    ) -> Result<()> {
        let charge = self.make_room(reservation, additional, additional, error)?;
        self.keep(self.member.consumers.place(reservation.consumer().id()), Some(charge), additional);
        Ok(())
    }

    /// A shrinkage in all cases.
    #[cold]
    #[inline(never)]
    fn shrink_slowly(&self, reservation: &MemoryReservation, bytes: usize) {
        let place = self.member.consumers.place(reservation.consumer().id());
        if !place.is_some_and(Place::is_uncharged) {
            raw::uncharge(&self.group, bytes as u64);
        }
        if let Some(place) = place {
            place.take(bytes);
        }
    }

    fn keep(&self, place: Option<&Place>, charge: Option<Charge>, bytes: usize) {
        // The bytes are uncharged by the group.
        charge.map(Charge::into_parts);
        if let Some(place) = place {
            place.add(bytes);
        }
    }

    /// Takes the next step of a growth that the tree refused: asks other queries to spill, and
    /// waits for their memory if the consumer cannot spill.
    #[cold]
    fn make_room(
        &self,
        reservation: &MemoryReservation,
        additional: usize,
        missing: usize,
        error: &ChargeError,
    ) -> Result<Charge> {
        let consumer = reservation.consumer();
        let place = self.member.consumers.place(consumer.id());
        let has_more = |place| Self::has_more(reservation, place, additional);
        let can_spill = consumer.can_spill() && place.is_some_and(has_more);
        let may_wait = !can_spill && self.patience.may_wait();
        let goal = self.reserved().saturating_add(additional);
        let asked = self.member.ask_others(error, goal as u64, may_wait);
        let charge = match asked {
            _ if !may_wait => None,
            Some(_asked) => self.patience.wait(&self.group, missing),
            // Other queries may have freed the memory before they were asked.
            None => self.group.try_charge_by(missing as u64, Effort::Count).ok(),
        };
        charge.ok_or_else(|| {
            if !can_spill && may_fit(error, goal as u64) {
                self.member.want(goal as u64);
            }
            self.refusal(reservation, additional, &Refuser::Tree(error))
        })
    }

    /// The error of a refused growth, in DataFusion's words.
    #[cold]
    fn refusal(
        &self,
        reservation: &MemoryReservation,
        additional: usize,
        by: &Refuser<'_>,
    ) -> DataFusionError {
        self.member.count_refusal();
        let consumer = reservation.consumer();
        if let Some(place) = self.member.consumers.place(consumer.id()).filter(|_| consumer.can_spill()) {
            place.spill();
        }
        let mut list = self.consumers();
        let reserved = self.reserved();
        let held = list.iter().find(|known| known.id == consumer.id()).map_or(0, |known| known.held);
        let left = self.most(reserved).map_or_else(
            || "without a limit".to_owned(),
            |most| format!("{} left", human_readable_size(most.saturating_sub(reserved))),
        );
        let reason = match by {
            Refuser::Tree(error) => error.to_string(),
            Refuser::Share => format!(
                "it can spill, and would hold more than its even share in group {}, or another query needs its memory",
                self.group.path()
            ),
            Refuser::Allocated(group) => {
                format!("the query's allocations fill group {}, {} bytes", group.path(), group.usage())
            }
        };
        list.sort_by_key(|known| std::cmp::Reverse(known.held));
        let top: Vec<String> = list
            .iter()
            .take(NAMED)
            .map(|known| {
                let can = if known.can_spill { "can spill" } else { "cannot spill" };
                format!(
                    "{}#{} ({can}) holds {}, at most {}",
                    known.name,
                    known.id,
                    human_readable_size(known.held),
                    human_readable_size(known.most)
                )
            })
            .collect();
        resources_datafusion_err!(
            "Failed to allocate additional {} for {} with {} already allocated by it, {left}: {reason}. Top memory consumers: {}",
            human_readable_size(additional),
            consumer.name(),
            human_readable_size(held),
            top.join("; ")
        )
    }
}

impl Drop for GroupPool {
    fn drop(&mut self) {
        let left = *self.admitted.get_mut();
        raw::uncharge(&self.group, left as u64);
    }
}

impl MemoryPool for GroupPool {
    fn name(&self) -> &str {
        "memgroup"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        let is_charged = !self.uncharged.iter().any(|name| name == consumer.name());
        self.member.consumers.enter(consumer, is_charged);
        self.member.look_again();
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.member.consumers.leave(consumer);
        self.member.look_again();
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        let place = self.member.consumers.place(reservation.consumer().id());
        if place.is_some_and(Place::is_uncharged) {
            self.keep(place, None, additional);
            return;
        }
        let admitted = self.take_admitted(additional);
        match self.group.charge_forced((additional - admitted.bytes) as u64) {
            Ok(charge) => {
                mem::forget(admitted);
                self.keep(place, Some(charge), additional);
            }
            Err(error) => panic!("failed to {error}"),
        }
    }

    #[inline]
    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        match self.member.consumers.counted(reservation.consumer().id()) {
            Some(counted) => {
                // Counted first, so that charged bytes always belong to a consumer, which a growth
                // without room can find.
                raw::uncharge(&self.group, shrink as u64);
                counted.take(shrink);
            }
            None => self.shrink_slowly(reservation, shrink),
        }
    }

    #[inline]
    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer();
        if let Some(counted) = self.member.consumers.counted(consumer.id())
            && self.is_plain()
            && !(consumer.can_spill() && self.looks(counted.place, additional))
        {
            return match self.group.try_charge_by(additional as u64, Effort::Count) {
                Ok(charge) => {
                    // The bytes are uncharged by the group.
                    charge.into_parts();
                    counted.add(additional);
                    Ok(())
                }
                Err(error) => self.grow_with_room(reservation, additional, &error),
            };
        }
        self.try_grow_slowly(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.member.consumers.charged()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.most(self.reserved()).map_or(MemoryLimit::Infinite, MemoryLimit::Finite)
    }
}

impl fmt::Display for GroupPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memgroup(group: {}, used: {})", self.group.path(), human_readable_size(self.reserved()))
    }
}

impl fmt::Debug for GroupPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupPool")
            .field("group", &self.group.path())
            .field("consumers", &self.consumers())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use memgroup::Config;

    use super::*;

    #[test]
    fn an_aggregate_has_all_of_its_share_in_a_smaller_plan_and_a_sort_has_a_part() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let query = hierarchy.create("/query").unwrap();
        query.set_max(16_000).unwrap();
        let pool = Arc::new(GroupPool::new(&hierarchy, &query));
        pool.spill_at_eighths(1);
        let register =
            |name| MemoryConsumer::new(name).with_can_spill(true).register(&(Arc::clone(&pool) as _));
        let most = ["ExternalSorter[0]", "FinalHashAggregateStream[0]"].map(register).map(|consumer| {
            while consumer.try_grow(100).is_ok() {}
            consumer
        });
        assert_eq!(most.map(|consumer| consumer.size()), [1000, 8000]);
    }
}
