use serde_json::json;
use tenure_core::time::Timestamp;

use super::kit::{self, Plane, WORKER};
use crate::cases;
use crate::harness::time;

cases!(
    kit,
    on_sqlite: [what_a_claim_says, a_claim_is_malformed_or_not],
    on_both_stores: [
        every_state_has_its_answer,
        two_claims_at_once_make_one_lease,
        the_same_claim_again_gets_the_same_lease,
        a_silent_workers_task_is_claimed_again,
        a_cap_on_running_tasks_holds_back_the_next,
    ],
);

async fn what_a_claim_says(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let task = plane.fire("r-1").await;
    let claim = plane.claim(&task).await;
    assert_eq!((&claim["attempt"], &claim["fence"]), (&json!(1), &json!(1)));
    assert_eq!(claim["heartbeat_interval_seconds"], 30);
    let lease = time(&claim["lease_expires_at"]).since(plane.engine.now().await.unwrap());
    assert!((100_000..=120_000).contains(&lease), "{lease}");
    assert!(time(&claim["deadline_at"]) > time(&claim["lease_expires_at"]));
    let told = &claim["task"];
    assert_eq!((&told["task_id"], &told["attempt"], &told["fence"]), (&json!(task), &json!(1), &json!(1)));
    assert_eq!(told["job"], json!({"dag_name": "chain", "name": "import", "dag_version": 1}));
    assert_eq!((&told["operator"], &told["runtime"]), (&json!("import"), &json!("worker")));
    assert_eq!((&told["config"], &told["timeout_seconds"]), (&json!({"abi": "erc20"}), &json!(1800)));
    assert_eq!(told["trigger"], json!({"kind": "manual", "request_id": "r-1", "input": null}));
    assert_eq!((&told["inputs"], &told["operator_state"]), (&json!([]), &json!({})));
    assert_eq!((&told["bundle"], &told["invalidation"]), (&json!(null), &json!(null)));
    let output = &told["outputs"][1];
    assert_eq!((&output["output_index"], &output["storage"]), (&json!(1), &json!("s3")));
    assert_eq!((&output["write_mode"], &output["update_strategy"]), (&json!("direct"), &json!("replace")));
    let staging = output["staging_prefix"].as_str().unwrap();
    let (dataset, version) = (&output["dataset_uuid"], &output["dataset_version"]);
    let end =
        format!("/dataset/{}/version/{}/staging/{task}/1/1/", dataset.as_str().unwrap(), version.as_str().unwrap());
    assert!(staging.starts_with("file:///") && staging.ends_with(&end), "{staging}");
    for uuid in [&told["org_id"], &claim["lease_token"], dataset, version] {
        assert_eq!(uuid.as_str().unwrap().len(), 36, "{uuid}");
    }
    // The next job is told of the partition that the first has written.
    let at = json!({"partition_key": "1000-1999", "start": 1000, "end": 1999});
    let outputs = json!([claim.output(0, at), claim.output(1, json!({"cursor": "12"}))]);
    plane.complete(&claim, json!({"status": "Completed", "outputs": outputs})).await.ok();
    let decode = plane.claim(&plane.nth("decode", 1).await).await;
    let input = &decode["task"]["inputs"][0];
    assert_eq!((&input["alias"], &input["cursor"], &input["where"]), (&json!("raw"), &json!(null), &json!(null)));
    assert_eq!(input["dataset_uuid"], claim["task"]["outputs"][0]["dataset_uuid"]);
    assert_eq!(
        input["partition"],
        json!({"partition_key": "1000-1999", "start": 1000, "end": 1999, "location": "none:"})
    );
    assert_eq!((&input["storage_ref"]["scheme"], &input["storage_ref"]["glob"]), (&json!("file"), &json!("*.parquet")));
    assert_eq!(decode["task"]["trigger"]["kind"], "event");
    assert_eq!(decode["work_payload"]["partition_key"], "1000-1999");
    assert_eq!(
        (&decode["work_payload"]["range_start"], &decode["work_payload"]["range_end"]),
        (&json!(1000), &json!(2000))
    );
    let page = plane.claim(&plane.nth("page", 1).await).await;
    let input = &page["task"]["inputs"][0];
    assert_eq!(
        (&input["partition"], &input["cursor"]),
        (&json!(null), &json!({"column": "_seq", "after": 0, "upto": 12}))
    );
    assert_eq!(input["where"], "severity = 'critical'");
    assert_eq!(input["where_tree"]["op"], "eq");
}

async fn every_state_has_its_answer(plane: Plane) {
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    assert_eq!(plane.not_claimed("0190c0de-0000-7000-8000-000000000001").await, "NotFound");
    let other = plane.submit(json!({})).await;
    assert_eq!(plane.not_claimed(&other).await, "NotFound", "a task of no job");
    plane.fetch(&other).await.refused(404);
    // Ready, running, done.
    let task = plane.fire("r-1").await;
    assert_eq!(plane.fetch(&task).await.ok()["status"], "Queued");
    let claim = plane.claim(&task).await;
    assert_eq!(plane.not_claimed(&task).await, "AlreadyRunning");
    assert_eq!(plane.fetch(&task).await.ok()["status"], "Running");
    plane.complete(&claim, json!({"status": "Completed"})).await.ok();
    assert_eq!(plane.not_claimed(&task).await, "Completed");
    assert_eq!(plane.fetch(&task).await.ok()["status"], "Completed");
    // In back-off, then ready again, then failed for good.
    let task = plane.fire("r-2").await;
    for attempt in 1..=3 {
        let claim = plane.claim(&task).await;
        assert_eq!((&claim["attempt"], &claim["fence"]), (&json!(attempt), &json!(attempt)));
        let answer = plane.complete(&claim, json!({"status": "Failed", "error_message": "no"})).await.ok();
        let fetched = plane.fetch(&task).await.ok();
        assert_eq!((&answer["status"], &fetched["status"]), (&json!("Failed"), &json!("Failed")));
        assert_eq!(answer["next_retry_at"], fetched["next_retry_at"]);
        if attempt < 3 {
            assert_eq!(plane.not_claimed(&task).await, "NotReady");
            let base = 30_000 << (attempt - 1);
            let wait = time(&answer["next_retry_at"]).since(plane.engine.now().await.unwrap());
            assert!((base / 2..=base * 3 / 2).contains(&wait), "{wait}");
            plane.advance(wait);
        } else {
            assert_eq!(answer["next_retry_at"], json!(null));
            assert_eq!(plane.not_claimed(&task).await, "Failed");
        }
    }
    // A failure that no retry helps.
    let task = plane.fire("r-3").await;
    let claim = plane.claim(&task).await;
    let fatal = json!({"status": "Failed", "retryable": false, "error": {"category": "USER_CODE", "message": "bad"}});
    assert_eq!(plane.complete(&claim, fatal).await.ok()["next_retry_at"], json!(null));
    assert_eq!(plane.not_claimed(&task).await, "Failed");
    // Canceled, before and while it ran.
    for held in [false, true] {
        let task = plane.fire(&format!("r-4-{held}")).await;
        if held {
            plane.claim(&task).await;
        }
        plane.post(&format!("/api/v1/tasks/{task}/cancel"), json!({"reason": "enough"})).await.ok();
        assert_eq!(plane.not_claimed(&task).await, "Canceled");
        assert_eq!(plane.fetch(&task).await.ok()["status"], "Canceled");
    }
}

async fn two_claims_at_once_make_one_lease(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let task = plane.fire("r-1").await;
    let claims = (0..8).map(|_| plane.claim_answer(&task));
    let answers = futures_util::future::join_all(claims).await;
    let granted = answers.iter().filter(|answer| answer["status"] == "Claimed").count();
    assert_eq!(granted, 1, "{answers:?}");
    assert!(answers.iter().all(|answer| answer["status"] == "Claimed" || answer["reason"] == "AlreadyRunning"));
}

async fn the_same_claim_again_gets_the_same_lease(plane: Plane) {
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    let task = plane.fire("r-1").await;
    let claim = |claim_id: &str, worker: &str| json!({"task_id": task, "worker_id": worker, "claim_id": claim_id});
    let first = plane.internal("task-claim", claim("c-1", WORKER)).await.ok();
    let again = plane.internal("task-claim", claim("c-1", WORKER)).await.ok();
    for field in ["status", "attempt", "lease_token", "fence", "lease_expires_at"] {
        assert_eq!(first[field], again[field], "{field}");
    }
    for other in [claim("c-2", WORKER), claim("c-1", "another")] {
        assert_eq!(plane.internal("task-claim", other).await.ok()["reason"], "AlreadyRunning");
    }
    plane.advance(120_000);
    assert_eq!(plane.internal("task-claim", claim("c-1", WORKER)).await.ok()["reason"], "NotReady", "it has expired");
}

async fn a_silent_workers_task_is_claimed_again(plane: Plane) {
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    let task = plane.fire("r-1").await;
    let first = plane.claim(&task).await;
    plane.advance(120_000);
    assert_eq!(plane.not_claimed(&task).await, "NotReady", "closed by the claim, with back-off");
    plane.advance(45_000);
    let second = plane.claim(&task).await;
    assert_eq!((&second["attempt"], &second["fence"]), (&json!(2), &json!(2)));
    assert_ne!(first["lease_token"], second["lease_token"]);
    assert_eq!(plane.beat(&first).await.refused(409)["error"], "stale_attempt");
}

async fn a_cap_on_running_tasks_holds_back_the_next(plane: Plane) {
    plane.deploy(&kit::CHAIN.replace("outputs: 2,", "outputs: 2, scaling: { max_concurrency: 1 },")).await;
    let (first, second) = (plane.fire("r-1").await, plane.fire("r-2").await);
    let claim = plane.claim(&first).await;
    assert_eq!(plane.not_claimed(&second).await, "NotReady");
    plane.complete(&claim, json!({"status": "Completed"})).await.ok();
    plane.claim(&second).await;
}

async fn a_claim_is_malformed_or_not(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let task = plane.fire("r-1").await;
    for body in [
        json!({"worker_id": WORKER}),
        json!({"task_id": null, "worker_id": WORKER}),
        json!({"task_id": "x", "worker_id": WORKER}),
        json!({"task_id": 7, "worker_id": WORKER}),
        json!({"task_id": task, "worker_id": 7}),
        json!({"task_id": task, "worker_id": ""}),
        json!({"task_id": task, "worker_id": WORKER, "claim_id": "x".repeat(1_000)}),
        json!([task]),
    ] {
        let refused = plane.internal("task-claim", body.clone()).await.refused(400);
        assert_eq!(refused["error"], "malformed_request", "{body}");
        assert_eq!(refused["detail"], refused["message"]);
        assert!(refused["request_id"].as_str().is_some_and(|id| !id.is_empty()));
    }
    for body in ["", "{", "nothing"] {
        assert_eq!(plane.send("/internal/task-claim", &[], body).await.refused(400)["error"], "malformed_request");
    }
    let long = format!("{{\"task_id\":\"{task}\",\"pad\":\"{}\"}}", "x".repeat(16 << 10));
    assert_eq!(plane.send("/internal/task-claim", &[], long).await.refused(413)["error"], "body_too_large");
    assert_eq!(
        plane
            .call(
                reqwest::Method::GET,
                "/internal/task-fetch?task_id=x",
                &[("X-Trace-Worker-Token", crate::harness::TOKEN)],
                None
            )
            .await
            .refused(400)["error"],
        "malformed_request"
    );
    let answer = plane.internal("task-claim", json!({"task_id": task, "worker_id": WORKER, "unknown": 1})).await;
    assert_eq!(answer.header("x-tenure-contract"), "dispatch/1");
    assert_eq!(answer.ok()["status"], "Claimed", "unknown fields are ignored");
    let _ = Timestamp::from_millis(0);
}
