//! The bodies of the callback contract, read and written.

#![expect(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tenure_contract::Json;
use tenure_contract::callback::{
    CallbackError, Category, CompletedRequest, CompletedResponse, Disposition, ErrorCode, HeartbeatRequest,
    HeartbeatResponse, Metrics, Outcome, Resources, StartedRequest, StartedResponse, TaskEnvelope, TaskError,
};

/// Decodes, encodes again, and compares as JSON values.
fn same<T: Serialize + DeserializeOwned>(body: &Value) -> T {
    let decoded: T = serde_json::from_value(body.clone()).unwrap_or_else(|error| panic!("{body}: {error}"));
    assert_eq!(&serde_json::to_value(&decoded).unwrap(), body);
    decoded
}

/// The same body with every field name in snake_case, at every depth where field names are the contract's.
fn snake(body: &Value) -> Value {
    let Value::Object(fields) = body else { return body.clone() };
    let carried = ["payload", "output", "partialProgress", "previousProgress", "checkpoint"];
    fields
        .iter()
        .map(|(name, value)| {
            let value = if carried.contains(&name.as_str()) { value.clone() } else { snake(value) };
            (snake_name(name), value)
        })
        .collect::<Map<_, _>>()
        .into()
}

fn snake_name(name: &str) -> String {
    name.chars().fold(String::new(), |mut text, letter| {
        if letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
        text
    })
}

/// The body itself comes back as it is, and its snake_case twin as camelCase.
fn both<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: Value) {
    let decoded: T = same(&body);
    let twin: T = serde_json::from_value(snake(&body)).unwrap_or_else(|error| panic!("{}: {error}", snake(&body)));
    assert_eq!(serde_json::to_value(&twin).unwrap(), body);
    assert_eq!(serde_json::to_value(&decoded).unwrap(), serde_json::to_value(&twin).unwrap());
}

fn envelope() -> Value {
    json!({
        "taskId": "task_01HGW5N7XHJM4GX29KZRXQP6N9",
        "runId": "run_01HGW5N7XHJM4GX29KZRXQP6N8",
        "assetId": "raw.events",
        "taskKey": "extract",
        "tenantId": "acme",
        "workspaceId": "prod",
        "attempt": 2,
        "attemptId": "att_01HGW5N7XHJM4GX29KZRXQP6NA",
        "dispatchId": "d_kjychep7ds7c43frwysg3bcjqu",
        "fence": 9007199254740991_u64,
        "resources": {"memoryBytes": 536870912, "cpuMillicores": 1000, "timeoutMs": 3600000},
        "payload": {"day": "2025-01-15", "someKey": null},
        "enqueuedAt": "2025-01-15T10:00:00Z",
        "deadline": "2025-01-15T18:00:00Z",
        "callbackBaseUrl": "https://api.arco.dev",
        "taskToken": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9...",
        "tokenExpiresAt": "2025-01-15T12:00:00Z",
        "leaseExpiresAt": "2025-01-15T10:05:00Z",
        "heartbeatIntervalMs": 30000,
        "heartbeatTimeoutMs": 90000,
        "cancelGracePeriodMs": 30000,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "workerQueue": "etl",
        "heartbeatTimeoutSec": 90,
        "previousProgress": {"lastCheckpoint": "partition-5"},
    })
}

fn failed() -> Value {
    json!({
        "attempt": 1,
        "workerId": "worker-abc123",
        "outcome": "FAILED",
        "completedAt": "2025-01-15T10:30:00Z",
        "error": {
            "category": "USER_CODE",
            "message": "KeyError: 'missing_column'",
            "stackTrace": "Traceback (most recent call last):\n  File ...",
            "retryable": true
        },
        "metrics": {"cpuTimeMs": 5000, "peakMemoryBytes": 1073741824}
    })
}

#[test]
fn every_request_of_the_contract_comes_back_as_it_was() {
    both::<StartedRequest>(json!({
        "attempt": 1, "workerId": "worker-abc123", "startedAt": "2025-01-15T10:00:00Z"
    }));
    both::<HeartbeatRequest>(json!({
        "attempt": 1, "workerId": "worker-abc123", "heartbeatAt": "2025-01-15T10:05:00Z", "progressPct": 45,
        "message": "Processing partition 5 of 10"
    }));
    both::<CompletedRequest>(json!({
        "attempt": 1,
        "workerId": "worker-abc123",
        "outcome": "SUCCEEDED",
        "completedAt": "2025-01-15T10:30:00Z",
        "output": {
            "materializationId": "mat_01HGW5N7XHJM4GX29KZRXQP6NA",
            "rowCount": 1000000,
            "byteSize": 52428800,
            "outputPath": "gs://bucket/tenant/workspace/assets/raw/events/2025-01-15/"
        },
        "metrics": {
            "cpuTimeMs": 45000, "peakMemoryBytes": 2147483648_u64, "ioReadBytes": 10485760, "ioWriteBytes": 52428800
        }
    }));
    both::<CompletedRequest>(failed());
    both::<CompletedRequest>(json!({
        "attempt": 1,
        "workerId": "worker-abc123",
        "outcome": "CANCELLED",
        "completedAt": "2025-01-15T10:15:00Z",
        "cancelledDuringPhase": "processing",
        "partialProgress": {"recordsProcessed": 500000, "lastCheckpoint": "partition-5"}
    }));
}

#[test]
fn every_answer_of_the_contract_comes_back_as_it_was() {
    both::<StartedResponse>(json!({"acknowledged": true, "serverTime": "2025-01-15T10:00:01Z"}));
    both::<HeartbeatResponse>(
        json!({"acknowledged": true, "shouldCancel": false, "serverTime": "2025-01-15T10:05:00Z"}),
    );
    both::<HeartbeatResponse>(json!({
        "acknowledged": true, "shouldCancel": true, "cancelReason": "user_requested",
        "serverTime": "2025-01-15T10:05:00Z"
    }));
    both::<HeartbeatResponse>(json!({
        "acknowledged": true, "shouldCancel": false, "serverTime": "2025-01-15T10:05:00Z",
        "leaseExpiresAt": "2025-01-15T10:06:30Z", "taskToken": "eyJhbGciOiJFUzI1NiJ9...",
        "tokenExpiresAt": "2025-01-15T11:05:00Z"
    }));
    both::<CompletedResponse>(
        json!({"acknowledged": true, "finalState": "SUCCEEDED", "serverTime": "2025-01-15T10:30:01Z"}),
    );
    both::<CompletedResponse>(json!({
        "acknowledged": true, "finalState": "SUCCEEDED", "serverTime": "2025-01-15T10:30:01Z",
        "disposition": "recorded"
    }));
    both::<CallbackError>(json!({
        "error": "task_already_terminal", "state": "CANCELLED", "message": "Task was cancelled before worker started"
    }));
    both::<CallbackError>(json!({"error": "task_expired", "message": "Task exceeded heartbeat timeout"}));
    both::<CallbackError>(json!({
        "error": "attempt_mismatch", "expectedAttempt": 2, "receivedAttempt": 1,
        "message": "A newer attempt has already completed"
    }));
    both::<CallbackError>(json!({
        "error": "attempt_mismatch", "message": "Attempt 2 is current", "expectedAttempt": 2, "receivedAttempt": 1,
        "state": "RUNNING", "retryable": false, "requestId": "req_7"
    }));
    both::<CallbackError>(json!({
        "error": "attempt_id_mismatch", "message": "m", "expectedAttemptId": "att_a", "receivedAttemptId": "att_b",
        "cancelReason": "r", "field": "attempt", "retryAfterMs": 1000
    }));
}

#[test]
fn the_envelope_comes_back_as_it_was() {
    both::<TaskEnvelope>(envelope());
}

/// What the contract calls optional is left out, not written as `null`; `null` on input is absent.
#[test]
fn no_null_is_written() {
    let mut body = envelope();
    let fields = body.as_object_mut().unwrap();
    for option in ["deadline", "traceparent", "workerQueue", "heartbeatTimeoutSec", "previousProgress"] {
        fields.insert(option.to_owned(), Value::Null);
    }
    fields.insert("payload".to_owned(), Value::Null);
    let decoded: TaskEnvelope = serde_json::from_value(body).unwrap();
    let text = serde_json::to_string(&decoded).unwrap();
    assert!(!text.contains("null"), "{text}");
    assert_eq!(decoded.payload.as_str(), "{}");

    let bare = json!({"attempt": 1, "workerId": "w", "outcome": "SUCCEEDED"});
    let mut nulls = bare.clone();
    for option in ["attemptId", "completedAt", "output", "error", "metrics", "cancelledDuringPhase", "partialProgress"]
    {
        nulls[option] = Value::Null;
    }
    let decoded: CompletedRequest = serde_json::from_value(nulls).unwrap();
    assert_eq!(serde_json::to_value(&decoded).unwrap(), bare);
}

#[test]
fn a_result_is_read_as_the_output() {
    let body = json!({"attempt": 1, "workerId": "w", "outcome": "SUCCEEDED", "result": [1, 2]});
    let decoded: CompletedRequest = serde_json::from_value(body).unwrap();
    assert_eq!(serde_json::to_value(&decoded).unwrap()["output"], json!([1, 2]));
}

#[test]
fn a_field_in_two_spellings_is_refused_by_name() {
    fn refused<T: DeserializeOwned + std::fmt::Debug>(text: &str, name: &str) {
        let error = serde_json::from_str::<T>(text).unwrap_err();
        assert!(error.is_data(), "{error}");
        assert!(error.to_string().starts_with(&format!("duplicate field `{name}`")), "{error}");
    }
    refused::<StartedRequest>(r#"{"attempt":1,"workerId":"a","worker_id":"a"}"#, "workerId");
    refused::<HeartbeatRequest>(r#"{"attempt":1,"workerId":"a","progress_pct":1,"progressPct":1}"#, "progressPct");
    refused::<CompletedRequest>(r#"{"attempt":1,"workerId":"a","outcome":"FAILED","output":1,"result":1}"#, "output");
    refused::<TaskError>(r#"{"category":"TIMEOUT","message":"","stackTrace":"","stack_trace":""}"#, "stackTrace");
    let text = envelope().to_string().replacen('{', r#"{"task_token":"x","#, 1);
    refused::<TaskEnvelope>(&text, "taskToken");
}

#[test]
fn unknown_fields_are_ignored_and_unknown_words_are_not() {
    let mut body = failed();
    body["shoeSize"] = json!(43);
    body["error"]["mood"] = json!("bad");
    serde_json::from_value::<CompletedRequest>(body).unwrap();
    for word in [json!("DONE"), json!("succeeded"), json!(""), json!(1), json!({"FAILED": null}), json!(["FAILED"])] {
        let mut body = failed();
        body["outcome"] = word.clone();
        let error = serde_json::from_value::<CompletedRequest>(body).unwrap_err();
        assert!(error.is_data(), "{word}: {error}");
        let mut body = failed();
        body["error"]["category"] = word.clone();
        let error = serde_json::from_value::<CompletedRequest>(body).unwrap_err();
        assert!(error.is_data(), "{word}: {error}");
    }
}

#[test]
fn a_word_says_how_it_is_spelled() {
    for outcome in Outcome::ALL {
        assert_eq!(Outcome::parse(outcome.as_str()), Some(*outcome));
    }
    for code in ErrorCode::ALL {
        assert_eq!(ErrorCode::parse(code.as_str()), Some(*code));
    }
    let retried: Vec<_> = Category::ALL.iter().filter(|c| c.retryable_by_default()).map(ToString::to_string).collect();
    assert_eq!(retried, ["USER_CODE", "INFRASTRUCTURE", "TIMEOUT"]);
}

#[test]
fn a_task_token_is_never_printed() {
    let decoded: TaskEnvelope = serde_json::from_value(envelope()).unwrap();
    assert!(!format!("{decoded:?}").contains("eyJ"));
    let answer: HeartbeatResponse = serde_json::from_value(json!({
        "acknowledged": true, "shouldCancel": false, "serverTime": "t", "taskToken": "eyJ"
    }))
    .unwrap();
    assert!(!format!("{answer:?}").contains("eyJ"));
}

fn carried() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".*".prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".*", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
    .prop_map(Json::from)
}

fn option<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    prop::option::of(of)
}

prop_compose! {
    fn completions()(
        (attempt, attempt_id, worker_id) in (1..=u32::MAX, option(".*"), ".*"),
        outcome in prop::sample::select(Outcome::ALL),
        (completed_at, output, partial_progress) in (option(".*"), option(carried()), option(carried())),
        error in option((prop::sample::select(Category::ALL), ".*", option(".*"), option(any::<bool>()))),
        metrics in option((option(any::<u64>()), option(any::<u64>()))),
        (cancelled_during_phase, traceparent) in (option(".*"), option(".*")),
    ) -> CompletedRequest {
        CompletedRequest {
            attempt, attempt_id, worker_id, outcome, completed_at, output, cancelled_during_phase, partial_progress,
            traceparent,
            error: error.map(|(category, message, stack_trace, retryable)| TaskError {
                category, message, stack_trace, retryable, handed_back: retryable,
            }),
            metrics: metrics.map(|(cpu_time_ms, peak_memory_bytes)| Metrics {
                cpu_time_ms, peak_memory_bytes, ..Metrics::default()
            }),
        }
    }
}

prop_compose! {
    fn envelopes()(
        ids in prop::array::uniform8(".*"),
        times in prop::array::uniform4(".*"),
        (attempt, fence, resources) in (1..=u32::MAX, any::<u64>(), any::<[u64; 3]>()),
        beat in any::<[u32; 3]>(),
        (payload, previous_progress) in (carried(), option(carried())),
        (deadline, traceparent, worker_queue, heartbeat_timeout_sec) in
            (option(".*"), option(".*"), option(".*"), option(any::<u32>())),
        (partition_key, execution_location_id) in (option(".*"), option(".*")),
    ) -> TaskEnvelope {
        let [task_id, run_id, asset_id, task_key, tenant_id, workspace_id, attempt_id, dispatch_id] = ids;
        let [enqueued_at, token_expires_at, lease_expires_at, callback_base_url] = times;
        let [memory_bytes, cpu_millicores, timeout_ms] = resources;
        let [heartbeat_interval_ms, heartbeat_timeout_ms, cancel_grace_period_ms] = beat;
        TaskEnvelope {
            task_id, run_id, asset_id, task_key, tenant_id, workspace_id, attempt, attempt_id, dispatch_id, fence,
            resources: Resources { memory_bytes, cpu_millicores, timeout_ms },
            payload, enqueued_at, deadline, callback_base_url, task_token: "t".to_owned(), token_expires_at,
            lease_expires_at, heartbeat_interval_ms, heartbeat_timeout_ms, cancel_grace_period_ms, traceparent,
            worker_queue, heartbeat_timeout_sec, previous_progress, partition_key, execution_location_id,
        }
    }
}

fn no_null(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => items.iter().all(no_null),
        Value::Object(fields) => fields.values().all(no_null),
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_completion_survives_the_wire(request in completions()) {
        let body = serde_json::to_value(&request).unwrap();
        prop_assert!(no_null(&body));
        // The text, as it goes over the wire, and the twin in snake_case.
        let again: CompletedRequest = serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap();
        prop_assert_eq!(&again, &request);
        let twin: CompletedRequest = serde_json::from_value(snake(&body)).unwrap();
        prop_assert_eq!(serde_json::to_value(&twin).unwrap(), body);
    }

    #[test]
    fn any_envelope_survives_the_wire(envelope in envelopes()) {
        let body = serde_json::to_value(&envelope).unwrap();
        prop_assert!(no_null(&body));
        let again: TaskEnvelope = serde_json::from_str(&serde_json::to_string(&envelope).unwrap()).unwrap();
        prop_assert_eq!(&again, &envelope);
        let twin: TaskEnvelope = serde_json::from_value(snake(&body)).unwrap();
        prop_assert_eq!(serde_json::to_value(&twin).unwrap(), body);
    }

    /// No text makes a reader panic.
    #[test]
    fn any_text_is_read_or_refused(text in r#"\{("(attempt|worker_id|workerId|outcome|error|output)":("FAILED"|1|null|\{\}|"x"),?){0,5}\}"#) {
        let _ = serde_json::from_str::<CompletedRequest>(&text);
        let _ = serde_json::from_str::<HeartbeatRequest>(&text);
    }
}

#[test]
fn a_disposition_is_one_of_three_words() {
    let words: Vec<_> = Disposition::ALL.iter().map(|d| d.as_str()).collect();
    assert_eq!(words, ["recorded", "duplicate", "late"]);
}
