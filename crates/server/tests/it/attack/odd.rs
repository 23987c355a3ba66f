//! Odd input: requests that no client sends by accident, and names that are not what they seem.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tenure_testkit::RawClient;

use crate::cases;
use crate::harness::Server;

cases!(
    Server,
    on_sqlite: [
        a_request_without_one_host_is_refused,
        paths_that_are_not_text_are_refused,
        names_that_cannot_be_read_are_refused,
        lines_that_end_with_lf_alone_hide_no_second_request,
    ],
);

const PATIENCE: Duration = Duration::from_secs(10);

/// Sends these bytes and returns the status and the rest of the answer.
async fn raw(server: &Server, request: &[u8]) -> (u16, String) {
    let mut client = RawClient::connect(&server.url).await;
    client.send(request).await.unwrap();
    let answer = client.read_for(PATIENCE).await;
    let status = answer.text.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{:?}", answer.text)), answer.text)
}

async fn a_request_without_one_host_is_refused(server: Server) {
    let get = |headers: &str| format!("GET /api/v1/tasks HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").into_bytes();
    let (status, text) = raw(&server, &get("")).await;
    assert!(status == 400 && text.contains("no Host header"), "{text}");
    let (status, text) = raw(&server, &get("Host: localhost\r\nHost: evil.example\r\n")).await;
    assert!(status == 400 && text.contains("more than one Host header"), "{text}");
    assert_eq!(raw(&server, &get("Host: localhost\r\n")).await.0, 200);
    let (status, _) = raw(&server, &get("Host: localhost\r\nX-A: b\0c\r\n")).await;
    assert_eq!(status, 400, "a header with NUL");
    let (status, _) = raw(&server, &get("Host: localhost\r\n folded\r\n")).await;
    assert_eq!(status, 400, "a folded header");
    let (status, _) = raw(&server, &get("Host: localhost\r\nX-A: b\rX-B: c\r\n")).await;
    assert_eq!(status, 400, "a header with a bare CR");
}

async fn paths_that_are_not_text_are_refused(server: Server) {
    for path in ["/api/v1/tasks/%ff%fe", "/api/v1/queues/%c3%28", "/api/v1/queues/%ff", "/api/v1/tasks?queue=%ff"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let (status, text) = raw(&server, request.as_bytes()).await;
        assert!((400..500).contains(&status), "{path}: {text}");
        assert!(text.contains("\"error\":") && text.contains("\"message\":"), "{path}: {text}");
    }
    let (status, _) =
        raw(&server, b"GET /api/v1/queues/\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!((400..500).contains(&status), "{status}");
}

async fn names_that_cannot_be_read_are_refused(server: Server) {
    for odd in ["a\u{85}b", "a\u{9b}31mb", "pay\u{202e}lor", "a\u{2066}b", "que\u{200b}ue", "\u{feff}q", "q\u{ad}"] {
        let task = |field: &str| {
            let mut task = json!({"queue": "q", "operator": "op", "tags": {"k": "v"}});
            match field {
                "tags" => task["tags"] = json!({"k": odd}),
                field => task[field] = json!(odd),
            }
            task
        };
        for field in ["queue", "operator", "tags"] {
            let answer = server.call(Method::POST, "/api/v1/tasks", &[], Some(&task(field))).await;
            assert_eq!(answer.status.as_u16(), 422, "{field} {odd:?}: {}", answer.body);
            let message = answer.body["message"].as_str().unwrap();
            assert!(message.contains("invisible") && !message.contains(odd), "{message}");
        }
    }
    let fine = json!({"queue": "größe-漢字", "operator": "op", "tags": {"k": "🙂 é"}});
    assert_eq!(server.call(Method::POST, "/api/v1/tasks", &[], Some(&fine)).await.status.as_u16(), 201);
}

/// RFC 9112 lets a server read LF alone as the end of a line of the head. In a chunked body that would let a proxy before the
/// server and the server disagree about where a request ends: it is refused there.
async fn lines_that_end_with_lf_alone_hide_no_second_request(server: Server) {
    let (status, text) = raw(&server, b"GET /api/v1/tasks HTTP/1.1\nHost: localhost\nConnection: close\n\n").await;
    assert!(status == 200 && text.matches("HTTP/1.1 ").count() == 1, "{text}");
    let (status, text) = raw(&server, b"GET /api/v1/tasks HTTP/1.1\nHost: localhost\nHost: evil.example\n\n").await;
    assert!(status == 400 && text.contains("more than one Host header"), "{text}");
    let head = "POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let hidden = "GET /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for body in ["2\n{}\r\n0\r\n\r\n", "2\r\n{}\n0\r\n\r\n", "0\n\r\n", "2;a=\nb\r\n{}\r\n0\r\n\r\n"] {
        let (status, text) = raw(&server, format!("{head}{body}{hidden}").as_bytes()).await;
        assert!((400..500).contains(&status), "{body:?}: {text}");
        assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{body:?} let a second request in: {text}");
    }
    for both in ["Content-Length: 2\r\nTransfer-Encoding: chunked", "Content-Length: 2\r\nContent-Length: 3"] {
        let request = format!("POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\n{both}\r\n\r\n0\r\n\r\n{hidden}");
        let (_, text) = raw(&server, request.as_bytes()).await;
        assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{both:?} let a second request in: {text}");
    }
}
