//! The cost of a poll in a group: nanoseconds beyond the poll of the bare future, which is the control. `limited` ends over the limit, `tracked` also
//! by a kill.

use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use memgroup::{Config, Hierarchy};
use memgroup_tokio::{InGroupExt, Tasks};

const POLLS: u32 = 50_000;
const ROUNDS: usize = 400;

/// A future that counts its polls and is never ready.
struct Counts(u64);

impl Future for Counts {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        self.0 = black_box(self.0 + 1);
        Poll::Pending
    }
}

/// Polls a future that never ends.
struct Forever<F>(F);

impl<F: Future + Unpin> Future for Forever<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(drop)
    }
}

/// Nanoseconds a poll.
fn time(mut future: Pin<&mut impl Future<Output = ()>>) -> f64 {
    let mut context = Context::from_waker(Waker::noop());
    let began = Instant::now();
    for _ in 0..POLLS {
        _ = black_box(future.as_mut().poll(&mut context));
    }
    began.elapsed().as_nanos() as f64 / f64::from(POLLS)
}

fn main() {
    let off = Config::new().scope_time(false).pressure(false);
    let configs = [
        ("neither time nor pressure", off),
        ("pressure", off.pressure(true)),
        ("pressure and sampled time, 1 in 32", off.pressure(true).scope_time_sampled(32)),
        ("exact time", off.scope_time(true)),
        ("pressure and exact time, the default", Config::new()),
    ];
    println!(
        "{:<41} {:>8} {:>9} {:>9} {:>9}",
        "ns a poll, best of 400 rounds in turns", "control", "in_group", "limited", "tracked"
    );
    for (name, config) in configs {
        let hierarchy = Hierarchy::new(config).expect("the settings are in range");
        let group = hierarchy.create("/tenant").expect("the name is free");
        let (mut bare, mut inside) = (pin!(Counts(0)), pin!(Counts(0).in_group(&group)));
        let mut limited = pin!(Forever(Counts(0).in_group(&group).ended_over_limit()));
        let tasks = Tasks::of(&group).expect("it has no hook");
        let mut tracked = pin!(Forever(tasks.track(Counts(0))));
        let mut best = [f64::MAX; 4];
        for _ in 0..ROUNDS {
            best[0] = best[0].min(time(bare.as_mut()));
            best[1] = best[1].min(time(inside.as_mut()));
            best[2] = best[2].min(time(limited.as_mut()));
            best[3] = best[3].min(time(tracked.as_mut()));
        }
        let [bare, others @ ..] = best;
        let [inside, limited, tracked] = others.map(|nanos| nanos - bare);
        println!("{name:<41} {bare:>8.1} {inside:>9.1} {limited:>9.1} {tracked:>9.1}");
    }
}
