//! Open files: the state of one descriptor.
//!
//! - I1. A read at offset 0 makes the text anew, and the reads that follow see that text, as with the kernel's `seq_file`.
//! - I2. A descriptor keeps no group, except by a peak that was reset or by a trigger. Both go when the group is removed (`watch`).
//! - I3. The values that a poll compares are read before the text. So a change between the two is told; at worst it is told although the text has it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::{Errno, PollEvents};
use memgroup::{Events, Group, PeakReader, PressureTrigger, PressureWatch, WeakGroup};

use crate::error;
use crate::files::{File, Kind};

/// The most bytes of one write, as the kernel's.
const WRITE_MAX: usize = 4096;

/// The answer of the kernel to a poll of any file that can be read and written at once.
const READY: PollEvents =
    PollEvents::POLLIN.union(PollEvents::POLLOUT).union(PollEvents::POLLRDNORM).union(PollEvents::POLLWRNORM);

/// News, as of a file that changed since it was read.
const CHANGED: PollEvents = READY.union(PollEvents::POLLERR).union(PollEvents::POLLPRI);

/// A descriptor of a file.
pub(crate) struct Open {
    group: WeakGroup,
    file: Arc<File>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    text: String,
    /// The values at the last read; `None` before the first.
    seen: Option<Seen>,
    peak: Option<PeakReader>,
    trigger: Option<PressureWatch>,
    /// The trigger has fired, and no poll has told it.
    has_fired: bool,
}

/// The values that a poll compares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Events(Events),
    Populated(bool),
    /// The file tells no changes.
    Nothing,
}

/// A write that is done, or that takes long and is left to a worker.
pub(crate) enum Write {
    Done,
    Later(Group, String),
}

impl Open {
    pub(crate) fn new(group: WeakGroup, file: Arc<File>) -> Open {
        Open { group, file, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group, if it was not removed.
    pub(crate) fn group(&self) -> Result<Group, Errno> {
        self.group.upgrade().filter(Group::is_online).ok_or(Errno::ENODEV)
    }

    pub(crate) fn id(&self) -> memgroup::GroupId {
        self.group.id()
    }

    fn now(&self, group: &Group) -> Seen {
        match self.file.kind {
            Kind::Events => Seen::Events(group.events()),
            Kind::EventsLocal => Seen::Events(group.events_local()),
            Kind::Populated => Seen::Populated(group.usage_exact() > 0),
            _ => Seen::Nothing,
        }
    }

    /// Calls `reply` with the bytes of the text from `offset` on, at most `size`.
    pub(crate) fn read<R>(&self, offset: u64, size: u32, reply: impl FnOnce(Result<&[u8], Errno>) -> R) -> R {
        let mut state = self.state();
        if (offset == 0 || state.seen.is_none())
            && let Err(errno) = self.refresh(&mut state)
        {
            return reply(Err(errno));
        }
        if offset > 0
            && let Err(errno) = self.group()
        {
            return reply(Err(errno));
        }
        let text = state.text.as_bytes();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let to = from.saturating_add(size as usize).min(text.len());
        reply(Ok(&text[from..to]))
    }

    fn refresh(&self, state: &mut State) -> Result<(), Errno> {
        let group = self.group()?;
        let seen = self.now(&group);
        state.text = match &state.peak {
            Some(peak) => format!("{}\n", peak.read()),
            None => group.read_file(&self.file.name).ok_or(Errno::EINVAL)?,
        };
        state.seen = Some(seen);
        Ok(())
    }

    /// Writes a text. A zero ends it, as a string of C.
    pub(crate) fn write(&self, data: &[u8]) -> Result<Write, Errno> {
        let group = self.group()?;
        if data.len() > WRITE_MAX {
            return Err(Errno::E2BIG);
        }
        if self.file.kind == Kind::Peak {
            self.state().peak.get_or_insert_with(|| group.peak_reader()).reset();
            return Ok(Write::Done);
        }
        let text = data.split(|&byte| byte == 0).next().unwrap_or_default();
        let text = str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        match self.file.kind {
            Kind::Reclaim => return Ok(Write::Later(group, text.to_owned())),
            Kind::Pressure => self.add_trigger(&group, text)?,
            _ => group.write_file(&self.file.name, text).map_err(|error| error::of_file(&error.problem))?,
        }
        Ok(Write::Done)
    }

    fn add_trigger(&self, group: &Group, text: &str) -> Result<(), Errno> {
        let mut state = self.state();
        if state.trigger.is_some() {
            return Err(Errno::EBUSY);
        }
        let trigger: PressureTrigger = text.parse().map_err(|_| Errno::EINVAL)?;
        state.trigger = Some(group.add_pressure_trigger(trigger));
        Ok(())
    }

    /// The answer to a poll. It takes the firing of a trigger away.
    pub(crate) fn poll(&self) -> PollEvents {
        let Ok(group) = self.group() else { return CHANGED };
        let mut state = self.state();
        if self.file.kind != Kind::Pressure {
            return if state.seen == Some(self.now(&group)) { READY } else { CHANGED };
        }
        let State { trigger: Some(trigger), has_fired, .. } = &mut *state else { return CHANGED };
        let fires = std::mem::take(has_fired) || trigger.wait(Duration::ZERO);
        if fires { READY.union(PollEvents::POLLPRI) } else { READY }
    }

    /// Whether a poll that waits is to be told. The firing of a trigger is kept for that poll.
    pub(crate) fn has_news(&self) -> bool {
        let has_news = self.poll().contains(PollEvents::POLLPRI);
        let mut state = self.state();
        state.has_fired = has_news && state.trigger.is_some();
        has_news
    }

    /// Whether the descriptor keeps its group. If the group was removed, it lets go.
    pub(crate) fn keeps_group(&self) -> bool {
        let is_online = self.group().is_ok();
        let mut state = self.state();
        if !is_online {
            // Dropped here: the mount's own code runs, and no lock of the engine is held.
            (state.peak, state.trigger) = (None, None);
        }
        state.peak.is_some() || state.trigger.is_some()
    }
}
