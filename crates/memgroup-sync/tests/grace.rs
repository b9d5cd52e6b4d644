//! Grace periods with real threads: no section sees memory that is used again, and reports name the
//! threads that hold one up.

#![cfg(not(memgroup_loom))]

use std::cell::RefCell;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use memgroup_sync::grace::{self, Form, Limbo, Section};
use memgroup_sync::interleave;
use xtask::Watchdog;

/// Tests that count sections, or hold one for long, run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> (Watchdog, MutexGuard<'static, ()>) {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (Watchdog::over("sections and grace periods"), alone)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(50)
}

/// A thread that is in a section until it is told to leave.
struct Held {
    leave: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Held {
    fn by_a_thread_named(name: &str) -> Self {
        let (leave, told) = mpsc::channel();
        let (entered, inside) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            let section = grace::enter();
            entered.send(()).unwrap();
            told.recv().unwrap();
            drop(section);
        });
        inside.recv().unwrap();
        Self { leave, thread: thread.unwrap() }
    }

    fn leave(self) {
        self.leave.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

const POISON: u64 = u64::MAX;
const CELLS: usize = 8;

/// Cells, one of which is linked. A cell that is not linked is poisoned.
struct Table {
    linked: AtomicUsize,
    cells: [AtomicU64; CELLS],
    over: AtomicBool,
}

/// Reads the linked cell in `sections` sections of every kind; how many of them found it poisoned.
fn read(table: &Table, sections: usize) -> usize {
    let poisoned = (0..sections).filter(|section| {
        let brief = if section % 3 == 0 { grace::enter_briefly() } else { None };
        let _section = brief.is_none().then(grace::enter);
        let _nested = (section % 4 == 0).then(grace::enter);
        // ORDERING: Acquire; pairs with the Release of the writer that linked the cell.
        let cell = &table.cells[table.linked.load(Ordering::Acquire)];
        interleave::point();
        // ORDERING: Relaxed; the section protects it.
        (0..4).any(|_| cell.load(Ordering::Relaxed) == POISON)
    });
    poisoned.count()
}

/// Links another cell, waits until none sees the old one, and poisons that.
fn write(table: &Table, form: Form, round: usize) {
    let (old, new) = (round % CELLS, (round + 1) % CELLS);
    // ORDERING: Relaxed; published by the store of the link.
    table.cells[new].store(round as u64, Ordering::Relaxed);
    // ORDERING: Release; pairs with the Acquire in `read`.
    table.linked.store(new, Ordering::Release);
    grace::synchronize(form);
    // ORDERING: Relaxed; no thread reads the old cell any more.
    table.cells[old].store(POISON, Ordering::Relaxed);
}

fn sees_no_poison(form: Form, time: Duration) {
    let table = Table {
        linked: AtomicUsize::new(0),
        cells: [const { AtomicU64::new(0) }; CELLS],
        over: AtomicBool::new(false),
    };
    // ORDERING: Relaxed; a flag that ends the loops.
    let over = || table.over.load(Ordering::Relaxed);
    let (rounds, poisoned) = std::thread::scope(|scope| {
        let steady: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| (0..).take_while(|_| !over()).map(|_| read(&table, 1000)).sum::<usize>()))
            .collect();
        // Threads that come and go, and so use records again.
        let passing = scope.spawn(|| {
            let visit = || scope.spawn(|| read(&table, 100)).join().unwrap();
            (0..).take_while(|_| !over()).map(|_| visit()).sum::<usize>()
        });
        let begun = Instant::now();
        let goes_on = |&round: &usize| round <= 3 || begun.elapsed() < time;
        let rounds = (0..).take_while(goes_on).inspect(|&round| write(&table, form, round)).count();
        // ORDERING: Relaxed, as above.
        table.over.store(true, Ordering::Relaxed);
        let poisoned =
            steady.into_iter().chain([passing]).map(|reader| reader.join().unwrap()).sum::<usize>();
        (rounds, poisoned)
    });
    println!("{form:?}: {rounds} grace periods");
    assert_eq!(poisoned, 0, "sections that saw a cell used again, in {rounds} rounds");
}

#[test]
fn a_brief_section_is_waited_for_and_there_is_one_at_a_time() {
    let _alone = alone();
    drop(grace::enter());
    if !grace::report().enters_by_store() {
        assert!(grace::enter_briefly().is_none(), "sections are entered by a swap here");
        return;
    }
    let brief = grace::enter_briefly().expect("the thread is in no section");
    assert!(grace::enter_briefly().is_none(), "there is one already");
    let stalled = grace::synchronize_until(Form::Expedited, soon()).unwrap_err();
    assert_eq!(stalled.stallers.len(), 1, "this thread's own: {stalled}");
    drop(brief);
    let again = grace::enter_briefly().expect("the first one is over");
    drop(again);
    grace::synchronize_until(Form::Expedited, Instant::now() + Duration::from_secs(60)).unwrap();
}

thread_local! {
    static KEPT: RefCell<Option<grace::BriefSection>> = const { RefCell::new(None) };
}

#[test]
fn a_brief_section_that_outlives_its_threads_record_ends_all_the_same() {
    let _alone = alone();
    std::thread::spawn(|| {
        KEPT.with(|kept| assert!(kept.borrow().is_none()));
        drop(grace::enter());
        KEPT.with(|kept| *kept.borrow_mut() = grace::enter_briefly());
    })
    .join()
    .unwrap();
    grace::synchronize_until(Form::Expedited, Instant::now() + Duration::from_secs(60)).unwrap();
}

#[test]
fn hides_reused_memory_from_sections() {
    let _alone = alone();
    let time = Duration::from_millis(if cfg!(miri) { 50 } else { 1000 });
    sees_no_poison(Form::Expedited, time);
    sees_no_poison(Form::Quiet, time);
}

#[test]
#[cfg_attr(any(miri, memgroup_emulated), ignore = "starts a process")]
fn hides_reused_memory_from_sections_by_swap() {
    let _alone = alone();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "hides_reused_memory_from_sections"]).env(grace::VARIABLE, "swap");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_section_that_lasts_is_named_and_a_grace_period_ends_after_it() {
    let _alone = alone();
    let held = Held::by_a_thread_named("holds-a-section");
    assert!(grace::stallers(Duration::ZERO).len() == 1);
    let stalled = grace::synchronize_until(Form::Expedited, soon()).unwrap_err();
    assert!(stalled.waited >= Duration::from_millis(40), "{stalled}");
    let [staller] = &stalled.stallers[..] else { panic!("one thread is waited for: {stalled}") };
    assert!(staller.held >= Duration::from_millis(40), "{stalled}");
    assert!(!staller.is_unproven);
    if cfg!(all(target_os = "linux", not(miri))) {
        assert_eq!(staller.thread_name().as_deref(), Some("holds-a-section"));
        let text = stalled.to_string();
        assert!(text.starts_with("end a grace period within "), "{text}");
        assert!(
            text.contains(&format!("thread {} (holds-a-section) in a section for", staller.thread_id)),
            "{text}"
        );
    }
    assert_eq!(grace::stallers(Duration::from_millis(30)).len(), 1);
    assert!(grace::stallers(Duration::from_secs(600)).is_empty());
    held.leave();
    assert!(grace::stallers(Duration::ZERO).is_empty());
    grace::synchronize(Form::Expedited);
}

#[test]
fn a_caller_behind_a_stalled_one_gives_up_at_its_own_deadline() {
    let _alone = alone();
    let held = Held::by_a_thread_named("holds-a-section");
    let first = std::thread::spawn(|| grace::synchronize(Form::Expedited));
    std::thread::sleep(Duration::from_millis(20));
    let stalled = grace::synchronize_until(Form::Expedited, soon()).unwrap_err();
    assert_eq!(stalled.stallers.len(), 1, "{stalled}");
    assert!(!first.is_finished());
    held.leave();
    first.join().unwrap();
}

#[test]
fn a_limbo_refuses_above_its_bound_and_recovers() {
    let _alone = alone();
    let mut limbo = Limbo::new(100);
    let held = Held::by_a_thread_named("holds-a-section");
    assert_eq!(limbo.retire("a", 60), Ok(()));
    assert_eq!(limbo.retire("b", 41), Err("b"), "101 bytes are too many");
    assert_eq!(limbo.retire("b", usize::MAX), Err("b"));
    assert_eq!(limbo.retire("c", 40), Ok(()));
    assert!(grace::synchronize_until(Form::Expedited, soon()).is_err());
    assert_eq!(limbo.reclaim(|item| panic!("{item} may still be seen")), 0);
    assert_eq!((limbo.bytes(), limbo.len()), (100, 2));
    held.leave();
    grace::synchronize(Form::Expedited);
    limbo.retire("d", 0).unwrap();
    let mut reclaimed = Vec::new();
    assert_eq!(limbo.reclaim(|item| reclaimed.push(item)), 2, "the last was retired after the grace period");
    assert_eq!(reclaimed, ["a", "c"]);
    assert_eq!((limbo.bytes(), limbo.len()), (0, 1));
    assert_eq!(limbo.retire("b", 100), Ok(()));
}

#[test]
fn a_dropped_limbo_drops_nothing_that_may_be_seen() {
    let counted = Arc::new(());
    let mut limbo = Limbo::new(1);
    limbo.retire(Arc::clone(&counted), 1).unwrap();
    drop(limbo);
    assert_eq!(Arc::strong_count(&counted), 2);
}

#[test]
fn sections_may_end_in_any_order() {
    let _alone = alone();
    let is_waited_for = || std::thread::spawn(|| grace::synchronize_until(Form::Expedited, soon()).is_err());
    let (first, second, third) = (grace::enter(), grace::enter(), grace::enter());
    drop(first);
    assert!(is_waited_for().join().unwrap());
    drop(third);
    assert!(is_waited_for().join().unwrap());
    drop(second);
    grace::synchronize(Form::Expedited);
}

#[test]
fn in_a_section_a_wait_without_end_is_refused() {
    let _alone = alone();
    let section = grace::enter();
    let begun = Instant::now();
    let stalled = grace::synchronize_until(Form::Expedited, begun + Duration::from_secs(600)).unwrap_err();
    assert_eq!(stalled.stallers.len(), 1, "this thread: {stalled}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(std::panic::catch_unwind(|| grace::synchronize(Form::Expedited)).is_err());
    drop(section);
    grace::synchronize(Form::Expedited);
}

#[test]
fn more_threads_than_a_block_has_records_are_all_waited_for() {
    const THREADS: usize = if cfg!(miri) { 70 } else { 200 };
    let _alone = alone();
    let barrier = Arc::new(Barrier::new(THREADS + 1));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let barrier = Arc::clone(&barrier);
            std::thread::spawn(move || {
                let _section = grace::enter();
                barrier.wait();
                barrier.wait();
            })
        })
        .collect();
    barrier.wait();
    assert_eq!(grace::stallers(Duration::ZERO).len(), THREADS);
    let stalled = grace::synchronize_until(Form::Expedited, soon()).unwrap_err();
    assert_eq!(stalled.stallers.len(), THREADS);
    barrier.wait();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    grace::synchronize(Form::Expedited);
}

/// The work of a thread when its thread-locals are destroyed.
struct AtEnd {
    section: Option<Section>,
    run: Option<Box<dyn FnOnce()>>,
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.run.take().unwrap()();
        drop(self.section.take());
    }
}

thread_local! {
    static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
}

/// Runs `end` when the thread is ending and its record's keeper has been destroyed, with a section
/// or without.
fn run_at_the_end(section: bool, end: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        // Used first, so destroyed last.
        AT_END.with(|at_end| *at_end.borrow_mut() = None);
        let held = grace::enter();
        let at_end = AtEnd { section: section.then(grace::enter), run: Some(Box::new(end)) };
        AT_END.with(|slot| *slot.borrow_mut() = Some(at_end));
        drop(held);
    })
}

fn another_thread_waits_in_vain() -> bool {
    std::thread::spawn(|| grace::synchronize_until(Form::Expedited, soon()).is_err()).join().unwrap()
}

#[test]
fn a_section_that_outlives_its_threads_record_keeper_is_waited_for() {
    let _alone = alone();
    let (sender, seen) = mpsc::channel();
    run_at_the_end(true, move || sender.send(another_thread_waits_in_vain()).unwrap()).join().unwrap();
    assert!(seen.recv().unwrap(), "the section was in force");
    grace::synchronize(Form::Expedited);
}

#[test]
fn a_section_that_is_begun_while_the_thread_ends_is_waited_for() {
    let _alone = alone();
    let (sender, seen) = mpsc::channel();
    let end = move || {
        let outer = grace::enter();
        let inner = grace::enter();
        drop(outer);
        sender.send(another_thread_waits_in_vain()).unwrap();
        drop(inner);
    };
    run_at_the_end(false, end).join().unwrap();
    assert!(seen.recv().unwrap(), "the inner section was in force");
    grace::synchronize(Form::Expedited);
}
