//! Commands: buffered, and as a stream of lines.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lenient;
use crate::worker_rpc::Chunk;

/// Body of `POST /api/v1/sandboxes/{id}/exec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"command": "python3 -c 'print(1)'", "timeout": "30s"})))]
pub struct ExecRequest {
    #[serde(default, deserialize_with = "lenient::value")]
    pub command: String,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// `shell`, the default: `sh -c` with the arguments quoted and appended. `argv`: the program itself.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// The answer is a stream of [`ExecLine`]s.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "lenient::is_default")]
    pub stream: bool,
}

/// How a command ended, with its output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecAnswer {
    pub exit_code: i32,
    #[serde(default)]
    pub stdout: String,
    #[serde(default)]
    pub stderr: String,
    /// Such as `1.5s`.
    #[serde(default)]
    pub duration: String,
    /// Additive, like the fields below.
    #[serde(default)]
    pub duration_ms: u64,
    /// The exact bytes of an output that is not UTF-8.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub stdout_b64: Option<String>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub stderr_b64: Option<String>,
    /// Only the beginning was kept.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "lenient::is_default")]
    pub stdout_truncated: bool,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "lenient::is_default")]
    pub stderr_truncated: bool,
}

/// A line of the stream of a command. The last one is `done`: it has an exit code, or an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecLine {
    /// `stdout` or `stderr`. The last line has it too: clients read it in every line.
    pub stream: String,
    /// The text; bytes that are not UTF-8 are replaced in it. Empty in the last line, unless it is an error.
    pub data: String,
    /// The exact bytes, only if they are not UTF-8.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub data_b64: Option<String>,
    /// Absent in a last line without an error: the worker did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The class of the error, as in the body of a refused request.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "lenient::is_default")]
    pub done: bool,
}

impl ExecLine {
    /// A line without output, so that a silent stream is not taken for a dead one.
    pub fn keep_alive() -> Self {
        Self { stream: "stdout".into(), ..Self::default() }
    }

    /// The last line of a command that ended. A worker of the contract alone reports no exit code.
    pub fn done(exit_code: Option<i32>, duration_ms: Option<u64>) -> Self {
        Self { exit_code, duration_ms, done: true, ..Self::keep_alive() }
    }

    /// The last line of a command that did not end by itself.
    pub fn failed(error: impl Into<String>, code: impl Into<String>) -> Self {
        let error = error.into();
        Self {
            stream: "stderr".into(),
            data: error.clone(),
            error: Some(error),
            code: Some(code.into()),
            done: true,
            ..Self::default()
        }
    }
}

impl From<Chunk> for ExecLine {
    fn from(chunk: Chunk) -> Self {
        Self { stream: chunk.stream, data: chunk.data, data_b64: chunk.data_b64, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_contract_and_each_has_stream_and_data() {
        let chunk = Chunk { stream: "stdout".into(), data: "hello\n".into(), data_b64: None };
        let bytes = Chunk { stream: "stderr".into(), data: "\u{fffd}".into(), data_b64: Some("/w==".into()) };
        for (line, text) in [
            (ExecLine::from(chunk), r#"{"stream":"stdout","data":"hello\n"}"#),
            (ExecLine::from(bytes), "{\"stream\":\"stderr\",\"data\":\"\u{fffd}\",\"data_b64\":\"/w==\"}"),
            (ExecLine::keep_alive(), r#"{"stream":"stdout","data":""}"#),
            (
                ExecLine::done(Some(0), Some(412)),
                r#"{"stream":"stdout","data":"","exit_code":0,"duration_ms":412,"done":true}"#,
            ),
            (ExecLine::done(None, None), r#"{"stream":"stdout","data":"","done":true}"#),
            (
                ExecLine::failed("exec timed out after 30s", "TIMEOUT"),
                r#"{"stream":"stderr","data":"exec timed out after 30s","error":"exec timed out after 30s","code":"TIMEOUT","done":true}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&line).unwrap(), text);
            assert_eq!(serde_json::from_str::<ExecLine>(text).unwrap(), line);
        }
    }

    #[test]
    fn an_answer_begins_with_the_fields_of_the_contract() {
        let answer = ExecAnswer {
            exit_code: 7,
            stdout: "a".into(),
            duration: "12ms".into(),
            duration_ms: 12,
            stdout_truncated: true,
            ..ExecAnswer::default()
        };
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            r#"{"exit_code":7,"stdout":"a","stderr":"","duration":"12ms","duration_ms":12,"stdout_truncated":true}"#
        );
        let old: ExecAnswer =
            serde_json::from_str(r#"{"exit_code":0,"stdout":"","stderr":"","duration":"1ms"}"#).unwrap();
        assert_eq!((old.exit_code, old.duration_ms), (0, 0));
    }

    #[test]
    fn a_request_with_blank_fields_is_a_plain_command() {
        let text = r#"{"command":"ls","args":null,"mode":"","env":null,"workdir":"","timeout":0,"stream":null}"#;
        let request: ExecRequest = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"command":"ls"}"#);
    }
}
