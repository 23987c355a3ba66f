//! Hostile clients, and too many of them.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tenure_core::TaskId;
use tenure_core::command::submit::{NewTask, Start, Submit};
use tenure_testkit::{RawClient, wait_until};

use crate::cases;
use crate::harness::{LONGEST_WAIT, SOON, Server, TOKEN};

cases!(
    Server,
    on_sqlite: [
        idle_and_slow_connections_block_nobody,
        requests_that_are_no_http_are_refused,
        too_many_headers_are_refused,
        what_is_too_much_is_turned_away,
        connections_beyond_the_cap_wait_for_their_turn,
    ],
    on_both_stores: [nul_bytes_in_texts_break_nothing, a_drain_ends_long_polls_and_finishes_what_was_accepted],
);

async fn idle_and_slow_connections_block_nobody(server: Server) {
    let mut clients = Vec::new();
    for n in 0..200 {
        let mut client = RawClient::connect(&server.url).await;
        match n % 4 {
            // Nothing at all, half a head, a head without its body, half a body.
            0 => {}
            1 => client.send("POST /internal/worker/claim HTT").await.unwrap(),
            2 => client.send("POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n").await.unwrap(),
            _ => client.send(format!("POST /internal/worker/claim HTTP/1.1\r\nHost: localhost\r\nX-Worker-Token: {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{\"worker")).await.unwrap(),
        }
        clients.push(client);
    }
    let started = Instant::now();
    let id = server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    assert_eq!(job["job_id"], json!(id));
    server.heartbeat("w-1", &job).await.ok();
    server.complete("w-1", &job, json!({})).await.ok();
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    // One that goes byte by byte gets its answer as long as it keeps going.
    let mut slow = RawClient::connect(&server.url).await;
    slow.send_slowly("GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n", Duration::from_millis(1)).await.unwrap();
    assert!(slow.read_until("\"alive\"", SOON).await.starts_with("HTTP/1.1 200 "));
    drop(clients);
}

async fn requests_that_are_no_http_are_refused(server: Server) {
    for text in [
        "\x16\x03\x01\x02\x00\x01\x00",
        "hello\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /api/v1/tasks HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: gzip\r\n\r\n",
    ] {
        let mut client = RawClient::connect(&server.url).await;
        client.send(text).await.unwrap();
        let answer = client.read_for(SOON).await;
        assert!(answer.closed, "{text:?}");
        assert!(answer.text.is_empty() || answer.text.starts_with("HTTP/1.1 4"), "{text:?}: {}", answer.text);
    }
    server.get("/api/v1/live").await.ok();
}

async fn too_many_headers_are_refused(server: Server) {
    let headers: String = (0..200).map(|n| format!("X-{n}: y\r\n")).collect();
    let mut client = RawClient::connect(&server.url).await;
    client.send(format!("GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")).await.unwrap();
    let answer = client.read_for(SOON).await;
    assert!(answer.closed && answer.text.starts_with("HTTP/1.1 431 "), "{}", answer.text);
    let mut client = RawClient::connect(&server.url).await;
    // It may hang up before all of it was sent.
    let _ = client.send(format!("GET /api/v1/live HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(1 << 20))).await;
    assert!(client.read_for(SOON).await.closed);
    server.get("/api/v1/live").await.ok();
}

async fn nul_bytes_in_texts_break_nothing(server: Server) {
    server.submit(json!({"tags": {"team": "etl"}})).await;
    for path in [
        "tasks?queue=%00",
        "tasks?operator=a%00b",
        "tasks?tenant=%00",
        "tasks?workspace=%00",
        "tasks?tag=team:%00",
        "tasks?tag=%00:x",
        "tasks?state=%00",
        "tasks?cursor=%00",
        "tasks/%00",
        "queues/%00",
        "queues?cursor=%00",
        "dead-letters?queue=%00",
        "dead-letters?operator=%00",
        "dead-letters?reason=%00",
        "dead-letters?tenant=%00",
    ] {
        let answer = server.get(&format!("/api/v1/{path}")).await;
        let expected = if path == "queues/%00" { 404 } else { 422 };
        assert_eq!(answer.status.as_u16(), expected, "{path}: {}", answer.body);
    }
    for field in ["queue", "operator", "reason", "error_code", "tenant"] {
        for dry_run in [true, false] {
            let body = json!({"filter": {field: "a\u{0}b"}, "dry_run": dry_run});
            let refused = server.post("/api/v1/dead-letters/redrive", body).await.refused(422);
            assert_eq!(refused["field"], format!("filter.{field}"));
        }
    }
    for (method, path) in [(Method::PUT, "queues/%00"), (Method::POST, "queues/a%00b/pause")] {
        let answer = server.call(method, &format!("/api/v1/{path}"), &[], Some(&json!({}))).await;
        assert_eq!(answer.refused(422)["field"], "name");
    }
    for task in [
        json!({"queue": "\u{0}"}),
        json!({"tags": {"a": "\u{0}"}}),
        json!({"idempotency_key": "\u{0}"}),
        json!({"traceparent": "\u{0}"}),
        json!({"operator": "\u{0}"}),
        json!({"workspace": "\u{0}"}),
    ] {
        let mut body = json!({"queue": "q", "operator": "op"});
        crate::harness::merge(&mut body, task);
        server.post("/api/v1/tasks", body).await.refused(422);
    }
    // Where it is data, it is kept.
    server.submit(json!({"queue": "data", "payload": "a\u{0}b"})).await;
    let claim = json!({"worker_id": "w-1", "streams": ["data"], "max_wait_ms": 0});
    let job = server.worker("claim", claim).await.ok();
    assert_eq!(job["payload"], "a\u{0}b");
    let mut beat = json!({"worker_id": "w-1", "job_id": job["job_id"], "lease_token": job["lease_token"]});
    beat["message"] = json!("a\u{0}b");
    beat["checkpoint"] = json!("a\u{0}b");
    server.worker("heartbeat", beat).await.ok();
    server.complete("w-1", &job, json!({"x": "a\u{0}b"})).await.ok();
    assert_eq!(server.task(job["job_id"].as_str().unwrap()).await["result"], json!({"x": "a\u{0}b"}));
}

/// Holds the store's writers up until it is dropped.
enum Held {
    Sqlite(rusqlite::Connection),
    Postgres { _client: tokio_postgres::Client },
}

impl Held {
    async fn hold(server: &Server) -> Self {
        if server.home.is_sqlite() {
            let path = server.home.url();
            let connection = rusqlite::Connection::open(path.trim_start_matches("sqlite:")).unwrap();
            connection.busy_timeout(SOON).unwrap();
            connection.execute_batch("BEGIN IMMEDIATE").unwrap();
            Self::Sqlite(connection)
        } else {
            let (client, connection) =
                tokio_postgres::connect(&server.home.url(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute("BEGIN; LOCK TABLE bodies IN SHARE MODE").await.unwrap();
            Self::Postgres { _client: client }
        }
    }

    fn is_sqlite(&self) -> bool {
        matches!(self, Self::Sqlite(connection) if !connection.is_autocommit())
    }
}

fn new_task(id: TaskId) -> Submit {
    let name: std::sync::Arc<str> = "heavy".into();
    let task = NewTask {
        id,
        queue: name.clone(),
        operator: name.clone(),
        tenant: name.clone(),
        owner: None,
        workspace: name,
        priority: 5,
        payload: "{}".into(),
        spec: Default::default(),
        start: Start::Now,
        tags: Default::default(),
        idempotency: None,
        traceparent: None,
        submitted_by: None,
        envelope: None,
    };
    Submit { tasks: vec![task], maker: None }
}

async fn what_is_too_much_is_turned_away(server: Server) {
    server.submit(json!({"queue": "other"})).await;
    let claim = json!({"worker_id": "w-1", "streams": ["other"], "max_wait_ms": 0});
    let job = server.worker("claim", claim.clone()).await.ok();
    let heavy = new_task(server.engine.mint(1).await.unwrap()[0]);
    let held = Held::hold(&server).await;
    // One caller fills all the room there is: it says that its task weighs that much.
    let mut filling = Box::pin(server.engine.submit(heavy, 1 << 30));
    assert!(futures_util::poll!(&mut filling).is_pending());
    let busy = server.post("/api/v1/tasks", json!({"queue": "q", "operator": "op"})).await;
    assert_eq!(busy.status.as_u16(), 503, "{}", busy.body);
    assert_eq!((&busy.body["error"], &busy.body["code"]), (&json!("overloaded"), &json!("UNAVAILABLE")));
    assert_eq!(busy.header("Retry-After"), "1");
    let refused = server.worker("claim", claim).await;
    assert_eq!((refused.status.as_u16(), &refused.body["error"]), (503, &json!("overloaded")));
    assert_eq!((refused.header("Retry-After"), &refused.body["ok"]), ("1", &json!(false)));
    // Heartbeats have a line of their own. On SQLite they need the same writer, which is held up here.
    if !held.is_sqlite() {
        assert_eq!(server.heartbeat("w-1", &job).await.ok()["ok"], true);
    }
    drop(held);
    assert!(matches!(filling.await, Ok(Ok(_))));
    // And then it is as if nothing had been.
    server.submit(json!({})).await;
    assert!(!server.claim("w-1").await.is_null());
}

async fn a_drain_ends_long_polls_and_finishes_what_was_accepted(mut server: Server) {
    let (client, url) = (reqwest::Client::new(), server.url.clone());
    let post = |path: &str, body: Value| {
        let request = client.post(format!("{url}{path}")).header("X-Worker-Token", TOKEN).json(&body);
        tokio::spawn(async move {
            // One that comes too late finds the port closed.
            let response = request.send().await.ok()?;
            Some((response.status().as_u16(), response.json::<Value>().await.unwrap()))
        })
    };
    let started = Instant::now();
    let poll = post("/internal/worker/claim", json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 60_000}));
    let claim = json!({"streams": ["q"], "max_wait_ms": 60_000});
    let exchange = post("/internal/worker/exchange", json!({"worker_id": "w-2", "claim": claim}));
    wait_until("both wait", SOON, async || server.engine.claims_waiting() == 2).await;
    // Brings numbers for new tasks, which the store would not give while it is held up.
    server.submit(json!({"queue": "first"})).await;
    // The store is slow: these are accepted and not done when the server is told to stop.
    let held = Held::hold(&server).await;
    let mut submits = Vec::new();
    wait_until("some stand in line", SOON, async || {
        let key = submits.len().to_string();
        submits.push(post("/api/v1/tasks", json!({"queue": "later", "operator": "op", "idempotency_key": key})));
        server.engine.waiting().0 > 0
    })
    .await;
    let stopping = async {
        let stopping = Instant::now();
        server.stop().await;
        stopping.elapsed()
    };
    let releasing = async {
        // Long polls end at once, whatever the store does.
        assert_eq!(poll.await.unwrap(), Some((200, json!({"claimed": false}))));
        assert_eq!(exchange.await.unwrap(), Some((200, json!({"jobs": []}))));
        assert!(started.elapsed() < LONGEST_WAIT);
        drop(held);
    };
    let (took, ()) = tokio::join!(stopping, releasing);
    assert!(took < SOON, "{took:?}");
    let mut accepted = 0;
    for submit in submits {
        let Some((status, body)) = submit.await.unwrap() else { continue };
        assert_eq!(status, 201, "{body}");
        accepted += 1;
    }
    assert!(accepted > 0);
    // The port is closed, and what was answered is there afterwards.
    assert!(client.get(format!("{url}/api/v1/live")).send().await.is_err());
    let server = server.restart().await;
    assert_eq!(server.queue("later").await["counts"]["ready"], accepted);
}

async fn connections_beyond_the_cap_wait_for_their_turn(server: Server) {
    let server = server.restart_with(|config, _| config.max_connections = 4).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(RawClient::connect(&server.url).await);
    }
    let mut waiting = RawClient::connect(&server.url).await;
    waiting.send("GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    assert_eq!(waiting.read_for(Duration::from_millis(300)).await.text, "");
    // One place becomes free, and it is served.
    idle.pop();
    assert!(waiting.read_until("\"alive\"", SOON).await.starts_with("HTTP/1.1 200 "));
    drop(idle);
}
