use serde_json::{Value, json};

use super::kit::{self, Plane};
use crate::cases;

cases!(
    kit,
    on_sqlite: [events_that_are_wrong_are_refused_whole],
    on_both_stores: [
        events_make_one_task_each_however_often_they_come,
        events_early_or_late_lead_to_the_same_tasks,
        events_of_old_versions_are_kept_and_not_routed,
        changed_data_is_made_again,
    ],
);

fn part(key: &str) -> Value {
    json!({"partition_key": key})
}

async fn events_make_one_task_each_however_often_they_come(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let told = |keys: &[&str]| -> Value { keys.iter().map(|key| claim.event(0, part(key))).collect() };
    assert_eq!(plane.events(&claim, told(&["6-9", "1-5"])).await.ok(), json!({"accepted": 2, "duplicates": 0}));
    assert_eq!(plane.events(&claim, told(&["1-5", "6-9", "1-5"])).await.ok(), json!({"accepted": 3, "duplicates": 3}));
    plane.nth("decode", 2).await;
    plane.complete(&claim, json!({"status": "Completed"})).await.ok();
    // A repeat is welcome after the end; something new is not.
    assert_eq!(plane.events(&claim, told(&["1-5"])).await.ok(), json!({"accepted": 1, "duplicates": 1}));
    let new = plane.events(&claim, told(&["1-5", "10-11"])).await.refused(409);
    assert_eq!(new["error"], "attempt_closed");
    // So is a repeat that says something else as well, and one that says nothing.
    let changed = json!([{"dataset_uuid": claim["task"]["outputs"][0]["dataset_uuid"], "scope": "partition",
        "partition_key": "1-5", "reason": "reorg"}]);
    for body in [json!({"events": told(&["1-5"]), "invalidations": changed}), json!({"events": []})] {
        let more = plane.as_task("events", claim.token(), &claim.with(body)).await.refused(409);
        assert_eq!(more["error"], "attempt_closed");
    }
    assert_eq!(plane.count("decode").await, 2, "nothing was invalidated");
    let other = plane.claim(&plane.fire("r-2").await).await;
    plane.events(&other, json!([other.event(0, part("1-5"))])).await.ok();
    plane.complete(&other, json!({"status": "Completed", "events": [other.event(0, part("20-21"))]})).await.ok();
    plane.nth("decode", 3).await;
}

async fn events_early_or_late_lead_to_the_same_tasks(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let early = plane.claim(&plane.fire("r-1").await).await;
    let events = json!([early.event(0, part("1-5")), early.event(1, json!({"cursor": 5}))]);
    plane.events(&early, events).await.ok();
    plane.complete(&early, json!({"status": "Completed"})).await.ok();
    let first = (plane.nth("decode", 1).await, plane.nth("page", 1).await);
    let late = plane.claim(&plane.fire("r-2").await).await;
    let events = json!([late.event(0, part("6-9")), late.event(1, json!({"cursor": 9}))]);
    plane.complete(&late, json!({"status": "Completed", "events": events})).await.ok();
    let second = (plane.nth("decode", 2).await, plane.nth("page", 2).await);
    for (first, second) in [(first.0, second.0), (first.1, second.1)] {
        let (first, second) = (plane.claim(&first).await, plane.claim(&second).await);
        for field in ["job", "operator", "outputs", "config"] {
            let strip = |claim: &kit::Claim| {
                let mut value = claim["task"][field].clone();
                if let Some(output) = value.get_mut(0) {
                    output["staging_prefix"] = Value::Null;
                }
                value
            };
            assert_eq!(strip(&first), strip(&second), "{field}");
        }
    }
}

async fn events_of_old_versions_are_kept_and_not_routed(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let old = plane.claim(&plane.fire("r-1").await).await;
    let events = json!([old.event(0, json!({"cursor": 1, "dataset_version": old["task_id"]}))]);
    assert_eq!(plane.events(&old, events).await.refused(422)["error"], "unknown_dataset_version");
    // Another definition of the source makes other generations; the old task goes on.
    plane.deploy(&kit::CHAIN.replace("abi: erc20", "abi: erc721")).await;
    plane.active(2).await;
    let new = plane.claim(&plane.fire("r-2").await).await;
    assert_ne!(old["task"]["outputs"][0]["dataset_version"], new["task"]["outputs"][0]["dataset_version"]);
    assert_eq!(old["task"]["outputs"][0]["dataset_uuid"], new["task"]["outputs"][0]["dataset_uuid"]);
    assert_eq!(plane.events(&old, json!([old.event(0, part("1-5"))])).await.ok()["accepted"], 1);
    plane.events(&new, json!([new.event(0, part("6-9"))])).await.ok();
    let decode = plane.claim(&plane.nth("decode", 1).await).await;
    assert_eq!(decode["task"]["inputs"][0]["partition"]["partition_key"], "6-9", "only the new one is routed");
}

async fn changed_data_is_made_again(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    plane.events(&claim, json!([claim.event(0, part("1-5")), claim.event(0, part("6-9"))])).await.ok();
    plane.nth("decode", 2).await;
    let dataset = &claim["task"]["outputs"][0]["dataset_uuid"];
    let invalidation =
        json!({"dataset_uuid": dataset, "scope": "partition", "partition_key": "1-5", "reason": "reorg"});
    for _ in 0..2 {
        let body = claim.with(json!({"invalidations": [invalidation]}));
        plane.as_task("events", claim.token(), &body).await.ok();
    }
    let again = plane.claim(&plane.nth("decode", 3).await).await;
    assert_eq!(again["task"]["trigger"]["kind"], "invalidation");
    let told = &again["task"]["invalidation"];
    assert_eq!((&told["scope"], &told["partition_key"]), (&json!("partition"), &json!("1-5")));
    assert_eq!((&told["row_filter"], &told["reason"]), (&json!(null), &json!("reorg")));
    let input = &again["task"]["inputs"][0];
    assert_eq!(input["partition"]["partition_key"], "1-5");
    // Bounds of rows may exclude their ends.
    let rows = json!({"block": {"gt": 995, "lt": 1005}, "at": {"gte": "2026-01-01", "lte": "2026-01-02"}});
    let changed = json!([{"dataset_uuid": claim["task"]["outputs"][1]["dataset_uuid"], "scope": "row_range",
        "row_filter": rows, "reason": "correction"}]);
    plane.as_task("events", claim.token(), &claim.with(json!({"invalidations": changed}))).await.ok();
    let page = plane.claim(&plane.nth("page", 1).await).await;
    assert_eq!(page["task"]["invalidation"]["row_filter"], rows);
}

async fn events_that_are_wrong_are_refused_whole(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let good = claim.event(0, part("1-5"));
    for (bad, status, word) in [
        (claim.event(0, json!({})), 422, "invalid_event"),
        (claim.event(0, json!({"start": 1, "end": 5})), 422, "invalid_event"),
        (claim.event(0, json!({"partition_key": "1-5", "end": 6})), 422, "partition_mismatch"),
        (claim.event(0, json!({"partition_key": "", "end": 6})), 422, "invalid_event"),
        (claim.event(0, json!({"cursor": 9_223_372_036_854_775_808_u64})), 422, "invalid_event"),
        (claim.event(0, json!({"cursor": 1.5})), 422, "invalid_event"),
        (
            json!({"dataset_uuid": claim["task_id"], "dataset_version": claim["task_id"], "cursor": 1}),
            403,
            "dataset_not_granted",
        ),
        (json!({"dataset_uuid": "x", "dataset_version": "y", "cursor": 1}), 422, "invalid_event"),
        (json!({"cursor": 1}), 400, "malformed_request"),
        (json!(7), 400, "malformed_request"),
    ] {
        let refused = plane.events(&claim, json!([good, bad])).await.refused(status);
        assert_eq!(refused["error"], word, "{bad}");
    }
    assert_eq!(plane.events(&claim, json!([good])).await.ok(), json!({"accepted": 1, "duplicates": 0}));
    let mut body = claim.with(json!({"events": [good]}));
    body.as_object_mut().unwrap().remove("lease_token");
    let refused = plane.as_task("events", claim.token(), &body).await.refused(400);
    assert_eq!(refused["error"], "malformed_request", "only a wrapper may leave it out");
}
