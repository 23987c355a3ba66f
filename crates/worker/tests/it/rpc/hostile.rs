//! Clients that mean no good.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::kit::*;

const CREDENTIAL: &str = "x-worker-id: worker-a\r\nx-worker-token: the-worker-s-own-token\r\n";

async fn connect(worker: &Worker) -> TcpStream {
    TcpStream::connect(worker.address).await.unwrap()
}

/// What the worker sends until it ends the connection or says nothing for a while.
async fn heard(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(Ok(count @ 1..)) = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut buffer)).await {
        all.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

async fn works(worker: &Worker) {
    let status = worker.http.get(worker.url("/health")).send().await.unwrap().status();
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_huge_body_without_a_credential_is_not_read() {
    let worker = Worker::start().await;
    let mut stream = connect(&worker).await;
    let head =
        format!("POST /rpc HTTP/1.1\r\nhost: w\r\nx-worker-id: worker-a\r\ncontent-length: {}\r\n\r\n", 96 << 20);
    stream.write_all(head.as_bytes()).await.unwrap();
    // Nothing of the body is sent: an answer shows that nobody waited for it.
    let answer = heard(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    let mut stream = connect(&worker).await;
    stream.write_all(head.as_bytes()).await.unwrap();
    let part = vec![b'x'; 1 << 20];
    let mut sent = 0;
    // The buffers of both sockets take some of it; then the connection is closed.
    while sent < 96 && stream.write_all(&part).await.is_ok() {
        sent += 1;
    }
    assert!(sent < 96, "the whole body was read");
    works(&worker).await;
}

#[tokio::test]
async fn a_body_that_is_announced_too_large_is_refused_before_it_is_sent() {
    let worker = Worker::start().await;
    let mut stream = connect(&worker).await;
    let length = (96 << 20) + 1;
    let head = format!("POST /rpc HTTP/1.1\r\nhost: w\r\n{CREDENTIAL}content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = heard(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("BAD_REQUEST"), "{answer}");
    works(&worker).await;
}

#[tokio::test]
async fn huge_heads_are_refused() {
    let worker = Worker::start().await;
    for head in [
        format!("GET /health HTTP/1.1\r\nhost: w\r\nx-large: {}\r\n\r\n", "x".repeat(1 << 20)),
        format!("GET /health HTTP/1.1\r\nhost: w\r\n{}\r\n", "a: b\r\n".repeat(5000)),
        format!("GET /{} HTTP/1.1\r\nhost: w\r\n\r\n", "x".repeat(1 << 20)),
        "\u{0}\u{1}\u{2}\r\n\r\n".to_owned(),
    ] {
        let mut stream = connect(&worker).await;
        // The worker may close the connection while it is still being sent.
        let _ = stream.write_all(head.as_bytes()).await;
        let answer = heard(&mut stream).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    works(&worker).await;
}

#[tokio::test]
async fn slow_heads_slow_bodies_and_idle_connections_are_ended() {
    let worker = Worker::with(Options::settings(|settings| {
        settings.times.head = Duration::from_millis(300);
        settings.times.body = Duration::from_millis(300);
        settings.times.idle = Duration::from_millis(600);
    }))
    .await;
    let ended = async |start: &str, expected: &str| {
        let mut stream = connect(&worker).await;
        stream.write_all(start.as_bytes()).await.unwrap();
        let begun = Instant::now();
        let answer = heard(&mut stream).await;
        assert!(begun.elapsed() < Duration::from_secs(9), "{start:?}: the connection was kept");
        assert!(answer.starts_with(expected) && (answer.is_empty() == expected.is_empty()), "{start:?}: {answer}");
    };
    ended("", "").await;
    ended("POST /rpc HT", "").await;
    ended("GET /health HTTP/1.1\r\nhost: w\r\n\r\n", "HTTP/1.1 200").await;
    ended(&format!("POST /rpc HTTP/1.1\r\nhost: w\r\n{CREDENTIAL}content-length: 10\r\n\r\n{{"), "HTTP/1.1 408").await;
}

#[tokio::test]
async fn nonsense_is_refused_without_harm() {
    let worker = Worker::start().await;
    let deep = format!(r#"{{"id":"r","method":"worker.exec","worker_id":"worker-a","params":{}"#, "[".repeat(1 << 20));
    let deep_whole = format!(
        r#"{{"id":"r","method":"worker.exec","worker_id":"worker-a","params":{{"sandbox_id":"s","command":"c","x":{}{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let twice = r#"{"id":"r","id":"s","method":"worker.undrain","worker_id":"worker-a"}"#.to_owned();
    let number = r#"{"id":7,"method":"worker.undrain","worker_id":"worker-a"}"#.to_owned();
    let long_id = json!({"id": "x".repeat(1000), "method": "worker.undrain", "worker_id": WORKER}).to_string();
    for body in [deep, deep_whole, twice, number, long_id, "null".into(), "\u{feff}{}".into(), "{}{}".into()] {
        let start: String = body.chars().take(60).collect();
        let (status, answer) = answer(worker.post("/rpc").body(body).send().await.unwrap()).await;
        assert!((400..500).contains(&status.as_u16()), "{start}: {status} {answer}");
    }
    let not_text = worker.post("/rpc").body(b"{\"id\":\"\xff\"}".to_vec()).send().await.unwrap();
    assert_eq!(not_text.status(), 400);
    works(&worker).await;
}

#[tokio::test]
async fn large_calls_beyond_the_memory_of_the_worker_wait_or_are_refused() {
    let worker = Worker::with(Options::settings(|settings| {
        settings.memory_bytes = 20 << 20;
        settings.times.body = Duration::from_millis(500);
    }))
    .await;
    worker.spawn("sb-1").await;
    // Announces 8 MiB, for which 16 are reserved, and sends nothing.
    let mut holder = connect(&worker).await;
    let head = format!("POST /rpc HTTP/1.1\r\nhost: w\r\n{CREDENTIAL}content-length: {}\r\n\r\n", 8 << 20);
    holder.write_all(head.as_bytes()).await.unwrap();
    let content = "A".repeat(8 << 20);
    let params = json!({"sandbox_id": "sb-1", "path": "/workspace/f", "content": content});
    let mut refused = 0;
    // The holder is given up after half a second; before that there is no room.
    for _ in 0..20 {
        let (status, body) = worker.call("worker.file_write", params.clone()).await;
        match status.as_u16() {
            200 => break,
            503 => refused += 1,
            _ => panic!("{status} {body}"),
        }
    }
    assert!(refused < 20, "the room was never returned");
    works(&worker).await;
}

#[tokio::test]
async fn connections_beyond_the_cap_wait_and_are_served_later() {
    let worker = Worker::with(Options::settings(|settings| {
        settings.max_connections = 4;
        settings.times.head = Duration::from_millis(500);
    }))
    .await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(connect(&worker).await);
    }
    works(&worker).await;
}

#[tokio::test]
async fn a_client_that_is_still_sending_sees_why_it_was_refused() {
    let worker = Worker::start().await;
    for _ in 0..10 {
        let mut stream = connect(&worker).await;
        let head = format!("POST /rpc HTTP/1.1\r\nhost: w\r\ncontent-length: {}\r\n\r\n", 8 << 20);
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        let part = vec![b'x'; 64 << 10];
        let sending = async { while writer.write_all(&part).await.is_ok() {} };
        let reading = async {
            let mut answer = [0; 12];
            reader.read_exact(&mut answer).await.map(|_| answer)
        };
        let answer = tokio::select! {
            answer = reading => answer.expect("an answer"),
            () = sending => panic!("the connection was reset"),
        };
        assert_eq!(&answer, b"HTTP/1.1 401");
    }
}
