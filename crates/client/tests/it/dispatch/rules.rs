//! Rules that keep a worker from asking, keeping or running too much.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tenure_testkit::wait_until;

use super::*;

const SOON: Duration = Duration::from_secs(30);
/// Long enough for what must not happen to happen.
const MEANWHILE: Duration = Duration::from_millis(400);

#[tokio::test]
async fn a_task_that_is_granted_while_the_worker_stops_is_told_too() {
    let plane = DispatchPlane::start().await;
    let held = plane.hold("task-claim");
    let (told, mut is_told) = tokio::sync::mpsc::channel(2);
    let worker = worker(&plane).concurrency(2).drain_timeout(Duration::ZERO).stop_grace(SOON);
    let worker = worker.operator("stops", move |task: Task| {
        let told = told.clone();
        async move {
            assert_eq!(task.cancelled().await, CancelReason::Shutdown);
            told.send(()).await?;
            task.keep_result();
            Ok(Output::new(0, "whole"))
        }
    });
    let (stop, run) = spawn(worker);
    plane.task(plain(1, "stops"));
    plane.task(plain(2, "stops"));
    plane.until("task-claim", 2).await;
    held.add_permits(1);
    plane.until("heartbeat", 1).await;
    drop(stop);
    is_told.recv().await.unwrap();
    // All that run have been told. Now the other is granted.
    held.add_permits(1);
    tokio::time::timeout(Duration::from_secs(10), run).await.expect("it is told to stop").unwrap().unwrap();
    let statuses: Vec<_> = plane.bodies("task-complete").iter().map(|body| body["status"].clone()).collect();
    assert_eq!(statuses, ["Completed", "Completed"]);
}

/// The lease began when the claim was sent, not when its answer came.
#[tokio::test]
async fn a_lease_that_was_granted_long_ago_is_confirmed_before_the_handler_runs() {
    let plane = DispatchPlane::start().await;
    let held = plane.hold("task-claim");
    plane.always("heartbeat", Say::No(503, "store_unavailable"));
    let started = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&started);
    let worker = worker(&plane).operator("count", move |_task| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let (_stop, _run) = spawn(worker);
    let mut short = plain(1, "count");
    // A lease of 400 ms.
    short["heartbeat_interval_seconds"] = json!(0.1);
    plane.task(short);
    plane.until("task-claim", 1).await;
    let sent = Instant::now();
    wait_until("the lease would be over", SOON, async || sent.elapsed() > Duration::from_millis(600)).await;
    held.add_permits(1);
    plane.until("heartbeat", 1).await;
    let ran = wait_for(MEANWHILE, || started.load(Ordering::SeqCst) > 0).await;
    assert!(!ran, "nobody has said that the lease is still this worker's");
    plane.always("heartbeat", Say::Yes);
    wait_until("the handler runs", SOON, async || started.load(Ordering::SeqCst) == 1).await;
    plane.until("task-complete", 1).await;
}

#[tokio::test]
async fn a_handler_that_ignores_a_cancel_ends_with_its_grace() {
    let plane = DispatchPlane::start().await;
    plane.always("heartbeat", Say::With(json!({"status": "Canceled"})));
    let (worker, was_dropped) = endless(worker(&plane).cancel_grace(Duration::from_millis(500)));
    let (_stop, _run) = spawn(worker);
    plane.task(plain(1, "endless"));
    tokio::time::timeout(SOON, was_dropped).await.expect("it ends").unwrap_err();
    let body = plane.until("task-complete", 1).await.remove(0);
    assert_eq!((&body["status"], body.get("error")), (&json!("Canceled"), None));
}

#[tokio::test]
async fn a_handler_waits_while_too_many_of_its_events_wait() {
    const ALL: usize = 1_500;
    let plane = DispatchPlane::start().await;
    let held = plane.hold("events");
    let emitted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&emitted);
    let worker = worker(&plane).operator("emit", move |task: Task| {
        let counted = Arc::clone(&counted);
        async move {
            for n in 0..ALL {
                task.emit(0, n.to_string()).await?;
                counted.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        }
    });
    let (_stop, _run) = spawn(worker);
    plane.task(plain(1, "emit"));
    wait_until("the first events", SOON, async || emitted.load(Ordering::SeqCst) >= 1_000).await;
    assert!(!wait_for(MEANWHILE, || emitted.load(Ordering::SeqCst) > 1_000).await, "1,000 wait, no more");
    held.add_permits(Semaphore::MAX_PERMITS);
    let completed = plane.until("task-complete", 1).await;
    assert_eq!(completed[0]["status"], "Completed");
    let sent: Vec<usize> = plane.bodies("events").iter().map(|body| body["events"].as_array().unwrap().len()).collect();
    assert_eq!(sent.iter().sum::<usize>(), ALL, "each once: {sent:?}");
    assert!(sent.iter().all(|count| *count <= 500), "{sent:?}");
}

#[tokio::test]
async fn an_event_that_is_too_large_fails_its_handler_and_is_not_sent() {
    let plane = DispatchPlane::start().await;
    let worker = worker(&plane).operator("emit", async |task: Task| {
        let error = task.emit(0, "x".repeat(600 << 10)).await.unwrap_err();
        assert_eq!(error.code(), "EVENT_TOO_LARGE");
        Err::<(), _>(error)
    });
    let (_stop, _run) = spawn(worker);
    plane.task(plain(1, "emit"));
    let body = plane.until("task-complete", 1).await.remove(0);
    assert_eq!(fields(&body, &["status", "retryable"]), [&json!("Failed"), &json!(false)]);
    assert!(body["error"]["message"].as_str().unwrap().contains("524288"), "{body}");
    assert!(plane.bodies("events").is_empty());
}

#[tokio::test]
async fn a_claim_that_is_refused_costs_its_wake_up_and_not_the_worker() {
    let plane = DispatchPlane::start().await;
    plane.first("task-claim", [Say::No(422, "unsupported_field"), Say::No(404, "task_not_found")]);
    let (_stop, _run) = spawn(worker(&plane));
    plane.task(plain(1, "done"));
    let claims = plane.until("task-claim", 3).await;
    assert_eq!(plane.until("task-complete", 1).await[0]["status"], "Completed");
    let ids: std::collections::BTreeSet<_> = claims.iter().map(|claim| claim["claim_id"].to_string()).collect();
    assert_eq!(ids.len(), 3, "each is a claim of its own");
}

#[tokio::test]
async fn wake_ups_that_lead_to_nothing_are_not_asked_for_at_once_again() {
    let plane = DispatchPlane::start().await;
    plane.always("task-claim", Say::No(422, "unsupported_field"));
    let (_stop, _run) = spawn(worker(&plane));
    plane.task(plain(1, "done"));
    plane.until("task-wakeups", 2).await;
    let began = plane.bodies("task-wakeups").len();
    let hurries = wait_for(Duration::from_secs(1), || plane.bodies("task-wakeups").len() > began + 12).await;
    assert!(!hurries, "{} times in a second", plane.bodies("task-wakeups").len() - began);
    assert!(plane.bodies("task-wakeups").len() > began, "it goes on asking");
}

/// Whether something happens within a time.
async fn wait_for(time: Duration, happens: impl Fn() -> bool) -> bool {
    let looking = async {
        while !happens() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(time, looking).await.is_ok()
}
