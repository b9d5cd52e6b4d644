//! Contradictions: settings of which one makes another meaningless.
//!
//! As in cgroup v2 they are allowed, since limits are set one by one and in any order; but whoever wrote them meant something else, and is told.
//!
//! - I1. `"max"` contradicts nothing: it says "all that there is" on purpose.
//! - I2. A `max` that is not enforced bounds nothing, so nothing is above it.

use memgroup::UNLIMITED;

use super::{Spec, TenantSpec};
use crate::run::units;

impl Spec {
    /// A line for each contradiction, in the tenants' order.
    pub(crate) fn contradictions(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for tenant in &self.tenants {
            notes.extend(self.protection_above_max(tenant, "min", tenant.settings.min_bytes));
            notes.extend(self.protection_above_max(tenant, "low", tenant.settings.low_bytes));
            notes.extend(high_above_max(tenant));
            notes.extend(low_below_min(tenant));
        }
        notes.extend(self.sum_above_max("min", |tenant| tenant.settings.min_bytes));
        notes.extend(self.sum_above_max("low", |tenant| tenant.settings.low_bytes));
        notes
    }

    /// No group is protected with more than it may have, nor with more than all may have together.
    fn protection_above_max(&self, tenant: &TenantSpec, key: &str, value: u64) -> Option<String> {
        let name = &tenant.name;
        let of_whom = if is_above(value, own_max(tenant)) {
            format!("its `max` ({})", bytes(tenant.max_bytes))
        } else if is_above(value, self.max_bytes) {
            format!("the `max` of all tenants together ({})", bytes(self.max_bytes))
        } else {
            return None;
        };
        let value = bytes(value);
        Some(format!(
            "note: `{key}` of tenant `{name}` ({value}) is above {of_whom}: it protects no more than that"
        ))
    }

    /// What all may keep, each no more than it may have, and what all may have together. A tenant that is above that alone was told of.
    fn sum_above_max(&self, key: &str, of: impl Fn(&TenantSpec) -> u64) -> Option<String> {
        let each = || self.tenants.iter().map(|tenant| of(tenant).min(own_max(tenant)));
        let sum = each().filter(|&bytes| bytes != UNLIMITED).fold(0, u64::saturating_add);
        let one_is_above = each().any(|bytes| is_above(bytes, self.max_bytes));
        if one_is_above || !is_above(sum, self.max_bytes) {
            return None;
        }
        let outcome = match key {
            "min" => "where all of it is in use no cache gives way for anybody",
            _ => "where all of it is in use caches give way all the same",
        };
        let (sum, max) = (bytes(sum), bytes(self.max_bytes));
        Some(format!(
            "note: `{key}` of all tenants ({sum} in sum) is above the `max` of all tenants together ({max}): {outcome}"
        ))
    }
}

fn high_above_max(tenant: &TenantSpec) -> Option<String> {
    let (name, high, max) = (&tenant.name, tenant.settings.high_bytes, tenant.max_bytes);
    is_above(high, own_max(tenant)).then(|| {
        let (high, max) = (bytes(high), bytes(max));
        format!(
            "note: `high` of tenant `{name}` ({high}) is above its `max` ({max}): it never slows anybody down"
        )
    })
}

fn low_below_min(tenant: &TenantSpec) -> Option<String> {
    let (name, min, low) = (&tenant.name, tenant.settings.min_bytes, tenant.settings.low_bytes);
    (low > 0 && low < min).then(|| {
        let (min, low) = (bytes(min), bytes(low));
        format!("note: `low` of tenant `{name}` ({low}) is below its `min` ({min}): it adds nothing to that")
    })
}

/// What bounds the tenant by itself.
fn own_max(tenant: &TenantSpec) -> u64 {
    if tenant.settings.enforced { tenant.max_bytes } else { UNLIMITED }
}

/// Whether more was asked for than there is (I1).
fn is_above(bytes: u64, max: u64) -> bool {
    bytes != UNLIMITED && bytes > max
}

fn bytes(bytes: u64) -> String {
    units::limit(Some(bytes).filter(|&bytes| bytes != UNLIMITED))
}

#[cfg(test)]
mod tests {
    use super::super::{BUILT_IN, Spec};

    /// What is said of tenants with these settings, of whom all together may have 100M.
    fn said(tenants: &[&str]) -> Vec<String> {
        let mut text = "max = '100M'\n".to_owned();
        for (name, settings) in ["a", "b", "c"].iter().zip(tenants) {
            text += &format!("[[tenant]]\nname = '{name}'\nworkload = 'etl'\nscale = 0.001\n{settings}\n");
        }
        Spec::parse("a.toml", &text).expect("it is sound").contradictions()
    }

    #[test]
    fn what_cannot_be_protected_is_told() {
        for key in ["min", "low"] {
            assert_eq!(
                said(&["max = '10M'", &format!("{key} = '20M'\nmax = '10M'")]),
                [format!(
                    "note: `{key}` of tenant `b` (20M) is above its `max` (10M): it protects no more than that"
                )]
            );
            assert_eq!(
                said(&[&format!("{key} = '101M'")]),
                [format!(
                    "note: `{key}` of tenant `a` (101M) is above the `max` of all tenants together (100M): it protects no \
                     more than that"
                )]
            );
        }
    }

    #[test]
    fn a_high_that_is_never_reached_is_told() {
        assert_eq!(
            said(&["high = '20M'\nmax = '10M'"]),
            ["note: `high` of tenant `a` (20M) is above its `max` (10M): it never slows anybody down"]
        );
    }

    #[test]
    fn a_low_below_min_is_told() {
        assert_eq!(
            said(&["min = '8M'\nlow = '4M'"]),
            ["note: `low` of tenant `a` (4M) is below its `min` (8M): it adds nothing to that"]
        );
        assert_eq!(
            said(&["min = 'max'\nlow = '4M'"]),
            ["note: `low` of tenant `a` (4M) is below its `min` (max): it adds nothing to that"]
        );
    }

    #[test]
    fn what_all_may_keep_but_not_have_is_told_once() {
        assert_eq!(
            said(&["min = '60M'", "min = '60M'"]),
            [
                "note: `min` of all tenants (120M in sum) is above the `max` of all tenants together (100M): where all of it \
              is in use no cache gives way for anybody"
            ]
        );
        assert_eq!(
            said(&["low = '60M'", "low = '60M'"]),
            [
                "note: `low` of all tenants (120M in sum) is above the `max` of all tenants together (100M): where all of it \
              is in use caches give way all the same"
            ]
        );
        let one = said(&["min = '60M'", "min = '160M'"]);
        assert!(one.len() == 1 && one[0].starts_with("note: `min` of tenant `b` (160M) is above"), "{one:?}");
    }

    #[test]
    fn what_nobody_can_have_does_not_count_in_the_sum() {
        let told = said(&["min = '60M'\nmax = '20M'", "min = '60M'"]);
        assert!(told.len() == 1 && told[0].contains("of tenant `a` (60M)"), "20M and 60M fit: {told:?}");
    }

    #[test]
    fn what_is_equal_or_unlimited_or_not_enforced_contradicts_nothing() {
        for settings in [
            "min = '10M'\nlow = '10M'\nhigh = '10M'\nmax = '10M'",
            "min = '100M'",
            "min = 'max'\nmax = '10M'",
            "low = 'max'\nhigh = 'max'",
            "min = '4M'",
            "min = '20M'\nlow = '30M'\nhigh = '20M'\nmax = '10M'\nenforced = false",
        ] {
            assert_eq!(said(&[settings]), [""; 0], "{settings}");
        }
        assert_eq!(said(&["min = 'max'", "min = '100M'", "low = 'max'"]), [""; 0]);
    }

    #[test]
    fn the_scenarios_of_the_program_contradict_nothing() {
        for text in [BUILT_IN, include_str!("../../../specs/overcommitted.toml")] {
            assert_eq!(Spec::parse("a.toml", text).expect("it is sound").contradictions(), [""; 0]);
        }
    }
}
