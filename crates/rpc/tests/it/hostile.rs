//! Servers that are no workers, or workers that mean no good.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_rpc::wire::Code;
use tenure_rpc::{Call, Capabilities, Client, Error, Target, new_request_id};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::kit::*;
use super::wire::{Heard, answering, hear, http, server};

/// A client that does not wait long.
fn hasty() -> Client {
    client_with(|settings| {
        settings.times.call = Duration::from_secs(2);
        settings.times.stream_idle = Duration::from_millis(500);
        settings.times.stalled = Duration::from_millis(500);
    })
}

fn target(address: std::net::SocketAddr) -> Target {
    at(&format!("http://{address}"), Capabilities::all())
}

async fn status(client: &Client, target: &Target) -> Error {
    client.status(target, Call::new(&new_request_id()), &sandbox("sb-1")).await.unwrap_err()
}

fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Unreachable { sent: true, .. })
}

/// Sends the same part for ever.
async fn endless(mut stream: TcpStream, first: &[u8], part: &[u8]) {
    drop(hear(&mut stream).await);
    if stream.write_all(first).await.is_ok() {
        let many = part.repeat((64 << 10) / part.len() + 1);
        while stream.write_all(&many).await.is_ok() {}
    }
}

#[tokio::test]
async fn endless_answers_are_cut_off() {
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    let cases: [(&str, Vec<u8>, &[u8]); 7] = [
        ("a status line", b"HTTP/1.1 200 ".to_vec(), b"very "),
        ("headers", OK.to_vec(), b"x-more: and more\r\n"),
        ("a header", [OK, b"x-long: "].concat(), b"longer "),
        ("an unbounded body", [OK, b"\r\n"].concat(), b" "),
        ("chunks", [OK, b"transfer-encoding: chunked\r\n\r\n"].concat(), b"4\r\n    \r\n"),
        ("a chunk extension", [OK, b"transfer-encoding: chunked\r\n\r\n4;"].concat(), b"x"),
        ("interim answers", vec![], b"HTTP/1.1 100 Continue\r\n\r\n"),
    ];
    for (what, first, part) in cases {
        let (address, _) = server(move |stream| {
            let first = first.clone();
            async move { endless(stream, &first, part).await }
        })
        .await;
        let error = status(&hasty(), &target(address)).await;
        assert!(is_unknown(&error), "{what}: {error:?}");
    }
}

#[tokio::test]
async fn a_body_that_is_announced_too_large_is_not_read() {
    let head = |length: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
    for length in ["17000000", "99999999999999", "18446744073709551615", "-1", "99999999999999999999999"] {
        let answer = head(length);
        let (address, _) = answering(move |_| answer.clone()).await;
        let error = status(&hasty(), &target(address)).await;
        assert!(is_unknown(&error), "{length}: {error:?}");
    }
}

#[tokio::test]
async fn a_content_length_that_lies_is_never_a_success() {
    let short = |heard: &Heard| {
        let body = format!(r#"{{"id":"{}","worker_id":"{WORKER}"}}"#, heard.id());
        let length = body.len() + 10;
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    };
    let (address, _) = answering(short).await;
    let client = client_with(|settings| settings.times.control = Duration::from_millis(500));
    let error = client.shutdown(&target(address), Call::new(&new_request_id())).await.unwrap_err();
    assert!(is_unknown(&error), "{error:?}");
    let long = |heard: &Heard| {
        let body = format!(r#"{{"id":"{}","worker_id":"{WORKER}"}}"#, heard.id());
        let length = body.len() - 1;
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    };
    let (address, _) = answering(long).await;
    let error = client.shutdown(&target(address), Call::new(&new_request_id())).await.unwrap_err();
    assert!(is_unknown(&error), "{error:?}");
}

#[tokio::test]
async fn a_worker_that_never_answers_is_given_up() {
    for first in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"] {
        let (address, _) = server(move |mut stream| async move {
            drop(hear(&mut stream).await);
            stream.write_all(first.as_bytes()).await.unwrap();
            std::future::pending::<()>().await;
        })
        .await;
        let error = status(&hasty(), &target(address)).await;
        assert!(is_unknown(&error), "{first:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_worker_that_closes_at_once_or_answers_nonsense_is_unreachable() {
    for answer in ["", "nonsense\r\n\r\n", "HTTP/0.9 200\r\n\r\n", "HTTP/1.1 999999 OK\r\n\r\n", "\0\0\0\0"] {
        let (address, _) = server(move |mut stream| async move {
            drop(hear(&mut stream).await);
            drop(stream.write_all(answer.as_bytes()).await);
        })
        .await;
        let error = status(&hasty(), &target(address)).await;
        assert!(is_unknown(&error), "{answer:?}: {error:?}");
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (elsewhere, visits) = server(|_| async {}).await;
    for code in [301, 302, 303, 307, 308] {
        let location = format!("http://{elsewhere}/rpc");
        let answer = format!("HTTP/1.1 {code} X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n").into_bytes();
        let (address, _) = answering(move |_| answer.clone()).await;
        let error = status(&hasty(), &target(address)).await;
        assert_eq!(error.code(), Some(Code::Internal), "{error:?}");
        let error = hasty().read_file(&target(address), Call::new(&new_request_id()), &file("/a")).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::Internal), "{error:?}");
    }
    assert_eq!(visits.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn answers_that_are_not_of_the_contract_are_no_success() {
    let of = |body: &'static str| {
        move |heard: &Heard| http(200, "application/json", &body.replace("ID", &heard.id()).replace("W", WORKER))
    };
    for body in [
        "",
        "nonsense",
        "[]",
        "null",
        "{}",
        r#"{"id":"ID","worker_id":"W"}"#,
        r#"{"id":"ID","worker_id":"W","result":[]}"#,
        r#"{"id":"ID","worker_id":"W","result":{"state":7}}"#,
        r#"{"id":"other","worker_id":"W","result":{"sandbox_id":"sb-1","state":"running","provider":"","worker_id":"W"}}"#,
        r#"{"id":"ID","worker_id":"other","result":{"sandbox_id":"sb-1","state":"running","provider":"","worker_id":"W"}}"#,
    ] {
        let (address, _) = answering(of(body)).await;
        let error = status(&hasty(), &target(address)).await;
        assert!(is_unknown(&error), "{body}: {error:?}");
    }
    let right =
        r#"{"id":"ID","worker_id":"W","result":{"sandbox_id":"sb-1","state":"running","provider":"","worker_id":"W"}}"#;
    let (address, _) = answering(of(right)).await;
    client().status(&target(address), Call::new(&new_request_id()), &sandbox("sb-1")).await.unwrap();
}

#[tokio::test]
async fn deeply_nested_json_is_refused() {
    let (address, _) = answering(|heard| {
        let body = format!(r#"{{"id":"{}","worker_id":"{WORKER}","result":{}"#, heard.id(), "[".repeat(1 << 20));
        http(200, "application/json", &body)
    })
    .await;
    assert!(is_unknown(&status(&hasty(), &target(address)).await));
}

#[tokio::test]
async fn a_long_error_is_shortened_and_stays_on_one_line() {
    let (address, _) = answering(|heard| {
        let text = "\\u001b[31mred\\n".repeat(10_000);
        http(500, "application/json", &format!(r#"{{"id":"{}","error":"{text}","code":"internal"}}"#, heard.id()))
    })
    .await;
    let error = status(&hasty(), &target(address)).await;
    assert_eq!(error.code(), Some(Code::Internal));
    let text = error.to_string();
    assert!(text.len() < 2000 && !text.contains(char::is_control), "{} bytes", text.len());
}

async fn stream_of(
    client: &Client,
    lines: impl Fn(&Heard) -> Vec<u8> + Send + Sync + 'static,
) -> Option<Result<Option<i32>, Error>> {
    let (address, _) = server({
        let lines = std::sync::Arc::new(lines);
        move |mut stream| {
            let lines = std::sync::Arc::clone(&lines);
            async move {
                let Some(heard) = hear(&mut stream).await else { return };
                let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n";
                drop(stream.write_all(head).await);
                drop(stream.write_all(&lines(&heard)).await);
                if lines(&heard).ends_with(b"...") {
                    std::future::pending::<()>().await;
                }
            }
        }
    })
    .await;
    let id = new_request_id();
    let mut stream = client.exec_stream(&target(address), Call::new(&id), &command("true")).await.unwrap();
    drain(&mut stream).await.2
}

#[tokio::test]
async fn lines_that_are_not_of_the_contract_end_a_stream() {
    let line =
        |rest: &'static str| move |heard: &Heard| rest.replace('W', WORKER).replace("ID", &heard.id()).into_bytes();
    let done = "{\"id\":\"ID\",\"worker_id\":\"W\",\"done\":true,\"exit_code\":0}\n";
    assert_eq!(stream_of(&client(), line(done)).await, Some(Ok(Some(0))));
    let last = "{\"id\":\"ID\",\"worker_id\":\"W\",\"done\":true,\"exit_code\":2}";
    assert_eq!(stream_of(&client(), line(last)).await, Some(Ok(Some(2))), "the end of the body ends the line");
    for text in [
        "",
        "nonsense\n",
        "{}\n",
        "[1]\n",
        "{\"id\":\"other\",\"worker_id\":\"W\",\"done\":true,\"exit_code\":0}\n",
        "{\"id\":\"ID\",\"worker_id\":\"other\",\"done\":true,\"exit_code\":0}\n",
        "{\"id\":\"ID\",\"worker_id\":\"W\",\"result\":{\"stream\":\"stdout\",\"data\":\"\",\"data_b64\":\"?\"}}\n",
        "{\"id\":\"ID\",\"worker_id\":\"W\"}\n",
        // Single bytes are no sign of life.
        "{\"id\":\"ID\"...",
    ] {
        let end = stream_of(&hasty(), line(text)).await;
        assert!(matches!(&end, Some(Err(error)) if is_unknown(error)), "{text:?}: {end:?}");
    }
}

#[tokio::test]
async fn an_endless_line_ends_a_stream() {
    let (address, _) = server(|stream| async move {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n{\"id\":\"";
        endless(stream, head, b"xxxxxxxx").await;
    })
    .await;
    let id = new_request_id();
    let client = client();
    let mut stream = client.exec_stream(&target(address), Call::new(&id), &command("true")).await.unwrap();
    let end = drain(&mut stream).await.2;
    assert!(matches!(&end, Some(Err(Error::Unreachable { message, .. })) if message.contains("longer")), "{end:?}");
}

#[tokio::test]
async fn a_transfer_that_stands_still_is_given_up() {
    let (address, _) = server(|mut stream| async move {
        drop(hear(&mut stream).await);
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome").await);
        std::future::pending::<()>().await;
    })
    .await;
    let client = hasty();
    let mut content = client.read_file(&target(address), Call::new(&new_request_id()), &file("/a")).await.unwrap();
    assert_eq!(content.next().await.unwrap().unwrap(), "some");
    assert!(is_unknown(&content.next().await.unwrap().unwrap_err()));
    assert!(content.next().await.is_none());
    let endless = futures_util::stream::repeat_with(|| Ok::<_, String>(bytes::Bytes::from(vec![0; 1 << 20])));
    let id = new_request_id();
    let written = client.write_file(&target(address), Call::new(&id), &file("/a"), "", None, endless).await;
    // The answer came before the content was sent.
    drop(written);
    let (deaf, _) = server(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let endless = futures_util::stream::repeat_with(|| Ok::<_, String>(bytes::Bytes::from(vec![0; 1 << 20])));
    let written = client.write_file(&target(deaf), Call::new(&id), &file("/a"), "", None, endless).await;
    assert!(is_unknown(&written.unwrap_err()));
}

#[tokio::test]
async fn a_protocol_that_changes_unasked_is_an_error() {
    let answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let (address, _) = answering(|_| answer.to_vec()).await;
    let error = status(&hasty(), &target(address)).await;
    assert!(matches!(error, Error::Unreachable { .. } | Error::Failed { .. }), "{error:?}");
    let start = tenure_rpc::wire::SocketStart { exec: command("true"), ..Default::default() };
    let error = hasty().exec_socket(&target(address), Call::new(&new_request_id()), &start).await.unwrap_err();
    assert!(is_unknown(&error), "without the key: {error:?}");
}
