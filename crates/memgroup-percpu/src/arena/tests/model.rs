//! The arena against a model that knows the live blocks: no overlap, alignment, zeros, and all memory back in the end.

use std::collections::BTreeMap;

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use xtask::Watchdog;

use super::{Marked, depopulate_all};
use crate::arena::alloc::Arena;
use crate::arena::block::{NO_OWNER, Shape, Wait};
use crate::arena::config::ArenaConfig;
use crate::arena::page::PageSize;

#[derive(Clone, Debug)]
enum Step {
    Alloc { bytes: usize, align: usize, owned: bool, wait: Wait },
    Free(usize),
    Admit(usize),
    Move,
    Depopulate(usize),
}

fn steps() -> impl Strategy<Value = Step> {
    let bytes =
        prop_oneof![4 => 1_usize..200, 3 => 200_usize..5_000, 1 => 5_000_usize..=32_768, 1 => Just(65_536)];
    let align = prop_oneof![6 => Just(8_usize), 1 => Just(1), 1 => Just(64), 1 => Just(128)];
    let wait = prop_oneof![5 => Just(Wait::May), 1 => Just(Wait::Never)];
    prop_oneof![
        8 => (bytes, align, any::<bool>(), wait)
            .prop_map(|(bytes, align, owned, wait)| Step::Alloc { bytes, align, owned, wait }),
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
            Step::Alloc { bytes, align, owned, wait } => {
                let shape = Shape::new(bytes, if owned { 8 } else { align });
                let owner = if owned { self.next } else { NO_OWNER };
                let block = match self.arena.alloc(shape, owner, wait) {
                    Ok(block) => block,
                    Err(error) => {
                        assert_eq!(wait, Wait::Never, "{error}");
                        return;
                    }
                };
                let marked = Marked::mark(&self.arena, block, shape, self.next + 1);
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
            Step::Admit(slot) => self.arena.admit(slot % self.arena.slots()),
            Step::Move => {
                let Some(offer) = self.arena.begin_move() else { return };
                let admitted = self.admitted();
                let (old, _) = self.live[&offer.owner];
                assert_eq!(old.block, offer.from);
                let moved = Marked::mark(&self.arena, offer.to, old.shape, old.mark);
                self.live.insert(offer.owner, (moved, admitted));
                self.arena.free(offer.from);
            }
            Step::Depopulate(pages) => {
                let done = self.arena.depopulate_now(pages);
                assert!(done.pages <= pages.min(64) && done.calls <= done.pages);
            }
        }
    }

    /// All live blocks hold their marks, overlap nowhere, and are all that is used.
    fn check(&self) {
        self.arena.check();
        let mut ranges = Vec::new();
        for (marked, admitted) in self.live.values() {
            marked.check(&self.arena, admitted);
            let start = marked.block.place.address().addr().get();
            ranges.push((start, start + marked.block.bytes()));
        }
        ranges.sort_unstable();
        ranges.windows(2).for_each(|pair| assert!(pair[0].1 <= pair[1].0, "blocks overlap"));
        let bytes: usize = self.live.values().map(|(marked, _)| marked.block.bytes()).sum();
        assert_eq!(self.arena.stats().unit_live_bytes, bytes as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 3 } else { 192 }, ..ProptestConfig::default() })]

    #[test]
    fn blocks_are_apart_aligned_zero_at_birth_and_all_come_back(
        steps in proptest::collection::vec(steps(), 1..if cfg!(miri) { 20 } else { 200 }),
        page in 0_usize..4, slots in 1_usize..5, unmap in any::<bool>(),
    ) {
        let config = ArenaConfig::new(slots)
            .page(PageSize::ALL[page])
            .float_bytes(0)
            .unmap(unmap);
        let _watchdog = Watchdog::over("the steps of the arena's model");
        let mut model = Model { arena: Arena::new(config).expect("right"), live: BTreeMap::new(), next: 0 };
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
        if unmap {
            assert!(stats.chunks <= 1, "{stats:?}");
        }
    }
}
