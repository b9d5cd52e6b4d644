//! Open files: the state of one descriptor.
//!
//! - I1. A read at offset 0 makes a new text, and the reads that follow see that text, as with the
//!   kernel's `seq_file`.
//! - I2. A descriptor keeps its group alive only through a peak that was reset or a trigger. Both
//!   are dropped when the group is removed (`watch`).
//! - I3. The values that a poll compares are read before the text, so a change between the two is
//!   reported. At worst it is reported although the text already has it.
//! - I4. A check of many descriptors looks up each group once and reads each of its values once
//!   ([`Values`]), however many of its descriptors are polled.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, PollEvents};
use memgroup::{Events, Group, GroupId, PeakReader, PressureTrigger, PressureWatch, WeakGroup};
use parking_lot::Mutex;

use crate::error;
use crate::files::{File, Kind};

/// The most bytes of one write, which is the kernel's limit.
const WRITE_MAX: usize = 4096;

/// The kernel's answer to a poll of any file that can be read and written without waiting.
const READY: PollEvents =
    PollEvents::POLLIN.union(PollEvents::POLLOUT).union(PollEvents::POLLRDNORM).union(PollEvents::POLLWRNORM);

/// The answer for a file that changed since it was read.
const CHANGED: PollEvents = READY.union(PollEvents::POLLERR).union(PollEvents::POLLPRI);

/// A descriptor of a file.
pub(crate) struct Open {
    /// The user that opened it.
    pub(crate) user: u32,
    group: WeakGroup,
    file: Arc<File>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    text: String,
    /// The values at the last read, or `None` before the first.
    seen: Option<Seen>,
    peak: Option<PeakReader>,
    trigger: Option<PressureWatch>,
    /// Whether the trigger has fired and no poll has reported it.
    has_fired: bool,
}

/// The values that a poll compares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Events(Events),
    Populated(bool),
    /// The file reports no changes.
    Nothing,
}

impl Seen {
    fn now(kind: Kind, group: &Group) -> Seen {
        match kind {
            Kind::Events => Seen::Events(group.events()),
            Kind::EventsLocal => Seen::Events(group.events_local()),
            // Without usage nothing is prepaid, so the exact sum isn't needed.
            Kind::Populated => Seen::Populated(group.usage() > 0 && group.usage_exact() > 0),
            _ => Seen::Nothing,
        }
    }
}

/// The groups and values that a check has read so far.
#[derive(Default)]
pub(crate) struct Values {
    /// `None` for a group that was removed.
    groups: HashMap<GroupId, Option<Group>>,
    seen: HashMap<(GroupId, Kind), Seen>,
    /// Groups that were looked up, and values that were read.
    #[cfg(test)]
    reads: usize,
}

impl Values {
    fn group(&mut self, open: &Open) -> Option<Group> {
        match self.groups.entry(open.id()) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(new) => {
                #[cfg(test)]
                (self.reads += 1);
                new.insert(open.group().ok()).clone()
            }
        }
    }

    fn of(&mut self, kind: Kind, group: &Group) -> Seen {
        *self.seen.entry((group.id(), kind)).or_insert_with(|| {
            #[cfg(test)]
            (self.reads += 1);
            Seen::now(kind, group)
        })
    }
}

/// A write that is done, or one that takes long and is left to a worker.
pub(crate) enum Write {
    Done,
    Later(Group, String),
}

impl Open {
    pub(crate) fn new(user: u32, group: WeakGroup, file: Arc<File>) -> Open {
        Open { user, group, file, state: Mutex::default() }
    }

    /// Returns the group, if it was not removed.
    pub(crate) fn group(&self) -> Result<Group, Errno> {
        self.group.upgrade().filter(Group::is_online).ok_or(Errno::ENODEV)
    }

    pub(crate) fn id(&self) -> memgroup::GroupId {
        self.group.id()
    }

    /// Calls `reply` with the bytes of the text from `offset` on, at most `size`.
    pub(crate) fn read<R>(&self, offset: u64, size: u32, reply: impl FnOnce(Result<&[u8], Errno>) -> R) -> R {
        let mut state = self.state.lock();
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
        let seen = Seen::now(self.file.kind, &group);
        state.text = match &state.peak {
            Some(peak) => format!("{}\n", peak.read()),
            None => group.read_file(&self.file.name).ok_or(Errno::EINVAL)?,
        };
        state.seen = Some(seen);
        Ok(())
    }

    /// Writes a text, which a zero byte ends, as in C.
    pub(crate) fn write(&self, data: &[u8]) -> Result<Write, Errno> {
        let group = self.group()?;
        if data.len() > WRITE_MAX {
            return Err(Errno::E2BIG);
        }
        if self.file.kind == Kind::Peak {
            self.state.lock().peak.get_or_insert_with(|| group.peak_reader()).reset();
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
        let mut state = self.state.lock();
        if state.trigger.is_some() {
            return Err(Errno::EBUSY);
        }
        let trigger: PressureTrigger = text.parse().map_err(|_| Errno::EINVAL)?;
        state.trigger = Some(group.add_pressure_trigger(trigger));
        Ok(())
    }

    /// Returns the answer to a poll, and resets a trigger that has fired.
    pub(crate) fn poll(&self) -> PollEvents {
        let group = self.group().ok();
        self.events(group.as_ref(), Seen::now)
    }

    /// Returns the events of the descriptor, whose group is `group` unless it was removed. `now`
    /// reads a value.
    fn events(&self, group: Option<&Group>, now: impl FnOnce(Kind, &Group) -> Seen) -> PollEvents {
        let Some(group) = group else { return CHANGED };
        let mut state = self.state.lock();
        if self.file.kind != Kind::Pressure {
            // A file that was never read counts as changed. Its value isn't needed, which may take
            // long to add up.
            let is_known = state.seen.is_some_and(|seen| seen == now(self.file.kind, group));
            return if is_known { READY } else { CHANGED };
        }
        let State { trigger: Some(trigger), has_fired, .. } = &mut *state else { return CHANGED };
        let fires = std::mem::take(has_fired) || trigger.wait(Duration::ZERO);
        if fires { READY.union(PollEvents::POLLPRI) } else { READY }
    }

    /// Returns whether a waiting poll must be notified. A trigger that has fired stays so for that
    /// poll.
    pub(crate) fn has_news(&self, values: &mut Values) -> bool {
        let group = values.group(self);
        let events = self.events(group.as_ref(), |kind, group| values.of(kind, group));
        let has_news = events.contains(PollEvents::POLLPRI);
        let mut state = self.state.lock();
        state.has_fired = has_news && state.trigger.is_some();
        has_news
    }

    /// Returns whether the descriptor keeps its group alive. If the group was removed, the
    /// descriptor releases it.
    pub(crate) fn keeps_group(&self, values: &mut Values) -> bool {
        let is_online = values.group(self).is_some();
        let mut state = self.state.lock();
        if !is_online {
            // It is safe to drop them here: only the mount's own code runs, and no lock of the
            // engine is held.
            (state.peak, state.trigger) = (None, None);
        }
        state.peak.is_some() || state.trigger.is_some()
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::*;
    use crate::files::Files;

    #[test]
    fn a_look_reads_each_group_and_each_value_once() {
        const EACH: usize = 1000;
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let groups = ["/", "/a", "/a/b"].map(|path| hierarchy.get_or_create(path).unwrap());
        let files = Files::of(&hierarchy);
        let names = ["memory.events", "memory.events.local", "cgroup.events"];
        let mut open = Vec::new();
        for (group, name) in groups.iter().flat_map(|group| names.map(|name| (group, name))) {
            let file = files.find(name).unwrap().1;
            open.extend((0..EACH).map(|_| Open::new(0, group.downgrade(), Arc::clone(&file))));
        }
        let news = |open: &[Open]| {
            let mut values = Values::default();
            let news: Vec<bool> = open.iter().map(|open| open.has_news(&mut values)).collect();
            open.iter().for_each(|open| assert!(!open.keeps_group(&mut values)));
            assert!(values.reads <= 3 + 9, "{} reads for {} descriptors", values.reads, open.len());
            (news.into_iter().filter(|&is_so| is_so).count(), values.reads)
        };
        assert_eq!(news(&open), (9 * EACH, 3), "they were not read yet, so no value is added up");
        let news = |open: &[Open]| news(open).0;
        open.iter().for_each(|open| open.read(0, 4096, |read| assert!(read.is_ok())));
        assert_eq!(news(&open), 0);
        let charge = groups[2].try_charge(1).unwrap();
        assert_eq!(news(&open), 3 * EACH, "each group is populated");
        drop(charge);
        assert_eq!(news(&open), 0);
        groups[2].set_max(0).unwrap();
        groups[2].try_charge(1).unwrap_err();
        assert_eq!(news(&open), 4 * EACH, "an event of it, and of those above");
        open.iter().for_each(|open| open.read(0, 4096, |read| assert!(read.is_ok())));
        groups[2].remove().unwrap();
        assert_eq!(news(&open), 3 * EACH, "each descriptor of the removed group is told");
    }
}
