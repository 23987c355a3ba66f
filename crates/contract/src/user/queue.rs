//! Queues: their settings and what is in them.

use serde::{Deserialize, Serialize};

/// Body of `PUT /api/v1/queues/{name}`: the whole setting, absent means no limit. Only `transport` and `push` stay as they
/// are when they are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"max_running": 100, "rate": {"per_second": 50, "burst": 100}, "fairness_key": "tenant"})))]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// `tenant`, `workspace` or `tag:<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fairness_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_interval_seconds: Option<i64>,
    /// Default true. If false, a task that fails for good does not become a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<bool>,
    /// Default false. If true, only workers that kill an attempt when its lease expires are granted tasks, and a task
    /// whose worker was lost is granted again only when that attempt is known to be dead. Not for queues that push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// What carries the wake-ups: `embedded`, `redis` or `sqs`. Absent: as it is, and for a new queue as the control plane
    /// is set up.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(embedded|redis|sqs)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Where its tasks are pushed, in place of being claimed. Absent: as it is. `null`: they are claimed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<PushSettings>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub push: Option<Option<PushSettings>>,
}

/// Body of `PATCH /api/v1/queues/{name}`: only what is named changes, and `null` resets it to the default. `rate` and
/// `push` are replaced as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"max_running": 50, "rate": null})))]
#[serde(deny_unknown_fields)]
pub struct QueueChange {
    #[cfg_attr(feature = "openapi", schema(value_type = Option<i64>, minimum = 0, maximum = 2_147_483_647))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub max_running: Option<Option<i64>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Rate>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub rate: Option<Option<Rate>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub fairness_key: Option<Option<String>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<i64>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub lease_ttl_seconds: Option<Option<i64>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<i64>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub heartbeat_interval_seconds: Option<Option<i64>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<bool>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub dead_letter: Option<Option<bool>>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<bool>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub strict: Option<Option<bool>>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(embedded|redis|sqs)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<PushSettings>))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub push: Option<Option<PushSettings>>,
}

/// A field that is there counts as given, also when it is `null`.
pub(super) fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Where and how the tasks of a queue are pushed to a worker of the callback contract.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PushSettings {
    /// Where envelopes are posted to. `https`, unless the configuration allows `http`.
    pub url: String,
    /// Name of the secret in the configuration that is sent.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "secretRef")]
    pub secret_ref: Option<String>,
    /// Headers that carry the secret, up to 8. Default `["X-Tenure-Dispatch-Secret"]`; `Authorization` carries it as a
    /// bearer token.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 8))]
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "secretHeader")]
    pub secret_header: Option<Vec<String>>,
    /// Name of the client certificate in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "mtlsRef")]
    pub mtls_ref: Option<String>,
    /// How many attempts may be open at once. 1..=10000, default 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "ratePerSecond")]
    pub rate_per_second: Option<f64>,
    /// How long a push may go without an answer and without `started`. 100..=60000, default 10000.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "ackTimeoutMs")]
    pub ack_timeout_ms: Option<i64>,
    /// How long an accepted push may go without `started` before it is repeated. 1000..=3600000, default 60000.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "startTimeoutMs")]
    pub start_timeout_ms: Option<i64>,
    /// How long an attempt may go without `started` before it is closed. 1000..=3600000, default 300000.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "dispatchTimeoutMs")]
    pub dispatch_timeout_ms: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Rate {
    pub per_second: f64,
    /// Default: `per_second`, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<f64>,
}

/// A rate as a queue shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueRate {
    pub per_second: f64,
    pub burst: f64,
}

/// Where and how the tasks of a queue are pushed, with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueuePush {
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// Headers that carry the secret, if there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_header: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtls_ref: Option<String>,
    pub concurrency: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<f64>,
    pub ack_timeout_ms: i64,
    pub start_timeout_ms: i64,
    pub dispatch_timeout_ms: i64,
}

/// A queue as `GET /api/v1/queues` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Queue {
    pub name: String,
    /// Absent: shared by all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub paused: bool,
    /// `pull`: workers claim its tasks. `push`: they are pushed to a worker.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(pull|push)$"))]
    pub kind: String,
    /// What carries the wake-ups: `embedded`, `redis` or `sqs`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(embedded|redis|sqs)$"))]
    pub transport: String,
    pub limits: QueueLimits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_interval_seconds: Option<u64>,
    pub dead_letter: bool,
    /// Whether a lost attempt is known to be dead before another one is granted.
    #[serde(default)]
    pub strict: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<QueuePush>,
    pub counts: QueueCounts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ready_at: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<QueueRate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fairness_key: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueCounts {
    pub scheduled: u64,
    pub ready: u64,
    pub running: u64,
    pub dead_lettered: u64,
}

/// Answer of pause and resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueuePaused {
    pub name: String,
    pub paused: bool,
}

/// Answer of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueDeleted {
    pub name: String,
    pub deleted: bool,
}
