//! Crashes between a commit and what should follow it: nothing is lost, and nothing happens twice.

use std::time::Instant;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_engine::store::Fault;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{Answer, LONGEST_WAIT, SOON, Server, report, retryable};

cases!(
    Server,
    on_both_stores: [
        a_complete_whose_commit_got_no_answer_happens_once,
        a_fail_whose_commit_got_no_answer_happens_once,
    ],
    everywhere: [
        a_restart_loses_nothing_that_was_accepted,
        a_submit_whose_commit_got_no_answer_happens_once,
        a_claim_whose_commit_got_no_answer_is_granted_once,
    ],
);

/// Two servers share the store and nothing else: what one commits wakes nobody in the other, as if it had crashed right
/// behind the commit.
async fn woken_by_another<T>(prepare: impl AsyncFnOnce(&Server) -> T, act: impl AsyncFnOnce(&Server, T)) {
    let here = Server::postgres().await;
    let there = here.beside().await;
    let prepared = prepare(&there).await;
    let started = Instant::now();
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 60_000});
    let (job, ()) = tokio::join!(here.worker("claim", claim), async {
        wait_until("the claim waits", SOON, async || here.engine.claims_waiting() == 1).await;
        act(&there, prepared).await;
    });
    assert_eq!(job.ok()["claimed"], true);
    // By a sweep, which runs each second.
    assert!(started.elapsed() < LONGEST_WAIT, "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submit_elsewhere_reaches_a_waiting_claim_within_a_sweep() {
    woken_by_another(async |_| (), async |there, ()| drop(there.submit(json!({})).await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_elsewhere_reaches_a_waiting_claim_within_a_sweep() {
    let prepare = async |there: &Server| {
        there.submit(json!({"retry": {"initial_backoff_ms": 0}})).await;
        there.claim("w-2").await
    };
    let act = async |there: &Server, job: Value| drop(there.fail("w-2", &job, retryable()).await.ok());
    woken_by_another(prepare, act).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_elsewhere_reaches_a_waiting_claim_within_a_sweep() {
    let prepare = async |there: &Server| {
        there.submit(json!({"lease_ttl_seconds": 5, "retry": {"initial_backoff_ms": 0}})).await;
        assert!(!there.claim("w-2").await.is_null());
    };
    woken_by_another(prepare, async |there, ()| there.advance(5_000)).await;
}

async fn a_restart_loses_nothing_that_was_accepted(server: Server) {
    let ready = server.submit(json!({"payload": "ready"})).await;
    let scheduled = server.submit(json!({"queue": "later", "delay_ms": 60_000})).await;
    let running = server.submit(json!({"queue": "busy"})).await;
    let job = server.worker("claim", json!({"worker_id": "w-1", "job_id": running})).await.ok();
    let backoff =
        server.submit(json!({"queue": "again", "retry": {"initial_backoff_ms": 60_000, "jitter": "none"}})).await;
    let failing = server.worker("claim", json!({"worker_id": "w-1", "job_id": backoff})).await.ok();
    server.fail("w-1", &failing, retryable()).await.ok();
    let all = [&ready, &scheduled, &running, &backoff];
    let before = futures_util::future::join_all(all.map(|id| server.task(id))).await;
    let server = server.restart().await;
    let after = futures_util::future::join_all(all.map(|id| server.task(id))).await;
    assert_eq!(after, before);
    // The lease is the same one, and the ready task is there for the first who asks.
    assert_eq!(server.heartbeat("w-1", &job).await.ok()["ok"], true);
    assert_eq!(server.claim("w-2").await["job_id"], json!(ready));
    server.complete("w-1", &job, json!({})).await.ok();
    server.advance(60_000);
    server.until(&scheduled, "Ready").await;
    server.until(&backoff, "Ready").await;
}

/// Loses the answer of every step that the store takes for this call, one after the other, each with a fresh task.
/// `prepare` gives the call; `check` says whether what there is afterwards is right. Both are told how many calls there
/// were, this one included. A caller that gets no answer sends the same again, as a worker would; at least one of the
/// calls must have been saved by the server itself.
///
/// What the server does for itself takes steps too. One of those, in between, moves the lost answer to another step of
/// the call; then the one that matters, that of the commit, is met in another round.
async fn lose_every_answer(
    server: &Server,
    prepare: impl AsyncFn(u64) -> (String, Value),
    check: impl AsyncFn(u64, &str, Answer),
) {
    let (mut saved, mut calls) = (0, 0);
    for _round in 0..20 {
        for step in 1.. {
            assert!(step < 200, "the call takes no end of steps");
            calls += 1;
            let (path, body) = prepare(calls).await;
            let headers = [("X-Worker-Token", crate::harness::TOKEN)];
            server.engine.store().faults().fail_at(step, Fault::LostAnswer);
            let mut answer = server.call(Method::POST, &path, &headers, Some(&body)).await;
            let reached = !server.engine.store().faults().clear();
            if reached && answer.status.is_success() {
                saved += 1;
            }
            if answer.status.as_u16() == 503 {
                assert_eq!(answer.body["error"], "store_unavailable");
                assert_eq!(answer.header("Retry-After"), "1");
                answer = server.call(Method::POST, &path, &headers, Some(&body)).await;
            }
            check(calls, &path, answer).await;
            if !reached {
                assert!(step > 3, "only {step} steps");
                break;
            }
        }
        if saved > 0 {
            return;
        }
    }
    panic!("no call was saved by the server itself");
}

async fn a_submit_whose_commit_got_no_answer_happens_once(server: Server) {
    server.submit(json!({"queue": "warm-up"})).await;
    let prepare = async |step| {
        (
            "/api/v1/tasks".to_owned(),
            json!({"queue": format!("q-{step}"), "operator": "op", "idempotency_key": format!("k-{step}")}),
        )
    };
    lose_every_answer(&server, prepare, async |step, _, answer| {
        assert!(answer.status.is_success(), "{step}: {}", answer.body);
        let tasks = server.get(&format!("/api/v1/tasks?queue=q-{step}")).await.ok();
        assert_eq!(tasks["items"].as_array().unwrap().len(), 1, "{step}");
        assert_eq!(tasks["items"][0]["task_id"], answer.body["task_id"]);
        assert_eq!(server.queue(&format!("q-{step}")).await["counts"]["ready"], 1);
    })
    .await;
}

async fn a_claim_whose_commit_got_no_answer_is_granted_once(server: Server) {
    let prepare = async |step| {
        let queue = format!("q-{step}");
        server.submit(json!({"queue": queue})).await;
        server.submit(json!({"queue": queue})).await;
        ("/internal/worker/claim".to_owned(), json!({"worker_id": "w-1", "streams": [queue], "max_wait_ms": 0}))
    };
    lose_every_answer(&server, prepare, async |step, _, answer| {
        let job = answer.ok();
        assert_eq!((&job["claimed"], &job["attempt"]), (&json!(true), &json!(1)), "{step}");
        let counts = &server.queue(&format!("q-{step}")).await["counts"];
        assert_eq!((&counts["running"], &counts["ready"]), (&json!(1), &json!(1)), "{step}");
        assert_eq!(server.complete("w-1", &job, json!({})).await.ok()["ok"], true);
    })
    .await;
}

async fn a_complete_whose_commit_got_no_answer_happens_once(server: Server) {
    let prepare = async |_| {
        server.submit(json!({})).await;
        let job = server.claim("w-1").await;
        let mut body = report("w-1", &job);
        body["result"] = json!({"rows": 1});
        ("/internal/worker/complete".to_owned(), body)
    };
    lose_every_answer(&server, prepare, async |step, _, answer| {
        assert_eq!(answer.ok(), json!({"ok": true, "ack": true}), "{step}");
        let tasks = server.get("/api/v1/tasks?limit=1").await.ok();
        assert_eq!(
            (&tasks["items"][0]["state"], &tasks["items"][0]["result"]),
            (&json!("Succeeded"), &json!({"rows": 1}))
        );
        let attempts = server.attempts(tasks["items"][0]["task_id"].as_str().unwrap()).await;
        assert_eq!(attempts.len(), 1);
        assert!(attempts[0].get("late_report").is_none());
        assert_eq!(server.queue("q").await["counts"]["running"], 0);
    })
    .await;
}

async fn a_fail_whose_commit_got_no_answer_happens_once(server: Server) {
    let prepare = async |_| {
        server.submit(json!({"retry": {"initial_backoff_ms": 3_600_000, "jitter": "none"}})).await;
        let job = server.claim("w-1").await;
        let mut body = report("w-1", &job);
        body["error"] = retryable();
        ("/internal/worker/fail".to_owned(), body)
    };
    lose_every_answer(&server, prepare, async |step, _, answer| {
        assert_eq!(answer.ok(), json!({"ok": true, "ack": true, "requeued": true, "dlq": false}), "{step}");
        let tasks = server.get("/api/v1/tasks?limit=1").await.ok();
        assert_eq!((&tasks["items"][0]["state"], &tasks["items"][0]["attempt"]), (&json!("Scheduled"), &json!(1)));
        let counts = &server.queue("q").await["counts"];
        assert_eq!((&counts["scheduled"], &counts["running"]), (&json!(step), &json!(0)), "{step}");
    })
    .await;
}
