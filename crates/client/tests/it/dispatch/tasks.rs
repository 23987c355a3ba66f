//! What a handler sees, and how tasks come to it.

use super::*;

#[tokio::test]
async fn a_handler_sees_its_task_and_reports_outputs_and_state() {
    let plane = DispatchPlane::start().await;
    let seen = Arc::new(Mutex::new(Value::Null));
    let see = Arc::clone(&seen);
    let worker = worker(&plane).operator("see", move |task: Task| {
        let see = Arc::clone(&see);
        async move {
            let raw = task.partition("raw")?;
            *see.lock().unwrap() = json!({
                "id": task.task_id(), "attempt": task.attempt(), "fence": task.fence(),
                "job": [task.job().dag_name, task.job().name, task.job().dag_version],
                "config": task.config::<Value>()?, "trigger": task.trigger::<Value>()?,
                "work": task.work_payload::<Value>()?, "state": task.operator_state::<Value>()?,
                "key": raw.partition_key, "range": [raw.start, raw.end],
                "folder": task.input_folder("raw")?, "outputs": task.outputs().len(),
                "token": task.capability_token(), "deadline": task.deadline(),
                "no input": task.input("other").unwrap_err().message(),
                "no cursor": task.cursor("raw").unwrap_err().is_retryable(),
            });
            task.set_state(&json!({"seen": 5}))?;
            Ok(vec![
                Output::new(0, (1, 5)).rows(9).bytes(80).schema_hash("h"),
                Output::new(1, Position::Cursor(7)).at("postgres_table:dataset_1"),
            ])
        }
    });
    let (stop, run) = spawn(worker);
    plane.task(plain(1, "see"));
    let completed = plane.until("task-complete", 1).await.remove(0);
    assert_eq!(
        *seen.lock().unwrap(),
        json!({
            "id": id(1), "attempt": 1, "fence": 7, "job": ["chain", "decode", 3], "config": {"abi": "erc20"},
            "trigger": {"kind": "event"}, "work": {"abi": "erc20", "start": 1}, "state": {"seen": 4}, "key": "1-5",
            "range": [1, 5], "folder": "/d/p/", "outputs": 2, "token": "first-capability",
            "deadline": "2099-01-01T00:30:00Z", "no input": "the job has no input `other`: it has raw",
            "no cursor": false,
        })
    );
    assert_eq!(
        completed,
        json!({
            "task_id": id(1), "attempt": 1, "lease_token": "0190c0de-0000-7000-8000-000000000777",
            "status": "Completed", "operator_state": {"seen": 5},
            "outputs": [
                {"dataset_uuid": "dataset-0", "dataset_version": "version-0", "location": "none:", "partition_key": "1-5",
                 "start": 1, "end": 5, "row_count": 9, "bytes": 80, "schema_hash": "h"},
                {"dataset_uuid": "dataset-1", "dataset_version": "version-1", "location": "postgres_table:dataset_1",
                 "cursor": 7},
            ],
        })
    );
    let called = [plane.of("task-wakeups"), plane.of("task-claim"), plane.of("task-complete")].concat();
    for call in called {
        assert_eq!(call.headers["x-trace-worker-token"], TOKEN, "{}", call.path);
        assert!(!call.headers.contains_key("x-worker-id"), "{}", call.path);
    }
    assert_eq!(fields(&plane.bodies("task-claim")[0], &["task_id", "worker_id"]), [&json!(id(1)), &json!("w-1")]);
    assert_eq!(fields(&plane.bodies("task-wakeups")[0], &["queue", "max"]), ["worker", "1"]);
    drop(stop);
    end(run).await.unwrap();
}

#[tokio::test]
async fn a_worker_with_an_identity_shows_its_own_token() {
    let plane = DispatchPlane::start().await;
    let worker = Worker::new(&plane.url).identity("w-2", WorkerToken::text("its-own")).operator("done", done);
    let (_stop, _run) = spawn(worker);
    plane.task(plain(1, "done"));
    plane.until("task-complete", 1).await;
    for call in [plane.of("task-wakeups"), plane.of("task-claim"), plane.of("task-complete")].concat() {
        assert_eq!(call.headers["x-worker-id"], "w-2");
        assert_eq!(call.headers["x-worker-token"], "its-own");
        assert!(!call.headers.contains_key("x-trace-worker-token"));
    }
}

#[tokio::test]
async fn a_writer_marks_what_is_finished() {
    let plane = DispatchPlane::start().await;
    let folder = tempfile::tempdir().unwrap();
    let worker = worker(&plane).operator("write", async |task: Task| {
        let writer = task.writer(0).await?;
        tokio::fs::write(writer.path().join("rows.parquet"), b"PAR1").await?;
        writer.finish().await?;
        let unfinished = task.writer(1).await?;
        tokio::fs::write(unfinished.path().join("rows.parquet"), b"PAR1").await?;
        Ok(vec![Output::new(0, "a"), Output::new(1, "a")])
    });
    let (_stop, _run) = spawn(worker);
    plane.task(claimed(1, "write", Some(folder.path()), json!({})));
    let completed = plane.until("task-complete", 1).await.remove(0);
    let prefix = format!("file://{}/0/", folder.path().display());
    assert_eq!(completed["outputs"][0]["location"], prefix);
    assert_eq!(completed["outputs"][1]["location"], "none:", "its writer has not finished");
    let is_there = |name: &str| folder.path().join(name).exists();
    assert!(is_there("0/rows.parquet") && is_there("0/_SUCCESS") && is_there("1/rows.parquet"));
    assert!(!is_there("1/_SUCCESS"));
    plane.task(plain(2, "write"));
    let failed = plane.until("task-complete", 2).await.remove(1);
    assert_eq!(fields(&failed, &["status", "retryable"]), [&json!("Failed"), &json!(false)], "no object store");
}

#[tokio::test]
async fn no_more_is_claimed_than_can_run() {
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
    for number in 1..=3 {
        plane.task(plain(number, "hold"));
    }
    let (_stop, _run) = spawn(worker);
    plane.until("task-claim", 2).await;
    // While both run, the worker does not even ask: each sends heartbeats for longer than a poll would take.
    plane.until("heartbeat", 6).await;
    assert_eq!((plane.bodies("task-claim").len(), plane.bodies("task-wakeups").len()), (2, 1));
    gate.add_permits(1);
    plane.until("task-claim", 3).await;
    gate.add_permits(2);
    let completed = plane.until("task-complete", 3).await;
    assert_eq!(completed.iter().filter(|body| body["status"] == "Completed").count(), 3);
}

#[tokio::test]
async fn what_is_not_claimed_is_forgotten() {
    let plane = DispatchPlane::start().await;
    let not = ["AlreadyRunning", "Completed", "Canceled", "Failed", "NotReady", "NotFound"];
    plane.first("task-claim", not.map(|reason| Say::With(json!({"status": "NotClaimed", "reason": reason}))));
    let (_stop, _run) = spawn(worker(&plane));
    for number in 1..=7 {
        plane.task(plain(number, "done"));
    }
    plane.until("task-complete", 1).await;
    assert_eq!(plane.bodies("task-claim").len(), 7, "each wake-up is claimed for once");
}

#[tokio::test]
async fn a_wake_up_whose_claim_is_refused_is_forgotten() {
    let plane = DispatchPlane::start().await;
    plane.first("task-claim", [Say::No(400, "malformed_request"), Say::No(404, "task_not_found")]);
    let (_stop, run) = spawn(worker(&plane));
    for number in 1..=3 {
        plane.task(plain(number, "done"));
    }
    plane.until("task-complete", 1).await;
    assert_eq!(plane.bodies("task-claim").len(), 3, "each wake-up is claimed for once");
    assert!(!run.is_finished(), "the worker goes on");
}

#[tokio::test]
async fn a_server_that_does_not_let_wait_is_not_hammered() {
    let plane = DispatchPlane::start().await;
    plane.always("task-wakeups", Say::With(json!({"messages": []})));
    let began = std::time::Instant::now();
    let (_stop, _run) = spawn(worker(&plane));
    plane.until("task-wakeups", 6).await;
    // Five pauses of 100 ms or more.
    assert!(began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_handler_that_blocks_its_whole_runtime_still_heartbeats() {
    let plane = DispatchPlane::start().await;
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let worker = worker(&plane).operator("block", move |_task| {
        released.lock().unwrap().recv().unwrap();
        async { Ok(()) }
    });
    // One thread for everything: claims, reports and the handler.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(worker.run())
    });
    plane.task(plain(1, "block"));
    plane.until("heartbeat", 6).await;
    assert!(plane.bodies("task-complete").is_empty());
    release.send(()).unwrap();
    plane.until("task-complete", 1).await;
}

#[tokio::test]
async fn a_source_that_never_ends_gets_other_tokens() {
    let plane = DispatchPlane::start().await;
    plane.first("heartbeat", [Say::With(json!({"capability_token": "second-capability"}))]);
    let worker = worker(&plane).operator("source", async |task: Task| {
        while task.capability_token() != "second-capability" {
            tokio::task::yield_now().await;
        }
        Ok(())
    });
    let (_stop, _run) = spawn(worker);
    plane.task(claimed(1, "source", None, json!({"timeout_seconds": null})));
    plane.until("task-complete", 1).await;
    let beat = plane.of("heartbeat").remove(0);
    assert_eq!(
        (beat.path.as_str(), beat.headers["x-trace-task-capability"].to_str().unwrap()),
        ("/v1/task/heartbeat", "first-capability")
    );
    assert!(!beat.headers.contains_key("x-trace-worker-token"));
}

#[tokio::test]
async fn a_capability_token_that_is_refused_costs_no_lease() {
    let plane = DispatchPlane::start().await;
    plane.first("heartbeat", [Say::No(401, "invalid_token")]);
    let (worker, _was_dropped) = endless(worker(&plane));
    let (_stop, _run) = spawn(worker);
    plane.task(claimed(1, "endless", None, json!({"timeout_seconds": null})));
    plane.until("heartbeat", 2).await;
    let paths: Vec<_> = plane.of("heartbeat").into_iter().take(2).map(|call| call.path).collect();
    assert_eq!(paths, ["/v1/task/heartbeat", "/internal/heartbeat"]);
}

#[tokio::test]
async fn a_worker_that_cannot_work_says_why() {
    let plane = DispatchPlane::start().await;
    let why = async |worker: Worker| worker.run().await.unwrap_err().to_string();
    assert!(why(Worker::new(&plane.url)).await.contains("operator"));
    assert!(why(worker(&plane).concurrency(0)).await.contains("at least one task"));
    assert!(why(worker(&plane).queue("")).await.contains("queue"));
    assert!(why(worker(&plane).poll_wait(Duration::from_secs(21))).await.contains("20 s"));
    assert!(why(worker(&plane).worker_id("")).await.contains("worker id"));
    assert!(why(Worker::new("h:1").operator("done", done)).await.contains("h:1"));
    assert!(!format!("{:?}", worker(&plane)).contains(TOKEN));
}

#[tokio::test]
async fn what_a_handler_logs_arrives_before_its_end_is_reported() {
    for refused in [false, true] {
        let plane = DispatchPlane::start().await;
        if refused {
            plane.first("task-logs", [Say::No(404, "not_found")]);
        }
        let worker = worker(&plane).operator("talk", |task: Task| async move {
            task.log("one");
            task.log_output(tenure_client::LogStream::Stdout).push(b"two");
            Ok(Output::new(0, "all"))
        });
        let (stop, run) = spawn(worker);
        plane.task(plain(1, "talk"));
        let completed = plane.until("task-complete", 1).await.remove(0);
        assert_eq!(completed["status"], "Completed", "whatever becomes of the logs");
        let sent = plane.bodies("task-logs");
        let lines: Vec<&Value> = sent.iter().flat_map(|body| body["lines"].as_array().unwrap()).collect();
        let lines: Vec<Value> = lines.iter().map(|line| json!([line["stream"], line["text"]])).collect();
        assert_eq!(json!(lines), json!([["log", "one"], ["stdout", "two"]]));
        assert_eq!(
            fields(&sent[0], &["task_id", "attempt", "lease_token"]),
            fields(&completed, &["task_id", "attempt", "lease_token"])
        );
        drop(stop);
        end(run).await.unwrap();
    }
}
