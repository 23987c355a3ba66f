use proptest::prelude::*;
use serde_json::json;

use super::*;

const TASK: &str = "0190c0de-0000-7000-8000-000000000001";

fn with(mut body: Value) -> Vec<u8> {
    body["task_id"] = json!(TASK);
    body["attempt"] = json!(2);
    body["lease_token"] = json!("secret");
    body.to_string().into_bytes()
}

fn read(body: Value) -> CompleteRequest {
    complete(&with(body)).unwrap()
}

fn refused(body: Value) -> Unreadable {
    complete(&with(body)).unwrap_err()
}

fn message(refused: Unreadable) -> String {
    match refused {
        Unreadable::Malformed(message) => message,
        other @ Unreadable::Unsupported { .. } => panic!("malformed: {other:?}"),
    }
}

#[test]
fn an_outcome_stands_for_a_status() {
    for (body, outcome, retryable) in [
        (json!({"status": "Completed"}), Outcome::Completed, true),
        (json!({"status": "Failed"}), Outcome::Failed, true),
        (json!({"status": "Failed", "retryable": false}), Outcome::Failed, false),
        (json!({"status": "Canceled"}), Outcome::Canceled, true),
        (json!({"status": "Cancelled"}), Outcome::Canceled, true),
        (json!({"outcome": "success"}), Outcome::Completed, true),
        (json!({"outcome": "retryable_error"}), Outcome::Failed, true),
        (json!({"outcome": "fatal_error"}), Outcome::Failed, false),
        (json!({"outcome": "fatal_error", "status": "Failed"}), Outcome::Failed, false),
        (json!({"outcome": "success", "status": null}), Outcome::Completed, true),
    ] {
        let request = read(body.clone());
        assert_eq!((request.outcome, request.retryable), (outcome, retryable), "{body}");
    }
    for body in [
        json!({}),
        json!({"status": "Done"}),
        json!({"outcome": "ok"}),
        json!({"status": 1}),
        json!({"status": "Completed", "outcome": "fatal_error"}),
    ] {
        assert!(message(refused(body.clone())).contains("status") || body["outcome"] == "ok", "{body}");
    }
}

#[test]
fn equal_requests_are_equal_in_every_spelling() {
    let plain = read(json!({"status": "Completed"})).canonical;
    for same in [
        json!({"outcome": "success"}),
        json!({"status": "Completed", "outputs": [], "events": null, "error_message": null, "retryable": null}),
        json!({"status": "Completed", "something_else": 1, "retryable": false, "error": {"message": "ignored"}}),
    ] {
        assert_eq!(read(same.clone()).canonical, plain, "{same}");
    }
    let failed = read(json!({"status": "Failed", "error_message": "no"})).canonical;
    assert_eq!(read(json!({"outcome": "retryable_error", "error": {"message": "no"}})).canonical, failed);
    assert_ne!(read(json!({"outcome": "fatal_error", "error": {"message": "no"}})).canonical, failed);
    assert_ne!(read(json!({"status": "Completed", "operator_state": {}})).canonical, plain);
    assert!(!plain.as_str().contains("secret") && !plain.as_str().contains(TASK), "{plain:?}");
}

#[test]
fn published_datasets_are_outputs() {
    let dataset = "0190c0de-0000-7000-8000-00000000000a";
    let version = "0190c0de-0000-7000-8000-00000000000b";
    let request = read(json!({"outcome": "success", "datasets_published": [
        {"dataset_uuid": dataset, "dataset_version": version, "range_start": 10, "range_end": 20, "config_hash": "c",
         "storage_ref": {"scheme": "s3", "bucket": "b", "prefix": "p/q/"}},
        {"dataset_uuid": dataset, "storage_ref": "file:///tmp/x/"},
        {"dataset_uuid": dataset, "storage_ref": {"scheme": "table", "name": "dataset_x"}},
    ]}));
    let [ranged, whole, table] = &request.outputs[..] else { panic!("three: {:?}", request.outputs) };
    assert_eq!((ranged.span, ranged.names_artifact, &ranged.partition_key), (Some((10, 20)), true, &None));
    assert_eq!(ranged.dataset_version.as_deref(), Some(version));
    assert_eq!((ranged.location.as_deref(), ranged.config_hash.as_deref()), (Some("s3://b/p/q/"), Some("c")));
    assert_eq!((whole.partition_key.as_deref(), whole.location.as_deref()), (Some("all"), Some("file:///tmp/x/")));
    assert_eq!(table.location.as_deref(), Some("table:dataset_x"));
}

#[test]
fn what_counts_only_with_a_success_is_refused_without_one() {
    for (field, value) in [
        ("outputs", json!([{"dataset_uuid": "d"}])),
        ("datasets_published", json!([{"dataset_uuid": "d"}])),
        ("events", json!([{"dataset_uuid": "d", "dataset_version": "v", "cursor": 1}])),
        ("invalidations", json!([{"dataset_uuid": "d", "scope": "partition"}])),
        ("operator_state", json!({"a": 1})),
    ] {
        for status in ["Failed", "Canceled"] {
            let body = json!({"status": status, field: value});
            assert_eq!(refused(body), Unreadable::Unsupported { field }, "{status}");
            read(json!({"status": status, field: null}));
        }
        read(json!({"status": "Completed", field: value}));
    }
}

#[test]
fn a_failure_is_told_by_either_field() {
    let failure = |body: Value| read(body).failure;
    let said = |message: &str| Some(Failure { message: message.to_owned(), ..Failure::default() });
    assert_eq!(failure(json!({"status": "Failed", "error_message": "a"})), said("a"));
    assert_eq!(failure(json!({"status": "Failed", "error_message": "a", "error": {"message": "b"}})), said("b"));
    assert_eq!(failure(json!({"status": "Failed", "error": "b"})), said("b"));
    assert_eq!(failure(json!({"status": "Failed"})), None);
    let full = failure(json!({"status": "Failed", "error": {"category": "USER_CODE", "message": "m", "stack": "s"}}));
    assert_eq!(full.unwrap().category.as_deref(), Some("USER_CODE"));
}

#[test]
fn bodies_that_are_no_requests_say_what_is_wrong() {
    for (body, expected) in [
        (&b"[]"[..], "not a JSON object"),
        (b"{", "not JSON: line 1"),
        (b"", "task_id is missing"),
        (br#"{"task_id":1}"#, "task_id must be"),
        (br#"{"task_id":"t"}"#, "attempt is missing"),
        (br#"{"task_id":"t","attempt":-1}"#, "attempt must be"),
        (br#"{"task_id":"t","attempt":1,"events":{}}"#, "events must be a list"),
        (br#"{"task_id":"t","attempt":1,"events":[{"dataset_version":"v"}]}"#, "events[0]: missing field"),
    ] {
        let message = message(events(body).unwrap_err());
        assert!(message.contains(expected), "{message}");
    }
    assert!(claim(br#"{"task_id":"t","worker_id":null}"#).unwrap().worker_id.is_none());
    assert_eq!(heartbeat(&with(json!({}))).unwrap().lease_token.as_deref(), Some("secret"));
}

proptest! {
    #[test]
    fn any_body_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200), text in "[{}\\[\\]\":,a-z0-9_ ]{0,120}") {
        for body in [&body[..], text.as_bytes()] {
            let _ = (claim(body), heartbeat(body), events(body), complete(body));
        }
    }
}
