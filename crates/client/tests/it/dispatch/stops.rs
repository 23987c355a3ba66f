//! Handlers that are told to stop, and workers that end.

use super::*;

#[tokio::test]
async fn an_attempt_that_is_gone_is_stopped_and_not_reported() {
    for (status, word) in [
        (409, "stale_attempt"),
        (409, "stale_lease"),
        (409, "attempt_closed"),
        (409, "completion_conflict"),
        (409, "task_canceled"),
        (404, "task_not_found"),
    ] {
        let plane = DispatchPlane::start().await;
        plane.first("heartbeat", [Say::No(status, word)]);
        let (worker, was_dropped) = endless(worker(&plane));
        let (_stop, _run) = spawn(worker);
        plane.task(plain(1, "endless"));
        was_dropped.await.unwrap_err();
        // The slot is free again; once the next task is reported, the first would have been.
        plane.task(plain(2, "done"));
        assert_eq!(plane.until("task-complete", 1).await[0]["task_id"], id(2), "{word}");
    }
}

#[tokio::test]
async fn an_answer_to_events_takes_the_attempt_away_too() {
    let plane = DispatchPlane::start().await;
    plane.first("events", [Say::No(409, "stale_attempt")]);
    let reason = Arc::new(Mutex::new(None));
    let lost = Arc::clone(&reason);
    let worker = worker(&plane).operator("emit", move |task: Task| {
        let (lost, of) = (Arc::clone(&lost), task.clone());
        let guard = task.on_lease_lost(move || *lost.lock().unwrap() = of.cancel_reason());
        async move {
            let _guard = guard;
            task.emit(0, "a").await?;
            task.flush().await?;
            Ok(Output::new(0, "a"))
        }
    });
    let (_stop, _run) = spawn(worker);
    plane.task(plain(1, "emit"));
    plane.task(plain(2, "done"));
    assert_eq!(plane.until("task-complete", 1).await[0]["task_id"], id(2));
    let reason = reason.lock().unwrap().clone();
    assert!(matches!(&reason, Some(CancelReason::LeaseLost(why)) if why.contains("stale_attempt")), "{reason:?}");
}

#[tokio::test]
async fn a_completion_that_is_refused_as_stale_is_dropped() {
    let plane = DispatchPlane::start().await;
    plane.first("task-complete", [Say::No(409, "stale_lease")]);
    let (_stop, _run) = spawn(worker(&plane));
    plane.task(plain(1, "done"));
    plane.task(plain(2, "done"));
    let ids: Vec<_> = plane.until("task-complete", 2).await.iter().map(|body| body["task_id"].clone()).collect();
    assert_eq!(ids, [id(1), id(2)]);
}

#[tokio::test]
async fn an_expired_lease_that_nobody_else_has_is_finished_and_reported() {
    let plane = DispatchPlane::start().await;
    plane.always("heartbeat", Say::No(409, "lease_expired"));
    let gate = Arc::new(Semaphore::new(0));
    let pass = Arc::clone(&gate);
    let worker = worker(&plane).operator("hold", move |_task| {
        let pass = Arc::clone(&pass);
        async move {
            pass.acquire().await?.forget();
            Ok(())
        }
    });
    let (_stop, _run) = spawn(worker);
    plane.task(plain(1, "hold"));
    plane.until("heartbeat", 3).await;
    gate.add_permits(1);
    assert_eq!(plane.until("task-complete", 1).await[0]["status"], "Completed");
}

#[tokio::test]
async fn a_lease_that_no_answer_renews_ends_by_the_local_clock() {
    let plane = DispatchPlane::start().await;
    plane.always("heartbeat", Say::Hang);
    let (worker, was_dropped) = endless(worker(&plane).outage_tolerance(Duration::ZERO));
    let (_stop, _run) = spawn(worker);
    plane.task(plain(1, "endless"));
    was_dropped.await.unwrap_err();
    plane.task(plain(2, "done"));
    assert_eq!(plane.until("task-complete", 1).await[0]["task_id"], id(2));
}

#[tokio::test]
async fn a_cancel_reaches_the_handler_and_is_answered_with_canceled() {
    let plane = DispatchPlane::start().await;
    plane.always("heartbeat", Say::With(json!({"status": "Canceled"})));
    let worker = worker(&plane)
        .operator("returns", async |task: Task| {
            assert_eq!(task.cancelled().await, CancelReason::Requested("canceled".to_owned()));
            Ok(Output::new(0, "a"))
        })
        .operator("fails", async |task: Task| {
            task.cancelled().await;
            Err::<(), _>(TaskError::user_code("half way"))
        });
    let (_stop, _run) = spawn(worker);
    for (count, operator) in [(1, "returns"), (2, "fails")] {
        plane.task(plain(count, operator));
        let body = plane.until("task-complete", count as usize).await.pop().unwrap();
        assert_eq!(body["status"], "Canceled", "{operator}");
        assert!(["outputs", "error", "retryable"].iter().all(|field| body.get(field).is_none()), "{body}");
    }
}

#[tokio::test]
async fn a_worker_that_ends_finishes_what_it_has() {
    let plane = DispatchPlane::start().await;
    let gate = Arc::new(Semaphore::new(0));
    let pass = Arc::clone(&gate);
    let worker = worker(&plane).concurrency(2).operator("hold", move |_task| {
        let pass = Arc::clone(&pass);
        async move {
            pass.acquire().await?.forget();
            Ok(())
        }
    });
    let (stop, run) = spawn(worker);
    plane.task(plain(1, "hold"));
    plane.until("heartbeat", 1).await;
    drop(stop);
    // The lease is kept meanwhile, and nothing more is claimed.
    let beats = plane.bodies("heartbeat").len();
    plane.until("heartbeat", beats + 2).await;
    plane.task(plain(2, "hold"));
    gate.add_permits(1);
    end(run).await.unwrap();
    let completed = plane.bodies("task-complete");
    assert_eq!((completed.len(), &completed[0]["status"]), (1, &json!("Completed")));
    assert_eq!(plane.bodies("task-claim").len(), 1);
}

#[tokio::test]
async fn what_is_returned_after_a_shutdown_goes_back_unless_it_is_kept() {
    let plane = DispatchPlane::start().await;
    let worker = worker(&plane)
        .concurrency(2)
        .drain_timeout(Duration::ZERO)
        .stop_grace(Duration::from_secs(30))
        .operator("stops", async |task: Task| {
            assert_eq!(task.cancelled().await, CancelReason::Shutdown);
            Ok(Output::new(0, "half"))
        })
        .operator("keeps", async |task: Task| {
            task.cancelled().await;
            task.keep_result();
            Ok(Output::new(0, "whole"))
        });
    let (stop, run) = spawn(worker);
    plane.task(plain(1, "stops"));
    plane.task(plain(2, "keeps"));
    plane.until("task-claim", 2).await;
    drop(stop);
    end(run).await.unwrap();
    let mut completed = plane.bodies("task-complete");
    completed.sort_by_key(|body| body["task_id"].to_string());
    let said: Vec<_> = completed.iter().map(|body| fields(body, &["status", "retryable"])).collect();
    assert_eq!(said, [[&json!("Failed"), &json!(true)], [&json!("Completed"), &Value::Null]]);
}

#[tokio::test]
async fn a_worker_in_a_hurry_gives_its_task_back() {
    let plane = DispatchPlane::start().await;
    let (worker, was_dropped) = endless(worker(&plane).drain_timeout(Duration::ZERO).stop_grace(Duration::ZERO));
    let (stop, run) = spawn(worker);
    plane.task(plain(1, "endless"));
    plane.until("heartbeat", 1).await;
    drop(stop);
    end(run).await.unwrap();
    was_dropped.await.unwrap_err();
    let body = plane.bodies("task-complete").remove(0);
    assert_eq!(fields(&body, &["status", "retryable"]), [&json!("Failed"), &json!(true)]);
    assert_eq!(fields(&body["error"], &["category", "handed_back"]), [&json!("INFRASTRUCTURE"), &json!(true)]);
}

#[tokio::test]
async fn a_worker_that_is_dropped_ends_its_handlers_and_reports_nothing() {
    let plane = DispatchPlane::start().await;
    let (worker, was_dropped) = endless(worker(&plane));
    let (_stop, run) = spawn(worker);
    plane.task(plain(1, "endless"));
    plane.until("heartbeat", 1).await;
    run.abort();
    was_dropped.await.unwrap_err();
    assert!(plane.bodies("task-complete").is_empty());
}

#[tokio::test]
async fn a_worker_that_is_refused_ends() {
    for (status, word) in [(401, "invalid_worker_token"), (403, "worker_mismatch"), (400, "malformed_request")] {
        let plane = DispatchPlane::start().await;
        plane.always("task-wakeups", Say::No(status, word));
        let refused = worker(&plane).run().await.unwrap_err();
        assert!(matches!(&refused, WorkerError::Refused { error, .. } if error == word), "{refused}");
    }
    // Once it was let in, a refused token is a rotation that goes on.
    let plane = DispatchPlane::start().await;
    let (_stop, _run) = spawn(worker(&plane));
    plane.task(plain(1, "done"));
    plane.first("task-complete", [Say::No(401, "invalid_worker_token")]);
    plane.first("heartbeat", [Say::No(401, "invalid_worker_token")]);
    let bodies = plane.until("task-complete", 2).await;
    assert_eq!(bodies[0], bodies[1]);
}
