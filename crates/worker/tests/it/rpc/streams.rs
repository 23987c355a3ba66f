//! NDJSON streams.

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::kit::*;

/// A stream that is read line by line.
pub struct Lines {
    body: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    buffer: Vec<u8>,
}

impl Lines {
    pub async fn open(worker: &Worker, envelope: &Value) -> Self {
        let request = worker.post("/rpc").header("x-worker-stream", "NDJSON").header("accept", "application/x-ndjson");
        let response = request.body(envelope.to_string()).send().await.unwrap();
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        assert_eq!(response.headers()["content-type"], "application/x-ndjson");
        Self { body: response.bytes_stream().boxed(), buffer: Vec::new() }
    }

    pub async fn exec(worker: &Worker, command: &str) -> Self {
        let params = json!({"sandbox_id": "sb-1", "provider": "mock", "command": command});
        Self::open(worker, &worker.envelope("worker.exec_stream", params)).await
    }

    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                assert!(end < 512 << 10, "a line of {end} bytes");
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// The whole stdout, and the last line, which alone is terminal.
    pub async fn rest(mut self) -> (Vec<u8>, Value) {
        use base64::Engine;
        let (mut out, mut last) = (Vec::new(), None);
        while let Some(line) = self.next().await {
            assert!(last.is_none(), "{line} follows the terminal line");
            let result = &line["result"];
            if result.is_object() {
                match result["data_b64"].as_str() {
                    Some(exact) => out.extend(base64::engine::general_purpose::STANDARD.decode(exact).unwrap()),
                    None => out.extend_from_slice(result["data"].as_str().unwrap().as_bytes()),
                }
            }
            if line.get("done").is_some() || line.get("error").is_some() {
                assert!(line.get("result").is_none());
                last = Some(line);
            }
        }
        (out, last.expect("a terminal line"))
    }
}

async fn with_sandbox() -> Worker {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    worker
}

#[tokio::test]
async fn the_first_chunk_arrives_before_the_command_ends() {
    let worker = with_sandbox().await;
    let mut lines =
        Lines::exec(&worker, "echo first; while [ ! -e go ]; do sleep 0.05; done; echo second; exit 4").await;
    let first = lines.next().await.unwrap();
    assert_eq!(first["result"], json!({"stream": "stdout", "data": "first\n"}));
    assert_eq!((&first["worker_id"], first["id"].is_string()), (&json!(WORKER), true));
    worker.exec("sb-1", "touch go").await;
    let (out, last) = lines.rest().await;
    assert_eq!(out, b"second\n");
    assert_eq!((&last["done"], &last["exit_code"]), (&json!(true), &json!(4)));
    assert!(last["duration_ms"].is_u64());
}

#[tokio::test]
async fn ten_thousand_tiny_writes_arrive_complete_and_in_order() {
    let worker = with_sandbox().await;
    let command = "i=0; while [ $i -lt 10000 ]; do echo $i; i=$((i+1)); done";
    let (out, last) = Lines::exec(&worker, command).await.rest().await;
    let expected: String = (0..10_000).map(|n| format!("{n}\n")).collect();
    assert!(out == expected.as_bytes(), "{} bytes instead of {}", out.len(), expected.len());
    assert_eq!(last["exit_code"], 0);
}

#[tokio::test]
async fn bytes_that_are_not_text_arrive_exactly() {
    let worker = with_sandbox().await;
    let command =
        r"printf '\377'; printf 'h\303'; sleep 0.01; printf '\244'; printf '\360\237'; sleep 1; printf '\246'";
    let (out, _) = Lines::exec(&worker, command).await.rest().await;
    assert_eq!(out, b"\xffh\xc3\xa4\xf0\x9f\xa6");
}

#[tokio::test]
async fn a_timeout_is_the_last_line() {
    let worker = with_sandbox().await;
    let params = json!({"sandbox_id": "sb-1", "command": "echo begun; sleep 600", "timeout": "3s"});
    let (out, last) = Lines::open(&worker, &worker.envelope("worker.exec_stream", params)).await.rest().await;
    assert_eq!(out, b"begun\n");
    assert_eq!((&last["code"], &last["error"]), (&json!("timeout"), &json!("exec timed out after 3s")));
}

#[tokio::test]
async fn silence_is_broken_by_signs_of_life() {
    let worker = Worker::with(Options::settings(|settings| {
        settings.times.keep_alive = Duration::from_millis(100);
    }))
    .await;
    worker.spawn("sb-1").await;
    let mut lines = Lines::exec(&worker, "sleep 1; echo x").await;
    let alive = lines.next().await.unwrap();
    assert_eq!(alive.as_object().unwrap().keys().collect::<Vec<_>>(), ["id", "worker_id"]);
    let (out, last) = lines.rest().await;
    assert_eq!((out.as_slice(), &last["exit_code"]), (b"x\n".as_slice(), &json!(0)));
}

#[tokio::test]
async fn a_lost_reader_kills_the_command_and_its_children() {
    let worker = with_sandbox().await;
    let mut lines = Lines::exec(&worker, "sleep 600 & echo $!; sleep 601 & echo $!; wait").await;
    let mut pids = String::new();
    while pids.lines().count() < 2 {
        pids.push_str(lines.next().await.unwrap()["result"]["data"].as_str().unwrap());
    }
    assert!(pids.lines().all(runs));
    drop(lines);
    wait_until("the command is gone", || !pids.lines().any(runs)).await;
}

#[tokio::test]
async fn the_id_of_a_stream_is_refused_the_second_time() {
    let worker = with_sandbox().await;
    let params = json!({"sandbox_id": "sb-1", "command": "echo x >> count"});
    let envelope = worker.envelope("worker.exec_stream", params);
    Lines::open(&worker, &envelope).await.rest().await;
    let again = worker.post("/rpc").header("x-worker-stream", "ndjson").body(envelope.to_string());
    let (status, body) = answer(again.send().await.unwrap()).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (409, Some("invalid")), "{body}");
    assert_eq!(worker.exec("sb-1", "wc -l < count").await["stdout"].as_str().map(str::trim), Some("1"));
}

#[tokio::test]
async fn a_stream_that_cannot_begin_is_an_ordinary_refusal() {
    let worker = with_sandbox().await;
    let envelope = worker.envelope("worker.exec_stream", json!({"sandbox_id": "sb-2", "command": "true"}));
    let request = worker.post("/rpc").header("x-worker-stream", "ndjson").body(envelope.to_string());
    let (status, body) = answer(request.send().await.unwrap()).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (404, Some("not_found")), "{body}");
}

/// Sends a request by hand, so that nothing of the answer is read.
pub async fn unread(worker: &Worker, envelope: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(worker.address).await.unwrap();
    let body = envelope.to_string();
    let head = format!(
        "POST /rpc HTTP/1.1\r\nhost: w\r\nx-worker-id: {WORKER}\r\nx-worker-token: {TOKEN}\r\nx-worker-stream: ndjson\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream
}

/// How many MiB the command has written.
async fn written(worker: &Worker) -> usize {
    let progress = worker.exec("sb-1", "cat progress 2>/dev/null || echo 0").await;
    progress["stdout"].as_str().unwrap().trim().parse().unwrap_or(0)
}

#[tokio::test]
async fn a_slow_reader_holds_the_command_up_and_gets_every_byte() {
    let worker = with_sandbox().await;
    // More than the buffers of two sockets, of the connection and of the execution together.
    let most_waiting = 24;
    let total = 48;
    let command = format!(
        "i=0; while [ $i -lt {total} ]; do head -c 1048576 /dev/zero | tr '\\0' x; i=$((i+1)); echo $i > progress; done"
    );
    let params = json!({"sandbox_id": "sb-1", "command": command});
    let mut stream = unread(&worker, &worker.envelope("worker.exec_stream", params)).await;
    let (mut before, mut same) = (0, 0);
    while same < 5 {
        let now = written(&worker).await;
        same = if now == before { same + 1 } else { 0 };
        before = now;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(before < most_waiting, "{before} MiB were written although nobody read");
    let (mut buffer, mut data, mut tail) = (vec![0; 256 << 10], 0_usize, Vec::new());
    let mut checked = 0;
    loop {
        let count = stream.read(&mut buffer).await.unwrap();
        data += buffer[..count].iter().filter(|byte| **byte == b'x').count();
        tail.extend_from_slice(&buffer[..count]);
        tail.drain(..tail.len().saturating_sub(4096));
        if count == 0 || String::from_utf8_lossy(&tail).contains("\"done\":true") {
            break;
        }
        if data >> 20 > checked + 20 {
            checked = data >> 20;
            let ahead = written(&worker).await.saturating_sub(checked);
            assert!(ahead < most_waiting, "{ahead} MiB wait in the worker");
        }
    }
    // The head of the answer has a few of that letter as well.
    assert!((total << 20..(total << 20) + 1000).contains(&data), "{data} of {total} MiB");
}

#[tokio::test]
async fn a_reader_that_stops_reading_is_given_up_and_its_command_killed() {
    let worker = Worker::with(Options::settings(|settings| {
        settings.times.stalled = Duration::from_secs(1);
    }))
    .await;
    worker.spawn("sb-1").await;
    let params = json!({"sandbox_id": "sb-1", "command": "echo $$ > pid; cat /dev/zero"});
    let _stream = unread(&worker, &worker.envelope("worker.exec_stream", params)).await;
    let mut pid = String::new();
    while pid.is_empty() {
        pid = worker.exec("sb-1", "cat pid 2>/dev/null; true").await["stdout"].as_str().unwrap().trim().to_owned();
    }
    wait_until("the command is gone", || !runs(&pid)).await;
}
