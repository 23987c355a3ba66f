//! Commands over WebSocket.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};

use super::kit::*;

struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    async fn open(worker: &Worker, first: Value) -> Self {
        let mut socket = Self::connect(worker).await.unwrap();
        socket.send(first).await;
        socket
    }

    async fn connect(worker: &Worker) -> Result<Self, tokio_tungstenite::tungstenite::Error> {
        let mut request = format!("ws://{}/rpc/exec/ws", worker.address).into_client_request().unwrap();
        request.headers_mut().insert("x-worker-id", WORKER.parse().unwrap());
        request.headers_mut().insert("x-worker-token", TOKEN.parse().unwrap());
        let stream = TcpStream::connect(worker.address).await.unwrap();
        let (socket, _) = client_async(request, stream).await?;
        Ok(Self(socket))
    }

    async fn send(&mut self, message: Value) {
        self.0.send(Message::text(message.to_string())).await.unwrap();
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            match self.0.next().await?.ok()? {
                Message::Text(text) => return Some(serde_json::from_str(&text).unwrap()),
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }

    /// Reads output until it has this text.
    async fn until(&mut self, part: &str) -> String {
        let mut text = String::new();
        while !text.contains(part) {
            let message = self.next().await.unwrap_or_else(|| panic!("ended after {text:?}"));
            assert!(message.get("error").is_none(), "{message}");
            text.push_str(message["data"].as_str().unwrap_or_default());
        }
        text
    }

    /// All that follows.
    async fn rest(mut self) -> (String, Value) {
        let (mut text, mut last) = (String::new(), Value::Null);
        while let Some(message) = self.next().await {
            text.push_str(message["data"].as_str().unwrap_or_default());
            last = message;
        }
        (text, last)
    }
}

async fn with_sandbox() -> Worker {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    worker
}

fn exec(command: &str) -> Value {
    json!({"sandbox_id": "sb-1", "provider": "mock", "command": command})
}

#[tokio::test]
async fn stdin_reaches_the_command_until_it_is_closed() {
    let worker = with_sandbox().await;
    let mut socket = Socket::open(&worker, exec("cat; exit 5")).await;
    socket.send(json!({"type": "stdin", "data": "one\n"})).await;
    assert_eq!(socket.until("one\n").await, "one\n");
    socket.send(json!({"type": "stdin", "data_b64": "dHdvCg=="})).await;
    assert_eq!(socket.until("two\n").await, "two\n");
    socket.send(json!({"type": "stdin_close"})).await;
    let (_, last) = socket.rest().await;
    assert_eq!((&last["type"], &last["exit_code"]), (&json!("done"), &json!(5)));
    assert!(last["duration_ms"].is_u64());
}

#[tokio::test]
async fn a_terminal_has_a_size_that_can_change() {
    let worker = with_sandbox().await;
    let mut first = exec("stty size; read x; stty size; test -t 0 && echo terminal");
    first.as_object_mut().unwrap().extend(json!({"tty": true, "rows": 33, "cols": 99}).as_object().unwrap().clone());
    let mut socket = Socket::open(&worker, first).await;
    socket.until("33 99").await;
    socket.send(json!({"type": "resize", "rows": 40, "cols": 120})).await;
    socket.send(json!({"type": "stdin", "data": "\n"})).await;
    let resized = socket.until("40 120").await;
    let (rest, last) = socket.rest().await;
    assert!(format!("{resized}{rest}").contains("terminal"), "{resized:?} {rest:?}");
    assert_eq!(last["exit_code"], 0);
}

#[tokio::test]
async fn a_signal_reaches_the_command_in_either_spelling() {
    let worker = with_sandbox().await;
    for signal in ["INT", "SIGINT"] {
        let command = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done";
        let mut socket = Socket::open(&worker, exec(command)).await;
        socket.until("ready").await;
        socket.send(json!({"type": "signal", "signal": signal})).await;
        let (text, last) = socket.rest().await;
        assert!(text.contains("caught"), "{text}");
        assert_eq!(last["exit_code"], 9);
    }
}

#[tokio::test]
async fn a_start_message_selects_the_other_vocabulary() {
    let worker = with_sandbox().await;
    let mut first = exec("echo out; echo err >&2; exit 2");
    first["type"] = json!("start");
    let mut socket = Socket::open(&worker, first).await;
    let (mut seen, mut last) = (Vec::new(), Value::Null);
    while let Some(message) = socket.next().await {
        seen.push((message["type"].clone(), message["data"].clone()));
        last = message;
    }
    assert!(seen.contains(&(json!("stdout"), json!("out\n"))) && seen.contains(&(json!("stderr"), json!("err\n"))));
    assert_eq!((&last["type"], &last["exit_code"]), (&json!("exit"), &json!(2)));
    let mut first = exec("true");
    (first["type"], first["sandbox_id"]) = (json!("start"), json!("sb-2"));
    let (_, last) = Socket::open(&worker, first).await.rest().await;
    assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!("not_found")));
}

#[tokio::test]
async fn a_closed_connection_kills_the_command() {
    let worker = with_sandbox().await;
    let mut socket = Socket::open(&worker, exec("sleep 600 & echo $!.; wait")).await;
    let pid = socket.until(".").await.replace('.', "");
    assert!(runs(&pid));
    drop(socket);
    wait_until("the command is gone", || !runs(&pid)).await;
}

#[tokio::test]
async fn what_is_not_a_message_ends_the_command_with_the_reason() {
    let worker = with_sandbox().await;
    for (first, later) in [
        (exec("sleep 600"), json!({"type": "dance"})),
        (exec("sleep 600"), json!({"type": "signal", "signal": "SEGV"})),
        (exec("sleep 600"), json!({"type": "stdin", "data_b64": "?"})),
        (json!({"sandbox_id": "sb-1"}), json!({"type": "stdin_close"})),
        (json!({"sandbox_id": "sb-1", "command": "true", "mode": "zsh"}), json!({"type": "stdin_close"})),
    ] {
        let mut socket = Socket::open(&worker, first.clone()).await;
        socket.send(later.clone()).await;
        let (_, last) = socket.rest().await;
        assert_eq!(last["code"], "invalid", "{first} {later}: {last}");
    }
}

#[tokio::test]
async fn a_lease_in_the_first_message_is_checked() {
    let worker = with_sandbox().await;
    let mut first = exec("true");
    first["lease"] = lease_of("sb-1", "worker-b", 1, 60);
    let (_, last) = Socket::open(&worker, first).await.rest().await;
    assert_eq!(last["code"], "lease_stale", "{last}");
}

#[tokio::test]
async fn sessions_are_bounded_and_their_room_is_returned() {
    let worker = Worker::with(Options::settings(|settings| settings.max_connections = 3)).await;
    worker.spawn("sb-1").await;
    let mut sockets = Vec::new();
    for _ in 0..3 {
        let mut socket = Socket::open(&worker, exec("echo begun; cat")).await;
        socket.until("begun").await;
        sockets.push(socket);
    }
    match Socket::connect(&worker).await {
        Err(tokio_tungstenite::tungstenite::Error::Http(response)) => assert_eq!(response.status(), 503),
        other => panic!("{:?}", other.map(|_| "a fourth session")),
    }
    sockets.pop();
    for tries in 0.. {
        if Socket::connect(&worker).await.is_ok() {
            break;
        }
        assert!(tries < 1000, "the room of a closed session was not returned");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
