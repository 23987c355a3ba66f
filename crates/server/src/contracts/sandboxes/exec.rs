//! Commands in sandboxes: to their end, or as a stream of lines. A client that hangs up ends its command.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use tenure_contract::duration;
use tenure_contract::sandboxes::{ExecAnswer, ExecRequest};
use tenure_contract::worker_rpc as wire;
use tenure_rpc::{ExecEvent, ExecStream, OutputStream};

use super::errors::refuse;
use super::stream::text;
use super::{params, socket, stream as lines, whole};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::memory::Room;
use crate::request::RequestId;
use crate::sandboxes::audit::Operation;
use crate::sandboxes::calls::{Reached, fault};
use crate::sandboxes::watch::{Exec, Outcome};
use crate::state::App;

/// The worker's limit for a command.
const BODY_BYTES: usize = 4 << 20;

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
    let read = params::read_up_to(&app, &caller, &headers, body, BODY_BYTES);
    let (asked, room): (ExecRequest, _) = match read.await {
        Ok(read) => read,
        Err(fault) => return refuse(fault, &id),
    };
    if asked.stream {
        return lines::run(app, id, caller, sandbox, asked, room).await;
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
    let mut watched = Exec::begin(app, caller, sandbox, asked).await?;
    let timeout = watched.timeout;
    let started = watched.call(app, caller, |to| {
        let params = command(&to, asked, timeout);
        async move {
            // Only a stream ends with its reader: a worker finishes a plain call for a caller that comes back.
            if to.target.capabilities.has("stream_terminal") {
                return part.rpc.exec_stream(&to.target, to.call(), &params).await.map(Started::Stream);
            }
            part.rpc.exec(&to.target, to.call(), &params).await.map(|result| Started::Ended(Box::new(result)))
        }
    });
    let ended = async {
        match started.await? {
            Started::Ended(result) => {
                let mut room = part.bounds.room(&caller.share());
                room.enlarge(2 * (result.stdout.len() + result.stderr.len())).await?;
                Ok((*result, room))
            }
            Started::Stream(stream) => gather(part.bounds.room(&caller.share()), stream).await,
        }
    };
    let (result, room) = match ended.await {
        Ok(ended) => ended,
        Err(fault) => {
            watched.end(&Outcome::of_fault(&fault));
            return Err(fault);
        }
    };
    watched.end(&Outcome::Exited(Some(result.exit_code)));
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

enum Started {
    Stream(ExecStream),
    Ended(Box<wire::ExecResult>),
}

/// Reads the output of a command to its end, and keeps the beginning of each stream.
async fn gather(mut room: Room, mut stream: ExecStream) -> Result<(wire::ExecResult, Room), Fault> {
    let (mut kept, mut cut) = ([Vec::new(), Vec::new()], [false, false]);
    while let Some(event) = stream.next().await {
        match event.map_err(fault)? {
            ExecEvent::Output { stream, bytes } => {
                let index = usize::from(stream == OutputStream::Stderr);
                let free = wire::MAX_OUTPUT_BYTES - kept[index].len();
                cut[index] |= bytes.len() > free;
                kept[index].extend_from_slice(&bytes[..bytes.len().min(free)]);
                // As bytes, as text, and in the answer.
                let needed = 3 * (kept[0].len() + kept[1].len());
                room.enlarge(needed).await?;
            }
            ExecEvent::End { exit_code, duration_ms } => {
                let exit_code = exit_code.ok_or_else(|| {
                    SandboxFault::fault(SandboxFaultKind::Unavailable, "the worker did not tell the exit code")
                })?;
                let [(stdout, stdout_b64), (stderr, stderr_b64)] = kept.map(|kept| text(&kept));
                let [stdout_truncated, stderr_truncated] = cut;
                let result = wire::ExecResult {
                    exit_code,
                    stdout,
                    stderr,
                    stdout_b64,
                    stderr_b64,
                    stdout_truncated,
                    stderr_truncated,
                    duration_ms: duration_ms.unwrap_or_default(),
                    ..wire::ExecResult::default()
                };
                return Ok((result, room));
            }
        }
    }
    Err(SandboxFault::fault(SandboxFaultKind::Unavailable, "the output of the command ended too early"))
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
