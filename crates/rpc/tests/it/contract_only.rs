//! A worker that knows the contract and nothing beyond it: a real one behind a filter that removes what is additive.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tenure_rpc::wire::{Code, ExecParams, Method};
use tenure_rpc::{Call, Capabilities, Error, Target, new_request_id};
use tokio::net::TcpListener;

use super::kit::*;

struct Filter {
    worker: Worker,
    http: reqwest::Client,
    /// Whether it knows `X-Worker-Stream`.
    streams: bool,
}

/// What the contract does not have.
const ADDITIVE: [&str; 9] = [
    "code",
    "data_b64",
    "stdout_b64",
    "stderr_b64",
    "stdout_truncated",
    "stderr_truncated",
    "duration_ms",
    "metadata",
    "done",
];

fn remove(value: &mut Value, stream: bool) {
    if let Value::Object(fields) = value {
        fields.retain(|name, _| !(ADDITIVE.contains(&name.as_str()) || stream && name == "exit_code"));
        fields.values_mut().for_each(|value| remove(value, stream));
    } else if let Value::Array(items) = value {
        items.iter_mut().for_each(|value| remove(value, stream));
    }
}

async fn filter(State(filter): State<Arc<Filter>>, headers: HeaderMap, body: Bytes) -> Response {
    let mut request: Value = serde_json::from_slice(&body).unwrap();
    let name = request["method"].as_str().unwrap_or_default().to_owned();
    match Method::parse(&name) {
        Some(method) if method.capability().is_none() => {}
        _ => return (StatusCode::BAD_REQUEST, json!({"error": "unknown worker method"}).to_string()).into_response(),
    }
    // Replays are additive too: an id may be used again.
    request["id"] = json!(new_request_id());
    let mut call = filter.http.post(format!("http://{}/rpc", filter.worker.address)).body(request.to_string());
    for name in ["x-worker-id", "x-worker-token", "content-type"] {
        call = call.header(name, headers[name].clone());
    }
    let stream = filter.streams && headers.contains_key("x-worker-stream");
    if stream {
        call = call.header("x-worker-stream", "ndjson");
    }
    let answer = call.send().await.unwrap();
    let status = answer.status();
    let kind = answer.headers()["content-type"].clone();
    let id = serde_json::from_slice::<Value>(&body).unwrap()["id"].clone();
    let text = answer.text().await.unwrap();
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let last = line.get("done").is_some();
        remove(&mut line, name == "worker.exec_stream");
        if line.get("id").is_some() {
            line["id"] = id.clone();
        }
        if !last {
            lines.push(line.to_string() + "\n");
        }
    }
    (status, [("content-type", kind)], lines.concat()).into_response()
}

async fn start(streams: bool) -> (Target, tenure_rpc::Client) {
    let worker = Worker::start().await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let app = Router::new().route("/rpc", post(filter)).with_state(Arc::new(Filter { worker, http, streams }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = at(&format!("http://{}", listener.local_addr().unwrap()), Capabilities::default());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let client = client();
    spawn(&client, &target, "sb-1").await;
    (target, client)
}

#[tokio::test]
async fn every_method_of_the_contract_works() {
    let (target, client) = start(true).await;
    let call = new_request_id();
    let call = || Call::new(&call);
    assert_eq!(client.status(&target, call(), &sandbox("sb-1")).await.unwrap().state, "running");
    let done = client.exec(&target, call(), &command("echo hi; exit 7")).await.unwrap();
    assert_eq!((done.exit_code, done.stdout.as_str(), done.duration_ms), (7, "hi\n", 0));
    let content = futures_util::stream::iter([Ok::<_, String>(Bytes::from_static(b"\xff\0content"))]);
    client.write_file(&target, call(), &file("/workspace/a"), "", None, content).await.unwrap();
    let mut read = client.read_file(&target, call(), &file("/workspace/a")).await.unwrap();
    assert_eq!(read.next().await.unwrap().unwrap(), b"\xff\0content".as_slice());
    assert!(read.next().await.is_none());
    assert_eq!(client.file_list(&target, call(), &file("/workspace")).await.unwrap().len(), 1);
    let lease = lease("sb-1", 1);
    client.destroy(&target, call().with_lease(&lease), &sandbox("sb-1")).await.unwrap();
}

#[tokio::test]
async fn the_class_of_a_failure_comes_from_the_status() {
    let (target, client) = start(true).await;
    let code = async |params: ExecParams| {
        client.exec(&target, Call::new(&new_request_id()), &params).await.unwrap_err().code().unwrap()
    };
    assert_eq!(code(ExecParams { sandbox_id: "sb-9".to_owned(), ..command("true") }).await, Code::NotFound);
    assert_eq!(code(ExecParams { mode: "zsh".to_owned(), ..command("true") }).await, Code::Invalid);
    assert_eq!(code(ExecParams { timeout: "100ms".to_owned(), ..command("sleep 60") }).await, Code::Timeout);
    let stale = tenure_rpc::wire::LeaseToken { holder_id: "worker-b".to_owned(), ..lease("sb-1", 1) };
    let id = new_request_id();
    let error = client.exec(&target, Call::new(&id).with_lease(&stale), &command("true")).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::LeaseStale));
    client.shutdown(&target, Call::new(&id)).await.unwrap();
    let lease = lease("sb-2", 1);
    let error = client.spawn(&target, Call::new(&id).with_lease(&lease), &spawn_params("sb-2")).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::ProviderUnavailable), "draining is an additive class");
}

#[tokio::test]
async fn the_exit_code_of_a_stream_is_unknown_whether_it_is_streamed_or_not() {
    for streams in [true, false] {
        let (target, client) = start(streams).await;
        let id = new_request_id();
        let params = command("echo out; echo err >&2; exit 3");
        let mut stream = client.exec_stream(&target, Call::new(&id), &params).await.unwrap();
        let (stdout, stderr, end) = drain(&mut stream).await;
        assert_eq!((stdout.as_slice(), stderr.as_slice()), (b"out\n".as_slice(), b"err\n".as_slice()));
        assert_eq!(end, Some(Ok(None)), "streamed: {streams}");
        let timeout = ExecParams { timeout: "100ms".to_owned(), ..command("sleep 60") };
        let end = match client.exec_stream(&target, Call::new(&id), &timeout).await {
            Ok(mut stream) => drain(&mut stream).await.2.unwrap().unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(end.code(), Some(Code::Timeout), "{end:?}");
    }
}

#[tokio::test]
async fn what_the_worker_does_not_know_is_not_sent() {
    let (target, client) = start(true).await;
    let (id, lease) = (new_request_id(), lease("sb-1", 1));
    let renew = tenure_rpc::wire::RenewLeaseParams { resource_id: "sb-1".to_owned(), ttl: "60s".to_owned() };
    for error in [
        client.undrain(&target, Call::new(&id)).await.unwrap_err(),
        client.stats(&target, Call::new(&id), &sandbox("sb-1")).await.map(drop).unwrap_err(),
        client.renew_lease(&target, Call::new(&id).with_lease(&lease), &renew).await.map(drop).unwrap_err(),
        client.get_snapshot(&target, Call::new(&id), "snap-1").await.map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    }
}
