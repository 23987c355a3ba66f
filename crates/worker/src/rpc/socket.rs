//! `GET /rpc/exec/ws`: a command with stdin, and a terminal if it wants one.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tenure_contract::duration;
use tenure_contract::worker_rpc::{Chunk, SocketInput, SocketOutput, SocketStart, Vocabulary};
use tenure_sandbox::{Control, Signal, Terminal};
use tokio::sync::mpsc;

use super::call::command;
use super::methods::within;
use super::output::{Item, Reading};
use super::refusal::{Class, Refusal};
use super::state::Rpc;
use super::stream::failed;
use crate::node::{Lease, Target};

/// The largest message of a client.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Messages that wait while the command does not read its stdin. Then the connection is not read any more.
const WAITING_INPUTS: usize = 16;
const DEFAULT_TERMINAL: Terminal = Terminal { rows: 24, columns: 80 };

pub(super) async fn exec(
    State(rpc): State<Arc<Rpc>>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    if let Err(refusal) = rpc.route_caller(&headers, "worker:exec") {
        return rpc.route_refusal(&headers, &refusal);
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade.max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES),
        Err(rejection) => return rejection.into_response(),
    };
    let session = match rpc.session() {
        Ok(session) => session,
        Err(refusal) => return rpc.route_refusal(&headers, &refusal),
    };
    upgrade.on_upgrade(move |socket| async move {
        rpc.exec_socket(socket).await;
        drop(session);
    })
}

/// What a client wants to do with a running command.
enum Input {
    Message(SocketInput),
    /// The client is gone, or sent something that is not a message.
    End(Option<Refusal>),
}

impl Rpc {
    async fn exec_socket(self: Arc<Self>, mut socket: WebSocket) {
        let first = tokio::time::timeout(self.settings.times.body, first_message(&mut socket)).await;
        let Ok(Some(first)) = first else { return };
        let (vocabulary, started) = match read_start(&first) {
            Ok(start) => (start.vocabulary(), self.start(start).await),
            Err(refusal) => (Vocabulary::Streams, Err(refusal)),
        };
        match started {
            Ok((reading, control, timeout)) => self.converse(socket, reading, control, vocabulary, &timeout).await,
            Err(refusal) => {
                let _ = socket.send(message(&failure(&refusal, vocabulary))).await;
                close(&mut socket).await;
            }
        }
    }

    async fn start(&self, start: SocketStart) -> Result<(Reading, Arc<dyn Control>, String), Refusal> {
        let target = Target {
            sandbox_id: start.exec.sandbox_id.trim().to_owned(),
            runtime_id: start.exec.runtime_id.trim().to_owned(),
            provider: start.exec.provider.trim().to_owned(),
        };
        let mut command = command(start.exec, &self.settings)?;
        command.stdin = true;
        command.terminal = start.tty.then(|| Terminal {
            rows: start.rows.unwrap_or(DEFAULT_TERMINAL.rows),
            columns: start.cols.unwrap_or(DEFAULT_TERMINAL.columns),
        });
        let lease = start.lease.map(|token| Lease {
            resource_id: token.resource_id,
            holder_id: token.holder_id,
            generation: token.generation,
            expires_at: token.expires_at,
        });
        self.thawed(&target).await?;
        let held = self.held(lease.as_ref(), &target).await?;
        let timeout = command.timeout.map(duration::canonical).unwrap_or_default();
        let starting = held.provider.exec(&held.runtime_id, command);
        let execution = within(self.settings.times.call, "the start of the command", starting).await??;
        let control = execution.control();
        Ok((Reading::new(execution, &self.settings.times), control, timeout))
    }

    /// Passes output and input on until the command ends or the client is gone, which kills the command.
    async fn converse(
        &self,
        socket: WebSocket,
        mut reading: Reading,
        control: Arc<dyn Control>,
        vocabulary: Vocabulary,
        timeout: &str,
    ) {
        let (mut sink, mut stream) = socket.split();
        let (inputs, todo) = mpsc::channel(WAITING_INPUTS);
        // Input is applied beside the output: a command that reads slowly must not hold up what it writes.
        let listening = async {
            while let Some(input) = next_input(&mut stream).await {
                let end = matches!(input, Input::End(_));
                if inputs.send(input).await.is_err() || end {
                    break;
                }
            }
        };
        let (gone, mut lost) = mpsc::channel(1);
        let applying = apply(todo, control, gone);
        let talking = async {
            loop {
                let item = tokio::select! {
                    item = reading.next() => item,
                    refusal = lost.recv() => {
                        if let Some(Some(refusal)) = refusal {
                            let _ = sink.send(message(&failure(&refusal, vocabulary))).await;
                        }
                        break;
                    }
                };
                let (output, end) = match item {
                    None => break,
                    Some(Item::Silence) => (Message::Ping(Bytes::new()), false),
                    Some(Item::Chunk(chunk)) => (message(&chunk_output(chunk, vocabulary)), false),
                    Some(Item::Exited(exit)) => {
                        let duration_ms = u64::try_from(exit.usage.wall.as_millis()).unwrap_or(u64::MAX);
                        (message(&exit_output(exit.code, duration_ms, vocabulary)), true)
                    }
                    Some(Item::Failed(error)) => (message(&failure(&failed(error, timeout), vocabulary)), true),
                };
                if sink.send(output).await.is_err() || end {
                    break;
                }
            }
            let _ = sink.send(Message::Close(Some(normal()))).await;
        };
        // The other two only ever end early.
        tokio::select! {
            () = talking => {}
            () = async { tokio::join!(listening, applying); std::future::pending::<()>().await } => {}
        }
    }
}

/// Acts on the command for the client. Tells `gone` when there is nobody left to act for.
async fn apply(mut todo: mpsc::Receiver<Input>, control: Arc<dyn Control>, gone: mpsc::Sender<Option<Refusal>>) {
    let mut end = None;
    while let Some(input) = todo.recv().await {
        let done = match input {
            Input::End(refusal) => {
                end = refusal;
                break;
            }
            Input::Message(SocketInput::Stdin { data, data_b64 }) => match stdin(data, data_b64) {
                Ok(bytes) => control.write_stdin(bytes).await,
                Err(refusal) => {
                    end = Some(refusal);
                    break;
                }
            },
            Input::Message(SocketInput::StdinClose) => control.close_stdin().await,
            Input::Message(SocketInput::Resize { rows, cols }) => {
                control.resize(Terminal { rows, columns: cols }).await
            }
            Input::Message(SocketInput::Signal { signal }) => match Signal::parse(&signal) {
                Ok(signal) => control.signal(signal).await,
                Err(error) => Err(error),
            },
        };
        if let Err(error) = done {
            end = Some(error.into());
            break;
        }
    }
    drop(gone.send(end).await);
}

fn stdin(data: Option<String>, data_b64: Option<String>) -> Result<Bytes, Refusal> {
    match data_b64 {
        Some(exact) => {
            STANDARD.decode(exact).map(Bytes::from).map_err(|_| Refusal::invalid("data_b64 is not padded base64"))
        }
        None => Ok(data.unwrap_or_default().into()),
    }
}

async fn next_input(stream: &mut (impl StreamExt<Item = Result<Message, axum::Error>> + Unpin)) -> Option<Input> {
    loop {
        let text = match stream.next().await? {
            Ok(Message::Text(text)) => text.as_str().to_owned(),
            Ok(Message::Binary(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Ok(Message::Ping(_) | Message::Pong(_)) => continue,
            Ok(Message::Close(_)) | Err(_) => return Some(Input::End(None)),
        };
        let read = serde_json::from_str::<SocketInput>(&text);
        return Some(match read {
            Ok(input) => Input::Message(input),
            Err(error) => Input::End(Some(Refusal::invalid(format!("not a message of this contract: {error}")))),
        });
    }
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

fn read_start(text: &str) -> Result<SocketStart, Refusal> {
    serde_json::from_str(text).map_err(|error| Refusal::invalid(format!("the first message is not a command: {error}")))
}

fn chunk_output(chunk: Chunk, vocabulary: Vocabulary) -> SocketOutput {
    let Chunk { stream, data, data_b64 } = chunk;
    let output = SocketOutput { data: Some(data), data_b64, ..SocketOutput::default() };
    match vocabulary {
        Vocabulary::Streams => SocketOutput { stream: Some(stream), ..output },
        Vocabulary::Types => SocketOutput { kind: Some(stream), ..output },
    }
}

fn exit_output(exit_code: i32, duration_ms: u64, vocabulary: Vocabulary) -> SocketOutput {
    let kind = match vocabulary {
        Vocabulary::Streams => "done",
        Vocabulary::Types => "exit",
    };
    let (kind, exit_code, duration_ms) = (Some(kind.to_owned()), Some(exit_code), Some(duration_ms));
    SocketOutput { kind, exit_code, duration_ms, ..SocketOutput::default() }
}

fn failure(refusal: &Refusal, vocabulary: Vocabulary) -> SocketOutput {
    let code = match refusal.class {
        Class::Api(code) => code,
        Class::Call(code) => code.as_str(),
    };
    let kind = (vocabulary == Vocabulary::Types).then(|| "error".to_owned());
    let (error, code) = (Some(refusal.message.clone()), Some(code.to_owned()));
    // Clients of the second vocabulary show `data`.
    let data = kind.is_some().then(|| refusal.message.clone());
    SocketOutput { kind, error, code, data, ..SocketOutput::default() }
}

fn message(output: &SocketOutput) -> Message {
    let text = serde_json::to_string(output).unwrap_or_else(|error| panic!("messages are plain JSON: {error}"));
    Message::Text(text.into())
}

fn normal() -> CloseFrame {
    CloseFrame { code: close_code::NORMAL, reason: "".into() }
}

async fn close(socket: &mut WebSocket) {
    let _ = socket.send(Message::Close(Some(normal()))).await;
    // Until the client has read the last message, or for a moment.
    let reading = async { while let Some(Ok(_)) = socket.next().await {} };
    drop(tokio::time::timeout(Duration::from_secs(1), reading).await);
}
