//! The output of commands as it is written.

use std::time::Duration;

use futures_util::StreamExt;
use tenure_rpc::wire::{Code, ExecParams};
use tenure_rpc::{Call, Error, ExecEvent, OutputStream, new_request_id};
use tenure_testkit::wait_until;

use super::kit::*;
use super::wire::Wire;

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn output_arrives_as_bytes_and_the_exit_code_is_last() {
    let (_worker, client, target) = stage().await;
    let id = new_request_id();
    let text = r"printf 'h\303\244llo\n'; printf '\377\000\376' >&2; exit 3";
    let mut stream = client.exec_stream(&target, Call::new(&id), &command(text)).await.unwrap();
    let (stdout, stderr, end) = drain(&mut stream).await;
    assert_eq!((stdout.as_slice(), stderr.as_slice()), ("hällo\n".as_bytes(), b"\xff\0\xfe".as_slice()));
    assert_eq!(end, Some(Ok(Some(3))));
    assert!(stream.next().await.is_none());
    let again = client.exec_stream(&target, Call::new(&id), &command(text)).await.unwrap_err();
    assert_eq!(again.code(), Some(Code::Invalid), "a stream cannot be repeated: {again:?}");
}

#[tokio::test]
async fn the_first_output_arrives_before_the_command_ends() {
    let (_worker, client, target) = stage().await;
    let id = new_request_id();
    let params = command("echo begun; while ! test -e go; do sleep 0.02; done; echo ended");
    let mut stream = client.exec_stream(&target, Call::new(&id), &params).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first, ExecEvent::Output { stream: OutputStream::Stdout, bytes: "begun\n".into() });
    exec(&client, &target, "touch go").await;
    let rest: Vec<_> = stream.into_stream().collect().await;
    assert!(matches!(rest.last(), Some(Ok(ExecEvent::End { exit_code: Some(0), duration_ms: Some(_) }))), "{rest:?}");
}

#[tokio::test]
async fn a_timeout_is_the_last_event() {
    let (_worker, client, target) = stage().await;
    let params = ExecParams { timeout: "150ms".to_owned(), ..command("echo begun; sleep 60") };
    let id = new_request_id();
    let mut stream = client.exec_stream(&target, Call::new(&id), &params).await.unwrap();
    let (stdout, _, end) = drain(&mut stream).await;
    assert_eq!(stdout, b"begun\n");
    assert_eq!(end.unwrap().unwrap_err().code(), Some(Code::Timeout));
}

#[tokio::test]
async fn a_refused_stream_is_an_error_with_its_class() {
    let (_worker, client, target) = stage().await;
    let params = ExecParams { sandbox_id: "sb-9".to_owned(), ..command("true") };
    let id = new_request_id();
    let error = client.exec_stream(&target, Call::new(&id), &params).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::NotFound), "{error:?}");
}

#[tokio::test]
async fn dropping_the_stream_kills_the_command() {
    let (_worker, client, target) = stage().await;
    let id = new_request_id();
    let params = command("sleep 600 & echo $!; wait");
    let mut stream = client.exec_stream(&target, Call::new(&id), &params).await.unwrap();
    let Some(Ok(ExecEvent::Output { bytes, .. })) = stream.next().await else { panic!("no output") };
    let pid = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(runs(&pid));
    drop(stream);
    wait_until("the command is killed", LONG, async || !runs(&pid)).await;
}

#[tokio::test]
async fn a_slow_reader_slows_the_command_down_and_loses_nothing() {
    let (_worker, client, target) = stage().await;
    let id = new_request_id();
    let params = command("head -c 6000000 /dev/zero; touch written; exit 4");
    let mut stream = client.exec_stream(&target, Call::new(&id), &params).await.unwrap();
    let Some(Ok(ExecEvent::Output { bytes, .. })) = stream.next().await else { panic!("no output") };
    // It is 36 MB on the wire. The buffers of two sockets and of the worker hold a few, never all.
    let written = "test -e written; echo $?";
    for _ in 0..10 {
        assert_eq!(exec(&client, &target, written).await, "1\n", "the command went on without a reader");
    }
    let (rest, _, end) = drain(&mut stream).await;
    assert_eq!((bytes.len() + rest.len(), end), (6_000_000, Some(Ok(Some(4)))));
}

#[tokio::test]
async fn signs_of_life_keep_a_silent_stream_open_and_silence_ends_it() {
    let worker = Worker::with(Options {
        settings: Box::new(|settings| settings.times.keep_alive = Duration::from_millis(50)),
        ..Options::default()
    })
    .await;
    let client = client_with(|settings| settings.times.stream_idle = Duration::from_secs(6));
    let target = worker.target();
    spawn(&client, &target, "sb-1").await;
    let id = new_request_id();
    let mut stream = client.exec_stream(&target, Call::new(&id), &command("sleep 7; echo late")).await.unwrap();
    let (stdout, _, end) = drain(&mut stream).await;
    assert_eq!((stdout.as_slice(), end), (b"late\n".as_slice(), Some(Ok(Some(0)))));

    let quiet = Worker::start().await;
    let target = quiet.target();
    spawn(&client, &target, "sb-1").await;
    let id = new_request_id();
    let params = command("echo $$; sleep 600");
    let mut stream = client.exec_stream(&target, Call::new(&id), &params).await.unwrap();
    let (pid, _, end) = drain(&mut stream).await;
    assert!(matches!(end, Some(Err(Error::Unreachable { sent: true, .. }))), "{end:?}");
    drop(stream);
    let pid = String::from_utf8(pid).unwrap();
    wait_until("the command is killed", LONG, async || !runs(&pid)).await;
}

#[tokio::test]
async fn a_worker_without_terminal_lines_may_be_silent_for_as_long_as_the_command_runs() {
    let worker = Worker::start().await;
    let client = client_with(|settings| settings.times.stream_idle = Duration::from_millis(300));
    spawn(&client, &worker.target(), "sb-1").await;
    let id = new_request_id();
    let params = command("sleep 1; echo late");
    let mut stream = client.exec_stream(&worker.plain_target(), Call::new(&id), &params).await.unwrap();
    let (stdout, _, end) = drain(&mut stream).await;
    assert_eq!((stdout.as_slice(), end), (b"late\n".as_slice(), Some(Ok(Some(0)))));
}

#[tokio::test]
async fn a_finished_stream_leaves_its_connection_for_the_next_call() {
    let worker = Worker::start().await;
    let wire = Wire::to(worker.address).await;
    let (client, target) = (client(), wire.target());
    spawn(&client, &target, "sb-1").await;
    for _ in 0..5 {
        let id = new_request_id();
        let mut stream = client.exec_stream(&target, Call::new(&id), &command("echo hi")).await.unwrap();
        assert_eq!(drain(&mut stream).await.2, Some(Ok(Some(0))));
        exec(&client, &target, "true").await;
    }
    assert!(wire.connections() <= 2, "{} connections", wire.connections());
}
