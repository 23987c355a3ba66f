//! Files of any size, terminals, ports and snapshots.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Empty, Full};
use serde_json::{Value, json};
use tenure_rpc::wire::{Code, SnapshotParams, SocketInput, SocketStart};
use tenure_rpc::{Call, Client, Content, Error, ExecEvent, ExecSocket, Forwarded, Port, Target, new_request_id};
use tenure_testkit::wait_until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::kit::*;

const MIB: usize = 1 << 20;

fn pieces(count: usize) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    stream::iter((0..count).map(|n| Ok(Bytes::from(vec![n as u8; MIB]))))
}

/// Size, and the first byte of each MiB in order.
async fn measure(mut content: Content) -> (usize, bool) {
    let (mut size, mut right) = (0, true);
    while let Some(piece) = content.next().await {
        let piece = piece.unwrap();
        right &= piece.first() == Some(&((size / MIB) as u8));
        size += piece.len();
    }
    (size, right)
}

async fn write(client: &Client, target: &Target, path: &str, count: usize) -> Result<(), Error> {
    let id = new_request_id();
    let size = Some((count * MIB) as u64);
    client.write_file(target, Call::new(&id), &file(path), "0640", size, pieces(count)).await
}

#[tokio::test]
async fn a_large_file_is_streamed_both_ways() {
    let (_worker, client, target) = stage().await;
    write(&client, &target, "/workspace/big file & more", 100).await.unwrap();
    let place = file("/workspace/big file & more");
    let content = client.read_file(&target, Call::new(&new_request_id()), &place).await.unwrap();
    assert_eq!(content.size(), Some(100 * MIB as u64));
    assert_eq!(measure(content).await, (100 * MIB, true));
    let info = client.file_stat(&target, Call::new(&new_request_id()), &place).await.unwrap();
    assert_eq!(info.mode, "0640");
}

#[tokio::test]
async fn without_the_capability_a_file_is_sent_as_a_call_up_to_its_limit() {
    let (worker, client, target) = stage().await;
    let plain = worker.plain_target();
    write(&client, &plain, "/workspace/medium", 5).await.unwrap();
    let place = file("/workspace/medium");
    let content = client.read_file(&plain, Call::new(&new_request_id()), &place).await.unwrap();
    assert_eq!(content.size(), Some(5 * MIB as u64));
    assert_eq!(measure(content).await.0, 5 * MIB);
    let refused = write(&client, &plain, "/workspace/huge", 65).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Invalid), "{refused:?}");
    let id = new_request_id();
    let place = file("/workspace/huge");
    let refused = client.write_file(&plain, Call::new(&id), &place, "", None, pieces(65)).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Invalid), "{refused:?}");
    write(&client, &target, "/workspace/huge", 65).await.unwrap();
    let refused = client.read_file(&plain, Call::new(&new_request_id()), &file("/workspace/huge")).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Invalid), "{refused:?}");
}

#[tokio::test]
async fn content_that_fails_or_has_another_length_leaves_no_file() {
    let (_worker, client, target) = stage().await;
    let cut = || stream::iter([Ok(Bytes::from(vec![1; MIB])), Err("the user went away")]);
    let good = || stream::iter([Ok::<_, &str>(Bytes::from_static(b"12345"))]);
    let id = new_request_id();
    let place = file("/workspace/never");
    for error in [
        client.write_file(&target, Call::new(&id), &place, "", None, cut()).await.unwrap_err(),
        client.write_file(&target, Call::new(&id), &place, "", Some(4), good()).await.unwrap_err(),
        client.write_file(&target, Call::new(&id), &place, "", Some(6), good()).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Content { .. }), "{error:?}");
    }
    assert_eq!(exec(&client, &target, "ls; echo end").await, "end\n");
    // The worker may notice a moment later that an upload was cut.
    wait_until("nothing is left of the uploads", Duration::from_secs(60), async || {
        exec(&client, &target, "ls -A; echo end").await == "end\n"
    })
    .await;
}

#[tokio::test]
async fn failures_of_files_have_their_class() {
    let (_worker, client, target) = stage().await;
    let id = new_request_id();
    let missing = client.read_file(&target, Call::new(&id), &file("/workspace/none")).await.unwrap_err();
    assert_eq!(missing.code(), Some(Code::NotFound), "{missing:?}");
    let escaping = client.read_file(&target, Call::new(&id), &file("../../../etc/shadow")).await.unwrap_err();
    assert!(matches!(escaping.code(), Some(Code::Invalid | Code::NotFound)), "{escaping:?}");
    let mut other = file("/workspace/x");
    other.sandbox_id = "sb-9".to_owned();
    let id = new_request_id();
    let refused = client.write_file(&target, Call::new(&id), &other, "", None, pieces(3)).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::NotFound), "{refused:?}");
}

async fn open(client: &Client, target: &Target, text: &str, tty: bool) -> ExecSocket {
    let start = SocketStart { exec: command(text), tty, rows: Some(33), cols: Some(99), ..SocketStart::default() };
    client.exec_socket(target, Call::new(&new_request_id()), &start).await.unwrap()
}

async fn until(socket: &mut ExecSocket, part: &str) -> String {
    let mut text = String::new();
    while !text.contains(part) {
        match socket.next().await {
            Some(Ok(ExecEvent::Output { bytes, .. })) => text.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} after {text:?}"),
        }
    }
    text
}

fn stdin(text: &str) -> SocketInput {
    SocketInput::Stdin { data: Some(text.to_owned()), data_b64: None }
}

#[tokio::test]
async fn a_command_reads_stdin_over_a_socket() {
    let (_worker, client, target) = stage().await;
    let mut socket = open(&client, &target, "cat; exit 5", false).await;
    socket.send(&stdin("one\n")).await.unwrap();
    assert_eq!(until(&mut socket, "one\n").await, "one\n");
    let (mut sender, mut receiver) = socket.split();
    sender.send(&SocketInput::Stdin { data: None, data_b64: Some("/wD+".to_owned()) }).await.unwrap();
    sender.send(&SocketInput::StdinClose).await.unwrap();
    let mut bytes = Vec::new();
    loop {
        match receiver.next().await.unwrap().unwrap() {
            ExecEvent::Output { bytes: more, .. } => bytes.extend_from_slice(&more),
            ExecEvent::End { exit_code, .. } => {
                assert_eq!((bytes.as_slice(), exit_code), (b"\xff\0\xfe".as_slice(), Some(5)));
                break;
            }
        }
    }
    assert!(receiver.next().await.is_none());
}

#[tokio::test]
async fn large_input_reaches_a_command_that_reads_slowly() {
    let (_worker, client, target) = stage().await;
    let mut socket = open(&client, &target, "echo begun; sleep 0.3; wc -c", false).await;
    until(&mut socket, "begun").await;
    let (mut sender, mut receiver) = socket.split();
    let sending = async {
        for _ in 0..3 {
            sender.send(&stdin(&"x".repeat(3 * MIB))).await.unwrap();
        }
        sender.send(&SocketInput::StdinClose).await.unwrap();
    };
    let reading = async {
        let Some(Ok(ExecEvent::Output { bytes, .. })) = receiver.next().await else { panic!("no output") };
        assert_eq!(String::from_utf8_lossy(&bytes).trim(), (9 * MIB).to_string());
    };
    tokio::join!(sending, reading);
}

#[tokio::test]
async fn a_terminal_can_be_resized_and_a_signal_reaches_the_command() {
    let (_worker, client, target) = stage().await;
    let mut socket = open(&client, &target, "stty size; read x; stty size", true).await;
    until(&mut socket, "33 99").await;
    socket.send(&SocketInput::Resize { rows: 40, cols: 120 }).await.unwrap();
    socket.send(&stdin("\n")).await.unwrap();
    until(&mut socket, "40 120").await;
    let trapping = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done";
    let mut socket = open(&client, &target, trapping, false).await;
    until(&mut socket, "ready").await;
    socket.send(&SocketInput::Signal { signal: "INT".to_owned() }).await.unwrap();
    until(&mut socket, "caught").await;
}

#[tokio::test]
async fn a_dropped_socket_kills_the_command() {
    let (_worker, client, target) = stage().await;
    let mut socket = open(&client, &target, "sleep 600 & echo $!.; wait", false).await;
    let pid = until(&mut socket, ".").await.replace('.', "");
    assert!(runs(&pid));
    drop(socket);
    wait_until("the command is killed", Duration::from_secs(60), async || !runs(&pid)).await;
}

#[tokio::test]
async fn a_refused_socket_has_a_class() {
    let (worker, client, target) = stage().await;
    let mut start = SocketStart { exec: command("true"), ..SocketStart::default() };
    let id = new_request_id();
    let error = client.exec_socket(&worker.plain_target(), Call::new(&id), &start).await.unwrap_err();
    assert_eq!(error, Error::Unsupported { capability: "interactive" });
    let stale = tenure_rpc::wire::LeaseToken { holder_id: "worker-b".to_owned(), ..lease("sb-1", 1) };
    let mut socket = client.exec_socket(&target, Call::new(&id).with_lease(&stale), &start).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap_err().code(), Some(Code::LeaseStale));
    start.exec.sandbox_id = "sb-9".to_owned();
    let mut socket = client.exec_socket(&target, Call::new(&id), &start).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap_err().code(), Some(Code::NotFound));
}

/// A server on this machine. Sandboxes of the provider `process` share its ports.
async fn inside() -> u16 {
    let echo = async |request: Request| {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let mut names: Vec<&str> = parts.headers.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        let seen = json!({"verb": parts.method.as_str(), "path": parts.uri.to_string(), "headers": names,
            "body": String::from_utf8_lossy(&body)});
        (axum::http::StatusCode::UNAUTHORIZED, [("x-from", "sandbox")], seen.to_string()).into_response()
    };
    let socket = async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(|mut socket| async move {
            while let Some(Ok(Message::Text(text))) = socket.next().await {
                let answer = format!("echo {}", text.as_str());
                socket.send(Message::Text(answer.into())).await.unwrap();
            }
        })
    };
    let forged = async || ([("x-worker-error", "not_found")], "forged").into_response();
    let app = Router::new().route("/socket", get(socket)).route("/forged", get(forged)).fallback(any(echo));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    port
}

async fn spawned() -> (Worker, Client, Target, String) {
    let (worker, client) = (Worker::start().await, client());
    let target = worker.target();
    let runtime = spawn(&client, &target, "sb-1").await;
    (worker, client, target, runtime)
}

#[tokio::test]
async fn a_request_reaches_a_port_and_its_answer_comes_back_whatever_it_is() {
    let (_worker, client, target, runtime) = spawned().await;
    let port = Port { runtime_id: &runtime, port: inside().await };
    let request = hyper::Request::patch("/a/b%20c?q=1")
        .header("cookie", "s=1")
        .header("x-kept", "1")
        .header("x-worker-token", "forged")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .body(Full::new(Bytes::from_static(b"hello")))
        .unwrap();
    let Forwarded::Answer(answer) = client.proxy(&target, Call::new(&new_request_id()), port, request).await.unwrap()
    else {
        panic!("not an answer")
    };
    assert_eq!((answer.status().as_u16(), &answer.headers()["x-from"]), (401, &"sandbox".parse().unwrap()));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let seen: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&seen["verb"], &seen["path"], &seen["body"]),
        (&json!("PATCH"), &json!("/a/b%20c?q=1"), &json!("hello"))
    );
    let names: Vec<&str> = seen["headers"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(names.contains(&"x-kept"), "{names:?}");
    for name in ["cookie", "x-worker-id", "x-worker-token", "x-hop"] {
        assert!(!names.contains(&name), "{name} reached the sandbox");
    }
}

#[tokio::test]
async fn a_port_cannot_speak_for_the_worker() {
    let (_worker, client, target, runtime) = spawned().await;
    let port = Port { runtime_id: &runtime, port: inside().await };
    let request = hyper::Request::get("/forged").body(Empty::new()).unwrap();
    let answer = client.proxy(&target, Call::new(&new_request_id()), port, request).await;
    assert!(matches!(answer, Ok(Forwarded::Answer(_))), "{answer:?}");
}

#[tokio::test]
async fn an_upgrade_goes_through_a_port() {
    let (_worker, client, target, runtime) = spawned().await;
    let port = Port { runtime_id: &runtime, port: inside().await };
    let request = hyper::Request::get("/socket")
        .header("connection", "keep-alive, Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .body(Empty::new())
        .unwrap();
    let Forwarded::Upgraded(parts, mut stream) =
        client.proxy(&target, Call::new(&new_request_id()), port, request).await.unwrap()
    else {
        panic!("not an upgrade")
    };
    assert_eq!(parts.headers["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    // A masked text frame, with a mask of zeros.
    stream.write_all(b"\x81\x82\0\0\0\0hi").await.unwrap();
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).await.unwrap();
    assert_eq!(&frame, b"\x81\x07echo hi");
}

#[tokio::test]
async fn failures_of_ports_have_their_class() {
    let (worker, client, target, runtime) = spawned().await;
    // Bound and not listening: nobody else gets it meanwhile.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = bound.local_addr().unwrap().port();
    let ask = async |target: &Target, runtime_id: &str, port: u16| {
        let request = hyper::Request::get("/").body(Empty::new()).unwrap();
        client.proxy(target, Call::new(&new_request_id()), Port { runtime_id, port }, request).await.unwrap_err()
    };
    assert_eq!(ask(&target, &runtime, closed).await.code(), Some(Code::ProviderUnavailable));
    assert_eq!(ask(&target, "rt-none", 80).await.code(), Some(Code::NotFound));
    assert_eq!(ask(&target, "../../rpc", 80).await.code(), Some(Code::NotFound));
    assert_eq!(ask(&worker.plain_target(), &runtime, 80).await, Error::Unsupported { capability: "proxy" });
}

#[tokio::test]
async fn snapshots_are_stored_and_returned() {
    let (worker, client, target) = stage().await;
    let id = new_request_id();
    let stored = client.put_snapshot(&target, Call::new(&id), "snap-1", Some(3 * MIB as u64), pieces(3)).await.unwrap();
    assert_eq!((stored.snapshot_id.as_str(), stored.size_bytes), ("snap-1", 3 * MIB as u64));
    let snapshot = client.get_snapshot(&target, Call::new(&id), "snap-1").await.unwrap();
    assert_eq!(snapshot.sha256.as_ref(), Some(&stored.sha256));
    assert_eq!(measure(snapshot.content).await, (3 * MIB, true));
    let missing = client.get_snapshot(&target, Call::new(&id), "snap-2").await.unwrap_err();
    assert_eq!(missing.code(), Some(Code::NotFound));
    let invalid = client.get_snapshot(&target, Call::new(&id), "../node/log").await.unwrap_err();
    assert_eq!(invalid.code(), Some(Code::Invalid));
    let plain = worker.plain_target();
    let refused = client.get_snapshot(&plain, Call::new(&id), "snap-1").await.unwrap_err();
    assert_eq!(refused, Error::Unsupported { capability: "snapshots" });

    // The provider of this worker takes no snapshots: the methods reach it and it says so.
    let params =
        SnapshotParams { sandbox_id: "sb-1".to_owned(), snapshot_id: "snap-3".to_owned(), ..SnapshotParams::default() };
    let (id, lease) = (new_request_id(), lease("sb-1", 1));
    let error = client.snapshot(&target, Call::new(&id).with_lease(&lease), &params).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::Invalid), "{error:?}");
    let mut from = spawn_params("sb-5");
    from.snapshot = "snap-1".to_owned();
    let lease = super::kit::lease("sb-5", 1);
    let error = client.spawn(&plain, Call::new(&id).with_lease(&lease), &from).await.unwrap_err();
    assert_eq!(error, Error::Unsupported { capability: "snapshots" });
}
