//! Bodies in flight share one amount of memory, and one tenant leaves room for others.

use serde_json::json;
use tenure_testkit::{RawClient, wait_until};
use tokio::task::JoinSet;

use crate::cases;
use crate::harness::{SOON, Server, TOKEN};
use crate::identity::people::{ADMIN, get, made, post, restarted, with_users};

cases!(Server, on_sqlite: [bodies_of_one_tenant_leave_room_for_others],);

const MIB: usize = 1 << 20;

async fn in_use(server: &Server) -> usize {
    let text = get(server, &[ADMIN], "/metrics").await.body;
    let line = text.as_str().unwrap().lines().find_map(|line| line.strip_prefix("tenure_request_memory_bytes "));
    line.unwrap().parse().unwrap()
}

/// Sends the most of a body and then nothing.
async fn half_sent(server: &Server, path: &str, header: (&str, &str), bytes: usize) -> RawClient {
    let mut client = RawClient::connect(&server.url).await;
    let (name, value) = header;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\n{name}: {value}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        bytes + 1
    );
    client.send(head).await.unwrap();
    client.send(" ".repeat(bytes)).await.unwrap();
    client
}

async fn bodies_of_one_tenant_leave_room_for_others(server: Server) {
    with_users(&server);
    let (hostile, honest) =
        (made(&server, json!({"tenant": "evil"})).await, made(&server, json!({"tenant": "acme"})).await);
    let server = restarted(server, |_, config| config.request_memory_bytes = 16 * MIB).await;
    // Every body that is read counts, whatever its route.
    let mut held = Vec::new();
    for (path, header) in [
        ("/api/v1/tasks", hostile.header()),
        ("/api/v1/tasks/batch", hostile.header()),
        ("/api/v1/runs", hostile.header()),
        ("/api/v1/buffers/rows/publish", hostile.header()),
        ("/internal/worker/complete", ("X-Worker-Token", TOKEN)),
        ("/internal/worker/exchange", ("X-Worker-Token", TOKEN)),
    ] {
        let before = in_use(&server).await;
        held.push(half_sent(&server, path, header, MIB / 2).await);
        wait_until(path, SOON, async || in_use(&server).await >= before + MIB).await;
    }
    // It may have half of all. A body that finds no more room is refused after a while.
    for _ in 0..12 {
        held.push(half_sent(&server, "/api/v1/tasks", hostile.header(), MIB / 2).await);
    }
    wait_until("the tenant has its share", SOON, async || in_use(&server).await >= 8 * MIB).await;
    assert!(in_use(&server).await <= 12 * MIB);
    // Another tenant does not wait.
    let task = json!({"queue": "q", "operator": "op", "payload": "x".repeat(MIB / 4)});
    for _ in 0..5 {
        assert_eq!(post(&server, &[honest.header()], "/api/v1/tasks", task.clone()).await.status.as_u16(), 201);
    }
    // What the first ones give back may still be enough for some of those that wait.
    let mut answers = JoinSet::new();
    for mut client in held {
        answers.spawn(async move { client.read_until("\r\n\r\n", SOON).await.to_lowercase() });
    }
    let answers = answers.join_all().await;
    let is_refused = |head: &String| head.starts_with("http/1.1 503 ") && head.contains("retry-after: 5\r\n");
    assert!(answers.iter().any(is_refused), "{answers:?}");
    wait_until("all is given back", SOON, async || in_use(&server).await == 0).await;
    let task = json!({"queue": "own", "operator": "op", "payload": "x".repeat(MIB / 4)});
    assert_eq!(post(&server, &[hostile.header()], "/api/v1/tasks", task).await.status.as_u16(), 201);
}
