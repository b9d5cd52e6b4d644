//! The consumers of one query that spill for the others.
//!
//! Consumers that cannot spill fail where they are refused, and their query with them. So those that can spill leave them room: what they hold,
//! and what the largest of their kind held so far in this query. DataFusion's sort of each partition, for one, has a consumer
//! `ExternalSorterMerge[partition]` that cannot spill; the first one that grows tells what the others will need.
//!
//! The rest is for the consumers that can spill. While it lasts each takes what it needs. Then those above an even share are refused, and so spill,
//! and one within its share has the largest spill at its next growth.

use std::collections::HashMap;

use crate::consumers::ConsumerReport;

/// The room of the consumers of one query that can spill.
pub(crate) struct Room {
    /// Bytes for all of them.
    bytes: usize,
    /// Bytes that they hold.
    held: usize,
    /// An even share.
    share: usize,
    /// The one that holds most, and its bytes.
    largest: Option<(usize, usize)>,
    /// How many of them there are.
    count: usize,
}

/// The kind of a consumer: its name without the number of its partition.
fn kind(name: &str) -> &str {
    name.split('[').next().unwrap_or(name)
}

impl Room {
    /// The room in a query that can hold `most` bytes in all, for its consumer `id` among others.
    pub(crate) fn of(most: usize, consumers: &[ConsumerReport], id: usize) -> Room {
        let mut needs: HashMap<&str, usize> = HashMap::new();
        for consumer in consumers.iter().filter(|consumer| !consumer.can_spill) {
            let need = needs.entry(kind(&consumer.name)).or_default();
            *need = (*need).max(consumer.most);
        }
        let kept: usize = consumers
            .iter()
            .filter(|consumer| !consumer.can_spill)
            .map(|consumer| consumer.held.max(needs[kind(&consumer.name)]))
            .sum();
        let spillable = || consumers.iter().filter(|consumer| consumer.can_spill);
        let sharing = spillable().filter(|consumer| consumer.held > 0 || consumer.id == id).count().max(1);
        let bytes = most.saturating_sub(kept);
        Room {
            bytes,
            held: spillable().map(|consumer| consumer.held).sum(),
            share: bytes / sharing,
            largest: spillable().map(|consumer| (consumer.id, consumer.held)).max_by_key(|&(_, held)| held),
            count: spillable().count().max(1),
        }
    }

    /// Bytes that each of the consumers may hold, whatever the others do.
    pub(crate) fn line(&self) -> usize {
        self.bytes / self.count / 2
    }

    /// Whether a consumer may hold `held` bytes, `additional` of them new.
    pub(crate) fn is_enough(&self, held: usize, additional: usize) -> bool {
        self.held.saturating_add(additional) <= self.bytes || held <= self.share || held == additional
    }

    /// The consumer that must spill for `id`, if another one has to.
    pub(crate) fn must_spill_for(&self, id: usize, held: usize, additional: usize) -> Option<usize> {
        let lacks = self.held.saturating_add(additional) > self.bytes;
        let (largest, most) = self.largest?;
        (lacks && largest != id && held <= self.share && most > self.share).then_some(largest)
    }
}
