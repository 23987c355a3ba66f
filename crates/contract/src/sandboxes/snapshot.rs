//! Snapshots: the files of a sandbox, kept at the control plane.

use serde::{Deserialize, Serialize};

use super::lenient;

/// Body of `POST /api/v1/sandboxes/{id}/snapshots`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotWrite {
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Snapshot {
    /// `snap-` and 8 hexadecimal digits.
    pub id: String,
    #[serde(default)]
    pub name: String,
    pub sandbox_id: String,
    pub image: String,
    pub provider: String,
    pub size_bytes: u64,
    /// Of the archive, in lower-case hexadecimal.
    pub sha256: String,
    pub created_at: String,
}

/// Body of `POST /api/v1/sandboxes/{id}/restore`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RestoreRequest {
    #[serde(default, deserialize_with = "lenient::value")]
    pub snapshot: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_written_in_the_order_of_the_contract() {
        let text = r#"{"id":"snap-0a1b2c3d","name":"","sandbox_id":"sb-0a1b2c3d","image":"host","provider":"process","size_bytes":42,"sha256":"ab","created_at":"2026-05-09T10:30:00Z"}"#;
        let snapshot: Snapshot = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&snapshot).unwrap(), text);
    }
}
