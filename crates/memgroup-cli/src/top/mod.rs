//! `memgroup top`: the groups of a running program, and recordings of them.
//!
//!   socket ─▶ attach (JSON) ─▶ view (order, history) ─▶ paint (screen) │ text │ JSON lines
//!                          └─▶ recording (file) ─▶ replay ─▶ view
//!
//! - I1. A program that goes away ends neither the screen nor a recording: both show or note it, and ask again each interval.

mod attach;
#[cfg(test)]
mod corpus;
mod find;
mod paint;
mod recording;
mod replay;
mod view;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::run::EXIT_FAILURE;
use crate::run::base::error::{OrFail as _, RunError};
use crate::run::base::stop::Stop;
use crate::run::live::screen::Screen;
use crate::run::live::{has_screen, print};
use crate::tree;
use attach::{Answer, Client, Shot, Target, unix_us};
use recording::{Recorder, Recording, SOURCES_MAX};
use replay::Replay;
use view::{Act, Sort, View};

/// Time between two looks for keys and snapshots.
const TICK: Duration = Duration::from_millis(100);
/// Seconds of the longest time that an option takes.
const YEAR: f64 = 31_536_000.0;

/// Options of `memgroup top`.
#[derive(Debug, Clone, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Sub>,
    /// The program: the path of its Unix socket, its process number, or http://127.0.0.1:PORT
    #[arg(value_name = "SOCKET|PID|URL")]
    target: Option<String>,
    #[command(flatten)]
    ask: Ask,
    #[command(flatten)]
    show: Show,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Sub {
    /// Record the groups of programs in a new file until Ctrl-C
    Record(Record),
    /// Show a recording on the same screen
    Replay(Play),
}

/// How a program is asked.
#[derive(Debug, Clone, clap::Args)]
struct Ask {
    /// Token for reading by TCP [default: the variable MEMGROUP_TOKEN, which no list of processes shows]
    #[arg(long)]
    token: Option<String>,
    /// Send the token to another machine although HTTP does not encrypt it
    #[arg(long)]
    insecure: bool,
    /// Seconds between two snapshots, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

/// How snapshots are shown.
#[derive(Debug, Clone, clap::Args)]
struct Show {
    /// Print one snapshot and end; of a recording the last one
    #[arg(long)]
    once: bool,
    /// Print snapshots as JSON, one a line
    #[arg(long)]
    json: bool,
    /// Order of groups beside each other
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Show only groups with this text in their path, and the groups above those
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
}

#[derive(Debug, Clone, clap::Args)]
struct Record {
    /// The file; it must not exist
    file: PathBuf,
    /// Programs, each as in `memgroup top`; without any the only one that is found
    #[arg(value_name = "SOCKET|PID|URL")]
    targets: Vec<String>,
    #[command(flatten)]
    ask: Ask,
    /// End after so many seconds, 0.1 to 31536000
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
}

#[derive(Debug, Clone, clap::Args)]
struct Play {
    /// The recording
    file: PathBuf,
    /// The program, where the recording has several
    #[arg(long, value_name = "SOCKET")]
    of: Option<String>,
    /// Begin so many seconds after the first snapshot; with --once, show that moment
    #[arg(long, value_name = "SECONDS", value_parser = moment)]
    at: Option<Duration>,
    #[command(flatten)]
    show: Show,
}

fn interval(text: &str) -> Result<Duration, String> {
    within(text, 0.1, 3_600.0)
}

fn seconds(text: &str) -> Result<Duration, String> {
    within(text, 0.1, YEAR)
}

fn moment(text: &str) -> Result<Duration, String> {
    within(text, 0.0, YEAR)
}

fn within(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (least..=most).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("not a number from {least} to {most}"))
}

/// Runs `memgroup top`. Returns the exit code.
///
/// # Errors
/// The program or the file that is named cannot be read, or the file of a recording cannot be written.
pub(crate) fn run(options: Options) -> Result<u8, RunError> {
    match options.command {
        Some(Sub::Record(options)) => record(&options),
        Some(Sub::Replay(options)) => play(&options),
        None => {
            let target = Target::of(options.target.as_deref())?;
            watch(target, options.ask, &options.show)
        }
    }
}

/// The source of a screen.
enum Feed {
    Live(Receiver<(usize, Answer)>, String),
    Replay(Replay),
}

impl Feed {
    fn next(&mut self) -> Option<Answer> {
        match self {
            Feed::Live(answers, _) => answers.try_recv().ok().map(|(_, answer)| answer),
            Feed::Replay(replay) => replay.next(),
        }
    }

    fn time(&self) -> String {
        match self {
            Feed::Live(_, name) => name.clone(),
            Feed::Replay(replay) => replay.time(),
        }
    }
}

/// Shows a screen until a key ends it.
fn screen(mut view: View, mut feed: Feed) -> Result<u8, RunError> {
    let mut screen = Screen::open().or_fail("open the terminal")?;
    let mut redraws = true;
    loop {
        while let Some(answer) = feed.next() {
            view.update(answer.map(|shot| shot.tree));
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
            Act::Quit => return Ok(0),
            _ => redraws = true,
        }
        if let Feed::Replay(replay) = &mut feed {
            replay.act(act);
        }
    }
}

/// JSON without characters that a terminal obeys: they become `\u` escapes, so the JSON means the same. It has them in strings only;
/// those of ASCII, but the last one, are escaped in any JSON.
fn escaped(json: &str) -> String {
    let is_obeyed = |c: char| c >= '\u{7f}' && tree::is_obeyed(c);
    if !json.contains(is_obeyed) {
        return json.to_owned();
    }
    let mut text = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_obeyed(c) {
            // All of them are in the first plane. Writing to memory does not fail.
            _ = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    text
}

/// Prints a snapshot. Returns whether standard output is open.
fn printed(shot: Shot, view: &mut View, is_json: bool, time: &str) -> Result<bool, RunError> {
    let text = if is_json {
        escaped(&String::from_utf8_lossy(&shot.json))
    } else {
        view.update(Ok(shot.tree));
        paint::text(view, time)
    };
    match print(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).or_fail("print a snapshot"),
    }
}

fn watch(target: Target, ask: Ask, show: &Show) -> Result<u8, RunError> {
    let name = target.to_string();
    let mut client = Client::new(target, ask.token, ask.insecure).or_fail("make a client")?;
    let first = client.shot().map_err(|error| RunError::Failure(format!("failed to read {error}")))?;
    let mut view = View::new(show.sort, &show.filter);
    if show.once {
        printed(first, &mut view, show.json, &name)?;
        return Ok(0);
    }
    let (to, answers) = sync_channel(0);
    client.follow(ask.interval, 0, to).or_fail("start a thread")?;
    if !show.json && has_screen() {
        view.update(Ok(first.tree));
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
    Ok(0)
}

/// Prints a line to standard error, if it is another one than the last.
fn say_once(said: &mut String, line: String) {
    if *said != line {
        say(&line);
        *said = line;
    }
}

fn say(line: &str) {
    // A closed standard error does not concern the snapshots.
    let _ = writeln!(io::stderr().lock(), "memgroup: {line}");
}

fn record(options: &Record) -> Result<u8, RunError> {
    let words = options.targets.iter().map(|word| Some(word.as_str()));
    let words: Vec<_> = if options.targets.is_empty() { vec![None] } else { words.collect() };
    if words.len() > SOURCES_MAX {
        return Err(RunError::Usage(format!(
            "{} programs are given; at most {SOURCES_MAX} are recorded in a file",
            words.len()
        )));
    }
    let mut clients = Vec::new();
    for word in words {
        let target = Target::of(word)?;
        if clients.iter().any(|client: &Client| client.target == target) {
            return Err(RunError::Usage(format!("{target} is given twice; give each program once")));
        }
        let mut client =
            Client::new(target, options.ask.token.clone(), options.ask.insecure).or_fail("make a client")?;
        client.shot().map_err(|error| RunError::Failure(format!("failed to read {error}")))?;
        clients.push(client);
    }
    let names: Vec<_> = clients.iter().map(|client| client.target.to_string()).collect();
    let file = &options.file;
    let mut recorder = Recorder::create(file, &names, unix_us()).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            RunError::Usage(format!("{} exists; give the name of a new file", file.display()))
        }
        _ => RunError::Failure(format!("failed to make {}: {error}", file.display())),
    })?;
    let stop = Stop::default();
    stop.on_ctrl_c(|| ()).or_fail("handle Ctrl-C")?;
    let (to, answers) = sync_channel(0);
    for (number, client) in clients.into_iter().enumerate() {
        client.follow(options.ask.interval, number, to.clone()).or_fail("start a thread")?;
    }
    let begun = Instant::now();
    let mut said = vec![String::new(); names.len()];
    let mut count = 0_u64;
    while !stop.requested() && options.seconds.is_none_or(|seconds| begun.elapsed() < seconds) {
        let (source, answer) = match answers.recv_timeout(TICK) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(EXIT_FAILURE),
        };
        match answer {
            Ok(shot) => {
                said[source].clear();
                count += 1;
                recorder.snapshot(source, unix_us(), &shot.json)
            }
            Err(why) if why == said[source] => Ok(()),
            Err(why) => {
                let written = recorder.gone(source, unix_us(), &why);
                say_once(&mut said[source], why);
                written
            }
        }
        .or_fail(format_args!("write {}", file.display()))?;
    }
    say(&format!("{}: {count} snapshots, {} bytes", file.display(), recorder.bytes()));
    Ok(0)
}

fn open(file: &Path, of: Option<&str>) -> Result<Recording, RunError> {
    let recording =
        Recording::open(file, of).map_err(|error| RunError::Failure(format!("failed to {error}")))?;
    if let Some(note) = &recording.note {
        say(&format!("{}: {note}; the frames before it are shown", file.display()));
    }
    Ok(recording)
}

fn play(options: &Play) -> Result<u8, RunError> {
    let mut recording = open(&options.file, options.of.as_deref())?;
    let show = &options.show;
    let mut view = View::new(show.sort, &show.filter);
    let first = recording.entries.first().map_or(0, |entry| entry.unix_us);
    let until = options.at.map(|at| first.saturating_add(at.as_micros() as u64));
    let before = until.map(|until| recording.entries.partition_point(|entry| entry.unix_us <= until));
    if !show.once && !show.json && has_screen() {
        let at = before.unwrap_or(1).max(1) - 1;
        view.is_replay = true;
        return screen(view, Feed::Replay(Replay::new(recording, at)));
    }
    let end = recording.entries.len();
    let numbers: Vec<usize> = if show.once {
        // The last snapshot up to the moment; a program that was gone then has one before.
        (0..before.unwrap_or(end).max(1)).rev().collect()
    } else {
        (before.unwrap_or(1).max(1) - 1..end).collect()
    };
    for number in numbers {
        let failed = |error: String| RunError::Failure(format!("failed to {error}"));
        match recording.read(number).map_err(failed)? {
            Ok(json) => {
                let shot = Shot::of(json).map_err(failed)?;
                let time = paint::clock(recording.entries[number].unix_us);
                if !printed(shot, &mut view, show.json, &time)? || show.once {
                    break;
                }
            }
            Err(why) => say(&format!("{}: {why}", paint::clock(recording.entries[number].unix_us))),
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn json_has_escapes_for_characters_that_a_terminal_obeys() {
        let names = "a\u{9b}2J b\u{85} c\u{7f} d\u{202e}txt e\u{e9} \u{1f600}";
        let json = serde_json::json!({ "groups": [{ "name": names }] }).to_string();
        let text = escaped(&json);
        assert!(!text.contains(crate::tree::is_obeyed), "{text:?}");
        assert!(text.contains(r"a\u009b2J b\u0085 c\u007f d\u202etxt") && text.contains('\u{e9}'), "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["groups"][0]["name"], names);
        assert_eq!(escaped("{\t}"), "{\t}");
    }
}
