//! Claims: many at once, one by its id, sent twice, and given up.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_testkit::{RawClient, wait_until};

use crate::cases;
use crate::harness::{LONGEST_WAIT, SOON, Server, TOKEN, fatal};

cases!(
    Server,
    on_sqlite: [
        each_job_of_a_batch_has_its_own_lease,
        a_claim_never_waits_to_fill_its_batch,
        a_claim_has_the_fields_of_the_contract,
        a_job_that_cannot_be_granted_says_why,
        a_claim_id_is_its_workers_own_and_ends_with_the_leases,
        a_claim_waits_for_as_long_as_it_was_told,
        a_strict_queue_grants_to_workers_that_kill_what_they_lose,
    ],
    everywhere: [
        a_job_is_claimed_by_its_id,
        the_message_decides_whether_it_may_go,
        the_same_claim_sent_again_gets_the_same_jobs,
        concurrent_claims_never_share_a_job,
        a_worker_that_disconnects_takes_no_job,
    ],
);

async fn a_claim_has_the_fields_of_the_contract(server: Server) {
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let deadline = server.engine.now().await.unwrap().plus(600_000).to_string();
    let task = json!({"operator": "extract", "payload": {"day": "2025-01-15"}, "traceparent": traceparent, "deadline": deadline});
    let id = server.submit(task).await;
    let job = server.claim("w-1").await;
    let mut fields: Vec<_> = job.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected = [
        "attempt",
        "attempt_id",
        "claimed",
        "deadline",
        "fence",
        "heartbeat_interval_seconds",
        "job_id",
        "lease_token",
        "lease_ttl_seconds",
        "message_id",
        "operator",
        "payload",
        "stream",
        "traceparent",
    ];
    assert_eq!(fields, expected);
    assert_eq!(job["job_id"], json!(id));
    assert_eq!((&job["operator"], &job["stream"]), (&json!("extract"), &json!("q")));
    assert_eq!((&job["traceparent"], &job["deadline"]), (&json!(traceparent), &json!(deadline)));
    assert!(job["lease_token"].as_str().unwrap().starts_with("lt_"));
    assert!(job["attempt_id"].as_str().unwrap().starts_with("att_"));
    // A number, or the id of an entry.
    assert!(job["message_id"].as_str().unwrap().split('-').all(|part| part.parse::<u64>().is_ok()));
    // The payload is optional; it is an empty object then, and whatever JSON it was otherwise.
    server.submit(json!({})).await;
    assert_eq!(server.claim("w-1").await["payload"], json!({}));
    server.submit(json!({"payload": [1, "two", null]})).await;
    assert_eq!(server.claim("w-1").await["payload"], json!([1, "two", null]));
}

async fn each_job_of_a_batch_has_its_own_lease(server: Server) {
    for n in 0..5 {
        server.submit(json!({"payload": n})).await;
    }
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0, "max_jobs": 3});
    let answer = server.worker("claim", claim).await.ok();
    let jobs = answer["jobs"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), 3);
    // The flat one is the first.
    for (field, value) in jobs[0].as_object().unwrap() {
        assert_eq!(&answer[field], value, "{field}");
    }
    for field in ["job_id", "attempt_id", "lease_token", "message_id"] {
        let distinct: HashSet<_> = jobs.iter().map(|job| job[field].as_str().unwrap()).collect();
        assert_eq!(distinct.len(), 3, "{field}");
    }
    assert!(jobs.iter().all(|job| job["fence"] == 1 && job["attempt"] == 1));
    // One can end while the others go on, and no token opens another's job.
    server.complete("w-1", &jobs[0], json!({})).await.ok();
    assert_eq!(server.heartbeat("w-1", &jobs[1]).await.ok()["ok"], true);
    let mut mixed = jobs[1].clone();
    mixed["lease_token"] = jobs[2]["lease_token"].clone();
    assert_eq!(server.complete("w-1", &mixed, json!({})).await.refused(409)["error"], "stale_lease");
    let empty = json!({"worker_id": "w-1", "streams": ["none"], "max_wait_ms": 0, "max_jobs": 3});
    assert_eq!(server.worker("claim", empty).await.ok(), json!({"claimed": false, "jobs": []}));
}

async fn a_claim_never_waits_to_fill_its_batch(server: Server) {
    server.submit(json!({})).await;
    let started = Instant::now();
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 60_000, "max_jobs": 100});
    assert_eq!(server.worker("claim", claim).await.ok()["jobs"].as_array().unwrap().len(), 1);
    assert!(started.elapsed() < LONGEST_WAIT);
}

async fn by_id(server: &Server, id: &str, extra: Value) -> Value {
    let mut claim = json!({"worker_id": "w-1", "job_id": id});
    crate::harness::merge(&mut claim, extra);
    server.worker("claim", claim).await.ok()
}

async fn a_job_is_claimed_by_its_id(server: Server) {
    let first = server.submit(json!({})).await;
    let second = server.submit(json!({})).await;
    let job = by_id(&server, &second, json!({"stream": "q", "message_id": "1"})).await;
    assert_eq!((&job["claimed"], &job["job_id"], &job["attempt"]), (&json!(true), &json!(second), &json!(1)));
    assert_eq!(server.complete("w-1", &job, json!({})).await.ok()["ok"], true);
    assert_eq!(server.claim("w-2").await["job_id"], json!(first));
}

async fn a_job_that_cannot_be_granted_says_why(server: Server) {
    let running = server.submit(json!({})).await;
    let job = server.claim("w-2").await;
    assert_eq!(job["job_id"], json!(running));
    let completed = server.submit(json!({})).await;
    let job = server.claim("w-2").await;
    server.complete("w-2", &job, json!({})).await.ok();
    let failed = server.submit(json!({})).await;
    let job = server.claim("w-2").await;
    server.fail("w-2", &job, fatal()).await.ok();
    let cancelled = server.submit(json!({})).await;
    server.post(&format!("/api/v1/tasks/{cancelled}/cancel"), json!({})).await.ok();
    let later = server.submit(json!({"delay_ms": 60_000})).await;
    let unknown = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
    for (id, reason, ack) in [
        (running.as_str(), "already_running", false),
        (&completed, "completed", true),
        (&failed, "completed", true),
        (&cancelled, "cancelled", true),
        (&later, "not_due", true),
        (unknown, "not_found", true),
    ] {
        let answer = by_id(&server, id, json!({})).await;
        assert_eq!(answer, json!({"claimed": false, "reason": reason, "ack": ack}), "{reason}");
    }
    server.worker("claim", json!({"worker_id": "w-1", "job_id": "no id at all"})).await.refused(422);
}

async fn the_message_decides_whether_it_may_go(server: Server) {
    let id = server.submit(json!({"lease_ttl_seconds": 5, "retry": {"initial_backoff_ms": 0}})).await;
    let old = server.claim("w-1").await["message_id"].clone();
    server.advance(5_000);
    server.until(&id, "Ready").await;
    let new = server.claim("w-1").await["message_id"].clone();
    assert_ne!(old, new);
    // The old message is safe to drop, the live one is not.
    for (message, ack) in [(old, true), (new, false)] {
        let answer = by_id(&server, &id, json!({"worker_id": "w-2", "stream": "q", "message_id": message})).await;
        assert_eq!(answer, json!({"claimed": false, "reason": "already_running", "ack": ack}));
    }
}

async fn the_same_claim_sent_again_gets_the_same_jobs(server: Server) {
    for _ in 0..5 {
        server.submit(json!({})).await;
    }
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0, "max_jobs": 2, "claim_id": "c-1"});
    let first = server.worker("claim", claim.clone()).await.ok();
    assert_eq!(first["jobs"].as_array().unwrap().len(), 2);
    let same = |answer: &Value| {
        let key =
            |job: &Value| (job["job_id"].to_string(), job["attempt_id"].to_string(), job["lease_token"].to_string());
        let mut jobs: Vec<_> = answer["jobs"].as_array().unwrap().iter().map(key).collect();
        jobs.sort();
        jobs
    };
    assert_eq!(same(&server.worker("claim", claim.clone()).await.ok()), same(&first));
    let server = server.restart().await;
    assert_eq!(same(&server.worker("claim", claim.clone()).await.ok()), same(&first));
    assert_eq!(server.queue("q").await["counts"]["running"], 2);
    // By the exchange, and for one job by its id.
    let turn =
        json!({"worker_id": "w-1", "claim": {"streams": ["q"], "max_wait_ms": 0, "max_jobs": 2, "claim_id": "c-1"}});
    assert_eq!(same(&server.worker("exchange", turn).await.ok()), same(&first));
    let id = server.submit(json!({"queue": "other"})).await;
    let one = by_id(&server, &id, json!({"claim_id": "c-2"})).await;
    assert_eq!(by_id(&server, &id, json!({"claim_id": "c-2"})).await, one);
    assert_eq!(one["claimed"], true);
}

async fn a_claim_id_is_its_workers_own_and_ends_with_the_leases(server: Server) {
    for _ in 0..4 {
        server.submit(json!({"lease_ttl_seconds": 5})).await;
    }
    let claim = |worker: &str| json!({"worker_id": worker, "streams": ["q"], "max_wait_ms": 0, "claim_id": "c-1"});
    let first = server.worker("claim", claim("w-1")).await.ok();
    let other = server.worker("claim", claim("w-2")).await.ok();
    assert_ne!(first["job_id"], other["job_id"]);
    // What was reported is not given again.
    server.complete("w-1", &first, json!({})).await.ok();
    let next = server.worker("claim", claim("w-1")).await.ok();
    assert!(next["job_id"] != first["job_id"] && next["job_id"] != other["job_id"]);
    // Nor what has expired.
    server.advance(5_000);
    let next_again = server.worker("claim", claim("w-1")).await.ok();
    assert_ne!(next_again["attempt_id"], next["attempt_id"]);
}

async fn concurrent_claims_never_share_a_job(server: Server) {
    let tasks = vec![json!({"queue": "q", "operator": "op"}); 40];
    server.post("/api/v1/tasks/batch", json!({"tasks": tasks})).await.ok();
    let claims = (0..60).map(async |n| server.claim(&format!("w-{n}")).await);
    let jobs = futures_util::future::join_all(claims).await;
    let granted: Vec<_> = jobs.iter().filter(|job| !job.is_null()).map(|job| job["job_id"].to_string()).collect();
    let distinct: HashSet<_> = granted.iter().collect();
    assert_eq!(granted.len(), distinct.len());
    // On Postgres a claim passes over rows that another one has just locked: the rest is there for the asking.
    let mut all = granted.len();
    while !server.claim("w-last").await.is_null() {
        all += 1;
    }
    assert_eq!(all, 40);
}

async fn a_worker_that_disconnects_takes_no_job(server: Server) {
    // Many times, since the end of a connection and a submit can meet at any point.
    for round in 0..10 {
        // A socket of its own, closed here and now: a client's pool would close it when it comes to it.
        let mut client = RawClient::connect(&server.url).await;
        let claim = json!({"worker_id": "gone", "streams": ["q"], "max_wait_ms": 60_000}).to_string();
        let head = format!(
            "POST /internal/worker/claim HTTP/1.1\r\nHost: localhost\r\nX-Worker-Token: {TOKEN}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            claim.len()
        );
        client.send(head + &claim).await.unwrap();
        let answer = client.read_for(Duration::from_millis(10 * round)).await;
        assert_eq!((answer.text.as_str(), answer.closed), ("", false));
        drop(client);
        let id = server.submit(json!({"max_attempts": 1})).await;
        let job = wait_until("another claimer gets it", SOON, async || {
            Some(server.claim("here").await).filter(|job| !job.is_null())
        })
        .await;
        assert_eq!(job["job_id"], json!(id));
        let attempts = server.attempts(&id).await;
        for undelivered in &attempts[..attempts.len() - 1] {
            assert_eq!((&undelivered["worker_id"], &undelivered["reason"]), (&json!("gone"), &json!("UNDELIVERED")));
        }
        // A grant that was taken back costs nothing of the budget.
        let task = server.task(&id).await;
        let left = task["max_attempts"].as_u64().unwrap() - task["attempt"].as_u64().unwrap();
        assert_eq!(left, 0, "{task}");
        assert_eq!(server.complete("here", &job, json!({})).await.ok()["ok"], true);
        assert!(server.claim("here").await.is_null());
    }
}

async fn a_claim_waits_for_as_long_as_it_was_told(server: Server) {
    let started = Instant::now();
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 700});
    assert_eq!(server.worker("claim", claim).await.ok(), json!({"claimed": false}));
    assert!(started.elapsed() >= Duration::from_millis(700));
}

async fn a_strict_queue_grants_to_workers_that_kill_what_they_lose(server: Server) {
    server.put("/api/v1/queues/q", json!({"strict": true})).await.ok();
    for _ in 0..2 {
        server.submit(json!({"operator": "x"})).await;
    }
    let claim = |kills: bool| json!({"worker_id": "w", "streams": ["q"], "max_wait_ms": 0, "kills_on_expiry": kills});
    let turn = |kills: bool| {
        let claim = json!({"streams": ["q"], "max_jobs": 1, "max_wait_ms": 0, "kills_on_expiry": kills});
        json!({"worker_id": "w", "claim": claim})
    };
    assert_eq!(server.claim("w").await, Value::Null);
    assert_eq!(server.worker("claim", claim(false)).await.ok()["claimed"], false);
    assert_eq!(server.worker("exchange", turn(false)).await.ok()["jobs"], json!([]));
    assert_eq!(server.worker("claim", claim(true)).await.ok()["claimed"], true);
    assert_eq!(server.worker("exchange", turn(true)).await.ok()["jobs"].as_array().unwrap().len(), 1);
}
