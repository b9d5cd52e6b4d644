//! Limits: what an operator sets of a group. One line each: here it gets its field in a snapshot, its file, and who is asked and told.

use core::convert::Infallible;

use super::files::File;
use crate::group::Group;
use crate::limit::{UNLIMITED, parse_bytes};

/// What can be set of a group, as text: how it is written, and how it is read.
pub(super) trait Setting: Sized {
    /// Without the newline.
    fn text(&self) -> String;
    /// What is wrong with the text, and what would be right.
    fn parse(text: &str) -> Result<Self, String>;
    /// Whether it is `max`, for which JSON has `null`.
    #[cfg(feature = "serde")]
    fn is_max(&self) -> bool {
        false
    }
}

/// Bytes, or `max` for as many as there are.
impl Setting for u64 {
    fn text(&self) -> String {
        if *self == UNLIMITED { "max".to_owned() } else { self.to_string() }
    }

    fn parse(text: &str) -> Result<u64, String> {
        parse_bytes(text).map_err(|error| error.to_string())
    }

    #[cfg(feature = "serde")]
    fn is_max(&self) -> bool {
        *self == UNLIMITED
    }
}

/// `1` for yes, `0` for no.
impl Setting for bool {
    fn text(&self) -> String {
        u8::from(*self).to_string()
    }

    fn parse(text: &str) -> Result<bool, String> {
        match text.trim() {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(format!("{text:?} is neither 0 nor 1; write 1 for yes, or 0 for no")),
        }
    }
}

impl Setting for i32 {
    fn text(&self) -> String {
        self.to_string()
    }

    fn parse(text: &str) -> Result<i32, String> {
        text.trim().parse().map_err(|_| {
            format!("{text:?} is no whole number; write digits, with a minus where it is negative")
        })
    }
}

impl Setting for u32 {
    fn text(&self) -> String {
        self.to_string()
    }

    fn parse(text: &str) -> Result<u32, String> {
        text.trim().parse().map_err(|_| format!("{text:?} is no whole number from 0 up; write digits"))
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
                let set: Result<(), _> = $set(group, value);
                set.map_err(|error| error.to_string().into())
            }),
        },)*];
    };
}

fn set_oom_group(group: &Group, as_a_whole: bool) -> Result<(), Infallible> {
    group.set_oom_group(as_a_whole);
    Ok(())
}

fn set_enforced(group: &Group, enforced: bool) -> Result<(), Infallible> {
    group.set_enforced(enforced);
    Ok(())
}

limits! {
    /// The most the group may use, in bytes; [`UNLIMITED`](crate::UNLIMITED) without a limit (JSON: `null`).
    max_bytes: u64 = "memory.max", Group::max, Group::set_max;
    /// The soft limit, in bytes; [`UNLIMITED`](crate::UNLIMITED) without one (JSON: `null`).
    high_bytes: u64 = "memory.high", Group::high, Group::set_high;
    /// Bytes that are given up only when nobody else has any; [`UNLIMITED`](crate::UNLIMITED) for all it has (JSON: `null`).
    low_bytes: u64 = "memory.low", Group::low, Group::set_low;
    /// Bytes that are never taken; [`UNLIMITED`](crate::UNLIMITED) for all it has (JSON: `null`).
    min_bytes: u64 = "memory.min", Group::min, Group::set_min;
    /// Whether the group and what is below it die as a whole.
    oom_group: bool = "memory.oom.group", Group::oom_group, set_oom_group;
    /// How readily it is killed, -1000 to 1000.
    oom_score: i32 = "memgroup.oom_score", Group::oom_score, Group::set_oom_score;
    /// Who is served first of those that wait, 1 to 10,000.
    weight: u32 = "memgroup.weight", Group::weight, Group::set_weight;
    /// Whether `max` refuses; else it only counts what it would have refused.
    enforced: bool = "memgroup.enforced", Group::is_enforced, set_enforced;
}
