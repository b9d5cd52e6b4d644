//! The costs of per-slot memory: of a record allocated and discarded among 11,000 others, and of an
//! addition to a word that never moves and to a record's word. It also measures pages given back,
//! and marks set and collected.
//!
//! ```text
//! cargo run --release -p memgroup-percpu --example percpu_cost
//! ```

fn main() {
    #[cfg(not(memgroup_loom))]
    measured::run();
}

#[cfg(not(memgroup_loom))]
mod measured {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use memgroup_percpu::{
        ArenaConfig, Fresh, Mark, Marks, Records, Scratch, SlotSource, WordCell, Words, additive,
    };
    use memgroup_sync::Erasable;

    /// As many words as the per-CPU records of one kernel group: 2,704 bytes.
    const GROUP: usize = 338;
    const RECORDS: usize = 11_000;
    const ROUNDS: usize = 21;

    fn median(mut samples: Vec<f64>) -> f64 {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    }

    /// Records of `words` words on all of `slots` slots, with address space for [`RECORDS`].
    fn records(slots: usize, words: usize) -> &'static Records {
        let config = ArenaConfig::new(slots).float_bytes(0);
        let records = Records::new(config, words).expect("the sizes are within bounds");
        records.provide(RECORDS as u64).expect("the system has memory");
        (0..slots).for_each(|slot| records.admit(slot));
        Box::leak(Box::new(records))
    }

    /// Records without a handle, of which some were discarded.
    fn allocated(records: &'static Records, count: usize, stays: impl Fn(usize) -> bool) -> Vec<Fresh> {
        let all = (0..count).map(|_| records.allocate(0).expect("there is address space"));
        let (kept, gone): (Vec<_>, Vec<_>) =
            all.collect::<Vec<_>>().into_iter().enumerate().partition(|(number, _)| stays(*number));
        gone.into_iter().for_each(|(_, fresh)| records.discard(fresh));
        kept.into_iter().map(|(_, fresh)| fresh).collect()
    }

    /// Nanoseconds to allocate and discard a record in holes among others.
    fn pair(words: usize) -> f64 {
        const BATCH: usize = 1000;
        let records = records(2, words);
        let others = allocated(records, RECORDS, |number| number % 3 != 0);
        let samples = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            assert!(allocated(records, BATCH, |_| false).is_empty());
            start.elapsed().as_nanos() as f64 / BATCH as f64
        });
        let samples = samples.collect();
        others.into_iter().for_each(|fresh| records.discard(fresh));
        median(samples)
    }

    /// Additions of one sample: so few that most samples are over before another thread gets the
    /// processor.
    const TURNS: usize = 50_000;

    /// Nanoseconds of one turn of `add`, out of many.
    fn a_turn(mut add: impl FnMut(usize)) -> f64 {
        let start = Instant::now();
        (0..TURNS).for_each(&mut add);
        start.elapsed().as_nanos() as f64 / TURNS as f64
    }

    /// Prints the cost of an addition, each way together with a bare one. The ways take turns, so
    /// that all see the same machine.
    fn additions() {
        const HANDLES: usize = 64;
        const ROUNDS: usize = 401;
        let source = SlotSource::detect();
        let bare = AtomicU64::new(0);
        let table: &'static Words = Box::leak(Box::new(Words::new(source.slots())));
        table.reserve(0).expect("the system has memory");
        let cell = WordCell::zero();
        cell.set(table, 0);
        let all = self::records(source.slots(), 4);
        let records: Vec<_> = (0..HANDLES as u32)
            .map(|owner| {
                let record = all.record();
                record.link(all.allocate(owner).expect("there is address space"));
                record
            })
            .collect();
        let add = |at: usize| match records[at].fast_access(&source.fast(), 1) {
            Some((_, word)) => assert!(additive::add(&word, 1)),
            None => {
                let word = records[at].access(source.current(), 1).expect("it is linked");
                assert!(additive::add(&word, 1));
            }
        };
        let mut samples: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            // ORDERING: AcqRel, as an additive word; one thread.
            samples[0].push(a_turn(|_| _ = bare.fetch_add(1, Ordering::AcqRel)));
            samples[1].push(a_turn(|_| {
                let word = cell.get(source.current()).expect("there is a word on each slot");
                word.fetch_add(1, Ordering::AcqRel);
            }));
            samples[2].push(a_turn(|_| add(0)));
            samples[3].push(a_turn(|turn| add(turn % HANDLES)));
        }
        // ORDERING: Relaxed; one thread.
        let added = bare.load(Ordering::Relaxed)
            + (0..source.slots())
                .filter_map(|slot| cell.get(slot))
                .map(|copy| copy.load(Ordering::Relaxed))
                .sum::<u64>();
        assert_eq!(added, (2 * ROUNDS * TURNS) as u64, "each addition is counted");
        let section = memgroup_percpu::grace::enter();
        let section = &section;
        let words = records
            .iter()
            .flat_map(|record| (0..source.slots()).filter_map(move |slot| record.word(section, slot, 1)));
        let total: i64 = words.map(additive::read).sum();
        assert_eq!(total, (2 * ROUNDS * TURNS) as i64, "each addition is counted");
        let [bare, copy, one, many] = samples.map(median);
        println!(
            "one addition by one thread, {} of {} slots; median of {ROUNDS}, in turns",
            source.name(),
            source.slots()
        );
        println!("  to a word                              {bare:6.2} ns");
        println!("  to this slot's copy of a word          {copy:6.2} ns   {:+.2}", copy - bare);
        println!("  to a word of one record                {one:6.2} ns   {:+.2}", one - bare);
        println!("  to a word of {HANDLES} records, in turns       {many:6.2} ns   {:+.2}", many - bare);
    }

    /// Microseconds a page to give back the pages of ten of eleven records, and how many pages a
    /// call took.
    fn depopulate() -> (f64, f64) {
        let (mut samples, mut pages, mut calls) = (Vec::new(), 0, 0);
        for _ in 0..ROUNDS {
            let records = records(2, GROUP);
            let fresh = allocated(records, RECORDS / 4, |_| true);
            for (fresh, slot) in fresh.iter().flat_map(|fresh| [(fresh, 0), (fresh, 1)]) {
                let words = (0..GROUP).filter_map(|word| records.fresh_word(fresh, slot, word));
                // ORDERING: Relaxed; one thread.
                words.for_each(|word| word.store(1, Ordering::Relaxed));
            }
            let gone = fresh.into_iter().enumerate().filter(|(number, _)| number % 11 != 0);
            gone.for_each(|(_, fresh)| records.discard(fresh));
            let (start, before) = (Instant::now(), pages);
            loop {
                let done = records.arena().depopulate_now(64);
                (pages, calls) = (pages + done.pages, calls + done.calls);
                if !done.more {
                    break;
                }
            }
            samples.push(start.elapsed().as_nanos() as f64 / 1000.0 / (pages - before) as f64);
        }
        (median(samples), pages as f64 / calls as f64)
    }

    /// Marks of `numbers` numbers in `rows` rows, the places of all numbers, and a scratch for
    /// collections.
    fn marked(rows: usize, numbers: u32) -> (&'static Marks, Vec<Mark>, Scratch) {
        let marks: &'static Marks = Box::leak(Box::new(Marks::new(rows, numbers)));
        (0..numbers).for_each(|number| marks.provide(number));
        (marks, (0..numbers).map(|number| marks.of(number)).collect(), Scratch::new(rows))
    }

    /// Prints the cost of a mark for an updater.
    fn setting() {
        const ROUNDS: usize = 401;
        const ROWS: usize = 513;
        let (marks, places, mut scratch) = marked(ROWS, 4096);
        let (bare, counter) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut samples: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            // ORDERING: AcqRel, as an addition that is collected; one thread.
            samples[0].push(a_turn(|_| _ = bare.fetch_add(1, Ordering::AcqRel)));
            let mark = black_box(places[17]);
            mark.set(5);
            samples[1].push(a_turn(|_| {
                let row = black_box(5);
                let word = mark.word(row).expect("there is such a row");
                // ORDERING: AcqRel, as above.
                counter.fetch_add(1, Ordering::AcqRel);
                if !mark.is_set_in(word) {
                    mark.set(row);
                }
            }));
            marks.collect(&mut scratch, |_| true, |_, rows| _ = black_box(rows.count()), || ());
            let start = Instant::now();
            places.iter().for_each(|place| place.set(7));
            samples[2].push(start.elapsed().as_nanos() as f64 / places.len() as f64);
            marks.collect(&mut scratch, |_| true, |_, rows| _ = black_box(rows.count()), || ());
            let start = Instant::now();
            (0..ROWS).for_each(|row| places[0].set(row));
            samples[3].push(start.elapsed().as_nanos() as f64 / ROWS as f64);
            marks.collect(&mut scratch, |_| true, |_, rows| _ = black_box(rows.count()), || ());
        }
        let [bare, look, first, first_of_row] = samples.map(median);
        println!("marks, one thread; median of {ROUNDS}, in turns");
        println!("  an addition, no mark                   {bare:6.2} ns");
        println!("  an addition, and the mark is set       {look:6.2} ns   {:+.2}", look - bare);
        println!("  to set the mark of a number            {first:6.2} ns");
        println!("  to set the first mark of a row         {first_of_row:6.2} ns");
    }

    /// Microseconds of a collection of the marks that `mark` has set.
    fn collection(marks: &Marks, scratch: &mut Scratch, mark: impl Fn(usize)) -> f64 {
        let samples = (0..ROUNDS).map(|round| {
            mark(round);
            let start = Instant::now();
            marks.collect(scratch, |_| true, |_, rows| _ = black_box(rows.count()), || ());
            start.elapsed().as_nanos() as f64 / 1000.0
        });
        median(samples.collect())
    }

    /// Prints the cost of a collection, without the callback's own work.
    fn collecting() {
        println!("one collection; median of {ROUNDS}");
        println!(
            "   rows  numbers   one mark   a mark of each number       all marks                is_clean"
        );
        for rows in [2, 8, 128, 512] {
            for numbers in [10_u32, 1_000, 10_000] {
                let (marks, places, mut scratch) = marked(rows, numbers);
                let each = numbers as usize;
                let one = collection(marks, &mut scratch, |round| places[round % each].set(round % rows));
                let spread = collection(marks, &mut scratch, |round| {
                    places.iter().enumerate().for_each(|(at, place)| place.set((at * 7 + round) % rows));
                });
                let all = collection(marks, &mut scratch, |_| {
                    places.iter().for_each(|place| (0..rows).for_each(|row| place.set(row)));
                });
                let (of_each, of_all) = (spread * 1000.0 / each as f64, all * 1000.0 / (each * rows) as f64);
                let clean = a_turn(|_| assert!(black_box(marks).is_clean()));
                println!(
                    "  {rows:5} {numbers:8} {one:7.2} us {spread:9.2} us {of_each:6.1} ns each \
                     {all:10.2} us {of_all:5.1} ns each {clean:6.1} ns"
                );
            }
        }
    }

    pub(crate) fn run() {
        println!("allocate and discard a record among {RECORDS}, a third of them gone; median of {ROUNDS}");
        println!("    8 bytes, 2 slots    {:8.0} ns", pair(1));
        println!("  384 bytes, 2 slots    {:8.0} ns", pair(48));
        println!(" 2704 bytes, 2 slots    {:8.0} ns", pair(GROUP));
        additions();
        let (us, pages) = depopulate();
        println!(
            "depopulate, 10 of 11 records of 2704 bytes gone: {us:.2} us a page, {pages:.1} pages a call"
        );
        setting();
        collecting();
    }
}
