//! The output of a command as lines of JSON, each as it comes. Nothing is read from the worker before the client has taken
//! what came before, so that a slow client slows the command down.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use tenure_contract::sandboxes::{ExecLine, ExecRequest};
use tenure_rpc::{ExecEvent, ExecStream};

use super::errors::{refuse, told, word};
use super::exec::{check, command, operation};
use crate::access::caller::Caller;
use crate::error::Fault;
use crate::memory::Room;
use crate::request::RequestId;
use crate::sandboxes::audit::Operation;
use crate::sandboxes::bounds::Place;
use crate::sandboxes::calls::fault;
use crate::sandboxes::watch::{Exec, Outcome};
use crate::state::App;

/// A silent command sends an empty line now and then, which also shows whether the client is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Begins a command. The room is that of the request, which is needed until the worker has it.
pub async fn run(
    app: App,
    id: RequestId,
    caller: Caller,
    sandbox: String,
    asked: ExecRequest,
    _room: Room,
) -> Response {
    let operation = operation(&app, &caller, &id, "exec_stream", &sandbox, &asked);
    match start(&app, &caller, &sandbox, &asked).await {
        Err(fault) => match operation.end::<()>(Err(fault)).await {
            Err(fault) => refuse(fault, &id),
            Ok(()) => refuse(Fault::Internal, &id),
        },
        Ok((output, watched, open)) => {
            let lines = Lines { output, running: Some((watched, operation)), _open: open };
            let body = stream::unfold(lines, |mut lines| async move {
                Some((Ok::<_, std::convert::Infallible>(lines.next().await?), lines))
            });
            let mut response = Body::from_stream(body).into_response();
            let kind = HeaderValue::from_static("application/x-ndjson");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            // For proxies that would wait for more.
            response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
            response
        }
    }
}

async fn start(
    app: &App,
    caller: &Caller,
    sandbox: &str,
    asked: &ExecRequest,
) -> Result<(ExecStream, Exec, Place), Fault> {
    let part = app.sandboxes()?;
    check(asked)?;
    let open = part.bounds.place(&caller.share())?;
    let mut watched = Exec::begin(app, caller, sandbox, asked).await?;
    let timeout = watched.timeout;
    let started = watched.call(app, caller, |to| {
        let params = command(&to, asked, timeout);
        async move { part.rpc.exec_stream(&to.target, to.call(), &params).await }
    });
    match started.await {
        Ok(output) => Ok((output, watched, open)),
        Err(fault) => {
            watched.end(&Outcome::of_fault(&fault));
            Err(fault)
        }
    }
}

/// A command whose lines are being sent. Dropped before its end, it is killed.
struct Lines {
    output: ExecStream,
    /// Until the last line.
    running: Option<(Exec, Operation)>,
    _open: Place,
}

impl Lines {
    async fn next(&mut self) -> Option<Bytes> {
        self.running.as_ref()?;
        let line = match tokio::time::timeout(KEEP_ALIVE, self.output.next()).await {
            Err(_) => ExecLine::keep_alive(),
            Ok(Some(Ok(ExecEvent::Output { stream, bytes }))) => chunk(stream.as_str(), &bytes),
            Ok(Some(Ok(ExecEvent::End { exit_code, duration_ms }))) => {
                self.end(&Outcome::Exited(exit_code), None);
                ExecLine::done(exit_code, duration_ms)
            }
            Ok(Some(Err(error))) => self.failed(&fault(error)),
            Ok(None) => self.failed(&Fault::Internal),
        };
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        Some(text.into())
    }

    fn failed(&mut self, fault: &Fault) -> ExecLine {
        self.end(&Outcome::of_fault(fault), Some(word(fault)));
        let (code, message) = told(fault);
        ExecLine::failed(message, class_word(code))
    }

    fn end(&mut self, outcome: &Outcome, refused: Option<&'static str>) {
        if let Some((watched, operation)) = self.running.take() {
            watched.end(outcome);
            operation.end_soon(refused);
        }
    }
}

/// The class, as the body of a refusal has it.
pub fn class_word(class: tenure_contract::error::ErrorClass) -> String {
    serde_json::to_value(class).ok().and_then(|word| word.as_str().map(ToOwned::to_owned)).unwrap_or_default()
}

fn chunk(stream: &str, bytes: &[u8]) -> ExecLine {
    let (data, data_b64) = text(bytes);
    ExecLine { stream: stream.to_owned(), data, data_b64, ..ExecLine::default() }
}

/// The text, and the exact bytes where they are not one.
pub fn text(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(STANDARD.encode(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_text_are_there_exactly() {
        let line = |bytes: &[u8]| serde_json::to_string(&chunk("stdout", bytes)).unwrap();
        assert_eq!(line(b"hi\n"), r#"{"stream":"stdout","data":"hi\n"}"#);
        assert_eq!(line(&[0xff]), "{\"stream\":\"stdout\",\"data\":\"\u{fffd}\",\"data_b64\":\"/w==\"}");
        assert_eq!(class_word(tenure_contract::error::ErrorClass::Timeout), "TIMEOUT");
    }
}
