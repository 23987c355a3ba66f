//! Messages of `GET /api/v1/sandboxes/{id}/exec/ws`. After the first one they are those of the worker:
//! [`SocketInput`](crate::worker_rpc::SocketInput) and [`SocketOutput`](crate::worker_rpc::SocketOutput).

use serde::{Deserialize, Serialize};

use super::{ExecRequest, lenient};
use crate::worker_rpc::Vocabulary;

/// The first message: a command, and the terminal it wants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStart {
    /// `start` selects [`Vocabulary::Types`].
    #[serde(rename = "type", default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(flatten)]
    pub exec: ExecRequest,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "lenient::is_default")]
    pub tty: bool,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub rows: Option<u16>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub cols: Option<u16>,
}

impl ExecStart {
    pub fn vocabulary(&self) -> Vocabulary {
        if self.kind == "start" { Vocabulary::Types } else { Vocabulary::Streams }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_is_a_command_and_chooses_the_vocabulary() {
        let text = r#"{"command":"sh","args":["-l"],"mode":"argv","tty":true,"rows":24,"cols":80}"#;
        let start: ExecStart = serde_json::from_str(text).unwrap();
        assert_eq!(
            (start.vocabulary(), start.exec.command.as_str(), start.rows),
            (Vocabulary::Streams, "sh", Some(24))
        );
        assert_eq!(serde_json::to_string(&start).unwrap(), text);
        let other =
            r#"{"type":"start","command":"sh","args":null,"env":null,"tty":null,"rows":0,"cols":0,"timeout":""}"#;
        let other: ExecStart = serde_json::from_str(other).unwrap();
        assert_eq!((other.vocabulary(), other.tty, other.rows), (Vocabulary::Types, false, None));
    }
}
