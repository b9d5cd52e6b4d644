//! The page cache: the methods for `SQLITE_CONFIG_PCACHE2`. Any thread can take pages out, least
//! recently used first, even while the cache's connection is running a statement.
//!
//! ```text
//!   SQLite ── fetch ──▶ found: pin the page
//!                   ──▶ not found: at the advised size, recycle the least recently used page
//!                                  below it, allocate; if refused, recycle
//!          ── unpin ──▶ the page is the most recently used evictable one
//!
//!   any thread ── try_shrink(bytes) ──▶ take out least recently used pages ──▶ uncharge their owners, free them
//! ```
//!
//! A page is *pinned* while SQLite uses it, and *evictable* otherwise. Dirty pages are pinned until
//! they are written. A cache of a database in memory has no evictable page.
//!
//! Layers, each of which imports only earlier ones: `page`, `table`, `lock`, `recent`,
//! `pages`, `cache`, `fetch`, `methods`.
//!
//! - I1. SQLite calls the methods of one cache from one thread at a time. Only they insert pages
//!   and grow the table. So when a method takes the lock again, evictable pages may be gone, but
//!   nothing else has changed.
//! - I2. No page is charged, allocated or freed, and no table is allocated or freed, while the lock
//!   is held. A charge may reclaim memory from the same cache. It finds the lock free, or held by
//!   another thread, in which case it continues without.
//! - I3. The group that was current when a page was allocated pays for it until it is freed. A page
//!   is recycled in place if its owner is current. Otherwise it is freed and the current group is
//!   charged for a new one. If that group is full, the page is recycled nevertheless, and its owner
//!   continues to pay.
//! - B1. After a refusal a cache recycles for the next `RECYCLED_AFTER_REFUSAL` new pages without
//!   asking its group. A refusal drains the stocks of a whole subtree, which costs more than the
//!   page is worth. So a cache may stay small for that long even if memory is free again.
//! - B2. A growing table relinks its pages under the lock, at some tens of nanoseconds each. No
//!   thread waits for that, because shrinking threads do not wait for the lock. A connection waits
//!   for a shrinking thread, for one batch of pages.
//! - E1. All state under the lock: lock.rs. [`PageCache::evictable`] reads counts that are written
//!   under it, and may be out of date.

mod cache;
mod fetch;
mod lock;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod methods;
#[cfg(all(test, not(memgroup_loom)))]
mod model;
mod page;
mod pages;
mod recent;
#[cfg(all(test, not(memgroup_loom)))]
mod stress;
mod table;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

pub(crate) use cache::try_shrink_group;
pub(crate) use methods::methods;
