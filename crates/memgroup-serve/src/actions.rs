//! Actions: the threads on which control actions run.
//!
//! - I1. These threads have the niceness of the program. An action takes locks of the engine, and a thread that waits for its turn on a CPU with a lock held
//!   would stop the tenants. A thread gets the niceness of the thread that starts it, and may not lower it. So a starter from before the server's thread
//!   raised its own starts them.

use std::io;
use std::sync::{Arc, mpsc};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The most actions at one time: each has a thread while it lasts.
pub(crate) const MOST: usize = 4;

type Action = Box<dyn FnOnce() + Send>;

/// The way to the starter. Without it the starter ends.
#[derive(Debug)]
pub(crate) struct Actions {
    to: mpsc::Sender<Action>,
    places: Arc<Semaphore>,
}

/// A place for an action.
#[derive(Debug)]
pub(crate) struct Place(OwnedSemaphorePermit);

impl Actions {
    /// Starts the starter, with the niceness of the calling thread. Threads end with the runtime.
    pub(crate) fn start(runtime: Handle) -> io::Result<Actions> {
        let (to, actions) = mpsc::channel::<Action>();
        let start = move || actions.into_iter().for_each(|action| drop(runtime.spawn_blocking(action)));
        std::thread::Builder::new().name("memgroup-start".to_owned()).spawn(start)?;
        Ok(Actions { to, places: Arc::new(Semaphore::new(MOST)) })
    }

    /// `None` if there are [`MOST`] actions.
    pub(crate) fn place(&self) -> Option<Place> {
        Arc::clone(&self.places).try_acquire_owned().ok().map(Place)
    }

    /// Runs an action. `None` if it panicked.
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
        self.to.send(Box::new(action)).ok()?;
        told.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_that_panic_give_their_places_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let actions = Actions::start(runtime.handle().clone()).unwrap();
        // Each waits for a place. The one before gives its place back while it unwinds.
        let place = || std::iter::repeat_with(|| actions.place()).flatten().next().unwrap();
        for _ in 0..3 * MOST {
            let panicked: Option<()> =
                runtime.block_on(actions.run(place(), || panic!("an action of the test")));
            assert_eq!(panicked, None);
        }
        assert_eq!(runtime.block_on(actions.run(place(), || 5)), Some(5));
    }
}
