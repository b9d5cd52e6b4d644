//! Show: the groups of a running program or of a recording, on the screen or as lines of text or
//! JSON.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::attach::{Answer, Client, Shot, Target};
use crate::options::{Options, Replay};
use crate::recording::Recording;
use crate::screen::{self, Screen};
use crate::text::{Error, OrFail as _, escaped, say, say_once};
use crate::view::{Act, View};

/// How many times the speed can be doubled, and halved.
const SPEED_MAX: i32 = 10;
const SPEED_MIN: i32 = -3;
/// Time between two checks for keys and snapshots.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// A recording that is played: the position in it, moved by time and by keys.
struct Player {
    recording: Recording,
    at: usize,
    /// The entry that was returned last.
    given: Option<usize>,
    is_paused: bool,
    /// How many times the speed is doubled; halved if negative.
    speed: i32,
    /// A time of the recording, and the moment at which it was shown.
    base: (u64, Instant),
}

impl Player {
    fn new(recording: Recording, at: usize) -> Player {
        let base = (recording.entries[at].unix_us, Instant::now());
        Player { recording, at, given: None, is_paused: false, speed: 0, base }
    }

    /// Returns the entry that should be shown now, unless it was returned before.
    fn next(&mut self) -> Option<Answer> {
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
    fn act(&mut self, act: Act) {
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
    fn time(&self) -> String {
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

/// The source of a screen.
enum Feed {
    /// A program, and its name.
    Live(Receiver<(usize, Answer)>, String),
    Replay(Player),
}

impl Feed {
    fn next(&mut self) -> Option<Answer> {
        match self {
            Feed::Live(answers, _) => answers.try_recv().ok().map(|(_, answer)| answer),
            Feed::Replay(player) => player.next(),
        }
    }

    fn time(&self) -> String {
        match self {
            Feed::Live(_, name) => name.clone(),
            Feed::Replay(player) => player.time(),
        }
    }
}

/// Returns whether standard output is a terminal that can be drawn on.
fn has_screen() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Shows a screen until a key ends it.
fn on_screen(mut view: View, mut feed: Feed) -> Result<(), Error> {
    let mut screen = Screen::open().or_fail("open the terminal")?;
    let mut redraws = true;
    loop {
        while let Some(answer) = feed.next() {
            view.update(answer.map(|shot| shot.snapshot));
            redraws = true;
        }
        if std::mem::take(&mut redraws) {
            let time = feed.time();
            screen.paint(|canvas| screen::paint(canvas, &mut view, &time)).or_fail("draw the terminal")?;
        }
        if !event::poll(TICK).or_fail("read the terminal")? {
            continue;
        }
        let act = match event::read().or_fail("read the terminal")? {
            Event::Key(key) if key.kind != KeyEventKind::Release => view.key(key),
            Event::Resize(..) => Act::Redraw,
            _ => Act::None,
        };
        match act {
            Act::None => continue,
            Act::Quit => return Ok(()),
            _ => redraws = true,
        }
        if let Feed::Replay(player) = &mut feed {
            player.act(act);
        }
    }
}

/// Prints a snapshot. Returns whether standard output is open.
fn print(shot: Shot, view: &mut View, is_json: bool, time: &str) -> Result<bool, Error> {
    let text = if is_json {
        escaped(&String::from_utf8_lossy(&shot.json))
    } else {
        view.update(Ok(shot.snapshot));
        screen::printed(view, time)
    };
    let mut output = io::stdout().lock();
    match output.write_all((text + "\n").as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).or_fail("print a snapshot"),
    }
}

/// Shows the groups of the program that `options` name.
pub(crate) fn attach(options: Options) -> Result<(), Error> {
    let Options { target, ask, show, .. } = options;
    let target = Target::of(target.as_deref())?;
    let name = target.to_string();
    let mut client = Client::new(target, ask.token, ask.insecure).or_fail("make a client")?;
    let first = client.shot().map_err(|error| Error::Failure(format!("failed to read {error}")))?;
    let mut view = View::new(show.sort, &show.filter);
    if show.once {
        return print(first, &mut view, show.json, &name).map(drop);
    }
    let (to, answers) = sync_channel(0);
    client.follow(ask.interval, 0, to).or_fail("start a thread")?;
    if !show.json && has_screen() {
        view.update(Ok(first.snapshot));
        return on_screen(view, Feed::Live(answers, name));
    }
    let mut said = String::new();
    for (_, answer) in answers {
        match answer {
            Ok(shot) => {
                said.clear();
                if !print(shot, &mut view, show.json, &name)? {
                    break;
                }
            }
            Err(why) => say_once(&mut said, why),
        }
    }
    Ok(())
}

/// Shows the recording that `options` name.
pub(crate) fn replay(options: &Replay) -> Result<(), Error> {
    let failed = |error: String| Error::Failure(format!("failed to {error}"));
    let mut recording = Recording::open(&options.file, options.of.as_deref()).map_err(failed)?;
    if let Some(note) = &recording.note {
        say(&format!("{}: {note}; the frames before it are shown", options.file.display()));
    }
    let show = &options.show;
    let mut view = View::new(show.sort, &show.filter);
    let first = recording.entries.first().map_or(0, |entry| entry.unix_us);
    let until = options.at.map(|at| first.saturating_add(at.as_micros() as u64));
    let before = until.map(|until| recording.entries.partition_point(|entry| entry.unix_us <= until));
    let at = before.unwrap_or(1).max(1) - 1;
    if !show.once && !show.json && has_screen() {
        view.is_replay = true;
        return on_screen(view, Feed::Replay(Player::new(recording, at)));
    }
    let end = recording.entries.len();
    // `--once` shows the last snapshot up to that moment. If the program was gone by then, that's
    // an earlier one.
    let once = (0..before.unwrap_or(end).max(1)).rev().filter(|_| show.once);
    for number in once.chain((at..end).filter(|_| !show.once)) {
        let time = screen::clock(recording.entries[number].unix_us);
        match recording.read(number).map_err(failed)? {
            Ok(json) => {
                let shot = Shot::of(json).map_err(failed)?;
                if !print(shot, &mut view, show.json, &time)? || show.once {
                    break;
                }
            }
            Err(why) => say(&format!("{time}: {why}")),
        }
    }
    Ok(())
}
