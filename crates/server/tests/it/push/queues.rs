//! The push block of a queue, as the user API sets and shows it.

use serde_json::{Value, json};

use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server};
use crate::push::kit::{self, push_to, sqlite};

cases!(
    kit,
    on_sqlite: [what_the_configuration_does_not_have_cannot_be_named, a_push_queue_has_no_transport],
    on_both_stores: [a_block_is_shown_with_its_defaults_and_kept_by_other_settings],
);

async fn a_block_is_shown_with_its_defaults_and_kept_by_other_settings(server: Server) {
    let url = "http://127.0.0.1:1/dispatch";
    let queue = push_to(&server, url, json!({"secret_ref": "etl-dispatch"})).await.ok();
    let block = json!({"url": url, "secret_ref": "etl-dispatch", "secret_header": ["X-Tenure-Dispatch-Secret"], "concurrency": 32, "ack_timeout_ms": 10_000,
        "start_timeout_ms": 60_000, "dispatch_timeout_ms": 300_000});
    assert_eq!((&queue["kind"], &queue["push"]), (&json!("push"), &block));
    let queue = server.put("/api/v1/queues/q", json!({"max_running": 5})).await.ok();
    assert_eq!((&queue["push"], &queue["limits"]["max_running"]), (&block, &json!(5)));
    assert_eq!(server.get("/api/v1/queues").await.ok()["items"][0]["push"], block);

    let whole = json!({"url": url, "secretRef": "etl-dispatch", "secretHeader": ["X-Arco-Dispatch-Secret", "Authorization"], "concurrency": 1, "rate_per_second": 50,
        "ack_timeout_ms": 100, "start_timeout_ms": 1000, "dispatch_timeout_ms": 1000});
    let queue = server.put("/api/v1/queues/q", json!({"push": whole})).await.ok();
    assert_eq!(
        (&queue["push"]["rate_per_second"], &queue["push"]["secret_ref"]),
        (&json!(50.0), &json!("etl-dispatch"))
    );
    assert_eq!(queue["push"]["secret_header"], json!(["X-Arco-Dispatch-Secret", "Authorization"]));
    assert_eq!(queue["limits"]["max_running"], Value::Null, "the whole setting is replaced");

    let queue = server.put("/api/v1/queues/q", json!({"push": null})).await.ok();
    assert_eq!((&queue["kind"], queue.get("push")), (&json!("pull"), None));
}

async fn what_the_configuration_does_not_have_cannot_be_named(server: Server) {
    let url = "http://127.0.0.1:1/dispatch";
    for (extra, field) in [
        (json!({"secret_ref": "nope"}), "push.secret_ref"),
        (json!({"mtls_ref": "nope"}), "push.mtls_ref"),
        (json!({"secret_header": ["Authorization"]}), "push.secret_header"),
        (json!({"concurrency": 0}), "push.concurrency"),
        (json!({"rate_per_second": -1}), "push.rate_per_second"),
        (json!({"ack_timeout_ms": 60_001}), "push.ack_timeout_ms"),
        (json!({"start_timeout_ms": 0}), "push.start_timeout_ms"),
        (json!({"dispatch_timeout_ms": 3_600_001}), "push.dispatch_timeout_ms"),
    ] {
        let refused = push_to(&server, url, extra).await.refused(422);
        assert_eq!(refused["field"], field, "{refused}");
        assert!(!refused.to_string().contains("etl-dispatch"), "{refused}");
    }
    server.put("/api/v1/queues/q", json!({"push": {}})).await.refused(422);
}

async fn a_push_queue_has_no_transport(server: Server) {
    let url = "http://127.0.0.1:1/dispatch";
    let both = json!({"transport": "redis", "push": {"url": url}});
    assert_eq!(server.put("/api/v1/queues/q", both).await.refused(422)["field"], "transport");
    push_to(&server, url, json!({})).await.ok();
    let refused = server.put("/api/v1/queues/q", json!({"transport": "redis"})).await.refused(422);
    assert_eq!(refused["field"], "transport");
    let queue = server.put("/api/v1/queues/q", json!({"transport": "embedded"})).await.ok();
    assert_eq!(queue["kind"], "push");
    server.put("/api/v1/queues/q", json!({"transport": "redis", "push": null})).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_address_to_report_to_no_queue_pushes() {
    let server = sqlite().await;
    server.config.push.as_ref().unwrap().update(|targets| targets.base_url = None);
    let refused = push_to(&server, "http://127.0.0.1:1/dispatch", json!({})).await.refused(422);
    assert!(refused["message"].as_str().unwrap().contains("callback.base_url"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_that_does_not_push_says_so() {
    let server = Server::sqlite().await;
    let refused = push_to(&server, "http://127.0.0.1:1/dispatch", json!({})).await.refused(422);
    assert_eq!(refused["field"], "push", "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_is_gone_stops_pushes_and_one_that_is_back_lets_them_go_on() {
    let server = sqlite().await;
    let worker = kit::Worker::answering(202).await;
    push_to(&server, &worker.url, json!({"secret_ref": "etl-dispatch"})).await.ok();
    let targets = server.config.push.clone().unwrap();
    let secrets = targets.get().secrets.clone();
    targets.update(|targets| targets.secrets.clear());
    let tasks = [server.submit(json!({})).await, server.submit(json!({})).await];
    targets.update(|targets| targets.secrets = secrets);
    wait_until("both pushes", SOON, async || {
        // What was granted while the secret was gone is due some seconds later.
        server.advance(250);
        (worker.count() >= 2).then_some(())
    })
    .await;
    for pushed in worker.pushed() {
        assert_eq!(pushed.header("x-tenure-dispatch-secret"), kit::SECRET, "never without it");
        pushed.succeed().await;
    }
    for task in tasks {
        server.until(&task, "Succeeded").await;
    }
}
