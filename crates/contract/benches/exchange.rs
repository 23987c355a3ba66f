//! JSON of an exchange of 100: what comes in, what goes out.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use divan::Bencher;
use divan::counter::BytesCount;
use tenure_contract::Json;
use tenure_contract::pull::{CompleteItem, ExchangeClaim, ExchangeRequest, ExchangeResponse, ItemAnswer, Job};

const TASKS: usize = 100;

fn main() {
    divan::main();
}

fn request() -> ExchangeRequest {
    let item = |number: usize| CompleteItem {
        job_id: format!("01a1e207-72bd-7d6d-8000-{number:012x}"),
        attempt_id: format!("att_{number:026}"),
        lease_token: format!("{number:032x}"),
        result: Some(Json::parse(r#"{"ok":true}"#).unwrap()),
        ..CompleteItem::default()
    };
    ExchangeRequest {
        worker_id: "worker-1".to_owned(),
        complete: Some((0..TASKS).map(item).collect()),
        claim: Some(ExchangeClaim {
            streams: vec!["mail".to_owned()],
            max_jobs: Some(TASKS as i64),
            ..ExchangeClaim::default()
        }),
        ..ExchangeRequest::default()
    }
}

fn response() -> ExchangeResponse {
    let job = |number: usize| Job {
        job_id: format!("01a1e207-72bd-7d6d-8000-{number:012x}"),
        attempt_id: format!("att_{number:026}"),
        lease_token: format!("{number:032x}"),
        stream: "mail".to_owned(),
        message_id: format!("{number}-0"),
        payload: Json::parse(r#"{"to":"somebody@example.org","template":"welcome","n":12345}"#).unwrap(),
        lease_ttl_seconds: 60,
        heartbeat_interval_seconds: 20,
        attempt: 1,
        fence: 1,
        operator: "send".to_owned(),
        deadline: None,
        traceparent: None,
        previous_progress: None,
    };
    let done = |_| ItemAnswer { ok: true, ack: Some(true), ..ItemAnswer::default() };
    ExchangeResponse {
        complete: Some((0..TASKS).map(done).collect()),
        jobs: Some((0..TASKS).map(job).collect()),
        ..ExchangeResponse::default()
    }
}

#[divan::bench]
fn decode_request(bencher: Bencher<'_, '_>) {
    let text = serde_json::to_vec(&request()).unwrap();
    bencher
        .counter(BytesCount::of_slice(&text))
        .bench(|| serde_json::from_slice::<ExchangeRequest>(divan::black_box(&text)).unwrap());
}

#[divan::bench]
fn encode_response(bencher: Bencher<'_, '_>) {
    let response = response();
    let size = serde_json::to_vec(&response).unwrap().len();
    bencher.counter(BytesCount::new(size)).bench(|| serde_json::to_vec(divan::black_box(&response)).unwrap());
}
