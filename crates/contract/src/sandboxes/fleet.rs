//! Workers, providers and pools, and how the service is.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lenient;
use crate::worker_plane::Capacity;

/// A worker, as the control plane knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerInfo {
    pub id: String,
    #[serde(default)]
    pub hostname: String,
    /// `online`, `draining` or `offline`.
    #[serde(default)]
    pub status: String,
    #[serde(default, deserialize_with = "lenient::value")]
    pub providers: Vec<String>,
    #[serde(default, deserialize_with = "lenient::value")]
    pub capabilities: Vec<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    #[serde(default, deserialize_with = "lenient::value")]
    pub capacity: Capacity,
    /// Whole seconds, like the times below.
    #[serde(default)]
    pub last_heartbeat: String,
    #[serde(default)]
    pub created_at: String,
    #[serde(default)]
    pub updated_at: String,
    /// Its last heartbeat is too old for new sandboxes.
    #[serde(default)]
    pub stale: bool,
    /// Additive: `online` or `draining`, once an admin has asked for one.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub desired_status: Option<String>,
    /// Additive: why it was drained.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub drain_reason: Option<String>,
    /// Additive: what its sandboxes use of its capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<WorkerUsage>,
    /// Additive: the contracts under which it works: `pull`, `dispatch`, `callback`, `sandbox`.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Vec::is_empty")]
    pub contracts: Vec<String>,
    /// Additive: queues that it asks for work.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// Additive: operators that it has, if it said so.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<String>,
    /// Additive: tasks that it runs at once, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Additive: attempts that it holds under a lease. Absent for a worker that only holds sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// Additive: name and version of its program or SDK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Additive: how far its clock is ahead of the control plane's, in milliseconds; negative if it is behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ahead_ms: Option<i64>,
    /// Additive, where one worker is shown: the first 100 attempts that it holds and the caller may see, oldest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_tasks: Option<Vec<HeldTask>>,
}

/// An attempt that a worker holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeldTask {
    pub task_id: String,
    pub queue: String,
    pub operator: String,
    pub attempt: u32,
    pub granted_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_at: Option<String>,
    pub lease_expires_at: String,
}

/// What the sandboxes of a worker were given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerUsage {
    pub sandboxes: u64,
    pub memory_mb: u64,
    pub vcpus: u64,
}

/// Body of `POST /api/v1/workers/{id}/drain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DrainRequest {
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How a provider is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderHealth {
    pub name: String,
    pub healthy: bool,
    #[serde(default)]
    pub default: bool,
    #[serde(default)]
    pub latency_ms: u64,
    #[serde(default)]
    pub last_checked: String,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, deserialize_with = "lenient::value")]
    pub capabilities: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_count: Option<u64>,
}

/// Answer of `GET /api/v1/providers/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderInfo {
    pub name: String,
    pub healthy: bool,
    pub default: bool,
    pub sandbox_count: u64,
    pub health: ProviderHealth,
    /// Without secrets.
    pub config: Value,
}

/// What a sandbox uses. Where its provider cannot tell, only `supported` is there, and it is false.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxStats {
    pub supported: bool,
    /// Percent of one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pct: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_bytes: Option<u64>,
    /// 0 without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_limit_bytes: Option<u64>,
    /// Additive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

/// Answer of `GET /api/v1/pool/status`. Without pools only `enabled` is there, and it is false.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolStatus {
    pub enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_vms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_users: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_users_per_vm: Option<u64>,
    /// Additive.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Vec::is_empty")]
    pub warm: Vec<WarmPool>,
}

/// The warm sandboxes of a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WarmPool {
    pub template: String,
    pub ready: u64,
    pub target: u64,
}

/// Answer of `/live`, and of `/health` of the contract.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceStatus {
    pub status: String,
    pub version: String,
    /// A duration such as `2h30m15s`.
    pub uptime: String,
}

/// Answer of `/ready`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Readiness {
    /// `ready` or `not_ready`.
    pub status: String,
    pub version: String,
    pub uptime: String,
    pub providers: Vec<ProviderHealth>,
    pub ready_providers: u64,
    pub total_providers: u64,
}

/// Answer of `GET /api/v1/system/stats`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SystemStats {
    pub cpu_pct: f64,
    pub mem_pct: f64,
    pub disk_pct: f64,
    pub net_rx_bps: f64,
    pub net_tx_bps: f64,
    pub load1: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_written_in_the_order_of_the_contract() {
        let text = r#"{"id":"w","hostname":"h","status":"online","providers":["process"],"capabilities":[],"capacity":{"max_sandboxes":10,"rpc_url":"http://h:1"},"last_heartbeat":"t","created_at":"c","updated_at":"u","stale":false}"#;
        let worker: WorkerInfo = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&worker).unwrap(), text);
        let bare: WorkerInfo = serde_json::from_str(r#"{"id":"w","providers":null,"capacity":null}"#).unwrap();
        assert_eq!(bare, WorkerInfo { id: "w".into(), ..WorkerInfo::default() });
    }

    #[test]
    fn what_is_not_supported_says_only_that() {
        assert_eq!(serde_json::to_string(&SandboxStats::default()).unwrap(), r#"{"supported":false}"#);
        assert_eq!(serde_json::to_string(&PoolStatus::default()).unwrap(), r#"{"enabled":false}"#);
        let stats = SandboxStats {
            supported: true,
            cpu_pct: Some(1.5),
            mem_bytes: Some(7),
            mem_limit_bytes: Some(0),
            ..SandboxStats::default()
        };
        assert_eq!(
            serde_json::to_string(&stats).unwrap(),
            r#"{"supported":true,"cpu_pct":1.5,"mem_bytes":7,"mem_limit_bytes":0}"#
        );
    }

    #[test]
    fn a_health_record_is_that_of_the_contract() {
        let health =
            ProviderHealth { name: "process".into(), healthy: true, default: true, ..ProviderHealth::default() };
        assert_eq!(
            serde_json::to_string(&health).unwrap(),
            r#"{"name":"process","healthy":true,"default":true,"latency_ms":0,"last_checked":"","capabilities":[]}"#
        );
    }
}
