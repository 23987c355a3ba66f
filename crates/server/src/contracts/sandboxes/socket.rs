//! A command with stdin, and a terminal if it wants one, over a WebSocket. The server translates between two documented
//! vocabularies and the worker's.

use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Extension, Path, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tenure_contract::sandboxes::{ExecStart, SandboxError};
use tenure_contract::worker_rpc::{SocketInput, SocketOutput, SocketStart, Vocabulary};
use tenure_rpc::{ExecEvent, ExecSocket, SocketReceiver, SocketSender};

use super::errors::{refuse, told, word};
use super::exec::{check, command, operation};
use super::stream::{class_word, text};
use crate::access::caller::Caller;
use crate::access::guard::User;
use crate::error::Fault;
use crate::request::RequestId;
use crate::sandboxes::calls::{fault, known};
use crate::sandboxes::watch::{Exec, Outcome};
use crate::state::App;

const MESSAGE_BYTES: usize = 4 << 20;
/// For the first message.
const START_WITHIN: Duration = Duration::from_secs(30);
const PING_EVERY: Duration = Duration::from_secs(15);
/// A client that answers no ping for this long is gone.
const SILENCE: Duration = Duration::from_secs(60);
/// For a client to take one message.
const SEND_WITHIN: Duration = Duration::from_secs(60);

/// Run a command with stdin over a WebSocket
///
/// The first message is a command, with `tty`, `rows` and `cols` for a terminal. Later messages are `stdin`, `stdin_close`, `resize` and
/// `signal`. The server sends output, and a last message with the exit code or an error.
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/exec/ws", operation_id = "exec_in_sandbox_over_websocket", tag = "sandboxes", params(("id" = String, Path)), security(("api_key" = ["api"])),
    responses((status = 101, description = "The connection is a WebSocket now"), (status = 404, body = SandboxError, description = "no such sandbox")))]
pub async fn open(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(sandbox): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let ready = async {
        let part = app.sandboxes()?;
        known(&sandbox)?;
        // A foreign sandbox is refused before the upgrade.
        part.manager.route(&sandbox, &caller.reach()).await?;
        let upgrade = upgrade.map_err(|rejection| Fault::malformed(rejection.body_text()))?;
        Ok::<_, Fault>((upgrade, part.bounds.place(&caller.share())?))
    };
    match ready.await {
        Err(fault) => refuse(fault, &id),
        Ok((upgrade, place)) => {
            let upgrade = upgrade.max_message_size(MESSAGE_BYTES).max_frame_size(MESSAGE_BYTES);
            upgrade.on_upgrade(move |socket| async move {
                let stopping = app.clone();
                tokio::select! {
                    () = serve(app, id, caller, sandbox, socket) => {}
                    () = stopping.engine.stopped() => {}
                }
                drop(place);
            })
        }
    }
}

async fn serve(app: App, id: RequestId, caller: Caller, sandbox: String, mut socket: WebSocket) {
    let first = tokio::time::timeout(START_WITHIN, first_message(&mut socket)).await;
    let Ok(Some(first)) = first else { return };
    let start: ExecStart = match serde_json::from_str(&first) {
        Ok(start) => start,
        Err(error) => {
            let fault = Fault::malformed(format!("the first message is not a command: {error}"));
            return fail(&mut socket, &fault, Vocabulary::Streams).await;
        }
    };
    let vocabulary = start.vocabulary();
    let operation = operation(&app, &caller, &id, "exec_stream", &sandbox, &start.exec);
    let (command, watched) = match begin(&app, &caller, &sandbox, &start).await {
        Ok(begun) => begun,
        Err(fault) => {
            let ended: Result<(), Fault> = operation.end(Err(fault)).await;
            if let Err(fault) = ended {
                fail(&mut socket, &fault, vocabulary).await;
            }
            return;
        }
    };
    let ended = converse(socket, command, vocabulary).await;
    let (outcome, refused) = match &ended {
        Ended::Exited(code) => (Outcome::Exited(*code), None),
        Ended::Failed(fault) => (Outcome::of_fault(fault), Some(word(fault))),
        Ended::Left => (Outcome::Canceled, Some("canceled")),
    };
    watched.end(&outcome);
    operation.end_soon(refused);
}

async fn begin(app: &App, caller: &Caller, sandbox: &str, start: &ExecStart) -> Result<(ExecSocket, Exec), Fault> {
    let part = app.sandboxes()?;
    check(&start.exec)?;
    let mut watched = Exec::begin(app, caller, sandbox, &start.exec).await?;
    let timeout = watched.timeout;
    let opened = watched.call(app, caller, |to| {
        let first = SocketStart {
            exec: command(&to, &start.exec, timeout),
            tty: start.tty,
            rows: start.rows,
            cols: start.cols,
            ..SocketStart::default()
        };
        async move { part.rpc.exec_socket(&to.target, to.call(), &first).await }
    });
    match opened.await {
        Ok(command) => Ok((command, watched)),
        Err(fault) => {
            watched.end(&Outcome::of_fault(&fault));
            Err(fault)
        }
    }
}

/// How a conversation came to its end.
enum Ended {
    Exited(Option<i32>),
    Failed(Fault),
    /// The client left, which ends the command.
    Left,
}

/// Passes output and input on until the command ends or the client is gone.
async fn converse(socket: WebSocket, command: ExecSocket, vocabulary: Vocabulary) -> Ended {
    let (mut sink, mut from_client) = socket.split();
    let (to_worker, mut from_worker) = command.split();
    let ended = tokio::select! {
        ended = tell(&mut sink, &mut from_worker, vocabulary) => ended,
        ended = listen(&mut from_client, to_worker) => ended,
    };
    if let Ended::Failed(fault) = &ended {
        let _ = send(&mut sink, &failure(fault, vocabulary)).await;
    }
    let close = Message::Close(Some(CloseFrame { code: close_code::NORMAL, reason: "".into() }));
    drop(tokio::time::timeout(SEND_WITHIN, sink.send(close)).await);
    ended
}

/// Sends what the command writes.
async fn tell(
    sink: &mut SplitSink<WebSocket, Message>,
    from_worker: &mut SocketReceiver,
    vocabulary: Vocabulary,
) -> Ended {
    loop {
        let event = tokio::select! {
            event = from_worker.next() => event,
            () = tokio::time::sleep(PING_EVERY) => {
                let ping = tokio::time::timeout(SEND_WITHIN, sink.send(Message::Ping(Bytes::new())));
                if !matches!(ping.await, Ok(Ok(()))) {
                    return Ended::Left;
                }
                continue;
            }
        };
        let (message, ended) = match event {
            None => return Ended::Failed(Fault::Internal),
            Some(Err(error)) => return Ended::Failed(fault(error)),
            Some(Ok(ExecEvent::Output { stream, bytes })) => (chunk(stream.as_str(), &bytes, vocabulary), None),
            Some(Ok(ExecEvent::End { exit_code, duration_ms })) => {
                (exit(exit_code, duration_ms, vocabulary), Some(Ended::Exited(exit_code)))
            }
        };
        if send(sink, &message).await.is_err() {
            return ended.unwrap_or(Ended::Left);
        }
        if let Some(ended) = ended {
            return ended;
        }
    }
}

/// Passes on what the client wants of the command. It ends when there is no client, or what it sends makes no sense.
async fn listen(from_client: &mut SplitStream<WebSocket>, mut to_worker: SocketSender) -> Ended {
    loop {
        // Pings are answered, so that a client that is there is heard.
        let message = match tokio::time::timeout(SILENCE, from_client.next()).await {
            Ok(Some(Ok(message))) => message,
            _ => return Ended::Left,
        };
        let input = match message {
            Message::Text(text) => serde_json::from_str::<SocketInput>(&text),
            Message::Binary(bytes) => serde_json::from_slice(&bytes),
            Message::Ping(_) | Message::Pong(_) => continue,
            Message::Close(_) => return Ended::Left,
        };
        let input = match input {
            Ok(input) => input,
            Err(error) => return Ended::Failed(Fault::malformed(format!("not a message of this contract: {error}"))),
        };
        // The worker says what is wrong on its own side.
        if to_worker.send(&input).await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn send(sink: &mut SplitSink<WebSocket, Message>, output: &SocketOutput) -> Result<(), ()> {
    let sending = sink.send(message(output));
    match tokio::time::timeout(SEND_WITHIN, sending).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(()),
    }
}

async fn fail(socket: &mut WebSocket, fault: &Fault, vocabulary: Vocabulary) {
    let sending = async {
        socket.send(message(&failure(fault, vocabulary))).await?;
        socket.send(Message::Close(Some(CloseFrame { code: close_code::NORMAL, reason: "".into() }))).await
    };
    drop(tokio::time::timeout(SEND_WITHIN, sending).await);
}

async fn first_message(socket: &mut WebSocket) -> Option<String> {
    loop {
        match socket.next().await?.ok()? {
            Message::Text(text) => return Some(text.as_str().to_owned()),
            Message::Binary(bytes) => return String::from_utf8(bytes.to_vec()).ok(),
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Close(_) => return None,
        }
    }
}

fn chunk(stream: &str, bytes: &[u8], vocabulary: Vocabulary) -> SocketOutput {
    let (data, data_b64) = text(bytes);
    let output = SocketOutput { data: Some(data), data_b64, ..SocketOutput::default() };
    match vocabulary {
        Vocabulary::Streams => SocketOutput { stream: Some(stream.to_owned()), ..output },
        Vocabulary::Types => SocketOutput { kind: Some(stream.to_owned()), ..output },
    }
}

fn exit(exit_code: Option<i32>, duration_ms: Option<u64>, vocabulary: Vocabulary) -> SocketOutput {
    let kind = match vocabulary {
        Vocabulary::Streams => "done",
        Vocabulary::Types => "exit",
    };
    SocketOutput { kind: Some(kind.to_owned()), exit_code, duration_ms, ..SocketOutput::default() }
}

fn failure(fault: &Fault, vocabulary: Vocabulary) -> SocketOutput {
    let (class, message) = told(fault);
    let kind = (vocabulary == Vocabulary::Types).then(|| "error".to_owned());
    // Clients of the second vocabulary show `data`.
    let data = kind.is_some().then(|| message.clone());
    SocketOutput { kind, data, error: Some(message), code: Some(class_word(class)), ..SocketOutput::default() }
}

fn message(output: &SocketOutput) -> Message {
    Message::Text(serde_json::to_string(output).unwrap_or_default().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{SandboxFault, SandboxFaultKind};

    #[test]
    fn both_vocabularies_are_spoken() {
        let json = |output: &SocketOutput| serde_json::to_string(output).unwrap();
        let fault = SandboxFault::fault(SandboxFaultKind::Timeout, "too long");
        for (vocabulary, expected) in [
            (
                Vocabulary::Streams,
                [
                    r#"{"stream":"stdout","data":"a"}"#,
                    r#"{"type":"done","exit_code":7,"duration_ms":3}"#,
                    r#"{"error":"too long","code":"TIMEOUT"}"#,
                ],
            ),
            (
                Vocabulary::Types,
                [
                    r#"{"type":"stdout","data":"a"}"#,
                    r#"{"type":"exit","exit_code":7,"duration_ms":3}"#,
                    r#"{"type":"error","data":"too long","error":"too long","code":"TIMEOUT"}"#,
                ],
            ),
        ] {
            let found =
                [chunk("stdout", b"a", vocabulary), exit(Some(7), Some(3), vocabulary), failure(&fault, vocabulary)];
            assert_eq!(found.iter().map(json).collect::<Vec<_>>(), expected);
        }
    }
}
