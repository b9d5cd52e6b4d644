//! Record: writes snapshots of programs to a file until Ctrl-C.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Instant;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::attach::{Client, Target, unix_us};
use crate::options::Record;
use crate::recording::{Recorder, SOURCES_MAX};
use crate::show::TICK;
use crate::text::{Error, OrFail as _, say, say_once};

/// Returns a flag that is set by the first Ctrl-C or SIGTERM. The second one ends the process.
fn ending() -> io::Result<Arc<AtomicBool>> {
    let ending = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, Arc::clone(&ending))?;
        flag::register(signal, Arc::clone(&ending))?;
    }
    Ok(ending)
}

/// Records until the user or `--seconds` ends it.
pub(crate) fn record(options: &Record) -> Result<(), Error> {
    let words = options.targets.iter().map(|word| Some(word.as_str()));
    let words: Vec<_> = if options.targets.is_empty() { vec![None] } else { words.collect() };
    if words.len() > SOURCES_MAX {
        let (given, most) = (words.len(), format!("at most {SOURCES_MAX} are recorded in a file"));
        return Err(Error::Usage(format!("{given} programs are given; {most}")));
    }
    let mut clients = Vec::new();
    for word in words {
        let target = Target::of(word)?;
        if clients.iter().any(|client: &Client| client.target == target) {
            return Err(Error::Usage(format!("{target} is given twice; give each program once")));
        }
        let mut client =
            Client::new(target, options.ask.token.clone(), options.ask.insecure).or_fail("make a client")?;
        client.shot().map_err(|error| Error::Failure(format!("failed to read {error}")))?;
        clients.push(client);
    }
    let names: Vec<_> = clients.iter().map(|client| client.target.to_string()).collect();
    let file = options.file.display();
    let created = Recorder::create(&options.file, &names, unix_us());
    let mut recorder = created.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Usage(format!("{file} exists; give the name of a new file")),
        _ => Error::Failure(format!("failed to make {file}: {error}")),
    })?;
    let ending = ending().or_fail("handle Ctrl-C")?;
    let (to, answers) = sync_channel(0);
    for (number, client) in clients.into_iter().enumerate() {
        client.follow(options.ask.interval, number, to.clone()).or_fail("start a thread")?;
    }
    let begun = Instant::now();
    let mut said = vec![String::new(); names.len()];
    let mut count = 0_u64;
    let is_over = || options.seconds.is_some_and(|seconds| begun.elapsed() >= seconds);
    // ORDERING: Relaxed; only the flag is handed over.
    while !ending.load(Ordering::Relaxed) && !is_over() {
        let (source, answer) = match answers.recv_timeout(TICK) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Failure("the threads that ask the programs have ended".to_owned()));
            }
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
        .or_fail(format_args!("write {file}"))?;
    }
    say(&format!("{file}: {count} snapshots, {} bytes", recorder.bytes()));
    Ok(())
}
