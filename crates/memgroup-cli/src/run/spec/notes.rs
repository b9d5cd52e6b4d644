//! Notes on settings that contradict each other.
//!
//! Such settings are allowed, as in cgroup v2, because limits are set one by one and in any order.
//! The notes are printed before the run.
//!
//! - I1. `"max"` contradicts nothing, because it asks for everything on purpose.
//! - I2. A `max` that isn't enforced bounds nothing.

use super::{Settings, Spec, TenantSpec};
use crate::run::base::units;

impl Spec {
    /// Returns a line for each contradiction, in the order of the tenants.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let all_max = format!("the `max` of all tenants together ({})", units::limit(self.max_bytes));
        for tenant in &self.tenants {
            let (max, settings) = (own_max(tenant), &tenant.settings);
            let (min, low, high) = (settings.min_bytes, settings.low_bytes, settings.high_bytes);
            let mut note = |key, value, place: &str, limit: &str, effect| {
                let (name, value) = (&tenant.name, units::limit(value));
                notes
                    .push(format!("note: `{key}` of tenant `{name}` ({value}) is {place} {limit}: {effect}"));
            };
            let own_max = format!("its `max` ({})", units::limit(max));
            for (key, value) in [("min", min), ("low", low)] {
                if is_above(value, max) {
                    note(key, value, "above", &own_max, "it protects no more than that");
                } else if is_above(value, self.max_bytes) {
                    note(key, value, "above", &all_max, "it protects no more than that");
                }
            }
            if is_above(high, max) {
                note("high", high, "above", &own_max, "it never slows the tenant down");
            }
            if low.is_some_and(|low| low > 0 && min.is_none_or(|min| low < min)) {
                let own_min = format!("its `min` ({})", units::limit(min));
                note("low", low, "below", &own_min, "it adds nothing to that");
            }
        }
        if self.share.is_some() && self.max_bytes.is_none() {
            notes.push("note: `share` has nothing to share: give the run a `max`".to_owned());
        }
        // A tenant counts up to its own `max`. One that is above the common `max` by itself has a
        // note of its own.
        let min = |settings: &Settings| settings.min_bytes;
        for (key, of, effect) in [
            ("min", min as fn(&Settings) -> Option<u64>, "no cache can be reclaimed"),
            ("low", |settings| settings.low_bytes, "caches are reclaimed in spite of it"),
        ] {
            let bound = |tenant: &TenantSpec| of(&tenant.settings).into_iter().chain(own_max(tenant)).min();
            let each = || self.tenants.iter().map(bound);
            let sum = Some(each().flatten().fold(0, u64::saturating_add));
            if is_above(sum, self.max_bytes) && !each().any(|bytes| is_above(bytes, self.max_bytes)) {
                let sum = units::limit(sum);
                notes.push(format!(
                    "note: `{key}` of all tenants ({sum} in sum) is above {all_max}: when all of it is in use, {effect}"
                ));
            }
        }
        notes
    }
}

/// Returns the bound of the tenant's own group.
fn own_max(tenant: &TenantSpec) -> Option<u64> {
    tenant.max_bytes.filter(|_| tenant.settings.enforced)
}

/// Returns whether `bytes` is more than `max`. "max" is not (I1).
fn is_above(bytes: Option<u64>, max: Option<u64>) -> bool {
    bytes.zip(max).is_some_and(|(bytes, max)| bytes > max)
}

#[cfg(test)]
mod tests {
    use super::super::{Engine, Spec};

    /// Notes on tenants with these settings and a common `max` of 100M.
    fn notes(tenants: &[&str]) -> Vec<String> {
        let mut text = "max = '100M'\n".to_owned();
        for (name, settings) in ["a", "b", "c"].iter().zip(tenants) {
            text += &format!("[[tenant]]\nname = '{name}'\nworkload = 'etl'\nscale = 0.001\n{settings}\n");
        }
        Spec::parse("a.toml", &text, None).expect("a valid SPEC").notes()
    }

    #[test]
    fn notes_a_protection_above_max() {
        for key in ["min", "low"] {
            assert_eq!(
                notes(&["max = '10M'", &format!("{key} = '20M'\nmax = '10M'")]),
                [format!(
                    "note: `{key}` of tenant `b` (20M) is above its `max` (10M): it protects no more than that"
                )]
            );
            assert_eq!(
                notes(&[&format!("{key} = '101M'")]),
                [format!(
                    "note: `{key}` of tenant `a` (101M) is above the `max` of all tenants together (100M): it protects no \
                     more than that"
                )]
            );
        }
    }

    #[test]
    fn notes_a_high_above_max() {
        assert_eq!(
            notes(&["high = '20M'\nmax = '10M'"]),
            ["note: `high` of tenant `a` (20M) is above its `max` (10M): it never slows the tenant down"]
        );
    }

    #[test]
    fn notes_a_low_below_min() {
        assert_eq!(
            notes(&["min = '8M'\nlow = '4M'"]),
            ["note: `low` of tenant `a` (4M) is below its `min` (8M): it adds nothing to that"]
        );
        assert_eq!(
            notes(&["min = 'max'\nlow = '4M'"]),
            ["note: `low` of tenant `a` (4M) is below its `min` (max): it adds nothing to that"]
        );
    }

    #[test]
    fn notes_a_sum_of_protections_above_max_once() {
        assert_eq!(
            notes(&["min = '60M'", "min = '60M'"]),
            [
                "note: `min` of all tenants (120M in sum) is above the `max` of all tenants together (100M): when all of it \
              is in use, no cache can be reclaimed"
            ]
        );
        assert_eq!(
            notes(&["low = '60M'", "low = '60M'"]),
            [
                "note: `low` of all tenants (120M in sum) is above the `max` of all tenants together (100M): when all of it \
              is in use, caches are reclaimed in spite of it"
            ]
        );
        let one = notes(&["min = '60M'", "min = '160M'"]);
        assert!(one.len() == 1 && one[0].starts_with("note: `min` of tenant `b` (160M) is above"), "{one:?}");
    }

    #[test]
    fn counts_each_tenant_up_to_its_max_in_the_sum() {
        let told = notes(&["min = '60M'\nmax = '20M'", "min = '60M'"]);
        assert!(told.len() == 1 && told[0].contains("of tenant `a` (60M)"), "20M and 60M fit: {told:?}");
    }

    #[test]
    fn notes_nothing_for_equal_unlimited_or_unenforced_limits() {
        for settings in [
            "min = '10M'\nlow = '10M'\nhigh = '10M'\nmax = '10M'",
            "min = '100M'",
            "min = 'max'\nmax = '10M'",
            "low = 'max'\nhigh = 'max'",
            "min = '4M'",
            "min = '20M'\nlow = '30M'\nhigh = '20M'\nmax = '10M'\nenforced = false",
        ] {
            assert_eq!(notes(&[settings]), [""; 0], "{settings}");
        }
        assert_eq!(notes(&["min = 'max'", "min = '100M'", "low = 'max'"]), [""; 0]);
    }

    #[test]
    fn notes_nothing_for_the_specs_of_the_program() {
        let own = include_str!("../../../specs/overcommitted.toml");
        let engines = [Engine::Sqlite, Engine::Http];
        for text in engines.map(Engine::built_in).into_iter().chain([own]) {
            assert_eq!(Spec::parse("a.toml", text, None).expect("a valid SPEC").notes(), [""; 0]);
        }
    }
}
