//! Actions: the threads on which control actions run.
//!
//! - I1. All threads are started with the server. An operator needs control most when the program
//!   cannot start another thread, because a tenant uses them up.
//! - I2. These threads have the niceness of the program. An action takes locks of the engine, and a
//!   thread that waits for a CPU while it holds a lock would stop the tenants. A thread inherits
//!   the niceness of the thread that starts it and may not lower it, so the server starts them
//!   before it raises its own.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The number of threads, and so the most actions at one time.
pub(crate) const MOST: usize = 4;

/// How long a stop waits for running actions.
const LAST: Duration = Duration::from_secs(5);

type Action = Box<dyn FnOnce() + Send>;

/// The threads. Dropping this ends them, and waits up to [`LAST`] for running actions.
#[derive(Debug)]
pub(crate) struct Actions {
    /// `None` once the threads are being stopped.
    to: Option<mpsc::Sender<Action>>,
    places: Arc<Semaphore>,
    threads: Vec<JoinHandle<()>>,
    /// Disconnected when the last thread has ended.
    ended: Mutex<mpsc::Receiver<()>>,
}

/// A place for an action.
#[derive(Debug)]
pub(crate) struct Place(OwnedSemaphorePermit);

impl Actions {
    /// Starts the threads, with the niceness of the calling thread.
    pub(crate) fn start() -> io::Result<Actions> {
        let (to, actions) = mpsc::channel::<Action>();
        let (alive, ended) = mpsc::channel();
        let places = Arc::new(Semaphore::new(MOST));
        let mut started = Actions { to: Some(to), places, threads: Vec::new(), ended: Mutex::new(ended) };
        let actions = Arc::new(Mutex::new(actions));
        for alive in std::iter::repeat_n(alive, MOST) {
            let actions = Arc::clone(&actions);
            let run = move || {
                let _alive: mpsc::Sender<()> = alive;
                let next = || actions.lock().recv();
                while let Ok(action) = next() {
                    // The panic ends the action only. Its client gets an error, because the
                    // action's sender is dropped.
                    let _panicked = catch_unwind(AssertUnwindSafe(action));
                }
            };
            // After an error, dropping `started` ends the threads that were started.
            started.threads.push(thread::Builder::new().name("memgroup-act".to_owned()).spawn(run)?);
        }
        Ok(started)
    }

    /// Returns `None` if [`MOST`] actions are running.
    pub(crate) fn place(&self) -> Option<Place> {
        Arc::clone(&self.places).try_acquire_owned().ok().map(Place)
    }

    /// Runs an action. Returns `None` if it panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        Place(place): Place,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = oneshot::channel();
        let action = move || {
            let value = act();
            drop(place);
            // The client may be gone.
            let _told = tell.send(value);
        };
        self.to.as_ref()?.send(Box::new(action)).ok()?;
        told.await.ok()
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        self.to = None;
        let ended = self.ended.get_mut();
        if let Err(mpsc::RecvTimeoutError::Disconnected) = ended.recv_timeout(LAST) {
            self.threads.drain(..).for_each(|thread| _ = thread.join());
        }
        // Otherwise an action hangs in the program's code, and its thread is abandoned.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_that_panic_give_their_places_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let actions = Actions::start().unwrap();
        // Each waits for a permit. The previous action returns its permit while it unwinds.
        let place = || std::iter::repeat_with(|| actions.place()).flatten().next().unwrap();
        for _ in 0..3 * MOST {
            let panicked: Option<()> =
                runtime.block_on(actions.run(place(), || panic!("an action of the test")));
            assert_eq!(panicked, None);
        }
        assert_eq!(runtime.block_on(actions.run(place(), || 5)), Some(5));
    }

    #[test]
    fn a_drop_waits_for_actions_that_are_under_way() {
        let (begun, is_begun) = mpsc::channel();
        let (release, is_released) = mpsc::channel::<()>();
        let (done, is_done) = mpsc::channel();
        let actions = Actions::start().unwrap();
        let act = move || {
            begun.send(()).unwrap();
            is_released.recv().unwrap();
            done.send(()).unwrap();
        };
        let mut run = Box::pin(actions.run(actions.place().unwrap(), act));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(run.as_mut().poll(&mut context).is_pending());
        drop(run);
        is_begun.recv().unwrap();
        let waits = thread::spawn(move || release.send(()).unwrap());
        drop(actions);
        is_done.try_recv().expect("the action was waited for");
        waits.join().unwrap();
    }
}
