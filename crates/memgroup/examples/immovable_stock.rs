//! The reason why the stock word moves. It measures charge pairs on words that move and on words that never move. Then it removes ten of
//! eleven groups, and measures the memory that each kind keeps.
//!
//! ```text
//! cargo run --release -p memgroup --example immovable_stock
//! ```

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use memgroup::{Config, Group, Hierarchy, SlotSource};

const ROUNDS: usize = 1001;
const PAIRS: u64 = 20_000;
const BYTES: u64 = 4096;

/// Words that never move: one row of groups for each slot. The index is all that a charge needs.
struct ImmovableWords {
    source: SlotSource,
    words: Vec<AtomicU64>,
    stride: usize,
}

impl ImmovableWords {
    fn new(source: SlotSource, groups: usize) -> ImmovableWords {
        let words = (0..source.slots() * groups).map(|_| AtomicU64::new(1 << 60)).collect();
        ImmovableWords { source, words, stride: groups }
    }

    /// The two additions of a charge and an uncharge, and the checks of the values that they found.
    #[inline(always)]
    fn pair(&self, index: usize, bytes: u64) {
        let word = &self.words[self.source.current() * self.stride + index];
        let found = word.fetch_sub(bytes << 4, Ordering::AcqRel);
        assert!(found > bytes << 4);
        let word = &self.words[self.source.current() * self.stride + index];
        let found = word.fetch_add(bytes << 4, Ordering::AcqRel);
        assert!(found < u64::MAX / 2);
    }
}

#[inline(never)]
fn flat(counter: &AtomicU64) {
    for _ in 0..PAIRS {
        let bytes = black_box(BYTES);
        counter.fetch_add(bytes, Ordering::AcqRel);
        counter.fetch_sub(bytes, Ordering::AcqRel);
    }
}

#[inline(never)]
fn moving(group: &Group) {
    for _ in 0..PAIRS {
        drop(black_box(group.try_charge(black_box(BYTES)).expect("there is no limit")));
    }
}

#[inline(never)]
fn immovable(words: &ImmovableWords) {
    for _ in 0..PAIRS {
        words.pair(black_box(3), black_box(BYTES));
    }
}

fn nanos_a_pair(run: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    run();
    begin.elapsed().as_nanos() as f64 / PAIRS as f64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hierarchy = Hierarchy::new(Config::new())?;
    let group = hierarchy.create("/a")?.create("b")?.create("c")?;
    let words = ImmovableWords::new(SlotSource::detect(), 4096);
    let counter = AtomicU64::new(0);
    let mut samples: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        samples[0].push(nanos_a_pair(|| flat(&counter)));
        samples[1].push(nanos_a_pair(|| moving(&group)));
        samples[2].push(nanos_a_pair(|| immovable(&words)));
    }
    let [flat, moving, immovable] = samples.map(median);
    println!("a charge and an uncharge on one thread, medians of {ROUNDS} rounds in turns");
    println!("  two additions to one counter   {flat:5.2} ns");
    println!("  moving words, depth 3          {moving:5.2} ns   x{:.2}", moving / flat);
    println!("  immovable words                {immovable:5.2} ns   x{:.2}", immovable / flat);

    println!("memory kept a slot after ten of eleven groups were removed, every eleventh stays");
    for record in [8_u64, 168, 2704] {
        // Of 512 words a page, every eleventh is alive: no page of immovable words can go.
        let (dead, live) = (10 * 8, 8 + record);
        let ratio = (live + dead) as f64 / live as f64;
        println!(
            "  immovable words, {record:4} bytes of statistics   {:4} of {live:4} live bytes   x{ratio:.2}",
            live + dead
        );
    }
    Ok(())
}
