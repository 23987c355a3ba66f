//! Reading requests: their id, their body, and what is wrong with them.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde::de::{DeserializeOwned, IgnoredAny};
use tenure_contract::suggest;

use crate::error::{BadRequest, Fault};
use crate::limits;
use crate::memory::{self, Room};
use crate::objects::Objects;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Names one request in answers and logs.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

impl RequestId {
    /// The caller's id, or a new one. The layer of `tower-http` would take any id, and this one goes into logs.
    pub fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(|id| is_plain(id));
        Self(sent.map_or_else(new_request_id, ToOwned::to_owned))
    }

    /// Sends it back.
    pub fn show(&self, headers: &mut HeaderMap) {
        if let Ok(value) = HeaderValue::from_str(&self.0) {
            headers.insert(REQUEST_ID, value);
        }
    }
}

/// Request ids go into logs: only what cannot break a line is taken.
fn is_plain(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= limits::REQUEST_ID_BYTES
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte))
}

pub fn new_request_id() -> String {
    format!("req_{:026x}", tenure_engine::random_bits() >> 24)
}

/// A body as it came. It counts in the memory of its sender as long as it is kept.
#[derive(Debug)]
pub struct Raw {
    pub bytes: Bytes,
    _room: Option<Room>,
}

impl From<Bytes> for Raw {
    /// A text that was not sent with this request.
    fn from(bytes: Bytes) -> Self {
        Self { bytes, _room: None }
    }
}

/// Reads a JSON body of at most `limit` bytes.
pub async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Result<Raw, Fault> {
    let json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json"));
    if !json {
        return Err(BadRequest::UnsupportedMediaType.into());
    }
    read_any(headers, body, limit).await
}

/// Reads a body whatever its type. `Content-Length` alone refuses what is too large before a byte is read.
pub async fn read_any(headers: &HeaderMap, body: Body, limit: usize) -> Result<Raw, Fault> {
    let mut room = memory::room();
    let collecting = tokio::time::timeout(limits::BODY_TIMEOUT, collect(&mut room, headers, body, limit));
    let bytes = collecting.await.map_err(|_| Fault::from(BadRequest::BodyTimeout))??;
    Ok(Raw { bytes, _room: Some(room) })
}

/// Counts a body as it comes, so that one that was only announced takes nothing. While there is no memory for more of it,
/// no more of it is read.
pub async fn collect(room: &mut Room, headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Bytes, Fault> {
    let too_large = || Fault::from(BadRequest::BodyTooLarge { limit });
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        discard(headers, body);
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|_| Fault::malformed("the body is incomplete"))?.into_data() else { continue };
        let size = bytes.len() + piece.len();
        if size > limit {
            discard(headers, body);
            return Err(too_large());
        }
        // As bytes, and once more as what is made of them.
        room.enlarge(2 * size).await?;
        if bytes.is_empty() && announced == Some(piece.len()) {
            // Most bodies come in one piece, and need not be copied.
            return Ok(piece);
        }
        if bytes.capacity() < size {
            bytes.reserve_exact(piece.len().max(bytes.len() / 2).min(limit - bytes.len()));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}

/// Reads the rest of a refused body, so that a client that reads only after it wrote gets its answer: a connection that is
/// closed with unread bytes is reset, and the answer can be lost. Bounded in bytes and in time. A client that waits to be told
/// to go on reads first.
fn discard(headers: &HeaderMap, mut body: Body) {
    if headers.contains_key(header::EXPECT) {
        return;
    }
    let rest = async move {
        let mut left = limits::DISCARDED_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(limits::DISCARD_TIMEOUT, rest));
}

impl Raw {
    /// Decodes. What is no JSON is malformed; what is JSON of the wrong shape names its field.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        if self.bytes.trim_ascii_start().first() == Some(&b'[') {
            self.is_json()?;
            return Err(Fault::invalid("body", "must be a JSON object"));
        }
        let mut reader = serde_json::Deserializer::from_slice(&self.bytes);
        match T::deserialize(Objects(&mut reader)).and_then(|value| reader.end().map(|()| value)) {
            Ok(value) => Ok(value),
            // Keeping track of where one is costs more than decoding: that is for what is wrong.
            Err(_) => self.decode_with_path(),
        }
    }

    /// A field at fault is told only of what is JSON to its end.
    fn decode_with_path<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        self.is_json()?;
        let mut reader = serde_json::Deserializer::from_slice(&self.bytes);
        serde_path_to_error::deserialize(Objects(&mut reader)).map_err(|error| {
            let path = error.path().to_string();
            let inner = error.into_inner();
            if !inner.is_data() {
                return malformed(&inner);
            }
            let message = inner.to_string();
            // The position is that of a text which the caller may never have seen.
            let message = message.split(" at line ").next().unwrap_or_default();
            if let Some(message) = suggest::unknown_field(message, &[]) {
                return BadRequest::UnknownField { field: path, message }.into();
            }
            let absent = message.starts_with("missing field") || message.starts_with("invalid type: null");
            let wrong = if absent { "is required" } else { message };
            Fault::invalid(field_of(&path, message), wrong)
        })
    }

    fn is_json(&self) -> Result<(), Fault> {
        serde_json::from_slice::<IgnoredAny>(&self.bytes).map(drop).map_err(|error| malformed(&error))
    }
}

fn malformed(error: &serde_json::Error) -> Fault {
    Fault::malformed(format!("not JSON: {error}"))
}

/// The path of a field; for one that is missing or comes twice, the path of where it should be.
fn field_of(path: &str, message: &str) -> String {
    let named = ["missing field `", "duplicate field `"].iter().find_map(|start| message.strip_prefix(start));
    match (path, named.and_then(|rest| rest.split('`').next())) {
        (".", Some(name)) => name.to_owned(),
        (path, Some(name)) => format!("{path}.{name}"),
        (".", None) => "body".to_owned(),
        (path, None) => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only decoded")]
    struct Sample {
        name: String,
        items: Vec<u8>,
    }

    fn fault(text: &'static str) -> Fault {
        Raw::from(Bytes::from_static(text.as_bytes())).decode::<Sample>().unwrap_err()
    }

    #[test]
    fn the_field_at_fault_is_named() {
        for (text, field) in [
            (r#"{"items":[]}"#, "name"),
            (r#"{"name":1,"items":[]}"#, "name"),
            (r#"{"name":"a","items":[1,"x"]}"#, "items[1]"),
            (r#"{"name":"a","items":[],"name":"b"}"#, "name"),
            ("[]", "body"),
            (r#" ["a",[1]]"#, "body"),
        ] {
            match fault(text) {
                Fault::Request(BadRequest::Invalid { field: found, .. }) => assert_eq!(found, field, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_no_json_is_malformed() {
        let whole = r#"{"name":"a","items":[]} x"#;
        // Also behind a field at fault.
        for text in ["", "{", "[", whole, "{'name':1}", r#"{"name":1,"#, r#"{"name":1} x"#, "{} x", "[] x"] {
            assert!(matches!(fault(text), Fault::Request(BadRequest::Malformed { .. })), "{text}");
        }
    }

    #[test]
    fn strange_request_ids_are_replaced() {
        assert!(is_plain("req_7-a.b:c"));
        assert!(!is_plain("a b"));
        assert!(!is_plain(&"x".repeat(129)));
        assert!(new_request_id().starts_with("req_"));
    }
}
