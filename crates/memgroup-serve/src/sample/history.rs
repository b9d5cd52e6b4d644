//! History: ten minutes of the largest groups, a sample each second.
//!
//! - I1. A group's memory for all samples is charged before its first sample, so the history never
//!   takes more than it was granted.
//! - I2. Sample `tick` is at index `tick % SAMPLES`. An index that a group did not fill has
//!   [`LACKING`].

use std::collections::HashMap;

use memgroup::{Charge, Group, GroupId};
use parking_lot::Mutex;
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use crate::account::{Account, uncounted};

/// Samples of a group: ten minutes.
pub(crate) const SAMPLES: usize = 600;

/// The usage of a sample that was not taken, and the limit of a group without one.
const NONE: u64 = u64::MAX;

/// A sample of a group.
#[derive(Clone, Debug)]
struct Sample {
    usage_bytes: u64,
    max_bytes: u64,
    /// Stalled time since the sample before, in microseconds.
    some_us: u32,
    full_us: u32,
}

const LACKING: Sample = Sample { usage_bytes: NONE, max_bytes: NONE, some_us: 0, full_us: 0 };

/// The history of one group.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) path: String,
    /// The tick of the last sample.
    last: u64,
    /// The usage at that time, which ranks the groups.
    usage: u64,
    /// Stalled time until the last sample, in microseconds: some, full. `None` before the first
    /// sample.
    stalled_us: Option<[u64; 2]>,
    samples: Box<[Sample]>,
    _charge: Charge,
}

/// Bytes of the samples of a group.
const SERIES: u64 = (SAMPLES * size_of::<Sample>()) as u64;

impl Series {
    fn new(account: &Account, path: String) -> Option<Series> {
        let charge = account.charge(SERIES + (size_of::<Series>() + path.capacity()) as u64).ok()?;
        let samples = uncounted(|| vec![LACKING; SAMPLES].into());
        Some(Series { path, last: 0, usage: 0, stalled_us: None, samples, _charge: charge })
    }

    fn sample(&mut self, group: &Group, tick: u64) {
        for lacking in (self.last + 1..tick).rev().take(SAMPLES) {
            self.samples[lacking as usize % SAMPLES] = LACKING;
        }
        let (usage, max) = group.usage_and_max();
        let stalled_us = stalled_us(group);
        // After a pause it isn't known in which second the time passed.
        let before = self.stalled_us.filter(|_| self.last + 1 == tick).unwrap_or(stalled_us);
        let [some_us, full_us] = [0, 1]
            .map(|line| u32::try_from(stalled_us[line].saturating_sub(before[line])).unwrap_or(u32::MAX));
        let max_bytes = max.unwrap_or(NONE);
        self.samples[tick as usize % SAMPLES] = Sample { usage_bytes: usage, max_bytes, some_us, full_us };
        (self.last, self.usage, self.stalled_us) = (tick, usage, Some(stalled_us));
    }
}

/// The history of the largest groups.
#[derive(Debug)]
pub(crate) struct History {
    most: usize,
    pub(crate) state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// The number of the last sample; 0 before the first.
    tick: u64,
    /// When each sample was taken, in milliseconds since 1970.
    times_unix_ms: Box<[u64]>,
    series: HashMap<GroupId, Series>,
}

impl History {
    pub(crate) fn new(most: usize) -> History {
        let times_unix_ms = vec![0; SAMPLES].into();
        History { most, state: Mutex::new(State { tick: 0, times_unix_ms, series: HashMap::new() }) }
    }

    /// Adds a sample of the first `most` of these groups. A group keeps its history while there is
    /// room, even after it was removed.
    pub(crate) fn sample(&self, account: &Account, groups: &[&Group], unix_ms: u64) {
        let mut state = self.state.lock();
        let tick = state.tick + 1;
        state.tick = tick;
        state.times_unix_ms[tick as usize % SAMPLES] = unix_ms;
        let mut newcomers = Vec::new();
        for group in groups.iter().take(self.most) {
            match state.series.get_mut(&group.id()) {
                Some(series) => series.sample(group, tick),
                None => newcomers.push(group),
            }
        }
        state.make_room(self.most, newcomers.len());
        for group in newcomers {
            let Some(mut series) = Series::new(account, group.path()) else { break };
            // It has no samples before this one.
            series.last = tick - 1;
            series.sample(group, tick);
            state.series.insert(group.id(), series);
        }
    }
}

/// Returns the stalled time of a group so far: some, full.
fn stalled_us(group: &Group) -> [u64; 2] {
    let pressure = group.pressure();
    [pressure.some.total, pressure.full.total]
}

impl State {
    /// Drops old series, so that there is room for `more` among `most`. First it drops those that
    /// lack the last samples, then the smallest.
    fn make_room(&mut self, most: usize, more: usize) {
        let oldest = (self.tick + 1).saturating_sub(SAMPLES as u64);
        self.series.retain(|_, series| series.last >= oldest);
        let excess = (self.series.len() + more).saturating_sub(most);
        if excess == 0 {
            return;
        }
        let mut ranked: Vec<(u64, u64, GroupId)> =
            self.series.iter().map(|(id, series)| (series.last, series.usage, *id)).collect();
        ranked.sort_unstable_by_key(|&(last, usage, id)| (last, usage, id.as_u64()));
        for (_, _, id) in ranked.into_iter().take(excess) {
            self.series.remove(&id);
        }
    }

    /// Returns the numbers of the stored samples, from the oldest.
    fn ticks(&self) -> impl Iterator<Item = u64> + Clone + use<> {
        let oldest = (self.tick + 1).saturating_sub(SAMPLES as u64).max(1);
        oldest..self.tick + 1
    }

    /// Returns the history of the groups with one of these paths, or of all groups if there is no
    /// path.
    pub(crate) fn of<'h>(&'h self, paths: &[String]) -> Selected<'h> {
        let has = |series: &&Series| paths.is_empty() || paths.contains(&series.path);
        let mut series: Vec<&Series> = self.series.values().filter(has).collect();
        series.sort_unstable_by(|one, other| one.path.cmp(&other.path).then(one.last.cmp(&other.last)));
        Selected { state: self, series }
    }
}

/// A part of the history, to be serialised.
pub(crate) struct Selected<'h> {
    state: &'h State,
    pub(crate) series: Vec<&'h Series>,
}

impl Serialize for Selected<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("samples_max", &SAMPLES)?;
        map.serialize_entry("period_ms", &1000)?;
        map.serialize_entry(
            "times_unix_ms",
            &Column(self.state, &self.state.times_unix_ms, |&time| Some(time)),
        )?;
        map.serialize_entry("groups", &Groups(self))?;
        map.end()
    }
}

struct Groups<'h>(&'h Selected<'h>);

impl Serialize for Groups<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Text<'h> {
            path: &'h str,
            is_current: bool,
            usage_bytes: Column<'h, Sample, u64>,
            max_bytes: Column<'h, Sample, u64>,
            some_us: Column<'h, Sample, u32>,
            full_us: Column<'h, Sample, u32>,
        }
        let state = self.0.state;
        to.collect_seq(self.0.series.iter().map(|Series { path, last, samples, .. }| Text {
            path,
            is_current: *last == state.tick,
            usage_bytes: Column(state, samples, |one| Some(one.usage_bytes).filter(|&bytes| bytes != NONE)),
            max_bytes: Column(state, samples, |one| Some(one.max_bytes).filter(|&bytes| bytes != NONE)),
            some_us: Column(state, samples, |one| Some(one.some_us)),
            full_us: Column(state, samples, |one| Some(one.full_us)),
        }))
    }
}

/// A value of each sample from the oldest on, `null` where there is none.
struct Column<'h, S, T>(&'h State, &'h [S], fn(&S) -> Option<T>);

impl<V, T: Serialize> Serialize for Column<'_, V, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Column(state, samples, value) = self;
        to.collect_seq(state.ticks().map(|tick| value(&samples[tick as usize % SAMPLES])))
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};
    use serde_json::{Value, json};

    use super::*;

    struct Fixture {
        hierarchy: Hierarchy,
        account: Account,
        history: History,
        tick: u64,
    }

    impl Fixture {
        fn new(most: usize) -> Fixture {
            let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
            let account = Account { group: hierarchy.create("/serve").unwrap() };
            Fixture { hierarchy, account, history: History::new(most), tick: 0 }
        }

        fn sample(&mut self) {
            self.tick += 1;
            let groups = self.hierarchy.groups();
            let mut largest: Vec<&Group> = groups.iter().collect();
            largest.sort_by_key(|group| std::cmp::Reverse(group.usage()));
            self.history.sample(&self.account, &largest, 1000 * self.tick);
        }

        fn of(&self, path: &str) -> Value {
            serde_json::to_value(self.history.state.lock().of(&[path.to_owned()])).unwrap()
        }
    }

    #[test]
    fn keeps_the_samples_of_ten_minutes() {
        let mut fixture = Fixture::new(10);
        let group = fixture.hierarchy.create("/a").unwrap();
        fixture.sample();
        let charge = group.try_charge(100).unwrap();
        group.set_max(1000).unwrap();
        fixture.sample();
        let a = fixture.of("/a");
        assert_eq!(a["times_unix_ms"], json!([1000, 2000]));
        assert_eq!(a["groups"][0]["usage_bytes"], json!([0, 100]));
        assert_eq!(a["groups"][0]["max_bytes"], json!([null, 1000]));
        drop(charge);
        (0..SAMPLES).for_each(|_| fixture.sample());
        let a = fixture.of("/a");
        assert_eq!(a["times_unix_ms"].as_array().unwrap().len(), SAMPLES);
        assert_eq!((&a["times_unix_ms"][0], &a["groups"][0]["usage_bytes"][0]), (&json!(3000), &json!(0)));
    }

    #[test]
    fn a_group_without_a_place_lacks_samples() {
        // The root, and one more.
        let mut fixture = Fixture::new(2);
        let (a, b) = (fixture.hierarchy.create("/a").unwrap(), fixture.hierarchy.create("/b").unwrap());
        let (large, larger) = (1 << 30, 1 << 31);
        let charge = a.try_charge(large).unwrap();
        fixture.sample();
        assert_eq!(fixture.of("/a")["groups"][0]["usage_bytes"], json!([large]));
        let other = b.try_charge(larger).unwrap();
        fixture.sample();
        assert_eq!(fixture.of("/b")["groups"][0]["usage_bytes"], json!([null, larger]));
        assert!(
            fixture.history.state.lock().of(&["/a".to_owned()]).series.is_empty(),
            "there were two places"
        );
        drop((charge, other));
    }

    #[test]
    fn a_removed_group_keeps_its_history_while_there_is_a_place() {
        let mut fixture = Fixture::new(10);
        let a = fixture.hierarchy.create("/a").unwrap();
        fixture.sample();
        a.remove().unwrap();
        fixture.sample();
        let text = fixture.of("/a");
        assert_eq!(
            (&text["groups"][0]["usage_bytes"], &text["groups"][0]["is_current"]),
            (&json!([0, null]), &json!(false))
        );
        (0..SAMPLES).for_each(|_| fixture.sample());
        assert!(fixture.history.state.lock().of(&["/a".to_owned()]).series.is_empty());
        assert!(!fixture.history.state.lock().of(&[]).series.is_empty());
    }

    #[test]
    fn takes_no_more_than_its_group_may_have() {
        let mut fixture = Fixture::new(100);
        (0..50).for_each(|number| drop(fixture.hierarchy.create(&format!("/g{number}")).unwrap()));
        fixture.account.group.set_max(10 * (SERIES + 1000)).unwrap();
        fixture.sample();
        let series = fixture.history.state.lock().series.len();
        assert!((10..=12).contains(&series), "{series}");
        fixture.history.state.lock().series.clear();
        assert_eq!(fixture.account.group.usage(), 0);
    }

    #[test]
    fn shows_stalled_time_of_each_second() {
        let mut fixture = Fixture::new(10);
        let group = fixture.hierarchy.create("/a").unwrap();
        let before = group.stall();
        std::thread::sleep(std::time::Duration::from_millis(2));
        fixture.sample();
        drop(before);
        let at_end = group.pressure().some.total;
        fixture.sample();
        fixture.sample();
        let some = &fixture.of("/a")["groups"][0]["some_us"];
        assert_eq!(some[0], json!(0), "it is not known in which second the time before was");
        assert!(some[1].as_u64().unwrap() <= at_end);
        assert_eq!(some[2], json!(0));
    }
}
