//! Tenants: customers or teams whose requests are counted together.

use super::{AccessError, check_label};

/// The largest weight.
pub const WEIGHT_MAX: u32 = 1000;
/// The weight of a new tenant.
pub const WEIGHT_DEFAULT: u32 = 10;

/// A tenant as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Its name.
    pub id: String,
    /// Increased by 1 at every change.
    pub revision: u64,
    /// Its settings.
    pub settings: TenantSettings,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// When it was last changed, in milliseconds since 1970.
    pub updated_ms: i64,
    /// Who changed it last.
    pub updated_by: String,
}

/// The settings of a tenant. A limit of `None` is no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantSettings {
    /// Its name for people.
    pub label: String,
    /// Its priority: tenants that wait share slots in proportion to their weights. A strict order of priority
    /// would starve the last tenant.
    pub weight: u32,
    /// Requests in a minute, over all replicas.
    pub requests_per_minute: Option<u32>,
    /// Requests at the same time, over all replicas.
    pub concurrency_max: Option<u32>,
    /// Prompt and answer tokens in a day (UTC), over all replicas.
    pub tokens_per_day: Option<u64>,
    /// Whether all its requests are refused.
    pub disabled: bool,
}

impl Default for TenantSettings {
    fn default() -> TenantSettings {
        TenantSettings {
            label: String::new(),
            weight: WEIGHT_DEFAULT,
            requests_per_minute: None,
            concurrency_max: None,
            tokens_per_day: None,
            disabled: false,
        }
    }
}

impl TenantSettings {
    /// Checks every bound.
    ///
    /// # Errors
    /// [`AccessError`] for the first value that is out of its bounds.
    pub fn check(&self) -> Result<(), AccessError> {
        check_label("label", &self.label)?;
        let bound = |field, value: Option<u64>, limit: u64, want| match value {
            Some(value) if !(1..=limit).contains(&value) => {
                Err(AccessError::Number { field, value: value.to_string(), want })
            }
            _ => Ok(()),
        };
        bound("weight", Some(self.weight.into()), WEIGHT_MAX.into(), "1 to 1000")?;
        let rate = self.requests_per_minute.map(u64::from);
        bound("requests_per_minute", rate, 1_000_000, "1 to 1000000")?;
        bound("concurrency_max", self.concurrency_max.map(u64::from), 1_000_000, "1 to 1000000")?;
        bound("tokens_per_day", self.tokens_per_day, 1 << 50, "1 to 2^50")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_bounded() {
        let check = |change: fn(&mut TenantSettings), want: Option<&str>| {
            let mut settings = TenantSettings::default();
            change(&mut settings);
            assert_eq!(settings.check().err().map(|err| err.to_string()).as_deref(), want);
        };
        check(|_| (), None);
        check(|s| s.weight = 0, Some("field `weight` is 0, must be 1 to 1000"));
        check(|s| s.weight = 1001, Some("field `weight` is 1001, must be 1 to 1000"));
        check(
            |s| s.requests_per_minute = Some(0),
            Some("field `requests_per_minute` is 0, must be 1 to 1000000"),
        );
        check(|s| s.concurrency_max = Some(0), Some("field `concurrency_max` is 0, must be 1 to 1000000"));
        check(|s| s.tokens_per_day = Some(0), Some("field `tokens_per_day` is 0, must be 1 to 2^50"));
        check(|s| s.label = "x".repeat(2000), Some("label has 2000 bytes, the limit is 1024"));
    }
}
