//! View: which groups are shown in which order, the selected one, its history, and the keys.
//!
//! - I1. When the order changes, the selection stays with its group, by the group's id.
//! - I2. The history has only groups of the last snapshot, with at most `POINTS` points each.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::time::SystemTime;

use memgroup::{GroupId, GroupSnapshot, Snapshot};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The most points of a history.
pub(crate) const POINTS: usize = 600;

/// What siblings are sorted by: the largest figure first, or names from a to z.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// Bytes in use
    Usage,
    /// The highest number of bytes so far
    Peak,
    /// Charges that the group refused
    Refused,
    /// Share of the last 10 s in which a thread was stalled for memory
    Pressure,
    /// From a to z, as in the snapshot
    #[default]
    Name,
}

impl Sort {
    fn order(self, a: &GroupSnapshot, b: &GroupSnapshot) -> Ordering {
        match self {
            Sort::Usage => b.usage_bytes.cmp(&a.usage_bytes),
            Sort::Peak => b.peak_bytes.cmp(&a.peak_bytes),
            Sort::Refused => b.refusals.cmp(&a.refusals),
            Sort::Pressure => b.pressure.some.avg10.total_cmp(&a.pressure.some.avg10),
            Sort::Name => Ordering::Equal,
        }
    }
}

/// Figures of a group at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) unix_us: u64,
    pub(crate) usage: u64,
    /// Refusals since the point before.
    pub(crate) refused: u64,
    /// Refusals so far.
    refusals: u64,
    /// Hundredths of a percent.
    pub(crate) stalled: u64,
}

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    None,
    Redraw,
    Quit,
    /// Pauses or resumes a replay.
    Pause,
    /// Steps forward by this number of snapshots, or back if it's negative.
    Step(i64),
    /// Doubles the speed this number of times, or halves it if the number is negative.
    Speed(i32),
}

/// State of the screen.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// The groups of the last snapshot, and its time in microseconds since 1970.
    pub(crate) groups: Vec<GroupSnapshot>,
    pub(crate) taken_us: u64,
    /// Positions of the groups that are shown.
    pub(crate) order: Vec<usize>,
    pub(crate) sort: Sort,
    pub(crate) filter: String,
    /// The filter is being typed.
    pub(crate) is_typing: bool,
    /// The selected group is shown alone.
    pub(crate) is_detail: bool,
    /// The first visible line of the list, and the number of visible ones.
    pub(crate) from: usize,
    pub(crate) page: usize,
    selected: Option<GroupId>,
    history: HashMap<GroupId, VecDeque<Point>>,
    /// Why there is no newer snapshot.
    pub(crate) gone: Option<String>,
    pub(crate) is_replay: bool,
}

impl View {
    pub(crate) fn new(sort: Sort, filter: &str) -> View {
        View { sort, filter: filter.to_owned(), ..View::default() }
    }

    /// Takes the next snapshot, or the reason why there is none.
    pub(crate) fn update(&mut self, answer: Result<Snapshot, String>) {
        match answer {
            Ok(snapshot) => {
                let taken = snapshot.taken.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let taken_us = u64::try_from(taken.as_micros()).unwrap_or(u64::MAX);
                // A program that came back may be another one with the same ids.
                if self.gone.take().is_some() || taken_us < self.taken_us && !self.is_replay {
                    self.history.clear();
                }
                (self.groups, self.taken_us) = (snapshot.groups, taken_us);
                self.remember();
                self.arrange();
            }
            Err(why) => self.gone = Some(why),
        }
    }

    fn remember(&mut self) {
        let now = self.taken_us;
        let mut old = std::mem::take(&mut self.history);
        for group in &self.groups {
            let mut points = old.remove(&group.id).unwrap_or_default();
            while points.back().is_some_and(|point| point.unix_us >= now) {
                points.pop_back();
            }
            let refused = points.back().map_or(0, |last| group.refusals.saturating_sub(last.refusals));
            if points.len() == POINTS {
                points.pop_front();
            }
            points.push_back(Point {
                unix_us: now,
                usage: group.usage_bytes,
                refused,
                refusals: group.refusals,
                stalled: (group.pressure.some.avg10 * 100.0) as u64,
            });
            self.history.insert(group.id, points);
        }
    }

    /// Sorts and filters the groups. A group is shown with all groups above it.
    fn arrange(&mut self) {
        let groups = &self.groups;
        let filter = self.filter.to_lowercase();
        let mut wanted: Vec<bool> = groups
            .iter()
            .map(|group| filter.is_empty() || group.path.to_lowercase().contains(&filter))
            .collect();
        let mut below = vec![Vec::new(); groups.len()];
        for at in (1..groups.len()).rev() {
            if let (true, Some(parent)) = (wanted[at], groups[at].parent) {
                wanted[parent] = true;
                below[parent].push(at);
            }
        }
        self.order.clear();
        let mut open = vec![0];
        while let Some(at) = open.pop().filter(|&at| at < groups.len()) {
            self.order.push(at);
            // The last one pushed is shown first. Both sorts are stable, so equal groups stay in
            // the order of the snapshot.
            let children = &mut below[at];
            children.reverse();
            children.sort_by(|&a, &b| self.sort.order(&groups[a], &groups[b]));
            open.extend(children.iter().rev());
        }
    }

    /// Returns the line of the selected group.
    pub(crate) fn line(&self) -> usize {
        let is_it = |&at: &usize| Some(self.groups[at].id) == self.selected;
        self.order.iter().position(is_it).unwrap_or(0)
    }

    /// Returns the selected group.
    pub(crate) fn group(&self) -> Option<&GroupSnapshot> {
        self.order.get(self.line()).map(|&at| &self.groups[at])
    }

    /// Returns the points of the selected group, the oldest first.
    pub(crate) fn points(&self) -> impl DoubleEndedIterator<Item = &Point> {
        self.group().and_then(|group| self.history.get(&group.id)).into_iter().flatten()
    }

    fn select(&mut self, line: usize) -> Act {
        let line = line.min(self.order.len().saturating_sub(1));
        self.selected = self.order.get(line).map(|&at| self.groups[at].id);
        Act::Redraw
    }

    fn sort(&mut self, sort: Sort) -> Act {
        self.sort = sort;
        self.arrange();
        Act::Redraw
    }

    fn typed(&mut self, code: KeyCode) -> Act {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => return Act::None,
        }
        self.arrange();
        Act::Redraw
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Act {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Act::Quit;
        }
        if self.is_typing {
            return self.typed(key.code);
        }
        let (line, page) = (self.line(), self.page.max(1));
        match key.code {
            KeyCode::Char('q' | 'Q') => Act::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.select(line.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(line + 1),
            KeyCode::PageUp => self.select(line.saturating_sub(page)),
            KeyCode::PageDown => self.select(line + page),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Char('u') => self.sort(Sort::Usage),
            KeyCode::Char('p') => self.sort(Sort::Peak),
            KeyCode::Char('r') => self.sort(Sort::Refused),
            KeyCode::Char('s') => self.sort(Sort::Pressure),
            KeyCode::Char('n') => self.sort(Sort::Name),
            KeyCode::Char('/') => {
                self.is_typing = true;
                Act::Redraw
            }
            KeyCode::Enter => {
                self.select(line);
                self.is_detail = !self.is_detail;
                Act::Redraw
            }
            KeyCode::Esc if self.is_detail => {
                self.is_detail = false;
                Act::Redraw
            }
            KeyCode::Esc => self.typed(KeyCode::Esc),
            KeyCode::Char(' ') if self.is_replay => Act::Pause,
            KeyCode::Right if self.is_replay => Act::Step(1),
            KeyCode::Left if self.is_replay => Act::Step(-1),
            KeyCode::Char('+') if self.is_replay => Act::Speed(1),
            KeyCode::Char('-') if self.is_replay => Act::Speed(-1),
            _ => Act::None,
        }
    }
}

#[cfg(test)]
mod tests;
