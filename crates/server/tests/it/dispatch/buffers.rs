//! Buffered datasets: from the producer to the table and to the jobs that read it.

mod faults;
mod queues;
mod stand;
mod users;

use serde_json::{Value, json};
use tenure_core::dag::Schema;
use tenure_engine::dags::NewVersion;

use self::stand::{DAG, Stand, row, sqlite_with_other_data, written};
use super::kit::{self, Plane};
use crate::cases;

cases!(
    kit,
    on_sqlite: [what_cannot_be_published_is_refused, an_organisation_can_have_so_much_waiting],
    on_both_stores: [
        rows_are_written_once_and_their_readers_run,
        a_batch_in_the_object_store_is_read_by_the_sink,
        several_jobs_write_to_one_dataset,
        a_bad_batch_is_a_dead_letter_after_its_last_receive,
        a_late_publish_counts_until_another_attempt_is_granted,
        schemas_gain_columns,
    ],
);

/// The store is SQLite and the rows are in Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_and_tasks_may_be_in_different_databases() {
    let plane = sqlite_with_other_data().await;
    rows_are_written_once_and_their_readers_run(plane).await;
}

async fn rows_are_written_once_and_their_readers_run(plane: Plane) {
    let stand = Stand::deploy(plane, DAG).await;
    let claim = stand.claim("r-1").await;
    let records = json!([row("a", 1), row("b", 2)]);
    let first = stand.publish(&claim, json!({"records": records})).await.ok();
    assert_eq!((&first["status"], &first["duplicate"]), (&json!("Accepted"), &json!(false)));
    let again = stand.publish(&claim, json!({"records": records, "dataset_uuid": stand.dataset})).await.ok();
    assert_eq!((&again["publish_id"], &again["duplicate"]), (&first["publish_id"], &json!(true)));
    let reader = stand.nth("alert", 1).await;
    assert_eq!(stand.keys().await, ["a", "b"]);
    let reader = stand.plane.claim(&reader).await;
    let input = &reader["task"]["inputs"][0];
    assert_eq!(input["cursor"], json!({"column": "_seq", "after": 0, "upto": 2}));
    assert_eq!(input["table"], format!("dataset_{}", stand.dataset));
    stand.plane.complete(&reader, json!({"status": "Completed"})).await.ok();
    // Another batch with rows that are known: only the new one is written, and the reader goes on behind the others.
    stand.publish(&claim, json!({"records": [row("b", 9), row("c", 3)]})).await.ok();
    let next = stand.plane.claim(&stand.nth("alert", 2).await).await;
    let cursor = &next["task"]["inputs"][0]["cursor"];
    assert_eq!(cursor["after"], 2);
    assert_eq!(stand.keys().await, ["a", "b", "c"]);
    // After the end a repeat is welcome, and something new is not.
    stand.plane.complete(&claim, json!({"status": "Completed"})).await.ok();
    assert_eq!(stand.publish(&claim, json!({"records": records})).await.ok()["duplicate"], true);
    let new = stand.publish(&claim, json!({"records": [row("d", 4)]})).await.refused(409);
    assert_eq!(new["error"], "attempt_closed");
}

async fn a_batch_in_the_object_store_is_read_by_the_sink(plane: Plane) {
    let stand = Stand::deploy(plane, DAG).await;
    let claim = stand.claim("r-1").await;
    let uri = stand.artifact(&claim, "batch.jsonl", &format!("{}\n\n{}\n", row("a", 1), row("b", 2)));
    let body = json!({"batch_uri": uri, "content_type": "application/jsonl", "batch_size_bytes": 99, "dedupe_scope": "alerts"});
    let first = stand.publish(&claim, body.clone()).await.ok();
    let again = stand.publish(&claim, body).await.ok();
    assert_eq!((&again["publish_id"], &again["duplicate"]), (&first["publish_id"], &json!(true)));
    stand.nth("alert", 1).await;
    assert_eq!(stand.keys().await, ["a", "b"]);
}

async fn several_jobs_write_to_one_dataset(plane: Plane) {
    let stand = Stand::deploy(plane, DAG).await;
    let other = stand.plane.dags.trigger(kit::ORG, "chain", "second", &"r-1".into(), None).await.unwrap().task;
    let other = stand.plane.claim(&other.to_string()).await;
    let own = &other["task"]["outputs"][0]["dataset_uuid"];
    assert_ne!(own, &json!(stand.dataset));
    stand.publish(&other, json!({"records": [row("x", 1)], "dataset_uuid": own})).await.ok();
    stand.publish(&other, json!({"records": [row("y", 1)], "dataset_uuid": stand.dataset})).await.ok();
    written(&stand, 2).await;
}

async fn a_bad_batch_is_a_dead_letter_after_its_last_receive(plane: Plane) {
    let stand = Stand::deploy(plane, DAG).await;
    let claim = stand.claim("r-1").await;
    let bad = json!([row("a", 1), {"dedupe_key": "b", "n": "no number"}]);
    let bad = stand.publish(&claim, json!({"records": bad})).await.ok();
    let foreign = json!([{"org_id": "0190c0de-0000-7000-8000-000000000009", "dedupe_key": "z"}]);
    stand.publish(&claim, json!({"records": foreign})).await.ok();
    stand.publish(&claim, json!({"records": [row("good", 1)]})).await.ok();
    // What is good is not held up.
    written(&stand, 1).await;
    let dead = stand.dead(2).await;
    let of = |id: &Value| dead.iter().find(|letter| letter["publish_id"] == *id).unwrap().clone();
    let letter = of(&bad["publish_id"]);
    assert_eq!((&letter["receives"], &letter["error"]["line"]), (&json!(10), &json!(2)));
    assert_eq!(letter["error"]["code"], "wrong_type");
    assert_eq!(letter["original"]["records"][0]["dedupe_key"], "a");
    assert_eq!(letter["original"]["producer"]["task_id"], claim["task_id"]);
    assert!(!letter.to_string().contains(claim["lease_token"].as_str().unwrap()));
    assert!(dead.iter().any(|letter| letter["error"]["code"] == "foreign_org"));
    assert_eq!(stand.keys().await, ["good"], "no row of a rejected batch");
    // Tried again by hand it is as bad as before.
    let replay = json!({"publish_ids": [bad["publish_id"]]});
    assert_eq!(stand.plane.post(&stand.path("replay"), replay).await.ok(), json!({"replayed": 1}));
    assert_eq!(stand.plane.get(&stand.path("dead")).await.ok()["items"].as_array().unwrap().len(), 1);
    stand.dead(2).await;
}

async fn a_late_publish_counts_until_another_attempt_is_granted(plane: Plane) {
    let stand = Stand::deploy(plane, DAG).await;
    let task = stand.plane.fire("r-1").await;
    let first = stand.plane.claim(&task).await;
    stand.plane.clock.advance(200_000);
    stand.publish(&first, json!({"records": [row("late", 1)]})).await.ok();
    written(&stand, 1).await;
    stand.plane.clock.advance(700_000);
    let second = stand.plane.claim(&task).await;
    assert_eq!(second["attempt"], 2);
    let stale = stand.publish(&first, json!({"records": [row("stale", 1)], "dataset_uuid": "x"})).await.refused(409);
    assert_eq!(stale["error"], "stale_attempt", "the fence comes before the contents");
    stand.publish(&second, json!({"records": [row("current", 1)]})).await.ok();
    written(&stand, 2).await;
    assert_eq!(stand.keys().await, ["late", "current"]);
}

async fn schemas_gain_columns(plane: Plane) {
    let stand = Stand::deploy(plane, DAG).await;
    let claim = stand.claim("r-1").await;
    let old: Schema = stand.schema().await;
    stand.publish(&claim, json!({"records": [row("a", 1)], "schema_hash": old.hash()})).await.ok();
    written(&stand, 1).await;
    let wider = DAG.replace("{ name: n, type: int64 }", "{ name: n, type: int64 }, { name: note, type: text }");
    stand.plane.deploy(&wider).await;
    let new = stand.schema().await;
    assert_ne!(old.hash(), new.hash());
    let claim = stand.claim("r-2").await;
    let noted = json!({"dedupe_key": "b", "note": "new"});
    stand.publish(&claim, json!({"records": [noted], "schema_hash": new.hash()})).await.ok();
    written(&stand, 2).await;
    // Rows of the first version have no value there.
    assert_eq!(stand.column("note").await, [None, Some("new".to_owned())]);
    let other = DAG.replace("type: int64", "type: text");
    let refused =
        stand.plane.dags.deploy(NewVersion { org: kit::ORG, yaml: &other, manual: false, dry_run: false }).await;
    assert!(format!("{refused:?}").contains("IncompatibleSchema"), "{refused:?}");
}

async fn an_organisation_can_have_so_much_waiting(plane: Plane) {
    const BATCH: u64 = 16 << 20;
    let stand = Stand::deploy(plane, DAG).await;
    stand.plane.still().await;
    let claim = stand.claim("r-1").await;
    let dataset = json!(stand.dataset);
    // Publish never opens the batch, so that nothing has to be there. The sink does, and tries again later.
    let uri = stand.artifact(&claim, "batch.jsonl", "").replace("batch", "none");
    let batch = |n: u64, bytes: u64| {
        let uri = uri.replace("none", &format!("none-{n}"));
        json!({"dataset_uuid": dataset, "batch_uri": uri, "batch_size_bytes": bytes})
    };
    for n in 0..(1 << 30) / BATCH {
        stand.publish(&claim, batch(n, BATCH)).await.ok();
    }
    let full = stand.publish(&claim, batch(100, 1)).await;
    assert!(full.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() > 0);
    let full = full.refused(429);
    assert_eq!(full["error"], "rate_limited");
    assert!(full["message"].as_str().unwrap().contains("waiting to be written"), "{full}");
    let full = stand.plane.post(&stand.path("publish"), json!({"records": [row("a", 1)]})).await.refused(429);
    assert_eq!(full["error"], "rate_limited");
    // A repeat adds nothing.
    assert_eq!(stand.publish(&claim, batch(0, BATCH)).await.ok()["duplicate"], true);
}

async fn what_cannot_be_published_is_refused(plane: Plane) {
    let stand = Stand::deploy(plane, DAG).await;
    let claim = stand.claim("r-1").await;
    let uri = stand.artifact(&claim, "x.jsonl", "{}");
    let evil = uri.replace("/1/buffers/", "/1-evil/buffers/");
    let large = "x".repeat(262_144);
    for (body, status, code) in [
        (json!({}), 400, "malformed_request"),
        (json!({"records": null, "batch_uri": null}), 400, "malformed_request"),
        (json!({"records": [], "batch_uri": uri}), 400, "malformed_request"),
        (json!({"records": {}}), 400, "malformed_request"),
        (json!({"records": [], "dataset_uuid": uuid::Uuid::nil()}), 403, "dataset_not_granted"),
        (json!({"batch_uri": evil}), 403, "prefix_not_granted"),
        (json!({"batch_uri": "s3://other/x.jsonl"}), 403, "prefix_not_granted"),
        (json!({"batch_uri": uri.replace("x.jsonl", "../../2/x.jsonl")}), 403, "prefix_not_granted"),
        (json!({"records": [], "schema_hash": "sha256:0"}), 422, "schema_hash_mismatch"),
        (json!({"batch_uri": uri, "content_type": "text/csv"}), 422, "unsupported_content_type"),
        (json!({"batch_uri": uri, "batch_size_bytes": 16 * 1024 * 1024 + 1}), 413, "batch_too_large"),
        (json!({"records": [{"dedupe_key": large}]}), 413, "inline_too_large"),
    ] {
        let refused = stand.publish(&claim, body.clone()).await.refused(status);
        assert_eq!(refused["error"], code, "{refused}");
    }
    let mut stolen = claim.with(json!({"records": [], "dataset_uuid": uuid::Uuid::nil()}));
    stolen["lease_token"] = json!(uuid::Uuid::nil());
    let refused = stand.plane.as_task("buffer-publish", claim.token(), &stolen).await.refused(409);
    assert_eq!(refused["error"], "stale_lease");
    // A job with two buffered outputs has to say which; one without any has none.
    let twice = stand.plane.dags.trigger(kit::ORG, "chain", "twice", &"r-1".into(), None).await.unwrap().task;
    let twice = stand.plane.claim(&twice.to_string()).await;
    let refused = stand.publish(&twice, json!({"records": []})).await.refused(422);
    assert_eq!(refused["error"], "dataset_ambiguous");
    stand.publish(&twice, json!({"records": [], "dedupe_scope": "notes"})).await.ok();
    // The last request: the server closes a connection whose body it did not read to its end.
    let refused = stand.publish(&twice, json!({"records": [{"dedupe_key": "x".repeat(1 << 20)}]})).await.refused(413);
    assert_eq!(refused["error"], "body_too_large", "{refused}");
    assert_eq!(stand.keys().await, Vec::<String>::new(), "nothing was written");
}
