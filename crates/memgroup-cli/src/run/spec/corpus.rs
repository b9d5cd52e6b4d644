//! SPECs from `corpus/specs`, and mutations of them.

use xtask::corpus;

use super::{Engine, Spec};
use crate::run::base::RunError;

#[test]
fn a_spec_is_valid_or_its_error_names_the_file_and_the_allowed_values() {
    corpus::run("specs", 8000, |input| {
        let text = String::from_utf8_lossy(input);
        match Spec::parse("a.toml", &text, None) {
            Ok(spec) => {
                assert!((1..=64).contains(&spec.tenants.len()));
                for (number, tenant) in spec.tenants.iter().enumerate() {
                    assert!(tenant.after.is_none_or(|after| after < number), "{tenant:?}");
                    assert!(spec.tenants[..number].iter().all(|other| other.name != tenant.name));
                }
                // A child process gets it as JSON.
                let json = serde_json::to_string(&spec).expect("JSON");
                assert_eq!(serde_json::from_str::<Spec>(&json).expect("a SPEC"), spec);
                assert_eq!(Spec::parse("a.toml", &text, Some(spec.engine)).ok(), Some(spec.clone()));
                let other = [Engine::Sqlite, Engine::Http].into_iter().find(|&other| other != spec.engine);
                let asked = Spec::parse("a.toml", &text, other);
                assert!(asked.is_err() || asked.is_ok_and(|asked| Some(asked.engine) == other));
            }
            Err(RunError::Usage(error)) => {
                let has_reason = error.contains("allowed: ") || error.contains(": not TOML: ");
                assert!(error.starts_with("a.toml:") && has_reason, "{error}");
                assert!(!error.contains(char::is_control) && error.len() < 1500, "{error:?}");
            }
            Err(error) => panic!("{error}"),
        }
    });
}
