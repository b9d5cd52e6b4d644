//! Tree: a snapshot read back from its JSON, as far as frames show it.
//!
//! - I1. JSON of another version can be read: names that are unknown here are skipped, and missing figures are 0.
//! - I2. A tree has a group. The parent of each other group stands before it, so that a walk to the root ends.
//! - I3. A tree has at most [`GROUPS_MAX`] groups, and no more are made while it is read: one takes 3 bytes as JSON, and 100 times as much in memory.
//! - I4. No name has a control character, which a terminal would obey.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};

/// The most groups of a tree. The engine writes some 1.5 KB for each, so the largest answer that is read has fewer.
const GROUPS_MAX: usize = 1 << 18;
/// The most levels of a tree.
const DEPTH_MAX: u32 = 1_000;

/// A snapshot of the engine. The names are those of its JSON.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Tree {
    pub(crate) taken_unix_us: u64,
    #[serde(deserialize_with = "groups")]
    pub(crate) groups: Vec<Group>,
}

/// Reads the groups up to the first one that is too many.
fn groups<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Group>, D::Error> {
    struct Groups;
    impl<'de> Visitor<'de> for Groups {
        type Value = Vec<Group>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {GROUPS_MAX} groups")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Group>, A::Error> {
            let mut groups = Vec::new();
            while let Some(group) = list.next_element()? {
                if groups.len() == GROUPS_MAX {
                    return Err(A::Error::invalid_length(GROUPS_MAX + 1, &self));
                }
                groups.push(group);
            }
            Ok(groups)
        }
    }
    from.deserialize_seq(Groups)
}

/// A group of a snapshot.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Group {
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) id: u64,
    pub(crate) depth: u32,
    pub(crate) parent: Option<usize>,
    pub(crate) online: bool,
    pub(crate) descendants: usize,
    pub(crate) dying_descendants: usize,
    pub(crate) limits: Limits,
    pub(crate) fair_share: Option<FairShare>,
    pub(crate) usage_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) refusals: u64,
    pub(crate) pressure: Pressure,
    pub(crate) waiters: Waiters,
    pub(crate) events: Events,
    pub(crate) stock: Stock,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Limits {
    pub(crate) max_bytes: Option<u64>,
    pub(crate) high_bytes: Option<u64>,
    pub(crate) low_bytes: Option<u64>,
    pub(crate) min_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FairShare {
    pub(crate) bytes: u64,
    #[serde(rename = "even_bytes")]
    pub(crate) even: u64,
    #[serde(rename = "excess_bytes")]
    pub(crate) excess: u64,
    #[serde(rename = "given_bytes")]
    pub(crate) given: u64,
    #[serde(rename = "taken_bytes")]
    pub(crate) taken: u64,
    pub(crate) given_to: Option<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pressure {
    pub(crate) some: PressureLine,
    pub(crate) full: PressureLine,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PressureLine {
    #[serde(rename = "avg10_percent")]
    pub(crate) avg10: f64,
    #[serde(rename = "avg60_percent")]
    pub(crate) avg60: f64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Waiters {
    pub(crate) now: u64,
    pub(crate) longest_us: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Events {
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) max: u64,
    pub(crate) oom: u64,
    pub(crate) oom_kill: u64,
    pub(crate) oom_group_kill: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Stock {
    hits: u64,
    misses: u64,
}

impl Tree {
    /// Reads the JSON of a snapshot.
    ///
    /// # Errors
    /// The text is no JSON, a figure has another type than here, or I2, I3 or I4 does not hold.
    pub(crate) fn from_json(json: &[u8]) -> Result<Tree, String> {
        let mut tree: Tree =
            serde_json::from_slice(json).map_err(|error| format!("read a snapshot: {error}"))?;
        if tree.groups.is_empty() {
            return Err("read a snapshot: it has no groups".to_owned());
        }
        for at in 0..tree.groups.len() {
            let Group { path, name, .. } = &tree.groups[at];
            if path.chars().chain(name.chars()).any(char::is_control) {
                return Err(format!("read a snapshot: the name of group {at} has a control character"));
            }
            let above =
                tree.groups[at].parent.map(|parent| tree.groups[..at].get(parent).map(|one| one.depth));
            tree.groups[at].depth = match (at, above) {
                (0, None) => 0,
                (1.., Some(Some(above))) if above < DEPTH_MAX => above + 1,
                _ => return Err(format!("read a snapshot: group {at} has no parent before it")),
            };
        }
        Ok(tree)
    }

    /// The tree of a hierarchy as it is now.
    #[cfg(test)]
    pub(crate) fn of(hierarchy: &memgroup::Hierarchy) -> Tree {
        let json = serde_json::to_vec(&hierarchy.snapshot()).expect("a snapshot is JSON");
        Tree::from_json(&json).expect("JSON of a snapshot is a tree")
    }
}

impl Events {
    /// Keys and counts, the severest first.
    pub(crate) fn pairs(&self) -> [(&'static str, u64); 6] {
        [
            ("oom_kill", self.oom_kill),
            ("oom_group_kill", self.oom_group_kill),
            ("oom", self.oom),
            ("max", self.max),
            ("high", self.high),
            ("low", self.low),
        ]
    }
}

impl Stock {
    /// Share of charges that the stock served, 0 to 1; `None` before the first charge.
    pub(crate) fn hit_rate(&self) -> Option<f64> {
        let charges = self.hits.saturating_add(self.misses);
        (charges > 0).then(|| self.hits as f64 / charges as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::{GROUPS_MAX, Tree};

    #[test]
    fn reads_unknown_names_and_missing_figures() {
        let json = br#"{"later":[1,{"a":null}],"groups":[{"path":"/","later":{}},{"path":"/a","parent":0,"usage_bytes":7}]}"#;
        let tree = Tree::from_json(json).expect("a tree");
        let figures: Vec<_> =
            tree.groups.iter().map(|group| (&*group.path, group.depth, group.usage_bytes)).collect();
        assert_eq!(figures, [("/", 0, 0), ("/a", 1, 7)]);
    }

    #[test]
    fn refuses_groups_whose_parents_are_not_before_them() {
        for groups in ["", "{\"parent\":0}", "{},{}", "{},{\"parent\":1}", "{},{\"parent\":9}", "1"] {
            let json = format!("{{\"groups\":[{groups}]}}");
            let error = Tree::from_json(json.as_bytes()).expect_err(groups);
            assert!(error.starts_with("read a snapshot: "), "{error}");
        }
        assert!(Tree::from_json(b"{").is_err());
    }

    #[test]
    fn stops_at_the_first_group_that_is_too_many() {
        let json = |count: usize, end: &str| {
            format!("{{\"groups\":[{{}}{}{end}", ",{\"parent\":0}".repeat(count - 1))
        };
        let most = Tree::from_json(json(GROUPS_MAX, "]}").as_bytes()).expect("a tree");
        assert_eq!(most.groups.len(), GROUPS_MAX);
        // The text after it is not read: it is no JSON.
        let error = Tree::from_json(json(GROUPS_MAX + 1, "!").as_bytes()).expect_err("too many");
        assert!(error.contains("expected at most 262144 groups"), "{error}");
    }
}
