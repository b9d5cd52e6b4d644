//! Events: a stream of server-sent events, which resumes after the last event that the client got.
//!
//! - I1. A stream has a position in the ring, and no queue of its own. So a client that reads
//!   slowly costs no memory, and gets a gap.
//! - I2. An id has the time of the server's start before the number. So after a restart a client
//!   gets a gap, and never events of another numbering.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use memgroup::Charge;
use memgroup_tokio::InGroupExt as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::timeout;

use super::{Answer, Content};
use crate::account::uncounted;
use crate::app::App;
use crate::problem::Problem;
use crate::sample::{Ring, unix_us};

const KIND: &str = "text/event-stream";
/// The most bytes of the texts that are sent at once.
const PIECE: usize = 16 << 10;
/// Bytes of the pieces of a stream: one being made, one waiting, and one being written.
const STREAM: u64 = 3 * 2 * PIECE as u64;
/// Time after which a silent stream sends a comment. It shows a client that the server is alive,
/// and finds clients that are gone.
const ALIVE: Duration = Duration::from_secs(15);

/// The position at which a stream begins.
#[derive(Debug, PartialEq, Eq)]
enum Begin {
    /// With the next event.
    Now,
    /// With the oldest event that is kept.
    Oldest,
    /// After this event.
    After(u64),
    /// After an event of an earlier server.
    Restarted,
}

impl Begin {
    fn read(text: Option<&str>, boot: u64) -> Result<Begin, Problem> {
        let wrong = |text: &str| {
            let detail = format!(
                "{text:?} is no id of an event; send the last id that was received, such as {boot}-1, or \"oldest\""
            );
            Problem::bad("invalid_id", detail)
        };
        match text {
            None | Some("") => Ok(Begin::Now),
            Some("oldest") => Ok(Begin::Oldest),
            Some(text) => {
                let (server, number) = text.split_once('-').ok_or_else(|| wrong(text))?;
                let read = |text: &str| {
                    text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
                };
                let (server, number) = read(server).zip(read(number)).ok_or_else(|| wrong(text))?;
                Ok(if server == boot { Begin::After(number) } else { Begin::Restarted })
            }
        }
    }
}

pub(super) fn events(app: &Arc<App>, headers: &HeaderMap, after: Option<&str>) -> Result<Answer, Problem> {
    let header = headers.get("last-event-id").map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
    // The first number of the server's ids.
    let boot = unix_us(app.started);
    let begin = Begin::read(after.or(header.as_deref()), boot)?;
    let place = Arc::clone(&app.streams).try_acquire_owned().map_err(|_| {
        let streams = app.serve.connections / 2;
        let detail = format!("{streams} streams of events are open, the most that there may be");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", detail).retry_after(5)
    })?;
    let charge = app.account.charge(STREAM)?;
    let (pieces, received) = mpsc::channel(1);
    let stream = Stream { app: Arc::clone(app), boot, pieces, _place: place, _charge: charge };
    tokio::spawn(stream.run(begin).in_group(&app.account.group));
    Ok(Answer::new(KIND, Content::Events(received)))
}

/// The task that makes the pieces of a stream, until the client is gone.
struct Stream {
    app: Arc<App>,
    boot: u64,
    pieces: mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
    _charge: Charge,
}

impl Stream {
    async fn run(self, begin: Begin) {
        let ring = &self.app.samples.ring;
        let mut news = ring.watch();
        let mut text = "retry: 2000\n: events of memgroup\n\n".to_owned();
        let mut next = match begin {
            Begin::Now => ring.next(),
            Begin::Oldest => ring.oldest(),
            Begin::After(number) => number.saturating_add(1).min(ring.next()),
            Begin::Restarted => {
                text += &self.gap(ring.oldest(), "null");
                ring.oldest()
            }
        };
        loop {
            next = uncounted(|| self.add(ring, next, &mut text));
            if text.is_empty() {
                let Some(silence) = self.wait(&mut news).await else { return };
                text += silence;
                continue;
            }
            if self.pieces.send(Bytes::from(std::mem::take(&mut text))).await.is_err() {
                return;
            }
        }
    }

    /// Adds the events from a number on, and returns the number of the next event.
    fn add(&self, ring: &Ring, from: u64, text: &mut String) -> u64 {
        let after = ring.from(from, PIECE);
        let mut next = from + after.lost;
        if after.lost > 0 {
            *text += &self.gap(next, &after.lost.to_string());
        }
        for event in after.events {
            next = event.number + 1;
            *text += &format!(
                "id: {}-{}\nevent: {}\ndata: {}\n\n",
                self.boot, event.number, event.kind, event.data
            );
        }
        next
    }

    /// Formats a gap before the event `next`.
    fn gap(&self, next: u64, lost: &str) -> String {
        format!("id: {}-{}\nevent: gap\ndata: {{\"lost\":{lost}}}\n\n", self.boot, next - 1)
    }

    /// Waits for an event. Returns the text to send, which is a comment after a silence, or `None`
    /// when the client is gone.
    async fn wait(&self, news: &mut watch::Receiver<u64>) -> Option<&'static str> {
        tokio::select! {
            () = self.pieces.closed() => None,
            changed = timeout(ALIVE, news.changed()) => Some(if changed.is_ok() { "" } else { ":\n\n" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_ids_of_this_server_and_of_others() {
        let read = |text| Begin::read(text, 7).map_err(|problem| problem.code);
        assert_eq!(read(None), Ok(Begin::Now));
        assert_eq!(read(Some("")), Ok(Begin::Now));
        assert_eq!(read(Some("oldest")), Ok(Begin::Oldest));
        assert_eq!(read(Some("7-12")), Ok(Begin::After(12)));
        assert_eq!(read(Some("6-12")), Ok(Begin::Restarted));
        for wrong in ["7", "7-", "-7", "7-+1", "7-1-1", "x", "7-99999999999999999999", " 7-1"] {
            assert_eq!(read(Some(wrong)), Err("invalid_id"), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_id_panics(text in "\\PC{0,40}|[0-9-]{0,40}") {
            let _ = Begin::read(Some(&text), 7);
        }
    }
}
