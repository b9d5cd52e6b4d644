//! Show: the groups of a running program or of a recording, on the screen or as lines of text or
//! JSON.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::attach::{Answer, Client, Shot, Target};
use crate::error::{Error, OrFail as _};
use crate::options::{Options, Replay};
use crate::paint;
use crate::plain::escaped;
use crate::player::Player;
use crate::recording::Recording;
use crate::say::{say, say_once};
use crate::screen::Screen;
use crate::view::{Act, View};

/// Time between two checks for keys and snapshots.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// The source of a screen.
pub(crate) enum Feed {
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
pub(crate) fn has_screen() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Shows a screen until a key ends it.
pub(crate) fn screen(mut view: View, mut feed: Feed) -> Result<(), Error> {
    let mut screen = Screen::open().or_fail("open the terminal")?;
    let mut redraws = true;
    loop {
        while let Some(answer) = feed.next() {
            view.update(answer.map(|shot| shot.snapshot));
            redraws = true;
        }
        if std::mem::take(&mut redraws) {
            let time = feed.time();
            screen.paint(|canvas| paint::paint(canvas, &mut view, &time)).or_fail("draw the terminal")?;
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
pub(crate) fn printed(shot: Shot, view: &mut View, is_json: bool, time: &str) -> Result<bool, Error> {
    let text = if is_json {
        escaped(&String::from_utf8_lossy(&shot.json))
    } else {
        view.update(Ok(shot.snapshot));
        paint::text(view, time)
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
        return printed(first, &mut view, show.json, &name).map(drop);
    }
    let (to, answers) = sync_channel(0);
    client.follow(ask.interval, 0, to).or_fail("start a thread")?;
    if !show.json && has_screen() {
        view.update(Ok(first.snapshot));
        return screen(view, Feed::Live(answers, name));
    }
    let mut said = String::new();
    for (_, answer) in answers {
        match answer {
            Ok(shot) => {
                said.clear();
                if !printed(shot, &mut view, show.json, &name)? {
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
    if !show.once && !show.json && has_screen() {
        let at = before.unwrap_or(1).max(1) - 1;
        view.is_replay = true;
        return screen(view, Feed::Replay(Player::new(recording, at)));
    }
    let end = recording.entries.len();
    let numbers: Vec<usize> = if show.once {
        // The last snapshot up to that moment. If the program was gone by then, an earlier one.
        (0..before.unwrap_or(end).max(1)).rev().collect()
    } else {
        (before.unwrap_or(1).max(1) - 1..end).collect()
    };
    for number in numbers {
        let time = paint::clock(recording.entries[number].unix_us);
        match recording.read(number).map_err(failed)? {
            Ok(json) => {
                let shot = Shot::of(json).map_err(failed)?;
                if !printed(shot, &mut view, show.json, &time)? || show.once {
                    break;
                }
            }
            Err(why) => say(&format!("{time}: {why}")),
        }
    }
    Ok(())
}
