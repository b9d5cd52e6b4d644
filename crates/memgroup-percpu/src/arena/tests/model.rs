//! The arena against a model that knows the live blocks: no overlap, zeros, and all memory back in
//! the end.

use std::collections::BTreeMap;

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use xtask::Watchdog;

use super::{Marked, depopulate_all};
use crate::arena::alloc::Arena;
use crate::arena::config::ArenaConfig;
use crate::arena::page::PageSize;

#[derive(Clone, Debug)]
enum Step {
    Provide(u64),
    Alloc,
    Free(usize),
    Admit(usize),
    Move,
    Depopulate(usize),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (1_u64..20).prop_map(Step::Provide),
        10 => Just(Step::Alloc),
        7 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::Admit),
        4 => Just(Step::Move),
        2 => (0_usize..100).prop_map(Step::Depopulate),
    ]
}

struct Model {
    arena: Arena,
    live: BTreeMap<u32, (Marked, Vec<usize>)>,
    next: u32,
}

impl Model {
    fn admitted(&self) -> Vec<usize> {
        self.arena.slots.iter().collect()
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Provide(blocks) => self.arena.provide(blocks).expect("the system has memory"),
            Step::Alloc => {
                let Some(block) = self.arena.alloc(self.next) else {
                    assert_eq!(self.arena.state.lock().chunks.sums.free, 0, "a free block is found");
                    return;
                };
                let marked = Marked::mark(&self.arena, block, self.next + 1);
                self.live.insert(self.next, (marked, self.admitted()));
                self.next += 1;
            }
            Step::Free(which) if !self.live.is_empty() => {
                let key = *self.live.keys().nth(which % self.live.len()).expect("it is not empty");
                let (marked, admitted) = self.live.remove(&key).expect("it was there");
                marked.check(&self.arena, &admitted);
                marked.free(&self.arena);
            }
            Step::Free(_) => {}
            Step::Admit(slot) => _ = self.arena.slots.insert(slot % self.arena.slots()),
            Step::Move => {
                let Some(offer) = self.arena.begin_move() else { return };
                let admitted = self.admitted();
                let (old, _) = self.live[&offer.owner];
                assert_eq!(old.block, offer.from);
                let moved = Marked::mark(&self.arena, offer.to, old.mark);
                self.live.insert(offer.owner, (moved, admitted));
                self.arena.free(offer.from);
            }
            Step::Depopulate(pages) => {
                let done = self.arena.depopulate_now(pages);
                // One block of 64 KiB may lie on 17 pages.
                assert!(done.pages <= pages.clamp(17, 64) && done.calls <= done.pages);
            }
        }
    }

    /// All live blocks hold their marks, overlap nowhere, and are all that is used.
    fn check(&self) {
        self.arena.check();
        let (mut ranges, bytes) = (Vec::new(), self.arena.geometry.block_bytes);
        for (marked, admitted) in self.live.values() {
            marked.check(&self.arena, admitted);
            let start = marked.block.place.address().addr().get();
            ranges.push((start, start + bytes));
        }
        ranges.sort_unstable();
        ranges.windows(2).for_each(|pair| assert!(pair[0].1 <= pair[1].0, "blocks overlap"));
        assert_eq!(self.arena.stats().unit_live_bytes, (self.live.len() * bytes) as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 3 } else { 192 }, ..ProptestConfig::default() })]

    #[test]
    fn blocks_are_apart_zero_at_birth_and_all_come_back(
        steps in proptest::collection::vec(steps(), 1..if cfg!(miri) { 20 } else { 200 }),
        page in 0_usize..3, slots in 1_usize..5,
        words in prop_oneof![1_usize..20, 20_usize..600, 600_usize..=4096, Just(8192_usize)],
    ) {
        let config = ArenaConfig::new(slots).page(PageSize::ALL[page]).float_bytes(0);
        let _watchdog = Watchdog::over("the steps of the arena's model");
        let arena = Arena::new(config, words).expect("right");
        let mut model = Model { arena, live: BTreeMap::new(), next: 0 };
        for (turn, step) in steps.into_iter().enumerate() {
            model.run(step);
            if turn % 8 == 0 {
                model.arena.check();
            }
        }
        model.check();
        for (_, (marked, _)) in core::mem::take(&mut model.live) {
            marked.free(&model.arena);
        }
        depopulate_all(&model.arena);
        model.check();
        let stats = model.arena.stats();
        assert_eq!((stats.live_bytes, stats.leaving_bytes, stats.empty_bytes), (0, 0, 0));
        if cfg!(all(target_os = "linux", not(miri))) {
            assert_eq!(stats.populated_bytes, 0, "no page is left behind: {stats:?}");
        }
        model.arena.provide(0).expect("nothing is needed");
        assert!(model.arena.stats().chunks <= 1, "{stats:?}");
    }
}
