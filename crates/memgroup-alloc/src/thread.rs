//! Thread: the record of this thread, and how a block's bytes are charged to its owner.
//!
//! - I1. No thread-local here has a destructor or allocates, so blocks may be allocated and freed
//!   at any time in a thread's life.
//! - I2. A key of the system's threads (`pthread_key_create`) reports the end of a thread. The
//!   thread then returns its record, with the bytes in it. A block that the thread allocates or
//!   frees later borrows a record for that one call.
//! - I3. Within the engine no block is charged, and the engine is not called. The bytes of blocks
//!   that are freed there stay in the slots, and the record is marked. A record is also marked if
//!   another thread wants bytes from it that it cannot take (`records` I4). A marked record allows
//!   no stores, so the thread's next block outside the engine takes the slow path, which settles
//!   the record.
//! - I4. No panic leaves this file, because it would unwind through `GlobalAlloc`. The slow paths
//!   are `extern "C"`, so a panic of the engine aborts.
//! - I5. While the engine works for a block, the thread counts as within the engine. So blocks that
//!   the engine allocates are charged to no group, and no call comes back here.

#![allow(unsafe_code)]

use core::cell::Cell;
use core::ptr;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU32};

use memgroup::block::{self, Holder, Owner, Take};
use memgroup_sync::atomic::Ordering;
use memgroup_sync::depth;

use crate::records::{Record, Records};
use crate::slots::{Answer, Key, Put, UNIT, UNITS_MOST};
use crate::{barrier, mode};

static RECORDS: Records = Records::new();

/// Stands for the record of a thread that has none yet. It never has an owner.
static NONE: Record = Record::new(false);

/// The same for a thread that has returned its record.
static ENDED: Record = Record::new(false);

std::thread_local! {
    // A pointer, because with older compilers a constant cannot refer to a static that changes.
    static RECORD: Cell<*const Record> = const { Cell::new(&raw const NONE) };
}

/// The most units that a slot holds back while a charge waits.
const BESIDE_MOST: u64 = Owner::BESIDE_MOST / UNIT;

/// The limit refuses the block, which may fail.
#[derive(Debug)]
pub(crate) struct Refused;

#[inline(always)]
fn key(owner: Owner) -> Key {
    Key::of((owner.address().expose_provenance() / Owner::ALIGN) as u64)
}

fn owner(key: Key) -> Owner {
    let address = ptr::with_exposed_provenance::<()>(key.number() as usize * Owner::ALIGN);
    // SAFETY: keys are made from owners' addresses (`key`), which were exposed there and stay valid
    // for ever. `Owner` consists of the reference only.
    unsafe { core::mem::transmute::<*const (), Owner>(address) }
}

#[inline(always)]
fn record() -> &'static Record {
    // SAFETY: NONE, ENDED, or one that came as a `&'static`.
    unsafe { &*RECORD.get() }
}

/// Charges a new small block of `units` to the current owner. Returns the owner; `None` if the
/// block is charged to no group.
#[inline(always)]
pub(crate) fn charge(units: u64) -> Option<Owner> {
    let owner = owner_of_new()?;
    if record().take(key(owner), units) { Some(owner) } else { charge_elsewhere(owner, units) }
}

/// Does the work of `charge` for a block that may be refused.
pub(crate) fn charge_unless_refused(units: u64) -> Result<Option<Owner>, Refused> {
    let Some(owner) = owner_of_new() else { return Ok(None) };
    if units <= UNITS_MOST {
        return Ok(charge_elsewhere(owner, units));
    }
    charge_large(owner, units)
}

/// The owner of a block that this thread makes now.
#[inline(always)]
fn owner_of_new() -> Option<Owner> {
    if block::allocates_inside() {
        begin();
        return None;
    }
    if mode::is_uncounted() { None } else { block::current() }
}

/// Registers this allocator with the engine. The engine allocates for the first hierarchy, so it is
/// the first caller.
#[inline(always)]
fn begin() {
    static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
    // ORDERING: Relaxed, both, because doing this twice has no further effect.
    if !HAS_BEGUN.load(Ordering::Relaxed) {
        HAS_BEGUN.store(begin_now(), Ordering::Relaxed);
    }
}

/// Registers the holder and the handler of forks. Returns whether the system accepted that.
#[cold]
#[inline(never)]
fn begin_now() -> bool {
    // If another allocator holds bytes back, the engine could not ask this one for its bytes.
    block::register(&AllThreads) && hears_of_forks()
}

/// Does the work of `charge` from any slot, or from the engine.
#[inline(never)]
fn charge_elsewhere(owner: Owner, units: u64) -> Option<Owner> {
    let record = record();
    let is_taken =
        !record.is_due() && record.find(key(owner)).is_some_and(|(slot, _)| slot.take(key(owner), units));
    if is_taken { Some(owner) } else { charge_slowly(owner, units) }
}

#[cold]
#[inline(never)]
#[allow(improper_ctypes_definitions)] // Rust code alone calls it (I4).
extern "C" fn charge_slowly(owner: Owner, units: u64) -> Option<Owner> {
    if owner.is_inherited() || block::is_inside() {
        return None;
    }
    let _inside = depth::enter();
    let bytes = units * UNIT;
    let charged = with_record(|record| {
        settle(record);
        // While a charge waits, nothing is charged ahead.
        let slot = record.slots.find(key(owner)).filter(|_| !owner.is_held_up());
        let ahead = slot.map_or(0, |at| record.next_ahead(at)) * UNIT;
        let charged = owner.charge(bytes, ahead)?;
        hold(record, charged.owner, (charged.bytes - bytes) / UNIT);
        Some(charged.owner)
    });
    charged.unwrap_or_else(|| owner.charge(bytes, 0).map(|charged| charged.owner))
}

#[cold]
#[inline(never)]
#[allow(improper_ctypes_definitions)] // As above.
extern "C" fn charge_large(owner: Owner, units: u64) -> Result<Option<Owner>, Refused> {
    if owner.is_inherited() || block::is_inside() {
        return Ok(None);
    }
    let _inside = depth::enter();
    settle(record());
    let bytes = units * UNIT;
    if mode::is_fallible() {
        return mode::try_charge(owner, bytes).map(Some).ok_or(Refused);
    }
    Ok(owner.charge(bytes, 0).map(|charged| charged.owner))
}

/// The outcome of growing a block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grown {
    Charged,
    Refused,
    /// Not here: the thread is within the engine, or no counter can hold the bytes.
    NotHere,
}

/// Charges `more` units to the owner of a block that grows to `all`.
#[inline(never)]
pub(crate) fn grow(owner: Owner, more: u64, all: u64) -> Grown {
    let record = record();
    let is_taken = record.take(key(owner), more)
        || !record.is_due() && record.find(key(owner)).is_some_and(|(slot, _)| slot.take(key(owner), more));
    if is_taken { Grown::Charged } else { grow_slowly(owner, more, all) }
}

#[cold]
#[inline(never)]
#[allow(improper_ctypes_definitions)] // As above.
extern "C" fn grow_slowly(owner: Owner, more: u64, all: u64) -> Grown {
    if owner.is_inherited() {
        // It is not uncharged either.
        return Grown::Charged;
    }
    if block::is_inside() {
        return Grown::NotHere;
    }
    let _inside = depth::enter();
    settle(record());
    if all > UNITS_MOST && mode::is_fallible() {
        return if mode::try_grow(owner, more * UNIT) { Grown::Charged } else { Grown::Refused };
    }
    if owner.grow(more * UNIT) { Grown::Charged } else { Grown::NotHere }
}

/// Uncharges `units` of a block's owner.
#[inline(always)]
pub(crate) fn uncharge(owner: Owner, units: u64) {
    if !record().put(key(owner), units) {
        uncharge_elsewhere(owner, units);
    }
}

/// Does the work of `uncharge` with a slot other than the last one, or with the engine.
#[inline(never)]
fn uncharge_elsewhere(owner: Owner, units: u64) {
    let record = record();
    let slot = if record.is_due() { None } else { record.find(key(owner)) };
    match slot.map_or(Put::NoSlot, |(slot, most)| slot.put(key(owner), units, most)) {
        Put::Kept => {}
        Put::Left(units) => uncharge_slowly(owner, units, false),
        Put::NoSlot => uncharge_slowly(owner, units, true),
    }
}

/// Uncharges a block that was not made after all.
#[cold]
#[inline(never)]
pub(crate) fn take_back(owner: Option<Owner>, units: u64) {
    if let Some(owner) = owner {
        uncharge(owner, units);
    }
}

#[cold]
#[inline(never)]
#[allow(improper_ctypes_definitions)] // As above.
extern "C" fn uncharge_slowly(owner: Owner, units: u64, may_open: bool) {
    if owner.is_inherited() {
        return;
    }
    if block::is_inside() {
        if with_record(|record| keep_inside(record, owner, units)) != Some(true) {
            owner.uncharge_inside(units * UNIT);
        }
        return;
    }
    let _inside = depth::enter();
    settle(record());
    let opens = may_open && units <= UNITS_MOST;
    let is_held = opens
        && with_record(|record| {
            settle(record);
            hold(record, owner, units);
        })
        .is_some();
    if !is_held {
        owner.uncharge(units * UNIT);
        // The slot was full, perhaps because a charge was waiting that no longer waits.
        _ = with_record(|record| {
            record.find(key(owner)).filter(|(_, most)| *most < UNITS_MOST).map(|_| hold(record, owner, 0))
        });
    }
}

/// Keeps `units` in a slot of their owner, or in one without an owner. Returns whether there is
/// one.
fn keep_inside(record: &Record, owner: Owner, units: u64) -> bool {
    let slot = record.slots.find(key(owner)).filter(|_| units <= UNITS_MOST);
    let Some(at) = slot else { return false };
    record.mark_due();
    if let Some((_, units)) = record.slots.open(at, key(owner), units).left {
        // Too many for one word.
        owner.uncharge_inside(units * UNIT);
    }
    true
}

/// Holds back `units`, which are charged to `owner`.
fn hold(record: &Record, owner: Owner, units: u64) {
    let key = key(owner);
    let at = record.slots.find(key).unwrap_or_else(|| record.victim());
    let opened = record.slots.open(at, key, units);
    let was_beside = opened.was_open && record.most(at) < UNITS_MOST;
    if let Some((other, units)) = opened.left {
        record.begin_again(at);
        self::owner(other).uncharge(units * UNIT);
    }
    if owner.may_hold() {
        record.set_most(at, UNITS_MOST);
    } else if opened.units <= BESIDE_MOST && owner.may_hold_beside(was_beside) {
        record.set_most(at, BESIDE_MOST);
    } else {
        owner.uncharge(record.slots.close(key) * UNIT);
    }
}

/// Uncharges the bytes that a marked record may not hold back. Only outside the engine.
fn settle(record: &Record) {
    let is_over = |key, units| units > UNITS_MOST || !owner(key).may_hold();
    record.settle(
        |key, units| if is_over(key, units) { Answer::Close } else { Answer::Keep },
        |key, units| owner(key).uncharge(units * UNIT),
    );
}

/// Settles the record of this thread, if it is marked.
pub(crate) fn settle_own() {
    if !block::is_inside() {
        let _inside = depth::enter();
        settle(record());
    }
}

/// Calls `act` with the record of this thread. Returns `None` if the system has no memory for one.
fn with_record<T>(act: impl FnOnce(&'static Record) -> T) -> Option<T> {
    let own = record();
    if ptr::eq(own, &NONE) {
        let claimed = RECORDS.claim(make)?;
        if tell_at_the_end(claimed) {
            RECORD.set(claimed);
            return Some(act(claimed));
        }
        return Some(borrowed(claimed, act));
    }
    if ptr::eq(own, &ENDED) {
        return RECORDS.claim(make).map(|claimed| borrowed(claimed, act));
    }
    Some(act(own))
}

/// Calls `act` with a record that is returned at once (I2).
fn borrowed<T>(record: &'static Record, act: impl FnOnce(&'static Record) -> T) -> T {
    let done = act(record);
    give_back(record);
    done
}

/// Returns a record of this thread.
fn give_back(record: &Record) {
    while !record.give_back() {
        if block::is_inside() {
            return record.give_back_due();
        }
        let _inside = depth::enter();
        settle(record);
    }
}

fn make() -> Option<&'static Record> {
    if !begin_now() {
        return None;
    }
    // SAFETY: the layout is not of size 0.
    let place = unsafe { System.alloc(Layout::new::<Record>()) }.cast::<Record>();
    if place.is_null() {
        return None;
    }
    // SAFETY: fresh memory with the layout of a record.
    unsafe { place.write(Record::new(barrier::is_offered())) };
    // SAFETY: written above, and never freed.
    Some(unsafe { &*place })
}

/// Returns whether the system calls `begin_child` in the child of a fork, from now on.
fn hears_of_forks() -> bool {
    static IS_ASKED: AtomicBool = AtomicBool::new(false);
    // ORDERING: Relaxed, both, because the answer publishes nothing else.
    if cfg!(miri) || IS_ASKED.swap(true, Ordering::Relaxed) {
        return true;
    }
    // SAFETY: the function only changes atomics, so it may be called in any child.
    let hears = unsafe { libc::pthread_atfork(None, None, Some(begin_child)) } == 0;
    IS_ASKED.store(hears, Ordering::Relaxed);
    hears
}

/// The system calls this on the only thread of a fork's child (`records` P2).
unsafe extern "C" fn begin_child() {
    block::begin_child();
    RECORDS.all().for_each(|record| record.begin_child(barrier::is_offered()));
}

/// The key that reports the end of a thread, plus one. It is zero if none was made yet.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Makes the system return the record at the end of this thread. Returns whether it will.
fn tell_at_the_end(record: &'static Record) -> bool {
    let Some(key) = exit_key() else { return false };
    // SAFETY: the key was made by `exit_key`, and is never deleted. The value is any pointer.
    unsafe { libc::pthread_setspecific(key, ptr::from_ref(record).cast()) == 0 }
}

fn exit_key() -> Option<libc::pthread_key_t> {
    // ORDERING: Relaxed, because the number publishes nothing else.
    let known = KEY.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known - 1);
    }
    let mut made: libc::pthread_key_t = 0;
    // SAFETY: `made` is written; the function is called with values that `tell_at_the_end` sets.
    if unsafe { libc::pthread_key_create(&mut made, Some(at_the_end)) } != 0 {
        return None;
    }
    // ORDERING: Relaxed, both; a number by itself.
    match KEY.compare_exchange(0, made + 1, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Some(made),
        Err(others) => {
            // SAFETY: made above, and known to no other thread.
            unsafe { libc::pthread_key_delete(made) };
            Some(others - 1)
        }
    }
}

/// The system calls this when a thread with a record ends.
unsafe extern "C" fn at_the_end(record: *mut libc::c_void) {
    RECORD.set(&raw const ENDED);
    // SAFETY: the value that `tell_at_the_end` set: a record, which lives for ever.
    give_back(unsafe { &*record.cast::<Record>() });
}

/// The held back bytes of all threads.
struct AllThreads;

impl Holder for AllThreads {
    fn visit(&self, ask: &mut dyn FnMut(Owner, u64) -> Take, taken: &mut dyn FnMut(Owner, u64)) {
        let answer = |key, units| match ask(owner(key), units * UNIT) {
            Take::Nothing => Answer::Keep,
            Take::Bytes => Answer::Empty,
            Take::Close => Answer::Close,
            Take::CloseSoon => Answer::CloseSoon,
        };
        let taken = |key, units| taken(owner(key), units * UNIT);
        // Without the barrier, bytes stay charged (see the README's limits).
        _ = RECORDS.collect(Some(record()), answer, taken, barrier::make);
    }

    fn begin(&self) {
        mode::wrap_panic_hook_once();
    }
}

const _: () = assert!(Owner::ADDRESS_BITS - Owner::ALIGN.trailing_zeros() <= Key::BITS);

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// The exit status of a child that calls `look`. It may change atomics, and nothing else.
    fn status_of_child(look: impl Fn() -> libc::c_int) -> libc::c_int {
        // SAFETY: the child ends below, and only reads and writes atomics before.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "the system makes a child");
        if child == 0 {
            // SAFETY: ends the child at once, without destructors.
            unsafe { libc::_exit(look()) };
        }
        let mut status = 0;
        // SAFETY: `status` is written; the child is this process's own.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_child_waits_for_no_thread_that_it_lacks() {
        let both = Barrier::new(2);
        let fork_beside = |act: fn(&'static Record), end: fn(&'static Record)| {
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    with_record(|record| {
                        act(record);
                        both.wait();
                        both.wait();
                        end(record);
                    })
                    .expect("a record");
                });
                both.wait();
                let status = status_of_child(|| {
                    let is_free = |record: &Record| {
                        // ORDERING: Relaxed; the child has one thread.
                        let is_idle = !record.is_busy.load(Ordering::Relaxed);
                        // Threads of other tests may have ended.
                        is_idle && (record.enter() == barrier::is_offered() || !record.has_owner())
                    };
                    libc::c_int::from(!RECORDS.all().all(is_free))
                });
                both.wait();
                status
            })
        };
        assert_eq!(fork_beside(|record| _ = record.enter(), Record::leave), 0, "a busy record");
        assert_eq!(fork_beside(Record::stop, Record::go_on), 0, "a stopped record");
    }
}
