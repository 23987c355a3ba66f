//! The user API of sandboxes: `/api/v1/sandboxes` and the routes beside it.
//!
//! Clients of this API exist, so its rules differ from the rest of the user API. Names and order of fields are those of the
//! contract; fields beyond it are additive. Unknown fields are ignored in requests too, and `null`, `""` and `0` in an
//! optional field mean that it is absent. Lists are bare arrays.

mod audit;
mod exec;
mod file;
mod fleet;
mod lenient;
mod quota;
mod sandbox;
mod snapshot;
mod socket;
mod template;
mod tenant;

use serde::{Deserialize, Serialize};

pub use audit::{SandboxEvent, TenantAudit};
pub use exec::{ExecAnswer, ExecLine, ExecRequest};
pub use file::{FileChmod, FileInfo, FileMove, FileWrite};
pub use fleet::{
    DrainRequest, HeldTask, PoolStatus, ProviderHealth, ProviderInfo, Readiness, SandboxStats, ServiceStatus,
    SystemStats, WarmPool, WorkerInfo, WorkerUsage,
};
pub use quota::{Quota, QuotaSummary, QuotaUsage, QuotaWrite};
pub use sandbox::{Admission, ExtendRequest, Pruned, Sandbox, SandboxState, SandboxWrite};
pub use snapshot::{RestoreRequest, Snapshot, SnapshotWrite};
pub use socket::ExecStart;
pub use template::{
    CPU_CORES_DEFAULT, MEMORY_MB_DEFAULT, TTL_SECONDS_DEFAULT, Template, TemplateSecret, TemplateSpawn, TemplateWrite,
};
pub use tenant::{
    Member, MemberBody, MemberCreate, MemberWrite, MembersBody, PoliciesBody, Policy, PolicyBody, PolicyWrite,
};

use crate::error::ErrorClass;

/// Every error of the routes of sandboxes. Without a field `error`: a client would show it instead of the message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"code": "NOT_FOUND", "message": "no such sandbox", "request_id": "req-1"})))]
pub struct SandboxError {
    pub code: ErrorClass,
    pub message: String,
    #[serde(default)]
    pub request_id: String,
    /// A word for programs: why a spawn was denied, or why a lease was not renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What became of something that has no other answer, such as `{"status":"deleted"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Outcome {
    pub status: String,
}

impl Outcome {
    pub fn new(status: impl Into<String>) -> Self {
        Self { status: status.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_no_field_that_hides_its_message() {
        let error = SandboxError {
            code: ErrorClass::ResourceLimit,
            message: "no room".into(),
            request_id: "req-1".into(),
            reason: Some("max_sandboxes".into()),
        };
        assert_eq!(
            serde_json::to_string(&error).unwrap(),
            r#"{"code":"RESOURCE_LIMIT","message":"no room","request_id":"req-1","reason":"max_sandboxes"}"#
        );
        let read: SandboxError = serde_json::from_str(r#"{"code":"NOT_FOUND","message":"gone"}"#).unwrap();
        assert_eq!((read.request_id.as_str(), read.reason), ("", None));
    }
}
