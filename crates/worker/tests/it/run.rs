//! A whole worker against a server that has one task for it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;
use serde_json::{Value, json};
use tenure_worker::{Operators, TokenSource, WorkerConfig, run};
use tokio::sync::watch;

fn job() -> Value {
    json!({"job_id": "j1", "attempt_id": "a1", "lease_token": "lt1", "stream": "etl", "message_id": "1", "attempt": 1,
        "payload": {"rows": 3}, "lease_ttl_seconds": 60, "heartbeat_interval_seconds": 20, "fence": 7,
        "operator": "count"})
}

#[tokio::test]
async fn a_task_runs_as_the_command_of_its_operator() {
    let seen = Arc::new(watch::Sender::<Vec<(HeaderMap, Value)>>::default());
    let log = Arc::clone(&seen);
    let exchange = move |headers: HeaderMap, body: Bytes| {
        let log = Arc::clone(&log);
        async move {
            let request: Value = serde_json::from_slice(&body).unwrap();
            let mut answer = json!({});
            for part in ["complete", "fail", "heartbeat"] {
                if let Some(items) = request[part].as_array() {
                    answer[part] = vec![json!({"ok": true, "ack": true}); items.len()].into();
                }
            }
            let first = log.borrow().is_empty();
            answer["jobs"] = if first { json!([job()]) } else { json!([]) };
            log.send_modify(|seen| seen.push((headers, request)));
            answer.to_string()
        }
    };
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().route("/internal/worker/exchange", post(exchange));
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "secret\n").unwrap();
    let mut operators = Operators::new().with_built_ins();
    operators.add("count=cat; echo; echo \"{\\\"fence\\\":$TENURE_FENCE}\"").unwrap();
    let config = WorkerConfig {
        token: Some(TokenSource::File(token.path().to_owned())),
        name: Some("w1".into()),
        queues: vec!["etl".into()],
        operators,
        ..WorkerConfig::new(url)
    };
    let mut reports = seen.subscribe();
    let reported = async {
        reports.wait_for(|seen| seen.iter().any(|(_, body)| body["complete"].is_array())).await.unwrap();
    };
    run(config, reported).await.unwrap();

    let seen = seen.borrow();
    let (headers, first) = &seen[0];
    assert_eq!(
        (&headers["x-worker-id"], &headers["x-worker-token"]),
        (&"w1".parse().unwrap(), &"secret".parse().unwrap())
    );
    assert_eq!(first["claim"]["streams"], json!(["etl"]));
    let complete = seen.iter().find_map(|(_, body)| body["complete"].get(0)).unwrap();
    assert_eq!(complete["result"], json!({"fence": 7}));
    assert_eq!(complete["lease_token"], "lt1");
}
