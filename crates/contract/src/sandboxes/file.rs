//! Files of a sandbox.

use serde::{Deserialize, Serialize};

use super::lenient;
use crate::worker_rpc;

/// A file in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = SandboxFile))]
pub struct FileInfo {
    /// Absolute, inside the sandbox.
    pub path: String,
    pub size: i64,
    /// Octal with a leading zero, for example `0644`.
    pub mode: String,
    pub is_dir: bool,
    /// `YYYY-MM-DDTHH:MM:SSZ`.
    pub mod_time: String,
    /// The last part of the path.
    #[serde(default)]
    pub name: String,
}

impl From<worker_rpc::FileInfo> for FileInfo {
    fn from(file: worker_rpc::FileInfo) -> Self {
        let worker_rpc::FileInfo { path, size, mode, is_dir, mod_time } = file;
        let trimmed = path.trim_end_matches('/');
        let name = trimmed.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/").to_owned();
        Self { path, size, mode, is_dir, mod_time, name }
    }
}

/// Body of `POST /api/v1/sandboxes/{id}/files`. Without content the file is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileWrite {
    #[serde(default, deserialize_with = "lenient::value")]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Padded standard base64, in place of `content`.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub content_b64: Option<String>,
    /// Octal, default `0644`.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// Body of `POST /api/v1/sandboxes/{id}/files/move`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileMove {
    #[serde(default, deserialize_with = "lenient::value")]
    pub old_path: String,
    #[serde(default, deserialize_with = "lenient::value")]
    pub new_path: String,
}

/// Body of `POST /api/v1/sandboxes/{id}/files/chmod`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileChmod {
    #[serde(default, deserialize_with = "lenient::value")]
    pub path: String,
    /// Octal, `755` or `0755`.
    #[serde(default, deserialize_with = "lenient::value")]
    pub mode: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_worker_gets_a_name() {
        let of = |path: &str| {
            FileInfo::from(worker_rpc::FileInfo {
                path: path.into(),
                size: 3,
                mode: "0644".into(),
                is_dir: false,
                mod_time: "2026-05-09T10:30:00Z".into(),
            })
        };
        assert_eq!(
            serde_json::to_string(&of("/workspace/a.txt")).unwrap(),
            r#"{"path":"/workspace/a.txt","size":3,"mode":"0644","is_dir":false,"mod_time":"2026-05-09T10:30:00Z","name":"a.txt"}"#
        );
        assert_eq!((of("/a/b/").name.as_str(), of("/").name.as_str()), ("b", "/"));
    }

    #[test]
    fn empty_content_is_an_empty_file_and_not_a_missing_one() {
        let write: FileWrite = serde_json::from_str(r#"{"path":"/a","content":"","mode":""}"#).unwrap();
        assert_eq!((write.content.as_deref(), write.mode), (Some(""), None));
        let write: FileWrite = serde_json::from_str(r#"{"path":"/a","content":null,"content_b64":"aGk="}"#).unwrap();
        assert_eq!((write.content, write.content_b64.as_deref()), (None, Some("aGk=")));
    }
}
