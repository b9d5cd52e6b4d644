//! Settings: the configuration that a hierarchy uses, with each setting in a word.
//!
//! A hierarchy that nobody uses any more may be used again with another configuration of the same
//! [`Shape`](crate::state::config::Shape). Its settings are then replaced.
//!
//! - I1. The settings change only while the hierarchy has no handle and no charged byte. A thread
//!   that still reads one by then, for example for a forgotten scope guard, may read the old value
//!   or the new one.

use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use memgroup_sync::FixedU64;

use crate::state::config::Config;

/// A setting that fits in a word.
trait InWord {
    fn into_word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

impl InWord for bool {
    fn into_word(self) -> u64 {
        self.into()
    }

    #[inline(always)]
    fn from_word(word: u64) -> bool {
        word != 0
    }
}

impl InWord for u32 {
    fn into_word(self) -> u64 {
        self.into()
    }

    #[inline(always)]
    fn from_word(word: u64) -> u32 {
        word as u32
    }
}

impl InWord for u64 {
    fn into_word(self) -> u64 {
        self
    }

    #[inline(always)]
    fn from_word(word: u64) -> u64 {
        word
    }
}

/// Stored in nanoseconds. All durations of 584 years and more are the same.
impl InWord for Duration {
    fn into_word(self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX - 1).min(u64::MAX - 1)
    }

    fn from_word(word: u64) -> Duration {
        Duration::from_nanos(word)
    }
}

impl InWord for Option<Duration> {
    fn into_word(self) -> u64 {
        self.map_or(u64::MAX, Duration::into_word)
    }

    fn from_word(word: u64) -> Option<Duration> {
        (word != u64::MAX).then(|| Duration::from_word(word))
    }
}

macro_rules! settings {
    ($($name:ident: $type:ty),+ $(,)?) => {
        /// The settings that are in force.
        pub(crate) struct Settings {
            /// The configuration as it was given.
            given: Mutex<Config>,
            $($name: FixedU64,)+
        }

        impl Settings {
            pub(crate) fn new(config: &Config) -> Settings {
                Settings {
                    given: Mutex::new(*config),
                    $($name: FixedU64::new(config.$name.into_word()),)+
                }
            }

            /// Puts the settings of another configuration in force (I1).
            pub(crate) fn replace(&self, config: &Config) {
                *self.given.lock().unwrap_or_else(PoisonError::into_inner) = *config;
                $(self.$name.set(config.$name.into_word());)+
            }

            $(
                #[inline(always)]
                pub(crate) fn $name(&self) -> $type {
                    InWord::from_word(self.$name.get())
                }
            )+
        }
    };
}

settings! {
    stock_budget_bytes: u64,
    account_root: bool,
    scope_time_of: u32,
    reclaim: bool,
    reclaim_patience: Duration,
    reclaim_reserve_bytes: u64,
    float_bytes: u64,
    relocate: bool,
    maintain_on_removal: bool,
    demote_after: Option<Duration>,
    protected_reserve_bytes: u64,
    oom: bool,
    kill_patience: Duration,
    pressure: bool,
}

impl Settings {
    /// Returns the configuration as it was given.
    pub(crate) fn given(&self) -> Config {
        *self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_as_it_was_given_last() {
        let (first, second) =
            (Config::new(), Config::new().demote_after(Some(Duration::ZERO)).pressure(false));
        let settings = Settings::new(&first);
        assert_eq!((settings.given(), settings.demote_after(), settings.pressure()), (first, None, true));
        settings.replace(&second.reclaim_patience(Duration::from_secs(7)).scope_time_sampled(9));
        assert_eq!((settings.demote_after(), settings.pressure()), (Some(Duration::ZERO), false));
        assert_eq!((settings.reclaim_patience(), settings.scope_time_of()), (Duration::from_secs(7), 9));
        settings.replace(&second.demote_after(Some(Duration::MAX)));
        assert_eq!(settings.demote_after(), Some(Duration::from_nanos(u64::MAX - 1)));
        assert_eq!(settings.given().demote_after, Some(Duration::MAX));
    }
}
