//! The group that allocations are charged to, for the tasks of a query: during each poll, and in
//! the tasks and closures that DataFusion spawns.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll};

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result as DataFusionResult;
use datafusion::common::runtime::{JoinSetTracer, JoinSetTracerError, set_join_set_tracer};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream};
use futures_util::Stream;
use futures_util::future::BoxFuture;
use memgroup::{Group, scope};
use memgroup_alloc::Uncounted;
use pin_project_lite::pin_project;

/// A group in force, and whether blocks are charged to it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) group: Group,
    /// The pool charges the same bytes, so `memgroup-alloc` does not count them.
    pub(crate) is_uncounted: bool,
}

impl Place {
    /// The place of this thread, if a group is in force.
    fn current() -> Option<Place> {
        Some(Place { group: scope::current()?, is_uncounted: memgroup_alloc::is_uncounted() })
    }

    pub(crate) fn call<T>(&self, act: impl FnOnce() -> T) -> T {
        let _token = self.is_uncounted.then(Uncounted::begin);
        let _scope = scope::enter(&self.group);
        act()
    }
}

pin_project! {
    /// A future or stream that is polled and dropped in a place.
    pub(crate) struct Placed<F> {
        #[pin]
        inner: Option<F>,
        place: Place,
    }

    impl<F> PinnedDrop for Placed<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            this.place.call(|| this.inner.set(None));
        }
    }
}

impl<F> Placed<F> {
    pub(crate) fn new(inner: F, place: Place) -> Placed<F> {
        Placed { inner: Some(inner), place }
    }
}

impl<F: Future> Future for Placed<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let inner = this.inner.as_pin_mut().expect("it is taken when it is dropped");
        this.place.call(|| inner.poll(context))
    }
}

impl Stream for Placed<SendableRecordBatchStream> {
    type Item = DataFusionResult<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let inner = this.inner.as_pin_mut().expect("it is taken when it is dropped");
        this.place.call(|| inner.poll_next(context))
    }
}

impl RecordBatchStream for Placed<SendableRecordBatchStream> {
    fn schema(&self) -> SchemaRef {
        self.inner.as_ref().expect("it is taken when it is dropped").schema()
    }
}

/// Puts the tasks and blocking closures that DataFusion spawns into the place of the thread that
/// spawns them, which is its group and whether blocks are charged to it.
///
/// DataFusion has one such tracer in a process, and [`install`](GroupTracer::install) sets this
/// one. A program with a tracer of its own wraps it ([`over`](GroupTracer::over)), or calls this
/// one from its own.
///
/// ```
/// use memgroup_datafusion::GroupTracer;
///
/// static TRACER: GroupTracer = GroupTracer::new();
/// TRACER.install().unwrap();
/// ```
#[derive(Default)]
pub struct GroupTracer {
    inner: Option<&'static dyn JoinSetTracer>,
}

impl GroupTracer {
    /// Makes a tracer that wraps no other one.
    pub const fn new() -> GroupTracer {
        GroupTracer { inner: None }
    }

    /// Makes a tracer that passes each task to `inner` first.
    pub const fn over(inner: &'static dyn JoinSetTracer) -> GroupTracer {
        GroupTracer { inner: Some(inner) }
    }

    /// Makes it the process's tracer.
    ///
    /// # Errors
    /// The process already has a tracer. It can call this one, which is a [`JoinSetTracer`].
    pub fn install(&'static self) -> Result<(), JoinSetTracerError> {
        set_join_set_tracer(self)
    }
}

impl std::fmt::Debug for GroupTracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupTracer").field("is_over_another", &self.inner.is_some()).finish()
    }
}

type Output = Box<dyn Any + Send>;

impl JoinSetTracer for GroupTracer {
    fn trace_future(&self, future: BoxFuture<'static, Output>) -> BoxFuture<'static, Output> {
        let future = match self.inner {
            Some(inner) => inner.trace_future(future),
            None => future,
        };
        match Place::current() {
            Some(place) => Box::pin(Placed::new(future, place)),
            None => future,
        }
    }

    fn trace_block(&self, act: Box<dyn FnOnce() -> Output + Send>) -> Box<dyn FnOnce() -> Output + Send> {
        let act = match self.inner {
            Some(inner) => inner.trace_block(act),
            None => act,
        };
        match Place::current() {
            Some(place) => Box::new(move || place.call(act)),
            None => act,
        }
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::*;

    type Seen = (Option<Group>, bool);

    fn look() -> Output {
        Box::new((scope::current(), memgroup_alloc::is_uncounted()))
    }

    fn seen(output: Output) -> Seen {
        *output.downcast().unwrap()
    }

    #[test]
    fn tasks_and_closures_run_in_the_place_of_the_thread_that_spawns_them() {
        static TRACER: GroupTracer = GroupTracer::new();
        let group = Hierarchy::new(Config::new()).unwrap().create("/query").unwrap();
        for is_uncounted in [false, true] {
            let place = Place { group: group.clone(), is_uncounted };
            let (task, act) = place.call(|| {
                (TRACER.trace_future(Box::pin(async { look() })), TRACER.trace_block(Box::new(look)))
            });
            let outputs =
                std::thread::spawn(|| [futures_util::future::FutureExt::now_or_never(task).unwrap(), act()]);
            for output in outputs.join().unwrap() {
                assert_eq!(seen(output), (Some(group.clone()), is_uncounted));
            }
        }
        assert_eq!(seen(TRACER.trace_block(Box::new(look))()), (None, false));
    }
}
