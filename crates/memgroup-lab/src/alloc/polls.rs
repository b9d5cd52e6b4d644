//! Polls: nanoseconds that a group adds to the poll of a future. The control is the bare future.
//!
//! - I1. Each poll reaches the future within.

use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use memgroup::Config;
use memgroup_tokio::{InGroupExt, Tasks};

use crate::harness::prelude::*;

/// The goals in nanoseconds, of the three settings that have one.
const NEITHER_MOST: f64 = 5.0;
const SAMPLED_MOST: f64 = 12.0;
const EXACT_MOST: f64 = 22.0;

/// One poll in so many begins a measured stretch of time.
const SAMPLED: u32 = 32;

/// A future that counts its polls and is never ready.
struct Counts<'c>(&'c mut u64);

impl Future for Counts<'_> {
    type Output = ();

    // As a poll of much code: the compiler drops no part of a scope around it, and moves none.
    #[inline(never)]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        *self.0 = black_box(*self.0 + 1);
        Poll::Pending
    }
}

/// Nanoseconds of each of so many polls.
fn time<T>(clock: &Clock, mut future: Pin<&mut impl Future<Output = T>>, polls: u64) -> f64 {
    let mut context = Context::from_waker(Waker::noop());
    let began = clock::now_ordered();
    for _ in 0..polls {
        let _ = black_box(future.as_mut().poll(&mut context));
    }
    clock.ns((clock::now_ordered() - began) as f64) / polls as f64
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let off = Config::with_slots(lab.slots).scope_time(false).pressure(false);
    let settings = [
        ("neither time nor pressure", off, Some(NEITHER_MOST)),
        ("pressure", off.pressure(true), None),
        (
            "pressure and sampled time, 1 in 32",
            off.pressure(true).scope_time_sampled(SAMPLED),
            Some(SAMPLED_MOST),
        ),
        ("exact time", off.scope_time(true), Some(EXACT_MOST)),
        ("pressure and exact time, the default", Config::with_slots(lab.slots), None),
    ];
    let (rounds, polls) = (lab.pick(3, 60, 400), lab.pick(100, 20_000, 50_000));
    let mut table = Table::new(
        "a poll: ns, and ns that a group adds",
        ["setting", "bare (control)", "in_group", "ended_over_limit", "tracked"],
    );
    for (name, config, most) in settings {
        let hierarchy = hierarchy(config)?;
        let group = child(&hierarchy.root(), "tenant")?;
        let tasks = Tasks::of(&group).set_up("the tasks of a group")?;
        let mut counts = [0_u64; 4];
        let mut samples: [Vec<f64>; 4] = Default::default();
        {
            let [bare, inside, limited, tracked] = &mut counts;
            let (mut bare, mut inside) = (pin!(Counts(bare)), pin!(Counts(inside).in_group(&group)));
            let mut limited = pin!(Counts(limited).in_group(&group).ended_over_limit());
            let mut tracked = pin!(tasks.track(Counts(tracked)));
            for _ in 0..rounds {
                samples[0].push(time(&lab.clock, bare.as_mut(), polls));
                samples[1].push(time(&lab.clock, inside.as_mut(), polls));
                samples[2].push(time(&lab.clock, limited.as_mut(), polls));
                samples[3].push(time(&lab.clock, tracked.as_mut(), polls));
            }
        }
        for (variant, polled) in ["bare", "in_group", "limited", "tracked"].into_iter().zip(counts) {
            expect(format!("polls of the {variant} future"), polled, rounds as u64 * polls)?;
        }
        // Each round's difference: a slow stretch of the machine slows both of its parts.
        let bare = samples[0].clone();
        let added = |of: &Vec<f64>| Summary::of(of.iter().zip(&bare).map(|(with, bare)| with - bare));
        let inside = added(&samples[1]);
        let mut record = lab.record(name, json!({}));
        let cells = [
            record.summary("bare poll", "ns", Summary::of(&samples[0])),
            record.summary("in_group adds", "ns", inside),
            record.summary("ended_over_limit adds", "ns", added(&samples[2])),
            record.summary("tracked adds", "ns", added(&samples[3])),
        ];
        table.row(name, cells);
        if let Some(most) = most {
            lab.at_most(format!("a poll in a group, {name}"), median(inside), most, "ns");
        }
    }
    lab.print(&table)
}
