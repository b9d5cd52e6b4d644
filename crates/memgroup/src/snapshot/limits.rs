//! Limits: what an operator sets of a group. One line each: here it gets its field in a snapshot, its file, and who is asked and told.

use super::files::File;
use crate::group::Group;
use crate::limit::{UNLIMITED, parse_bytes};

/// What can be set of a group, as text: how it is written, and how it is read.
pub(super) trait Setting: Sized {
    /// Without the newline.
    fn text(&self) -> String;
    /// What is wrong with the text, and what would be right.
    fn parse(text: &str) -> Result<Self, String>;
}

/// Bytes, or `max` for none.
impl Setting for u64 {
    fn text(&self) -> String {
        if *self == UNLIMITED { "max".to_owned() } else { self.to_string() }
    }

    fn parse(text: &str) -> Result<u64, String> {
        parse_bytes(text).map_err(|error| error.to_string())
    }
}

macro_rules! limits {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $file:literal, $get:expr, $set:expr;)*) => {
        /// What is set of a group.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct Limits {
            $(
                $(#[$doc])*
                #[cfg_attr(feature = "serde", serde(serialize_with = "super::json::setting"))]
                pub $field: $type,
            )*
        }

        impl Limits {
            pub(super) fn of(group: &Group) -> Limits {
                Limits { $($field: $get(group),)* }
            }
        }

        /// Their files.
        pub(super) const LIMITS: &[File] = &[$(File {
            name: $file,
            read: Some(|group| group.limits.$field.text() + "\n"),
            write: Some(|group, text| {
                let value = <$type as Setting>::parse(text)?;
                $set(group, value).map_err(|error| error.to_string().into())
            }),
        },)*];
    };
}

limits! {
    /// The most the group may use, in bytes; [`UNLIMITED`](crate::UNLIMITED) without a limit (JSON: `null`).
    max_bytes: u64 = "memory.max", Group::max, Group::set_max;
}
