//! Plan: the steps of an actor, drawn from the seed alone.
//!
//! A step names groups, charges, caches and tenants by numbers. The actor takes each number modulo
//! the count there is. So a plan does not depend on the outcome of its steps, and the same seed
//! gives the same plan on every machine. Only the interleaving differs.

use crate::random::Random;

/// The call that makes a charge or grows one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Try,
    Forced,
    /// With a deadline in this many microseconds.
    Until(u64),
    /// To the group in force on the thread.
    Scope,
}

/// A setting of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Setting {
    Max,
    High,
    Min,
    Low,
    Weight,
    OomScore,
    OomGroup,
    Enforced,
    Share,
    ReserveMin,
}

/// The way in which a shrinker or a kill hook misbehaves in some of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Honest,
    Hangs,
    Panics,
    FreesNothing,
    /// Reports bytes that it does not have or did not free.
    Lies,
    /// Registers others and removes them.
    Registers,
    Charges,
    /// Removes itself, or its group.
    Goes,
    /// Leaves its memory for another thread to free.
    FreesLate,
}

const MANNERS: [Manner; 9] = [
    Manner::Honest,
    Manner::Hangs,
    Manner::Panics,
    Manner::FreesNothing,
    Manner::Lies,
    Manner::Registers,
    Manner::Charges,
    Manner::Goes,
    Manner::FreesLate,
];

/// How a registration ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    Remove,
    Withdraw,
    Detach,
    Drop,
}

/// One step of an actor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Create {
        parent: usize,
        name: u64,
    },
    Remove {
        group: usize,
    },
    Charge {
        group: usize,
        form: Form,
        bytes: u64,
    },
    Drop {
        charge: usize,
    },
    Grow {
        charge: usize,
        form: Form,
        bytes: u64,
    },
    Shrink {
        charge: usize,
        part: u64,
    },
    Split {
        charge: usize,
        part: u64,
    },
    Merge {
        charge: usize,
        other: usize,
    },
    Move {
        charge: usize,
        group: usize,
    },
    /// Drops the charge's label, or takes the charge apart and puts it together again.
    Convert {
        charge: usize,
    },
    /// Keeps only the group's id and the number of bytes, for any actor to uncharge.
    Orphan {
        charge: usize,
    },
    Bury {
        orphan: usize,
    },
    Set {
        group: usize,
        setting: Setting,
        value: u64,
    },
    /// Sets the group's limit below its usage, by this many eighths of it.
    Squeeze {
        group: usize,
        eighths: u64,
    },
    Drain {
        group: usize,
    },
    Reclaim {
        group: usize,
        bytes: u64,
        micros: u64,
    },
    Throttle {
        group: usize,
        micros: u64,
    },
    Count {
        group: usize,
        stat: usize,
        delta: i64,
    },
    Flush {
        group: usize,
        stat: usize,
    },
    AddCache {
        group: usize,
        manner: Manner,
        seed: u64,
    },
    FillCache {
        cache: usize,
        pages: u64,
        bytes: u64,
    },
    AskCache {
        cache: usize,
        bytes: u64,
    },
    Reinstate {
        cache: usize,
    },
    EndCache {
        cache: usize,
        ending: Ending,
    },
    AddTenant {
        group: usize,
        manner: Manner,
        seed: u64,
    },
    FillTenant {
        tenant: usize,
        charges: u64,
        bytes: u64,
    },
    FreeTenant {
        tenant: usize,
        says: bool,
    },
    EndTenant {
        tenant: usize,
        ending: Ending,
    },
    FreeLate {
        says: bool,
    },
    /// Has another thread wait for room, without a deadline.
    Sleep {
        group: usize,
        bytes: u64,
        as_task: bool,
    },
    WaitEvents {
        group: usize,
        micros: u64,
    },
    Trigger {
        group: usize,
        micros: u64,
    },
    Stall {
        group: usize,
        micros: u64,
    },
    Peak {
        group: usize,
        bytes: u64,
    },
    Snapshot {
        group: usize,
    },
    Look,
    Wake {
        group: usize,
    },
    Deny {
        group: usize,
        seed: u64,
    },
    Maintain {
        all: bool,
    },
    Pin {
        slot: usize,
    },
}

/// The steps of one actor, without end.
pub(crate) struct Plan {
    random: Random,
}

impl Plan {
    pub(crate) fn new(seed: u64, actor: usize) -> Plan {
        let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * actor as u64 + 0xbf58_476d_1ce4_e5b9);
        let mut random = Random(mixed | 1);
        (0..8).for_each(|_| _ = random.below(2));
        Plan { random }
    }

    fn at(&mut self) -> usize {
        self.random.below(1 << 20) as usize
    }

    fn form(&mut self, grows: bool) -> Form {
        match self.random.below(20) {
            0..10 => Form::Try,
            10..12 => Form::Forced,
            12..15 => Form::Until(self.random.below(1000)),
            _ if grows => Form::Try,
            _ => Form::Scope,
        }
    }

    fn setting(&mut self) -> Step {
        let group = self.at();
        let (setting, value) = match self.random.below(24) {
            // Half of the limits are `UNLIMITED`.
            0..8 => (Setting::Max, if self.random.below(2) == 0 { u64::MAX } else { self.random.bytes(23) }),
            8..11 => {
                (Setting::High, if self.random.below(2) == 0 { u64::MAX } else { self.random.bytes(22) })
            }
            11..13 => (Setting::Min, if self.random.below(3) == 0 { 0 } else { self.random.bytes(20) }),
            13..15 => (Setting::Low, if self.random.below(3) == 0 { 0 } else { self.random.bytes(20) }),
            15 => (Setting::Weight, 1 + self.random.below(10_000)),
            16 => (Setting::OomScore, self.random.below(2001)),
            17 => (Setting::OomGroup, self.random.below(2)),
            18..20 => (Setting::Enforced, self.random.below(3)),
            20..23 => (Setting::Share, [0, 1, 8, 8][self.random.below(4) as usize]),
            _ => (Setting::ReserveMin, self.random.below(2)),
        };
        Step::Set { group, setting, value }
    }

    fn ending(&mut self) -> Ending {
        [Ending::Remove, Ending::Withdraw, Ending::Detach, Ending::Drop][self.random.below(4) as usize]
    }

    fn manner(&mut self) -> Manner {
        MANNERS[self.random.below(MANNERS.len() as u64) as usize]
    }

    /// Caches and tenants.
    fn hostile(&mut self) -> Step {
        let at = self.at();
        match self.random.below(100) {
            0..14 => Step::AddCache { group: at, manner: self.manner(), seed: self.random.below(1 << 40) },
            14..44 => {
                Step::FillCache { cache: at, pages: 1 + self.random.below(24), bytes: self.random.bytes(15) }
            }
            44..48 => Step::AskCache { cache: at, bytes: self.random.bytes(18) },
            48..52 => Step::Reinstate { cache: at },
            52..62 => Step::EndCache { cache: at, ending: self.ending() },
            62..69 => Step::AddTenant { group: at, manner: self.manner(), seed: self.random.below(1 << 40) },
            69..84 => Step::FillTenant {
                tenant: at,
                charges: 1 + self.random.below(12),
                bytes: self.random.bytes(17),
            },
            84..88 => Step::FreeTenant { tenant: at, says: self.random.below(2) == 0 },
            88..93 => Step::EndTenant { tenant: at, ending: self.ending() },
            _ => Step::FreeLate { says: self.random.below(2) == 0 },
        }
    }

    /// Steps that wait for events, read reports, or give memory back.
    fn beside(&mut self) -> Step {
        let group = self.at();
        match self.random.below(100) {
            0..28 => Step::WaitEvents { group, micros: self.random.below(300) },
            28..36 => Step::Trigger { group, micros: self.random.below(300) },
            36..44 => Step::Stall { group, micros: self.random.below(100) },
            44..56 => Step::Peak { group, bytes: self.random.bytes(14) },
            56..64 => Step::Snapshot { group },
            64..74 => Step::Look,
            74..82 => Step::Wake { group },
            82..90 => Step::Deny { group, seed: self.random.below(1 << 40) },
            90..92 => Step::Maintain { all: self.random.below(2) == 0 },
            _ => Step::Flush { group, stat: self.at() },
        }
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let (at, other) = (self.at(), self.at());
        Some(match self.random.below(1000) {
            0..45 => Step::Create { parent: at, name: self.random.below(60) },
            45..80 => Step::Remove { group: at },
            80..330 => Step::Charge { group: at, form: self.form(false), bytes: self.random.bytes(17) - 1 },
            330..500 => Step::Drop { charge: at },
            500..550 => Step::Grow { charge: at, form: self.form(true), bytes: self.random.bytes(15) },
            550..580 => Step::Shrink { charge: at, part: self.random.bytes(15) },
            580..600 => Step::Split { charge: at, part: self.random.bytes(15) },
            600..615 => Step::Merge { charge: at, other },
            615..645 => Step::Move { charge: at, group: other },
            645..650 => Step::Convert { charge: at },
            650..655 => {
                Step::Sleep { group: at, bytes: self.random.bytes(18), as_task: self.random.below(2) == 0 }
            }
            655..670 => Step::Orphan { charge: at },
            670..685 => Step::Bury { orphan: at },
            685..695 => Step::Squeeze { group: at, eighths: self.random.below(8) },
            695..735 => self.setting(),
            735..740 => Step::Drain { group: at },
            740..750 => {
                // One in four has time enough to end, even on a busy machine.
                let micros = if self.random.below(4) == 0 { 20_000 } else { self.random.below(500) };
                Step::Reclaim { group: at, bytes: self.random.bytes(20), micros }
            }
            750..760 => Step::Throttle { group: at, micros: self.random.below(600) },
            760..800 => Step::Count { group: at, stat: other, delta: self.random.below(2001) as i64 - 1000 },
            800..900 => self.hostile(),
            900..940 => self.beside(),
            _ => Step::Pin { slot: at },
        })
    }
}
