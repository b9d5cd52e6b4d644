//! Compares the format of recordings with JSON lines under zstd, for 1,000 groups whose time is
//! simulated: `cargo run --release -p memgroup-top --example formats -- [SNAPSHOTS]`.
//!
//! Without a number it makes 300 snapshots, a second apart. All three formats start over after 300,
//! so an hour has twelve times the bytes. Each second 100 or all groups make ten charges.

#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../src/recording/mod.rs"]
mod recording;
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../src/text.rs"]
mod text;

use std::io::Write as _;

use memgroup::{Config, Hierarchy};
use recording::{Recorder, Recording};
use serde_json::{Map, Value};

const GROUPS: usize = 1_000;
const PARENTS: usize = 20;
/// Snapshots between two that need no other one, as in recordings.
const BLOCK: u64 = 300;

type Failed = Box<dyn std::error::Error>;

/// The differences from `old` to `new`: of an object its changed members, of an array its changed
/// elements by number.
fn difference(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) if old.len() == new.len() => {
            let changed: Option<Map<_, _>> = new
                .iter()
                .map(|(key, new)| Some((key.clone(), old.get(key).map(|old| difference(old, new))?)))
                .filter_map(|entry| match entry {
                    Some((key, inner)) => inner.map(|inner| Some((key, inner))),
                    None => Some(None),
                })
                .collect();
            let changed = changed.unwrap_or_else(|| new.clone());
            (!changed.is_empty()).then_some(Value::Object(changed))
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            let changed: Map<_, _> = (old.iter().zip(new).enumerate())
                .filter_map(|(at, (old, new))| Some((at.to_string(), difference(old, new)?)))
                .collect();
            (!changed.is_empty()).then_some(Value::Object(changed))
        }
        (old, new) => (old != new).then(|| new.clone()),
    }
}

/// JSON lines in frames of zstd, each flushed, so that a recorder that is killed loses none of the
/// earlier ones.
struct Lines {
    encoder: Option<zstd::Encoder<'static, Vec<u8>>>,
    packed: usize,
    plain: usize,
}

impl Lines {
    fn new() -> Lines {
        Lines { encoder: None, packed: 0, plain: 0 }
    }

    fn end(&mut self) -> Result<(), Failed> {
        if let Some(encoder) = self.encoder.take() {
            self.packed += encoder.finish()?.len();
        }
        Ok(())
    }

    fn add(&mut self, line: &[u8], is_first: bool) -> Result<(), Failed> {
        if is_first {
            self.end()?;
        }
        if self.encoder.is_none() {
            let mut encoder = zstd::Encoder::new(Vec::new(), 6)?;
            encoder.long_distance_matching(true)?;
            // A window that has several snapshots.
            encoder.window_log(23)?;
            self.encoder = Some(encoder);
        }
        if let Some(encoder) = &mut self.encoder {
            encoder.write_all(line)?;
            encoder.write_all(b"\n")?;
            encoder.flush()?;
        }
        self.plain += line.len() + 1;
        Ok(())
    }
}

fn main() -> Result<(), Failed> {
    let snapshots = std::env::args().nth(1).map_or(Ok(BLOCK), |text| text.parse())?;
    let folder = tempfile::tempdir()?;
    for active in [100, GROUPS - PARENTS] {
        let hierarchy = Hierarchy::new(Config::new())?;
        for number in 0..PARENTS {
            hierarchy.create(&format!("/tenants-{number:02}"))?;
        }
        let mut groups = Vec::new();
        for number in 0..GROUPS - PARENTS {
            let group = hierarchy.create(&format!("/tenants-{:02}/tenant-{number:04}", number % PARENTS))?;
            group.set_max(1 << 20)?;
            groups.push((group, Vec::new()));
        }
        let mut state = 1_u64;
        let path = folder.path().join(format!("{active}.memrec"));
        let mut recorder = Recorder::create(&path, &["m.sock".to_owned()], 0)?;
        let (mut whole, mut deltas) = (Lines::new(), Lines::new());
        let mut before = Value::Null;
        for second in 0..snapshots {
            for at in (0..active).cycle().take(10 * active) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (group, held) = &mut groups[at];
                if held.len() == 4 {
                    held.clear();
                }
                held.extend(group.try_charge(if state >> 33 & 15 == 0 { 2 << 20 } else { state >> 46 }));
            }
            let json = serde_json::to_vec(&hierarchy.snapshot())?;
            recorder.snapshot(0, second * 1_000_000, &json)?;
            let value = serde_json::from_slice(&json)?;
            let is_first = second % BLOCK == 0;
            let changes = difference(&before, &value).map(|changes| changes.to_string());
            let changes = if is_first { json.clone() } else { changes.unwrap_or_default().into() };
            whole.add(&json, is_first)?;
            deltas.add(&changes, is_first)?;
            before = value;
        }
        let own = recorder.bytes() as usize;
        assert_eq!(Recording::open(&path, None)?.entries.len() as u64, snapshots, "each can be read");
        println!("{active} of {GROUPS} groups change, {snapshots} snapshots");
        println!("  this format  {own:>10} bytes");
        for (name, mut lines) in [("JSON lines", whole), ("JSON deltas", deltas)] {
            lines.end()?;
            let Lines { packed, plain, .. } = lines;
            let times = packed as f64 / own as f64;
            println!("  {name:<12} {packed:>10} bytes, {times:.2} times as many ({plain} as plain text)");
        }
    }
    Ok(())
}
