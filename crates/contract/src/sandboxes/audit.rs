//! What happened to sandboxes, and who did it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lenient;
use crate::admin::{AdminAuditRow, OperationAuditRow};

/// The data of an event of `GET /api/v1/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxEvent {
    /// `evt-<n>`.
    pub id: String,
    /// Such as `sandbox.created`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    pub timestamp: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// Answer of `GET /api/v1/admin/tenants/{id}/audit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantAudit {
    pub tenant_id: String,
    pub admin_audit: Vec<AdminAuditRow>,
    pub op_audit: Vec<OperationAuditRow>,
    pub exported_at: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_written_in_the_order_of_the_contract() {
        let event = SandboxEvent {
            id: "evt-7".into(),
            kind: "sandbox.created".into(),
            sandbox_id: Some("sb-1".into()),
            timestamp: "t".into(),
            data: None,
        };
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"id":"evt-7","type":"sandbox.created","sandbox_id":"sb-1","timestamp":"t"}"#
        );
    }
}
