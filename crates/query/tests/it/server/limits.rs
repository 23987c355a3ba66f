//! What a query may not use or read, as its caller is told.

use serde_json::json;
use tenure_core::objects::WriteTemplate;

use super::kit::{self, DAG};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_needs_more_memory_than_it_may_use_is_refused() {
    let plane = kit::plane(None, |config| config.query.memory_bytes = 16 << 20).await;
    plane.deploy("default", DAG).await;
    plane.import("default", 0, 199_999).await;
    let wide = format!("SELECT n, owner || '{}' || n AS x FROM blocks", "x".repeat(100));
    let joined = format!("SELECT count(*) FROM ({wide}) a JOIN ({wide}) b ON a.x = b.x");
    let refused = plane.query(&joined).await.refused(422, "query_memory_exceeded");
    assert!(refused["message"].as_str().unwrap().contains("aggregate earlier"), "{refused}");
    // It harms nobody else, and what fits is answered.
    assert_eq!(plane.rows("SELECT count(*) FROM blocks").await, json!([[200_000]]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_that_is_too_large_or_wrong_is_refused() {
    let plane = kit::sqlite().await;
    plane.deploy("default", DAG).await;
    let folder = plane.import("default", 0, 9).await;
    // Somebody who may still write there has replaced it.
    for (text, status, code) in [
        (" ".repeat((1 << 20) + 1), 413, "manifest_too_large"),
        ("{}".to_owned(), 422, "invalid_manifest"),
        ("not JSON".to_owned(), 422, "invalid_manifest"),
    ] {
        std::fs::write(folder.join("_manifest.json"), text).unwrap();
        plane.query("SELECT count(*) FROM blocks").await.refused(status, code);
    }
    // A query that does not read the dataset is not concerned.
    assert_eq!(plane.rows("SELECT 1").await, json!([[1]]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_reads_no_partition_outside_the_prefixes_of_its_token() {
    let plane = kit::plane(None, |config| {
        let root = config.dispatch.objects.as_ref().unwrap().folder().unwrap();
        let template = format!("file://{}/beside/{{task_id}}/", root.display());
        config.dispatch.write_prefixes = vec![WriteTemplate::parse(&template, true).unwrap()];
    })
    .await;
    plane.deploy("default", DAG).await;
    plane.import("default", 0, 9).await;
    let decode = plane.claim(&plane.nth("decode", 1).await).await;
    let sql = json!({"sql": "SELECT count(*) FROM raw"});
    assert_eq!(plane.as_task(&decode, "query", sql.clone()).await.ok()["rows"], json!([[10]]));
    // Another partition is committed where the token of the first reader does not reach.
    let task = plane.trigger("default", "import", "elsewhere").await;
    let claim = plane.claim(&task).await;
    let root = plane.folder.path().join("objects").canonicalize().unwrap();
    let elsewhere = format!("file://{}/beside/{task}/", root.display());
    plane.commit(&claim, "default", &elsewhere, 10, 19).await;
    plane.as_task(&decode, "query", sql.clone()).await.refused(403, "prefix_not_granted");
    // The reader of that partition has it in its token.
    let reader = plane.claim(&plane.nth("decode", 2).await).await;
    assert_eq!(plane.as_task(&reader, "query", sql).await.ok()["rows"], json!([[20]]));
}
