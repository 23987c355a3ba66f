//! Bodies that a client sends only when it is asked for them (`Expect: 100-continue`).

use std::time::Duration;

use tenure_testkit::RawClient;

use crate::cases;
use crate::dispatch::kit::{self, Plane};
use crate::harness::{SOON, TOKEN};

cases!(kit, on_sqlite: [a_body_that_was_not_asked_for_is_not_taken_for_a_request_nor_the_other_way_round],);

const LIVE: &str = "GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n";

struct Waiting {
    client: RawClient,
    /// What came before the body was sent.
    answer: String,
}

impl Waiting {
    /// Sends the head of a request, and waits for an answer as clients do.
    async fn send(plane: &Plane, line: &str, headers: &str, length: usize) -> Self {
        let mut client = RawClient::connect(&plane.url).await;
        let head = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Type: application/json\r\n\
             Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        );
        client.send(head).await.unwrap();
        let answer = client.read_until("\r\n\r\n", SOON).await.to_lowercase();
        Self { client, answer }
    }

    fn is_asked(&self) -> bool {
        self.answer.starts_with("http/1.1 100 ")
    }
}

/// Answers of the server to [`LIVE`] in a text.
fn lives(text: &str) -> usize {
    text.matches("\"alive\"").count()
}

async fn a_body_that_was_not_asked_for_is_not_taken_for_a_request_nor_the_other_way_round(plane: Plane) {
    let worker = format!("X-Worker-Token: {TOKEN}\r\n");
    let signed = "Authorization: AWS4-HMAC-SHA256 Credential=x\r\n";
    let huge = 1 << 30;
    let mut asked = 0;
    for (line, headers, length) in [
        // Refused before the body counts: nobody, nothing there, another method, too large.
        ("POST /internal/worker/claim", "", LIVE.len()),
        ("POST /internal/task-claim", "", LIVE.len()),
        ("POST /v1/task/complete", "", LIVE.len()),
        ("POST /v1/task/query", "", LIVE.len()),
        ("POST /v1/task/credentials", "", LIVE.len()),
        ("POST /v1/task/buffer-publish", "", LIVE.len()),
        ("POST /api/v1/nothing", "", LIVE.len()),
        ("PUT /api/v1/tasks", "", LIVE.len()),
        ("POST /api/v1/webhooks/nothing", "", LIVE.len()),
        ("POST /api/v1/tasks", "", huge),
        ("POST /api/v1/udf/bundles", "", huge),
        ("POST /api/v1/query", "", huge),
        ("POST /internal/worker/exchange", worker.as_str(), huge),
        ("PUT /tenure/s/x", "", LIVE.len()),
        ("PUT /tenure/s/x", signed, LIVE.len()),
        // Bodies that nobody reads.
        ("GET /api/v1/tasks", "", LIVE.len()),
        ("GET /api/v1/live", "", LIVE.len()),
        // Bodies that are read.
        ("POST /api/v1/tasks", "", LIVE.len()),
        ("POST /api/v1/dags", "", LIVE.len()),
        ("POST /api/v1/udf/bundles", "", LIVE.len()),
        ("POST /internal/worker/claim", worker.as_str(), LIVE.len()),
    ] {
        let own = usize::from(line.ends_with("/live"));
        let mut waiting = Waiting::send(&plane, line, headers, length).await;
        if waiting.is_asked() {
            asked += 1;
            assert_ne!(length, huge, "{line}");
            // The body looks like a request and is none; the request after it is one.
            waiting.client.send(format!("{LIVE}{LIVE}")).await.unwrap();
            let text = waiting.client.read_until("\"alive\"", SOON).await;
            let rest = waiting.client.read_for(Duration::from_millis(50)).await.text;
            assert_eq!(lives(&text) + lives(&rest), 1, "{line}: {text}{rest}");
            continue;
        }
        assert!(waiting.answer.contains("connection: close\r\n"), "{line}: {}", waiting.answer);
        // A client may send its body all the same, or its next request: neither is answered, and the connection ends.
        let _ = waiting.client.send(LIVE).await;
        let after = waiting.client.read_for(SOON).await;
        assert!(after.closed, "{line}: {after:?}");
        assert_eq!(lives(&waiting.answer) + lives(&after.text), own, "{line}: {after:?}");
        assert!(!after.text.contains("HTTP/1.1"), "{line}: {after:?}");
    }
    assert!((4..10).contains(&asked), "{asked} bodies were asked for");
}
