//! Random calls of the methods, as SQLite makes them, against a map: which pages are in the cache,
//! and in which order they are evicted.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

use memgroup::{Group, scope};
use rusqlite::ffi;

use super::cache::{Evictable, PageCache, caches_of};
use super::methods::{
    x_cachesize, x_create, x_destroy, x_fetch, x_pagecount, x_rekey, x_shrink, x_truncate, x_unpin,
};
use super::tests::tenant;

const BUFFER_BYTES: usize = 512;
const EXTRA_BYTES: usize = 40;

/// The map's entry for a page. `order` means nothing while it is pinned.
struct Known {
    page: *mut ffi::sqlite3_pcache_page,
    mark: u64,
    is_pinned: bool,
    order: u64,
}

/// A cache, the pages that should be in it, and a random number generator.
struct Model {
    handle: *mut ffi::sqlite3_pcache,
    cache: Arc<PageCache>,
    group: Group,
    known: BTreeMap<u32, Known>,
    advised: usize,
    clock: u64,
    state: u64,
}

impl Model {
    fn new(name: &str, seed: u64) -> Model {
        let group = tenant(name);
        let _scope = scope::enter(&group);
        // SAFETY: SQLite is initialised.
        let handle = unsafe { x_create(BUFFER_BYTES as c_int, EXTRA_BYTES as c_int, 1) };
        let cache = caches_of(&group).pop().expect("it is registered");
        let mut model = Model {
            handle,
            cache,
            group: group.clone(),
            known: BTreeMap::new(),
            advised: 0,
            clock: 0,
            state: seed,
        };
        model.advise(30);
        model
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % bound
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The page that should be evicted first.
    fn oldest(&self) -> Option<u32> {
        let unpinned = self.known.iter().filter(|(_, known)| !known.is_pinned);
        unpinned.min_by_key(|(_, known)| known.order).map(|(&key, _)| key)
    }

    fn pinned(&self) -> usize {
        self.known.values().filter(|known| known.is_pinned).count()
    }

    fn trim(&mut self, pages: usize) {
        while self.known.len() > pages
            && let Some(key) = self.oldest()
        {
            self.known.remove(&key);
        }
    }

    fn advise(&mut self, pages: usize) {
        // SAFETY: the cache is live.
        unsafe { x_cachesize(self.handle, pages as c_int) };
        self.advised = pages;
        self.trim(pages);
    }

    fn fetch(&mut self, key: u32, create: c_int) {
        // SAFETY: the cache is live.
        let page = unsafe { x_fetch(self.handle, key, create) };
        if let Some(known) = self.known.get_mut(&key) {
            assert_eq!(page, known.page, "page {key} was cached");
            known.is_pinned = true;
            assert_eq!(read(page), [known.mark; 3], "page {key} has changed");
            return;
        }
        let is_hard = self.pinned() >= self.advised * 9 / 10;
        if create == 0 || (create == 1 && is_hard) {
            assert!(page.is_null(), "page {key} came with create {create}, {} pinned", self.pinned());
            return;
        }
        assert!(!page.is_null(), "no page with create {create}");
        if self.known.len() + 1 >= self.advised
            && let Some(key) = self.oldest()
        {
            self.known.remove(&key);
        }
        assert!(self.known.values().all(|known| known.page != page), "a page in use was returned");
        assert_eq!(read(page)[1], 0, "a new page is not marked as new");
        let mark = self.tick();
        write(page, mark);
        self.known.insert(key, Known { page, mark, is_pinned: true, order: 0 });
    }

    /// Any page that is pinned.
    fn any_pinned(&mut self) -> Option<u32> {
        let pinned: Vec<u32> =
            self.known.iter().filter(|(_, known)| known.is_pinned).map(|(&key, _)| key).collect();
        if pinned.is_empty() { None } else { Some(pinned[self.below(pinned.len() as u64) as usize]) }
    }

    fn unpin(&mut self, key: u32, discard: bool) {
        let page = self.known[&key].page;
        // SAFETY: the page is pinned.
        unsafe { x_unpin(self.handle, page, c_int::from(discard)) };
        if discard || self.known.len() > self.advised {
            self.known.remove(&key);
            return;
        }
        let order = self.tick();
        let known = self.known.get_mut(&key).expect("a known page");
        (known.is_pinned, known.order) = (false, order);
    }

    fn rekey(&mut self, old: u32, new: u32) {
        if old == new || self.known.get(&new).is_some_and(|known| known.is_pinned) {
            return;
        }
        let known = self.known.remove(&old).expect("a known page");
        // SAFETY: the page is pinned, and no other with the new key is.
        unsafe { x_rekey(self.handle, known.page, old, new) };
        self.known.insert(new, known);
    }

    fn truncate(&mut self, limit: u32) {
        // SAFETY: pages at or above the limit are not used after this.
        unsafe { x_truncate(self.handle, limit) };
        self.known.retain(|&key, _| key < limit);
    }

    fn try_shrink(&mut self, bytes: u64) {
        let (page_bytes, before_bytes) = (self.cache.format.charged_bytes(), self.group.usage_exact());
        let unpinned = self.known.len() - self.pinned();
        let expected = (bytes.div_ceil(page_bytes)).min(unpinned as u64);
        assert_eq!(self.cache.try_shrink(bytes), Some(expected * page_bytes));
        assert_eq!(self.group.usage_exact(), before_bytes - expected * page_bytes);
        self.trim(self.known.len() - expected as usize);
    }

    fn shrink(&mut self) {
        // SAFETY: the cache is live.
        unsafe { x_shrink(self.handle) };
        self.trim(0);
    }

    fn step(&mut self) {
        let key = 1 + self.below(80) as u32 + if self.below(20) == 0 { 100_000 } else { 0 };
        match self.below(100) {
            0..45 => {
                let create = self.below(3) as c_int;
                self.fetch(key, create);
            }
            45..80 => {
                if let Some(key) = self.any_pinned() {
                    let discard = self.below(10) == 0;
                    self.unpin(key, discard);
                }
            }
            80..88 => {
                if let Some(old) = self.any_pinned() {
                    self.rekey(old, key);
                }
            }
            88..90 => self.truncate(key),
            90..98 => {
                let bytes = self.below(5_000);
                self.try_shrink(bytes);
            }
            98 => self.shrink(),
            _ => {
                let pages = self.below(60) as usize;
                self.advise(pages);
            }
        }
    }

    fn check(&self) {
        // SAFETY: the cache is live.
        let pages = unsafe { x_pagecount(self.handle) } as usize;
        assert_eq!(pages, self.known.len());
        let unpinned = (self.known.len() - self.pinned()) as u32;
        let bytes = u64::from(unpinned) * self.cache.format.charged_bytes();
        assert_eq!(self.cache.evictable(), Evictable { bytes, pages: unpinned });
        for known in self.known.values().filter(|known| known.is_pinned) {
            assert_eq!(read(known.page), [known.mark; 3]);
        }
    }

    fn destroy(self) {
        // SAFETY: the cache is live, and not used by SQLite after this.
        unsafe { x_destroy(self.handle) };
        assert_eq!(self.cache.evictable(), Evictable { bytes: 0, pages: 0 });
        assert_eq!(self.cache.try_shrink(u64::MAX), Some(0));
        drop(self.cache);
        assert_eq!(self.group.usage_exact(), 0);
    }
}

/// The words of a page that are checked: the first of the buffer, the first of the extra bytes, and
/// the last of the buffer.
fn places(page: *mut ffi::sqlite3_pcache_page) -> [*mut u64; 3] {
    // SAFETY: the page is pinned.
    let ffi::sqlite3_pcache_page { pBuf: buffer, pExtra: extra } = unsafe { *page };
    assert_eq!((buffer as usize % 8, extra as usize % 8), (0, 0));
    let buffer = buffer.cast::<u64>();
    [buffer, extra.cast::<u64>(), buffer.wrapping_add(BUFFER_BYTES / 8 - 1)]
}

fn read(page: *mut ffi::sqlite3_pcache_page) -> [u64; 3] {
    // SAFETY: the page is pinned, and the words lie in it; of a new one only the second is used.
    places(page).map(|place| unsafe { place.read() })
}

fn write(page: *mut ffi::sqlite3_pcache_page, mark: u64) {
    let extra = places(page)[1];
    for word in 0..EXTRA_BYTES / 8 {
        // SAFETY: the page is pinned, and the extra bytes are that long.
        let place = unsafe { extra.add(word) };
        // SAFETY: the page is pinned, and the extra bytes are that long.
        unsafe { place.write(mark) };
    }
    for place in places(page) {
        // SAFETY: the page is pinned, and the words lie in it.
        unsafe { place.write(mark) };
    }
}

#[test]
fn agrees_with_a_map_after_every_random_call() {
    for seed in 1..=40 {
        let mut model = Model::new(&format!("model {seed}"), seed);
        let group = model.group.clone();
        let _scope = scope::enter(&group);
        for _ in 0..3_000 {
            model.step();
            model.check();
        }
        model.destroy();
    }
}
