//! One list of workers for all contracts, and draining them.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server, TOKEN};

cases!(
    Server,
    on_sqlite: [
        a_worker_is_listed_with_what_it_says_and_holds,
        long_and_odd_words_of_workers_are_cut,
        workers_are_listed_in_pages,
        a_drained_worker_gets_nothing_new_and_keeps_what_it_has,
        a_drain_is_told_at_once_and_only_once,
        an_answer_that_got_lost_before_the_drain_is_given_again,
        a_drained_worker_is_not_woken_in_place_of_another,
    ],
    on_both_stores: [
        a_drain_survives_a_restart,
    ],
);

const LIST: &str = "/api/v1/workers";

async fn shown(server: &Server, worker: &str) -> Value {
    server.get(&format!("{LIST}/{worker}")).await.ok()
}

async fn drain(server: &Server, worker: &str) -> Value {
    server.post(&format!("{LIST}/{worker}/drain"), json!({"reason": "upgrade"})).await.ok()
}

async fn undrain(server: &Server, worker: &str) -> Value {
    server.call(Method::POST, &format!("{LIST}/{worker}/undrain"), &[], None).await.ok()
}

fn claim(worker: &str, wait_ms: u64) -> Value {
    json!({"worker_id": worker, "streams": ["q"], "max_wait_ms": wait_ms})
}

async fn a_worker_is_listed_with_what_it_says_and_holds(server: Server) {
    assert_eq!(server.get(LIST).await.ok(), json!([]));
    assert_eq!(server.get(&format!("{LIST}/w-1")).await.refused(404)["code"], "NOT_FOUND");
    let id = server.submit(json!({})).await;
    let about = json!({"hostname": "h-1", "version": "sdk/2", "slots": 8, "operators": ["op", "other"],
        "sent_at": "2020-01-01T00:00:00Z"});
    let asks = json!({"worker_id": "w-1", "claim": {"streams": ["high", "q"], "max_jobs": 1}, "worker": about});
    let job = server.worker("exchange", asks).await.ok()["jobs"][0].clone();
    let worker = shown(&server, "w-1").await;
    assert_eq!(worker["contracts"], json!(["pull"]));
    assert_eq!(
        (&worker["status"], &worker["hostname"], &worker["version"]),
        (&json!("online"), &json!("h-1"), &json!("sdk/2"))
    );
    assert_eq!((&worker["queues"], &worker["operators"]), (&json!(["high", "q"]), &json!(["op", "other"])));
    assert_eq!((&worker["slots"], &worker["held"]), (&json!(8), &json!(1)));
    assert!(worker["clock_ahead_ms"].as_i64().unwrap() < -1_000_000, "{worker}");
    let held = &worker["held_tasks"][0];
    assert_eq!(
        (&held["task_id"], &held["queue"], &held["operator"], &held["attempt"]),
        (&json!(id), &json!("q"), &json!("op"), &json!(1))
    );
    // Other calls say nothing of that, and nothing is forgotten.
    server.heartbeat("w-1", &job).await.ok();
    server.complete("w-1", &job, json!({})).await.ok();
    assert!(server.claim("w-2").await.is_null());
    let list = server.get(LIST).await.ok();
    assert_eq!((&list[0]["id"], &list[0]["slots"], &list[0]["held"]), (&json!("w-1"), &json!(8), &json!(0)));
    assert_eq!((&list[1]["id"], &list[1]["queues"], &list[1].get("slots")), (&json!("w-2"), &json!(["q"]), &None));
    assert!(list[0].get("held_tasks").is_none());
    server.advance(121_000);
    wait_until("the workers to be offline", SOON, async || {
        let list = server.get(LIST).await.ok();
        list.as_array().unwrap().iter().all(|worker| worker["status"] == "offline" && worker["stale"] == true)
    })
    .await;
}

async fn long_and_odd_words_of_workers_are_cut(server: Server) {
    let about = json!({"hostname": "h".repeat(10_000), "version": "a\u{0}b\nc", "operators": vec!["o".repeat(1_000); 500],
        "slots": 3, "sent_at": "yesterday"});
    let asks = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0, "worker": about});
    server.worker("claim", asks).await.ok();
    let worker = shown(&server, "w-1").await;
    assert_eq!(worker["hostname"].as_str().unwrap().len(), 128);
    assert_eq!(worker["version"], "a\u{fffd}b\u{fffd}c");
    assert_eq!(worker["operators"].as_array().unwrap().len(), 256);
    assert!(worker.get("clock_ahead_ms").is_none());
    let wrong = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0, "worker": {"slots": "many"}});
    server.worker("claim", wrong).await.refused(422);
}

async fn workers_are_listed_in_pages(server: Server) {
    for n in 0..5 {
        server.claim(&format!("w-{n}")).await;
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("{LIST}?limit=2&cursor={cursor}")).await;
        cursor = page.header("x-next-cursor").to_owned();
        seen.extend(page.ok().as_array().unwrap().iter().map(|worker| worker["id"].as_str().unwrap().to_owned()));
        if cursor.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ["w-0", "w-1", "w-2", "w-3", "w-4"]);
    for wrong in ["0", "1001", "x"] {
        assert_eq!(server.get(&format!("{LIST}?limit={wrong}")).await.refused(400)["code"], "BAD_REQUEST");
    }
}

async fn a_drained_worker_gets_nothing_new_and_keeps_what_it_has(server: Server) {
    server.post(&format!("{LIST}/w-1/drain"), json!({})).await.refused(404);
    server.submit(json!({})).await;
    let job = server.claim("w-1").await;
    let worker = drain(&server, "w-1").await;
    assert_eq!(
        (&worker["status"], &worker["drain_reason"], &worker["held"]),
        (&json!("draining"), &json!("upgrade"), &json!(1))
    );
    let next = server.submit(json!({})).await;
    let drained = json!({"claimed": false, "drained": true});
    assert_eq!(server.worker("claim", claim("w-1", 0)).await.ok(), drained);
    let asks = json!({"worker_id": "w-1", "claim": {"streams": ["q"], "max_wait_ms": 0}});
    assert_eq!(server.worker("exchange", asks.clone()).await.ok(), json!({"jobs": [], "drained": true}));
    let by_id = server.worker("claim", json!({"worker_id": "w-1", "job_id": next})).await.ok();
    assert_eq!((&by_id["claimed"], &by_id["ack"], &by_id["drained"]), (&json!(false), &json!(false), &json!(true)));
    // What it holds goes on, with every other call.
    server.heartbeat("w-1", &job).await.ok();
    let report =
        json!({"worker_id": "w-1", "complete": [crate::harness::report("w-1", &job)], "claim": {"streams": ["q"]}});
    let turn = server.worker("exchange", report).await.ok();
    assert_eq!(
        (&turn["complete"][0]["ok"], &turn["jobs"], &turn["drained"]),
        (&json!(true), &json!([]), &json!(true)),
        "{turn}"
    );
    assert_eq!(server.state(&next).await, "Ready");
    let worker = undrain(&server, "w-1").await;
    assert_eq!((&worker["status"], worker.get("drain_reason")), (&json!("online"), None));
    let turn = server.worker("exchange", asks).await.ok();
    assert_eq!((&turn["jobs"][0]["job_id"], turn.get("drained")), (&json!(next), None));
    let rows = server.get("/api/v1/audit?action=worker.drain").await.ok();
    assert!(rows.to_string().contains("w-1"), "{rows}");
}

/// A claim that waits is answered when its worker is drained. The next one waits for its time: a worker that does not
/// know of drains must not ask without a pause.
async fn a_drain_is_told_at_once_and_only_once(server: Server) {
    server.claim("w-1").await;
    let waiting = server.worker("claim", claim("w-1", 60_000));
    let drained = async {
        wait_until("the claim to wait", SOON, async || server.engine.claims_waiting() == 1).await;
        drain(&server, "w-1").await;
    };
    let (answer, ()) = tokio::join!(waiting, drained);
    assert_eq!(answer.ok(), json!({"claimed": false, "drained": true}));
    let began = Instant::now();
    assert_eq!(server.worker("claim", claim("w-1", 300)).await.ok()["drained"], true);
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    // One that waits is granted work when the drain is taken back.
    let id = server.submit(json!({})).await;
    let waiting = server.worker("claim", claim("w-1", 60_000));
    let (answer, _) = tokio::join!(waiting, undrain(&server, "w-1"));
    assert_eq!(answer.ok()["job_id"], json!(id));
}

async fn an_answer_that_got_lost_before_the_drain_is_given_again(server: Server) {
    let id = server.submit(json!({})).await;
    let asks = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0, "claim_id": "c-1"});
    let first = server.worker("claim", asks.clone()).await.ok();
    drain(&server, "w-1").await;
    server.submit(json!({})).await;
    let again = server.worker("claim", asks).await.ok();
    assert_eq!((&again["job_id"], &again["lease_token"]), (&json!(id), &first["lease_token"]));
    assert_eq!(again["drained"], true);
}

async fn a_drained_worker_is_not_woken_in_place_of_another(server: Server) {
    server.claim("w-1").await;
    drain(&server, "w-1").await;
    // It is told at once, and waits from then on.
    server.worker("claim", claim("w-1", 60_000)).await.ok();
    let drained = server.worker("claim", claim("w-1", 1_000));
    let other = async {
        let waiting = server.worker("claim", claim("w-2", 60_000));
        let submits = async {
            wait_until("the other to wait", SOON, async || server.engine.claims_waiting() == 1).await;
            server.submit(json!({})).await
        };
        let (answer, id) = tokio::join!(waiting, submits);
        assert_eq!(answer.ok()["job_id"], json!(id));
    };
    let (answer, ()) = tokio::join!(drained, other);
    assert_eq!(answer.ok()["claimed"], false);
}

async fn a_drain_survives_a_restart(server: Server) {
    server.claim("w-1").await;
    drain(&server, "w-1").await;
    let server = server.restart().await;
    server.submit(json!({})).await;
    // It is known from the first claim on.
    let headers = [("X-Worker-Token", TOKEN)];
    let answer = server.call(Method::POST, "/internal/worker/claim", &headers, Some(&claim("w-1", 0))).await.ok();
    assert_eq!(answer, json!({"claimed": false, "drained": true}));
    if server.home.is_sqlite() {
        return;
    }
    // Another control plane knows too, and hears of the end of it.
    let other = server.beside().await;
    assert_eq!(other.worker("claim", claim("w-1", 0)).await.ok()["drained"], true);
    undrain(&server, "w-1").await;
    // A claim that was sent before the news came may be told of the drain once more.
    wait_until("the other grants tasks again", SOON, async || {
        other.worker("claim", claim("w-1", 1_000)).await.ok()["claimed"] == true
    })
    .await;
}
