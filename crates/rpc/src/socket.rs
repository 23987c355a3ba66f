//! `GET /rpc/exec/ws`: a command with stdin, and a terminal if it wants one.

use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use tenure_contract::worker_rpc::{Chunk, Code, SocketInput, SocketOutput, SocketStart};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::error::{chain, shown};
use crate::exchange::Outgoing;
use crate::methods::{bounded_exec, observe, supports};
use crate::proxy::{Upgraded, upgraded};
use crate::stream::output;
use crate::{Call, Client, Error, ExecEvent, Target};

/// The largest message of a worker; its own limit is half of it.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// What may wait to be written: more than the largest message that a worker accepts, 4 MiB.
const MAX_WRITE_BYTES: usize = 8 << 20;

type Socket = WebSocketStream<Upgraded>;

/// A command with stdin. Dropping it closes the connection, and the worker kills the command.
#[derive(Debug)]
pub struct ExecSocket {
    sender: SocketSender,
    receiver: SocketReceiver,
}

/// The half that acts on the command.
#[derive(Debug)]
pub struct SocketSender {
    sink: SplitSink<Socket, Message>,
    stalled: Duration,
}

/// The half that reads what the command writes. It must be read for the connection to stay alive.
#[derive(Debug)]
pub struct SocketReceiver {
    stream: SplitStream<Socket>,
    idle: Duration,
    ended: bool,
}

impl Client {
    /// Starts a command with stdin. The lease of the call is sent with it. Needs the capability `interactive`.
    pub async fn exec_socket(&self, target: &Target, call: Call<'_>, start: &SocketStart) -> Result<ExecSocket, Error> {
        supports(target, "interactive")?;
        let started = Instant::now();
        let socket = self.open_socket(target, call, start).await;
        observe("GET /rpc/exec/ws", target, call, started, socket.as_ref().err());
        socket
    }

    async fn open_socket(&self, target: &Target, call: Call<'_>, start: &SocketStart) -> Result<ExecSocket, Error> {
        let live = self.live();
        let times = &live.settings.times;
        let key = generate_key();
        let mut outgoing = Outgoing::session(Method::GET, "/rpc/exec/ws".to_owned(), call.request_id);
        let headers = &mut outgoing.headers;
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        let sent_key =
            HeaderValue::from_str(&key).map_err(|_| Error::unsent("the key of the socket is not a header"))?;
        headers.insert(header::SEC_WEBSOCKET_KEY, sent_key);
        let deadline = Instant::now() + times.call;
        let response = self.exchange(&live, target, outgoing, Some(deadline)).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let error = self.succeeded(&live, target, call, response).await.err();
            return Err(error.unwrap_or_else(|| Error::unknown("the worker did not open a socket")));
        }
        let accepted = response.headers().get(header::SEC_WEBSOCKET_ACCEPT).map(HeaderValue::as_bytes);
        if accepted != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
            return Err(Error::unknown("the worker opened a socket for somebody else"));
        }
        let (_, stream) = upgraded(response, times.connect).await?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES))
            .max_write_buffer_size(MAX_WRITE_BYTES)
            .write_buffer_size(0);
        let socket = WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await;
        let (sink, stream) = socket.split();
        let sender = SocketSender { sink, stalled: times.stalled };
        let receiver = SocketReceiver { stream, idle: times.stream_idle, ended: false };
        let mut socket = ExecSocket { sender, receiver };
        // The vocabulary is a matter between a client and the control plane.
        let exec = bounded_exec(&live, &start.exec)?.0.into_owned();
        let first = SocketStart { kind: String::new(), lease: call.lease.cloned(), exec, ..start.clone() };
        socket.sender.message(&first).await?;
        Ok(socket)
    }
}

impl ExecSocket {
    pub fn split(self) -> (SocketSender, SocketReceiver) {
        (self.sender, self.receiver)
    }

    pub async fn send(&mut self, input: &SocketInput) -> Result<(), Error> {
        self.sender.send(input).await
    }

    /// See [`SocketReceiver::next`].
    pub async fn next(&mut self) -> Option<Result<ExecEvent, Error>> {
        self.receiver.next().await
    }
}

impl SocketSender {
    /// Waits while the command does not read what it was sent before.
    pub async fn send(&mut self, input: &SocketInput) -> Result<(), Error> {
        self.message(input).await
    }

    async fn message(&mut self, message: &impl serde::Serialize) -> Result<(), Error> {
        let text = serde_json::to_string(message).map_err(|error| Error::invalid(format!("not JSON: {error}")))?;
        self.sink.send(Message::text(text)).await.map_err(|error| lost(&error))
    }

    /// Closes the connection: the worker kills the command.
    pub async fn close(mut self) {
        drop(timeout(self.stalled, self.sink.close()).await);
    }
}

impl SocketReceiver {
    /// The next event; none after [`ExecEvent::End`] or an error. May be canceled.
    pub async fn next(&mut self) -> Option<Result<ExecEvent, Error>> {
        if self.ended {
            return None;
        }
        let event = self.event().await;
        self.ended = !matches!(event, Ok(ExecEvent::Output { .. }));
        Some(event)
    }

    async fn event(&mut self) -> Result<ExecEvent, Error> {
        loop {
            let message = match timeout(self.idle, self.stream.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return Err(lost(&error)),
                Ok(None) => return Err(truncated()),
                Err(_) => {
                    return Err(Error::unknown(format!("the socket was silent for {} s", self.idle.as_secs_f32())));
                }
            };
            let text = match message {
                Message::Text(text) => text,
                // The library answers these.
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => return Err(truncated()),
                Message::Binary(_) | Message::Frame(_) => {
                    return Err(Error::unknown("the socket sent bytes, not text"));
                }
            };
            let read: SocketOutput = serde_json::from_str(&text)
                .map_err(|error| Error::unknown(format!("a message of the socket is not of the contract: {error}")))?;
            return meaning(read);
        }
    }
}

fn meaning(message: SocketOutput) -> Result<ExecEvent, Error> {
    if let Some(error) = message.error.filter(|error| !error.is_empty()) {
        let code = Code::of(message.code.as_deref(), StatusCode::OK.as_u16());
        return Err(Error::Failed { code, message: shown(&error) });
    }
    match (message.kind.as_deref(), message.stream) {
        (Some("done" | "exit"), _) => {
            Ok(ExecEvent::End { exit_code: message.exit_code, duration_ms: message.duration_ms })
        }
        (_, Some(stream)) => {
            output(Chunk { stream, data: message.data.unwrap_or_default(), data_b64: message.data_b64 })
        }
        _ => Err(Error::unknown("a message of the socket has no meaning")),
    }
}

fn truncated() -> Error {
    metrics::counter!("tenure_stream_truncated_total").increment(1);
    Error::unknown("the socket ended without its last message")
}

fn lost(error: &tungstenite::Error) -> Error {
    Error::unknown(format!("the socket broke: {}", chain(error)))
}
