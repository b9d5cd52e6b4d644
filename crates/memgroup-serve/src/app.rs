//! App: the parts of a running server that its requests share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use memgroup::{Charge, ChargeError, Hierarchy};

use crate::access::Access;
use crate::account::Account;
use crate::actions::Actions;
use crate::config::Serve;
use crate::conn::Conns;
use crate::log::Limiter;
use crate::pace::Pace;
use crate::sample::Samples;
use crate::snapshots::Snapshots;

/// Bytes that a connection takes: the head and the body of a request, and the part of an answer that waits to be written.
const CONNECTION: u64 = 64 << 10;

/// The parts of a running server.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) serve: Serve,
    pub(crate) account: Account,
    pub(crate) access: Access,
    pub(crate) conns: Arc<Conns>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) snapshots: Snapshots,
    pub(crate) samples: Samples,
    /// `None` where no client may control.
    pub(crate) actions: Option<Actions>,
    pub(crate) started: SystemTime,
    pub(crate) denied: Limiter,
    /// Answers so far, by status.
    answers: Mutex<BTreeMap<u16, u64>>,
    /// The bytes of all connections that there may be. So an operator can connect, and raise the server's own limit, while its group is full.
    _connections: Charge,
    groups: AtomicUsize,
    untold: AtomicUsize,
    /// How many waits the last list of them had.
    pub(crate) waits: AtomicUsize,
}

impl App {
    pub(crate) fn new(
        hierarchy: Hierarchy,
        serve: Serve,
        account: Account,
        access: Access,
        actions: Option<Actions>,
    ) -> Result<App, ChargeError> {
        let samples = Samples::new(&account, &serve)?;
        let connections = account.charge(serve.connections as u64 * CONNECTION)?;
        let groups = AtomicUsize::new(hierarchy.groups().len());
        Ok(App {
            samples,
            _connections: connections,
            denied: Limiter::default(),
            answers: Mutex::default(),
            untold: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            pace: Arc::new(Pace::new(serve.cpu_percent)),
            conns: Arc::default(),
            snapshots: Snapshots::default(),
            actions,
            started: SystemTime::now(),
            groups,
            hierarchy,
            serve,
            account,
            access,
        })
    }

    /// About how many groups there are: the number at the last look.
    pub(crate) fn groups(&self) -> usize {
        // ORDERING: Relaxed; the number alone is handed over, and it is an estimate.
        self.groups.load(Ordering::Relaxed)
    }

    pub(crate) fn set_groups(&self, groups: usize) {
        // ORDERING: Relaxed; as in `groups`.
        self.groups.store(groups, Ordering::Relaxed);
    }

    /// Groups that events do not cover, because the server's group is full.
    pub(crate) fn untold(&self) -> usize {
        // ORDERING: Relaxed; the number alone is handed over, for reports.
        self.untold.load(Ordering::Relaxed)
    }

    pub(crate) fn set_untold(&self, groups: usize) {
        // ORDERING: Relaxed; as in `untold`.
        self.untold.store(groups, Ordering::Relaxed);
    }

    /// Counts an answer.
    pub(crate) fn count(&self, status: u16) {
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
    }

    /// How many answers there were of each status.
    pub(crate) fn answers(&self) -> BTreeMap<u16, u64> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
