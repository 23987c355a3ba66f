//! A run once more, from where it failed.

use serde_json::json;

use crate::cases;
use crate::harness::Server;
use crate::runs::kit::{chain, claim, complete, entry, fail, shown, states, submit, task, these, with};

cases!(
    Server,
    on_sqlite: [
        only_what_failed_or_was_cancelled_is_repeated,
        a_run_key_makes_a_rerun_safe_to_repeat,
        references_are_filled_in_from_what_was_carried_over,
        a_rerun_of_a_rerun_goes_on_from_there,
        a_deadline_that_has_passed_stops_no_rerun,
        outputs_that_are_too_large_together_are_not_carried_over,
    ],
    on_both_stores: [what_succeeded_is_carried_over_and_the_rest_runs_anew],
);

async fn what_succeeded_is_carried_over_and_the_rest_runs_anew(server: Server) {
    let run = chain(&server).await;
    complete(&server, &run, "extract", json!({"rows": 3})).await;
    fail(&server, &run, "load").await;
    complete(&server, &run, "other", json!(1)).await;
    let parent = shown(&server, &run).await;
    assert_eq!(parent["state"], "Failed");
    let answer = server.post(&format!("/api/v1/runs/{run}/rerun"), json!({"mode": "from_failure"})).await;
    assert_eq!(answer.status.as_u16(), 201, "{}", answer.body);
    let again = answer.body;
    assert_eq!(
        (&again["parent_run_id"], &again["created"], &again["state"]),
        (&json!(run), &json!(true), &json!("Running"))
    );
    let new = again["run_id"].as_str().unwrap();
    assert_ne!(new, run);
    let now = these(&[("extract", "Succeeded"), ("load", "Ready"), ("other", "Succeeded"), ("report", "Blocked")]);
    assert_eq!(states(&server, new).await, now);
    // Its output came along, and nothing was executed for it.
    let carried = server.task(task(&again, "extract")["task_id"].as_str().unwrap()).await;
    assert_eq!(
        (&carried["result"], &carried["attempt"], &carried["state"]),
        (&json!({"rows": 3}), &json!(0), &json!("Succeeded"))
    );
    assert_eq!(server.attempts(carried["task_id"].as_str().unwrap()).await.len(), 0);
    complete(&server, new, "load", json!(1)).await;
    complete(&server, new, "report", json!(1)).await;
    assert_eq!(shown(&server, new).await["state"], "Succeeded");
    assert_eq!(shown(&server, &run).await, parent, "the first one stays as it ended");
}

async fn only_what_failed_or_was_cancelled_is_repeated(server: Server) {
    let run = submit(&server, vec![entry("a", &[]), entry("b", &["a"])]).await;
    let path = format!("/api/v1/runs/{run}/rerun");
    let refused = server.post(&path, json!({})).await.refused(409);
    assert_eq!(refused["error"], "run_not_rerunnable");
    assert!(refused["message"].as_str().unwrap().contains("Running"), "{refused}");
    complete(&server, &run, "a", json!(1)).await;
    complete(&server, &run, "b", json!(1)).await;
    assert_eq!(server.post(&path, json!({})).await.refused(409)["error"], "run_not_rerunnable");
    assert_eq!(server.post(&path, json!({"mode": "all"})).await.refused(422)["field"], "mode");
    server.post("/api/v1/runs/run_01HGW5N7XHJM4GX29KZRXQP6N9/rerun", json!({})).await.refused(404);

    let run = submit(&server, vec![entry("a", &[])]).await;
    server.post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await.ok();
    assert_eq!(server.post(&format!("/api/v1/runs/{run}/rerun"), json!({})).await.status.as_u16(), 201);
}

async fn a_run_key_makes_a_rerun_safe_to_repeat(server: Server) {
    let run = submit(&server, vec![entry("a", &[])]).await;
    fail(&server, &run, "a").await;
    let path = format!("/api/v1/runs/{run}/rerun");
    let ask = json!({"mode": "from_failure", "run_key": "again-1"});
    let first = server.post(&path, ask.clone()).await;
    assert_eq!(first.status.as_u16(), 201);
    let again = server.post(&path, ask.clone()).await;
    assert_eq!((again.status.as_u16(), &again.body["run_id"]), (200, &first.body["run_id"]));
    // Without a key each is a new one; the key of another run is a conflict.
    assert_eq!(server.post(&path, json!({})).await.status.as_u16(), 201);
    let other = submit(&server, vec![entry("a", &[])]).await;
    fail(&server, &other, "a").await;
    let conflict = server.post(&format!("/api/v1/runs/{other}/rerun"), ask).await.refused(409);
    assert_eq!((&conflict["error"], &conflict["existing_run_id"]), (&json!("run_key_conflict"), &first.body["run_id"]));
}

async fn references_are_filled_in_from_what_was_carried_over(server: Server) {
    let asks = |from: &str| json!({"payload": {"in": {"$from": from}}});
    let entries = vec![entry("a", &[]), with(entry("b", &["a"]), asks("a")), with(entry("c", &["b"]), asks("b"))];
    let run = submit(&server, entries).await;
    complete(&server, &run, "a", json!([7])).await;
    fail(&server, &run, "b").await;
    let again = server.post(&format!("/api/v1/runs/{run}/rerun"), json!({})).await.ok();
    let new = again["run_id"].as_str().unwrap();
    let job = claim(&server, new, "b").await;
    assert_eq!(job["payload"], json!({"in": [7]}));
    server.complete("w-1", &job, json!({"x": 1})).await.ok();
    assert_eq!(claim(&server, new, "c").await["payload"], json!({"in": {"x": 1}}));
}

async fn a_rerun_of_a_rerun_goes_on_from_there(server: Server) {
    let mut run = chain(&server).await;
    complete(&server, &run, "other", json!(1)).await;
    for key in ["extract", "load", "report"] {
        fail(&server, &run, key).await;
        let again = server.post(&format!("/api/v1/runs/{run}/rerun"), json!({})).await.ok();
        assert_eq!(again["parent_run_id"], json!(run));
        run = again["run_id"].as_str().unwrap().to_owned();
        complete(&server, &run, key, json!({"of": key})).await;
    }
    assert_eq!(shown(&server, &run).await["state"], "Succeeded");
}

async fn a_deadline_that_has_passed_stops_no_rerun(server: Server) {
    // The deadline keeps the tokens short; without it they would have to live for longer than a token may.
    let deadline = server.engine.now().await.unwrap().plus(600_000).to_string();
    let asked = json!({"timeout_ms": 86_400_000_i64, "deadline": deadline, "token_ttl_seconds": 1200});
    let run = submit(&server, vec![with(entry("a", &[]), asked)]).await;
    fail(&server, &run, "a").await;
    server.advance(700_000);
    let again = server.post(&format!("/api/v1/runs/{run}/rerun"), json!({})).await;
    assert_eq!(again.status.as_u16(), 201, "{}", again.body);
}

async fn outputs_that_are_too_large_together_are_not_carried_over(server: Server) {
    let run = submit(&server, vec![entry("a", &[]), entry("b", &[]), entry("c", &["a", "b"])]).await;
    complete(&server, &run, "a", json!(1)).await;
    complete(&server, &run, "b", json!(1)).await;
    fail(&server, &run, "c").await;
    // Only many workers could bring so much together; each of the two is within the bound.
    let half = tenure_core::limits::CARRIED_BYTES / 2;
    let text =
        if server.home.is_sqlite() { format!("hex(zeroblob({}))", half / 2) } else { format!("repeat('0', {half})") };
    server.home.execute(&format!("UPDATE finished SET result = {text} WHERE ended = 1")).await;
    let path = format!("/api/v1/runs/{run}/rerun");
    let refused = server.post(&path, json!({})).await.refused(422);
    assert_eq!(refused["field"], "id");
    assert!(refused["message"].as_str().unwrap().contains("the maximum is 128 MiB"), "{refused}");
    server.home.execute("UPDATE finished SET result = '1' WHERE ended = 1").await;
    assert_eq!(server.post(&path, json!({})).await.status.as_u16(), 201);
}
