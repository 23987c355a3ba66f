//! The life of a sandbox over RPC.

use serde_json::json;

use super::kit::*;

#[tokio::test]
async fn a_sandbox_is_spawned_used_and_destroyed() {
    let worker = Worker::start().await;
    let (status, body) = worker.leased("worker.spawn", spawn_params("sb-1"), 1).await;
    assert_eq!(status, 200, "{body}");
    let result = &body["result"];
    assert_eq!(result["sandbox_id"], "sb-1");
    assert_eq!((&result["state"], &result["worker_id"]), (&json!("running"), &json!(WORKER)));
    assert_eq!(result["provider"], "mock", "as the caller wrote it");
    let runtime = result["runtime_id"].as_str().unwrap().to_owned();
    assert!(!runtime.is_empty() && runtime != "sb-1");

    let s = |extra: serde_json::Value| {
        let mut params = json!({"sandbox_id": "sb-1", "provider": "mock", "runtime_id": runtime});
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        params
    };
    let status = worker.ok("worker.status", s(json!({}))).await;
    assert_eq!(
        status,
        json!({"sandbox_id": "sb-1", "state": "running", "provider": "mock", "worker_id": WORKER, "runtime_id": runtime})
    );
    let exec = worker.ok("worker.exec", s(json!({"command": "echo out; echo err >&2; exit 7"}))).await;
    assert_eq!((&exec["exit_code"], &exec["stdout"], &exec["stderr"]), (&json!(7), &json!("out\n"), &json!("err\n")));
    assert!(exec["duration_ms"].is_u64() && exec.get("stdout_b64").is_none() && exec.get("stdout_truncated").is_none());
    let argv = worker.ok("worker.exec", s(json!({"command": "echo", "args": ["$HOME"], "mode": "argv"}))).await;
    assert_eq!(argv["stdout"], "$HOME\n");
    let logs = worker.ok("worker.logs", s(json!({"lines": 1}))).await;
    assert_eq!(logs["lines"].as_array().unwrap().len(), 1, "{logs}");
    let stats = worker.ok("worker.stats", s(json!({}))).await;
    assert!(stats["cpu_pct"].is_number() && stats["mem_limit_bytes"].is_u64(), "{stats}");

    let (status, body) = worker.leased("worker.destroy", s(json!({})), 1).await;
    assert_eq!((status.as_u16(), body.get("result")), (200, None), "{body}");
    let (status, body) = worker.leased("worker.destroy", s(json!({})), 1).await;
    assert_eq!(status, 200, "an absent runtime counts as destroyed: {body}");
    for method in ["worker.status", "worker.exec", "worker.file_list"] {
        let (status, body) = worker.call(method, s(json!({"command": "true", "path": "/"}))).await;
        assert_eq!((status.as_u16(), body["code"].as_str()), (404, Some("destroyed")), "{method}: {body}");
    }
}

#[tokio::test]
async fn a_runtime_is_found_by_either_id_and_never_by_that_of_another_sandbox() {
    let worker = Worker::start().await;
    let (one, two) = (worker.spawn("sb-1").await, worker.spawn("sb-2").await);
    let by_runtime = worker.ok("worker.status", json!({"sandbox_id": "", "provider": "", "runtime_id": one})).await;
    assert_eq!(by_runtime["sandbox_id"], "sb-1");
    let by_sandbox = worker.ok("worker.status", json!({"sandbox_id": "sb-2", "provider": ""})).await;
    assert_eq!(by_sandbox["sandbox_id"], "sb-2");
    let (status, body) = worker.call("worker.status", json!({"sandbox_id": "sb-1", "runtime_id": two})).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (404, Some("not_found")), "{body}");
}

#[tokio::test]
async fn a_second_spawn_of_a_sandbox_returns_the_first_runtime() {
    let worker = Worker::start().await;
    let first = worker.spawn("sb-1").await;
    let (status, body) = worker.leased("worker.spawn", spawn_params("sb-1"), 2).await;
    assert_eq!((status.as_u16(), body["result"]["runtime_id"].as_str()), (200, Some(first.as_str())), "{body}");
}

#[tokio::test]
async fn a_draining_worker_refuses_spawns_and_serves_the_rest() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    let bare = |method: &str| json!({"id": worker.new_id(), "method": method, "worker_id": WORKER});
    assert_eq!(worker.send(&bare("worker.shutdown")).await.0, 200);
    let mut spawn = worker.envelope("worker.spawn", spawn_params("sb-2"));
    spawn["lease"] = lease("sb-2", 1);
    let (status, body) = worker.send(&spawn).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (503, Some("draining")), "{body}");
    assert_eq!(worker.exec("sb-1", "echo still here").await["stdout"], "still here\n");
    assert_eq!(worker.send(&bare("worker.undrain")).await.0, 200);
    let (status, body) = worker.send(&spawn).await;
    assert_eq!(status, 200, "the refusal was not kept under the same id: {body}");
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_killed() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    let params =
        json!({"sandbox_id": "sb-1", "command": "sleep 600 & echo $! > pid; echo $$ >> pid; wait", "timeout": "1s"});
    let (status, body) = worker.call("worker.exec", params).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (504, Some("timeout")), "{body}");
    assert_eq!(body["error"], "exec timed out after 1s");
    let pids = worker.exec("sb-1", "cat pid").await["stdout"].as_str().unwrap().to_owned();
    assert_eq!(pids.lines().count(), 2);
    wait_until("the whole tree is gone", || !pids.lines().any(runs)).await;
}

#[tokio::test]
async fn outputs_are_cut_at_their_limit_and_say_so() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    let exec = worker.exec("sb-1", "head -c 9000000 /dev/zero | tr '\\0' x; echo small >&2").await;
    assert_eq!(exec["stdout"].as_str().unwrap().len(), 8 << 20);
    assert_eq!((&exec["stdout_truncated"], &exec["stderr"]), (&json!(true), &json!("small\n")));
    assert!(exec.get("stderr_truncated").is_none());
    let exec = worker.exec("sb-1", r"printf 'a\377b'").await;
    assert_eq!((&exec["stdout"], &exec["stdout_b64"]), (&json!("a\u{fffd}b"), &json!("Yf9i")));
}

#[tokio::test]
async fn a_buffered_stream_has_its_chunks_in_order() {
    let worker = Worker::start().await;
    worker.spawn("sb-1").await;
    let params = json!({"sandbox_id": "sb-1", "command": "echo one; echo two >&2; exit 3"});
    let result = worker.ok("worker.exec_stream", params).await;
    let text = |stream: &str| -> String {
        let chunks = result["chunks"].as_array().unwrap().iter().filter(|chunk| chunk["stream"] == stream);
        chunks.map(|chunk| chunk["data"].as_str().unwrap()).collect()
    };
    assert_eq!((text("stdout"), text("stderr")), ("one\n".to_owned(), "two\n".to_owned()));
    assert_eq!(result["exit_code"], 3);
}
