use serde_json::{Value, json};

use super::kit::{self, Plane};
use crate::cases;
use crate::harness::time;

cases!(
    kit,
    on_sqlite: [a_report_that_makes_no_sense_is_refused, what_only_a_success_has],
    on_both_stores: [
        many_outputs_make_one_event_each,
        the_same_report_again_gets_the_same_answer,
        a_late_report_counts_until_another_claim,
        late_or_not_only_the_token_of_the_attempt_counts,
        a_canceled_task_takes_no_result,
        state_and_cursors_are_kept,
    ],
);

fn part(key: &str) -> Value {
    json!({"partition_key": key})
}

async fn many_outputs_make_one_event_each(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let outputs = json!([claim.output(0, part("1-5")), claim.output(1, json!({"cursor": 7}))]);
    let events =
        json!([claim.event(0, part("1-5")), claim.event(1, json!({"cursor": "7"})), claim.event(0, part("6-9"))]);
    let answer =
        plane.complete(&claim, json!({"status": "Completed", "outputs": outputs, "events": events})).await.ok();
    assert_eq!(
        answer,
        json!({"status": "Completed", "task_id": claim["task_id"], "attempt": 1, "fence": 1, "events_accepted": 3,
               "next_retry_at": null})
    );
    plane.nth("decode", 2).await;
    plane.nth("page", 1).await;
    // Outputs of others, and of other generations.
    let claim = plane.claim(&plane.fire("r-2").await).await;
    let decode = plane.claim(&plane.nth("decode", 2).await).await;
    let foreign = json!([decode.output(0, part("1-5"))]);
    let refused = plane.complete(&claim, json!({"status": "Completed", "outputs": foreign})).await.refused(403);
    assert_eq!(refused["error"], "dataset_not_granted");
    let other = claim.output(0, json!({"partition_key": "1-5", "dataset_version": claim["task_id"]}));
    let refused = plane.complete(&claim, json!({"status": "Completed", "outputs": [other]})).await.refused(409);
    assert_eq!(refused["error"], "dataset_version_conflict");
    let nowhere = plane.complete(&claim, json!({"status": "Completed", "outputs": [claim.output(0, json!({}))]})).await;
    assert_eq!(nowhere.refused(422)["error"], "output_without_position");
    assert_eq!(plane.fetch(claim.task()).await.ok()["status"], "Running", "nothing was changed");
}

async fn the_same_report_again_gets_the_same_answer(plane: Plane) {
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let body = json!({"status": "Completed", "outputs": [claim.output(0, part("1-5"))], "events": [], "error": null});
    let first = plane.complete(&claim, body).await.ok();
    // The same content in other words.
    let again = json!({"outcome": "success", "outputs": [claim.output(0, part("1-5"))], "retryable": null});
    assert_eq!(plane.complete(&claim, again).await.ok(), first);
    let other = json!({"status": "Completed", "outputs": [claim.output(0, part("1-6"))]});
    assert_eq!(plane.complete(&claim, other).await.refused(409)["error"], "completion_conflict");
    let other = json!({"status": "Failed", "error_message": "no"});
    assert_eq!(plane.complete(&claim, other).await.refused(409)["error"], "completion_conflict");
    plane.nth("decode", 1).await;
    // A failure too, also when another attempt runs.
    let claim = plane.claim(&plane.fire("r-2").await).await;
    let failed = json!({"status": "Failed", "error": {"category": "NETWORK", "message": "no route", "stack": "at x"}});
    let first = plane.complete(&claim, failed.clone()).await.ok();
    assert_eq!(plane.complete(&claim, failed.clone()).await.ok(), first);
    plane.advance(time(&first["next_retry_at"]).since(plane.engine.now().await.unwrap()));
    let second = plane.claim(claim.task()).await;
    assert_eq!(second["attempt"], 2);
    assert_eq!(plane.complete(&claim, failed).await.ok(), first);
    let late = plane.complete(&claim, json!({"status": "Completed"})).await.refused(409);
    assert_eq!(late["error"], "completion_conflict");
    plane.beat(&second).await.ok();
}

async fn a_late_report_counts_until_another_claim(plane: Plane) {
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    let wrote = |claim: &kit::Claim, key: &str| json!({"status": "Completed", "outputs": [claim.output(0, part(key))]});
    // In back-off, and when it is queued again.
    for (request, wait, nth) in [("r-1", 120_000, 1), ("r-2", 170_000, 2)] {
        let claim = plane.claim(&plane.fire(request).await).await;
        plane.advance(wait);
        plane.events(&claim, json!([claim.event(0, part(&format!("{nth}0-{nth}1")))])).await.ok();
        plane.complete(&claim, wrote(&claim, &format!("{nth}0-{nth}1"))).await.ok();
        assert_eq!(plane.fetch(claim.task()).await.ok()["status"], "Completed");
        plane.nth("decode", nth).await;
    }
    // After it has failed for good because nobody reported.
    let task = plane.fire("r-3").await;
    let mut claim = plane.claim(&task).await;
    for _ in 0..2 {
        plane.advance(1_000_000);
        assert_ne!(plane.claim_answer(&task).await["status"], "Completed");
        plane.advance(1_000_000);
        claim = plane.claim(&task).await;
    }
    plane.advance(1_000_000);
    assert_eq!(plane.not_claimed(&task).await, "Failed");
    plane.complete(&claim, wrote(&claim, "30-31")).await.ok();
    assert_eq!(plane.fetch(&task).await.ok()["status"], "Completed");
    assert_eq!(plane.get("/api/v1/dead-letters").await.ok()["items"], json!([]));
    // Refused once another claim was granted, and nothing changes.
    let first = plane.claim(&plane.fire("r-4").await).await;
    plane.advance(120_000);
    plane.not_claimed(first.task()).await;
    plane.advance(45_000);
    let second = plane.claim(first.task()).await;
    let before = plane.count("decode").await;
    assert_eq!(plane.complete(&first, wrote(&first, "40-41")).await.refused(409)["error"], "stale_attempt");
    let events = plane.events(&first, json!([first.event(0, part("40-41"))])).await;
    assert_eq!(events.refused(409)["error"], "stale_attempt");
    plane.complete(&second, wrote(&second, "50-51")).await.ok();
    plane.nth("decode", before + 1).await;
    // A late failure leaves the schedule alone, unless no retry helps.
    let claim = plane.claim(&plane.fire("r-5").await).await;
    plane.advance(120_000);
    plane.not_claimed(claim.task()).await;
    let planned = plane.fetch(claim.task()).await.ok()["next_retry_at"].clone();
    let late = plane.complete(&claim, json!({"status": "Failed", "error_message": "oh"})).await.ok();
    assert_eq!(plane.fetch(claim.task()).await.ok()["next_retry_at"], planned);
    assert_eq!(late["next_retry_at"], planned);
    // The same again while another attempt runs, and when the task has ended.
    let failed = json!({"status": "Failed", "error_message": "oh"});
    plane.advance(45_000);
    let second = plane.claim(claim.task()).await;
    assert_eq!(plane.complete(&claim, failed.clone()).await.ok(), late);
    plane.complete(&second, json!({"status": "Completed"})).await.ok();
    assert_eq!(plane.complete(&claim, failed.clone()).await.ok(), late);
    // And when it ends without another attempt.
    let claim = plane.claim(&plane.fire("r-7").await).await;
    plane.advance(120_000);
    plane.not_claimed(claim.task()).await;
    let late = plane.complete(&claim, failed.clone()).await.ok();
    assert!(late["next_retry_at"].is_string(), "{late}");
    plane.post(&format!("/api/v1/tasks/{}/cancel", claim.task()), json!({"reason": "enough"})).await.ok();
    assert_eq!(plane.complete(&claim, failed).await.ok(), late);
    let claim = plane.claim(&plane.fire("r-6").await).await;
    plane.advance(120_000);
    plane.not_claimed(claim.task()).await;
    plane.complete(&claim, json!({"status": "Failed", "retryable": false})).await.ok();
    assert_eq!(plane.not_claimed(claim.task()).await, "Failed");
}

async fn late_or_not_only_the_token_of_the_attempt_counts(plane: Plane) {
    const FOREIGN: &str = "0190c0de-0000-7000-8000-000000000001";
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    let first = plane.claim(&plane.fire("r-1").await).await;
    let wrote = |token: &Value| {
        first.with(json!({"lease_token": token, "status": "Completed", "outputs": [first.output(0, part("1-5"))]}))
    };
    let told = |token: &Value| first.with(json!({"lease_token": token, "events": [first.event(0, part("1-5"))]}));
    let refused = async |what: &str, token: &Value| {
        let late = plane.as_task("complete", first.token(), &wrote(token)).await.refused(409);
        assert_eq!(late["error"], "stale_lease", "{what}");
        let late = plane.as_task("events", first.token(), &told(token)).await.refused(409);
        late["error"].as_str().unwrap().to_owned()
    };
    // In back-off.
    plane.advance(120_000);
    plane.not_claimed(first.task()).await;
    assert_eq!(refused("in back-off", &json!(FOREIGN)).await, "stale_lease");
    assert_eq!(plane.fetch(first.task()).await.ok()["status"], "Failed", "it waits for its next attempt");
    // While another attempt runs: neither a guess nor the token of that attempt speaks for the first.
    plane.advance(45_000);
    let second = plane.claim(first.task()).await;
    for token in [&json!(FOREIGN), &second["lease_token"]] {
        assert_eq!(refused("while another attempt runs", token).await, "stale_attempt");
    }
    let attempts = plane.attempts(first.task()).await;
    assert!(!attempts.iter().any(|attempt| attempt.to_string().contains("1-5")), "no evidence of a stranger");
    plane.complete(&second, json!({"status": "Completed"})).await.ok();
    assert_eq!(plane.count("decode").await, 0);
    // The answer of the first attempt is not given to whoever repeats its report with another token.
    let first = plane.claim(&plane.fire("r-2").await).await;
    let failed = json!({"status": "Failed", "error_message": "no"});
    let answer = plane.complete(&first, failed.clone()).await.ok();
    plane.advance(time(&answer["next_retry_at"]).since(plane.engine.now().await.unwrap()));
    let second = plane.claim(first.task()).await;
    let mut stranger = first.with(failed);
    stranger["lease_token"] = json!(FOREIGN);
    assert_eq!(plane.as_task("complete", first.token(), &stranger).await.refused(409)["error"], "stale_lease");
    plane.beat(&second).await.ok();
}

async fn a_canceled_task_takes_no_result(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    plane.post(&format!("/api/v1/tasks/{}/cancel", claim.task()), json!({"reason": "enough"})).await.ok();
    let wrote = json!({"status": "Completed", "outputs": [claim.output(0, part("1-5"))]});
    assert_eq!(plane.complete(&claim, wrote).await.refused(409)["error"], "task_canceled");
    assert_eq!(plane.complete(&claim, json!({"status": "Failed"})).await.refused(409)["error"], "task_canceled");
    let events = plane.events(&claim, json!([claim.event(0, part("1-5"))])).await;
    assert_eq!(events.refused(409)["error"], "task_canceled");
    for status in ["Canceled", "Cancelled", "Canceled"] {
        assert_eq!(plane.complete(&claim, json!({"status": status})).await.ok()["status"], "Canceled");
    }
    // Its holder may stop by itself, and then it is not tried again.
    let claim = plane.claim(&plane.fire("r-2").await).await;
    let first = plane.complete(&claim, json!({"status": "Canceled"})).await.ok();
    assert_eq!(plane.complete(&claim, json!({"status": "Canceled"})).await.ok(), first);
    assert_eq!(plane.not_claimed(claim.task()).await, "Canceled");
    assert_eq!(plane.count("decode").await, 0);
}

async fn state_and_cursors_are_kept(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    for (request, cursor, before) in [("r-1", 7, 0), ("r-2", 20, 7)] {
        let claim = plane.claim(&plane.fire(request).await).await;
        let kept = if before == 0 { json!({}) } else { json!({"seen": before}) };
        assert_eq!(claim["task"]["operator_state"], kept);
        let outputs = json!([claim.output(1, json!({"cursor": cursor}))]);
        let body = json!({"status": "Completed", "outputs": outputs, "operator_state": {"seen": cursor}});
        plane.complete(&claim, body).await.ok();
        let page = plane.nth("page", if before == 0 { 1 } else { 2 }).await;
        let page = plane.claim(&page).await;
        let range = json!({"column": "_seq", "after": before, "upto": cursor});
        assert_eq!(page["task"]["inputs"][0]["cursor"], range);
        plane.complete(&page, json!({"status": "Completed"})).await.ok();
    }
}

async fn a_report_that_makes_no_sense_is_refused(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    for (body, status, word) in [
        (json!({}), 400, "malformed_request"),
        (json!({"status": "Done"}), 400, "malformed_request"),
        (json!({"status": "Completed", "outcome": "fatal_error"}), 400, "malformed_request"),
        (json!({"status": "Completed", "outputs": {}}), 400, "malformed_request"),
        (json!({"status": "Completed", "operator_state": []}), 400, "malformed_request"),
        (json!({"status": "Completed", "outputs": [claim.output(0, json!({"cursor": -1}))]}), 422, "invalid_event"),
        (json!({"status": "Completed", "outputs": [claim.output(0, json!({"cursor": "01"}))]}), 422, "invalid_event"),
        (json!({"status": "Completed", "outputs": [claim.output(0, part("a b"))]}), 422, "invalid_event"),
        (
            json!({"status": "Completed", "outputs": [claim.output(0, json!({"partition_key": "1-5", "start": 2}))]}),
            422,
            "partition_mismatch",
        ),
        (json!({"status": "Completed", "events": [claim.event(0, json!({}))]}), 422, "invalid_event"),
        (
            json!({"status": "Completed", "events": [claim.event(0, json!({"cursor": 1, "dataset_version": claim["task_id"]}))]}),
            422,
            "unknown_dataset_version",
        ),
        (
            json!({"status": "Completed", "invalidations": [{"dataset_uuid": claim["task"]["outputs"][0]["dataset_uuid"],
                   "scope": "all", "reason": "reorg"}]}),
            422,
            "invalid_event",
        ),
        (
            json!({"status": "Completed", "invalidations": [{"dataset_uuid": claim["task"]["outputs"][0]["dataset_uuid"],
                   "scope": "row_range", "row_filter": {"block": {"near": 1}}, "reason": "reorg"}]}),
            422,
            "invalid_event",
        ),
    ] {
        let refused = plane.complete(&claim, body.clone()).await.refused(status);
        assert_eq!(refused["error"], word, "{body}");
    }
    let many: Vec<Value> = (0..1_001).map(|cursor| claim.event(1, json!({"cursor": cursor}))).collect();
    assert_eq!(
        plane.complete(&claim, json!({"status": "Completed", "events": many})).await.refused(422)["error"],
        "invalid_event"
    );
    assert_eq!(plane.fetch(claim.task()).await.ok()["status"], "Running");
    // What is wrong with the contents is told to the holder alone.
    let stranger =
        claim.with(json!({"lease_token": "x", "status": "Completed", "events": [claim.event(0, json!({}))]}));
    assert_eq!(plane.as_task("complete", claim.token(), &stranger).await.refused(409)["error"], "stale_lease");
}

async fn what_only_a_success_has(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let fields = [
        ("outputs", json!([claim.output(0, part("1-5"))])),
        ("events", json!([claim.event(0, part("1-5"))])),
        ("invalidations", json!([{"dataset_uuid": "x", "scope": "partition", "partition_key": "1-5"}])),
        ("operator_state", json!({"a": 1})),
        ("datasets_published", json!([{"dataset_uuid": "x"}])),
    ];
    for status in ["Failed", "Canceled"] {
        for (field, value) in &fields {
            let refused = plane.complete(&claim, json!({"status": status, *field: value})).await.refused(422);
            assert_eq!(refused["error"], "unsupported_field", "{field}");
            assert!(refused["message"].as_str().unwrap().contains(field));
        }
    }
    let empty = json!({"status": "Failed", "outputs": [], "events": [], "invalidations": []});
    plane.complete(&claim, empty).await.ok();
}
