//! What every worker does, whatever it is written in and however it gets its work.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_testkit::{Signal, wait_until};

use crate::workers::kit::{Kind, PATIENCE, Site};

/// In seconds, for tests that wait until a lease runs out.
const SHORT_LEASE: i64 = 2;

/// For tests that wait for heartbeats.
fn beating() -> Value {
    json!({"heartbeat_interval_seconds": 1})
}

macro_rules! everyone {
    ($($name:ident)+) => {
        everyone!(@ rust_push RustPush $($name)+);
        everyone!(@ rust_pull RustPull $($name)+);
        everyone!(@ python_push PythonPush $($name)+);
        everyone!(@ python_pull PythonPull $($name)+);
    };
    (@ $module:ident $kind:ident $($name:ident)+) => {
        mod $module {
            use super::{Kind, Site};
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    if let Some(site) = Site::start(Kind::$kind).await {
                        super::$name(site).await;
                    }
                }
            )+
        }
    };
}

everyone! {
    a_task_runs_once_and_its_result_is_kept
    a_blocked_handler_keeps_its_lease
    a_cancel_reaches_the_handler_with_its_reason
    what_is_returned_after_a_cancel_is_no_result_unless_it_is_kept
    a_handler_knows_its_task_by_the_id_that_users_have
    an_error_says_whether_it_is_tried_again
    the_next_attempt_goes_on_where_the_last_one_was
    the_task_of_a_killed_worker_runs_again_under_a_higher_fence
    a_server_that_dies_between_start_and_end_costs_no_attempt
    answers_that_are_lost_cost_no_attempt
    a_worker_that_slept_through_its_lease_stops_its_work
}

async fn a_task_runs_once_and_its_result_is_kept(site: Site) {
    let _worker = site.worker().await;
    let id = site.submit("echo", site.order("a"), json!({})).await;
    let task = site.until(&id, "Succeeded").await;
    assert_eq!((&task["attempt"], &task["result"]), (&json!(1), &site.order("a")));
    assert_eq!(site.trace("a"), ["start"]);
    let attempts = site.attempts(&id).await;
    assert_eq!(attempts.len(), 1);
    assert!(attempts[0]["worker_id"].as_str().is_some_and(|worker| !worker.is_empty()), "{attempts:?}");
}

async fn a_blocked_handler_keeps_its_lease(site: Site) {
    let _worker = site.worker().await;
    let id = site.submit("block", site.order("a"), beating()).await;
    site.until_traced("a", "start").await;
    let first = site.until(&id, "Running").await;
    // Nothing but heartbeats can move the end, and one does so by about a second.
    let ends = |task: &Value| task["lease_expires_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let enough = ends(&first) + jiff::SignedDuration::from_secs(4);
    wait_until("the lease is renewed", PATIENCE, async || ends(&site.task(&id).await) > enough).await;
    site.go("a");
    let task = site.until(&id, "Succeeded").await;
    assert_eq!(task["result"], json!({"attempt": 1, "fence": task["fence"]}));
    assert_eq!(site.trace("a"), ["start", "end"]);
}

async fn a_cancel_reaches_the_handler_with_its_reason(site: Site) {
    let _worker = site.worker().await;
    // Heartbeats are sent each 20 s or 30 s: it does not wait for one.
    let id = site.submit("hold", site.order("a"), json!({})).await;
    site.until_traced("a", "start").await;
    wait_until("the progress is shown", PATIENCE, async || site.task(&id).await["progress_pct"] == 50).await;
    let asked_at = Instant::now();
    site.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({"reason": "no longer wanted"})).await;
    let task = site.until(&id, "Canceled").await;
    assert!(asked_at.elapsed() < Duration::from_secs(10), "{:?}", asked_at.elapsed());
    assert_eq!((&task["attempt"], &task["cancel_reason"]), (&json!(1), &json!("no longer wanted")));
    assert_eq!(site.trace("a"), ["start", "cancel no longer wanted"]);
}

async fn what_is_returned_after_a_cancel_is_no_result_unless_it_is_kept(site: Site) {
    let _worker = site.worker().await;
    let cancel = async |id: &str| {
        site.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({"reason": "enough"})).await;
    };
    for (name, keep, state) in [("stops", false, "Canceled"), ("keeps", true, "Succeeded")] {
        let mut order = site.order(name);
        order["keep"] = json!(keep);
        let id = site.submit("finish", order, beating()).await;
        site.until_traced(name, "start").await;
        cancel(&id).await;
        let task = site.until(&id, state).await;
        assert_eq!(site.trace(name), ["start", "cancel enough"]);
        assert_eq!((&task["attempt"], task.get("result").is_some()), (&json!(1), keep), "{task}");
    }
    // Nor does it matter whether the handler looked.
    let id = site.submit("block", site.order("blocks"), beating()).await;
    site.until_traced("blocks", "start").await;
    cancel(&id).await;
    // The second heartbeat after the cancel is sent when the answer to the first one is known.
    let mut beats = vec![site.attempts(&id).await[0]["last_heartbeat_at"].clone()];
    wait_until("the worker knows", PATIENCE, async || {
        let beat = site.attempts(&id).await[0]["last_heartbeat_at"].clone();
        if beats.last() != Some(&beat) {
            beats.push(beat);
        }
        beats.len() > 3
    })
    .await;
    site.go("blocks");
    let task = site.until(&id, "Canceled").await;
    assert_eq!((&task["attempt"], task.get("result")), (&json!(1), None), "{task}");
    assert_eq!(site.trace("blocks"), ["start", "end"]);
}

async fn a_handler_knows_its_task_by_the_id_that_users_have(site: Site) {
    let _worker = site.worker().await;
    let id = site.submit("who", json!({}), json!({})).await;
    let task = site.until(&id, "Succeeded").await;
    assert_eq!((&task["result"], id.len()), (&json!({"task_id": id}), 36));
}

async fn an_error_says_whether_it_is_tried_again(site: Site) {
    let _worker = site.worker().await;
    for (category, attempts) in
        [("USER_CODE", 2), ("INFRASTRUCTURE", 2), ("TIMEOUT", 2), ("DATA_QUALITY", 1), ("CONFIGURATION", 1)]
    {
        let id = site.submit("fail", json!({"category": category}), json!({"max_attempts": 2})).await;
        let task = site.until(&id, "Failed").await;
        assert_eq!((&task["attempt"], &task["error"]["code"]), (&json!(attempts), &json!(category)), "{task}");
    }
    let id = site.submit("panic", json!({}), json!({"max_attempts": 1})).await;
    let task = site.until(&id, "Failed").await;
    assert!(task["error"]["message"].as_str().unwrap().contains("as ordered"), "{task}");
}

async fn the_next_attempt_goes_on_where_the_last_one_was(site: Site) {
    let _worker = site.worker().await;
    let id = site.submit("resume", json!({}), json!({})).await;
    let task = site.until(&id, "Succeeded").await;
    assert_eq!((&task["attempt"], &task["result"]), (&json!(2), &json!({"rows": 5})), "{task}");
}

async fn the_task_of_a_killed_worker_runs_again_under_a_higher_fence(site: Site) {
    let mut first = site.worker().await;
    let id = site.submit("hold", site.order("a"), json!({"lease_ttl_seconds": SHORT_LEASE})).await;
    site.until_traced("a", "start").await;
    first.kill();
    let _second = site.worker().await;
    wait_until("it runs again", PATIENCE, async || site.trace("a").len() > 1).await;
    site.go("a");
    let task = site.until(&id, "Succeeded").await;
    // The second one, unless the machine stood still for longer than a lease.
    assert_eq!(task["result"], json!({"attempt": task["attempt"], "fence": task["fence"]}), "{task}");
    let attempts = site.attempts(&id).await;
    assert_eq!(task["attempt"], attempts.len(), "{task}");
    assert_eq!((&attempts[0]["state"], &attempts[0]["reason"]), (&json!("Failed"), &json!("HEARTBEAT_TIMEOUT")));
    assert!(attempts[1]["fence"].as_u64() > attempts[0]["fence"].as_u64());
}

async fn a_server_that_dies_between_start_and_end_costs_no_attempt(mut site: Site) {
    let _worker = site.worker().await;
    let id = site.submit("hold", site.order("a"), json!({"lease_ttl_seconds": 30})).await;
    site.until_traced("a", "start").await;
    site.kill_server();
    // It ends while nobody can be told.
    site.go("a");
    site.until_traced("a", "end").await;
    site.start_again().await;
    let task = site.until(&id, "Succeeded").await;
    assert_eq!(task["attempt"], 1, "{task}");
    assert_eq!(site.trace("a"), ["start", "end"]);
}

async fn answers_that_are_lost_cost_no_attempt(site: Site) {
    let _worker = site.worker().await;
    for (name, answers) in [("one", 1), ("two", 2), ("three", 3)] {
        let id = site.submit("hold", site.order(name), json!({"lease_ttl_seconds": 30})).await;
        site.until_traced(name, "start").await;
        site.proxy.lose(answers);
        site.go(name);
        let task = site.until(&id, "Succeeded").await;
        assert_eq!(task["attempt"], 1, "{task}");
        assert_eq!(site.trace(name), ["start", "end"]);
        // Of heartbeats and polls, if the report was through.
        wait_until("the answers were lost", PATIENCE, async || site.proxy.to_lose() == 0).await;
    }
    // Also those of the start.
    site.proxy.lose(2);
    let id = site.submit("echo", site.order("start"), json!({"lease_ttl_seconds": 30})).await;
    let task = site.until(&id, "Succeeded").await;
    assert_eq!(task["attempt"], 1, "{task}");
    assert_eq!(site.trace("start"), ["start"]);
}

async fn a_worker_that_slept_through_its_lease_stops_its_work(site: Site) {
    let mut worker = site.worker().await;
    let once = json!({"max_attempts": 1, "lease_ttl_seconds": SHORT_LEASE});
    let id = site.submit("hold", site.order("a"), once).await;
    site.until_traced("a", "start").await;
    worker.signal(Signal::SIGSTOP);
    let task = site.until(&id, "Failed").await;
    assert_eq!(task["error"]["code"], "HEARTBEAT_TIMEOUT", "{task}");
    worker.signal(Signal::SIGCONT);
    site.until_traced("a", "lost").await;
    assert_eq!(site.trace("a"), ["start", "lost"]);
    // The worker is as good as before.
    let next = site.submit("echo", json!({}), json!({})).await;
    site.until(&next, "Succeeded").await;
    assert_eq!(site.task(&id).await["state"], "Failed");
}
