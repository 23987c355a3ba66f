//! The worker RPC contract: what a worker sends to the control plane. `POST /api/v1/worker/{id}/heartbeat` and
//! `POST /api/v1/worker/{id}/leases/{resource}/renew`.
//!
//! Each type serves both sides. Fields beyond the contract are additive: a peer that does not know them ignores them.

use serde::{Deserialize, Deserializer, Serialize};

/// In `features` of a heartbeat's answer: the control plane renews leases, so the worker enforces them.
pub const LEASE_RENEWAL: &str = "lease_renewal";
pub const ONLINE: &str = "online";
pub const DRAINING: &str = "draining";
pub const OFFLINE: &str = "offline";

/// A worker's mark of life.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    #[serde(default)]
    pub hostname: String,
    /// `online`, `draining` or `offline`; blank means `online`.
    #[serde(default)]
    pub status: String,
    #[serde(default, deserialize_with = "lenient")]
    pub providers: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub capabilities: Vec<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub capacity: Capacity,
    /// Additive: one start of the worker. `seq` grows within it, and a lower one is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Additive: every runtime that the worker holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<Vec<InventoryItem>>,
}

/// What a worker has room for. 0 or absent is without a bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_sandboxes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_mb: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vcpus: u64,
    /// Where the control plane reaches the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_domain: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InventoryItem {
    pub sandbox_id: String,
    #[serde(default)]
    pub runtime_id: String,
    #[serde(default)]
    pub provider: String,
    /// `running`, `unhealthy` or `error`.
    #[serde(default)]
    pub state: String,
    #[serde(default)]
    pub generation: i64,
}

/// The answer to a heartbeat, as far as a worker acts on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    /// Additive: `online` or `draining`, once an admin has asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_status: Option<String>,
    /// Additive: runtimes to destroy.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<Orphan>,
    /// Additive: tokens to refuse.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Vec::is_empty")]
    pub revoked_token_ids: Vec<String>,
    /// Additive: what the control plane knows. See [`LEASE_RENEWAL`].
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
}

/// A runtime that the control plane does not want any more. Read from an object, or from the bare id of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OrphanForm")]
pub struct Orphan {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox_id: String,
    pub runtime_id: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OrphanForm {
    Id(String),
    Both {
        #[serde(default)]
        sandbox_id: String,
        runtime_id: String,
    },
}

impl From<OrphanForm> for Orphan {
    fn from(form: OrphanForm) -> Self {
        match form {
            OrphanForm::Id(runtime_id) => Self { sandbox_id: String::new(), runtime_id },
            OrphanForm::Both { sandbox_id, runtime_id } => Self { sandbox_id, runtime_id },
        }
    }
}

/// Null counts as absent.
fn lenient<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heartbeat_of_the_contract_is_read_and_written_back() {
        let text = r#"{"hostname":"h1","status":"online","providers":["namespace"],"capabilities":["remote_worker","heartbeat","inventory"],"capacity":{"max_sandboxes":10,"memory_mb":16384,"vcpus":8,"rpc_url":"https://worker-a.internal:7430","preview_domain":"worker-a.preview.example.com"},"boot_id":"6f1c..","seq":42,"inventory":[{"sandbox_id":"sb-0a1b2c3d","runtime_id":"rt-9f..","provider":"namespace","state":"running","generation":7}]}"#;
        let beat: Heartbeat = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&beat).unwrap(), text);
    }

    #[test]
    fn an_answer_needs_none_of_the_additive_fields() {
        let text = r#"{"id":"w","hostname":"h","status":"online","providers":null,"stale":false,"orphans":null}"#;
        assert_eq!(serde_json::from_str::<HeartbeatAnswer>(text).unwrap(), HeartbeatAnswer::default());
        let text = r#"{"orphans":["rt-1",{"sandbox_id":"sb","runtime_id":"rt-2"}],"features":["lease_renewal"]}"#;
        let answer: HeartbeatAnswer = serde_json::from_str(text).unwrap();
        let ids: Vec<_> = answer.orphans.iter().map(|orphan| orphan.runtime_id.as_str()).collect();
        assert_eq!(ids, ["rt-1", "rt-2"]);
        assert_eq!(answer.features, [LEASE_RENEWAL]);
    }
}
