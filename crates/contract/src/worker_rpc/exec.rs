//! Commands and their output.

use serde::{Deserialize, Serialize};

/// How a command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecMode {
    /// `sh -c` with the arguments quoted and appended.
    Shell,
    /// The program itself, without a shell.
    Argv,
}

impl ExecMode {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "shell" => Some(Self::Shell),
            "argv" => Some(Self::Argv),
            _ => None,
        }
    }
}

/// Something that a command wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The text; bytes that are not UTF-8 are replaced in it.
    pub data: String,
    /// Additive: the exact bytes, only if they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_b64: Option<String>,
}

/// A line of a stream. One with neither `result`, `done` nor `error` is a sign of life. `done` or `error` is the last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamLine {
    pub id: String,
    pub worker_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Chunk>,
    /// Additive. Without a result: readers of the contract take every result for a chunk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub done: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

impl StreamLine {
    pub fn is_terminal(&self) -> bool {
        self.done || self.error.as_ref().is_some_and(|error| !error.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_contract() {
        let base = || StreamLine { id: "req-1".into(), worker_id: "worker-a".into(), ..StreamLine::default() };
        let chunk = |data: &str, data_b64: Option<&str>| Chunk {
            stream: "stdout".into(),
            data: data.into(),
            data_b64: data_b64.map(Into::into),
        };
        for (line, text, terminal) in [
            (
                StreamLine { result: Some(chunk("hello\n", None)), ..base() },
                r#"{"id":"req-1","worker_id":"worker-a","result":{"stream":"stdout","data":"hello\n"}}"#,
                false,
            ),
            (
                StreamLine { result: Some(chunk("\u{fffd}", Some("/w=="))), ..base() },
                "{\"id\":\"req-1\",\"worker_id\":\"worker-a\",\"result\":{\"stream\":\"stdout\",\"data\":\"\u{fffd}\",\"data_b64\":\"/w==\"}}",
                false,
            ),
            (base(), r#"{"id":"req-1","worker_id":"worker-a"}"#, false),
            (
                StreamLine { done: true, exit_code: Some(0), duration_ms: Some(412), ..base() },
                r#"{"id":"req-1","worker_id":"worker-a","done":true,"exit_code":0,"duration_ms":412}"#,
                true,
            ),
            (
                StreamLine { error: Some("exec timed out after 30s".into()), code: Some("timeout".into()), ..base() },
                r#"{"id":"req-1","worker_id":"worker-a","error":"exec timed out after 30s","code":"timeout"}"#,
                true,
            ),
        ] {
            assert_eq!(serde_json::to_string(&line).expect("JSON"), text);
            assert_eq!(serde_json::from_str::<StreamLine>(text).expect("a line"), line);
            assert_eq!(line.is_terminal(), terminal, "{text}");
        }
    }
}
