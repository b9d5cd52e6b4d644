//! Ledger: the figures that the engine should report, kept apart from it.
//!
//! - I1. An account exists exactly as long as the engine must keep its group. It must while the
//!   group is online, has a handle, a charged byte or a child.
//! - I2. When an account ends, its events and statistics go to its parent's account.
//! - B1. Accounts are exact when no actor is in a step.

use std::mem;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use memgroup::{Charge, Events, Group, GroupId};

/// The number of statistics that actors add to.
pub(crate) const STATS: usize = 3;
pub(crate) const EVENTS: usize = 7;

/// Events and statistics, added up over a subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) events: [u64; EVENTS],
    pub(crate) stats: [i64; STATS],
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.events.iter_mut().zip(other.events).for_each(|(sum, value)| *sum += value);
        self.stats.iter_mut().zip(other.stats).for_each(|(sum, value)| *sum += value);
    }
}

pub(crate) fn numbers(events: &Events) -> [u64; EVENTS] {
    let Events { low, high, max, oom, oom_kill, oom_group_kill, would_refuse, .. } = *events;
    [low, high, max, oom, oom_kill, oom_group_kill, would_refuse]
}

/// A lock that is not poisoned by a callback's panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One group's figures.
pub(crate) struct Account {
    pub(crate) path: String,
    pub(crate) parent: Option<Arc<Account>>,
    live: AtomicU64,
    stats: [AtomicI64; STATS],
    /// Events of the group alone, written when its last handle is dropped.
    last: Mutex<[u64; EVENTS]>,
    /// Events and statistics of former groups below.
    gone: Mutex<Tally>,
    member: OnceLock<Weak<Member>>,
}

impl Account {
    pub(crate) fn member(&self) -> Option<Arc<Member>> {
        self.member.get().and_then(Weak::upgrade)
    }

    /// Bytes that are charged to the group itself.
    pub(crate) fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Statistics of the group itself.
    pub(crate) fn stats(&self) -> [i64; STATS] {
        std::array::from_fn(|stat| self.stats[stat].load(Ordering::Relaxed))
    }

    pub(crate) fn count(&self, stat: usize, delta: i64) {
        self.stats[stat].fetch_add(delta, Ordering::Relaxed);
    }

    /// Events and statistics that count in the group and in each of its ancestors.
    pub(crate) fn own(&self) -> Tally {
        let events = match self.member() {
            Some(member) => numbers(&member.group.events_local()),
            None => *lock(&self.last),
        };
        let mut tally = Tally { events, stats: self.stats() };
        tally.add(&lock(&self.gone));
        tally
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // After a failed test charges are dropped in any order.
        assert!(
            self.live() == 0 || std::thread::panicking(),
            "{} is gone, and has {}",
            self.path,
            self.live()
        );
        if let Some(parent) = &self.parent {
            lock(&parent.gone).add(&self.own());
        }
    }
}

/// A handle on a group, shared by all actors that use it.
pub(crate) struct Member {
    pub(crate) group: Group,
    pub(crate) account: Arc<Account>,
    /// Some and full, in microseconds, as they were last seen.
    pub(crate) pressure: Mutex<[u64; 2]>,
    /// Events as they were last seen.
    pub(crate) seen: Mutex<[u64; EVENTS]>,
    /// Keeps the parent's handle: a thread that can count events in this group counts them in the
    /// parent, too.
    parent: Option<Arc<Member>>,
}

impl Member {
    pub(crate) fn new(group: Group, parent: Option<Arc<Member>>) -> Arc<Member> {
        let account = Arc::new(Account {
            path: group.path(),
            parent: parent.as_ref().map(|parent| Arc::clone(&parent.account)),
            live: AtomicU64::new(0),
            stats: std::array::from_fn(|_| AtomicI64::new(0)),
            last: Mutex::default(),
            gone: Mutex::default(),
            member: OnceLock::new(),
        });
        let member =
            Arc::new(Member { group, account, pressure: Mutex::default(), seen: Mutex::default(), parent });
        member.account.member.get_or_init(|| Arc::downgrade(&member));
        member
    }

    /// The group and all above it.
    pub(crate) fn levels(&self) -> impl Iterator<Item = &Member> {
        std::iter::successors(Some(self), |level| level.parent.as_deref())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        *lock(&self.account.last) = numbers(&self.group.events_local());
    }
}

/// The value that stands for charged bytes.
pub(crate) enum Paper {
    Plain(Charge),
    Gone,
}

/// A charge with its entry in the ledger.
pub(crate) struct Held {
    pub(crate) paper: Paper,
    pub(crate) member: Arc<Member>,
    noted: u64,
}

impl Held {
    pub(crate) fn new(member: &Arc<Member>, paper: Paper) -> Held {
        let mut held = Held { paper, member: Arc::clone(member), noted: 0 };
        held.note();
        held
    }

    pub(crate) fn plain(member: &Arc<Member>, charge: Charge) -> Held {
        Held::new(member, Paper::Plain(charge))
    }

    pub(crate) fn bytes(&self) -> u64 {
        match &self.paper {
            Paper::Plain(charge) => charge.bytes(),
            Paper::Gone => 0,
        }
    }

    /// Enters the change of its bytes since the last entry.
    pub(crate) fn note(&mut self) {
        let (now, account) = (self.bytes(), &self.member.account);
        let change = now.wrapping_sub(self.noted);
        account.live.fetch_add(change, Ordering::Relaxed);
        self.noted = now;
    }

    /// Takes its bytes out of the ledger, and returns the charge.
    pub(crate) fn strike(&mut self) -> Paper {
        let (account, paper) = (&self.member.account, mem::replace(&mut self.paper, Paper::Gone));
        account.live.fetch_sub(self.noted, Ordering::Relaxed);
        self.noted = 0;
        paper
    }

    /// Enters its bytes for another group, after a move.
    pub(crate) fn moved_to(&mut self, member: &Arc<Member>) {
        let paper = self.strike();
        self.member = Arc::clone(member);
        self.paper = paper;
        self.note();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.strike());
    }
}

/// Charged bytes without a `Charge`: only the group's id and the number of bytes are known.
pub(crate) struct Orphan {
    pub(crate) id: GroupId,
    pub(crate) bytes: u64,
    account: Arc<Account>,
}

impl Orphan {
    /// `None` for a charge without bytes, which has nothing to uncharge.
    pub(crate) fn of(mut held: Held) -> Option<Orphan> {
        let bytes = held.bytes();
        let charge = match held.strike() {
            Paper::Plain(charge) => charge,
            Paper::Gone => return None,
        };
        let account = Arc::clone(&held.member.account);
        let (id, _) = charge.into_parts();
        account.live.fetch_add(bytes, Ordering::Relaxed);
        (bytes > 0).then_some(Orphan { id, bytes, account })
    }

    /// Has `uncharge` uncharge the bytes. After that they do not keep the group any more.
    pub(crate) fn bury(self, uncharge: impl FnOnce(GroupId, u64)) {
        self.account.live.fetch_sub(self.bytes, Ordering::Relaxed);
        uncharge(self.id, self.bytes);
    }
}
