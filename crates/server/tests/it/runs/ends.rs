//! What the end of a task leads to.

use serde_json::json;

use crate::cases;
use crate::harness::{Server, fatal, retryable};
use crate::runs::kit::{chain, claim, complete, entry, fail, shown, states, submit, task, these, until, with};

cases!(
    Server,
    on_sqlite: [
        a_retry_spreads_nothing,
        a_canceled_task_cancels_all_behind_it,
        a_run_that_has_ended_cannot_be_canceled,
        duplicates_and_other_orders_reach_the_same_end,
        a_late_report_after_consequences_is_refused_and_kept,
        what_had_consequences_is_not_retried_alone,
        a_dead_worker_is_a_failure_like_any_other,
        a_deadline_passes_while_a_task_waits,
    ],
    everywhere: [
        tasks_run_in_the_order_of_the_graph,
        a_failure_skips_all_behind_it,
        a_canceled_run_ends_what_waits_and_asks_what_runs,
    ],
);

async fn tasks_run_in_the_order_of_the_graph(server: Server) {
    let run = chain(&server).await;
    for (key, left) in [("extract", "Ready"), ("load", "Ready"), ("report", "Ready")] {
        assert_eq!(task(&shown(&server, &run).await, key)["state"], left);
        let job = complete(&server, &run, key, json!({"of": key})).await;
        assert_eq!(job["attempt"], 1);
    }
    let now = these(&[("extract", "Succeeded"), ("load", "Succeeded"), ("other", "Ready"), ("report", "Succeeded")]);
    assert_eq!(states(&server, &run).await, now);
    assert_eq!(shown(&server, &run).await["state"], "Running");
    // A worker that only asks for the queue gets what is left, and nothing more.
    let job = server.claim("w-2").await;
    assert!(server.claim("w-2").await.is_null());
    server.complete("w-2", &job, json!(1)).await.ok();
    let run = shown(&server, &run).await;
    assert_eq!(
        (&run["state"], &run["counts"]["succeeded"], &run["counts"]["open"]),
        (&json!("Succeeded"), &json!(4), &json!(0))
    );
    assert!(run["finished_at"].as_str().unwrap().ends_with('Z'));
}

async fn a_failure_skips_all_behind_it(server: Server) {
    let run = chain(&server).await;
    fail(&server, &run, "extract").await;
    let now = these(&[("extract", "Failed"), ("load", "Skipped"), ("other", "Ready"), ("report", "Skipped")]);
    assert_eq!(states(&server, &run).await, now);
    let view = shown(&server, &run).await;
    let skipped = task(&view, "report");
    assert_eq!((&skipped["error"]["code"], &skipped["attempt"]), (&json!("UPSTREAM_FAILED"), &json!(0)));
    let as_task = server.task(skipped["task_id"].as_str().unwrap()).await;
    assert_eq!(as_task["state"], "Skipped");
    complete(&server, &run, "other", json!(1)).await;
    assert_eq!(shown(&server, &run).await["state"], "Failed");
}

async fn a_retry_spreads_nothing(server: Server) {
    let again = json!({"max_attempts": 2, "retry": {"initial_backoff_ms": 60_000, "jitter": "none"}});
    let run = submit(&server, vec![with(entry("a", &[]), again), entry("b", &["a"])]).await;
    let job = claim(&server, &run, "a").await;
    server.fail("w-1", &job, retryable()).await.ok();
    assert_eq!(states(&server, &run).await, these(&[("a", "Scheduled"), ("b", "Blocked")]));
    server.advance(60_000);
    let task_id = task(&shown(&server, &run).await, "a")["task_id"].as_str().unwrap().to_owned();
    server.until(&task_id, "Ready").await;
    complete(&server, &run, "a", json!(1)).await;
    assert_eq!(states(&server, &run).await, these(&[("a", "Succeeded"), ("b", "Ready")]));
}

async fn a_canceled_task_cancels_all_behind_it(server: Server) {
    let run = chain(&server).await;
    let id = task(&shown(&server, &run).await, "load")["task_id"].as_str().unwrap().to_owned();
    let answer = server.post(&format!("/api/v1/tasks/{id}/cancel"), json!({"reason": "not today"})).await.ok();
    assert_eq!(answer["state"], "Canceled");
    let now = these(&[("extract", "Ready"), ("load", "Canceled"), ("other", "Ready"), ("report", "Canceled")]);
    assert_eq!(states(&server, &run).await, now);
    assert_eq!(task(&shown(&server, &run).await, "report")["cancel_reason"], "not today");
    // The run goes on, and is Canceled in the end.
    complete(&server, &run, "extract", json!(1)).await;
    complete(&server, &run, "other", json!(1)).await;
    let view = shown(&server, &run).await;
    assert_eq!((&view["state"], &view["cancel_requested"]), (&json!("Canceled"), &json!(false)));
}

async fn a_canceled_run_ends_what_waits_and_asks_what_runs(server: Server) {
    let run = chain(&server).await;
    let job = claim(&server, &run, "extract").await;
    let path = format!("/api/v1/runs/{run}/cancel");
    let answer = server.post(&path, json!({"reason": "enough"})).await.ok();
    let expected = json!({"run_id": run, "state": "Canceling", "cancel_requested": true, "cancel_reason": "enough"});
    assert_eq!(answer, expected);
    let now = these(&[("extract", "Running"), ("load", "Canceled"), ("other", "Canceled"), ("report", "Canceled")]);
    assert_eq!(states(&server, &run).await, now);
    // A repeat keeps the first reason.
    assert_eq!(server.post(&path, json!({"reason": "other"})).await.ok(), expected);
    let beat = server.heartbeat("w-1", &job).await.ok();
    assert_eq!((&beat["should_cancel"], &beat["cancel_reason"]), (&json!(true), &json!("enough")));
    server.fail("w-1", &job, json!({"code": "CANCELLED", "message": "as asked"})).await.ok();
    let view = shown(&server, &run).await;
    assert_eq!(
        (&view["state"], &view["cancel_requested"], &view["cancel_reason"]),
        (&json!("Canceled"), &json!(true), &json!("enough"))
    );
    assert_eq!(server.post(&path, json!({})).await.ok()["state"], "Canceled", "a repeat is no error");
    assert!(server.claim("w-2").await.is_null(), "nothing of it is granted any more");
}

async fn a_run_that_has_ended_cannot_be_canceled(server: Server) {
    let run = submit(&server, vec![entry("a", &[])]).await;
    complete(&server, &run, "a", json!(1)).await;
    let answer = server.post(&format!("/api/v1/runs/{run}/cancel"), json!({})).await.refused(409);
    assert_eq!(
        (&answer["error"], &answer["message"]),
        (&json!("run_already_terminal"), &json!("the run has ended: Succeeded"))
    );
    let long = json!({"reason": "x".repeat(257)});
    assert_eq!(server.post(&format!("/api/v1/runs/{run}/cancel"), long).await.refused(422)["field"], "reason");
}

async fn duplicates_and_other_orders_reach_the_same_end(server: Server) {
    // Two before one: whichever ends first, and however often it says so.
    let entries = || vec![entry("a", &[]), entry("b", &[]), entry("c", &["a", "b"]), entry("d", &["c"])];
    let mut ends = Vec::new();
    for first in ["a", "b"] {
        let run = submit(&server, entries()).await;
        let (a, b) = (claim(&server, &run, "a").await, claim(&server, &run, "b").await);
        let report = async |key: &str| {
            if key == "a" {
                server.complete("w-1", &a, json!({"n": 1})).await.ok();
            } else {
                server.fail("w-1", &b, fatal()).await.ok();
            }
        };
        let second = if first == "a" { "b" } else { "a" };
        for key in [first, first, second, first, second] {
            report(key).await;
        }
        ends.push(states(&server, &run).await);
        assert_eq!(shown(&server, &run).await["state"], "Failed");
    }
    assert_eq!(ends[0], ends[1]);
    assert_eq!(ends[0], these(&[("a", "Succeeded"), ("b", "Failed"), ("c", "Skipped"), ("d", "Skipped")]));
}

async fn a_late_report_after_consequences_is_refused_and_kept(server: Server) {
    let short = json!({"lease_ttl_seconds": 5});
    let run =
        submit(&server, vec![with(entry("a", &[]), short.clone()), entry("b", &["a"]), with(entry("c", &[]), short)])
            .await;
    let (a, c) = (claim(&server, &run, "a").await, claim(&server, &run, "c").await);
    server.advance(5_000);
    let id = |job: &serde_json::Value| job["job_id"].as_str().unwrap().to_owned();
    server.until(&id(&a), "Failed").await;
    server.until(&id(&c), "Failed").await;
    let view = until(&server, &run, "Failed").await;
    assert_eq!(task(&view, "b")["state"], "Skipped");
    // One whose dependants were skipped, and one whose run has ended.
    for job in [&a, &c] {
        let answer = server.complete("w-1", job, json!({"late": true})).await.refused(409);
        assert_eq!(answer["error"], "attempt_closed", "{answer}");
        let attempts = server.attempts(&id(job)).await;
        assert_eq!(attempts[0]["late_report"]["outcome"], "Succeeded", "{attempts:?}");
        assert_eq!(attempts[0]["late_report"]["result"], json!({"late": true}));
    }
    assert_eq!(shown(&server, &run).await["state"], "Failed");
}

async fn what_had_consequences_is_not_retried_alone(server: Server) {
    let run = chain(&server).await;
    let job = fail(&server, &run, "extract").await;
    let skipped = task(&shown(&server, &run).await, "load")["task_id"].as_str().unwrap().to_owned();
    for id in [job["job_id"].as_str().unwrap(), &skipped] {
        let answer = server.post(&format!("/api/v1/tasks/{id}/retry"), json!({})).await.refused(409);
        assert_eq!(answer["error"], "task_not_retryable");
        assert!(answer["message"].as_str().unwrap().contains("/rerun"), "{answer}");
    }
    // A redrive leaves it where it is.
    let redrive = json!({"filter": {"queue": "q"}});
    server.post("/api/v1/dead-letters/redrive", redrive).await.ok();
    let again = json!({"filter": {"queue": "q"}, "idempotency_key": "k"});
    server.post("/api/v1/dead-letters/redrive", again).await.ok();
    assert_eq!(task(&shown(&server, &run).await, "extract")["state"], "Failed");
}

async fn a_dead_worker_is_a_failure_like_any_other(server: Server) {
    let short = json!({"lease_ttl_seconds": 5});
    let run = submit(&server, vec![with(entry("a", &[]), short), entry("b", &["a"])]).await;
    claim(&server, &run, "a").await;
    server.advance(5_000);
    let view = until(&server, &run, "Failed").await;
    assert_eq!(task(&view, "b")["state"], "Skipped");
    assert_eq!(task(&view, "a")["error"]["code"], "HEARTBEAT_TIMEOUT");
}

async fn a_deadline_passes_while_a_task_waits(server: Server) {
    let now = server.engine.now().await.unwrap();
    let soon = json!({"deadline": now.plus(60_000).to_string()});
    let run = submit(&server, vec![entry("a", &[]), with(entry("b", &["a"]), soon), entry("c", &["b"])]).await;
    let job = claim(&server, &run, "a").await;
    server.advance(30_000);
    server.heartbeat("w-1", &job).await.ok();
    server.advance(30_000);
    let id = task(&shown(&server, &run).await, "b")["task_id"].as_str().unwrap().to_owned();
    let failed = server.until(&id, "Failed").await;
    assert_eq!(
        (&failed["reason"], &failed["error"]["code"]),
        (&json!("deadline_exceeded"), &json!("DEADLINE_EXCEEDED"))
    );
    assert_eq!(task(&shown(&server, &run).await, "c")["state"], "Skipped");
    server.complete("w-1", &job, json!(1)).await.ok();
    assert_eq!(shown(&server, &run).await["state"], "Failed");
}
