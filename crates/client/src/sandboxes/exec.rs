//! The output of a command as it is written.

use std::collections::VecDeque;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, Response};
use tenure_contract::sandboxes::{ExecLine, ExecRequest};

use super::Sandbox;
use crate::error::ClientError;

/// A line has at most 512 KiB of the worker's, which JSON may blow up.
const LINE_BYTES_MAX: usize = 8 << 20;
/// The server sends a line at least every 15 s; a longer silence means that the connection is dead.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    Stdout(Bytes),
    Stderr(Bytes),
    /// The last one. A worker of the bare contract does not report the exit code.
    Exited {
        exit_code: Option<i32>,
        duration_ms: Option<u64>,
    },
}

impl ExecEvent {
    pub(super) fn output(stream: &str, data: String, data_b64: Option<&str>) -> Option<Self> {
        let exact = data_b64.and_then(|text| STANDARD.decode(text).ok());
        let bytes = exact.map_or_else(|| Bytes::from(data), Bytes::from);
        if bytes.is_empty() {
            return None;
        }
        Some(if stream == "stderr" { Self::Stderr(bytes) } else { Self::Stdout(bytes) })
    }
}

impl Sandbox {
    /// Runs a command and returns its output as it is written. Dropping the stream ends the command.
    pub async fn stream(&self, request: &ExecRequest) -> Result<ExecStream, ClientError> {
        let url = self.url_of(&["exec"]);
        let operation = format!("POST {}", url.path());
        let request = ExecRequest { stream: true, ..request.clone() };
        let body = serde_json::to_vec(&request)
            .map_err(|source| ClientError::Encode { operation: operation.clone(), source })?;
        let request = self.client.request(Method::POST, url).header(CONTENT_TYPE, "application/json").body(body);
        let response = send(&operation, request).await?;
        Ok(ExecStream { operation, response, lines: Lines::default(), done: false })
    }
}

/// Sends a request whose answer may take any time; that the server is there is seen by TCP. Refusals become errors.
pub(crate) async fn send(operation: &str, request: reqwest::RequestBuilder) -> Result<Response, ClientError> {
    let response = request.send().await.map_err(|source| network(operation, source))?;
    let status = response.status();
    if status.is_success() || status.as_u16() == 101 {
        return Ok(response);
    }
    let body = response.bytes().await.map_err(|source| network(operation, source))?;
    Err(ClientError::from_answer(operation, status.as_u16(), &body))
}

pub(crate) fn network(operation: &str, source: reqwest::Error) -> ClientError {
    ClientError::Network { operation: operation.to_owned(), source: Box::new(source.without_url()) }
}

/// The output of a command, see [`Sandbox::stream`].
#[derive(Debug)]
pub struct ExecStream {
    operation: String,
    response: Response,
    lines: Lines,
    done: bool,
}

impl ExecStream {
    /// The next output; after [`ExecEvent::Exited`] and after an error there is nothing more.
    pub async fn next(&mut self) -> Option<Result<ExecEvent, ClientError>> {
        while !self.done {
            let event = match self.lines.pop() {
                Some(line) => self.read(&line),
                None => self.fetch().await.err().map(Err),
            };
            if let Some(event) = event {
                self.done = !matches!(event, Ok(ExecEvent::Stdout(_) | ExecEvent::Stderr(_)));
                return Some(event);
            }
        }
        None
    }

    async fn fetch(&mut self) -> Result<(), ClientError> {
        match tokio::time::timeout(IDLE_MAX, self.response.chunk()).await {
            Ok(Ok(Some(bytes))) if self.lines.push(&bytes) => Ok(()),
            _ => Err(ClientError::Truncated { operation: self.operation.clone() }),
        }
    }

    fn read(&self, line: &[u8]) -> Option<Result<ExecEvent, ClientError>> {
        let line: ExecLine = match serde_json::from_slice(line) {
            Ok(line) => line,
            Err(source) => return Some(Err(ClientError::Decode { operation: self.operation.clone(), source })),
        };
        if let Some(error) = line.error {
            return Some(Err(ClientError::from_line(error, line.code.as_deref())));
        }
        if line.done {
            return Some(Ok(ExecEvent::Exited { exit_code: line.exit_code, duration_ms: line.duration_ms }));
        }
        ExecEvent::output(&line.stream, line.data, line.data_b64.as_deref()).map(Ok)
    }
}

/// Bytes that become lines. Empty ones are left out.
#[derive(Debug, Default)]
struct Lines {
    whole: VecDeque<Vec<u8>>,
    rest: Vec<u8>,
}

impl Lines {
    /// Returns whether the line that is being read is of a permitted length.
    fn push(&mut self, bytes: &[u8]) -> bool {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if self.rest.last() == Some(&b'\n') {
                let line = std::mem::take(&mut self.rest);
                let line = line.trim_ascii();
                if !line.is_empty() {
                    self.whole.push_back(line.to_vec());
                }
            }
        }
        self.rest.len() <= LINE_BYTES_MAX
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        self.whole.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_from_any_pieces() {
        let mut lines = Lines::default();
        for piece in ["{\"a", "\":1}\n\n{\"b\":2}\r\n{", "}"] {
            assert!(lines.push(piece.as_bytes()));
        }
        let texts: Vec<_> = std::iter::from_fn(|| lines.pop()).map(|line| String::from_utf8(line).unwrap()).collect();
        assert_eq!(texts, [r#"{"a":1}"#, r#"{"b":2}"#]);
        assert_eq!(lines.rest, b"{}");
        assert!(!lines.push(&vec![b'x'; LINE_BYTES_MAX]));
    }

    #[test]
    fn exact_bytes_take_precedence_and_no_output_is_no_event() {
        let event = ExecEvent::output("stderr", "\u{fffd}".into(), Some("/w=="));
        assert_eq!(event, Some(ExecEvent::Stderr(Bytes::from_static(b"\xff"))));
        assert_eq!(ExecEvent::output("stdout", String::new(), None), None);
    }
}
