//! Each method against a real worker.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure_client::{WorkerCalls, WorkerToken};
use tenure_rpc::wire::{
    Code, ExecParams, FileChmodParams, FileDeleteParams, FileGlobParams, FileMoveParams, LogsParams, RenewLeaseParams,
};
use tenure_rpc::{Call, Error, new_request_id};
use tenure_worker::node::Plane;
use tokio::net::TcpListener;

use super::kit::*;

#[tokio::test]
async fn a_sandbox_is_spawned_used_and_destroyed() {
    let (worker, client) = (Worker::start().await, client());
    let target = worker.target();
    let runtime = spawn(&client, &target, "sb-1").await;
    let (id, lease) = (new_request_id(), lease("sb-1", 2));
    let status = client.status(&target, Call::new(&new_request_id()), &sandbox("sb-1")).await.unwrap();
    assert_eq!(
        (status.state.as_str(), status.provider.as_str(), status.worker_id.as_str()),
        ("running", "mock", WORKER)
    );
    assert_eq!(status.runtime_id, Some(runtime));

    let call = Call::new(&id).with_lease(&lease);
    let done = client.exec(&target, call, &command("echo out; echo err >&2; exit 7")).await.unwrap();
    assert_eq!((done.exit_code, done.stdout.as_str(), done.stderr.as_str()), (7, "out\n", "err\n"));
    let mut argv = command("echo");
    (argv.mode, argv.args) = ("argv".to_owned(), vec!["a b".to_owned(), "$HOME".to_owned()]);
    assert_eq!(client.exec(&target, Call::new(&new_request_id()), &argv).await.unwrap().stdout, "a b $HOME\n");

    let params = LogsParams { sandbox_id: "sb-1".to_owned(), lines: 5, ..LogsParams::default() };
    assert!(client.logs(&target, Call::new(&new_request_id()), &params).await.unwrap().len() <= 5);
    let stats = client.stats(&target, Call::new(&new_request_id()), &sandbox("sb-1")).await.unwrap();
    assert_eq!(stats.sandbox_id, "sb-1");

    client.destroy(&target, Call::new(&new_request_id()).with_lease(&lease), &sandbox("sb-1")).await.unwrap();
    let gone = client.exec(&target, Call::new(&new_request_id()), &command("true")).await.unwrap_err();
    assert!(matches!(gone.code(), Some(Code::Destroyed | Code::NotFound)), "{gone:?}");
    assert!(!gone.may_have_run());
    client.destroy(&target, Call::new(&new_request_id()).with_lease(&lease), &sandbox("sb-1")).await.unwrap();
}

#[tokio::test]
async fn a_repeated_call_gets_the_same_answer_and_runs_once() {
    let (_worker, client, target) = stage().await;
    let id = new_request_id();
    let count = command("echo x >> runs; wc -l < runs");
    let first = client.exec(&target, Call::new(&id), &count).await.unwrap();
    assert_eq!(client.exec(&target, Call::new(&id), &count).await.unwrap(), first);
    assert_eq!(exec(&client, &target, "wc -l < runs").await.trim(), "1");
    let other = client.exec(&target, Call::new(&id), &command("true")).await.unwrap_err();
    assert_eq!(other.code(), Some(Code::Invalid));
}

#[tokio::test]
async fn files_are_written_read_listed_moved_and_deleted() {
    let (_worker, client, target) = stage().await;
    let ids: Vec<String> = (0..9).map(|_| new_request_id()).collect();
    let call = |index: usize| Call::new(&ids[index]);
    let content = Bytes::from((0..=255_u8).cycle().take(700_000).collect::<Vec<u8>>());
    client.file_write(&target, call(0), &file("/workspace/a/b.bin"), "0600", content.clone()).await.unwrap();
    assert_eq!(client.file_read(&target, call(1), &file("/workspace/a/b.bin")).await.unwrap(), content);
    let info = client.file_stat(&target, call(2), &file("/workspace/a/b.bin")).await.unwrap();
    assert_eq!((info.size, info.mode.as_str(), info.is_dir), (700_000, "0600", false));
    let chmod = FileChmodParams {
        sandbox_id: "sb-1".to_owned(),
        path: "/workspace/a/b.bin".to_owned(),
        mode: "755".to_owned(),
        ..FileChmodParams::default()
    };
    client.file_chmod(&target, call(3), &chmod).await.unwrap();
    let listed = client.file_list(&target, call(4), &file("/workspace/a")).await.unwrap();
    assert_eq!((listed.len(), listed[0].mode.as_str()), (1, "0755"));
    let moved = FileMoveParams {
        sandbox_id: "sb-1".to_owned(),
        old_path: "/workspace/a/b.bin".to_owned(),
        new_path: "/workspace/c.bin".to_owned(),
        ..FileMoveParams::default()
    };
    client.file_move(&target, call(5), &moved).await.unwrap();
    let glob = FileGlobParams {
        sandbox_id: "sb-1".to_owned(),
        pattern: "/workspace/*.bin".to_owned(),
        ..FileGlobParams::default()
    };
    assert_eq!(client.file_glob(&target, call(6), &glob).await.unwrap(), ["/workspace/c.bin"]);
    let delete = FileDeleteParams {
        sandbox_id: "sb-1".to_owned(),
        path: "/workspace/a".to_owned(),
        recursive: true,
        ..FileDeleteParams::default()
    };
    client.file_delete(&target, call(7), &delete).await.unwrap();
    let missing = client.file_stat(&target, call(8), &file("/workspace/a/b.bin")).await.unwrap_err();
    assert_eq!(missing.code(), Some(Code::NotFound), "{missing:?}");
}

#[tokio::test]
async fn a_draining_worker_refuses_to_spawn_until_it_is_undrained() {
    let (_worker, client, target) = stage().await;
    client.shutdown(&target, Call::new(&new_request_id())).await.unwrap();
    let (id, lease) = (new_request_id(), lease("sb-2", 1));
    let call = Call::new(&id).with_lease(&lease);
    let refused = client.spawn(&target, call, &spawn_params("sb-2")).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Draining));
    client.undrain(&target, Call::new(&new_request_id())).await.unwrap();
    client.spawn(&target, call, &spawn_params("sb-2")).await.unwrap();
}

#[tokio::test]
async fn failures_have_their_class() {
    let (_worker, client, target) = stage().await;
    let code = async |params: ExecParams| {
        client.exec(&target, Call::new(&new_request_id()), &params).await.unwrap_err().code().unwrap()
    };
    assert_eq!(code(ExecParams { timeout: "100ms".to_owned(), ..command("sleep 60") }).await, Code::Timeout);
    assert_eq!(code(ExecParams { mode: "zsh".to_owned(), ..command("true") }).await, Code::Invalid);
    assert_eq!(code(ExecParams { timeout: "soon".to_owned(), ..command("true") }).await, Code::Invalid);
    assert_eq!(code(ExecParams { sandbox_id: "sb-9".to_owned(), ..command("true") }).await, Code::NotFound);
    assert_eq!(code(ExecParams { provider: "none".to_owned(), ..command("true") }).await, Code::ProviderUnavailable);
    assert_eq!(code(ExecParams { command: "x".repeat(5 << 20), ..command("") }).await, Code::Invalid);

    let stale = tenure_rpc::wire::LeaseToken { holder_id: "worker-b".to_owned(), ..lease("sb-1", 1) };
    let id = new_request_id();
    let refused = client.exec(&target, Call::new(&id).with_lease(&stale), &command("true")).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::LeaseStale));
    let past = tenure_rpc::wire::Timestamp::now() - Duration::from_secs(5);
    let expired = tenure_rpc::wire::LeaseToken { expires_at: past, ..lease("sb-1", 1) };
    let refused = client.exec(&target, Call::new(&id).with_lease(&expired), &command("true")).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::LeaseExpired));
    let without = client.destroy(&target, Call::new(&id), &sandbox("sb-1")).await.unwrap_err();
    assert_eq!(without.code(), Some(Code::Invalid), "nothing is sent without a lease");
}

#[tokio::test]
async fn additive_methods_are_only_for_workers_that_know_them() {
    let (worker, client, _) = stage().await;
    let plain = worker.plain_target();
    let id = new_request_id();
    for error in [
        client.undrain(&plain, Call::new(&id)).await.unwrap_err(),
        client.stats(&plain, Call::new(&id), &sandbox("sb-1")).await.map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    }
    assert_eq!(exec(&client, &plain, "echo hi").await, "hi\n");
}

#[tokio::test]
async fn a_call_on_a_kept_connection_takes_little_time() {
    let (_worker, client, target) = stage().await;
    let mut fastest = Duration::MAX;
    for _ in 0..50 {
        let started = Instant::now();
        client.status(&target, Call::new(&new_request_id()), &sandbox("sb-1")).await.unwrap();
        fastest = fastest.min(started.elapsed());
    }
    assert!(fastest < Duration::from_millis(20), "{fastest:?}");
}

/// A control plane that renews every lease.
async fn control_plane() -> Plane {
    let renew = async || serde_json::json!({"lease": lease("sb-1", 7)}).to_string();
    let app = axum::Router::new().fallback(axum::routing::any(renew));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let calls = WorkerCalls::new(&url, WORKER, WorkerToken::text("token"), None).unwrap();
    Plane::new(calls, Duration::from_secs(10))
}

#[tokio::test]
async fn a_lease_is_renewed_through_the_worker() {
    let worker = Worker::with(Options { plane: Some(control_plane().await), ..Options::default() }).await;
    let (client, target) = (client(), worker.target());
    spawn(&client, &target, "sb-1").await;
    let (id, old) = (new_request_id(), lease("sb-1", 2));
    let params = RenewLeaseParams { resource_id: "sb-1".to_owned(), ttl: "60s".to_owned() };
    let renewed = client.renew_lease(&target, Call::new(&id).with_lease(&old), &params).await.unwrap();
    assert_eq!(renewed.generation, 7);
    let stale = client.renew_lease(&target, Call::new(&new_request_id()).with_lease(&old), &params).await.unwrap_err();
    assert_eq!(stale.code(), Some(Code::LeaseStale), "{stale:?}");
}

#[tokio::test]
async fn a_command_ends_at_the_limit_of_the_control_plane() {
    let worker = Worker::start().await;
    let client = client_with(|settings| settings.max_exec_timeout = Duration::from_millis(200));
    let target = worker.target();
    spawn(&client, &target, "sb-1").await;
    for timeout in ["", "5m"] {
        let params = ExecParams { timeout: timeout.to_owned(), ..command("sleep 600") };
        let error = client.exec(&target, Call::new(&new_request_id()), &params).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::Timeout), "{error:?}");
        let id = new_request_id();
        let mut stream = client.exec_stream(&target, Call::new(&id), &params).await.unwrap();
        assert_eq!(drain(&mut stream).await.2.unwrap().unwrap_err().code(), Some(Code::Timeout));
    }
}

#[tokio::test]
async fn many_calls_at_once_share_a_few_connections() {
    let worker = Worker::start().await;
    let client = client_with(|settings| {
        settings.max_calls = 8;
        settings.times.room = Duration::from_secs(60);
    });
    let target = worker.target();
    spawn(&client, &target, "sb-1").await;
    let calls = (0..200).map(|number| {
        let (client, target) = (client.clone(), target.clone());
        tokio::spawn(async move { (number, exec(&client, &target, &format!("echo {number}")).await) })
    });
    for done in futures_util::future::join_all(calls).await {
        let (number, output) = done.unwrap();
        assert_eq!(output, format!("{number}\n"), "each caller gets its own answer");
    }
}

#[tokio::test]
async fn a_canceled_call_gives_its_room_back() {
    let worker = Worker::start().await;
    let client = client_with(|settings| settings.max_calls = 1);
    let target = worker.target();
    spawn(&client, &target, "sb-1").await;
    for _ in 0..5 {
        let id = new_request_id();
        let blocked = command("sleep 5");
        let calling = client.exec(&target, Call::new(&id), &blocked);
        assert!(tokio::time::timeout(Duration::from_millis(50), calling).await.is_err());
    }
    client.status(&target, Call::new(&new_request_id()), &sandbox("sb-1")).await.unwrap();
}

#[tokio::test]
async fn large_answers_share_a_limited_memory_and_small_ones_need_none() {
    let worker = Worker::start().await;
    let client = client_with(|settings| {
        settings.memory_bytes = 2 << 20;
        settings.times.room = Duration::from_millis(100);
    });
    let target = worker.target();
    spawn(&client, &target, "sb-1").await;
    let id = new_request_id();
    let large = client.exec(&target, Call::new(&id), &command("head -c 3000000 /dev/zero | tr '\\0' x")).await;
    assert!(
        matches!(&large, Err(Error::Unreachable { sent: true, message }) if message.contains("memory")),
        "{large:?}"
    );
    let medium = exec(&client, &target, "head -c 300000 /dev/zero | tr '\\0' x").await;
    assert_eq!(medium.len(), 300_000, "the memory was returned");
    assert_eq!(exec(&client, &target, "echo hi").await, "hi\n");
}
