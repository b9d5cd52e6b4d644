//! JSON: how the types of a snapshot write and read times and ids.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::Serializer;

use crate::base::id::{GroupId, NodeId};

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Times in microseconds.
pub(crate) mod us {
    use super::{Deserialize, Deserializer, Duration, Serializer, micros};

    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(micros(*time))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_micros)
    }
}

/// Instants in microseconds since 1970; 0 if the clock is set to an earlier time.
pub(crate) mod unix_us {
    use std::time::SystemTime;

    use super::{Deserialize, Deserializer, Duration, Error, Serializer, micros};

    pub(crate) fn serialize<S: Serializer>(moment: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        to.serialize_u64(micros(since))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let us = u64::deserialize(from)?;
        let moment = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(us));
        moment.ok_or_else(|| D::Error::custom(format_args!("{us} us after 1970 is no moment of this system")))
    }
}

/// The generation of a group's id. An id that was read names a group within its snapshot only: it
/// leads to no group of this process.
pub(crate) mod id {
    use super::{Deserialize, Deserializer, GroupId, NodeId, Serializer};

    pub(crate) fn read(generation: u64) -> GroupId {
        GroupId::new(NodeId(u32::MAX), generation)
    }

    pub(crate) fn serialize<S: Serializer>(id: &GroupId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(id.as_u64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GroupId, D::Error> {
        u64::deserialize(from).map(read)
    }
}

/// The generation of a group's id, or `null`.
pub(crate) mod maybe_id {
    use super::{Deserialize, Deserializer, GroupId, Serializer, id};

    pub(crate) fn serialize<S: Serializer>(id: &Option<GroupId>, to: S) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&id.map(GroupId::as_u64), to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<GroupId>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(id::read))
    }
}
