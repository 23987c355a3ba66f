//! Spellings of deployed workers: section by section as the contract lists them.

use reqwest::Method;
use serde_json::{Value, json};

use super::kit::{self, Plane};
use crate::cases;
use crate::harness::TOKEN;

cases!(
    kit,
    on_sqlite: [
        a_claim_without_a_worker_is_judged_by_its_status,
        the_payload_of_the_work_is_flat,
        null_is_absent,
        every_error_has_a_detail,
    ],
    on_both_stores: [
        an_outcome_stands_for_a_status,
        published_datasets_are_outputs,
        an_output_is_named_by_its_dataset,
        a_published_version_names_one_content,
    ],
);

async fn a_claim_without_a_worker_is_judged_by_its_status(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let task = plane.fire("r-1").await;
    let body = json!({"task_id": task});
    let claimed = plane.internal("task-claim", body.clone()).await.ok();
    assert_eq!((&claimed["status"], &claimed["task_id"]), (&json!("Claimed"), &json!(task)));
    let attempts = plane.attempts(&task).await;
    assert_eq!(attempts[0]["worker_id"], "anonymous@127.0.0.1");
    let refused = plane.internal("task-claim", body).await.refused(409);
    assert_eq!(refused, json!({"status": "NotClaimed", "reason": "AlreadyRunning", "error": "not_claimed"}));
    let named = plane.claim_answer(&task).await;
    assert_eq!(named, json!({"status": "NotClaimed", "reason": "AlreadyRunning"}));
}

async fn the_payload_of_the_work_is_flat(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let input = json!({"abi": "own", "n": 1}).to_string();
    let task = plane.dags.trigger(kit::ORG, "chain", "import", &"r-1".into(), Some(input.into())).await.unwrap().task;
    let claim = plane.claim(&task.to_string()).await;
    let payload = &claim["work_payload"];
    assert_eq!((&payload["abi"], &payload["n"], &payload["operator"]), (&json!("own"), &json!(1), &json!("import")));
    assert!(payload["config_hash"].as_str().unwrap().starts_with("sha256:"));
    assert!(payload.get("dataset_uuid").is_none(), "the job has two outputs");
    let fetched = plane.fetch(&task.to_string()).await.ok();
    assert_eq!(&fetched["work_payload"], payload);
    // Flat and nested readings of a fetch are the same.
    for field in ["task_id", "attempt", "operator", "inputs", "outputs", "config", "job", "trigger"] {
        assert_eq!(fetched[field], fetched["task"][field], "{field}");
    }
    assert!(fetched.get("lease_token").is_none() && fetched.get("capability_token").is_none());
    plane.events(&claim, json!([claim.event(0, json!({"partition_key": "1-5"}))])).await.ok();
    let decode = plane.claim(&plane.nth("decode", 1).await).await;
    assert_eq!(decode["work_payload"]["dataset_uuid"], decode["task"]["outputs"][0]["dataset_uuid"]);
}

async fn an_outcome_stands_for_a_status(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    for (outcome, status, reason) in [
        ("success", "Completed", "Completed"),
        ("retryable_error", "Failed", "NotReady"),
        ("fatal_error", "Failed", "Failed"),
    ] {
        let claim = plane.claim(&plane.fire(outcome).await).await;
        let first = plane.complete(&claim, json!({"outcome": outcome, "error_message": "e"})).await.ok();
        assert_eq!(first["status"], status);
        assert_eq!(plane.not_claimed(claim.task()).await, reason, "{outcome}");
        if outcome == "success" {
            assert_eq!(plane.complete(&claim, json!({"status": "Completed"})).await.ok(), first, "one content");
        }
    }
}

async fn published_datasets_are_outputs(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let dataset = &claim["task"]["outputs"][0]["dataset_uuid"];
    let artifact = "0190c0de-0000-7000-8000-0000000000aa";
    let published = |range: Value| {
        let mut element = json!({"dataset_uuid": dataset, "dataset_version": artifact});
        crate::harness::merge(&mut element, range);
        json!({"outcome": "success", "datasets_published": [element]})
    };
    let foreign = json!({"outcome": "success", "datasets_published": [{"dataset_uuid": artifact}]});
    assert_eq!(plane.complete(&claim, foreign).await.refused(403)["error"], "dataset_not_granted");
    plane.complete(&claim, published(json!({"range_start": 1000, "range_end": 2000}))).await.ok();
    let decode = plane.claim(&plane.nth("decode", 1).await).await;
    let partition = &decode["task"]["inputs"][0]["partition"];
    assert_eq!((&partition["partition_key"], &partition["end"]), (&json!("1000-1999"), &json!(1999)));
    assert_eq!(decode["work_payload"]["range_end"], 2000);
    // Without a range it is all of it.
    let claim = plane.claim(&plane.fire("r-2").await).await;
    let whole = json!({"outcome": "success", "datasets_published": [{"dataset_uuid": dataset}]});
    plane.complete(&claim, whole).await.ok();
    let decode = plane.claim(&plane.nth("decode", 2).await).await;
    assert_eq!(decode["task"]["inputs"][0]["partition"]["partition_key"], "all");
}

async fn an_output_is_named_by_its_dataset(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let at = |output: usize, extra: Value| {
        let mut output = claim.output(output, extra);
        output.as_object_mut().unwrap().remove("output_index");
        output
    };
    // Without a number, and with that of another output.
    let mut second = at(1, json!({"cursor": 7}));
    second["output_index"] = json!(0);
    let body = json!({"status": "Completed", "outputs": [at(0, json!({"partition_key": "1-5"})), second]});
    assert_eq!(plane.complete(&claim, body).await.ok()["events_accepted"], 2);
    let decode = plane.claim(&plane.nth("decode", 1).await).await;
    assert_eq!(decode["task"]["inputs"][0]["partition"]["partition_key"], "1-5");
    let page = plane.claim(&plane.nth("page", 1).await).await;
    assert_eq!(page["task"]["inputs"][0]["cursor"]["upto"], 7);
}

async fn a_published_version_names_one_content(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let version = "0190c0de-0000-7000-8000-0000000000aa";
    let publish = async |request: &str, extra: Value| {
        let claim = plane.claim(&plane.fire(request).await).await;
        let mut element = json!({"dataset_uuid": claim["task"]["outputs"][0]["dataset_uuid"], "dataset_version": version,
            "config_hash": "sha256:1", "range_start": 0, "range_end": 10});
        crate::harness::merge(&mut element, extra);
        let body = json!({"outcome": "success", "datasets_published": [element]});
        (plane.complete(&claim, body.clone()).await, claim, body)
    };
    let (first, claim, body) = publish("r-1", json!({"row_count": 5})).await;
    let first = first.ok();
    assert_eq!(plane.complete(&claim, body).await.ok(), first, "a repeat of the report");
    publish("r-2", json!({"row_count": 6})).await.0.ok();
    let table = format!("table:dataset_{}", claim["task"]["outputs"][0]["dataset_uuid"].as_str().unwrap());
    for (request, other) in [
        ("r-3", json!({"range_end": 11})),
        ("r-4", json!({"config_hash": "sha256:2"})),
        ("r-5", json!({"storage_ref": table})),
        ("r-6", json!({"range_start": null, "range_end": null})),
    ] {
        let (answer, claim, _) = publish(request, other).await;
        let refused = answer.refused(409);
        assert_eq!(refused["error"], "dataset_version_conflict", "{refused}");
        assert!(refused["message"].as_str().unwrap().contains(version), "{refused}");
        assert_eq!(plane.fetch(claim.task()).await.ok()["status"], "Running", "nothing was changed");
        // Whoever holds it no more learns that first.
        let stranger = claim.with(json!({"lease_token": "x", "outcome": "success"}));
        assert_eq!(plane.as_task("complete", claim.token(), &stranger).await.refused(409)["error"], "stale_lease");
    }
    plane.nth("decode", 1).await;
    // The name of an output of another dataset is another name.
    let claim = plane.claim(&plane.fire("r-7").await).await;
    let other = json!({"dataset_uuid": claim["task"]["outputs"][1]["dataset_uuid"], "dataset_version": version});
    plane.complete(&claim, json!({"outcome": "success", "datasets_published": [other]})).await.ok();
}

async fn null_is_absent(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let body = claim.with(json!({
        "status": "Completed", "error": null, "error_message": null, "outputs": null, "events": null,
        "invalidations": null, "operator_state": null, "retryable": null, "worker_id": null,
    }));
    plane.as_task("complete", claim.token(), &body).await.ok();
    let empty = plane.call(Method::POST, "/internal/task-claim", &[("X-Trace-Worker-Token", TOKEN)], None).await;
    assert!(empty.refused(400)["message"].as_str().unwrap().contains("task_id is missing"));
}

async fn every_error_has_a_detail(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let nobody = "0190c0de-0000-7000-8000-000000000001";
    let token = [("X-Trace-Worker-Token", TOKEN)];
    let get = async |path: &str| plane.call(Method::GET, path, &token, None).await;
    let post = async |path: &str| plane.call(Method::POST, path, &token, Some(&json!({}))).await;
    let answers = [
        (404, "dag_not_found", get("/api/v1/dags/nothing").await),
        (409, "no_previous_version", post("/api/v1/dags/chain/rollback").await),
        (422, "invalid_dag", plane.deploy_text("name: [").await),
        (404, "dataset_not_found", get(&format!("/api/v1/datasets/{nobody}")).await),
        (404, "webhook_not_found", post("/api/v1/webhooks/nothing").await),
        (404, "dataset_not_found", get(&format!("/api/v1/buffers/{nobody}/dead")).await),
        (404, "task_not_found", get(&format!("/internal/task-fetch?task_id={nobody}")).await),
        (401, "missing_capability", post("/v1/task/complete").await),
        (404, "not_found", get("/api/v1/dags/chain/nothing").await),
    ];
    for (status, word, answer) in answers {
        assert_eq!((answer.status.as_u16(), &answer.body["error"]), (status, &json!(word)), "{}", answer.body);
        assert!(answer.body["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", answer.body);
        assert_eq!(answer.body["detail"], answer.body["message"], "{}", answer.body);
    }
}
