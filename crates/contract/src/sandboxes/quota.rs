//! Quotas of owners. Durations are strings; `""` and `0s` mean no limit.

use serde::{Deserialize, Serialize};

use super::lenient;

/// Body of `PUT /api/v1/quotas/{owner}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuotaWrite {
    /// 0: no limit of its own.
    #[serde(default, deserialize_with = "lenient::value")]
    pub max_sandboxes: u64,
    #[serde(default, deserialize_with = "lenient::value")]
    pub max_ttl: String,
    #[serde(default, deserialize_with = "lenient::value")]
    pub max_exec_timeout: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quota {
    pub owner_id: String,
    #[serde(default)]
    pub max_sandboxes: u64,
    #[serde(default)]
    pub max_ttl: String,
    #[serde(default)]
    pub max_exec_timeout: String,
    #[serde(default)]
    pub created_at: String,
    #[serde(default)]
    pub updated_at: String,
}

/// What an owner has, and may have: its quota, or the limits of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuotaUsage {
    pub owner_id: String,
    pub active_sandboxes: u64,
    #[serde(default)]
    pub max_sandboxes: u64,
    #[serde(default)]
    pub max_ttl: String,
    #[serde(default)]
    pub max_exec_timeout: String,
    #[serde(default)]
    pub quota_configured: bool,
}

/// How many quotas there are, and how many set what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuotaSummary {
    pub total: u64,
    pub with_max_sandboxes: u64,
    pub with_max_ttl: u64,
    pub with_max_exec_timeout: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_strings_and_every_field_is_written() {
        let quota = Quota { owner_id: "ann".into(), max_sandboxes: 3, max_ttl: "1h0m0s".into(), ..Quota::default() };
        assert_eq!(
            serde_json::to_string(&quota).unwrap(),
            r#"{"owner_id":"ann","max_sandboxes":3,"max_ttl":"1h0m0s","max_exec_timeout":"","created_at":"","updated_at":""}"#
        );
        assert_eq!(
            serde_json::to_string(&QuotaUsage { owner_id: "ann".into(), ..QuotaUsage::default() }).unwrap(),
            r#"{"owner_id":"ann","active_sandboxes":0,"max_sandboxes":0,"max_ttl":"","max_exec_timeout":"","quota_configured":false}"#
        );
        assert_eq!(
            serde_json::to_string(&QuotaSummary::default()).unwrap(),
            r#"{"total":0,"with_max_sandboxes":0,"with_max_ttl":0,"with_max_exec_timeout":0}"#
        );
        let write: QuotaWrite = serde_json::from_str(r#"{"owner_id":"x","max_sandboxes":null,"max_ttl":0}"#).unwrap();
        assert_eq!(write, QuotaWrite::default());
    }
}
