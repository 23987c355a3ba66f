//! Connections that end at the wrong moment.

use std::time::Duration;

use tenure_rpc::wire::Code;
use tenure_rpc::{Call, Capabilities, Error, ExecEvent, Target, new_request_id};
use tenure_testkit::wait_until;
use tokio::net::TcpListener;

use super::kit::*;
use super::wire::Wire;

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_call_that_was_never_sent_says_so() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = client();
    for url in [format!("http://{closed}"), "http://no-such-host.invalid:1".to_owned(), "ftp://x".to_owned()] {
        let target = at(&url, Capabilities::all());
        let error = client.status(&target, Call::new(&new_request_id()), &sandbox("sb-1")).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { sent: false, .. }), "{url}: {error:?}");
    }
}

#[tokio::test]
async fn a_call_that_is_cut_may_have_run_and_its_repetition_runs_once() {
    let worker = Worker::start().await;
    let wire = Wire::to(worker.address).await;
    let (client, target) = (client(), wire.target());
    spawn(&client, &target, "sb-1").await;
    let id = new_request_id();
    let params = command("echo x >> runs; while ! test -e go; do sleep 0.02; done; cat runs");
    let cut = async {
        wait_until("the command runs", LONG, async || {
            exec(&client, &worker.target(), "cat runs 2>/dev/null || true").await == "x\n"
        })
        .await;
        wire.cut();
    };
    let call = Call::new(&id);
    let (result, ()) = tokio::join!(client.exec(&target, call, &params), cut);
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Unreachable { sent: true, .. }) && error.may_have_run(), "{error:?}");
    exec(&client, &worker.target(), "touch go").await;
    let repeated = client.exec(&target, Call::new(&id), &params).await.unwrap();
    assert_eq!(repeated.stdout, "x\n", "the command ran once");
}

#[tokio::test]
async fn a_kept_connection_that_was_cut_is_replaced_unnoticed() {
    let worker = Worker::start().await;
    let wire = Wire::to(worker.address).await;
    let (client, target) = (client(), wire.target());
    spawn(&client, &target, "sb-1").await;
    for _ in 0..20 {
        wire.cut();
        client.status(&target, Call::new(&new_request_id()), &sandbox("sb-1")).await.unwrap();
    }
    assert!(wire.connections() >= 20);
}

#[tokio::test]
async fn calls_one_after_the_other_share_a_connection() {
    let worker = Worker::start().await;
    let wire = Wire::to(worker.address).await;
    let (client, target) = (client(), wire.target());
    spawn(&client, &target, "sb-1").await;
    for _ in 0..20 {
        exec(&client, &target, "true").await;
    }
    assert!(wire.connections() <= 2, "{} connections", wire.connections());
}

#[tokio::test]
async fn a_cut_stream_is_truncated_towards_a_worker_with_terminal_lines() {
    let worker = Worker::start().await;
    let wire = Wire::to(worker.address).await;
    let (client, target) = (client(), wire.target());
    spawn(&client, &target, "sb-1").await;
    for capabilities in [Capabilities::all(), Capabilities::default()] {
        let id = new_request_id();
        let target = Target { capabilities, ..target.clone() };
        let mut stream = client.exec_stream(&target, Call::new(&id), &command("echo $$; sleep 600")).await.unwrap();
        let Some(Ok(ExecEvent::Output { bytes, .. })) = stream.next().await else { panic!("no output") };
        let pid = String::from_utf8(bytes.to_vec()).unwrap();
        wire.cut();
        let (_, _, end) = drain(&mut stream).await;
        assert!(matches!(end, Some(Err(Error::Unreachable { sent: true, .. }))), "{end:?}");
        wait_until("the command is killed", LONG, async || !runs(&pid)).await;
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_is_never_a_success() {
    let worker = Worker::start().await;
    let wire = Wire::to(worker.address).await;
    let client = client();
    spawn(&client, &worker.target(), "sb-1").await;
    let whole = exec(&client, &worker.target(), "seq 2000").await;
    assert_eq!(whole.len(), 8893);
    let content = bytes::Bytes::from(vec![b'x'; 50_000]);
    client
        .file_write(&worker.target(), Call::new(&new_request_id()), &file("/workspace/a"), "", content)
        .await
        .unwrap();
    for bytes in [1, 20, 100, 200, 1000, 8000] {
        wire.cut_answers_after(bytes);
        wire.cut();
        let target = wire.target();
        let error = client.exec(&target, Call::new(&new_request_id()), &command("seq 2000")).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { sent: true, .. }), "{bytes}: {error:?}");
        wire.cut();
        match client.read_file(&target, Call::new(&new_request_id()), &file("/workspace/a")).await {
            Err(error) => assert!(matches!(error, Error::Unreachable { sent: true, .. }), "{bytes}: {error:?}"),
            Ok(mut content) => {
                let mut last = None;
                while let Some(piece) = content.next().await {
                    last = Some(piece);
                }
                assert!(matches!(last, Some(Err(Error::Unreachable { .. }))), "{bytes}");
            }
        }
    }
}

#[tokio::test]
async fn a_cut_socket_is_truncated() {
    let worker = Worker::start().await;
    let wire = Wire::to(worker.address).await;
    let (client, target) = (client(), wire.target());
    spawn(&client, &target, "sb-1").await;
    let start = tenure_rpc::wire::SocketStart { exec: command("echo hi; cat"), ..Default::default() };
    let mut socket = client.exec_socket(&target, Call::new(&new_request_id()), &start).await.unwrap();
    assert!(matches!(socket.next().await, Some(Ok(ExecEvent::Output { .. }))));
    wire.cut();
    assert!(matches!(socket.next().await, Some(Err(Error::Unreachable { sent: true, .. }))));
    assert!(socket.next().await.is_none());
}

#[tokio::test]
async fn a_worker_that_moved_is_called_at_its_new_address() {
    let (old, new) = (Worker::start().await, Worker::start().await);
    let client = client();
    spawn(&client, &old.target(), "sb-1").await;
    let call = new_request_id();
    let error = client.status(&new.target(), Call::new(&call), &sandbox("sb-1")).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::NotFound));
}

#[tokio::test]
async fn calls_beyond_the_limit_wait_and_then_say_that_nothing_was_sent() {
    let worker = Worker::start().await;
    let client = client_with(|settings| {
        settings.max_calls = 2;
        settings.times.room = Duration::from_millis(200);
    });
    let target = worker.target();
    spawn(&client, &target, "sb-1").await;
    let block = command("while ! test -e go; do sleep 0.02; done");
    let ids = [new_request_id(), new_request_id()];
    let blocked = futures_util::future::join_all(ids.iter().map(|id| client.exec(&target, Call::new(id), &block)));
    let other = async {
        let error = client.status(&target, Call::new(&new_request_id()), &sandbox("sb-1")).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { sent: false, .. }), "{error:?}");
        // Sessions have room of their own.
        let id = new_request_id();
        let mut stream = client.exec_stream(&target, Call::new(&id), &command("touch go")).await.unwrap();
        assert_eq!(drain(&mut stream).await.2, Some(Ok(Some(0))));
    };
    let (done, ()) = tokio::join!(blocked, other);
    assert!(done.iter().all(Result::is_ok));
    client.status(&target, Call::new(&new_request_id()), &sandbox("sb-1")).await.unwrap();
}
