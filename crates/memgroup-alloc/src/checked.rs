//! Checked: safe points in code that runs for a long time and allocates.

use core::fmt;
use std::io::{self, BufRead, Read, Write};

use memgroup::block::Owner;
use memgroup::{ChargeError, Deadline, block};

use crate::thread;

/// The group in force on a thread is above a limit, and nothing could be reclaimed for it.
#[derive(Debug)]
pub struct OverLimit(ChargeError);

impl OverLimit {
    /// The refusal of one more byte, with the group that is at its limit and its figures.
    pub fn error(&self) -> &ChargeError {
        &self.0
    }
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stop at a checkpoint: {}", self.0)
    }
}

impl std::error::Error for OverLimit {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl From<OverLimit> for io::Error {
    fn from(over: OverLimit) -> io::Error {
        io::Error::new(io::ErrorKind::OutOfMemory, over)
    }
}

/// A safe point: checks that the group in force on this thread is within its limits, after the
/// engine has done all it can.
///
/// It costs one load as long as no block of this thread was charged beyond a limit. Otherwise the
/// engine makes room as for a charge of one byte: on this thread, it takes back prepaid bytes,
/// calls shrinkers and stops victims. The flag belongs to the thread, so check before the end of a
/// scope in which blocks were allocated.
///
/// # Errors
/// The group or one above it is still above its limit. The caller should stop and free its memory.
/// The next call checks again.
///
/// ```
/// use memgroup::{Config, Hierarchy, scope};
/// use memgroup_alloc::{Allocator, checkpoint};
///
/// #[global_allocator]
/// static ALLOCATOR: Allocator = Allocator::system();
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// tenant.set_max(1 << 20).unwrap();
/// let _scope = scope::enter(&tenant);
/// let mut rows = Vec::new();
/// let stopped = loop {
///     rows.push(vec![0_u8; 1000]);
///     if let Err(over) = checkpoint() {
///         break over;
///     }
/// };
/// assert_eq!(stopped.error().max(), Some(1 << 20));
/// drop(rows);
/// checkpoint().unwrap();
/// ```
#[inline]
pub fn checkpoint() -> Result<(), OverLimit> {
    checkpoint_by(None::<Deadline>)
}

/// Checks as [`checkpoint`] does, and waits until `deadline` for the group to be within its
/// limits.
///
/// The thread parks, and keeps its memory. It continues when other threads of its group or of
/// neighbouring groups free enough, or when a limit is raised. The wait is a stall in the group's
/// [pressure](memgroup::Group::pressure). Use it on blocking threads only: a thread of an
/// asynchronous executor would delay the other tasks that it runs. If the waiting thread itself
/// has all of the group's memory, the wait cannot succeed.
///
/// # Errors
/// The group or one above it is above its limit at the deadline.
///
/// ```
/// use std::time::Duration;
///
/// use memgroup::{Config, Hierarchy, scope};
/// use memgroup_alloc::{Allocator, checkpoint, checkpoint_until};
///
/// #[global_allocator]
/// static ALLOCATOR: Allocator = Allocator::system();
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// tenant.set_max(1 << 20).unwrap();
/// let _scope = scope::enter(&tenant);
/// let neighbour = vec![0_u8; 1 << 20];
/// checkpoint().unwrap_err();
/// std::thread::scope(|threads| {
///     threads.spawn(|| drop(neighbour));
///     checkpoint_until(Duration::from_secs(60)).unwrap();
/// });
/// ```
#[inline]
pub fn checkpoint_until(deadline: impl Into<Deadline>) -> Result<(), OverLimit> {
    checkpoint_by(Some(deadline))
}

/// A checkpoint that waits until the deadline, if there is one.
#[inline]
fn checkpoint_by(deadline: Option<impl Into<Deadline>>) -> Result<(), OverLimit> {
    if block::is_over() { check(deadline.map(Into::into)) } else { Ok(()) }
}

#[cold]
fn check(deadline: Option<Deadline>) -> Result<(), OverLimit> {
    if block::current().is_some_and(Owner::is_inherited) {
        // Nothing is charged in the child of a fork.
        return Ok(());
    }
    thread::settle_own();
    deadline.map_or_else(block::checkpoint, block::checkpoint_until).map_err(OverLimit)
}

/// A reader, a writer or an iterator with a [`checkpoint`] before each call. With the feature
/// `serde` also a deserializer.
///
/// A reader or a writer fails with [`io::ErrorKind::OutOfMemory`] and an [`OverLimit`] within. So
/// a parser that reads from it, or a serializer that writes to it, ends with its own error. An
/// iterator gives the error as its last item.
///
/// ```
/// use std::io::Read;
///
/// use memgroup::{Config, Hierarchy, scope};
/// use memgroup_alloc::{Allocator, Checked};
///
/// #[global_allocator]
/// static ALLOCATOR: Allocator = Allocator::system();
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// tenant.set_max(1 << 20).unwrap();
/// let _scope = scope::enter(&tenant);
/// let mut text = Vec::new();
/// let error = Checked::new(std::io::repeat(b'x')).read_to_end(&mut text).unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
/// # drop(text);
///
/// let lines: Result<Vec<String>, _> = Checked::new((0..).map(|number: u64| number.to_string())).collect();
/// assert_eq!(lines.unwrap_err().error().max(), Some(1 << 20));
/// ```
#[derive(Clone, Debug)]
pub struct Checked<T> {
    pub(crate) inner: T,
    /// The deadline of its checkpoints, if they wait.
    pub(crate) deadline: Option<Deadline>,
    has_ended: bool,
}

impl<T> Checked<T> {
    /// Checks before each call of `inner`.
    pub fn new(inner: T) -> Checked<T> {
        Checked::by(inner, None)
    }

    pub(crate) fn by(inner: T, deadline: Option<Deadline>) -> Checked<T> {
        Checked { inner, deadline, has_ended: false }
    }

    /// Makes checkpoints wait until `deadline` while the group is above its limit, as
    /// [`checkpoint_until`] does. The deadline is for all checkpoints together.
    pub fn waiting_until(self, deadline: impl Into<Deadline>) -> Checked<T> {
        Checked { deadline: Some(deadline.into()), ..self }
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), OverLimit> {
        checkpoint_by(self.deadline)
    }

    /// Returns the reader, writer or iterator.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.inner.read(buffer)
    }
}

impl<R: BufRead> BufRead for Checked<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.check()?;
        self.inner.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.inner.consume(bytes);
    }
}

impl<W: Write> Write for Checked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<I: Iterator> Iterator for Checked<I> {
    type Item = Result<I::Item, OverLimit>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let checked = self.check();
        self.has_ended = checked.is_err();
        match checked {
            Ok(()) => self.inner.next().map(Ok),
            Err(over) => Some(Err(over)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An error may come before the last item, or after it.
        (0, self.inner.size_hint().1.and_then(|most| most.checked_add(1)))
    }
}
