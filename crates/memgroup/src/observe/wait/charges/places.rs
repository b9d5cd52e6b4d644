//! Places: the memory of waits and of their queues. New memory is made without the lock, and places keep their number.

use std::collections::VecDeque;
use std::time::Instant;

use memgroup_sync::{Mutex, MutexGuard, depth};

use crate::observe::wait::charges::{ChargeQueue, Entry, Queue};
use crate::observe::wait::order::{Links, NONE};

/// Places in a chunk.
pub(super) const CHUNK: usize = if cfg!(memgroup_loom) { 4 } else { 64 };

pub(super) enum Slot {
    /// Free, and the next that is free.
    Free(u32),
    Used(Entry),
}

/// Places that are made together. The links of all are side by side: a search reads nothing else.
pub(super) struct Chunk {
    pub(super) links: [Links; CHUNK],
    /// Those of the order of deadlines.
    pub(super) times: [Links; CHUNK],
    pub(super) slots: [Slot; CHUNK],
    /// A bit for each slot that is used.
    used: u64,
    /// The chunks beside it in the list of those with used slots.
    before: u32,
    next: u32,
}

impl Chunk {
    fn new() -> Chunk {
        Chunk {
            links: [Links::new(0, 0); CHUNK],
            times: [Links::new(0, 0); CHUNK],
            slots: [const { Slot::Free(NONE) }; CHUNK],
            used: 0,
            before: NONE,
            next: NONE,
        }
    }
}

/// Memory for further waits, made without the lock.
#[derive(Default)]
struct Spare {
    chunk: Option<Box<Chunk>>,
    chunks: Vec<Box<Chunk>>,
    queues: Vec<Queue>,
    free_queues: Vec<u32>,
    due: VecDeque<u32>,
    later: VecDeque<(Instant, u32)>,
}

impl Spare {
    fn is_empty(&self) -> bool {
        self.chunk.is_none() && self.chunks.capacity() + self.queues.capacity() == 0
    }
}

/// The memory that is missing: a chunk of places, and lists with so much room.
struct Lacks {
    chunk: bool,
    chunks: usize,
    queues: usize,
}

impl Lacks {
    fn made(self) -> Spare {
        let Lacks { chunk, chunks, queues } = self;
        // It outlives the wait, so the waiting thread's group is not charged for it.
        let _inside = depth::enter();
        Spare {
            chunk: chunk.then(|| Box::new(Chunk::new())),
            chunks: Vec::with_capacity(chunks),
            queues: Vec::with_capacity(queues),
            free_queues: Vec::with_capacity(queues),
            due: VecDeque::with_capacity(queues),
            later: VecDeque::with_capacity(queues),
        }
    }
}

/// Makes one vector as roomy as another, which is left with the old memory.
macro_rules! take_roomier {
    ($own:expr, $spare:expr) => {
        if $spare.capacity() > $own.capacity() {
            $spare.extend($own.drain(..));
            std::mem::swap(&mut $own, &mut $spare);
        }
    };
}

pub(super) use take_roomier;

/// Memory.
impl ChargeQueue {
    /// Takes the lock when there is memory for one more wait, and for its queue.
    pub(crate) fn reserve(lock: &Mutex<ChargeQueue>) -> MutexGuard<'_, ChargeQueue> {
        let mut spare = Spare::default();
        loop {
            let mut queues = lock.lock();
            queues.take(&mut spare);
            let lacks = queues.lacks();
            if lacks.is_none() && spare.is_empty() {
                return queues;
            }
            drop(queues);
            // The old memory is freed without the lock.
            spare = Spare::default();
            if let Some(lacks) = lacks {
                spare = lacks.made();
            }
        }
    }

    /// The memory that one more wait needs, if any.
    fn lacks(&self) -> Option<Lacks> {
        let chunk = self.free == NONE;
        let chunks = chunk && self.chunks.len() == self.chunks.capacity();
        let queues = !self.has_room_for_a_queue();
        let double = |len: usize| (2 * len).max(4);
        (chunk || queues).then(|| Lacks {
            chunk,
            chunks: if chunks { double(self.chunks.len()) } else { 0 },
            queues: if queues { double(self.queues.len()) } else { 0 },
        })
    }

    fn has_room_for_a_queue(&self) -> bool {
        let least =
            [self.queues.capacity(), self.free_queues.capacity(), self.due.capacity(), self.later.capacity()];
        !self.free_queues.is_empty() || least.into_iter().all(|capacity| self.queues.len() < capacity)
    }

    fn take(&mut self, spare: &mut Spare) {
        take_roomier!(self.queues, spare.queues);
        take_roomier!(self.free_queues, spare.free_queues);
        take_roomier!(self.due, spare.due);
        take_roomier!(self.later, spare.later);
        take_roomier!(self.chunks, spare.chunks);
        // Another thread may have added a chunk since this one was made.
        if self.free == NONE
            && self.chunks.len() < self.chunks.capacity()
            && let Some(mut chunk) = spare.chunk.take()
        {
            let first = (self.chunks.len() * CHUNK) as u32;
            let all_but_last = chunk.slots.iter_mut().take(CHUNK - 1);
            all_but_last.zip(first + 1..).for_each(|(slot, next)| *slot = Slot::Free(next));
            self.chunks.push(chunk);
            self.free = first;
        }
    }

    /// The slot of `place` is used from here on.
    pub(super) fn note_used(&mut self, place: u32) {
        let (number, head) = (place / CHUNK as u32, self.used_chunks);
        let chunk = &mut self.chunks[number as usize];
        if chunk.used == 0 {
            (chunk.before, chunk.next) = (NONE, head);
            self.used_chunks = number;
            if head != NONE {
                self.chunks[head as usize].before = number;
            }
        }
        self.chunks[number as usize].used |= 1 << (place % CHUNK as u32);
    }

    /// The slot of `place` is free again.
    pub(super) fn note_free(&mut self, place: u32) {
        let chunk = &mut self.chunks[place as usize / CHUNK];
        chunk.used &= !(1 << (place % CHUNK as u32));
        if chunk.used > 0 {
            return;
        }
        let (before, next) = (chunk.before, chunk.next);
        match before {
            NONE => self.used_chunks = next,
            before => self.chunks[before as usize].next = next,
        }
        if next != NONE {
            self.chunks[next as usize].before = before;
        }
    }

    /// Calls `visit` with the place of each wait. It may change any wait, but neither begins nor ends one. The visits are as many as there are waits, however many
    /// there were.
    pub(crate) fn each(&mut self, mut visit: impl FnMut(&mut ChargeQueue, u32)) {
        let mut number = self.used_chunks;
        while number != NONE {
            let Chunk { mut used, next, .. } = *self.chunks[number as usize];
            #[cfg(test)]
            (self.visits += 1);
            while used != 0 {
                visit(self, number * CHUNK as u32 + used.trailing_zeros());
                used &= used - 1;
            }
            number = next;
        }
    }

    pub(super) fn slot(&mut self, place: u32) -> &mut Slot {
        &mut self.chunks[place as usize / CHUNK].slots[place as usize % CHUNK]
    }

    pub(crate) fn entry(&self, place: u32) -> &Entry {
        match &self.chunks[place as usize / CHUNK].slots[place as usize % CHUNK] {
            Slot::Used(entry) => entry,
            Slot::Free(_) => panic!("a wait has its place until it ends"),
        }
    }

    pub(crate) fn entry_mut(&mut self, place: u32) -> &mut Entry {
        match self.slot(place) {
            Slot::Used(entry) => entry,
            Slot::Free(_) => panic!("a wait has its place until it ends"),
        }
    }

    /// The wait with this number, if it is there still.
    pub(crate) fn find(&mut self, place: u32, number: u64) -> Option<&mut Entry> {
        match self.slot(place) {
            Slot::Used(entry) => Some(entry).filter(|entry| entry.number() == number),
            Slot::Free(_) => None,
        }
    }
}
