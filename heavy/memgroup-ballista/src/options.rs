//! The session's tenant, in Ballista's session configuration.
//!
//! Ballista sends the entries of a client's configuration to the scheduler and to each executor as
//! keys and values. A process that does not know the extension drops them without an error, so
//! [`with_tenant_options`] must wrap the configuration of every process.

use std::any::Any;
use std::sync::Arc;

use ballista_core::ConfigProducer;
use ballista_core::utils::default_config_producer;
use datafusion::common::{Result, config_err};
use datafusion::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::prelude::SessionConfig;

/// The key of the tenant, as in `SET memgroup.tenant = 'alice'`.
pub const TENANT_KEY: &str = "memgroup.tenant";

/// The tenant of a session: an extension of DataFusion's `SessionConfig`.
///
/// ```
/// use datafusion::prelude::SessionConfig;
/// use memgroup_ballista::TenantOptions;
///
/// let config = SessionConfig::new().with_option_extension(TenantOptions::of("alice"));
/// assert_eq!(TenantOptions::tenant_of(&config), Some("alice"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantOptions {
    /// Name of the tenant's group, or empty for none.
    tenant: String,
}

impl TenantOptions {
    /// Returns the options of this tenant's sessions.
    pub fn of(tenant: impl Into<String>) -> TenantOptions {
        TenantOptions { tenant: tenant.into() }
    }

    /// Returns the tenant that a configuration names.
    pub fn tenant_of(config: &SessionConfig) -> Option<&str> {
        let options = config.options().extensions.get::<TenantOptions>()?;
        (!options.tenant.is_empty()).then_some(options.tenant.as_str())
    }
}

// Written by hand, because DataFusion's macro omits the prefix of the keys, and Ballista could not
// set them elsewhere.
impl ExtensionOptions for TenantOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if key != "tenant" {
            return config_err!("no option memgroup.{key}; there is {TENANT_KEY}");
        }
        value.clone_into(&mut self.tenant);
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        vec![ConfigEntry {
            key: TENANT_KEY.to_owned(),
            value: (!self.tenant.is_empty()).then(|| self.tenant.clone()),
            description: "the tenant whose group is charged for the session's tasks on each executor",
        }]
    }
}

impl ConfigExtension for TenantOptions {
    const PREFIX: &'static str = "memgroup";
}

/// Wraps the producer of configurations of a scheduler or an executor, so that they know the
/// tenant's key. `None` stands for Ballista's own.
pub fn with_tenant_options(producer: Option<ConfigProducer>) -> ConfigProducer {
    let producer = producer.unwrap_or_else(|| Arc::new(default_config_producer));
    Arc::new(move || producer().with_option_extension(TenantOptions::default()))
}

#[cfg(test)]
mod tests {
    use ballista_core::extension::SessionConfigHelperExt;

    use super::*;

    #[test]
    fn arrives_by_keys_and_values() {
        let client = SessionConfig::new().with_option_extension(TenantOptions::of("alice"));
        let executor = with_tenant_options(None)().update_from_key_value_pair(&client.to_key_value_pairs());
        assert_eq!(TenantOptions::tenant_of(&executor), Some("alice"));
    }

    #[test]
    fn is_lost_where_the_extension_is_not_known() {
        let client = SessionConfig::new().with_option_extension(TenantOptions::of("alice"));
        let executor = default_config_producer().update_from_key_value_pair(&client.to_key_value_pairs());
        assert_eq!(TenantOptions::tenant_of(&executor), None);
    }

    #[test]
    fn refuses_another_key_of_its_prefix() {
        let mut config = SessionConfig::new().with_option_extension(TenantOptions::default());
        config.options_mut().set(TENANT_KEY, "bob").unwrap();
        let error = config.options_mut().set("memgroup.tenants", "eve").unwrap_err();
        assert!(error.to_string().contains("no option memgroup.tenants"), "{error}");
        assert_eq!(TenantOptions::tenant_of(&config), Some("bob"));
    }
}
