//! Doubly linked lists of chunks by number. A chunk is in at most one list of a set; a bitmap
//! tells which lists are not empty.

use crate::bits;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
    list: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

/// A set of lists.
#[derive(Debug)]
pub(crate) struct Lists {
    ends: Box<[Ends]>,
    filled: Box<[u64]>,
    links: Vec<Link>,
}

impl Lists {
    pub(crate) fn new(lists: usize) -> Self {
        Self {
            ends: vec![Ends { first: NONE, last: NONE }; lists].into(),
            filled: vec![0; lists.div_ceil(64)].into(),
            links: Vec::new(),
        }
    }

    /// Makes room for chunk `id`.
    pub(crate) fn admit(&mut self, id: u32) {
        if self.links.len() <= id as usize {
            self.links.resize(id as usize + 1, Link { previous: NONE, next: NONE, list: NONE });
        }
    }

    /// The list that chunk `id` is in.
    pub(crate) fn list_of(&self, id: u32) -> Option<usize> {
        let list = self.links[id as usize].list;
        (list != NONE).then_some(list as usize)
    }

    /// Moves chunk `id` to the head of `list`.
    pub(crate) fn put_first(&mut self, id: u32, list: usize) {
        self.remove(id);
        let next = self.ends[list].first;
        self.insert(id, Link { previous: NONE, next, list: list as u32 });
    }

    /// Moves chunk `id` to the tail of `list`.
    pub(crate) fn put_last(&mut self, id: u32, list: usize) {
        self.remove(id);
        let previous = self.ends[list].last;
        self.insert(id, Link { previous, next: NONE, list: list as u32 });
    }

    fn insert(&mut self, id: u32, link: Link) {
        let list = link.list as usize;
        self.links[id as usize] = link;
        match link.previous {
            NONE => self.ends[list].first = id,
            previous => self.links[previous as usize].next = id,
        }
        match link.next {
            NONE => self.ends[list].last = id,
            next => self.links[next as usize].previous = id,
        }
        self.filled[list / 64] |= 1 << (list % 64);
    }

    /// Takes chunk `id` out of its list.
    pub(crate) fn remove(&mut self, id: u32) {
        let Link { previous, next, list } = self.links[id as usize];
        if list == NONE {
            return;
        }
        match previous {
            NONE => self.ends[list as usize].first = next,
            previous => self.links[previous as usize].next = next,
        }
        match next {
            NONE => self.ends[list as usize].last = previous,
            next => self.links[next as usize].previous = previous,
        }
        if self.ends[list as usize].first == NONE {
            self.filled[list as usize / 64] &= !(1 << (list % 64));
        }
        self.links[id as usize] = Link { previous: NONE, next: NONE, list: NONE };
    }

    pub(crate) fn first(&self, list: usize) -> Option<u32> {
        let first = self.ends[list].first;
        (first != NONE).then_some(first)
    }

    /// The chunk after `id` in its list.
    pub(crate) fn next(&self, id: u32) -> Option<u32> {
        let next = self.links[id as usize].next;
        (next != NONE).then_some(next)
    }

    /// The first list of `from..end` that is not empty.
    pub(crate) fn filled_from(&self, from: usize, end: usize) -> Option<usize> {
        let list = bits::next_set(&self.filled, from as u32, end as u32) as usize;
        (list < end).then_some(list)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    fn all(lists: &Lists, list: usize) -> Vec<u32> {
        std::iter::successors(lists.first(list), |&id| lists.next(id)).collect()
    }

    #[test]
    fn chunks_move_between_lists_and_keep_their_order() {
        let mut lists = Lists::new(130);
        (0..5).for_each(|id| lists.admit(id));
        (0..5).for_each(|id| lists.put_last(id, 129));
        lists.put_first(3, 129);
        assert_eq!(all(&lists, 129), [3, 0, 1, 2, 4]);
        lists.put_first(1, 64);
        lists.remove(4);
        assert_eq!(all(&lists, 129), [3, 0, 2]);
        assert_eq!((lists.list_of(1), lists.list_of(4)), (Some(64), None));
        assert_eq!((lists.filled_from(0, 130), lists.filled_from(65, 130)), (Some(64), Some(129)));
        lists.remove(1);
        assert_eq!(lists.filled_from(0, 129), None);
    }
}
