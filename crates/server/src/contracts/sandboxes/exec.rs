//! Commands in sandboxes: to their end, or as a stream of lines. A client that hangs up ends its command.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use tenure_contract::duration;
use tenure_contract::sandboxes::{ExecAnswer, ExecRequest};
use tenure_contract::worker_rpc as wire;

use super::errors::refuse;
use super::{params, socket, stream as lines};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::error::Fault;
use crate::request::RequestId;
use crate::sandboxes::audit::Operation;
use crate::sandboxes::bounds::Room;
use crate::sandboxes::calls::{Reached, call};
use crate::sandboxes::watch::{Exec, Outcome};
use crate::state::App;

/// The worker's limit for a command.
const BODY_BYTES: usize = 4 << 20;
/// Answers are handed to the connection in pieces, so that their memory is counted until the last one.
const PIECE_BYTES: usize = 256 << 10;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/sandboxes/{id}/exec", post(exec))
        .route("/api/v1/sandboxes/{id}/exec/ws", get(socket::open))
}

/// Run a command
///
/// With `stream` the answer is NDJSON: lines with `stream` and `data`, and a last one with `done` that has the exit code or an
/// error. Closing the connection ends the command.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/exec", operation_id = "exec_in_sandbox", tag = "sandboxes", params(("id" = String, Path)), request_body = ExecRequest, security(("api_key" = ["api"])),
    responses((status = 200, description = "How the command ended, or its output as it comes", content((ExecAnswer = "application/json"), (tenure_contract::sandboxes::ExecLine = "application/x-ndjson"))),
              (status = 408, body = tenure_contract::sandboxes::SandboxError, description = "the command took longer than it may")))]
pub async fn exec(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let asked: ExecRequest = match params::read_up_to(&headers, body, BODY_BYTES).await {
        Ok(asked) => asked,
        Err(fault) => return refuse(fault, &id),
    };
    if asked.stream {
        return lines::run(app, id, caller, sandbox, asked).await;
    }
    let operation = operation(&app, &caller, &id, "exec", &sandbox, &asked);
    let answer = buffered(&app, &caller, &sandbox, &asked).await;
    match operation.end(answer).await {
        Ok((bytes, room)) => whole(bytes, room),
        Err(fault) => refuse(fault, &id),
    }
}

/// The row that a command leaves in the audit.
pub fn operation(
    app: &App,
    caller: &Caller,
    id: &RequestId,
    action: &str,
    sandbox: &str,
    asked: &ExecRequest,
) -> Operation {
    let command = match app.sandboxes() {
        Ok(part) => part.audited(&asked.command, &asked.args),
        Err(_) => String::new(),
    };
    Operation::new(app, caller, id, action, sandbox).detail(command)
}

async fn buffered(app: &App, caller: &Caller, sandbox: &str, asked: &ExecRequest) -> Result<(Bytes, Room), Fault> {
    let part = app.sandboxes()?;
    check(asked)?;
    let watched = Exec::begin(app, caller, sandbox, asked).await?;
    let params = |to: &Reached| command(to, asked, watched.timeout);
    let ended = call(app, caller, sandbox, |to| {
        let params = params(&to);
        async move { part.rpc.exec(&to.target, to.call(), &params).await }
    });
    let result = match ended.await {
        Ok(result) => result,
        Err(fault) => {
            watched.end(&Outcome::of_fault(&fault));
            return Err(fault);
        }
    };
    watched.end(&Outcome::Exited(Some(result.exit_code)));
    // Escaped, a byte can take six.
    let size = result.stdout.len() + result.stderr.len();
    let encoded = result.stdout_b64.as_ref().map_or(0, String::len) + result.stderr_b64.as_ref().map_or(0, String::len);
    let room = part.bounds.room(2 * (size + encoded)).await?;
    let answer = ExecAnswer {
        exit_code: result.exit_code,
        stdout: result.stdout,
        stderr: result.stderr,
        duration: duration::canonical(Duration::from_millis(result.duration_ms)),
        duration_ms: result.duration_ms,
        stdout_b64: result.stdout_b64,
        stderr_b64: result.stderr_b64,
        stdout_truncated: result.stdout_truncated,
        stderr_truncated: result.stderr_truncated,
    };
    let bytes = serde_json::to_vec(&answer).map_err(|_| Fault::Internal)?;
    Ok((bytes.into(), room))
}

pub fn check(asked: &ExecRequest) -> Result<(), Fault> {
    if asked.command.trim().is_empty() {
        return Err(Fault::bad("command", "command is required"));
    }
    if !matches!(asked.mode.as_deref(), None | Some("shell" | "argv")) {
        return Err(Fault::bad("mode", "mode must be shell or argv"));
    }
    Ok(())
}

/// The command, for the worker.
pub fn command(to: &Reached, asked: &ExecRequest, timeout: Option<Duration>) -> wire::ExecParams {
    let wire::TargetParams { sandbox_id, provider, runtime_id } = to.runtime.clone();
    let mut env = to.env.clone();
    env.extend(asked.env.clone());
    wire::ExecParams {
        sandbox_id,
        provider,
        runtime_id,
        command: asked.command.clone(),
        args: asked.args.clone(),
        mode: asked.mode.clone().unwrap_or_default(),
        env,
        workdir: asked.workdir.clone().unwrap_or_default(),
        timeout: timeout.map(duration::canonical).unwrap_or_default(),
    }
}

/// An answer whose memory is counted until it has been sent.
fn whole(bytes: Bytes, room: Room) -> Response {
    let length = bytes.len();
    let pieces = stream::unfold((bytes, room), |(mut bytes, room)| async move {
        let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some((Ok::<_, std::io::Error>(piece), (bytes, room)))
    });
    let mut response = Body::from_stream(pieces).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response
}
