//! Repeated requests.

use serde_json::{Value, json};

use super::kit::*;

fn counting(id: &str) -> Value {
    json!({"id": id, "method": "worker.exec", "worker_id": WORKER,
        "params": {"sandbox_id": "sb-1", "command": "echo x >> count; wc -l < count"}})
}

async fn count(worker: &Worker) -> String {
    worker.exec("sb-1", "wc -l < count").await["stdout"].as_str().unwrap().trim().to_owned()
}

#[tokio::test]
async fn the_same_id_and_body_run_once_and_another_body_is_refused() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    let first = worker.send(&counting("call-1")).await;
    assert_eq!(first.0, 200);
    assert_eq!(worker.send(&counting("call-1")).await, first);
    assert_eq!(count(&worker).await, "1");
    let mut other = counting("call-1");
    other["params"]["workdir"] = json!("/tmp");
    let (status, body) = worker.send(&other).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (409, Some("invalid")), "{body}");
    worker.send(&counting("call-2")).await;
    assert_eq!(count(&worker).await, "2");
}

#[tokio::test]
async fn concurrent_duplicates_wait_for_the_first() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    let envelope = json!({"id": "slow", "method": "worker.exec", "worker_id": WORKER,
        "params": {"sandbox_id": "sb-1", "command": "echo x >> count; sleep 1; wc -l < count"}});
    let calls = (0..5).map(|_| worker.send(&envelope));
    for (status, body) in futures_util::future::join_all(calls).await {
        assert_eq!((status.as_u16(), body["result"]["stdout"].as_str().map(str::trim)), (200, Some("1")), "{body}");
    }
}

#[tokio::test]
async fn an_id_that_names_its_sandbox_runs_every_time() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    for expected in ["1", "2", "3"] {
        let (_, body) = worker.send(&counting("exec-sb-1")).await;
        assert_eq!(body["result"]["stdout"].as_str().map(str::trim), Some(expected), "{body}");
    }
}

#[tokio::test]
async fn a_caller_that_was_cut_off_gets_the_answer_of_its_first_call() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    let envelope = json!({"id": "cut", "method": "worker.exec", "worker_id": WORKER,
        "params": {"sandbox_id": "sb-1", "command": "echo x >> count; while [ ! -e go ]; do sleep 0.05; done; wc -l < count"}});
    let cut = worker.post("/rpc").body(envelope.to_string()).timeout(std::time::Duration::from_millis(300));
    assert!(cut.send().await.unwrap_err().is_timeout());
    let (again, _) = tokio::join!(worker.send(&envelope), async {
        worker.exec("sb-1", "touch go").await;
    });
    assert_eq!((again.0.as_u16(), again.1["result"]["stdout"].as_str().map(str::trim)), (200, Some("1")), "{again:?}");
}

#[tokio::test]
async fn answers_to_spawn_and_destroy_survive_a_restart() {
    let worker = Worker::start().await;
    let mut spawn = worker.envelope("worker.spawn", spawn_params("sb-1"));
    (spawn["id"], spawn["lease"]) = (json!("spawn-1"), lease("sb-1", 1));
    let first = worker.send(&spawn).await;
    assert_eq!(first.0, 200);
    let folder = worker.stop().await;
    let worker = Worker::in_folder(folder, Options::default()).await;
    assert_eq!(worker.send(&spawn).await, first);
    let mut other = spawn.clone();
    other["params"]["memory_mb"] = json!(65);
    assert_eq!(worker.send(&other).await.0, 409);
}

#[tokio::test]
async fn a_refusal_by_a_check_is_not_kept() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    let mut envelope = counting("retried");
    envelope["lease"] = lease_of("sb-1", WORKER, 1, -5);
    assert_eq!(worker.send(&envelope).await.0, 403);
    envelope["lease"] = lease("sb-1", 1);
    let (status, body) = worker.send(&envelope).await;
    assert_eq!(status, 200, "{body}");
}

#[tokio::test]
async fn a_full_memory_of_answers_refuses_new_changes_and_still_reads() {
    let worker = Worker::with(Options::settings(|settings| settings.replay_entries = 3)).await;
    worker.spawn("sb-1").await;
    for _ in 0..2 {
        worker.exec("sb-1", "true").await;
    }
    let (status, body) = worker.send(&counting("one-more")).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (503, Some("provider_unavailable")), "{body}");
    for _ in 0..5 {
        worker.ok("worker.status", json!({"sandbox_id": "sb-1"})).await;
    }
    let (status, _) = worker.send(&counting("never-kept-sb-1")).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_lost_caller_ends_a_command_whose_answer_nobody_can_ask_for() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    let envelope = json!({"id": "exec-sb-1", "method": "worker.exec", "worker_id": WORKER,
        "params": {"sandbox_id": "sb-1", "command": "echo $$ > pid; sleep 600"}});
    let calling = tokio::spawn(worker.post("/rpc").body(envelope.to_string()).send());
    let mut pid = String::new();
    while pid.is_empty() {
        pid = worker.exec("sb-1", "cat pid 2>/dev/null; true").await["stdout"].as_str().unwrap().trim().to_owned();
    }
    calling.abort();
    wait_until("the command is gone", || !runs(&pid)).await;
}
