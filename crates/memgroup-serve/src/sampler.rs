//! Sampler: the task that checks the tree, for events, history, log lines and the facade `metrics`.
//!
//! Ten times a second it reads the root's counts of events, which is a few loads. If they changed,
//! and once each second, it checks all groups. It does not subscribe to events, because a delivery
//! would run the program's callbacks on the server's thread, and a wait makes each event take a
//! lock.
//!
//! - B1. Checks of all groups take at most a twentieth of the server's time, because the next one
//!   waits twenty times as long as the last one took.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use memgroup::{ChargeError, Group};
use tokio::time::MissedTickBehavior;

use crate::account::uncounted;
use crate::app::App;
#[cfg(feature = "metrics")]
use crate::facade::Facade;
use crate::log::{self, Log};
use crate::sample::{Groups, Kill, Kills, Samples, unix_us};
use crate::snapshots::Found;

/// Time between two reads of the root's events.
const PERIOD: Duration = Duration::from_millis(100);
/// Reads of the root's events between two samples of the history.
const SAMPLE: u32 = 10;
/// Groups that are checked between two readings of the clock.
const GROUPS_A_PIECE: usize = 32;
/// How many times longer than a check of all groups the pause after it is.
const PAUSE: u32 = 20;

/// The task.
pub(crate) struct Sampler {
    app: Arc<App>,
    groups: Groups,
    kills: Kills,
    log: Log,
    #[cfg(feature = "metrics")]
    facade: Facade,
    root: Group,
    /// The root's counts of events at the last check of all groups.
    events: memgroup::Events,
    /// The next check of all groups must not begin before this time.
    not_before: Instant,
}

impl Sampler {
    pub(crate) fn new(app: &Arc<App>) -> Result<Sampler, ChargeError> {
        let root = app.hierarchy.root();
        Ok(Sampler {
            groups: Groups::new(app.account.empty()?),
            kills: Kills::default(),
            log: Log::new(&app.hierarchy),
            #[cfg(feature = "metrics")]
            facade: Facade::default(),
            events: root.events(),
            root,
            not_before: Instant::now(),
            app: Arc::clone(app),
        })
    }

    /// Checks the tree until the server is stopped.
    pub(crate) async fn run(mut self) {
        self.begin();
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut number = 0_u32;
        let mut is_due = false;
        loop {
            ticks.tick().await;
            is_due |= number.is_multiple_of(SAMPLE);
            number = number.wrapping_add(1);
            let events = self.root.events();
            if Instant::now() < self.not_before || !(is_due || events != self.events) {
                continue;
            }
            let app = Arc::clone(&self.app);
            let has_looked = app.pace.exempt(|| self.look(events, is_due));
            is_due &= !has_looked;
        }
    }

    /// Records what happened before the server started, so that it isn't reported.
    fn begin(&mut self) {
        self.kills.begin(&self.app.hierarchy.kills());
        if let Ok(found) = Found::below(&self.root, &self.app.account, self.app.groups.get()) {
            self.groups.look(&self.app.account, found.online(), 0, None, |_, _| ());
        }
    }

    /// Checks all groups. Returns `false` if there is no memory for their list. No event is lost
    /// then: counts only grow, so the next check finds what this one would have found.
    fn look(&mut self, events: memgroup::Events, is_sample: bool) -> bool {
        let began = Instant::now();
        let Ok(found) = Found::below(&self.root, &self.app.account, self.app.groups.get()) else {
            self.app.untold.set(self.app.groups.get());
            return false;
        };
        self.events = events;
        let samples = &self.app.samples;
        let Samples { ring, history, .. } = samples;
        let now = unix_us(SystemTime::now());
        let reports = self.app.hierarchy.kills();
        for (number, position) in self.kills.look(&reports) {
            let report = &reports[position];
            ring.push("kill", &Kill { report, now_unix_us: now, number: Some(number) });
            log::kill(report);
        }
        samples.kills.lock().clone_from(&self.kills.totals);
        let groups: Vec<&Group> = uncounted(|| found.online().collect());
        self.app.groups.set(groups.len());
        let pieces = groups.chunks(GROUPS_A_PIECE).inspect(|_| self.app.pace.rest());
        self.groups.look(&self.app.account, pieces.flatten().copied(), now, Some(ring), |group, met| {
            self.log.met(group, met)
        });
        self.app.untold.set(self.groups.untold);
        if is_sample {
            let wanted = |at| found.reader.is_online(at);
            let largest = found.largest(self.app.serve.history_groups, wanted);
            let all: Vec<&Group> = uncounted(|| found.reader.groups().collect());
            let largest: Vec<&Group> = largest.into_iter().map(|at| all[at]).collect();
            history.sample(&self.app.account, &largest, now / 1000);
            self.log.tick();
            #[cfg(feature = "metrics")]
            self.facade.sample(largest.into_iter());
        }
        self.not_before = Instant::now() + PAUSE * began.elapsed();
        true
    }
}
