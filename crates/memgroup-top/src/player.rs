//! Player: the position in a recording, moved by time and by keys.

use std::time::Instant;

use crate::attach::{Answer, Shot};
use crate::recording::Recording;
use crate::view::Act;

/// The most times that the speed can be doubled, and halved.
const SPEED_MAX: i32 = 10;
const SPEED_MIN: i32 = -3;

/// A recording that is played.
pub(crate) struct Player {
    recording: Recording,
    at: usize,
    /// The entry that was returned last.
    given: Option<usize>,
    is_paused: bool,
    /// Times that the speed is doubled.
    speed: i32,
    /// Time of the recording at a moment here.
    base: (u64, Instant),
}

impl Player {
    pub(crate) fn new(recording: Recording, at: usize) -> Player {
        let base = (recording.entries[at].unix_us, Instant::now());
        Player { recording, at, given: None, is_paused: false, speed: 0, base }
    }

    /// Returns the entry that should be shown now, unless it was returned before.
    pub(crate) fn next(&mut self) -> Option<Answer> {
        if !self.is_paused {
            let passed = self.base.1.elapsed().as_micros() as f64 * 2_f64.powi(self.speed);
            let now = self.base.0.saturating_add(passed as u64);
            let later = self.recording.entries[self.at + 1..].iter();
            self.at += later.take_while(|entry| entry.unix_us <= now).count();
        }
        (self.given != Some(self.at)).then(|| {
            self.given = Some(self.at);
            self.recording.read(self.at).and_then(|found| found).and_then(Shot::of)
        })
    }

    /// Handles a key of the replay.
    pub(crate) fn act(&mut self, act: Act) {
        match act {
            Act::Pause => self.is_paused = !self.is_paused,
            Act::Step(steps) => {
                let last = self.recording.entries.len() as i64 - 1;
                self.at = (self.at as i64).saturating_add(steps).clamp(0, last) as usize;
                self.is_paused = true;
            }
            Act::Speed(steps) => self.speed = (self.speed + steps).clamp(SPEED_MIN, SPEED_MAX),
            _ => return,
        }
        self.base = (self.recording.entries[self.at].unix_us, Instant::now());
    }

    /// Returns the position in the recording, and the speed.
    pub(crate) fn time(&self) -> String {
        let entries = &self.recording.entries;
        let first = entries.first().map_or(0, |entry| entry.unix_us);
        let since =
            |at: usize| entries.get(at).map_or(0, |entry| entry.unix_us.saturating_sub(first) / 1_000_000);
        let (now, all) = (since(self.at), since(entries.len() - 1));
        let state = match (self.is_paused, self.at + 1 == entries.len()) {
            (true, _) => "paused".to_owned(),
            (false, true) => "end".to_owned(),
            (false, false) => format!("speed {}", 2_f64.powi(self.speed)),
        };
        format!("replay {now} of {all} s, {state}")
    }
}
