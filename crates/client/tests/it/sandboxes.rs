//! Sandboxes against a real HTTP server that answers as each test says.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tenure_client::sandboxes::types::{ExecRequest, ExecStart, SandboxState, SandboxWrite};
use tenure_client::sandboxes::{ExecEvent, SandboxFilter};
use tenure_client::{Client, ClientError, Sandbox};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;

const ID: &str = "sb-0a1b2c3d";

/// What was asked: method and address, idempotency key, body.
type Asked = Arc<Mutex<Vec<(String, Option<String>, String)>>>;

async fn bind() -> (TcpListener, Client) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, Client::builder(url).api_key("key").build().unwrap())
}

/// Answers with what `answer` says for the number of the request.
async fn serve<F>(answer: F) -> (Client, Asked)
where
    F: Fn(usize, &str) -> Response + Clone + Send + Sync + 'static,
{
    let (listener, client) = bind().await;
    let asked = Asked::default();
    let keep = Arc::clone(&asked);
    let app = Router::new().fallback(async move |request: Request| {
        assert_eq!(request.headers()["x-api-key"], "key");
        let line = format!("{} {}", request.method(), request.uri());
        let key = request.headers().get("idempotency-key").map(|key| key.to_str().unwrap().to_owned());
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let number = {
            let mut asked = keep.lock().unwrap();
            asked.push((line.clone(), key, String::from_utf8_lossy(&body).into_owned()));
            asked.len()
        };
        answer(number, &line)
    });
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (client, asked)
}

fn lines(asked: &Asked) -> Vec<String> {
    asked.lock().unwrap().iter().map(|(line, ..)| line.clone()).collect()
}

fn reply(status: u16, body: &Value) -> Response {
    (StatusCode::from_u16(status).unwrap(), body.to_string()).into_response()
}

fn info(state: &str) -> Value {
    json!({"id": ID, "state": state, "provider": "process", "image": "host", "memory_mb": 512, "vcpus": 1,
        "created_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T00:30:00Z", "status": state})
}

/// A sandbox at a server that answers everything but the first question with `answer`.
async fn sandbox(answer: fn(usize, &str) -> Response) -> (Sandbox, Asked) {
    let (client, asked) =
        serve(move |number, line| if number == 1 { reply(200, &info("running")) } else { answer(number, line) }).await;
    (client.sandboxes().get(ID).await.unwrap(), asked)
}

#[tokio::test]
async fn a_sandbox_is_asked_for_once_however_often_it_is_sent() {
    let (client, asked) = serve(|number, _| match number {
        1 => reply(502, &Value::Null),
        _ => reply(201, &info("running")),
    })
    .await;
    let write = SandboxWrite { image: Some("host".into()), ..SandboxWrite::default() };
    assert_eq!(client.sandboxes().create(&write).await.unwrap().id(), ID);
    client.sandboxes().request(&write).await.unwrap();
    assert_eq!(
        lines(&asked),
        ["POST /api/v1/sandboxes", "POST /api/v1/sandboxes", "POST /api/v1/sandboxes?wait=false"]
    );
    let asked = asked.lock().unwrap();
    assert_eq!(asked[0].2, r#"{"image":"host"}"#);
    assert!(asked[0].1.is_some() && asked[0].1 == asked[1].1 && asked[1].1 != asked[2].1, "{asked:?}");
}

#[tokio::test]
async fn a_denial_is_final_and_a_rate_limit_is_not() {
    for reason in ["max_sandboxes", "worker_unavailable", "remote_worker_rpc_unavailable", "max_ttl"] {
        let (client, asked) = serve(move |_, _| {
            reply(429, &json!({"code": "RESOURCE_LIMIT", "message": "no", "request_id": "r", "reason": reason}))
        })
        .await;
        let error = client.sandboxes().create(&SandboxWrite::default()).await.unwrap_err();
        assert_eq!((error.status(), error.word()), (Some(429), Some(reason)));
        assert_eq!(lines(&asked).len(), 1, "{reason}");
    }
    let (client, asked) = serve(|number, _| match number {
        1 => reply(429, &json!({"code": "RESOURCE_LIMIT", "message": "too fast", "request_id": "r"})),
        _ => reply(201, &info("running")),
    })
    .await;
    client.sandboxes().create(&SandboxWrite::default()).await.unwrap();
    assert_eq!(lines(&asked).len(), 2);
}

#[tokio::test]
async fn every_call_has_its_address() {
    let (client, asked) = serve(|_, line| {
        let snapshot = json!({"id": "snap-1", "name": "", "sandbox_id": ID, "image": "host", "provider": "process",
            "size_bytes": 1, "sha256": "ab", "created_at": "t"});
        let file = json!({"path": "/a", "size": 1, "mode": "0644", "is_dir": false, "mod_time": "t", "name": "a"});
        let body = match line {
            line if line.contains("/files/stat") => file,
            line if line.contains("/files/list") => json!([file]),
            line if line.contains("/files/glob") || line.contains("/logs") => json!(["/a"]),
            line if line.contains("/stats") => json!({"supported": false}),
            line if line.contains("/restore") => info("running"),
            line if line.starts_with("POST") && line.contains("/snapshots") => snapshot,
            line if line.contains("/snapshots") || line.contains("/workers HTTP") => json!([]),
            line if line.contains("/workers") => json!({"id": "w"}),
            line if line.contains("/templates") => json!({"name": "t", "image": "host"}),
            line if line.starts_with("DELETE") || line.contains("/files") => json!({"status": "done"}),
            line if line.starts_with("GET /api/v1/sandboxes?") => json!([info("running")]),
            line if line.contains("/exec") => json!({"exit_code": 3, "stdout": "", "stderr": "", "duration": "1ms"}),
            _ => info("running"),
        };
        reply(200, &body)
    })
    .await;
    let all = client.sandboxes();
    let mut sandbox = all.get(ID).await.unwrap();
    let filter = SandboxFilter { state: Some(SandboxState::Running), limit: Some(5), cursor: None };
    assert_eq!(all.list(&filter).await.unwrap().items.len(), 1);
    assert_eq!(sandbox.run("exit 3").await.unwrap().exit_code, 3);
    sandbox.logs(Some(7)).await.unwrap();
    assert!(!sandbox.stats().await.unwrap().supported);
    sandbox.extend(Duration::from_secs(3600)).await.unwrap();
    sandbox.snapshot(Some("n")).await.unwrap();
    sandbox.snapshots().await.unwrap();
    sandbox.restore("snap-1").await.unwrap();
    sandbox.list_files("/a b").await.unwrap();
    sandbox.stat_file("/a").await.unwrap();
    sandbox.glob_files("/**/*.py").await.unwrap();
    sandbox.move_file("/a", "/b").await.unwrap();
    sandbox.chmod_file("/b", "0755").await.unwrap();
    sandbox.delete_file("/b", true).await.unwrap();
    assert_eq!(sandbox.destroy().await.unwrap(), "done");
    all.template("t").await.unwrap();
    all.drain_worker("w 1", Some("upgrade")).await.unwrap();
    all.undrain_worker("w 1").await.unwrap();
    let expected = [
        "GET /api/v1/sandboxes/sb-0a1b2c3d",
        "GET /api/v1/sandboxes?state=running&limit=5",
        "POST /api/v1/sandboxes/sb-0a1b2c3d/exec",
        "GET /api/v1/sandboxes/sb-0a1b2c3d/logs?lines=7",
        "GET /api/v1/sandboxes/sb-0a1b2c3d/stats",
        "POST /api/v1/sandboxes/sb-0a1b2c3d/extend",
        "POST /api/v1/sandboxes/sb-0a1b2c3d/snapshots",
        "GET /api/v1/sandboxes/sb-0a1b2c3d/snapshots",
        "POST /api/v1/sandboxes/sb-0a1b2c3d/restore",
        "GET /api/v1/sandboxes/sb-0a1b2c3d/files/list?path=%2Fa+b",
        "GET /api/v1/sandboxes/sb-0a1b2c3d/files/stat?path=%2Fa",
        "GET /api/v1/sandboxes/sb-0a1b2c3d/files/glob?pattern=%2F**%2F*.py",
        "POST /api/v1/sandboxes/sb-0a1b2c3d/files/move",
        "POST /api/v1/sandboxes/sb-0a1b2c3d/files/chmod",
        "DELETE /api/v1/sandboxes/sb-0a1b2c3d/files?path=%2Fb&recursive=true",
        "DELETE /api/v1/sandboxes/sb-0a1b2c3d",
        "GET /api/v1/templates/t",
        "POST /api/v1/workers/w%201/drain",
        "POST /api/v1/workers/w%201/undrain",
    ];
    assert_eq!(lines(&asked), expected);
    let asked = asked.lock().unwrap();
    let body = |part: &str| asked.iter().find(|(line, ..)| line.ends_with(part)).unwrap().2.clone();
    assert_eq!(body("/exec"), r#"{"command":"exit 3"}"#);
    assert_eq!(body("/extend"), r#"{"ttl":"1h0m0s"}"#);
    assert_eq!(body("/restore"), r#"{"snapshot":"snap-1"}"#);
    assert_eq!(body("/move"), r#"{"old_path":"/a","new_path":"/b"}"#);
    assert_eq!(body("/drain"), r#"{"reason":"upgrade"}"#);
}

#[tokio::test]
async fn a_sandbox_that_is_being_created_is_waited_for() {
    let (client, _) = serve(|number, _| reply(200, &info(if number < 4 { "creating" } else { "running" }))).await;
    let mut sandbox = client.sandboxes().request(&SandboxWrite::default()).await.unwrap();
    assert_eq!(sandbox.info().state, SandboxState::Creating);
    sandbox.wait_until_running(Duration::from_secs(20)).await.unwrap();
    let (client, _) = serve(|number, _| {
        let mut failed = info(if number < 2 { "creating" } else { "error" });
        failed["reason"] = json!("setup failed");
        reply(200, &failed)
    })
    .await;
    let mut sandbox = client.sandboxes().request(&SandboxWrite::default()).await.unwrap();
    let error = sandbox.wait_until_running(Duration::from_secs(20)).await.unwrap_err();
    assert_eq!(error.to_string(), "sandbox sb-0a1b2c3d is error: setup failed");
}

#[tokio::test]
async fn output_arrives_as_it_is_written_and_ends_with_the_exit_code() {
    let (sandbox, asked) = sandbox(|_, _| {
        let pieces = [
            "{\"stream\":\"stdout\",\"data\":\"one\\n\"}\n{\"stream\":\"st",
            "derr\",\"data\":\"\u{fffd}\",\"data_b64\":\"/w==\"}\n{\"stream\":\"stdout\",\"data\":\"\"}\n",
            "{\"stream\":\"stdout\",\"data\":\"\",\"exit_code\":7,\"duration_ms\":12,\"done\":true}\n",
        ];
        let stream = futures_util::stream::iter(pieces.map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece))));
        Body::from_stream(stream).into_response()
    })
    .await;
    let mut stream = sandbox.stream(&ExecRequest { command: "c".into(), ..ExecRequest::default() }).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event.unwrap());
    }
    let expected = [
        ExecEvent::Stdout(Bytes::from("one\n")),
        ExecEvent::Stderr(Bytes::from_static(b"\xff")),
        ExecEvent::Exited { exit_code: Some(7), duration_ms: Some(12) },
    ];
    assert_eq!(events, expected);
    assert_eq!(asked.lock().unwrap()[1].2, r#"{"command":"c","stream":true}"#);
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_no_success() {
    let (cut, _) = sandbox(|_, _| "{\"stream\":\"stdout\",\"data\":\"one\\n\"}\n".into_response()).await;
    let mut stream = cut.stream(&ExecRequest::default()).await.unwrap();
    assert!(matches!(stream.next().await, Some(Ok(ExecEvent::Stdout(_)))));
    assert!(matches!(stream.next().await, Some(Err(ClientError::Truncated { .. }))));
    assert!(stream.next().await.is_none());

    let (late, _) = sandbox(|_, _| {
        "{\"stream\":\"stderr\",\"data\":\"too long\",\"error\":\"too long\",\"code\":\"TIMEOUT\",\"done\":true}\n"
            .into_response()
    })
    .await;
    let error = late.stream(&ExecRequest::default()).await.unwrap().next().await.unwrap().unwrap_err();
    assert_eq!((error.status(), error.word()), (Some(408), Some("timeout")));

    let (refused, _) = sandbox(|_, _| reply(404, &json!({"code": "NOT_FOUND", "message": "gone"}))).await;
    assert_eq!(refused.stream(&ExecRequest::default()).await.unwrap_err().status(), Some(404));
}

#[tokio::test]
async fn files_are_streamed_both_ways() {
    let (sandbox, asked) = sandbox(|_, line| {
        if line.starts_with("PUT") { reply(200, &json!({"status": "written"})) } else { "content".into_response() }
    })
    .await;
    sandbox.write_file("/a b", "text", Some("0755")).await.unwrap();
    sandbox.upload("/c", &b"streamed"[..], 8, None).await.unwrap();
    assert_eq!(sandbox.read_file("/a b").await.unwrap(), b"content");
    let asked = asked.lock().unwrap();
    let expected = [
        ("PUT /api/v1/sandboxes/sb-0a1b2c3d/files?path=%2Fa+b&mode=0755", "text"),
        ("PUT /api/v1/sandboxes/sb-0a1b2c3d/files?path=%2Fc", "streamed"),
        ("GET /api/v1/sandboxes/sb-0a1b2c3d/files?path=%2Fa+b", ""),
    ];
    let sent: Vec<_> = asked[1..].iter().map(|(line, _, body)| (line.as_str(), body.as_str())).collect();
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn a_file_that_breaks_off_is_an_error() {
    let (sandbox, _) = sandbox(|_, _| {
        let pieces = [Ok(Bytes::from("half")), Err(std::io::Error::other("cut"))];
        Body::from_stream(futures_util::stream::iter(pieces)).into_response()
    })
    .await;
    assert!(matches!(sandbox.read_file("/a").await, Err(ClientError::Network { .. })));
}

/// A sandbox at a server that speaks WebSocket.
async fn socket<F, T>(talk: F) -> Sandbox
where
    F: FnOnce(tokio_tungstenite::WebSocketStream<tokio::net::TcpStream>) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let (listener, client) = bind().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        talk(tokio_tungstenite::accept_async(stream).await.unwrap()).await;
    });
    client.sandboxes().handle(serde_json::from_value(info("running")).unwrap())
}

#[tokio::test]
async fn a_terminal_is_written_to_resized_and_signalled() {
    let sandbox = socket(async |mut socket| {
        let mut seen = Vec::new();
        while seen.len() < 6 {
            if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
                seen.push(text.as_str().to_owned());
            }
        }
        let expected = [
            r#"{"command":"sh","tty":true,"rows":24,"cols":80}"#,
            r#"{"type":"stdin","data":"ls\n"}"#,
            r#"{"type":"stdin","data_b64":"/w=="}"#,
            r#"{"type":"resize","rows":30,"cols":100}"#,
            r#"{"type":"signal","signal":"INT"}"#,
            r#"{"type":"stdin_close"}"#,
        ];
        assert_eq!(seen, expected);
        for text in [r#"{"stream":"stdout","data":"hi"}"#, r#"{"type":"done","exit_code":5,"duration_ms":3}"#] {
            socket.send(Message::text(text)).await.unwrap();
        }
    })
    .await;
    let exec = ExecRequest { command: "sh".into(), ..ExecRequest::default() };
    let start = ExecStart { exec, tty: true, rows: Some(24), cols: Some(80), ..ExecStart::default() };
    let (input, mut output) = sandbox.open(&start).await.unwrap();
    input.write(b"ls\n").await.unwrap();
    input.write(b"\xff").await.unwrap();
    input.resize(30, 100).await.unwrap();
    input.signal("INT").await.unwrap();
    input.close().await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), ExecEvent::Stdout(Bytes::from("hi")));
    let exited = ExecEvent::Exited { exit_code: Some(5), duration_ms: Some(3) };
    assert_eq!(output.next().await.unwrap().unwrap(), exited);
    assert!(output.next().await.is_none());
}

#[tokio::test]
async fn a_terminal_that_is_lost_or_refused_is_an_error() {
    let lost = socket(async |mut socket| {
        socket.next().await.unwrap().unwrap();
        socket.close(None).await.unwrap();
    })
    .await;
    let (_input, mut output) = lost.open(&ExecStart::default()).await.unwrap();
    assert!(matches!(output.next().await, Some(Err(ClientError::Truncated { .. }))));

    let (refused, _) = sandbox(|_, _| reply(409, &json!({"code": "CONFLICT", "message": "not running"}))).await;
    assert_eq!(refused.open(&ExecStart::default()).await.unwrap_err().status(), Some(409));
    let (plain, _) = sandbox(|_, _| reply(200, &json!({}))).await;
    assert!(matches!(plain.open(&ExecStart::default()).await, Err(ClientError::Network { .. })));
}

#[tokio::test]
async fn a_port_has_an_address_with_and_without_a_preview_domain() {
    let (client, _) = serve(|number, _| {
        let mut sandbox = info("running");
        if number == 1 {
            sandbox["preview_domain"] = json!("preview.example.com:8443");
        }
        reply(200, &sandbox)
    })
    .await;
    let sandbox = client.sandboxes().get(ID).await.unwrap();
    assert_eq!(sandbox.url(8080), "http://8080-sb-0a1b2c3d.preview.example.com:8443/");
    let sandbox = client.sandboxes().get(ID).await.unwrap();
    assert!(sandbox.url(8080).ends_with("/api/v1/sandboxes/sb-0a1b2c3d/proxy/8080/"), "{}", sandbox.url(8080));
    let request = sandbox.request(reqwest::Method::GET, 8080, "/a/b?c=d").build().unwrap();
    assert!(request.url().as_str().ends_with("/sb-0a1b2c3d/proxy/8080/a/b?c=d"), "{}", request.url());
}
