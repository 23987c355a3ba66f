//! The worker RPC contract: what a control plane and a worker send each other over `POST /rpc` and the routes beside it.
//!
//! Each type serves both sides. Fields beyond the contract are additive: a peer that does not know them ignores them.

mod code;
mod exec;
mod method;
mod params;
mod results;
mod socket;
mod time;

use serde::{Deserialize, Serialize};

pub use code::Code;
pub use exec::{Chunk, ExecMode, StreamLine};
pub use jiff::Timestamp;
pub use method::{LeaseRule, Method};
pub use params::{
    ExecParams, FileChmodParams, FileDeleteParams, FileGlobParams, FileMoveParams, FilePathParams, FileWriteParams,
    LogsParams, RenewLeaseParams, SnapshotParams, SpawnParams, Target, TargetParams, Targeted,
};
pub use results::{
    ExecResult, ExecStreamResult, FileGlobResult, FileInfo, FileListResult, FileReadResult, FileStatResult, LogsResult,
    RenewLeaseResult, SnapshotResult, SpawnResult, StatsResult, StatusResult,
};
pub use socket::{SocketInput, SocketOutput, SocketStart, Vocabulary};

/// The worker that a call is for.
pub const WORKER_ID_HEADER: &str = "x-worker-id";
/// The credential. `Authorization: Bearer` counts only without it.
pub const WORKER_TOKEN_HEADER: &str = "x-worker-token";
/// `ndjson` asks for a stream.
pub const STREAM_HEADER: &str = "x-worker-stream";
pub const REQUEST_ID_HEADER: &str = "x-request-id";
/// The [`Code`] of an answer that the worker gave in place of a port in a sandbox. Additive.
pub const ERROR_HEADER: &str = "x-worker-error";
/// The checksum of a snapshot archive, in hexadecimal. Additive.
pub const SNAPSHOT_SHA256_HEADER: &str = "x-snapshot-sha256";
pub const NDJSON: &str = "application/x-ndjson";

/// The largest body of `POST /rpc`, for `worker.file_write`.
pub const MAX_BODY_BYTES: usize = 96 << 20;
/// The largest body of every other method.
pub const MAX_SMALL_BODY_BYTES: usize = 4 << 20;
/// The largest file in `worker.file_write` and `worker.file_read`.
pub const MAX_CONTENT_BYTES: usize = 64 << 20;
/// What is kept of each output of `worker.exec`.
pub const MAX_OUTPUT_BYTES: usize = 8 << 20;
/// The largest answer of the methods without a limit of their own.
pub const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The longest line of a stream.
pub const MAX_LINE_BYTES: usize = 512 << 10;

/// A call. `P` is the type of the parameters, or raw JSON before the method is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request<P> {
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub method: String,
    #[serde(default)]
    pub worker_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseToken>,
    #[serde(default = "absent", skip_serializing_if = "Option::is_none")]
    pub params: Option<P>,
}

fn absent<P>() -> Option<P> {
    None
}

/// The answer to a call. A non-empty `error` or a status from 300 on is a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response<R> {
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub worker_id: String,
    /// For people; never parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Additive: a [`Code`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default = "absent", skip_serializing_if = "Option::is_none")]
    pub result: Option<R>,
}

/// The right to act on a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseToken {
    pub resource_id: String,
    pub holder_id: String,
    pub generation: i64,
    /// Any offset on input, `Z` on output; fractions of a second are kept.
    #[serde(with = "time")]
    pub expires_at: Timestamp,
}

/// The answer to a call that was refused before its envelope was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    pub code: String,
    pub message: String,
}

/// `GET /health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `ok`.
    pub status: String,
    pub worker_id: String,
}

/// Null counts as absent: peers in Go send it for empty lists and maps.
fn lenient<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn the_envelope_of_the_contract_is_read_and_written_back() {
        let text = r#"{"id":"req-123","method":"worker.spawn","worker_id":"worker-a","lease":{"resource_id":"sb-abc123","holder_id":"worker-a","generation":4,"expires_at":"2026-05-09T10:31:00Z"},"params":{}}"#;
        let request: Request<&RawValue> = serde_json::from_str(text).expect("the contract's example");
        assert_eq!(serde_json::to_string(&request).expect("JSON"), text);
    }

    #[test]
    fn absent_fields_are_left_out_and_null_and_unknown_fields_are_accepted() {
        let answer = Response::<()> { id: "r".into(), worker_id: "w".into(), error: None, code: None, result: None };
        assert_eq!(serde_json::to_string(&answer).expect("JSON"), r#"{"id":"r","worker_id":"w"}"#);
        let request =
            json!({"id": "r", "method": "m", "worker_id": "w", "lease": null, "params": null, "trace": {"a": [1]}});
        let request: Request<Box<RawValue>> = serde_json::from_value(request).expect("a request");
        assert!(request.lease.is_none() && request.params.is_none());
    }

    #[test]
    fn any_offset_is_read_and_fractions_are_kept() {
        let token = |time: &str| {
            let token = json!({"resource_id": "s", "holder_id": "w", "generation": 1, "expires_at": time});
            serde_json::from_value::<LeaseToken>(token)
                .map(|token| serde_json::to_value(&token).expect("JSON")["expires_at"].clone())
        };
        for (sent, shown) in [
            ("2026-05-09T10:31:00Z", "2026-05-09T10:31:00Z"),
            ("2026-05-09T12:31:00.25+02:00", "2026-05-09T10:31:00.25Z"),
            ("2026-05-09T10:31:00.123456789Z", "2026-05-09T10:31:00.123456789Z"),
        ] {
            assert_eq!(token(sent).expect(sent), shown);
        }
        for wrong in ["", "2026-05-09", "2026-05-09T10:31:00", "soon"] {
            assert!(token(wrong).is_err(), "{wrong}");
        }
    }
}
