//! The worker that is pushed to, against a control plane that does what each test scripts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "support/plane.rs"]
mod plane;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use plane::{Called, Plane, Rules, Say, after};
use serde_json::{Value, json};
use tenure_client::callback::{Ended, ErrorCode, Reported, SECRET_HEADER, Worker};
use tenure_client::{CancelReason, Json, TaskContext, TaskError, WorkerError};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinHandle;

const SECRET: &str = "between-us";

fn worker(plane: &Plane) -> Worker {
    Worker::new().callback_url(&plane.url).secret(SECRET).scope("acme", "prod").operator("echo", echo)
}

async fn echo(task: TaskContext) -> Result<Json, TaskError> {
    Ok(task.raw_payload().clone())
}

/// A worker that is served beside the test; dropping the sender shuts it down.
struct Site {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<Result<(), WorkerError>>,
    ended: Arc<Mutex<Vec<Ended>>>,
    told: Arc<Notify>,
}

async fn serve(worker: Worker) -> Site {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (ended, told) = (Arc::<Mutex<Vec<Ended>>>::default(), Arc::<Notify>::default());
    let (list, bell) = (Arc::clone(&ended), Arc::clone(&told));
    let worker = worker.on_ended(move |end| {
        list.lock().unwrap().push(end.clone());
        bell.notify_one();
    });
    let run = tokio::spawn(worker.run_until(listener, async { drop(stopped.await) }));
    Site { address, stop: Some(stop), run, ended, told }
}

impl Site {
    /// Pushes, and gives status and body of the answer.
    async fn push(&self, envelope: &Value) -> (u16, Value) {
        let (status, _, body) = push(self.address, envelope, Some(SECRET)).await;
        (status, body)
    }

    /// Waits for so many attempts that the worker is done with.
    async fn until_ended(&self, count: usize) -> Vec<Ended> {
        let wait = async {
            loop {
                let told = self.told.notified();
                let ended = self.ended.lock().unwrap().clone();
                if ended.len() >= count {
                    return ended;
                }
                told.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the attempts never ended")
    }

    async fn shut_down(mut self) -> Result<(), WorkerError> {
        self.stop = None;
        tokio::time::timeout(Duration::from_secs(30), self.run).await.expect("the worker ends").unwrap()
    }
}

async fn push(address: SocketAddr, envelope: &Value, secret: Option<&str>) -> (u16, Option<String>, Value) {
    let mut request = reqwest::Client::new().post(format!("http://{address}/dispatch")).json(envelope);
    if let Some(secret) = secret {
        request = request.header(SECRET_HEADER, secret);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let retry_after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
    let body = answer.bytes().await.unwrap();
    (status, retry_after, serde_json::from_slice(&body).unwrap_or_default())
}

fn changed(mut envelope: Value, changes: Value) -> Value {
    envelope.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    envelope
}

async fn pass(gate: &Semaphore) -> Result<(), TaskError> {
    gate.acquire().await?.forget();
    Ok(())
}

/// An operator that never ends by itself. The receiver fails when its future is dropped.
fn endless(worker: Worker) -> (Worker, oneshot::Receiver<()>) {
    let (dropped, was_dropped) = oneshot::channel::<()>();
    let dropped = Mutex::new(Some(dropped));
    let worker = worker.operator("endless", move |_task| {
        let dropped = dropped.lock().unwrap().take();
        async move {
            let _dropped = dropped;
            std::future::pending::<Result<(), TaskError>>().await
        }
    });
    (worker, was_dropped)
}

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

/// The handler blocks the only thread of the runtime: the one that also serves the route.
#[test]
fn a_handler_that_blocks_its_whole_runtime_still_heartbeats() {
    let plane = Plane::start_apart(Rules::default());
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let worker = worker(&plane).outage_tolerance(Duration::ZERO).operator("block", move |_task| {
        released.lock().unwrap().recv().unwrap();
        async { Ok(1) }
    });
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { worker.run(TcpListener::from_std(listener).unwrap()).await })
    });
    let test = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    test.block_on(async {
        let short = json!({"heartbeatTimeoutMs": 1000, "heartbeatIntervalMs": 100});
        let envelope = changed(plane.envelope("a", "block"), short);
        // The answer cannot be waited for: the thread that would give it is blocked.
        tokio::spawn(async move { push(address, &envelope, Some(SECRET)).await });
        // At ten a second, for longer than the lease could live without them.
        let beats = plane.until_count("heartbeat", 20).await;
        assert!(beats[19].at.duration_since(beats[0].at) > Duration::from_secs(1));
        assert_eq!(plane.count("completed"), 0);
        release.send(()).unwrap();
        let completed = plane.until_count("completed", 1).await;
        assert_eq!(completed[0].body["output"], 1);
    });
}

/// One handler blocks the only thread; the others were started and have not begun.
#[test]
fn attempts_that_wait_behind_a_blocked_runtime_heartbeat_too() {
    let plane = Plane::start_apart(Rules::default());
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let worker = worker(&plane).outage_tolerance(Duration::ZERO).operator("block", move |_task| {
        released.lock().unwrap().recv().unwrap();
        async { Ok(1) }
    });
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    // All are taken in before the first handler can begin.
    plane.rules(|rules| rules.started_first = vec![Say::No(503, "store_unavailable"); 3].into());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { worker.run(TcpListener::from_std(listener).unwrap()).await })
    });
    let test = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    test.block_on(async {
        let short = json!({"heartbeatTimeoutMs": 2000, "heartbeatIntervalMs": 200});
        for task in ["a", "b", "c"] {
            let envelope = changed(plane.envelope(task, "block"), short.clone());
            tokio::spawn(async move { push(address, &envelope, Some(SECRET)).await });
        }
        // For longer than a lease could live without them, each has its heartbeats.
        plane
            .until(|called| {
                ["a", "b", "c"].iter().all(|task| {
                    let of = |called: &&Called| called.call == "heartbeat" && called.task == *task;
                    called.iter().filter(of).count() >= 15
                })
            })
            .await;
        for _ in 0..3 {
            release.send(()).unwrap();
        }
        plane.until_count("completed", 3).await;
    });
}

#[test]
fn a_refusal_reaches_a_blocked_runtime() {
    let plane = Plane::start_apart(Rules { heartbeat: Say::No(410, "task_expired"), ..Rules::default() });
    let (lost, was_lost) = mpsc::channel::<Option<ErrorCode>>();
    let (done, is_done) = mpsc::channel::<Option<ErrorCode>>();
    let ends = Mutex::new(Some((lost, was_lost, done)));
    let worker = worker(&plane).operator("block", move |task| {
        let (lost, was_lost, done) = ends.lock().unwrap().take().unwrap();
        let context = task.clone();
        let _guard = task.on_lease_lost(move || lost.send(context.refusal().and_then(|no| no.code())).unwrap());
        // Ends only if the hook runs while this thread is blocked.
        done.send(was_lost.recv().unwrap()).unwrap();
        async { Ok(1) }
    });
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { worker.run(TcpListener::from_std(listener).unwrap()).await })
    });
    let test = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    test.block_on(async {
        // The push is answered once the thread is free again.
        assert_eq!(push(address, &plane.envelope("a", "block"), Some(SECRET)).await.0, 202);
        assert_eq!(is_done.recv().unwrap(), Some(ErrorCode::TaskExpired));
        // Whatever the handler returned then: the next task is reported, this one is not.
        push(address, &plane.envelope("b", "echo"), Some(SECRET)).await;
        let completed = plane.until_count("completed", 1).await;
        assert_eq!(completed[0].task, "b");
    });
}

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
    site.push(&changed(plane.envelope("a", "echo"), json!({"tokenExpiresAt": after(3)}))).await;
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
