//! `worker.exec_stream` as lines of JSON.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use tenure_contract::worker_rpc::{Chunk, Code, NDJSON, StreamLine};
use tenure_sandbox::{ErrorKind, Execution};

use super::output::{Item, Reading};
use super::refusal::Refusal;
use super::settings::RpcTimes;

/// Sends an execution line by line. The last line, and no other, is terminal. When the reader goes away, the body is
/// dropped, and with it the execution, which kills the command.
pub(super) fn response(id: &str, worker_id: &str, execution: Execution, timeout: String, times: &RpcTimes) -> Response {
    let lines = Lines {
        id: id.to_owned(),
        worker_id: worker_id.to_owned(),
        reading: Reading::new(execution, times),
        timeout,
        ended: false,
    };
    let lines = stream::unfold(lines, |mut lines| async move {
        let line = lines.next().await?;
        Some((Ok::<_, std::convert::Infallible>(line), lines))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    response
}

struct Lines {
    id: String,
    worker_id: String,
    reading: Reading,
    timeout: String,
    ended: bool,
}

impl Lines {
    async fn next(&mut self) -> Option<Bytes> {
        let line = match self.reading.next().await? {
            Item::Chunk(chunk) => self.chunk(chunk),
            Item::Silence => self.line(),
            Item::Exited(exit) => {
                self.ended = true;
                let duration_ms = u64::try_from(exit.usage.wall.as_millis()).unwrap_or(u64::MAX);
                StreamLine { done: true, exit_code: Some(exit.code), duration_ms: Some(duration_ms), ..self.line() }
            }
            Item::Failed(error) => {
                self.ended = true;
                let refusal = failed(error, &self.timeout);
                let code = Some(refusal.class.as_str().to_owned());
                StreamLine { error: Some(refusal.message), code, ..self.line() }
            }
        };
        let mut text = serde_json::to_vec(&line).unwrap_or_else(|error| panic!("lines are plain JSON: {error}"));
        text.push(b'\n');
        Some(text.into())
    }

    fn line(&self) -> StreamLine {
        StreamLine { id: self.id.clone(), worker_id: self.worker_id.clone(), ..StreamLine::default() }
    }

    fn chunk(&self, chunk: Chunk) -> StreamLine {
        StreamLine { result: Some(chunk), ..self.line() }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if !self.ended {
            metrics::counter!("tenure_stream_truncated_total").increment(1);
        }
    }
}

/// How a command failed, in words that name its timeout.
pub(super) fn failed(error: tenure_sandbox::Error, timeout: &str) -> Refusal {
    match error.kind() {
        ErrorKind::Timeout => Refusal::call(Code::Timeout, format!("exec timed out after {timeout}")).executed(),
        _ => error.into(),
    }
}
