//! Started, heartbeat and completed: repeated, refused, renewed.

use super::*;

#[tokio::test]
async fn started_is_repeated_with_the_same_body_until_it_is_answered() {
    let first = [Say::Cut, Say::No(429, "rate_limited"), Say::No(500, "internal"), Say::No(503, "store_unavailable")];
    let plane = Plane::start(Rules { started_first: first.into(), ..Rules::default() }).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let site = serve(worker(&plane).operator("count", move |_task| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    }))
    .await;
    assert_eq!(site.push(&plane.envelope("a", "count")).await.0, 202);
    site.until_ended(1).await;
    let started = plane.bodies("started");
    assert_eq!(started.len(), 5);
    assert!(started.iter().all(|body| *body == started[0]), "{started:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_start_that_is_refused_runs_nothing() {
    for (status, word, answer) in [
        (409, "attempt_already_started", 200),
        (409, "task_already_terminal", 200),
        (410, "task_expired", 200),
        (404, "task_not_found", 200),
        // The next push brings another token.
        (401, "invalid_token", 502),
        (422, "invalid_argument", 502),
    ] {
        let plane = Plane::start(Rules { started: Say::No(status, word), ..Rules::default() }).await;
        let site = serve(worker(&plane)).await;
        assert_eq!(site.push(&plane.envelope("a", "echo")).await.0, answer, "{word}");
        let ended = site.until_ended(1).await;
        assert!(matches!(&ended[0].reported, Reported::Refused(refusal) if refusal.error() == word));
        assert_eq!(plane.count("completed") + plane.count("heartbeat"), 0);
        plane.rules(|rules| rules.started = Say::Yes);
        assert_eq!(site.push(&plane.envelope("a", "echo")).await.0, 202, "it was not finished");
        site.until_ended(2).await;
    }
}

#[tokio::test]
async fn completed_is_repeated_with_the_same_body_and_a_duplicate_is_a_success() {
    let plane = Plane::start(Rules {
        completed_first: [Say::Cut, Say::No(429, "rate_limited"), Say::No(503, "store_unavailable")].into(),
        completed: Say::With(json!({"disposition": "duplicate"})),
        ..Rules::default()
    })
    .await;
    let site = serve(worker(&plane)).await;
    site.push(&plane.envelope("a", "echo")).await;
    let ended = site.until_ended(1).await;
    assert!(matches!(&ended[0].reported, Reported::Acknowledged(_)), "{:?}", ended[0]);
    let completed = plane.bodies("completed");
    assert_eq!(completed.len(), 4);
    assert!(completed.iter().all(|body| *body == completed[0]));
    // The lease is kept alive until the report is in.
    assert!(plane.count("heartbeat") >= 1);
    assert_eq!(site.push(&plane.envelope("a", "echo")).await.0, 409, "it is finished");
}

#[tokio::test]
async fn a_report_is_given_up_when_the_token_has_expired() {
    let plane = Plane::start(Rules { completed: Say::No(503, "store_unavailable"), ..Rules::default() }).await;
    let site = serve(worker(&plane)).await;
    site.push(&changed(plane.envelope("a", "echo"), json!({"tokenExpiresAt": after(8)}))).await;
    let ended = site.until_ended(1).await;
    assert!(matches!(&ended[0].reported, Reported::Unanswered(why) if why.contains("expired")), "{:?}", ended[0]);
    assert!(plane.count("completed") >= 2);
    // Nobody took the report, so the dispatch is not finished.
    plane.rules(|rules| rules.completed = Say::Yes);
    assert_eq!(site.push(&plane.envelope("a", "echo")).await.0, 202);
    site.until_ended(2).await;
}

#[tokio::test]
async fn a_report_that_is_refused_for_good_is_dropped() {
    for (status, word, again) in
        [(409, "attempt_mismatch", 409), (401, "invalid_token", 202), (404, "task_not_found", 202)]
    {
        let plane = Plane::start(Rules { completed: Say::No(status, word), ..Rules::default() }).await;
        let site = serve(worker(&plane)).await;
        site.push(&plane.envelope("a", "echo")).await;
        let ended = site.until_ended(1).await;
        assert!(matches!(&ended[0].reported, Reported::Refused(refusal) if refusal.error() == word));
        assert_eq!(plane.count("completed"), 1);
        assert_eq!(site.push(&plane.envelope("a", "echo")).await.0, again, "{word}");
    }
}

#[tokio::test]
async fn a_report_of_the_wrong_form_is_followed_by_one_that_says_so() {
    let first = [Say::No(422, "invalid_argument")].into();
    let plane = Plane::start(Rules { completed_first: first, ..Rules::default() }).await;
    let site = serve(worker(&plane)).await;
    site.push(&plane.envelope("a", "echo")).await;
    site.until_ended(1).await;
    let completed = plane.bodies("completed");
    assert_eq!(completed.len(), 2);
    assert_eq!((&completed[0]["outcome"], &completed[1]["outcome"]), (&json!("SUCCEEDED"), &json!("FAILED")));
    assert_eq!(completed[1]["error"]["retryable"], false);
    assert!(completed[1]["error"]["message"].as_str().unwrap().contains("invalid_argument"));
}

#[tokio::test]
async fn a_renewed_token_is_used_from_then_on() {
    let renewed = Say::With(json!({"taskToken": "token-2", "tokenExpiresAt": after(7200)}));
    let plane = Plane::start(Rules { heartbeat_first: [renewed].into(), ..Rules::default() }).await;
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let site = serve(worker(&plane).operator("hold", move |_task| {
        let gate = Arc::clone(&held);
        async move { pass(&gate).await }
    }))
    .await;
    site.push(&plane.envelope("a", "hold")).await;
    plane.until_count("heartbeat", 2).await;
    gate.add_permits(1);
    site.until_ended(1).await;
    let tokens: Vec<_> = plane.called().into_iter().map(|called| called.token).collect();
    assert_eq!(&tokens[..2], ["token-1", "token-1"], "started and the first heartbeat");
    assert!(tokens[2..].iter().all(|token| token == "token-2"), "{tokens:?}");
}

#[tokio::test]
async fn heartbeats_that_fail_are_tried_again_and_lose_nothing() {
    let first = [Say::Cut, Say::No(503, "store_unavailable"), Say::No(429, "rate_limited"), Say::Cut];
    let plane = Plane::start(Rules { heartbeat_first: first.into(), ..Rules::default() }).await;
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let site = serve(worker(&plane).operator("hold", move |task| {
        let gate = Arc::clone(&held);
        async move {
            task.report_progress(45, "Processing partition 5 of 10");
            task.save_checkpoint(&json!({"partition": 5}))?;
            pass(&gate).await
        }
    }))
    .await;
    site.push(&plane.envelope("a", "hold")).await;
    // Told with every try until one is answered, and not once more.
    let beats = plane.until_count("heartbeat", 7).await;
    for beat in &beats[..5] {
        assert_eq!(beat.body["progressPct"], 45);
        assert_eq!(beat.body["message"], "Processing partition 5 of 10");
        assert_eq!(beat.body["checkpoint"], json!({"partition": 5}));
    }
    assert!(beats[5].body.get("progressPct").is_none() && beats[5].body.get("checkpoint").is_none());
    gate.add_permits(1);
    site.until_ended(1).await;
    assert_eq!(plane.bodies("completed")[0]["outcome"], "SUCCEEDED");
}

#[tokio::test]
async fn a_heartbeat_refused_for_what_it_brought_does_not_bring_it_again() {
    let first = [Say::No(422, "invalid_argument")].into();
    let plane = Plane::start(Rules { heartbeat_first: first, ..Rules::default() }).await;
    let (worker, _was_dropped) = endless(worker(&plane));
    let worker = worker.operator("tell", async |task: TaskContext| {
        task.report_progress(45, "half");
        std::future::pending::<Result<(), TaskError>>().await
    });
    let site = serve(worker.drain_timeout(Duration::ZERO).stop_grace(Duration::ZERO)).await;
    site.push(&plane.envelope("a", "tell")).await;
    let beats = plane.until_count("heartbeat", 2).await;
    assert_eq!(beats[0].body["progressPct"], 45);
    assert!(beats[1].body.get("progressPct").is_none());
    site.shut_down().await.unwrap();
}

#[tokio::test]
async fn no_way_out_of_a_handler_is_a_success_by_default() {
    let plane = Plane::start(Rules::default()).await;
    let worker = worker(&plane)
        .operator("panics", async |_| -> Result<(), TaskError> { panic!("out of luck") })
        .operator("panics-early", |_| -> std::future::Ready<Result<(), TaskError>> { panic!("out of luck") })
        .operator("io", async |_| Ok(std::fs::read_to_string("/no/such/file")?))
        .operator("setting", async |_| Ok(std::env::var("NO_SUCH_SETTING")?))
        .operator("own-timeout", async |_| {
            let wait = tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>());
            Ok(wait.await?)
        })
        .operator("parse", async |_| Ok("x".parse::<u8>()?))
        .operator("data", async |task: TaskContext| task.payload::<u8>())
        .operator("too-long", async |_| std::future::pending::<Result<(), TaskError>>().await)
        .operator("too-large", async |_| Ok("x".repeat(2 << 20)));
    let site = serve(worker).await;
    let cases = [
        ("panics", "USER_CODE", true),
        ("panics-early", "USER_CODE", true),
        ("io", "INFRASTRUCTURE", true),
        ("setting", "CONFIGURATION", false),
        ("own-timeout", "TIMEOUT", true),
        ("parse", "USER_CODE", true),
        ("data", "DATA_QUALITY", false),
        ("too-long", "TIMEOUT", true),
        ("too-large", "USER_CODE", false),
        ("unknown", "CONFIGURATION", true),
    ];
    for (index, (asset, category, retryable)) in cases.into_iter().enumerate() {
        let mut envelope = plane.envelope(asset, asset);
        if asset == "too-long" {
            envelope["resources"]["timeoutMs"] = json!(300);
        }
        assert_eq!(site.push(&envelope).await.0, 202);
        site.until_ended(index + 1).await;
        let body = plane.bodies("completed").pop().unwrap();
        assert_eq!(body["outcome"], "FAILED", "{asset}: {body}");
        assert_eq!(body["error"]["category"], category, "{asset}: {body}");
        assert_eq!(body["error"]["retryable"], retryable, "{asset}: {body}");
        assert!(body.get("output").is_none());
        assert!(body["metrics"]["peakMemoryBytes"].is_u64());
    }
}

#[tokio::test]
async fn what_a_handler_logs_arrives_before_its_end_is_reported() {
    let plane = Plane::start(Rules::default()).await;
    let site = serve(worker(&plane).operator("talk", |task: TaskContext| async move {
        task.log("one");
        task.log_output(tenure_client::LogStream::Stderr).push(b"two\nthree");
        Ok(())
    }))
    .await;
    assert_eq!(site.push(&plane.envelope("a", "talk")).await.0, 202);
    site.until_ended(1).await;
    let called = plane.called();
    let last = called.iter().rposition(|called| called.call == "logs").expect("logs were sent");
    assert!(called[last + 1..].iter().any(|called| called.call == "completed"), "{called:#?}");
    let lines: Vec<Value> =
        plane.bodies("logs").iter().flat_map(|body| body["lines"].as_array().unwrap().clone()).collect();
    let lines: Vec<Value> = lines.iter().map(|line| json!([line["stream"], line["text"]])).collect();
    assert_eq!(json!(lines), json!([["log", "one"], ["stderr", "two"], ["stderr", "three"]]));
    let (sent, started) = (&plane.bodies("logs")[0], &plane.bodies("started")[0]);
    for field in ["attempt", "attemptId", "workerId"] {
        assert_eq!(sent[field], started[field], "{field}");
    }
}

#[tokio::test]
async fn logs_that_are_not_taken_fail_no_attempt() {
    for say in [Say::No(404, "not_found"), Say::No(503, "store_unavailable"), Say::Cut, Say::Hang] {
        let plane = Plane::start(Rules { logs: say.clone(), ..Rules::default() }).await;
        let asked = plane.clone();
        let site = serve(worker(&plane).operator("talk", move |task: TaskContext| {
            let asked = asked.clone();
            async move {
                task.log("one");
                asked.until_count("logs", 1).await;
                task.log("two");
                Ok(())
            }
        }))
        .await;
        site.push(&plane.envelope("a", "talk")).await;
        let ended = site.until_ended(1).await;
        assert!(matches!(&ended[0].reported, Reported::Acknowledged(_)), "{say:?}: {:?}", ended[0]);
        assert_eq!(plane.bodies("completed")[0]["outcome"], "SUCCEEDED", "{say:?}");
        if matches!(say, Say::No(404, _)) {
            assert_eq!(plane.count("logs"), 1, "a control plane without the route is asked once for each attempt");
        }
    }
}
