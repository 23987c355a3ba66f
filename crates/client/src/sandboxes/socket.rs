//! A command with input, a terminal and signals, over WebSocket.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use reqwest::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use reqwest::{Method, Upgraded};
use tenure_contract::sandboxes::ExecStart;
use tenure_contract::worker_rpc::{SocketInput, SocketOutput};
use tokio::sync::Mutex;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::exec::{network, send};
use super::{ExecEvent, Sandbox};
use crate::error::ClientError;

/// After so long a silence a sign of life is asked for.
const PING_AFTER: Duration = Duration::from_secs(20);
/// So many unanswered ones mean that the connection is dead.
const PINGS_MAX: u32 = 3;
/// Time for the server to begin, and for each message to be sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// What one message carries of the input.
const INPUT_BYTES: usize = 256 << 10;

type Sink = SplitSink<WebSocketStream<Upgraded>, Message>;

impl Sandbox {
    /// Starts a command that can be written to. Dropping both halves ends the command.
    pub async fn open(&self, start: &ExecStart) -> Result<(ExecInput, ExecOutput), ClientError> {
        // One of the two vocabularies of the contract: that of the streams.
        let start = ExecStart { kind: String::new(), ..start.clone() };
        let url = self.url_of(&["exec", "ws"]);
        let operation = format!("GET {}", url.path());
        let socket = tokio::time::timeout(SEND_TIMEOUT, self.connect(&operation, url))
            .await
            .map_err(|late| ClientError::Network { operation: operation.clone(), source: Box::new(late) })??;
        let (sink, stream) = socket.split();
        let sink = Arc::new(Mutex::new(sink));
        let input = ExecInput { operation: operation.clone(), sink: Arc::clone(&sink) };
        input.send(&start).await?;
        Ok((input, ExecOutput { operation, sink, stream, done: false }))
    }

    async fn connect(&self, operation: &str, url: reqwest::Url) -> Result<WebSocketStream<Upgraded>, ClientError> {
        let key = generate_key();
        let request = self.client.request(Method::GET, url);
        let request = request.header(CONNECTION, "Upgrade").header(UPGRADE, "websocket");
        let request = request.header(SEC_WEBSOCKET_VERSION, "13").header(SEC_WEBSOCKET_KEY, &key);
        let response = send(operation, request).await?;
        let accept = response.headers().get(SEC_WEBSOCKET_ACCEPT).map(|value| value.as_bytes().to_vec());
        if response.status().as_u16() != 101 || accept != Some(derive_accept_key(key.as_bytes()).into_bytes()) {
            return Err(ClientError::Network {
                operation: operation.to_owned(),
                source: "the server, or a proxy before it, does not speak WebSocket".into(),
            });
        }
        let upgraded = response.upgrade().await.map_err(|source| network(operation, source))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
    }
}

/// The way to a command.
#[derive(Debug, Clone)]
pub struct ExecInput {
    operation: String,
    sink: Arc<Mutex<Sink>>,
}

impl ExecInput {
    /// Writes to the standard input. Waits while the command does not read.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), ClientError> {
        for piece in bytes.chunks(INPUT_BYTES) {
            let message = match std::str::from_utf8(piece) {
                Ok(text) => SocketInput::Stdin { data: Some(text.to_owned()), data_b64: None },
                Err(_) => SocketInput::Stdin { data: None, data_b64: Some(STANDARD.encode(piece)) },
            };
            self.send(&message).await?;
        }
        Ok(())
    }

    /// Ends the standard input.
    pub async fn close(&self) -> Result<(), ClientError> {
        self.send(&SocketInput::StdinClose).await
    }

    pub async fn resize(&self, rows: u16, cols: u16) -> Result<(), ClientError> {
        self.send(&SocketInput::Resize { rows, cols }).await
    }

    /// `INT`, `TERM` …
    pub async fn signal(&self, name: &str) -> Result<(), ClientError> {
        self.send(&SocketInput::Signal { signal: name.to_owned() }).await
    }

    async fn send(&self, message: &impl serde::Serialize) -> Result<(), ClientError> {
        let text = serde_json::to_string(message)
            .map_err(|source| ClientError::Encode { operation: self.operation.clone(), source })?;
        let mut sink = self.sink.lock().await;
        sink.send(Message::text(text)).await.map_err(|source| broken(&self.operation, source))
    }
}

/// The way from a command.
#[derive(Debug)]
pub struct ExecOutput {
    operation: String,
    sink: Arc<Mutex<Sink>>,
    stream: SplitStream<WebSocketStream<Upgraded>>,
    done: bool,
}

impl ExecOutput {
    /// The next output; after [`ExecEvent::Exited`] and after an error there is nothing more.
    pub async fn next(&mut self) -> Option<Result<ExecEvent, ClientError>> {
        let mut pings = 0;
        while !self.done {
            let Ok(message) = tokio::time::timeout(PING_AFTER, self.stream.next()).await else {
                if pings == PINGS_MAX {
                    self.done = true;
                    return Some(Err(self.truncated()));
                }
                pings += 1;
                self.ping().await;
                continue;
            };
            pings = 0;
            let event = match message {
                Some(Ok(Message::Text(text))) => self.read(text.as_bytes()),
                Some(Ok(Message::Binary(bytes))) => self.read(&bytes),
                Some(Ok(Message::Close(_)) | Err(_)) | None => Some(Err(self.truncated())),
                Some(Ok(_)) => None,
            };
            if let Some(event) = event {
                self.done = !matches!(event, Ok(ExecEvent::Stdout(_) | ExecEvent::Stderr(_)));
                return Some(event);
            }
        }
        None
    }

    /// If the other side does not even take it, the next silence says so. A writer that waits has the sink: data under way
    /// is a sign of life that is asked for already.
    async fn ping(&self) {
        if let Ok(mut sink) = self.sink.try_lock() {
            let _ = tokio::time::timeout(SEND_TIMEOUT, sink.send(Message::Ping(bytes::Bytes::new()))).await;
        }
    }

    fn read(&self, message: &[u8]) -> Option<Result<ExecEvent, ClientError>> {
        let message: SocketOutput = match serde_json::from_slice(message) {
            Ok(message) => message,
            Err(source) => return Some(Err(ClientError::Decode { operation: self.operation.clone(), source })),
        };
        if let Some(error) = message.error.filter(|error| !error.is_empty()) {
            return Some(Err(ClientError::from_line(error, message.code.as_deref())));
        }
        if message.kind.as_deref() == Some("done") {
            return Some(Ok(ExecEvent::Exited { exit_code: message.exit_code, duration_ms: message.duration_ms }));
        }
        let stream = message.stream.unwrap_or_default();
        ExecEvent::output(&stream, message.data.unwrap_or_default(), message.data_b64.as_deref()).map(Ok)
    }

    fn truncated(&self) -> ClientError {
        ClientError::Truncated { operation: self.operation.clone() }
    }
}

fn broken(operation: &str, source: SocketError) -> ClientError {
    ClientError::Network { operation: operation.to_owned(), source: Box::new(source) }
}
