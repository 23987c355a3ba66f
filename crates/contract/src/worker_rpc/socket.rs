//! Messages of `GET /rpc/exec/ws`.

use serde::{Deserialize, Serialize};

use super::{ExecParams, LeaseToken, lenient};

/// Which of the two documented vocabularies a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vocabulary {
    /// `{"stream":"stdout","data"}`, then `{"type":"done","exit_code","duration_ms"}` or `{"error","code"}`.
    Streams,
    /// Chosen by `"type":"start"`: `{"type":"stdout","data"}`, then `{"type":"exit","exit_code"}` or `{"type":"error"}`.
    Types,
}

/// The first message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketStart {
    /// `start` selects [`Vocabulary::Types`].
    #[serde(rename = "type", default, deserialize_with = "lenient", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(flatten)]
    pub exec: ExecParams,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "std::ops::Not::not")]
    pub tty: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cols: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseToken>,
}

impl SocketStart {
    pub fn vocabulary(&self) -> Vocabulary {
        if self.kind == "start" { Vocabulary::Types } else { Vocabulary::Streams }
    }
}

/// A later message of the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SocketInput {
    Stdin {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<String>,
        /// Bytes that are not UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data_b64: Option<String>,
    },
    StdinClose,
    Resize {
        rows: u16,
        cols: u16,
    },
    Signal {
        /// `INT` or `SIGINT`.
        signal: String,
    },
}

/// A message of the worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOutput {
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_b64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_chooses_the_vocabulary() {
        let read = |text: &str| serde_json::from_str::<SocketStart>(text).expect("a first message");
        let plain = read(r#"{"sandbox_id":"s","command":"sh","tty":true,"rows":24,"cols":80}"#);
        assert_eq!((plain.vocabulary(), plain.exec.command.as_str()), (Vocabulary::Streams, "sh"));
        assert_eq!((plain.tty, plain.rows, plain.cols), (true, Some(24), Some(80)));
        assert_eq!(read(r#"{"type":"start","command":"sh"}"#).vocabulary(), Vocabulary::Types);
    }

    #[test]
    fn later_messages_are_read_by_type() {
        let read = |text: &str| serde_json::from_str::<SocketInput>(text);
        assert_eq!(
            read(r#"{"type":"stdin","data":"ls\n"}"#).expect("stdin"),
            SocketInput::Stdin { data: Some("ls\n".into()), data_b64: None }
        );
        assert_eq!(read(r#"{"type":"stdin_close"}"#).expect("close"), SocketInput::StdinClose);
        assert!(read(r#"{"type":"resize","rows":30}"#).is_err());
        assert!(read(r#"{"type":"dance"}"#).is_err());
    }
}
