//! App: the parts of a running server that its requests share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use memgroup::{Charge, ChargeError, Hierarchy};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::account::Account;
use crate::actions::Actions;
use crate::config::Serve;
use crate::conn::Conns;
use crate::log::Limiter;
use crate::pace::Pace;
use crate::sample::Samples;
use crate::snapshots::Snapshots;

/// Bytes that a connection takes: the head and the body of a request, and the part of an answer
/// that is waiting to be written.
const CONNECTION: u64 = 64 << 10;

/// The parts of a running server.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) serve: Serve,
    pub(crate) account: Account,
    pub(crate) access: Access,
    pub(crate) conns: Conns,
    /// The places for streams of events.
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) snapshots: Snapshots,
    pub(crate) samples: Samples,
    /// `None` if no client may control.
    pub(crate) actions: Option<Actions>,
    pub(crate) started: SystemTime,
    pub(crate) denied: Limiter,
    /// Answers so far, by status.
    pub(crate) answers: Mutex<BTreeMap<u16, u64>>,
    /// The bytes of the most connections there may be. They are charged in advance, so that an
    /// operator can connect and raise the server's own limit while its group is full.
    _connections: Charge,
    /// How many groups there were when the sampler last listed them.
    pub(crate) groups: Estimate,
    /// Groups that events do not cover, because the server's group is full.
    pub(crate) untold: Estimate,
    /// How many waits the last list of them had.
    pub(crate) waits: Estimate,
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
        Ok(App {
            samples,
            _connections: connections,
            denied: Limiter::default(),
            answers: Mutex::default(),
            groups: Estimate(AtomicUsize::new(hierarchy.groups().len())),
            untold: Estimate::default(),
            waits: Estimate::default(),
            pace: Arc::new(Pace::new(serve.cpu_percent)),
            conns: Conns::default(),
            streams: Arc::new(Semaphore::new(serve.connections / 2)),
            snapshots: Snapshots::default(),
            actions,
            started: SystemTime::now(),
            hierarchy,
            serve,
            account,
            access,
        })
    }
}

/// A number that one request or task leaves for others. It may be out of date.
#[derive(Debug, Default)]
pub(crate) struct Estimate(AtomicUsize);

impl Estimate {
    pub(crate) fn get(&self) -> usize {
        // ORDERING: Relaxed, here and in `set`: no other memory is published with the number.
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, number: usize) {
        self.0.store(number, Ordering::Relaxed);
    }
}
