//! Outputs of tasks in the payloads of those behind them.

use serde_json::json;

use crate::harness::Server;
use crate::kit::{claim, complete, entry, shown, states, submit, task, these, with};
use crate::on_both_stores;

on_both_stores!(
    outputs_are_filled_in_when_a_task_is_ready,
    what_is_not_there_fails_the_task_and_skips_those_behind_it,
    a_payload_that_grows_too_large_fails_its_task,
    an_output_is_text_and_never_read_as_a_reference,
);

async fn outputs_are_filled_in_when_a_task_is_ready(server: Server) {
    let payload = json!({"rows": {"$from": "extract", "path": "/rows"}, "all": [{"$from": "other"}], "n": 1.5});
    let entries = vec![
        entry("extract", &[]),
        entry("other", &[]),
        with(entry("load", &["extract", "other"]), json!({"payload": payload})),
    ];
    let run = submit(&server, entries).await;
    complete(&server, &run, "extract", json!({"rows": [1, 2], "rest": "x"})).await;
    let id = task(&shown(&server, &run).await, "load")["task_id"].as_str().unwrap().to_owned();
    assert_eq!(server.task(&id).await["payload"], payload, "as it was submitted until then");
    // An output that was not given is null.
    let job = claim(&server, &run, "other").await;
    server.worker("complete", crate::harness::report("w-1", &job)).await.ok();
    let filled = json!({"rows": [1, 2], "all": [null], "n": 1.5});
    assert_eq!(server.task(&id).await["payload"], filled);
    assert_eq!(claim(&server, &run, "load").await["payload"], filled);
}

async fn what_is_not_there_fails_the_task_and_skips_those_behind_it(server: Server) {
    let payload = json!({"$from": "a", "path": "/none/0"});
    let run = submit(
        &server,
        vec![entry("a", &[]), with(entry("b", &["a"]), json!({"payload": payload})), entry("c", &["b"])],
    )
    .await;
    complete(&server, &run, "a", json!({"rows": []})).await;
    assert_eq!(states(&server, &run).await, these(&[("a", "SUCCEEDED"), ("b", "FAILED"), ("c", "SKIPPED")]));
    let view = shown(&server, &run).await;
    let error = &task(&view, "b")["error"];
    assert_eq!(
        (&error["code"], &error["retryable"], &view["state"]),
        (&json!("CONFIGURATION"), &json!(false), &json!("FAILED"))
    );
    assert!(error["message"].as_str().unwrap().contains("/none/0"), "{error}");
}

async fn a_payload_that_grows_too_large_fails_its_task(server: Server) {
    let payload = json!([{"$from": "a"}, {"$from": "a"}]);
    let run = submit(&server, vec![entry("a", &[]), with(entry("b", &["a"]), json!({"payload": payload}))]).await;
    complete(&server, &run, "a", json!("x".repeat(600_000))).await;
    let view = shown(&server, &run).await;
    let error = &task(&view, "b")["error"];
    assert_eq!(error["code"], "CONFIGURATION");
    assert!(error["message"].as_str().unwrap().contains("1048576"), "{error}");
}

async fn an_output_is_text_and_never_read_as_a_reference(server: Server) {
    let payload = |from: &str| json!({"payload": {"$from": from}});
    let entries = vec![entry("a", &[]), with(entry("b", &["a"]), payload("a")), with(entry("c", &["b"]), payload("b"))];
    let run = submit(&server, entries).await;
    complete(&server, &run, "a", json!({"$from": "c"})).await;
    assert_eq!(claim(&server, &run, "b").await["payload"], json!({"$from": "c"}));
}
