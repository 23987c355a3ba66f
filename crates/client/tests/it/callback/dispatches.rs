//! What is pushed, and what becomes of it.

use super::*;

#[tokio::test]
async fn a_pushed_task_is_started_run_and_reported() {
    let plane = Plane::start(Rules::default()).await;
    let site = serve(worker(&plane)).await;
    let envelope = changed(plane.envelope("a", "echo"), json!({"traceparent": "00-aa-bb-01"}));
    assert_eq!(site.push(&envelope).await.0, 202);
    let ended = site.until_ended(1).await;
    assert!(matches!(&ended[0].reported, Reported::Acknowledged(answer) if answer.acknowledged));
    assert_eq!((ended[0].task_id.as_str(), ended[0].attempt), ("a", 1));

    let called = plane.called();
    let calls: Vec<_> = called.iter().map(|called| called.call.as_str()).filter(|call| *call != "heartbeat").collect();
    assert_eq!(calls, ["started", "completed"]);
    for call in &called {
        assert_eq!((call.task.as_str(), call.token.as_str()), ("a", "token-1"));
        assert_eq!(call.body["attempt"], 1);
        assert_eq!(call.body["attemptId"], "att_01HGW5N7XHJM4GX29KZRXQP6NA");
        assert_eq!(call.body["workerId"], called[0].body["workerId"]);
        assert_eq!(call.body["traceparent"], "00-aa-bb-01");
    }
    let completed = &plane.bodies("completed")[0];
    assert_eq!(completed["outcome"], "SUCCEEDED");
    assert_eq!(completed["output"], json!({"task": "a"}));
    assert!(completed["metrics"]["cpuTimeMs"].is_u64());
    assert!(completed["metrics"]["peakMemoryBytes"].as_u64() > Some(1 << 20));
    assert!(completed.get("error").is_none() && completed.get("partialProgress").is_none());
    site.shut_down().await.unwrap();
}

#[tokio::test]
async fn an_envelope_may_be_written_in_snake_case() {
    let plane = Plane::start(Rules::default()).await;
    let site = serve(worker(&plane).operator("empty", async |_| Ok(()))).await;
    let envelope: serde_json::Map<String, Value> = plane
        .envelope("a", "empty")
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| {
            let snake = |text: String, letter: char| match letter.is_ascii_uppercase() {
                true => format!("{text}_{}", letter.to_ascii_lowercase()),
                false => format!("{text}{letter}"),
            };
            (name.chars().fold(String::new(), snake), value.clone())
        })
        .collect();
    assert_eq!(site.push(&envelope.into()).await.0, 202);
    site.until_ended(1).await;
    let completed = plane.bodies("completed").remove(0);
    assert_eq!(completed["outcome"], "SUCCEEDED");
    assert!(completed.get("output").is_none(), "no result, no output");
}

#[tokio::test]
async fn a_dispatch_is_worked_on_once() {
    let plane = Plane::start(Rules::default()).await;
    let gate = Arc::new(Semaphore::new(0));
    let (held, runs) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&runs);
    let worker = worker(&plane).concurrency(2).operator("hold", move |_task| {
        let gate = Arc::clone(&held);
        counted.fetch_add(1, Ordering::SeqCst);
        async move { pass(&gate).await }
    });
    let site = serve(worker).await;
    assert_eq!(site.push(&plane.envelope("a", "hold")).await.0, 202);
    let again = push(site.address, &plane.envelope("a", "hold"), Some(SECRET)).await;
    assert_eq!((again.0, again.1.as_deref(), &again.2["error"]), (503, Some("1"), &json!("in_flight")));
    assert_eq!(site.push(&plane.envelope("b", "hold")).await.0, 202);
    let third = push(site.address, &plane.envelope("c", "hold"), Some(SECRET)).await;
    assert_eq!((third.0, third.1.as_deref(), &third.2["error"]), (503, Some("1"), &json!("busy")));
    gate.add_permits(2);
    site.until_ended(2).await;
    assert_eq!(site.push(&plane.envelope("a", "hold")).await.0, 409);
    assert_eq!((runs.load(Ordering::SeqCst), plane.count("started")), (2, 2));
}

#[tokio::test]
async fn what_is_not_meant_for_this_worker_is_refused_and_no_token_leaves() {
    let plane = Plane::start(Rules::default()).await;
    let elsewhere = Plane::start(Rules::default()).await;
    let site = serve(worker(&plane).secret("the-next-one")).await;
    let good = plane.envelope("a", "echo");
    for secret in [None, Some("wrong"), Some(""), Some("between-u"), Some("between-us-")] {
        let (status, _, body) = push(site.address, &good, secret).await;
        assert_eq!((status, &body["error"]), (401, &json!("wrong_secret")), "{secret:?}");
    }
    for (changes, status, error) in [
        (json!({"tenantId": "other"}), 403, "foreign_scope"),
        (json!({"workspaceId": "dev"}), 403, "foreign_scope"),
        (json!({"callbackBaseUrl": elsewhere.url}), 403, "foreign_callback_url"),
        (json!({"callbackBaseUrl": format!("{}@{}", plane.url, &elsewhere.url[7..])}), 403, "foreign_callback_url"),
        (json!({"taskToken": 7}), 400, "malformed_envelope"),
        (json!({"tokenExpiresAt": "soon"}), 400, "malformed_envelope"),
        (json!({"task_id": "a"}), 400, "malformed_envelope"),
        (json!({"dispatchId": ""}), 400, "malformed_envelope"),
        (json!({"dispatchId": "d".repeat(1000)}), 400, "malformed_envelope"),
    ] {
        let (got, body) = site.push(&changed(good.clone(), changes.clone())).await;
        assert_eq!((got, &body["error"]), (status, &json!(error)), "{changes}");
    }
    assert_eq!((plane.called().len(), elsewhere.called().len()), (0, 0));
    // Either secret opens.
    assert_eq!(push(site.address, &good, Some("the-next-one")).await.0, 202);
}

#[tokio::test]
async fn the_next_attempt_has_what_the_one_before_left() {
    let plane = Plane::start(Rules::default()).await;
    let worker = worker(&plane).operator("resume", async |task: TaskContext| {
        let done: u32 = task.checkpoint()?.unwrap_or_default();
        assert_eq!((task.run_id(), task.task_key()), (Some("run_01HGW5N7XHJM4GX29KZRXQP6N8"), Some("extract")));
        assert_eq!((task.scope(), task.queue(), task.fence()), (Some(("acme", "prod")), "etl", 7));
        task.save_checkpoint(&(done + 5))?;
        if task.attempt() == 1 {
            return Err(TaskError::infrastructure("the disk is full"));
        }
        Ok(done)
    });
    let site = serve(worker).await;
    site.push(&plane.envelope("a", "resume")).await;
    site.until_ended(1).await;
    let failed = plane.bodies("completed").remove(0);
    assert_eq!((&failed["outcome"], &failed["partialProgress"]), (&json!("FAILED"), &json!(5)));
    let next = json!({"attempt": 2, "dispatchId": "d_a2", "previousProgress": failed["partialProgress"]});
    site.push(&changed(plane.envelope("a", "resume"), next)).await;
    site.until_ended(2).await;
    let succeeded = plane.bodies("completed").pop().unwrap();
    assert_eq!((&succeeded["attempt"], &succeeded["output"]), (&json!(2), &json!(5)));
    assert!(succeeded.get("partialProgress").is_none());
}

#[tokio::test]
async fn a_handler_knows_its_task_by_a_uuid() {
    let plane = Plane::start(Rules::default()).await;
    let site = serve(worker(&plane).operator("who", |task| async move { Ok(task.guard().task_id().to_owned()) })).await;
    let (sent, uuid) = ("task_01HGW5N7XHJM4GX29KZRXQP6N9", "018c385a-9fb1-9509-0e89-33fe3b7b1aa9");
    assert_eq!(site.push(&plane.envelope(sent, "who")).await.0, 202);
    assert_eq!(site.until_ended(1).await[0].task_id, uuid);
    assert_eq!(plane.bodies("completed")[0]["output"], uuid);
    // Callbacks go to the task as the envelope spells it.
    assert!(plane.called().iter().all(|called| called.task == sent));
}

/// Many tasks at a time, and a control plane whose answers get lost or say "not now" as often as not.
#[tokio::test]
async fn under_faults_every_task_runs_once_and_says_one_thing() {
    const TASKS: usize = 50;
    let mut seed = 2025_u64;
    let mut faults = || -> std::collections::VecDeque<Say> {
        let mut draw = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match seed >> 61 {
                0 => Say::Cut,
                1 => Say::No(503, "store_unavailable"),
                2 => Say::No(429, "rate_limited"),
                3 => Say::No(500, "internal"),
                _ => Say::Yes,
            }
        };
        (0..3 * TASKS).map(|_| draw()).collect()
    };
    let plane = Plane::start(Rules {
        started_first: faults(),
        heartbeat_first: faults(),
        completed_first: faults(),
        ..Rules::default()
    })
    .await;
    let runs = Arc::new(Mutex::new(Vec::new()));
    let ran = Arc::clone(&runs);
    let site = serve(worker(&plane).operator("work", move |task: TaskContext| {
        ran.lock().unwrap().push(task.task_id().to_owned());
        async move {
            // Until a heartbeat or two are through.
            tokio::time::timeout(Duration::from_millis(150), task.cancelled()).await.ok();
            Ok(task.task_id().to_owned())
        }
    }))
    .await;
    let tasks: Vec<_> = (0..TASKS).map(|task| format!("t{task}")).collect();
    let pushes = tasks.iter().map(|task| {
        let (site, envelope) = (&site, plane.envelope(task, "work"));
        // As a control plane does: again until it is taken, and once more because the answer got lost.
        async move {
            assert_eq!(site.push(&envelope).await.0, 202);
            assert!(matches!(site.push(&envelope).await.0, 503 | 409));
        }
    });
    futures_util::future::join_all(pushes).await;
    let ended = site.until_ended(TASKS).await;
    assert!(ended.iter().all(|end| matches!(&end.reported, Reported::Acknowledged(_))), "{ended:?}");
    let mut ran = runs.lock().unwrap().clone();
    ran.sort();
    let mut expected = tasks.clone();
    expected.sort();
    assert_eq!(ran, expected);
    let called = plane.called();
    for task in &tasks {
        for call in ["started", "completed"] {
            let bodies: Vec<_> = called.iter().filter(|c| c.task == *task && c.call == call).map(|c| &c.body).collect();
            assert!(bodies.iter().all(|body| *body == bodies[0]), "{call} of {task}: {bodies:?}");
        }
    }
    assert!(plane.count("completed") > TASKS, "some were repeated");
}
