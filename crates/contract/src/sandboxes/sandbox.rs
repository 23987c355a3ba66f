//! Sandboxes: how one is asked for, and what is said about it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::lenient;

crate::words::words! {
    /// State of a sandbox.
    SandboxState {
        /// It is being created, or waits for room.
        Creating = "creating",
        Running = "running",
        /// Warm: created in advance, and nobody's yet.
        Idle = "idle",
        /// Its worker cannot be reached, or has suspended it.
        Unhealthy = "unhealthy",
        Error = "error",
        /// Past its time; its worker could not be asked to destroy it.
        Expired = "expired",
        Destroyed = "destroyed",
    }
}

impl SandboxState {
    /// Whether a sandbox in this state will never run again.
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Error | Self::Expired | Self::Destroyed)
    }
}

/// Body of `POST /api/v1/sandboxes` and of `/admission`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"image": "python", "memory_mb": 512, "vcpus": 1, "ttl": "30m"})))]
pub struct SandboxWrite {
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// A duration such as `30m`.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// The template that fills in what is absent here. An unknown one beside an image is ignored.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The snapshot that the sandbox begins with.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Variables of every command.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `X-User-ID` takes precedence.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Only admins have a choice. Additive, like the fields below.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub disk_size_mb: Option<u64>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub pids_limit: Option<u32>,
    /// The hosts that can be reached; none without it.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<String>,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "lenient::is_default")]
    pub read_only_root: bool,
}

/// A sandbox. On the wire it also has `status`, which equals `state`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sandbox {
    /// `sb-` and 8 hexadecimal digits.
    pub id: String,
    pub state: SandboxState,
    pub provider: String,
    pub image: String,
    pub memory_mb: u64,
    pub vcpus: u32,
    #[serde(default, deserialize_with = "lenient::option")]
    pub owner_id: Option<String>,
    #[serde(default, deserialize_with = "lenient::option")]
    pub tenant_id: Option<String>,
    /// The runtime, as its provider names it.
    #[serde(default, deserialize_with = "lenient::option")]
    pub vm_id: Option<String>,
    #[serde(default, deserialize_with = "lenient::option")]
    pub worker_id: Option<String>,
    /// RFC 3339, with fractions of a second.
    pub created_at: String,
    pub expires_at: String,
    #[serde(default, deserialize_with = "lenient::value")]
    pub metadata: BTreeMap<String, String>,
    /// The domain below which its ports can be reached as `<port>-<id>`.
    #[serde(default, deserialize_with = "lenient::option")]
    pub preview_domain: Option<String>,
    /// Additive: why it is `unhealthy` or in `error`.
    #[serde(default, deserialize_with = "lenient::option")]
    pub reason: Option<String>,
}

/// The order of the contract, with `status` after it. `"id"` and `"state"` occur once: scripts search for them.
#[derive(Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
struct Written<'a> {
    id: &'a str,
    state: &'a SandboxState,
    provider: &'a str,
    image: &'a str,
    memory_mb: u64,
    vcpus: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vm_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<&'a str>,
    created_at: &'a str,
    expires_at: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preview_domain: Option<&'a str>,
    /// Same as `state`.
    status: &'a SandboxState,
    /// Why it is `unhealthy` or in `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl Serialize for Sandbox {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written {
            id: &self.id,
            state: &self.state,
            provider: &self.provider,
            image: &self.image,
            memory_mb: self.memory_mb,
            vcpus: self.vcpus,
            owner_id: self.owner_id.as_deref(),
            tenant_id: self.tenant_id.as_deref(),
            vm_id: self.vm_id.as_deref(),
            worker_id: self.worker_id.as_deref(),
            created_at: &self.created_at,
            expires_at: &self.expires_at,
            metadata: &self.metadata,
            preview_domain: self.preview_domain.as_deref(),
            status: &self.state,
            reason: self.reason.as_deref(),
        }
        .serialize(serializer)
    }
}

#[cfg(feature = "openapi")]
mod schema {
    use std::borrow::Cow;

    use utoipa::openapi::RefOr;
    use utoipa::openapi::schema::Schema;

    use super::{Sandbox, Written};

    impl utoipa::PartialSchema for Sandbox {
        fn schema() -> RefOr<Schema> {
            Written::schema()
        }
    }

    impl utoipa::ToSchema for Sandbox {
        fn name() -> Cow<'static, str> {
            "Sandbox".into()
        }

        fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
            Written::schemas(schemas);
        }
    }
}

/// Whether a sandbox would be created now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Admission {
    pub allowed: bool,
    /// Whether the request could wait for room.
    pub queueable: bool,
    /// `max_ttl`, `worker_unavailable`, `remote_worker_rpc_unavailable`, `max_sandboxes` or `max_sandboxes_per_owner`.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub active_sandboxes: u64,
    /// 0: no limit.
    pub max_sandboxes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_owner_sandboxes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_owner_sandboxes: Option<u64>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub max_ttl: Option<String>,
    /// Only with `?explain=true`, like the fields below.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub selected_worker_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eligible_workers: Option<u64>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub worker_reason: Option<String>,
}

/// Body of `POST /api/v1/sandboxes/{id}/extend`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExtendRequest {
    /// From now on.
    #[serde(default, deserialize_with = "lenient::value")]
    pub ttl: String,
}

/// Answer of `DELETE /api/v1/sandboxes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pruned {
    pub pruned: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"{"id":"sb-0a1b2c3d","state":"running","provider":"mock","image":"alpine:latest","memory_mb":512,"vcpus":1,"owner_id":"ann","tenant_id":"default","vm_id":"rt-1","worker_id":"w-1","created_at":"2026-05-09T10:30:00.123Z","expires_at":"2026-05-09T11:00:00.123Z","metadata":{"a":"b"},"preview_domain":"localhost:7423","status":"running"}"#;

    #[test]
    fn a_sandbox_is_written_in_the_order_of_the_contract_with_its_state_as_status() {
        let sandbox: Sandbox = serde_json::from_str(FULL).unwrap();
        assert_eq!(sandbox.state, SandboxState::Running);
        assert_eq!(serde_json::to_string(&sandbox).unwrap(), FULL);
        for once in [r#""id""#, r#""state""#] {
            assert_eq!(FULL.matches(once).count(), 1, "{once}");
        }
        let bare = Sandbox {
            state: SandboxState::Creating,
            owner_id: None,
            tenant_id: None,
            vm_id: None,
            worker_id: None,
            metadata: BTreeMap::new(),
            preview_domain: None,
            ..sandbox
        };
        assert_eq!(
            serde_json::to_string(&bare).unwrap(),
            r#"{"id":"sb-0a1b2c3d","state":"creating","provider":"mock","image":"alpine:latest","memory_mb":512,"vcpus":1,"created_at":"2026-05-09T10:30:00.123Z","expires_at":"2026-05-09T11:00:00.123Z","status":"creating"}"#
        );
    }

    #[test]
    fn a_request_with_blank_fields_asks_for_the_defaults() {
        let text = r#"{"image":"","provider":null,"memory_mb":0,"vcpus":0,"ttl":"","template":null,"snapshot":"","env":null,"owner_id":"","metadata":null,"disk_size_mb":null,"pids_limit":0,"allowed_hosts":null,"read_only_root":null,"network":"x"}"#;
        let request: SandboxWrite = serde_json::from_str(text).unwrap();
        assert_eq!(request, SandboxWrite::default());
        assert_eq!(serde_json::to_string(&request).unwrap(), "{}");
        assert!(serde_json::from_str::<SandboxWrite>(r#"{"memory_mb":-1}"#).is_err());
    }

    #[test]
    fn a_decision_has_exactly_the_keys_of_the_contract() {
        let decision = Admission {
            reason: Some("max_sandboxes".into()),
            queueable: true,
            active_sandboxes: 100,
            max_sandboxes: 100,
            active_owner_sandboxes: Some(0),
            max_owner_sandboxes: Some(10),
            max_ttl: Some("24h0m0s".into()),
            ..Admission::default()
        };
        assert_eq!(
            serde_json::to_string(&decision).unwrap(),
            r#"{"allowed":false,"queueable":true,"reason":"max_sandboxes","active_sandboxes":100,"max_sandboxes":100,"active_owner_sandboxes":0,"max_owner_sandboxes":10,"max_ttl":"24h0m0s"}"#
        );
    }
}
