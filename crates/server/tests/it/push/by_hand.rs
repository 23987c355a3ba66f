//! A push by hand, and the headers that carry a secret.

use std::time::Duration;

use serde_json::json;
use tenure_auth::Secret;
use tenure_server::{PushTest, PushVerdict};

use crate::cases;
use crate::harness::Server;
use crate::push::kit::{self, SECRET, Worker, answer, dev_targets, keys, push_to};

cases!(
    kit,
    on_sqlite: [the_secret_is_sent_in_the_headers_that_the_queue_names],
);

async fn the_secret_is_sent_in_the_headers_that_the_queue_names(server: Server) {
    let worker = Worker::answering(202).await;
    let names = json!(["X-Arco-Dispatch-Secret", "authorization"]);
    push_to(&server, &worker.url, json!({"secret_ref": "etl-dispatch", "secret_header": names})).await.ok();
    server.submit(json!({})).await;
    let pushed = worker.nth(1).await;
    assert_eq!(pushed.header("x-arco-dispatch-secret"), SECRET);
    assert_eq!(pushed.header("authorization"), format!("Bearer {SECRET}"));
    assert_eq!(pushed.header("x-tenure-dispatch-secret"), "", "only where the queue says");
}

/// Runs the whole attempt before it answers, and rejects what it cannot report about.
#[tokio::test]
async fn a_worker_that_reports_on_a_test_at_once_is_acknowledged() {
    let worker = Worker::start(async |_, pushed| {
        let outcome = json!({"outcome": "SUCCEEDED", "output": {"rows": 1}});
        for (call, extra) in [("started", json!({})), ("heartbeat", json!({"progressPct": 50})), ("completed", outcome)]
        {
            let (status, body) = pushed.call(call, extra).await;
            if status != 200 || body["acknowledged"] != true {
                return answer(400);
            }
        }
        answer(200)
    })
    .await;
    let home = std::sync::Arc::new(crate::harness::Home::Sqlite(tempfile::tempdir().unwrap()));
    let task_keys = keys();
    let server = kit::on(home, std::sync::Arc::default(), Some(dev_targets()), task_keys.clone()).await;
    let (targets, secret) = (dev_targets(), Secret::new(SECRET));
    let test = PushTest {
        url: &worker.url,
        client: &targets.client,
        secret: secret.as_ref(),
        secret_headers: &["Authorization".to_owned()],
        keys: &task_keys,
        base_url: &server.url,
        timeout: Duration::from_secs(30),
    };
    let report = test.run().await.unwrap();
    assert_eq!(report.answer.unwrap().verdict, PushVerdict::Accepted);
    assert_eq!(worker.nth(1).await.header("authorization"), format!("Bearer {SECRET}"));
    assert_eq!(server.get("/api/v1/tasks").await.ok()["items"], json!([]), "nothing was recorded");
}
