//! The worker against a real HTTP server that does what each test scripts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{FakeServer, Reply, Script, Seen, completed, failed, heartbeats, job, reported};
use tenure_client::{CancelReason, Json, TaskContext, TaskError, Worker, WorkerError};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

fn script(jobs: impl IntoIterator<Item = tenure_client::pull::Job>) -> Script {
    Script { jobs: jobs.into_iter().collect(), ..Script::default() }
}

fn worker(server: &FakeServer) -> Worker {
    Worker::new(&server.url).token("secret").queues(["q"]).operator("echo", echo)
}

/// A job whose lease outlives the test, with a heartbeat every second.
fn long_job(id: &str, operator: &str) -> tenure_client::pull::Job {
    tenure_client::pull::Job { heartbeat_interval_seconds: 1, ..job(id, operator, 3600) }
}

async fn echo(task: TaskContext) -> Result<Json, TaskError> {
    Ok(task.raw_payload().clone())
}

/// Runs a worker beside the test; dropping the sender shuts it down.
fn spawn(worker: Worker) -> (oneshot::Sender<()>, JoinHandle<Result<(), WorkerError>>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let run = worker.run_until(async { drop(stopped.await) });
    (stop, tokio::spawn(run))
}

/// An operator that never ends by itself. The receiver fails when its future is dropped.
fn endless(worker: Worker) -> (Worker, oneshot::Receiver<()>) {
    let (dropped, was_dropped) = oneshot::channel::<()>();
    let dropped = std::sync::Mutex::new(Some(dropped));
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
async fn a_handler_that_blocks_its_whole_runtime_still_heartbeats() {
    let server = FakeServer::start(script([job("a", "block", 1)])).await;
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let worker = worker(&server).operator("block", move |_task| {
        released.lock().unwrap().recv().unwrap();
        async { Ok(1) }
    });
    // One thread for everything: claims, reports and the handler.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(worker.run())
    });
    // At three heartbeats a second, more than the lease could live without them.
    server.until(|seen| heartbeats(seen) >= 6).await;
    assert_eq!(completed(&server.seen()), [""; 0]);
    release.send(()).unwrap();
    server.until(|seen| completed(seen) == ["a"]).await;
}

#[tokio::test]
async fn a_flush_ends_when_the_server_has_the_checkpoint() {
    let server = FakeServer::start(script([job("a", "flushes", 3600)])).await;
    let worker = worker(&server).operator("flushes", async |task: TaskContext| {
        task.save_checkpoint(&5)?;
        task.report_progress(50, "half");
        task.flush().await?;
        // Nothing is left to say.
        task.flush().await?;
        Ok(())
    });
    let (stop, run) = spawn(worker);
    server.until(|seen| completed(seen) == ["a"]).await;
    let seen = server.seen();
    let beats: Vec<_> = seen.iter().flat_map(|seen| seen.body.heartbeat.iter().flatten()).collect();
    assert_eq!(beats.len(), 1, "one heartbeat, long before the first would be due");
    assert_eq!((beats[0].checkpoint.as_ref().map(Json::as_str), beats[0].progress_pct), (Some("5"), Some(50)));
    drop(stop);
    run.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_loss_of_a_lease_reaches_a_blocked_runtime() {
    let server = FakeServer::start(script([long_job("a", "block")])).await;
    let (lost, was_lost) = mpsc::channel::<()>();
    let ends = std::sync::Mutex::new(Some((lost, was_lost)));
    let worker = worker(&server).operator("block", move |task| {
        let (lost, was_lost) = ends.lock().unwrap().take().unwrap();
        let _guard = task.on_lease_lost(move || lost.send(()).unwrap());
        // Ends only if the hook runs while this thread is blocked.
        was_lost.recv().unwrap();
        async { Ok(1) }
    });
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(worker.run())
    });
    server.until(|seen| heartbeats(seen) >= 1).await;
    server.script(|script| script.heartbeat = Reply::Refuse(409, "stale_lease"));
    // The thread is free again, so the claim loop goes on; what the handler returned is not reported.
    let claims = |seen: &[Seen]| seen.iter().filter(|seen| seen.body.claim.is_some()).count();
    server.until(|seen| claims(seen) >= 2).await;
    assert_eq!(completed(&server.seen()), [""; 0]);
}

#[tokio::test]
async fn a_refused_heartbeat_ends_the_handler_and_nothing_is_reported() {
    for (status, error) in [(409, "stale_attempt"), (404, "job_not_found")] {
        let server = FakeServer::start(script([long_job("a", "endless")])).await;
        server.script(|script| script.heartbeat = Reply::Refuse(status, error));
        let (worker, was_dropped) = endless(worker(&server));
        let (stop, run) = spawn(worker);
        was_dropped.await.unwrap_err();
        // The slot is free again; once the next job is reported, the first would have been.
        server.script(|script| script.jobs.push_back(job("b", "echo", 60)));
        server.until(|seen| completed(seen) == ["b"]).await;
        assert_eq!(failed(&server.seen()), []);
        drop(stop);
        run.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_lease_that_no_answer_renews_ends_by_the_local_clock() {
    let server = FakeServer::start(script([job("a", "endless", 5)])).await;
    server.script(|script| script.heartbeat = Reply::Hang);
    let (worker, was_dropped) = endless(worker(&server).outage_tolerance(Duration::ZERO));
    let (stop, run) = spawn(worker);
    was_dropped.await.unwrap_err();
    assert!(heartbeats(&server.seen()) >= 2, "it was tried more than once");
    drop(stop);
    run.await.unwrap().unwrap();
    assert_eq!(failed(&server.seen()), []);
}

#[tokio::test]
async fn an_outage_within_the_tolerance_leaves_the_handler_alone() {
    let server = FakeServer::start(script([job("a", "wait", 1)])).await;
    server.script(|script| script.heartbeat = Reply::RefuseAll(503, "store_unavailable"));
    let go_on = Arc::new(Notify::new());
    let wait = Arc::clone(&go_on);
    let worker = worker(&server).outage_tolerance(Duration::from_secs(60)).operator("wait", move |_task| {
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            Ok(1)
        }
    });
    let (_stop, _run) = spawn(worker);
    let start = std::time::Instant::now();
    server.until(|seen| heartbeats(seen) >= 4 && start.elapsed() > Duration::from_millis(1500)).await;
    server.script(|script| script.heartbeat = Reply::Accept);
    go_on.notify_one();
    server.until(|seen| completed(seen) == ["a"]).await;
}

#[tokio::test]
async fn a_cancel_reaches_the_handler_with_its_reason() {
    let server = FakeServer::start(script([job("a", "obey", 1), job("b", "finish", 1), job("c", "return", 1)])).await;
    server.script(|script| script.heartbeat = Reply::Cancel("user_requested"));
    let worker = worker(&server)
        .concurrency(3)
        .operator("obey", |task| async move {
            assert_eq!(task.cancelled().await, CancelReason::Requested("user_requested".into()));
            Err::<(), _>(TaskError::user_code("stopped half way"))
        })
        .operator("finish", |task| async move {
            task.cancelled().await;
            task.keep_result();
            Ok("done anyway")
        })
        .operator("return", |task| async move {
            task.cancelled().await;
            Ok("half done")
        });
    let (_stop, _run) = spawn(worker);
    let seen = server.until(|seen| !completed(seen).is_empty() && failed(seen).len() == 2).await;
    let mut fails = failed(&seen);
    fails.sort();
    assert_eq!(fails, [("a".into(), "CANCELLED".into()), ("c".into(), "CANCELLED".into())]);
    assert_eq!(completed(&seen), ["b"]);
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_sent_again_under_its_id() {
    let server = FakeServer::start(script([job("a", "echo", 60)])).await;
    server.script(|script| script.cut_answers = 2);
    let (_stop, _run) = spawn(worker(&server));
    let seen = server.until(|seen| !completed(seen).is_empty()).await;
    let claims: Vec<_> = seen.iter().filter_map(|seen| seen.body.claim.as_ref()).collect();
    assert_eq!(claims[0].claim_id, claims[1].claim_id);
    assert_eq!(claims[0].claim_id, claims[2].claim_id);
    assert!(claims[3..].iter().all(|claim| claim.claim_id != claims[0].claim_id));
    assert_eq!(completed(&seen), ["a"]);
}

#[tokio::test]
async fn two_workers_of_one_process_have_distinct_ids() {
    let server = FakeServer::start(Script::default()).await;
    let runs = [spawn(worker(&server)), spawn(worker(&server)), spawn(worker(&server).name("w1"))];
    let ids = |seen: &[Seen]| {
        let ids = seen.iter().map(|seen| (seen.body.worker_id.clone(), seen.body.incarnation.clone().unwrap()));
        ids.collect::<std::collections::BTreeSet<_>>()
    };
    let seen = server.until(|seen| ids(seen).len() == 3).await;
    let names: std::collections::BTreeSet<_> = ids(&seen).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 3);
    assert!(names.contains("w1"));
    for seen in seen {
        assert_eq!(seen.headers["x-worker-id"], seen.body.worker_id);
        assert_eq!(seen.headers["x-worker-token"], "secret");
        assert_eq!(seen.body.incarnation.unwrap().len(), 26);
    }
    drop(runs);
}

#[tokio::test]
async fn a_newer_process_of_the_same_name_ends_this_one() {
    for whole in [true, false] {
        let server = FakeServer::start(script([job("a", "endless", 1)])).await;
        server.script(|script| {
            script.heartbeat = match whole {
                true => Reply::RefuseAll(409, "stale_incarnation"),
                false => Reply::Refuse(409, "stale_incarnation"),
            }
        });
        let (worker, was_dropped) = endless(worker(&server).name("w1"));
        let error = worker.run().await.unwrap_err();
        assert!(matches!(error, WorkerError::Superseded { worker_id } if worker_id == "w1"));
        was_dropped.await.unwrap_err();
        assert_eq!(failed(&server.seen()), []);
    }
}

#[tokio::test]
async fn a_worker_that_the_server_does_not_know_ends() {
    let server = FakeServer::start(Script::default()).await;
    server.script(|script| script.claim = Reply::RefuseAll(401, "invalid_worker_token"));
    let error = worker(&server).run().await.unwrap_err();
    assert!(matches!(error, WorkerError::Refused { status: 401, error, .. } if error == "invalid_worker_token"));
}

#[tokio::test]
async fn a_claim_that_is_refused_later_lets_tasks_end_first() {
    let server = FakeServer::start(script([job("a", "wait", 60)])).await;
    let go_on = Arc::new(Notify::new());
    let waiting = Arc::clone(&go_on);
    let worker = worker(&server).concurrency(2).operator("wait", move |_task| {
        let waiting = Arc::clone(&waiting);
        async move {
            waiting.notified().await;
            Ok(1)
        }
    });
    let (_stop, run) = spawn(worker);
    server.until(|seen| seen.len() > 1).await;
    server.script(|script| script.claim = Reply::RefuseAll(404, "unknown_queue"));
    server.until(|seen| seen.iter().filter(|seen| seen.body.claim.is_some()).count() > 2).await;
    go_on.notify_one();
    server.until(|seen| completed(seen) == ["a"]).await;
    let error = run.await.unwrap().unwrap_err();
    assert!(matches!(error, WorkerError::Refused { status: 404, .. }), "{error}");
}

#[tokio::test]
async fn what_a_proxy_says_ends_no_worker() {
    let server = FakeServer::start(script([job("a", "echo", 60)])).await;
    let (stop, run) = spawn(worker(&server));
    server.until(|seen| completed(seen) == ["a"]).await;
    for status in [302, 400, 404, 405] {
        server.script(|script| script.claim = Reply::Proxy(status));
        let claims = |seen: &[Seen]| seen.iter().filter(|seen| seen.body.claim.is_some()).count();
        let before = claims(&server.seen());
        server.until(|seen| claims(seen) > before + 1).await;
    }
    server.script(|script| {
        script.claim = Reply::Accept;
        script.jobs.push_back(job("b", "echo", 60));
    });
    server.until(|seen| completed(seen) == ["a", "b"]).await;
    drop(stop);
    run.await.unwrap().unwrap();
}

#[tokio::test]
async fn outcomes_that_are_refused_together_go_in_smaller_requests() {
    let jobs: Vec<_> = (0..8).map(|n| job(&n.to_string(), "echo", 60)).collect();
    let server = FakeServer::start(script(jobs)).await;
    server.script(|script| script.report = Reply::RefuseMoreThan(1));
    let (stop, run) = spawn(worker(&server).concurrency(8));
    let alone = |seen: &[Seen]| {
        let alone = seen.iter().filter_map(|seen| seen.body.complete.as_ref()).filter(|items| items.len() == 1);
        alone.map(|items| items[0].job_id.clone()).collect::<std::collections::BTreeSet<_>>().len()
    };
    server.until(|seen| alone(seen) == 8).await;
    drop(stop);
    run.await.unwrap().unwrap();
    assert_eq!(failed(&server.seen()), []);
}

#[tokio::test]
async fn an_outcome_that_is_refused_alone_is_followed_by_a_failure_that_says_so() {
    let server = FakeServer::start(script([job("a", "echo", 60)])).await;
    server.script(|script| script.report = Reply::RefuseMoreThan(0));
    let (stop, run) = spawn(worker(&server));
    server.until(|seen| failed(seen) == [("a".to_owned(), "REPORT_REFUSED".to_owned())]).await;
    drop(stop);
    run.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_outcome_among_others_that_is_refused_is_followed_by_a_failure_that_says_so() {
    let server = FakeServer::start(script([job("a", "echo", 60)])).await;
    server.script(|script| script.report = Reply::Refuse(422, "invalid_argument"));
    let (stop, run) = spawn(worker(&server));
    let seen = server.until(|seen| failed(seen) == [("a".to_owned(), "REPORT_REFUSED".to_owned())]).await;
    assert_eq!(completed(&seen), ["a"]);
    // That one is refused too, and there is nothing more to say.
    drop(stop);
    run.await.unwrap().unwrap();
    assert_eq!(failed(&server.seen()).len(), 1);
}

#[tokio::test]
async fn an_outcome_that_does_not_get_through_holds_up_no_other() {
    let server = FakeServer::start(script(["a", "bad", "b"].map(|id| long_job(id, "echo")))).await;
    server.script(|script| script.report = Reply::Block("bad"));
    let (stop, run) = spawn(worker(&server).concurrency(4));
    let through = |seen: &[Seen], id: &str| {
        let with = |seen: &Seen, id: &str| reported(&seen.body).any(|reported| reported == id);
        seen.iter().any(|seen| with(seen, id) && !with(seen, "bad"))
    };
    server.until(|seen| through(seen, "a") && through(seen, "b")).await;
    server.script(|script| script.jobs.push_back(job("c", "echo", 60)));
    server.until(|seen| through(seen, "c")).await;
    // Its lease is lost meanwhile. Whether the outcome still counts is for the server to say.
    let before = heartbeats(&server.seen());
    server.script(|script| script.heartbeat = Reply::Refuse(409, "lease_expired"));
    server.until(|seen| heartbeats(seen) > before).await;
    let before = server.seen().len();
    server.script(|script| script.report = Reply::Accept);
    server.until(|seen| completed(&seen[before..]).contains(&"bad".to_owned())).await;
    drop(stop);
    run.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_cannot_take_outcomes_is_asked_less_and_less_often() {
    let server = FakeServer::start(script([job("a", "echo", 60)])).await;
    server.script(|script| script.report = Reply::Refuse(503, "store_unavailable"));
    let (stop, run) = spawn(worker(&server));
    let sent = |seen: &[Seen]| -> Vec<_> {
        seen.iter().filter(|seen| seen.body.complete.is_some()).map(|seen| seen.at).collect()
    };
    let at = sent(&server.until(|seen| sent(seen).len() >= 6).await);
    assert!(at[5] - at[0] >= Duration::from_millis(1_500), "{:?}", at[5] - at[0]);
    server.script(|script| script.report = Reply::Accept);
    drop(stop);
    run.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_claim_that_went_with_what_did_not_get_through_is_sent_again_under_its_id() {
    let server = FakeServer::start(script(["a", "b"].map(|id| job(id, "echo", 60)))).await;
    server.script(|script| script.report = Reply::Block("a"));
    // All slots are taken: no claim waits at the server when they end.
    let (stop, run) = spawn(worker(&server).concurrency(2));
    let claims = |seen: &[Seen], with_a: bool| -> Vec<_> {
        let of = seen.iter().filter(|seen| reported(&seen.body).any(|id| id == "a") == with_a);
        of.filter_map(|seen| seen.body.claim.as_ref()?.claim_id.clone()).collect()
    };
    let seen = server.until(|seen| claims(seen, true).first().is_some_and(|id| claims(seen, false).contains(id))).await;
    assert!(!claims(&seen, true).is_empty());
    server.script(|script| script.report = Reply::Accept);
    server.until(|seen| seen.iter().filter(|seen| reported(&seen.body).any(|id| id == "a")).count() > 2).await;
    drop(stop);
    run.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_worker_that_does_not_wait_for_work_pauses_between_claims() {
    let server = FakeServer::start(Script::default()).await;
    let (_stop, _run) = spawn(worker(&server).poll_wait(Duration::ZERO));
    let seen = server.until(|seen| seen.len() >= 6).await;
    assert!(seen[5].at - seen[0].at >= Duration::from_millis(500), "{:?}", seen[5].at - seen[0].at);
}

#[tokio::test]
async fn a_checkpoint_that_is_refused_is_not_sent_again() {
    let server = FakeServer::start(script([long_job("a", "save")])).await;
    server.script(|script| script.heartbeat = Reply::Refuse(422, "invalid_argument"));
    let worker = worker(&server).operator("save", |task: TaskContext| async move {
        task.save_checkpoint(&1)?;
        std::future::pending::<Result<(), TaskError>>().await
    });
    let (_stop, _run) = spawn(worker);
    let beats = |seen: &[Seen]| -> Vec<_> {
        seen.iter().filter_map(|seen| seen.body.heartbeat.as_ref()).map(|items| items[0].checkpoint.is_some()).collect()
    };
    let told = beats(&server.until(|seen| beats(seen).len() >= 4).await);
    assert_eq!(told.iter().filter(|told| **told).count(), 1, "{told:?}");
}

#[tokio::test]
async fn a_server_that_wants_fewer_requests_gets_them_later() {
    for (status, error) in [(429, "rate_limited"), (503, "store_unavailable")] {
        let server = FakeServer::start(script([job("a", "echo", 60)])).await;
        server.script(|script| {
            script.claim = Reply::RefuseAll(status, error);
            script.retry_after = Some(1);
        });
        let (_stop, _run) = spawn(worker(&server));
        let seen = server.until(|seen| seen.len() >= 2).await;
        let wait = seen[1].at - seen[0].at;
        assert!(wait >= Duration::from_secs(1), "{status}: again after {wait:?}");
        let claims = [0, 1].map(|n| seen[n].body.claim.as_ref().unwrap().claim_id.clone());
        assert_eq!(claims[0], claims[1]);
        server.script(|script| script.claim = Reply::Accept);
        server.until(|seen| completed(seen) == ["a"]).await;
    }
}

#[tokio::test]
async fn a_lease_outlives_heartbeats_that_come_too_often() {
    let server = FakeServer::start(script([job("a", "wait", 1)])).await;
    server.script(|script| {
        script.heartbeat = Reply::RefuseAll(429, "rate_limited");
        script.retry_after = Some(1);
    });
    let go_on = Arc::new(Notify::new());
    let wait = Arc::clone(&go_on);
    let worker = worker(&server).operator("wait", move |_task| {
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            Ok(1)
        }
    });
    let (_stop, _run) = spawn(worker);
    server.until(|seen| heartbeats(seen) >= 3).await;
    server.script(|script| script.heartbeat = Reply::Accept);
    go_on.notify_one();
    server.until(|seen| completed(seen) == ["a"]).await;
}

#[tokio::test]
async fn a_panic_is_a_failure() {
    let server = FakeServer::start(script([job("a", "panic", 60), job("b", "late", 60)])).await;
    let worker = worker(&server)
        .concurrency(2)
        .operator("panic", |_task| -> std::future::Ready<Result<(), TaskError>> { panic!("in the call") })
        .operator("late", |_task| async {
            tokio::task::yield_now().await;
            panic!("in the {}", "future");
            #[expect(unreachable_code, reason = "gives the handler its type")]
            Ok(())
        });
    let (_stop, _run) = spawn(worker);
    let seen = server.until(|seen| failed(seen).len() == 2).await;
    let fails: Vec<_> = seen.iter().filter_map(|seen| seen.body.fail.clone()).flatten().collect();
    assert!(fails.iter().all(|fail| fail.error.code == "PANIC" && fail.error.retryable == Some(true)));
    assert!(fails.iter().any(|fail| fail.error.message.ends_with("in the future")));
    assert_eq!(completed(&seen), [""; 0]);
}

#[tokio::test]
async fn an_operator_that_is_not_here_fails_for_another_worker_to_take() {
    let server = FakeServer::start(script([job("a", "elsewhere", 60)])).await;
    let (_stop, _run) = spawn(worker(&server));
    let seen = server.until(|seen| !failed(seen).is_empty()).await;
    assert_eq!(failed(&seen), [("a".into(), "UNKNOWN_OPERATOR".into())]);
}

#[tokio::test]
async fn outcomes_do_not_wait_for_a_poll() {
    let server = FakeServer::start(script([job("a", "wait", 60)])).await;
    let go_on = Arc::new(Notify::new());
    let wait = Arc::clone(&go_on);
    let worker = worker(&server).concurrency(2).poll_wait(Duration::from_secs(60)).operator("wait", move |_task| {
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            Ok(1)
        }
    });
    let (_stop, _run) = spawn(worker);
    // The second claim asks for the one free slot and waits for a minute.
    server.until(|seen| seen.iter().filter(|seen| seen.body.claim.is_some()).count() == 2).await;
    go_on.notify_one();
    server.until(|seen| completed(seen) == ["a"]).await;
}

#[tokio::test]
async fn reports_are_repeated_unchanged_until_they_are_accepted() {
    let server = FakeServer::start(script([job("a", "echo", 60)])).await;
    server.script(|script| script.report = Reply::Refuse(503, "store_unavailable"));
    let (stop, run) = spawn(worker(&server));
    server.until(|seen| completed(seen).len() == 2).await;
    server.script(|script| script.report = Reply::Accept);
    drop(stop);
    // A drain ends well only when everything is accepted.
    run.await.unwrap().unwrap();
    let seen = server.seen();
    let bodies: Vec<_> = seen.iter().filter_map(|seen| seen.body.complete.as_ref()).map(|items| &items[0]).collect();
    assert!(bodies.iter().all(|item| item.result == bodies[0].result && item.lease_token == "lt_a"));
}

#[tokio::test]
async fn a_checkpoint_is_told_before_the_failure_that_follows_it() {
    let server = FakeServer::start(script([job("a", "fail", 60)])).await;
    let worker = worker(&server).operator("fail", |task| async move {
        task.save_checkpoint(&serde_json::json!({"row": 5}))?;
        task.report_progress(50, "half way");
        Err::<(), _>(TaskError::infrastructure("no disk"))
    });
    let (_stop, _run) = spawn(worker);
    let seen = server.until(|seen| !failed(seen).is_empty()).await;
    let beat = seen.iter().find_map(|seen| seen.body.heartbeat.as_ref()).expect("a heartbeat before the failure");
    assert_eq!(beat[0].checkpoint.as_ref().unwrap().as_str(), r#"{"row":5}"#);
    assert_eq!((beat[0].progress_pct, beat[0].message.as_deref()), (Some(50), Some("half way")));
}

#[tokio::test]
async fn a_drain_lets_tasks_finish_and_claims_no_more() {
    let server = FakeServer::start(script([job("a", "wait", 1)])).await;
    let go_on = Arc::new(Notify::new());
    let wait = Arc::clone(&go_on);
    let worker = worker(&server).concurrency(2).poll_wait(Duration::from_secs(60)).operator("wait", move |_task| {
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            Ok(1)
        }
    });
    let (stop, run) = spawn(worker);
    server.until(|seen| seen.iter().filter(|seen| seen.body.claim.is_some()).count() == 2).await;
    drop(stop);
    let before = heartbeats(&server.seen());
    server.until(|seen| heartbeats(seen) >= before + 3).await;
    go_on.notify_one();
    run.await.unwrap().unwrap();
    assert_eq!(completed(&server.seen()), ["a"]);
    assert_eq!(server.seen().iter().filter(|seen| seen.body.claim.is_some()).count(), 2);
}

#[tokio::test]
async fn a_drain_that_takes_too_long_gives_tasks_back() {
    let server = FakeServer::start(script([job("a", "endless", 60), job("b", "obey", 60)])).await;
    let (worker, was_dropped) = endless(worker(&server));
    let (started, mut has_started) = tokio::sync::mpsc::unbounded_channel();
    let worker = worker
        .concurrency(2)
        .drain_timeout(Duration::from_millis(50))
        .stop_grace(Duration::from_millis(50))
        .operator("obey", move |task| {
            started.send(()).unwrap();
            async move {
                assert_eq!(task.cancelled().await, CancelReason::Shutdown);
                Err::<(), _>(TaskError::user_code("stopped"))
            }
        });
    let (stop, run) = spawn(worker);
    has_started.recv().await.unwrap();
    drop(stop);
    run.await.unwrap().unwrap();
    was_dropped.await.unwrap_err();
    let mut fails = failed(&server.seen());
    fails.sort();
    assert_eq!(fails, [("a".into(), "WORKER_SHUTDOWN".into()), ("b".into(), "WORKER_SHUTDOWN".into())]);
    let seen = server.seen();
    let mut given_back = seen.iter().flat_map(|seen| seen.body.fail.iter().flatten());
    assert!(given_back.all(|item| item.error.handed_back == Some(true)));
}

/// What a handler returns after it was told to stop is no result, unless it says so.
#[tokio::test]
async fn a_drain_that_takes_too_long_takes_no_half_results() {
    let server = FakeServer::start(script([job("a", "stops", 60), job("b", "keeps", 60)])).await;
    let (started, mut has_started) = tokio::sync::mpsc::unbounded_channel();
    let also_started = started.clone();
    let worker = worker(&server)
        .concurrency(2)
        .drain_timeout(Duration::ZERO)
        .stop_grace(Duration::from_secs(30))
        .operator("stops", move |task| {
            started.send(()).unwrap();
            async move {
                task.save_checkpoint(&5)?;
                task.cancelled().await;
                Ok("half")
            }
        })
        .operator("keeps", move |task| {
            also_started.send(()).unwrap();
            async move {
                task.cancelled().await;
                task.keep_result();
                Ok("all")
            }
        });
    let (stop, run) = spawn(worker);
    has_started.recv().await.unwrap();
    has_started.recv().await.unwrap();
    drop(stop);
    run.await.unwrap().unwrap();
    let seen = server.seen();
    assert_eq!(failed(&seen), [("a".into(), "WORKER_SHUTDOWN".into())]);
    assert_eq!(completed(&seen), ["b"]);
    // What it had by then is known before it is given back.
    let told = seen.iter().position(|seen| {
        let beats = seen.body.heartbeat.iter().flatten();
        beats.filter_map(|beat| beat.checkpoint.as_ref()).any(|checkpoint| checkpoint.as_str() == "5")
    });
    assert!(told.is_some() && told < seen.iter().position(|seen| seen.body.fail.is_some()), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_short_tasks_share_few_requests() {
    const JOBS: usize = 5_000;
    let server = FakeServer::start(script((0..JOBS).map(|id| job(&id.to_string(), "count", 60)))).await;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let worker = worker(&server).concurrency(500).operator("count", move |_task| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    });
    let (_stop, _run) = spawn(worker);
    let seen = server.until(|seen| completed(seen).len() == JOBS).await;
    assert_eq!(count.load(Ordering::Relaxed), JOBS);
    assert!(seen.len() < JOBS / 20, "{} requests for {JOBS} tasks", seen.len());
}
