//! The exchange: reports, heartbeats and a claim in one request.

use std::time::Instant;

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{LONGEST_WAIT, SOON, Server, TOKEN, fatal, retryable};

cases!(
    Server,
    on_sqlite: [
        a_refused_item_refuses_nothing_else,
        a_claim_does_not_wait_when_reports_were_sent,
        a_claim_alone_waits,
        a_split_answer_sends_the_reports_before_the_claim,
        a_split_answer_without_a_claim_ends,
        too_many_items_are_refused_as_a_whole,
        a_bad_claim_refuses_the_whole_and_reports_nothing,
        an_older_incarnation_is_turned_away,
        workers_without_incarnations_keep_what_they_hold,
    ],
    on_both_stores: [
        every_part_is_answered_in_order,
        a_worker_that_leaves_a_split_exchange_takes_no_job,
        a_new_incarnation_voids_what_the_old_process_held,
        a_watch_ends_when_a_job_of_the_worker_is_to_stop,
    ],
);

async fn claim_many(server: &Server, n: usize) -> Vec<Value> {
    let tasks =
        vec![json!({"queue": "q", "operator": "op", "retry": {"initial_backoff_ms": 60_000, "jitter": "none"}}); n];
    server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok();
    let turn = json!({"worker_id": "w-1", "claim": {"streams": ["q"], "max_jobs": n, "max_wait_ms": 0}});
    let jobs = server.worker("exchange", turn).await.ok()["jobs"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), n);
    jobs
}

fn item(job: &Value, extra: Value) -> Value {
    let mut item = json!({"job_id": job["job_id"], "attempt_id": job["attempt_id"], "lease_token": job["lease_token"]});
    crate::harness::merge(&mut item, extra);
    item
}

async fn every_part_is_answered_in_order(server: Server) {
    let jobs = claim_many(&server, 5).await;
    server.submit(json!({})).await;
    let turn = json!({
        "worker_id": "w-1",
        "complete": [item(&jobs[0], json!({"result": {"n": 0}})), item(&jobs[1], json!({}))],
        "fail": [item(&jobs[2], json!({"error": retryable()})), item(&jobs[3], json!({"error": fatal()}))],
        "heartbeat": [{"job_id": jobs[4]["job_id"], "lease_token": jobs[4]["lease_token"], "progress_pct": 40, "message": "half"}],
        "claim": {"streams": ["q"], "max_jobs": 10, "max_wait_ms": 0},
    });
    let answer = server.worker("exchange", turn.clone()).await.ok();
    let done = json!({"ok": true, "ack": true});
    assert_eq!(answer["complete"], json!([done, done]));
    let fail = json!([{"ok": true, "ack": true, "requeued": true, "dlq": false}, {"ok": true, "ack": true, "requeued": false, "dlq": true}]);
    assert_eq!(answer["fail"], fail);
    let beat = &answer["heartbeat"][0];
    assert_eq!((&beat["ok"], &beat["should_cancel"]), (&json!(true), &json!(false)));
    assert!(beat["lease_expires_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(answer["jobs"].as_array().unwrap().len(), 1);
    let task = server.task(jobs[4]["job_id"].as_str().unwrap()).await;
    assert_eq!((&task["progress_pct"], &task["progress_message"]), (&json!(40), &json!("half")));
    // Sent again it is a replay, item by item.
    let again = server.worker("exchange", turn).await.ok();
    assert_eq!((&again["complete"], &again["fail"]), (&answer["complete"], &answer["fail"]));
    // Parts that were not asked for are not answered.
    let only = server.worker("exchange", json!({"worker_id": "w-1"})).await.ok();
    assert_eq!(only, json!({}));
}

async fn a_refused_item_refuses_nothing_else(server: Server) {
    let jobs = claim_many(&server, 4).await;
    let unknown =
        json!({"job_id": "018c385a-9fb1-9509-0e89-33fe3b7b1aa9", "attempt_id": "att_1", "lease_token": "lt_1"});
    let big = "x".repeat((1 << 20) + 1);
    let turn = json!({
        "worker_id": "w-1",
        "complete": [
            item(&jobs[0], json!({"lease_token": "lt_wrong"})),
            unknown,
            item(&jobs[1], json!({"result": big})),
            item(&jobs[2], json!({"job_id": ""})),
            item(&jobs[3], json!({"result": 3})),
        ],
        "fail": [item(&jobs[0], json!({"error": {"code": "", "message": "x"}})), item(&jobs[2], json!({"error": fatal()}))],
        "heartbeat": [
            {"job_id": jobs[0]["job_id"], "lease_token": "lt_wrong"},
            {"job_id": jobs[0]["job_id"], "lease_token": jobs[0]["lease_token"], "progress_pct": 101},
            {"job_id": jobs[0]["job_id"], "lease_token": jobs[0]["lease_token"]},
        ],
    });
    let answer = server.worker("exchange", turn).await.ok();
    let words = |part: &Value| -> Vec<(u64, String)> {
        let of = |item: &Value| {
            let word = item["error"].as_str().unwrap_or("").to_owned();
            (item["http_status"].as_u64().unwrap_or(200), word)
        };
        part.as_array().unwrap().iter().map(of).collect()
    };
    let expected = |items: &[(u64, &str)]| items.iter().map(|(s, w)| (*s, (*w).to_owned())).collect::<Vec<_>>();
    let complete = [
        (409, "stale_lease"),
        (404, "job_not_found"),
        (413, "payload_too_large"),
        (422, "invalid_argument"),
        (200, ""),
    ];
    assert_eq!(words(&answer["complete"]), expected(&complete));
    assert_eq!(words(&answer["fail"]), expected(&[(422, "invalid_argument"), (200, "")]));
    let beats = [(409, "stale_lease"), (422, "invalid_argument"), (200, "")];
    assert_eq!(words(&answer["heartbeat"]), expected(&beats));
    assert_eq!((&answer["complete"][0]["ack"], &answer["complete"][0]["status"]), (&json!(false), &json!("RUNNING")));
    assert_eq!((&answer["complete"][3]["field"], &answer["complete"][1]["ack"]), (&json!("job_id"), &Value::Null));
    assert_eq!(server.state(jobs[3]["job_id"].as_str().unwrap()).await, "Succeeded");
    assert_eq!(server.state(jobs[2]["job_id"].as_str().unwrap()).await, "Failed");
    assert_eq!(server.state(jobs[0]["job_id"].as_str().unwrap()).await, "Running");
}

async fn a_claim_does_not_wait_when_reports_were_sent(server: Server) {
    let jobs = claim_many(&server, 1).await;
    let started = Instant::now();
    let claim = json!({"streams": ["q"], "max_jobs": 1, "max_wait_ms": 60_000});
    let turn = json!({"worker_id": "w-1", "complete": [item(&jobs[0], json!({}))], "claim": claim});
    let answer = server.worker("exchange", turn).await.ok();
    assert_eq!((&answer["complete"][0]["ok"], &answer["jobs"]), (&json!(true), &json!([])));
    assert!(started.elapsed() < LONGEST_WAIT);
}

async fn a_claim_alone_waits(server: Server) {
    let claim = json!({"streams": ["q"], "max_jobs": 1, "max_wait_ms": 60_000});
    // Empty parts are no reports.
    let turn = json!({"worker_id": "w-1", "complete": [], "heartbeat": null, "claim": claim});
    let started = Instant::now();
    let (answer, id) = tokio::join!(server.worker("exchange", turn), async {
        wait_until("the claim waits", SOON, async || server.engine.claims_waiting() == 1).await;
        server.submit(json!({})).await
    });
    assert_eq!(answer.ok()["jobs"][0]["job_id"], json!(id));
    assert!(started.elapsed() < LONGEST_WAIT);
}

/// Sends an exchange with `split` and gives the open answer.
async fn split(server: &Server, turn: &Value) -> reqwest::Response {
    let request = reqwest::Client::new().post(format!("{}/internal/worker/exchange", server.url));
    let response = request.header("X-Worker-Token", TOKEN).json(turn).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    assert_eq!(response.headers()["x-tenure-contract"], "pull/1");
    response
}

/// The next line of an NDJSON answer; `None` at its end.
async fn line(response: &mut reqwest::Response, rest: &mut String) -> Option<Value> {
    loop {
        if let Some((line, tail)) = rest.split_once('\n') {
            let value = serde_json::from_str(line).unwrap();
            *rest = tail.to_owned();
            return Some(value);
        }
        let chunk = tokio::time::timeout(SOON, response.chunk()).await.unwrap().unwrap()?;
        rest.push_str(std::str::from_utf8(&chunk).unwrap());
    }
}

async fn a_split_answer_sends_the_reports_before_the_claim(server: Server) {
    let jobs = claim_many(&server, 3).await;
    let turn = json!({
        "worker_id": "w-1", "split": true,
        "complete": [item(&jobs[0], json!({}))],
        "fail": [item(&jobs[1], json!({"error": retryable()}))],
        "heartbeat": [{"job_id": jobs[2]["job_id"], "lease_token": jobs[2]["lease_token"]}],
        "claim": {"streams": ["q"], "max_jobs": 2, "max_wait_ms": 60_000},
    });
    let mut response = split(&server, &turn).await;
    let mut rest = String::new();
    // These arrive while the claim waits: nothing is ready, and nothing is submitted before they were read.
    let complete = line(&mut response, &mut rest).await.unwrap();
    assert_eq!(complete, json!({"complete": [{"ok": true, "ack": true}]}));
    let fail = line(&mut response, &mut rest).await.unwrap();
    assert_eq!(fail, json!({"fail": [{"ok": true, "ack": true, "requeued": true, "dlq": false}]}));
    let beat = line(&mut response, &mut rest).await.unwrap();
    assert_eq!(beat["heartbeat"][0]["ok"], true);
    assert_eq!(server.state(jobs[0]["job_id"].as_str().unwrap()).await, "Succeeded");
    let id = server.submit(json!({})).await;
    let claimed = line(&mut response, &mut rest).await.unwrap();
    assert_eq!(claimed["jobs"][0]["job_id"], json!(id));
    assert_eq!(line(&mut response, &mut rest).await, None);
}

async fn a_split_answer_without_a_claim_ends(server: Server) {
    let jobs = claim_many(&server, 1).await;
    let turn = json!({"worker_id": "w-1", "split": true, "complete": [item(&jobs[0], json!({}))]});
    let mut response = split(&server, &turn).await;
    let mut rest = String::new();
    assert_eq!(line(&mut response, &mut rest).await, Some(json!({"complete": [{"ok": true, "ack": true}]})));
    assert_eq!(line(&mut response, &mut rest).await, None);
    // A claim that finds nothing in its time says so.
    let claim = json!({"streams": ["q"], "max_wait_ms": 0});
    let mut response = split(&server, &json!({"worker_id": "w-1", "split": true, "claim": claim})).await;
    assert_eq!(line(&mut response, &mut rest).await, Some(json!({"jobs": []})));
    assert_eq!(line(&mut response, &mut rest).await, None);
}

async fn a_worker_that_leaves_a_split_exchange_takes_no_job(server: Server) {
    let jobs = claim_many(&server, 1).await;
    let claim = json!({"streams": ["q"], "max_jobs": 5, "max_wait_ms": 60_000});
    let turn = json!({"worker_id": "gone", "split": true, "complete": [item(&jobs[0], json!({}))], "claim": claim});
    let mut response = split(&server, &turn).await;
    assert!(line(&mut response, &mut String::new()).await.is_some());
    wait_until("it waits", SOON, async || server.engine.claims_waiting() == 1).await;
    drop(response);
    // The client closes its connection when it comes to it.
    wait_until("the server has noticed", SOON, async || server.engine.claims_waiting() == 0).await;
    let id = server.submit(json!({"max_attempts": 1})).await;
    let job =
        wait_until("another gets it", SOON, async || Some(server.claim("here").await).filter(|job| !job.is_null()))
            .await;
    assert_eq!(job["job_id"], json!(id));
    assert_eq!(server.complete("here", &job, json!({})).await.ok()["ok"], true);
}

async fn too_many_items_are_refused_as_a_whole(server: Server) {
    let jobs = claim_many(&server, 1).await;
    for part in ["complete", "heartbeat"] {
        let many = vec![item(&jobs[0], json!({})); 1_001];
        let refused = server.worker("exchange", json!({"worker_id": "w-1", part: many})).await.refused(422);
        assert_eq!((&refused["error"], &refused["field"]), (&json!("invalid_argument"), &json!(part)));
    }
    let fails = vec![item(&jobs[0], json!({"error": fatal()})); 1_001];
    assert_eq!(
        server.worker("exchange", json!({"worker_id": "w-1", "fail": fails})).await.refused(422)["field"],
        "fail"
    );
    assert_eq!(server.state(jobs[0]["job_id"].as_str().unwrap()).await, "Running");
    // A thousand are taken.
    let many = vec![item(&jobs[0], json!({})); 1_000];
    let answer = server.worker("exchange", json!({"worker_id": "w-1", "heartbeat": many})).await.ok();
    assert!(answer["heartbeat"].as_array().unwrap().iter().all(|item| item["ok"] == true));
}

async fn a_bad_claim_refuses_the_whole_and_reports_nothing(server: Server) {
    let jobs = claim_many(&server, 1).await;
    for (claim, field) in [
        (json!({"streams": []}), "claim.streams"),
        (json!({"streams": ["q"], "max_jobs": 0}), "claim.max_jobs"),
        (json!({"streams": ["q"], "max_jobs": 1_001}), "claim.max_jobs"),
        (json!({"streams": ["q"], "max_wait_ms": 60_001}), "max_wait_ms"),
        (json!({"streams": "q"}), "claim.streams"),
    ] {
        let turn = json!({"worker_id": "w-1", "complete": [item(&jobs[0], json!({}))], "claim": claim});
        let refused = server.worker("exchange", turn).await.refused(422);
        assert!(refused["field"].as_str().unwrap().ends_with(field.trim_start_matches("claim.")), "{refused}");
    }
    assert_eq!(server.state(jobs[0]["job_id"].as_str().unwrap()).await, "Running");
}

fn turn(incarnation: &str) -> Value {
    json!({"worker_id": "w-1", "incarnation": incarnation, "claim": {"streams": ["q"], "max_jobs": 2, "max_wait_ms": 0}})
}

async fn a_new_incarnation_voids_what_the_old_process_held(server: Server) {
    for _ in 0..3 {
        server.submit(json!({"retry": {"initial_backoff_ms": 0}})).await;
    }
    let old = server.worker("exchange", turn("01")).await.ok()["jobs"].as_array().unwrap().clone();
    assert_eq!(old.len(), 2);
    // Another worker's jobs are not touched.
    let other = server.claim("w-2").await;
    // The restarted process need not wait for the leases of the one before.
    let new = wait_until("the new process gets the jobs", SOON, async || {
        Some(server.worker("exchange", turn("02")).await.ok()["jobs"].as_array().unwrap().clone())
            .filter(|jobs| !jobs.is_empty())
    })
    .await;
    assert!(new.iter().all(|job| job["attempt"] == 2));
    assert_eq!(server.heartbeat("w-2", &other).await.ok()["ok"], true);
    let attempts = server.attempts(old[0]["job_id"].as_str().unwrap()).await;
    assert_eq!((&attempts[0]["state"], &attempts[0]["reason"]), (&json!("Failed"), &json!("WORKER_LOST")));
    // What the old process says about them is too late.
    let refused = server.complete("w-1", &old[0], json!({})).await.refused(409);
    assert_eq!(refused["error"], "stale_attempt");
}

async fn an_older_incarnation_is_turned_away(server: Server) {
    server.submit(json!({})).await;
    server.worker("exchange", turn("02")).await.ok();
    let refused = server.worker("exchange", turn("01")).await.refused(409);
    assert_eq!((&refused["ok"], &refused["error"]), (&json!(false), &json!("stale_incarnation")));
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0, "incarnation": "01"});
    assert_eq!(server.worker("claim", claim).await.refused(409)["error"], "stale_incarnation");
    // Also after a restart of the server, and under another name it is as good as any.
    let server = server.restart().await;
    server.worker("exchange", turn("01")).await.refused(409);
    let mut other = turn("01");
    other["worker_id"] = json!("w-2");
    server.worker("exchange", other).await.ok();
}

async fn workers_without_incarnations_keep_what_they_hold(server: Server) {
    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    server.worker("exchange", turn("05")).await.ok();
    assert_eq!(server.heartbeat("w-1", &job).await.ok()["ok"], true);
}

async fn a_watch_ends_when_a_job_of_the_worker_is_to_stop(server: Server) {
    let jobs = claim_many(&server, 2).await;
    // Where there can be several control planes, the cancel comes through another one.
    let other = if server.home.is_sqlite() { None } else { Some(server.beside().await) };
    let watch = async |worker: &str, cursor: Option<&Value>, ms: u32| {
        let mut part = json!({"max_wait_ms": ms});
        if let Some(cursor) = cursor {
            part["cursor"] = cursor.clone();
        }
        server.worker("exchange", json!({"worker_id": worker, "watch": part})).await.ok()["watch"].clone()
    };
    let first = watch("w-1", None, 0).await;
    assert_eq!(first["stop"], json!([]));
    let begun = Instant::now();
    let path = format!("/api/v1/tasks/{}/cancel", jobs[1]["job_id"].as_str().unwrap());
    let cancel = async { other.as_ref().unwrap_or(&server).post(&path, json!({"reason": "stop"})).await.ok() };
    let (told, _) = tokio::join!(watch("w-1", Some(&first["cursor"]), 60_000), cancel);
    assert_eq!(told["stop"], json!([jobs[1]["job_id"]]));
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    assert_eq!(watch("w-1", Some(&told["cursor"]), 0).await["stop"], json!([]), "once");
    assert_eq!(watch("w-2", None, 0).await["stop"], json!([]), "of another worker");
    let beat = server.heartbeat("w-1", &jobs[1]).await.ok();
    assert_eq!((&beat["should_cancel"], &beat["cancel_reason"]), (&json!(true), &json!("stop")));

    let both = json!({"worker_id": "w-1", "watch": {}, "claim": {"streams": ["q"]}});
    assert_eq!(server.worker("exchange", both).await.refused(422)["field"], "watch");
    let long = json!({"worker_id": "w-1", "watch": {"max_wait_ms": 60_001}});
    assert_eq!(server.worker("exchange", long).await.refused(422)["field"], "watch.max_wait_ms");
}
