//! What admins do: keys, worker tokens, tenants, audit, outbox.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::user::Page;

pub type ApiKeyPage = Page<ApiKey>;
pub type OutboxEntryPage = Page<OutboxEntry>;

/// Body of `POST /api/v1/admin/api-keys`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"name": "etl-deploy", "role": "api", "expires_in": "720h"})))]
#[serde(deny_unknown_fields)]
pub struct NewApiKey {
    /// For people.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub name: String,
    /// viewer, api, operator, tenant_admin or admin; default api.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(viewer|api|operator|tenant_admin|admin)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Default: that of the caller.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z0-9_-]{1,64}$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Binds the key to one owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// A duration such as `720h`; absent: until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<String>,
}

/// An API key, without the key itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiKey {
    pub id: String,
    pub name: String,
    #[cfg_attr(feature = "openapi", schema(pattern = "^(viewer|api|operator|tenant_admin|admin)$"))]
    pub role: String,
    pub tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    pub created_at: String,
    pub created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<String>,
}

/// A newly created key. `key` is shown only here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedApiKey {
    pub key: String,
    #[serde(flatten)]
    pub info: ApiKey,
}

/// Body of `POST /api/v1/admin/worker-tokens`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkerTokenRequest {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^\S+$", required = true))]
    #[serde(default)]
    pub worker_id: String,
    /// At most `15m`, default `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// Absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    /// worker:control-plane, the default, or worker:rpc.
    #[cfg_attr(feature = "openapi", schema(pattern = "^worker:(control-plane|rpc)$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
}

/// Body of `POST /api/v1/worker/{id}/token`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootstrapRequest {
    /// At most `15m`, default `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerToken {
    pub token: String,
    pub worker_id: String,
    pub expires_at: String,
}

/// Body of `POST /api/v1/admin/worker-tokens/revocations`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// The `jti` of the token; `tenure worker token inspect` shows it.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256, pattern = r"^\S+$", required = true))]
    #[serde(default)]
    pub token_id: String,
}

/// Ids of worker tokens that are revoked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Revocations {
    pub items: Vec<String>,
}

/// Ids of the task keys that replicas registered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskKeyIds {
    pub items: Vec<String>,
}

/// The identity of a credential.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoAmI {
    /// As the audit names it.
    pub actor: String,
    pub role: String,
    /// Absent: every tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// What a tenant has, and what it may have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tenant {
    #[serde(default)]
    pub id: String,
    /// The id, unless it was given a name.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Kept for clients and not interpreted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Value>,
    /// Absent for a tenant that was never created: it needs no record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// Its own limits; for absent ones the configuration applies.
    #[serde(default)]
    pub limits: TenantLimits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TenantUsage>,
}

/// Body of `POST /api/v1/admin/tenants`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantCreate {
    /// Default: `tenant-` and 8 hexadecimal digits.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z0-9_-]{1,64}$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Default: the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Value>,
}

/// Body of `PUT /api/v1/admin/tenants/{id}`: a new record, new limits, or both. Without a name, an owner and settings the record
/// stays; with one of them and without limits the limits stay. An empty body takes the limits away.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantSet {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ready: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submits_per_second: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_payload_bytes: Option<u64>,
}

/// Zero means no limit; if absent, the configuration applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TenantLimits {
    /// Tasks that wait: ready, or scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ready: Option<u64>,
    /// Maximum number of running tasks. Beyond it, submits are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u64>,
    /// Tasks submitted a second; bursts of ten seconds' worth pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submits_per_second: Option<f64>,
    /// Bytes of all payloads that wait or run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_payload_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantUsage {
    pub ready: u64,
    pub scheduled: u64,
    pub running: u64,
    pub payload_bytes: u64,
}

/// One tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantBody {
    pub tenant: Tenant,
}

/// Tenants that have a record, or limits of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantsBody {
    pub tenants: Vec<Tenant>,
}

/// A request of an admin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AdminAuditRow {
    pub id: i64,
    pub actor: String,
    pub method: String,
    pub path: String,
    pub status: u16,
    pub duration_ms: i64,
    pub request_id: String,
    pub remote_addr: String,
    pub user_agent: String,
    pub tenant_id: String,
    pub created_at: String,
}

/// Something that a user changed, or tried to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OperationAuditRow {
    pub id: i64,
    pub actor: String,
    pub action: String,
    /// The sandbox that it was about.
    #[serde(default)]
    pub sandbox_id: String,
    /// What it was done to; of a sandbox, the part of it.
    pub resource: String,
    /// That of the sandbox.
    #[serde(default)]
    pub provider: String,
    pub status: String,
    pub detail: String,
    pub tenant_id: String,
    pub request_id: String,
    pub created_at: String,
}

/// A wake-up that waits to be published, or was published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OutboxEntry {
    /// Such as `enqueue_task:184467`.
    pub id: String,
    /// `enqueue_task`.
    pub kind: String,
    /// `redis` or `sqs`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(redis|sqs)$"))]
    pub transport: String,
    pub queue: String,
    pub task_id: String,
    /// `waiting`, `published` or `failed`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^(waiting|published|failed)$"))]
    pub state: String,
    /// How often the transport refused it. That the transport was away does not count.
    pub tries: u32,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub created_at: String,
    /// Waiting: when it is tried next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_at: Option<String>,
    /// Published: how the transport names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
}

/// Body of `POST /api/v1/admin/outbox/retry`: either `ids`, or `all`. Only failed entries are tried again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OutboxRetryRequest {
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// With `all`: only those of this queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
}

/// Number of entries that are retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OutboxRetried {
    pub retried: u64,
}
