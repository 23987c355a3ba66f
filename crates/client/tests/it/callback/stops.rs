//! Handlers that are told to stop, and workers that end.

use super::*;

#[tokio::test]
async fn a_refused_heartbeat_ends_the_handler_and_nothing_is_reported() {
    let refusals = [
        (410, "task_expired", ErrorCode::TaskExpired),
        (409, "attempt_mismatch", ErrorCode::AttemptMismatch),
        (401, "invalid_token", ErrorCode::InvalidToken),
        (404, "task_not_found", ErrorCode::TaskNotFound),
    ];
    for (status, word, code) in refusals {
        let plane = Plane::start(Rules { heartbeat: Say::No(status, word), ..Rules::default() }).await;
        let (worker, was_dropped) = endless(worker(&plane));
        let site = serve(worker).await;
        assert_eq!(site.push(&plane.envelope("a", "endless")).await.0, 202);
        was_dropped.await.unwrap_err();
        let ended = site.until_ended(1).await;
        let Reported::Refused(refusal) = &ended[0].reported else { panic!("{:?}", ended[0]) };
        assert_eq!((refusal.status(), refusal.code()), (status, Some(code)));
        assert_eq!(plane.count("completed"), 0);
        // It is neither in flight nor finished: should it come again, the control plane has the word.
        plane.rules(|rules| rules.started = Say::No(409, "attempt_already_completed"));
        assert_eq!(site.push(&plane.envelope("a", "endless")).await.0, 200);
        assert_eq!(plane.count("started"), 2);
        site.shut_down().await.unwrap();
    }
}

#[tokio::test]
async fn a_connection_that_says_nothing_more_does_not_keep_the_worker() {
    let plane = Plane::start(Rules::default()).await;
    let site = serve(worker(&plane)).await;
    let mut half = tokio::net::TcpStream::connect(site.address).await.unwrap();
    half.write_all(b"POST /dispatch HTTP/1.1\r\nHost:").await.unwrap();
    // Its head has arrived: what comes behind it is answered.
    assert_eq!(site.push(&plane.envelope("a", "echo")).await.0, 202);
    site.until_ended(1).await;
    site.shut_down().await.unwrap();
    drop(half);
}

#[tokio::test]
async fn a_cancel_reaches_the_handler_and_is_answered_with_cancelled() {
    let cancel = Say::With(json!({"shouldCancel": true, "cancelReason": "user_requested"}));
    let plane = Plane::start(Rules { heartbeat: cancel, ..Rules::default() }).await;
    let until_cancelled = |task: TaskContext| async move {
        task.enter_phase("processing");
        task.save_checkpoint(&json!({"lastCheckpoint": "partition-5"}))?;
        let reason = task.cancelled().await;
        assert_eq!(reason, CancelReason::Requested("user_requested".to_owned()));
        Ok::<_, TaskError>(task)
    };
    let worker = worker(&plane)
        .operator("returns", move |task| async move { until_cancelled(task).await.map(|_| 1) })
        .operator("fails", move |task| async move {
            until_cancelled(task).await?;
            Err::<(), _>(TaskError::user_code("half way"))
        })
        .operator("says-so", move |task| async move {
            until_cancelled(task).await?;
            Err::<(), _>(TaskError::cancelled("stopped"))
        })
        .operator("finishes", move |task| async move {
            until_cancelled(task).await?.keep_result();
            Ok("done")
        });
    let site = serve(worker).await;
    for asset in ["returns", "fails", "says-so"] {
        site.push(&plane.envelope(asset, asset)).await;
        let completed = plane.until(|called| called.iter().any(|c| c.call == "completed" && c.task == asset)).await;
        let body = &completed.iter().find(|c| c.call == "completed" && c.task == asset).unwrap().body;
        assert_eq!(body["outcome"], "CANCELLED", "{asset}");
        assert_eq!(body["cancelledDuringPhase"], "processing");
        assert_eq!(body["partialProgress"], json!({"lastCheckpoint": "partition-5"}));
        assert!(body.get("output").is_none());
        assert_eq!(body.get("error").is_some(), asset == "fails", "{body}");
    }
    site.push(&plane.envelope("finishes", "finishes")).await;
    let ended = site.until_ended(4).await;
    assert_eq!(ended.len(), 4);
    let last = plane.bodies("completed").pop().unwrap();
    assert_eq!((&last["outcome"], &last["output"]), (&json!("SUCCEEDED"), &json!("done")));
}

#[tokio::test]
async fn a_handler_that_ignores_a_cancel_is_ended_within_its_grace() {
    let cancel = Say::With(json!({"shouldCancel": true, "cancelReason": "user_requested"}));
    let plane = Plane::start(Rules { heartbeat: cancel, ..Rules::default() }).await;
    let (worker, was_dropped) = endless(worker(&plane));
    let site = serve(worker).await;
    site.push(&changed(plane.envelope("a", "endless"), json!({"cancelGracePeriodMs": 500}))).await;
    was_dropped.await.unwrap_err();
    let called = plane.until_count("completed", 1).await;
    assert_eq!(called[0].body["outcome"], "CANCELLED");
    let signal = plane.called().into_iter().find(|called| called.call == "heartbeat").unwrap().at;
    let took = called[0].at.duration_since(signal);
    assert!(took >= Duration::from_millis(390), "it had most of its grace: {took:?}");
}

#[tokio::test]
async fn a_worker_that_goes_away_reports_nothing() {
    let plane = Plane::start(Rules::default()).await;
    let (worker, _was_dropped) = endless(worker(&plane));
    let service = worker.start().unwrap();
    let (router, url) = (service.router(), plane.url.clone());
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let serving = axum::serve(TcpListener::from_std(listener).unwrap(), router).into_future();
            tokio::select! {
                _ = serving => {}
                _ = stopped => {}
            }
        });
    });
    assert_eq!(push(address, &plane.envelope("a", "endless"), Some(SECRET)).await.0, 202);
    plane.until_count("heartbeat", 1).await;
    drop(stop);
    tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
    assert_eq!(service.in_flight(), 0, "the attempt went with its runtime");
    assert_eq!((plane.count("completed"), plane.url), (0, url));
}

#[tokio::test]
async fn a_shutdown_lets_tasks_finish_and_takes_nothing_more() {
    let plane = Plane::start(Rules::default()).await;
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let mut site = serve(worker(&plane).operator("hold", move |_task| {
        let gate = Arc::clone(&held);
        async move { pass(&gate).await }
    }))
    .await;
    site.push(&plane.envelope("a", "hold")).await;
    site.stop = None;
    let until = async {
        loop {
            let (status, retry_after, body) = push(site.address, &plane.envelope("b", "echo"), Some(SECRET)).await;
            if status == 503 {
                return (retry_after, body["error"].clone());
            }
            // It was taken before the word came.
            assert!(matches!(status, 202 | 409), "{status}");
        }
    };
    assert_eq!(until.await, (Some("1".to_owned()), json!("shutting_down")));
    assert!(!site.run.is_finished());
    gate.add_permits(1);
    site.shut_down().await.unwrap();
    let completed = plane.bodies("completed");
    assert!(completed.iter().all(|body| body["outcome"] == "SUCCEEDED"));
}

#[tokio::test]
async fn a_task_that_does_not_end_with_its_worker_fails_and_is_tried_again() {
    let plane = Plane::start(Rules::default()).await;
    let (worker, was_dropped) = endless(worker(&plane));
    let site = serve(worker.drain_timeout(Duration::ZERO).stop_grace(Duration::ZERO)).await;
    site.push(&plane.envelope("a", "endless")).await;
    site.shut_down().await.unwrap();
    was_dropped.await.unwrap_err();
    let completed = plane.bodies("completed").remove(0);
    assert_eq!(completed["outcome"], "FAILED");
    assert_eq!(
        (&completed["error"]["category"], &completed["error"]["retryable"]),
        (&json!("INFRASTRUCTURE"), &json!(true))
    );
    assert_eq!(completed["error"]["handedBack"], true);
}

/// Whether it returns, fails or says that it was cancelled: nobody cancelled the task, so it is tried again.
#[tokio::test]
async fn a_task_that_stops_with_its_worker_fails_and_is_tried_again() {
    let plane = Plane::start(Rules::default()).await;
    let worker = worker(&plane)
        .drain_timeout(Duration::ZERO)
        .stop_grace(Duration::from_secs(30))
        .operator("returns", |task| async move {
            task.cancelled().await;
            Ok("half")
        })
        .operator(
            "says-so",
            |task| async move { Err::<(), _>(TaskError::cancelled(task.cancelled().await.to_string())) },
        )
        .operator("keeps", |task| async move {
            task.cancelled().await;
            task.keep_result();
            Ok("all")
        });
    let site = serve(worker).await;
    for asset in ["returns", "says-so", "keeps"] {
        assert_eq!(site.push(&plane.envelope(asset, asset)).await.0, 202);
    }
    site.shut_down().await.unwrap();
    let called = plane.called();
    let body = |task: &str| called.iter().find(|c| c.call == "completed" && c.task == task).unwrap().body.clone();
    for task in ["returns", "says-so"] {
        let body = body(task);
        assert_eq!((&body["outcome"], &body["error"]["retryable"]), (&json!("FAILED"), &json!(true)), "{body}");
        assert!(body.get("output").is_none(), "{body}");
    }
    assert_eq!((&body("keeps")["outcome"], &body("keeps")["output"]), (&json!("SUCCEEDED"), &json!("all")));
}

/// The lease ends by the local clock when nothing is heard of the control plane for longer than it lasts.
#[tokio::test]
async fn a_lease_that_no_answer_renews_ends_by_the_local_clock() {
    let plane = Plane::start(Rules { heartbeat: Say::Hang, ..Rules::default() }).await;
    let (worker, was_dropped) = endless(worker(&plane).outage_tolerance(Duration::ZERO));
    let site = serve(worker).await;
    let short = json!({"heartbeatTimeoutMs": 500, "heartbeatIntervalMs": 100});
    site.push(&changed(plane.envelope("a", "endless"), short)).await;
    was_dropped.await.unwrap_err();
    let ended = site.until_ended(1).await;
    assert!(matches!(&ended[0].reported, Reported::Unanswered(_)), "{:?}", ended[0]);
    assert_eq!(plane.count("completed"), 0);
}
