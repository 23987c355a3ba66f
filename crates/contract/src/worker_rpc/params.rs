//! Parameters of the methods.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lenient;

/// The sandbox that a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    /// May be blank if `runtime_id` is not.
    pub sandbox_id: &'a str,
    /// Blank means the worker's default.
    pub provider: &'a str,
    /// Blank means that the worker looks the runtime up by `sandbox_id`.
    pub runtime_id: &'a str,
}

/// Parameters that name a sandbox.
pub trait Targeted {
    fn target(&self) -> Target<'_>;
}

/// A struct that begins with the fields of a target. Not `#[serde(flatten)]`: it would copy a whole file before its
/// field is known.
macro_rules! targeted {
    ($(#[$meta:meta])* $name:ident $(<$life:lifetime>)? { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name $(<$life>)? {
            #[serde(default, deserialize_with = "lenient")]
            pub sandbox_id: String,
            #[serde(default, deserialize_with = "lenient")]
            pub provider: String,
            #[serde(default, deserialize_with = "lenient", skip_serializing_if = "String::is_empty")]
            pub runtime_id: String,
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $(<$life>)? Targeted for $name $(<$life>)? {
            fn target(&self) -> Target<'_> {
                Target {
                    sandbox_id: self.sandbox_id.trim(),
                    provider: self.provider.trim(),
                    runtime_id: self.runtime_id.trim(),
                }
            }
        }
    };
}

targeted! {
    /// `worker.destroy`, `worker.status`, `worker.stats`.
    TargetParams {}
}

targeted! {
    /// `worker.exec`, `worker.exec_stream`.
    ExecParams {
        command: String,
        #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Vec::is_empty")]
        args: Vec<String>,
        /// `shell` or `argv`; absent means `shell`. See [`ExecMode`](super::ExecMode).
        #[serde(default, deserialize_with = "lenient", skip_serializing_if = "String::is_empty")]
        mode: String,
        #[serde(default, deserialize_with = "lenient", skip_serializing_if = "BTreeMap::is_empty")]
        env: BTreeMap<String, String>,
        #[serde(default, deserialize_with = "lenient", skip_serializing_if = "String::is_empty")]
        workdir: String,
        #[serde(default, deserialize_with = "lenient", skip_serializing_if = "String::is_empty")]
        timeout: String,
    }
}

targeted! {
    /// `worker.file_write`.
    FileWriteParams<'a> {
        path: String,
        /// Padded standard base64.
        #[serde(borrow)]
        content: Cow<'a, str>,
        #[serde(default, deserialize_with = "lenient", skip_serializing_if = "String::is_empty")]
        mode: String,
    }
}

targeted! {
    /// `worker.file_read`, `worker.file_list`, `worker.file_stat`.
    FilePathParams {
        path: String,
    }
}

targeted! {
    /// `worker.file_delete`.
    FileDeleteParams {
        path: String,
        #[serde(default, deserialize_with = "lenient", skip_serializing_if = "std::ops::Not::not")]
        recursive: bool,
    }
}

targeted! {
    /// `worker.file_move`.
    FileMoveParams {
        old_path: String,
        new_path: String,
    }
}

targeted! {
    /// `worker.file_chmod`.
    FileChmodParams {
        path: String,
        /// Octal, for example `0755`.
        mode: String,
    }
}

targeted! {
    /// `worker.file_glob`.
    FileGlobParams {
        pattern: String,
    }
}

targeted! {
    /// `worker.logs`.
    LogsParams {
        /// 0 and below mean all.
        #[serde(default, deserialize_with = "lenient", skip_serializing_if = "is_zero")]
        lines: i64,
    }
}

targeted! {
    /// `worker.snapshot`, `worker.restore`.
    SnapshotParams {
        snapshot_id: String,
    }
}

/// `worker.spawn`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnParams {
    pub sandbox_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub image: String,
    #[serde(default, deserialize_with = "lenient")]
    pub provider: String,
    /// 0 means the provider's default.
    #[serde(default, deserialize_with = "lenient")]
    pub memory_mb: u64,
    #[serde(default, deserialize_with = "lenient")]
    pub vcpus: u32,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub ttl: String,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Additive, like the fields below.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "is_zero")]
    pub disk_size_mb: u64,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "is_zero")]
    pub pids_limit: u32,
    /// An empty list means no network.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<String>,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "std::ops::Not::not")]
    pub read_only_root: bool,
    /// The snapshot that the sandbox begins with.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "String::is_empty")]
    pub snapshot: String,
}

/// `worker.renew_lease`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewLeaseParams {
    pub resource_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub ttl: String,
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_peer_that_sends_null_for_what_is_empty_is_understood() {
        let sent = json!({"sandbox_id": "sb-1", "provider": "mock", "runtime_id": null, "command": "ls", "args": null,
            "mode": null, "env": null, "workdir": "", "timeout": null, "news": [1]});
        let params: ExecParams = serde_json::from_value(sent).expect("parameters");
        assert_eq!(params.target(), Target { sandbox_id: "sb-1", provider: "mock", runtime_id: "" });
        assert_eq!(
            serde_json::to_string(&params).expect("JSON"),
            r#"{"sandbox_id":"sb-1","provider":"mock","command":"ls"}"#
        );
    }

    #[test]
    fn required_fields_are_required() {
        assert!(serde_json::from_value::<ExecParams>(json!({"sandbox_id": "s"})).is_err());
        assert!(serde_json::from_value::<SpawnParams>(json!({"image": "host"})).is_err());
        assert!(serde_json::from_value::<FileMoveParams>(json!({"old_path": "/a"})).is_err());
        assert!(serde_json::from_value::<SpawnParams>(json!({"sandbox_id": "s", "memory_mb": -1})).is_err());
    }

    #[test]
    fn the_content_of_a_file_is_not_copied() {
        let text = r#"{"sandbox_id":"s","provider":"","path":"/a","content":"aGk="}"#;
        let params: FileWriteParams<'_> = serde_json::from_str(text).expect("parameters");
        assert!(matches!(params.content, Cow::Borrowed("aGk=")));
        let escaped: FileWriteParams<'_> = serde_json::from_str(r#"{"path":"/a","content":"aG\/="}"#).expect("escaped");
        assert_eq!(escaped.content, "aG/=");
    }
}
