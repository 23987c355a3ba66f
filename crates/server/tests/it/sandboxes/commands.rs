//! Commands: to their end, as a stream, over a WebSocket.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tenure_testkit::wait_until;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::kit::Plane;
use crate::cases;
use crate::harness::SOON;

cases!(
    Plane,
    on_sqlite: [
        commands_take_arguments_variables_and_a_folder,
        odd_commands_are_refused,
        a_command_that_takes_too_long_is_a_timeout,
        bytes_that_are_not_text_arrive_exactly,
        a_client_that_hangs_up_ends_its_command,
        a_stream_whose_worker_dies_ends_with_an_error,
        a_socket_carries_input_and_both_vocabularies,
        a_socket_refuses_what_is_no_message,
        large_output_reaches_a_slow_reader_whole,
    ],
    on_both_stores: [output_comes_line_by_line_before_the_command_ends],
);

async fn commands_take_arguments_variables_and_a_folder(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let path = format!("/api/v1/sandboxes/{sandbox}/exec");
    let shell = json!({"command": "echo \"$A\"", "args": ["b c", "$D"], "env": {"A": "a"}, "timeout": 0, "mode": ""});
    assert_eq!(plane.server.post(&path, shell).await.ok()["stdout"], "a b c $D\n");
    let direct = json!({"command": "printf", "args": ["%s|", "x y", "$HOME"], "mode": "argv"});
    assert_eq!(plane.server.post(&path, direct).await.ok()["stdout"], "x y|$HOME|");
    plane.exec(&sandbox, "mkdir -p sub && touch sub/here").await;
    let listed = plane.server.post(&path, json!({"command": "ls", "workdir": "/workspace/sub"})).await.ok();
    assert_eq!(listed["stdout"], "here\n");
}

async fn odd_commands_are_refused(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let path = format!("/api/v1/sandboxes/{sandbox}/exec");
    for body in [
        json!({}),
        json!({"command": "  "}),
        json!({"command": 7}),
        json!({"command": "ls", "mode": "dance"}),
        json!({"command": "ls", "timeout": "soon"}),
        json!({"command": "ls", "timeout": "-1s"}),
        json!({"command": "ls", "args": {}}),
        json!({"command": "ls", "stream": "yes"}),
        json!(["ls"]),
    ] {
        let refused = plane.server.post(&path, body.clone()).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.body["code"]),
            (400, &json!("BAD_REQUEST")),
            "{body}: {}",
            refused.body
        );
    }
    for sandbox in ["sb-00000000", "sb-0000000g", "..", "sb-00000000%2f..%2fx"] {
        let path = format!("/api/v1/sandboxes/{sandbox}/exec");
        assert_eq!(plane.server.post(&path, json!({"command": "ls"})).await.status, 404, "{sandbox}");
    }
}

async fn a_command_that_takes_too_long_is_a_timeout(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let path = format!("/api/v1/sandboxes/{sandbox}/exec");
    let refused = plane.server.post(&path, json!({"command": "sleep 60", "timeout": "200ms"})).await.refused(408);
    assert_eq!(refused["code"], "TIMEOUT");
    let lines = lines(&plane, &sandbox, json!({"command": "echo a; sleep 60", "timeout": "500ms"})).await;
    let last = lines.last().unwrap();
    assert_eq!((&last["code"], &last["done"], &last["stream"]), (&json!("TIMEOUT"), &json!(true), &json!("stderr")));
    assert_eq!(last["data"], last["error"]);
}

async fn bytes_that_are_not_text_arrive_exactly(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let ended = plane.exec(&sandbox, "printf '\\377\\000a'").await;
    assert_eq!(ended["stdout_b64"], "/wBh");
    let lines = lines(&plane, &sandbox, json!({"command": "printf '\\377'"})).await;
    assert_eq!(lines[0]["data_b64"], "/w==");
    assert_eq!(lines[0]["data"], "\u{fffd}");
}

/// All lines of a stream.
async fn lines(plane: &Plane, sandbox: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    let answer = plane.server.post(&format!("/api/v1/sandboxes/{sandbox}/exec"), body).await;
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    let text = match answer.ok() {
        Value::String(text) => text,
        one => one.to_string(),
    };
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The beginning of a stream, and what follows.
async fn open(plane: &Plane, sandbox: &str, command: &str) -> reqwest::Response {
    let body = json!({"command": command, "stream": true});
    let url = format!("{}/api/v1/sandboxes/{sandbox}/exec", plane.server.url);
    let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer
}

async fn output_comes_line_by_line_before_the_command_ends(plane: Plane) {
    let sandbox = plane.sandbox().await;
    // It ends only after the first line has been seen.
    let mut stream =
        open(&plane, &sandbox, "echo first; while [ ! -e go ]; do sleep 0.05; done; echo then >&2; exit 3").await;
    let first = stream.chunk().await.unwrap().unwrap();
    let first: Value = serde_json::from_slice(first.trim_ascii()).unwrap();
    assert_eq!(first, json!({"stream": "stdout", "data": "first\n"}));
    plane.exec(&sandbox, "touch go").await;
    let mut rest = Vec::new();
    while let Some(piece) = stream.chunk().await.unwrap() {
        rest.extend_from_slice(&piece);
    }
    let rest: Vec<Value> =
        String::from_utf8(rest).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let spoken: Vec<_> = rest.iter().filter(|line| line["data"] != "").collect();
    assert_eq!(spoken, [&json!({"stream": "stderr", "data": "then\n"})]);
    let last = rest.last().unwrap();
    assert_eq!(
        (&last["exit_code"], &last["done"], &last["stream"], &last["data"]),
        (&json!(3), &json!(true), &json!("stdout"), &json!(""))
    );
    assert!(last["duration_ms"].is_u64());
}

/// Whether a process that wrote its id to `pid` is there.
async fn runs(plane: &Plane, sandbox: &str) -> Option<bool> {
    let found = plane.exec(sandbox, "test -s pid && { kill -0 $(cat pid) 2>/dev/null && echo yes || echo no; }").await;
    match found["stdout"].as_str().unwrap() {
        "yes\n" => Some(true),
        "no\n" => Some(false),
        _ => None,
    }
}

async fn a_client_that_hangs_up_ends_its_command(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let command = "echo $$ > pid; echo started; sleep 600";
    let mut stream = open(&plane, &sandbox, command).await;
    stream.chunk().await.unwrap().unwrap();
    assert_eq!(runs(&plane, &sandbox).await, Some(true));
    drop(stream);
    let gone = async || runs(&plane, &sandbox).await.filter(|runs| !runs).map(drop);
    wait_until("the command of a lost reader is killed", SOON, gone).await;

    // The same without a stream: the caller gives up.
    plane.exec(&sandbox, "rm pid").await;
    let url = format!("{}/api/v1/sandboxes/{sandbox}/exec", plane.server.url);
    let waiting = tokio::spawn(reqwest::Client::new().post(url).json(&json!({"command": command})).send());
    let started = async || runs(&plane, &sandbox).await.filter(|runs| *runs).map(drop);
    wait_until("the command runs", SOON, started).await;
    waiting.abort();
    wait_until("the command of a lost caller is killed", SOON, gone).await;
    let audited = async || {
        let rows = plane.server.get("/api/v1/audit?action=exec").await.ok().as_array().unwrap().clone();
        rows.iter().any(|row| row["status"] == "canceled").then_some(())
    };
    wait_until("the call that nobody waited for is in the audit", SOON, audited).await;
}

async fn a_stream_whose_worker_dies_ends_with_an_error(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let mut stream = open(&plane, &sandbox, "echo started; sleep 600").await;
    stream.chunk().await.unwrap().unwrap();
    plane.worker.cut();
    let mut rest = Vec::new();
    while let Ok(Some(piece)) = tokio::time::timeout(SOON * 4, stream.chunk()).await.unwrap() {
        rest.extend_from_slice(&piece);
    }
    let text = String::from_utf8(rest).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["code"], &last["done"]), (&json!("UNAVAILABLE"), &json!(true)), "{last}");
    assert!(last.get("exit_code").is_none());
    // What is asked now has no worker to go to.
    let path = format!("/api/v1/sandboxes/{sandbox}/exec");
    let refused = plane.server.post(&path, json!({"command": "ls"})).await.refused(503);
    assert_eq!(refused["code"], "UNAVAILABLE");
}

type Socket = tokio_tungstenite::WebSocketStream<tokio::net::TcpStream>;

async fn socket(plane: &Plane, sandbox: &str) -> Socket {
    let host = plane.server.url.trim_start_matches("http://").to_owned();
    let request = format!("ws://{host}/api/v1/sandboxes/{sandbox}/exec/ws").into_client_request().unwrap();
    let stream = tokio::net::TcpStream::connect(&host).await.unwrap();
    tokio_tungstenite::client_async(request, stream).await.unwrap().0
}

async fn say(socket: &mut Socket, message: Value) {
    socket.send(Message::text(message.to_string())).await.unwrap();
}

/// The next message that is JSON; null at the end.
async fn hear(socket: &mut Socket) -> Value {
    loop {
        match tokio::time::timeout(SOON, socket.next()).await.unwrap() {
            Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).unwrap(),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            _ => return Value::Null,
        }
    }
}

async fn a_socket_carries_input_and_both_vocabularies(plane: Plane) {
    let sandbox = plane.sandbox().await;
    let mut one = socket(&plane, &sandbox).await;
    say(&mut one, json!({"command": "cat; exit 4"})).await;
    say(&mut one, json!({"type": "stdin", "data": "hello\n"})).await;
    assert_eq!(hear(&mut one).await, json!({"stream": "stdout", "data": "hello\n"}));
    say(&mut one, json!({"type": "stdin_close"})).await;
    let done = hear(&mut one).await;
    assert_eq!((&done["type"], &done["exit_code"]), (&json!("done"), &json!(4)), "{done}");
    assert_eq!(hear(&mut one).await, Value::Null);

    let mut other = socket(&plane, &sandbox).await;
    say(
        &mut other,
        json!({"type": "start", "command": "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"}),
    )
    .await;
    assert_eq!(hear(&mut other).await, json!({"type": "stdout", "data": "ready\n"}));
    say(&mut other, json!({"type": "signal", "signal": "SIGINT"})).await;
    assert_eq!(hear(&mut other).await, json!({"type": "stdout", "data": "caught\n"}));
    let exit = hear(&mut other).await;
    assert_eq!((&exit["type"], &exit["exit_code"]), (&json!("exit"), &json!(9)), "{exit}");
}

async fn a_socket_refuses_what_is_no_message(plane: Plane) {
    let sandbox = plane.sandbox().await;
    for first in [json!("x"), json!({}), json!({"command": "ls", "mode": "dance"})] {
        let mut socket = socket(&plane, &sandbox).await;
        say(&mut socket, first.clone()).await;
        assert_eq!(hear(&mut socket).await["code"], "BAD_REQUEST", "{first}");
        assert_eq!(hear(&mut socket).await, Value::Null);
    }
    let mut socket = socket(&plane, &sandbox).await;
    say(&mut socket, json!({"command": "cat"})).await;
    say(&mut socket, json!({"type": "dance"})).await;
    assert_eq!(hear(&mut socket).await["code"], "BAD_REQUEST");
    // A sandbox that nobody has is refused before the upgrade.
    let path = "/api/v1/sandboxes/sb-00000000/exec/ws";
    assert_eq!(plane.server.get(path).await.refused(404)["code"], "NOT_FOUND");
}

async fn large_output_reaches_a_slow_reader_whole(plane: Plane) {
    let sandbox = plane.sandbox().await;
    // More than the buffers on its way hold: a kernel may give each of two sockets 32 MiB. By its own length the command is found among those of other tests.
    let bytes = (80 << 20) + std::process::id() as usize;
    let mut stream = open(&plane, &sandbox, &format!("head -c {bytes} /dev/zero | tr '\\0' x; touch done")).await;
    tenure_testkit::wait_until_blocked(&bytes.to_string(), SOON).await;
    assert_eq!(plane.exec(&sandbox, "test -e done; echo $?").await["stdout"], "1\n", "it does not wait for its reader");
    let (mut text, mut total, mut last) = (Vec::new(), 0, Value::Null);
    while let Some(piece) = stream.chunk().await.unwrap() {
        text.extend_from_slice(&piece);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            last = serde_json::from_slice(&text.drain(..=end).collect::<Vec<_>>()).unwrap();
            total += last["data"].as_str().unwrap().len();
        }
    }
    assert_eq!((total, &last["exit_code"]), (bytes, &json!(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_only_so_many_streams() {
    let plane = Plane::with(crate::harness::Home::Sqlite(tempfile::tempdir().unwrap()), |config| {
        config.sandboxes.as_mut().unwrap().streams_of_tenant = 1;
    })
    .await;
    let sandbox = plane.sandbox().await;
    let mut first = open(&plane, &sandbox, "echo started; sleep 600").await;
    first.chunk().await.unwrap().unwrap();
    let path = format!("/api/v1/sandboxes/{sandbox}/exec");
    let refused = plane.server.post(&path, json!({"command": "ls", "stream": true})).await.refused(429);
    assert_eq!((&refused["code"], &refused["reason"]), (&json!("RESOURCE_LIMIT"), &json!("max_streams")));
    // Another tenant has its own, and this one again when the stream is closed.
    let headers = [("X-Tenant-ID", "theirs")];
    let theirs = plane.server.call(reqwest::Method::POST, "/api/v1/sandboxes", &headers, Some(&json!({}))).await.ok();
    let other = format!("/api/v1/sandboxes/{}/files?path=/workspace/none", super::kit::id(&theirs));
    assert_eq!(plane.server.call(reqwest::Method::GET, &other, &headers, None).await.status, 404);
    drop(first);
    let free = async || {
        let body = json!({"command": "ls", "stream": true});
        plane.server.post(&path, body).await.status.is_success().then_some(())
    };
    wait_until("the place is free again", SOON, free).await;
}
