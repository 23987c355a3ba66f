//! Outputs of tasks in the payloads of those behind them.

use serde_json::json;
use tenure_core::limits;

use crate::cases;
use crate::harness::Server;
use crate::runs::kit::{claim, complete, entry, shown, states, submit, task, these, with};

cases!(
    Server,
    on_sqlite: [
        what_is_not_there_fails_the_task_and_skips_those_behind_it,
        a_payload_that_grows_too_large_fails_its_task,
        an_output_is_text_and_never_read_as_a_reference,
        references_are_bounded,
    ],
    on_both_stores: [
        outputs_are_filled_in_when_a_task_is_ready,
        outputs_that_are_too_large_together_fail_their_task_alone,
    ],
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
    assert_eq!(states(&server, &run).await, these(&[("a", "Succeeded"), ("b", "Failed"), ("c", "Skipped")]));
    let view = shown(&server, &run).await;
    let error = &task(&view, "b")["error"];
    assert_eq!(
        (&error["code"], &error["retryable"], &view["state"]),
        (&json!("CONFIGURATION"), &json!(false), &json!("Failed"))
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

async fn outputs_that_are_too_large_together_fail_their_task_alone(server: Server) {
    // One more than may be read for one end, each as large as an output may be; all but the last end before.
    let count = (limits::NAMED_BYTES >> 20) + 2;
    let keys: Vec<String> = (0..count).map(|n| format!("t{n}")).collect();
    let named: Vec<&str> = keys.iter().map(String::as_str).collect();
    let parts: Vec<_> = named.iter().map(|key| json!({"$from": key, "path": "/n"})).collect();
    let mut entries: Vec<_> = keys.iter().map(|key| entry(key, &[])).collect();
    entries.push(with(entry("all", &named), json!({"payload": parts})));
    entries.push(with(entry("few", &named), json!({"payload": parts[..3]})));
    let run = submit(&server, entries).await;
    let big = json!({"n": 7, "rest": "x".repeat((1 << 20) - 100)});
    for key in &keys {
        complete(&server, &run, key, big.clone()).await;
    }
    let view = shown(&server, &run).await;
    let error = &task(&view, "all")["error"];
    assert_eq!(error["code"], "CONFIGURATION", "{}", task(&view, "all"));
    assert!(error["message"].as_str().unwrap().contains("64 MiB"), "{error}");
    assert_eq!(claim(&server, &run, "few").await["payload"], json!([7, 7, 7]));
}

async fn references_are_bounded(server: Server) {
    let submitted = async |payload, names: &[&str]| {
        let mut entries: Vec<_> = names.iter().map(|name| entry(name, &[])).collect();
        entries.push(with(entry("last", names), json!({"payload": payload})));
        server.post("/api/v1/runs", json!({"tasks": entries})).await.refused(422)
    };
    let deep = json!({"$from": "a", "path": "/0".repeat(limits::PATH_STEPS + 1)});
    let refused = submitted(deep, &["a"]).await;
    assert!(refused["message"].as_str().unwrap().contains("65 steps"), "{refused}");
    let names: Vec<String> = (0..=limits::REFERENCES).map(|n| format!("t{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let many: Vec<_> = names.iter().map(|name| json!({"$from": name})).collect();
    let refused = submitted(json!(many), &names).await;
    assert!(refused["message"].as_str().unwrap().contains("1001 tasks"), "{refused}");
}
