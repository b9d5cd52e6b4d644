//! Trees of groups with their settings, by path or nested.

use core::fmt;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use crate::api::settings::table::Seen;
use crate::api::settings::{ApplyError, GroupSpec, read_group};
use crate::base::error::GroupError;
use crate::control::share::ShareError;
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::name;

/// Groups with their settings, read by serde and applied by [`Hierarchy::apply`].
///
/// It is a table of groups by path. A group's table has the keys of [`GroupSpec`]. Its key
/// `groups` is a table of the groups below it, by name. Both forms may be mixed; each group stands
/// there once. The root is `/`.
///
/// ```
/// # use memgroup::{Config, Hierarchy, TreeSpec};
/// let tree: TreeSpec = toml::from_str(
///     r#"
///     ["/tenants"]
///     max = "9G"
///     share = 8
///     ["/tenants".groups.alice]
///     min = "64M"
///     ["/tenants/batch/etl"]
///     oom_score = 500
///     "#,
/// )
/// .unwrap();
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// hierarchy.apply(&tree).unwrap();
/// let max = hierarchy.lookup("/tenants").unwrap().max();
/// assert_eq!((max, hierarchy.lookup("/tenants/alice").unwrap().min()), (Some(9 << 30), 64 << 20));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreeSpec {
    /// By path, so parents come before their children.
    groups: BTreeMap<String, GroupSpec>,
}

/// A table of groups. Those at the top are named by path, those below `above` by name.
struct GroupsTable<'t> {
    above: Option<&'t str>,
    tree: &'t mut TreeSpec,
}

impl GroupsTable<'_> {
    fn path_of(&self, key: &str) -> Result<String, GroupError> {
        let path = match self.above {
            None => key.to_owned(),
            Some("/") => format!("/{key}"),
            Some(above) => format!("{above}/{key}"),
        };
        // An empty name would mean the group above.
        if self.above.is_some() {
            name::check(key)?;
        }
        name::check_path(&path).map(|()| path)
    }
}

impl<'de> Visitor<'de> for GroupsTable<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.above {
            None => f.write_str("a table of groups by path, such as \"/tenants/alice\""),
            Some(above) => write!(f, "a table of the groups below {above}, by name"),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<(), A::Error> {
        let mut seen = Seen::new();
        while let Some(key) = seen.next(&mut table, "the tree")? {
            let path = self.path_of(&key).map_err(Error::custom)?;
            table.next_value_seed(GroupTable { path, tree: self.tree })?;
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for GroupsTable<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

/// The table of one group, with those below it.
struct GroupTable<'t> {
    path: String,
    tree: &'t mut TreeSpec,
}

impl<'de> Visitor<'de> for GroupTable<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a table of the settings of group {}", self.path)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<(), A::Error> {
        let GroupTable { path, tree } = self;
        let spec = read_group(&mut table, &format!("group {path}"), &["groups"], |table| {
            table.next_value_seed(GroupsTable { above: Some(&path), tree: &mut *tree })
        })?;
        match tree.groups.entry(path) {
            Entry::Vacant(place) => _ = place.insert(spec),
            Entry::Occupied(place) => {
                return Err(Error::custom(format!("group {} stands twice; allowed: once", place.key())));
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for GroupTable<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Deserialize<'de> for TreeSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TreeSpec, D::Error> {
        let mut tree = TreeSpec::default();
        GroupsTable { above: None, tree: &mut tree }.deserialize(from)?;
        Ok(tree)
    }
}

/// Groups that were created for a tree. Those that are left when this is dropped are removed
/// again.
struct Created(Vec<Group>);

impl Drop for Created {
    fn drop(&mut self) {
        for group in self.0.iter().rev() {
            // Another thread may have removed it, or may have created groups in it: then it stays.
            let _ = group.remove();
        }
    }
}

impl TreeSpec {
    /// Finds or creates the group of a path, with those above it that are missing.
    fn find(hierarchy: &Hierarchy, path: &str, created: &mut Created) -> Result<Group, GroupError> {
        loop {
            let missing = match hierarchy.lookup(path) {
                Err(GroupError::NotFound { missing, .. }) => missing,
                found => return found,
            };
            match hierarchy.create(&missing) {
                Ok(group) => created.0.push(group),
                // Others may create and remove at the same time: the next look tells.
                Err(GroupError::Exists { .. } | GroupError::NotFound { .. }) => (),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Settings from serde.
impl Hierarchy {
    /// Creates the groups of `tree` that are missing, and applies its settings, parents before
    /// children. Other groups stay, and so do settings that it does not have. Applied twice, it
    /// changes nothing the second time.
    ///
    /// First all groups are created, and then all settings applied. If a group cannot be created,
    /// those created before are removed again, and no setting is changed. After that an error
    /// means that another thread removed a group meanwhile; settings of groups before it are
    /// applied then. A new group is without its limits for a moment, in which others may charge
    /// it.
    ///
    /// # Errors
    /// A group cannot be created, or was removed meanwhile, or the root has a share and is not
    /// accounted. The error names the group.
    pub fn apply(&self, tree: &TreeSpec) -> Result<(), ApplyError> {
        let root = tree.groups.get("/");
        if root.is_some_and(|spec| spec.sets_share()) && !self.config().account_root {
            return Err(ShareError::RootNotAccounted.into());
        }
        let mut created = Created(Vec::new());
        let find = |path: &String| TreeSpec::find(self, path, &mut created);
        let groups = tree.groups.keys().map(find).collect::<Result<Vec<_>, _>>()?;
        created.0.clear();
        for (group, spec) in groups.iter().zip(tree.groups.values()) {
            group.apply(spec)?;
        }
        Ok(())
    }
}
